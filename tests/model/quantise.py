"""quantise.py MODEL FORMAT QUANTISED PLAIN: the fp32 model folder's matrices of blocks quantised (nf4, fp8 or nvfp4), in the folder QUANTISED,
and as the numbers that the codes stand for, in PLAIN. Needs nothing but Python."""
import bisect
import json
import os
import shutil
import struct
import sys

E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
NF4 = struct.unpack("<16f", struct.pack("<16f", -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
                                        -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
                                        0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
                                        0.7229568362236023, 1.0))


def e4m3(code):
    mantissa, exponent, sign = code & 7, code >> 3 & 15, -1 if code > 127 else 1
    return sign * ((8 + mantissa) * 2.0 ** (exponent - 10) if exponent else mantissa * 2.0 ** -9)


POSITIVE = [e4m3(code) for code in range(127)]


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def nearest(table, x):
    i = bisect.bisect_left(table, x)
    return min((j for j in (i - 1, i) if 0 <= j < len(table)), key=lambda j: abs(table[j] - x))


def signed(table, x, bit):
    return nearest(table, abs(x)) | (bit if x < 0 else 0)


def nf4(w, rows, cols):
    blocks = [w[i:i + 64] for i in range(0, len(w), 64)]
    scales = [max(map(abs, b)) for b in blocks]
    codes = [nearest(NF4, x / s) for b, s in zip(blocks, scales) for x in b]
    state = json.dumps(dict(quant_type="nf4", blocksize=64, dtype="float32", shape=[rows, cols])).encode()
    parts = {"": ("U8", [len(w) // 2, 1], bytes(a << 4 | b for a, b in zip(codes[::2], codes[1::2]))),
             ".absmax": ("F32", [len(scales)], struct.pack(f"<{len(scales)}f", *scales)),
             ".quant_map": ("F32", [16], struct.pack("<16f", *NF4)),
             ".quant_state.bitsandbytes__nf4": ("U8", [len(state)], state)}
    return parts, [NF4[c] * scales[i // 64] for i, c in enumerate(codes)]


def fp8(w, rows, cols):
    assert rows <= 128 and cols <= 128
    scale = f32(max(map(abs, w)) / 448)
    codes = [signed(POSITIVE, x / scale, 128) for x in w]
    parts = {"": ("F8_E4M3", [rows, cols], bytes(codes)), "_scale_inv": ("F32", [1, 1], struct.pack("<f", scale))}
    return parts, [e4m3(c) * scale for c in codes]


def nvfp4(w, rows, cols):
    overall = f32(max(map(abs, w)) / 2688)
    blocks = [w[i:i + 16] for i in range(0, len(w), 16)]
    scales = [nearest(POSITIVE, max(map(abs, b)) / 6 / overall) for b in blocks]
    codes = [signed(E2M1, x / (POSITIVE[s] * overall), 8) for b, s in zip(blocks, scales) for x in b]
    parts = {"": ("U8", [rows, cols // 2], bytes(a | b << 4 for a, b in zip(codes[::2], codes[1::2]))),
             "_scale": ("F8_E4M3", [rows, cols // 16], bytes(scales)), "_scale_2": ("F32", [], struct.pack("<f", overall))}
    return parts, [E2M1[c & 7] * (-1 if c & 8 else 1) * POSITIVE[scales[i // 16]] * overall for i, c in enumerate(codes)]


CONFIGS = {"nf4": dict(quant_method="bitsandbytes", load_in_4bit=True, bnb_4bit_quant_type="nf4"),
           "fp8": dict(quant_method="fp8", weight_block_size=[128, 128], activation_scheme="dynamic", fmt="e4m3"),
           "nvfp4": dict(quant_method="modelopt", quant_algo="NVFP4")}


def write(folder, tensors):
    header, at = {}, 0
    order = sorted(tensors, key=lambda n: (tensors[n][0] != "F32", n))  # aligned
    for name in order:
        dtype, shape, data = tensors[name]
        header[name] = dict(dtype=dtype, shape=shape, data_offsets=[at, at + len(data)])
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(tensors[n][2] for n in order))


def main(model, name, quantised, plain):
    data = open(os.path.join(model, "model.safetensors"), "rb").read()
    size = struct.unpack("<Q", data[:8])[0]
    header, body = json.loads(data[8:8 + size]), data[8 + size:]
    header.pop("__metadata__", None)
    codes, numbers = {}, {}
    for tensor, info in header.items():
        raw = body[slice(*info["data_offsets"])]
        codes[tensor] = numbers[tensor] = (info["dtype"], info["shape"], raw)
        if ".layers." not in tensor or len(info["shape"]) != 2:
            continue
        parts, values = globals()[name](struct.unpack(f"<{len(raw) // 4}f", raw), *info["shape"])
        del codes[tensor]
        codes.update((tensor + suffix, part) for suffix, part in parts.items())
        numbers[tensor] = ("F32", info["shape"], struct.pack(f"<{len(values)}f", *values))
    for folder, tensors in (quantised, codes), (plain, numbers):
        shutil.copytree(model, folder)
        write(folder, tensors)
    path = os.path.join(quantised, "config.json")
    config = json.load(open(path))
    config["quantization_config"] = CONFIGS[name]
    json.dump(config, open(path, "w"), indent=2)


main(*sys.argv[1:])
