#!/usr/bin/env python3
"""Writes tests/fixtures/adamw_8bit.safetensors: two parameters after 1 and 100 updates of bitsandbytes' AdamW8bit, on the CPU.

Its compiled CPU code finds codes in a table of 65,536 even cells, so that about one code in a few hundred isn't the nearest. Its PyTorch
code, for dtypes that the compiled code doesn't accept, compares with every value of the map, like its CUDA kernels. This script quantises
moments by the PyTorch code.

  python3 tests/oracle/make_adamw_8bit.py [--native]    --native: prints the compiled code's difference; writes nothing
"""
import os
import sys

import bitsandbytes
import bitsandbytes.backends.cpu.ops as cpu_ops
import numpy
import torch
from safetensors.torch import save_file

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures", "adamw_8bit.safetensors")
SIZES, STEPS, KEPT = (4500, 4100), 100, (1, 100)
native = cpu_ops._quant_blockwise_fp32_direct


def nearest(values, code, absmax, out, blocksize):
    found, most = torch.ops.bitsandbytes.quantize_blockwise(values.double(), code, blocksize)
    out.copy_(found)
    absmax.copy_(most)


def numbers(turn, first, count):
    """As in tests/ops/test_adamw_8bit.c: uniform in [-1, 1) times 2^-(index % 11), exact in fp32."""
    index = numpy.arange(first, first + count, dtype=numpy.uint32)
    h = index * numpy.uint32(0x9E3779B1) + numpy.uint32(turn * 0x85EBCA77 & 0xFFFFFFFF)
    for shift, factor in ((15, 0x2C1B3C6D), (12, 0x297A2D39), (15, 1)):
        h = (h ^ (h >> numpy.uint32(shift))) * numpy.uint32(factor)
    whole = (h >> numpy.uint32(8)).astype(numpy.int64) - (1 << 23)
    return torch.from_numpy((whole * 2.0 ** -23 * 2.0 ** -(index % 11).astype(float)).astype(numpy.float32))


def train(quantise):
    cpu_ops._quant_blockwise_fp32_direct = quantise
    params = [torch.nn.Parameter(numbers(0, 10000 * k, n)) for k, n in enumerate(SIZES)]
    optimizer = bitsandbytes.optim.AdamW8bit(params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1)
    kept = {}
    for step in range(1, STEPS + 1):
        for k, p in enumerate(params):
            p.grad = numbers(step, 10000 * k, p.numel())
        optimizer.step()
        for k, p in enumerate(params if step in KEPT else ()):
            state = optimizer.state[p]
            for name, t in (("w", p.detach()), ("m", state["state1"]), ("v", state["state2"]), ("m.scale", state["absmax1"]),
                            ("v.scale", state["absmax2"])):
                kept["%d.%d.%s" % (step, k, name)] = t.clone()
    return kept


def main():
    torch.set_num_threads(1)
    kept = train(nearest)
    if "--native" in sys.argv[1:]:
        for name, t in train(native).items():
            if t.dtype == torch.uint8:
                off = (t.int() - kept[name].int()).abs()
                print("%-8s %.3f %% off, most by %d" % (name, 100 * (off > 0).float().mean(), off.max()))
        return
    for is_signed, name in ((True, "map.signed"), (False, "map.unsigned")):
        kept[name] = bitsandbytes.functional.create_dynamic_map(signed=is_signed)
    save_file(kept, PATH)
    print("%d tensors, %d bytes" % (len(kept), os.path.getsize(PATH)))


if __name__ == "__main__":
    main()
