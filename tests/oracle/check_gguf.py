#!/usr/bin/env python3
"""Do llama.cpp and the package gguf find in exported files what the model folder holds? Makes a tiny model of each family with random
weights, exports it in each type and compares

  - names, shapes and values of the F32 file, by gguf's reader, with the folder's (rows of q and k in llama.cpp's order),
  - the bytes of Q8_0 and Q4_0 tensors with those of gguf's own quantiser,
  - the squared error of Q4_K and Q6_K tensors with that of llama.cpp's quantiser (at most 1.02 times),
  - the 200 best log-probabilities behind a prompt: of the F32 file with ours (5e-6), of the others, dequantised, with ours on the same
    weights (1e-4),
  - token ids of 1,000 texts, and adapters: merged, and alone over the base's file.

Needs xllamacpp, gguf, safetensors, and Surogate's Python package.

  python3 tests/oracle/check_gguf.py build-cpu/surogate [FAMILY ...]
"""
import contextlib
import ctypes
import io
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import urllib.request

import gguf
import numpy as np
import xllamacpp
from gguf import GGMLQuantizationType as T
from safetensors.numpy import load_file, save_file

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../python"))
import surogate  # noqa: E402

# name: (size of `surogate new`, keys of config.json)
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LONG = {"rope_type": "longrope", "short_factor": [1 + .1 * i for i in range(8)], "long_factor": [1 + .7 * i for i in range(8)]}
WIDE = {"hidden_size": 256, "intermediate_size": 512}
CASES = {
    "llama": ("llama-tiny", {}), "llama_tied": ("llama-tiny", {"tie_word_embeddings": True}),
    "llama3": ("llama-tiny", {"rope_scaling": LLAMA3}),
    "llama_linear": ("llama-tiny", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
    "llama_wide": ("llama-tiny", dict(WIDE, num_hidden_layers=4)),
    "mistral": ("mistral-tiny", {"sliding_window": 64}),
    "qwen2": ("qwen2.5-tiny", {}), "qwen2_window": ("qwen2.5-tiny", {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}),
    "qwen3": ("qwen3-tiny", {}), "qwen3_yarn": ("qwen3-tiny", {"rope_scaling": YARN}),
    "qwen3_yarn2": ("qwen3-tiny", {"rope_scaling": dict(YARN, attention_factor=0.9, beta_fast=16, beta_slow=2)}),
    "phi3": ("phi-3-tiny", {}),
    "phi3_long": ("phi-3-tiny", {"rope_scaling": LONG, "original_max_position_embeddings": 16, "max_position_embeddings": 512}),
    "phi3_part": ("phi-3-tiny", {"partial_rotary_factor": 0.5}),
    "olmo2": ("olmo-2-tiny", {}), "smollm3": ("smollm3-tiny", {"num_hidden_layers": 5}),
    "gemma2": ("gemma-2-tiny", {"sliding_window": 8}), "gemma3": ("gemma-3-tiny", {"sliding_window": 8, "num_hidden_layers": 7}),
    "gemma3_linear": ("gemma-3-tiny", {"rope_scaling": {"rope_type": "linear", "factor": 8.0}, "num_hidden_layers": 7, "sliding_window": 8}),
    "gpt2": ("gpt2-tiny", {}),
}
TYPES = ["f32", "f16", "bf16", "q8_0", "q6_K", "q4_K_M", "q4_0"]
GELU = {"gemma2", "gemma3", "gpt2"}  # llama.cpp takes gelu from a table of fp16
failed = []


def say(good, text):
    print(("ok   " if good else "FAIL ") + text)
    if not good:
        failed.append(text)


def surogate_run(*args, ok=True):
    done = subprocess.run([SUROGATE, *args], capture_output=True, text=True)
    if ok and done.returncode:
        sys.exit("surogate %s: %s" % (" ".join(args), done.stderr))
    return done


def make_model(folder, size, keys, tokenizer):
    words = ["%s=%s" % (k, json.dumps(v)) for k, v in keys.items() if not isinstance(v, dict)]
    surogate_run("new", "--arch", size, "--random", "--tokenizer", tokenizer, folder, *words)
    path = folder + "/config.json"
    config = json.load(open(path))
    config.update(keys)
    config["torch_dtype"] = "float32"
    json.dump(config, open(path, "w"), indent=2)
    rng = np.random.default_rng(7)
    tensors = {}
    for name, value in load_file(folder + "/model.safetensors").items():
        if value.ndim == 1:
            value = value + rng.normal(0, .2, value.shape)
        else:
            value = rng.normal(0, .6 / np.sqrt(value.shape[-1]), value.shape) * (3 if "embed" in name or "wte" in name else 1)
        tensors[name] = np.ascontiguousarray(value, np.float32)
    save_file(tensors, folder + "/model.safetensors", {"format": "pt"})
    return config, tensors


# ---- the mapping, independently ----
NAMES = [("model.embed_tokens.", "token_embd."), ("model.norm.", "output_norm."), ("lm_head.", "output."), ("model.layers.", "blk."),
         ("transformer.wte.", "token_embd."), ("transformer.wpe.", "position_embd."), ("transformer.ln_f.", "output_norm."),
         ("transformer.h.", "blk."), (".self_attn.q_proj.", ".attn_q."), (".self_attn.k_proj.", ".attn_k."),
         (".self_attn.v_proj.", ".attn_v."), (".self_attn.o_proj.", ".attn_output."), (".self_attn.qkv_proj.", ".attn_qkv."),
         (".self_attn.q_norm.", ".attn_q_norm."), (".self_attn.k_norm.", ".attn_k_norm."), (".input_layernorm.", ".attn_norm."),
         (".mlp.gate_proj.", ".ffn_gate."), (".mlp.up_proj.", ".ffn_up."), (".mlp.gate_up_proj.", ".ffn_up."),
         (".mlp.down_proj.", ".ffn_down."), (".pre_feedforward_layernorm.", ".ffn_norm."), (".post_feedforward_layernorm.", ".post_ffw_norm."),
         (".attn.c_attn.", ".attn_qkv."), (".attn.c_proj.", ".attn_output."), (".mlp.c_fc.", ".ffn_up."), (".mlp.c_proj.", ".ffn_down."),
         (".ln_1.", ".attn_norm."), (".ln_2.", ".ffn_norm.")]


def gguf_name(name, model_type):
    for a, b in NAMES:
        name = name.replace(a, b)
    behind = model_type.startswith("gemma") or model_type == "olmo2"
    return name.replace(".post_attention_layernorm.", ".post_attention_norm." if behind else ".ffn_norm.")


def turn(name, value, config, back=False):
    """The folder's tensor as the file has it, or back."""
    kind = config["model_type"]
    if kind in ("llama", "mistral", "smollm3") and re.search(r"\.(q|k)_proj\.", name):
        heads = config["num_attention_heads"] if ".q_proj." in name else config["num_key_value_heads"]
        half = value.shape[0] // heads // 2
        shape = (heads, half, 2) if back else (heads, 2, half)
        return value.reshape(*shape, -1).swapaxes(1, 2).reshape(value.shape)
    if kind.startswith("gemma") and "norm" in name:
        return value - np.float32(1) if back else value + np.float32(1)
    if kind == "gpt2" and re.search(r"\.c_(attn|proj|fc)\.weight", name):
        return value.T
    return value


def expected(tensors, config):
    tied = config.get("tie_word_embeddings", True)
    return {gguf_name(n, config["model_type"]): (n, turn(n, v, config)) for n, v in tensors.items() if not (tied and n == "lm_head.weight")}


def read(path):
    return {t.name: t for t in gguf.GGUFReader(path).tensors}


def values(t):
    shape = tuple(int(d) for d in reversed(t.shape))
    return gguf.quants.dequantize(t.data, t.tensor_type).reshape(shape).astype(np.float32)


def check_tensors(label, path, tensors, config):
    want, have = expected(tensors, config), read(path)
    extra = {n for n in have if n not in want and not n.startswith("rope_f")}
    say(set(want) <= set(have) and not extra, "%s: names %s" % (label, sorted(set(want) ^ (set(have) - extra))[:3] if extra else ""))
    wrong = [n for n, (_, v) in want.items() if not np.array_equal(values(have[n]), v)]
    say(not wrong, "%s: shapes and values of %d tensors %s" % (label, len(want), wrong[:3]))


reference = ctypes.CDLL(xllamacpp.xllamacpp.__file__, mode=os.RTLD_LAZY)
reference.ggml_quantize_chunk.restype = ctypes.c_size_t


def reference_blocks(value, kind):
    block, size = gguf.GGML_QUANT_SIZES[kind]
    out = np.zeros(value.size // block * size, np.uint8)
    at = ctypes.c_void_p
    value = np.ascontiguousarray(value, np.float32)
    reference.ggml_quantize_chunk(int(kind), value.ctypes.data_as(at), out.ctypes.data_as(at), ctypes.c_int64(0),
                                  ctypes.c_int64(value.shape[0]), ctypes.c_int64(value.shape[1]), None)
    return out.reshape(value.shape[0], -1)


def check_blocks(label, path, tensors, config):
    counts, errors = {}, {}
    for name, (_, value) in expected(tensors, config).items():
        t = read_cached(path)[name]
        kind = t.tensor_type
        counts[kind.name] = counts.get(kind.name, 0) + 1
        if kind in (T.Q8_0, T.Q4_0, T.Q5_0, T.Q5_1, T.F16, T.BF16):
            want = gguf.quants.quantize(value, kind)
            if not np.array_equal(np.asarray(t.data).view(np.uint8).reshape(-1), want.view(np.uint8).reshape(-1)):
                say(False, "%s: bytes of %s %s" % (label, kind.name, name))
        elif kind in (T.Q4_K, T.Q5_K, T.Q6_K):
            want = gguf.quants.dequantize(reference_blocks(value, kind), kind).reshape(value.shape)
            ours, theirs = errors.get(kind.name, (0, 0))
            errors[kind.name] = (ours + float(((values(t) - value) ** 2).sum()), theirs + float(((want - value) ** 2).sum()))
    ratios = {k: a / b for k, (a, b) in errors.items()}
    say(all(r <= 1.02 for r in ratios.values()), "%s: %s %s" % (label, counts, {k: round(r, 4) for k, r in ratios.items()}))


cache = {}


def read_cached(path):
    if path not in cache:
        cache.clear()
        cache[path] = read(path)
    return cache[path]


def dequantised(path, tensors, config, folder, out):
    """A folder, and an F32 file, with the values that the file's blocks stand for."""
    have = read(path)
    back = {}
    for name, (hf, _) in expected(tensors, config).items():
        back[hf] = np.ascontiguousarray(turn(hf, values(have[name]), config, back=True))
    save_file(back, folder + "/model.safetensors", {"format": "pt"})
    surogate_run("export", folder, "--to", "gguf", "--type", "f32", "--out", out)
    wrong = [n for n, t in read(out).items() if not np.allclose(values(t), values(have[n]), rtol=0, atol=3e-7 if "norm" in n else 0)]
    say(not wrong, "%s: the same values again %s" % (os.path.basename(path), wrong[:3]))


# ---- llama.cpp ----
class Reader:
    def __init__(self, path, lora=None, context=128):
        p = xllamacpp.CommonParams()
        p.model.path = path
        p.n_ctx, p.n_predict, p.n_parallel, p.warmup, p.verbosity = context, 1, 1, False, -1
        p.cache_type_k = p.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        p.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        p.cpuparams.n_threads = 1
        if lora:
            info = xllamacpp.CommonAdapterLoraInfo()
            info.path, info.scale = lora, 1.0
            p.lora_adapters = [info]
        self.server = xllamacpp.Server(p)

    def best(self, ids, count=200):
        got = self.server.handle_completions({"prompt": ids, "n_predict": 1, "n_probs": count, "temperature": 0, "cache_prompt": False})
        return {x["id"]: x["logprob"] for x in got["choices"][0]["logprobs"]["content"][0]["top_logprobs"]}

    def tokens(self, text, special=False):
        body = json.dumps({"content": text, "add_special": special, "parse_special": True}).encode()
        address = self.server.listening_address + "/tokenize"
        with urllib.request.urlopen(urllib.request.Request(address, body, {"Content-Type": "application/json"})) as answer:
            return json.load(answer)["tokens"]


def ours(folder, ids, wanted, adapter=None):
    with surogate.Model(folder, device="cpu", **({"adapter": adapter} if adapter else {})) as model:
        return {i: float(model.logprobs(ids + [i])[-1]) for i in wanted}


def difference(path, folder, prompts, lora=None, adapter=None):
    reader, worst = Reader(path, lora), 0.0
    for ids in prompts:
        theirs = reader.best(ids)
        mine = ours(folder, ids, theirs, adapter)
        worst = max(worst, max(abs(theirs[i] - mine[i]) for i in theirs))
    return worst


def texts(count):
    rng = random.Random(3)
    ranges = [(32, 126), (32, 126), (32, 126), (0xa0, 0x24f), (0x370, 0x4ff), (0x4e00, 0x4eff), (0x1f600, 0x1f64f), (9, 10)]
    words = "the quick it's We'll 12345 3.14 foo_bar CamelCase  two   three\n\n\t x != y; naïve Straße 日本語 😀 'RE <|endoftext|> </s>".split(" ")
    for _ in range(count):
        if rng.random() < .5:
            yield " ".join(rng.choice(words) for _ in range(rng.randrange(1, 12)))
        else:
            yield "".join(chr(rng.randint(*rng.choice(ranges))) for _ in range(rng.randrange(1, 40)))


def check_tokens(label, folder, path, special=False):
    reader, wrong = Reader(path), []
    tokenizer = surogate.Tokenizer(folder)
    for text in texts(1000):
        mine, theirs = list(int(i) for i in tokenizer.encode(text, add_special=special)), reader.tokens(text, special)
        if mine != theirs:
            wrong.append((text, mine, theirs))
    say(not wrong, "%s: tokens of 1000 texts, %d differ %s" % (label, len(wrong), wrong[:2]))


# ---- all ----
def check_family(name, root, tokenizer):
    size, keys = CASES[name]
    folder, rng = "%s/%s" % (root, name), random.Random(5)
    config, tensors = make_model(folder, size, keys, tokenizer)
    prompts = [[rng.randrange(config["vocab_size"]) for _ in range(n)] for n in (10, 40)]
    limit = config.get("sliding_window") or 1000
    if not config["model_type"].startswith("gemma"):
        prompts = [ids[:limit - 2] for ids in prompts]
    for kind in TYPES:
        path = "%s/%s-%s.gguf" % (root, name, kind)
        surogate_run("export", folder, "--to", "gguf", "--type", kind, "--out", path)
        label = "%s %s" % (name, kind)
        if kind == "f32":
            check_tensors(label, path, tensors, config)
            worst = difference(path, folder, prompts)
        else:
            check_blocks(label, path, tensors, config)
            subprocess.run(["cp", "-r", folder, folder + "_back"], check=True)
            dequantised(path, tensors, config, folder + "_back", path + ".f32")
            worst = difference(path + ".f32", folder + "_back", prompts[:1])
            subprocess.run(["rm", "-r", folder + "_back"], check=True)
        say(worst <= (5e-6 if kind == "f32" else 1e-4), "%s: log-probabilities %.2e" % (label, worst))


def main():
    global SUROGATE
    SUROGATE = os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory() as root:
        with open(root + "/text.txt", "w") as f:
            f.write("\n".join(texts(4000)))
        surogate_run("tokenizer", "train", "--vocab-size", "512", "--out", root + "/tokenizer", root + "/text.txt")
        for name in sys.argv[2:] or CASES:
            check_family(name, root, root + "/tokenizer")
    sys.exit("%d checks failed" % len(failed) if failed else 0)


if __name__ == "__main__":
    main()
