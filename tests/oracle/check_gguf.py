#!/usr/bin/env python3
"""Do llama.cpp and the package gguf read exported files as the model folder? Makes a tiny model of each family with random
weights, exports it in each type and compares

  - names, shapes and values of the F32 file, by gguf's reader, with the folder's (rows of q and k in llama.cpp's order),
  - the bytes of Q8_0 and Q4_0 tensors with those of gguf's own quantiser,
  - the squared error of Q4_K and Q6_K tensors with that of llama.cpp's quantiser (at most 1.02 times),
  - the 200 best log-probabilities after a prompt, with ours: those of the F32 file within 5e-6; those of other files within 1e-4 of ours on
    the dequantised weights,
  - token ids of 1,000 texts, and adapters: merged, and alone over the base's file.

Needs xllamacpp, gguf, safetensors, and Surogate's Python package.

  python3 tests/oracle/check_gguf.py build-cpu/surogate [FAMILY | "FAMILY adapter" | FOLDER of a tokenizer ...]
"""
import ctypes
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import unicodedata
import urllib.request

import gguf
import numpy as np
import torch
import xllamacpp
from gguf import GGMLQuantizationType as T
from safetensors.numpy import load_file, save_file
from transformers import AutoModelForCausalLM

os.environ.setdefault("SUROGATE_LIBRARY", os.path.join(os.path.dirname(os.path.abspath(sys.argv[1])), "libsurogate.so"))
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../python"))
import surogate  # noqa: E402

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LONG = {"rope_type": "longrope", "short_factor": [1 + .1 * i for i in range(8)], "long_factor": [1 + .7 * i for i in range(8)]}
WIDE = {"hidden_size": 256, "intermediate_size": 512}
# Name of a case: (model of `surogate new`, keys of config.json that are set).
CASES = {
    "llama": ("llama-tiny", {}), "llama_tied": ("llama-tiny", {"tie_word_embeddings": True}),
    "llama3": ("llama-tiny", {"rope_scaling": LLAMA3}),
    "llama_linear": ("llama-tiny", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
    "llama_wide": ("llama-tiny", dict(WIDE, num_hidden_layers=4)),
    "mistral": ("mistral-tiny", {"sliding_window": 64}),
    "qwen2": ("qwen2.5-tiny", {}), "qwen2_window": ("qwen2.5-tiny", {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}),
    "qwen3": ("qwen3-tiny", {}), "qwen3_yarn": ("qwen3-tiny", {"rope_scaling": YARN}),
    "qwen3_yarn_factor": ("qwen3-tiny", {"rope_scaling": dict(YARN, attention_factor=0.9)}),
    "phi3": ("phi-3-tiny", {}),
    "phi3_long": ("phi-3-tiny", {"rope_scaling": LONG, "original_max_position_embeddings": 16, "max_position_embeddings": 512}),
    "phi3_part": ("phi-3-tiny", {"partial_rotary_factor": 0.5}),
    "olmo2": ("olmo-2-tiny", {}), "smollm3": ("smollm3-tiny", {"num_hidden_layers": 5}),
    "gemma2": ("gemma-2-tiny", {"sliding_window": 8}), "gemma3": ("gemma-3-tiny", {"sliding_window": 8, "num_hidden_layers": 7}),
    "gemma3_linear": ("gemma-3-tiny", {"rope_scaling": {"rope_type": "linear", "factor": 8.0}, "num_hidden_layers": 7, "sliding_window": 8}),
    "gpt2": ("gpt2-tiny", {}),
}
ADAPTERS = [name + " adapter" for name in ("llama", "qwen3", "phi3", "smollm3", "gemma2", "gpt2")]
TYPES = ["f32", "f16", "bf16", "q8_0", "q6_K", "q4_K_M", "q4_0"]
GELU = {"gemma2", "gemma3_text", "gpt2"}  # llama.cpp reads gelu from a table of fp16: with the MLP its result is 1e-3 off, also from fp64
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
            value = rng.normal(0, .6 / np.sqrt(value.shape[-1]), value.shape)
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
    """Converts the folder's tensor to the file's layout, or back."""
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
            want = gguf.quants.quantize(np.ascontiguousarray(value), kind)
            if not np.array_equal(np.ascontiguousarray(t.data).view(np.uint8).reshape(-1), want.view(np.uint8).reshape(-1)):
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
    """Writes a folder and an F32 file with the values of the file's blocks."""
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
        got = self.server.handle_completions({"prompt": ids, "n_predict": 1, "n_probs": count, "temperature": 0, "ignore_eos": True, "cache_prompt": False})
        told = got["choices"][0]["logprobs"]
        return told and {x["id"]: x["logprob"] for x in told["content"][0]["top_logprobs"]}

    def tokens(self, text, special=False):
        body = json.dumps({"content": text, "add_special": special, "parse_special": True}).encode()
        address = self.server.listening_address + "/tokenize"
        with urllib.request.urlopen(urllib.request.Request(address, body, {"Content-Type": "application/json"})) as answer:
            return json.load(answer)["tokens"]


def ours(folder, ids, wanted, adapter=None):
    with surogate.Model(folder, device="cpu", **({"adapter": adapter} if adapter else {})) as model:
        return {i: float(model.logprobs(ids + [i])[-1]) for i in wanted}


def answered(reader, ids):
    """Returns the ids plus one more id, and llama.cpp's best tokens after them: the first added id that isn't part of a character."""
    return next((ids + [last], told) for last in range(3, 100) if (told := reader.best(ids + [last])))


def difference(path, folder, prompts, lora=None, adapter=None):
    reader, worst = Reader(path, lora), 0.0
    for ids in prompts:
        text, theirs = answered(reader, ids)
        mine = ours(folder, text, theirs, adapter)
        worst = max(worst, max(abs(theirs[i] - mine[i]) for i in theirs))
    return worst


def texts(count):
    rng = random.Random(3)
    ranges = [(32, 126), (32, 126), (32, 126), (0xa0, 0x24f), (0x370, 0x4ff), (0x4e00, 0x4eff), (0x1f600, 0x1f64f), (9, 10)]
    words = "the quick it's We'll 12345 3.14 foo_bar CamelCase  two   three\n\n\t x != y; naïve Straße 日本語 😀 'RE <|endoftext|> <s>".split(" ")
    for _ in range(count):
        if rng.random() < .5:
            yield " ".join(rng.choice(words) for _ in range(rng.randrange(1, 12)))
        else:
            yield "".join(chr(rng.randint(*rng.choice(ranges))) for _ in range(rng.randrange(1, 40)))


def check_tokens(label, folder, path, special=False):
    reader, wrong = Reader(path), []
    tokenizer = surogate.Tokenizer(folder)
    for text in (unicodedata.normalize("NFC", text) for text in texts(1000)):  # llama.cpp doesn't normalise texts
        mine, theirs = list(int(i) for i in tokenizer.encode(text, add_special=special)), reader.tokens(text, special)
        if mine != theirs:
            wrong.append((text, mine, theirs))
    say(not wrong, "%s: tokens of 1000 texts, %d differ %s" % (label, len(wrong), wrong[:2]))


def check_gelu(label, folder, path, tensors, prompts):
    """Compares everything except the MLP."""
    bare = folder + "_bare"
    subprocess.run(["cp", "-r", folder, bare], check=True)
    save_file({n: v * (not re.search(r"mlp\.(down|c_)", n)) for n, v in tensors.items()}, bare + "/model.safetensors", {"format": "pt"})
    surogate_run("export", bare, "--to", "gguf", "--type", "f32", "--out", path + ".bare")
    worst = difference(path + ".bare", bare, prompts)
    say(worst <= 5e-6, "%s: log-probabilities without the MLP %.2e" % (label, worst))


class TableGelu(torch.nn.Module):
    """gelu as llama.cpp computes it on the CPU: argument and result are fp16, beyond 10 the argument itself or 0."""

    def forward(self, x):
        table = torch.nn.functional.gelu(x.half().float(), approximate="tanh").half().to(x.dtype)
        return torch.where(x <= -10, torch.zeros_like(x), torch.where(x >= 10, x, table))


def check_table(label, folder, path, size):
    """transformers with that gelu gives llama.cpp's numbers: the table is the whole difference.

    An argument between two fp16 values is rounded to either one, depending on the last bit of earlier sums. So the texts are short, and a
    quarter of them must be free of such arguments.
    """
    reader, rng, model = Reader(path), random.Random(7), AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    texts = [[rng.randrange(size) for _ in range(3)] for _ in range(16)]
    asked = [(ids, told) for ids in texts if (told := reader.best(ids))]
    distances = {}
    for kind in ("plain", "table"):
        for block in model.get_decoder().layers if hasattr(model, "model") else model.transformer.h:
            if kind == "table":
                setattr(block.mlp, "act_fn" if hasattr(block.mlp, "act_fn") else "act", TableGelu())
        with torch.no_grad():
            mine = [torch.log_softmax(model(torch.tensor([ids])).logits[0, -1], -1) for ids, _ in asked]
        distances[kind] = sorted(max(abs(told[i] - float(got[i])) for i in told) for (_, told), got in zip(asked, mine))
    table, plain = distances["table"][len(asked) // 4], distances["plain"][0]
    say(table <= 5e-6 < plain, "%s: log-probabilities with its table of gelu %.2e, without at least %.2e" % (label, table, plain))


def check_exact(label, folder, path, prompts):
    """transformers in fp64 decides: the difference on long prompts is llama.cpp's."""
    reader, model = Reader(path), AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    mine = theirs = 0.0
    for ids in prompts:
        text, told = answered(reader, ids)
        with torch.no_grad():
            exact = torch.log_softmax(model(torch.tensor([text])).logits[0, -1], -1)
        got = ours(folder, text, told)
        mine = max(mine, max(abs(got[i] - float(exact[i])) for i in told))
        theirs = max(theirs, max(abs(told[i] - float(exact[i])) for i in told))
    say(mine <= 5e-6, "%s: from fp64: ours %.2e, llama.cpp %.2e" % (label, mine, theirs))


# ---- all ----
def check_family(name, root, tokenizer):
    size, keys = CASES[name]
    folder, rng = "%s/%s" % (root, name), random.Random(5)
    config, tensors = make_model(folder, size, keys, tokenizer)
    prompts = [[rng.randrange(config["vocab_size"]) for _ in range(n)] for n in (10, 40)]
    limit = config.get("sliding_window") or 1000
    if not config["model_type"].startswith("gemma"):
        prompts = [ids[:limit - 2] for ids in prompts]
    if "long_factor" in json.dumps(keys):
        prompts = prompts[1:]  # llama.cpp chooses the factors by the context; here the text's length decides
    has_gelu = config["model_type"] in GELU
    for kind in TYPES:
        path = "%s/%s-%s.gguf" % (root, name, kind)
        surogate_run("export", folder, "--to", "gguf", "--type", kind, "--out", path)
        label = "%s %s" % (name, kind)
        if kind == "f32":
            check_tensors(label, path, tensors, config)
            worst = difference(path, folder, prompts)
            if has_gelu:
                check_gelu(label, folder, path, tensors, prompts)
                check_table(label, folder, path, config["vocab_size"])
                check_exact(label, folder, path, prompts)
        else:
            check_blocks(label, path, tensors, config)
            subprocess.run(["cp", "-r", folder, folder + "_back"], check=True)
            dequantised(path, tensors, config, folder + "_back", path + ".f32")
            worst = difference(path + ".f32", folder + "_back", prompts[:1])
            subprocess.run(["rm", "-r", folder + "_back"], check=True)
        say(worst <= (2e-3 if has_gelu else 5e-6 if kind == "f32" else 1e-4), "%s: log-probabilities %.2e" % (label, worst))


def check_adapter(name, root, tokenizer):
    """A random adapter on all linear layers, merged and separate; some layers have another rank and alpha."""
    size, keys = CASES[name]
    base, folder, rng = "%s/%s_base" % (root, name), "%s/%s_adapter" % (root, name), np.random.default_rng(11)
    config, tensors = make_model(base, size, keys, tokenizer)
    os.makedirs(folder)
    halves, rank_pattern, targets = {}, {}, set()
    for hf, value in tensors.items():
        if value.ndim < 2 or re.search("embed|lm_head|wte|wpe", hf):
            continue
        module, rank = hf[:-len(".weight")], 4
        out, into = value.shape if config["model_type"] != "gpt2" else value.shape[::-1]
        if "layers.1" in module:
            rank = rank_pattern[module] = 2
        targets.add(module.split(".")[-1])
        halves["base_model.model.%s.lora_A.weight" % module] = np.asarray(rng.normal(0, .1, (rank, into)), np.float32)
        halves["base_model.model.%s.lora_B.weight" % module] = np.asarray(rng.normal(0, .1, (out, rank)), np.float32)
    save_file(halves, folder + "/adapter_model.safetensors")
    json.dump({"peft_type": "LORA", "r": 4, "lora_alpha": 6, "use_rslora": name == "qwen3", "target_modules": sorted(targets),
               "rank_pattern": rank_pattern, "base_model_name_or_path": base, "task_type": "CAUSAL_LM"},
              open(folder + "/adapter_config.json", "w"))
    prompts = [[random.Random(6).randrange(512) for _ in range(20)]]
    for words, label in ((["--adapter", folder], "merged"), (["--adapter", folder, "--adapter-only"], "alone")):
        path = "%s/%s-%s.gguf" % (root, name, label)
        surogate_run("export", base, "--to", "gguf", "--type", "f32", "--out", path, *words)
        alone = label == "alone"
        if alone:
            surogate_run("export", base, "--to", "gguf", "--type", "f32", "--out", path + ".base")
        worst = difference(path + ".base" if alone else path, base, prompts, lora=path if alone else None, adapter=folder)
        say(worst <= (2e-3 if config["model_type"] in GELU else 5e-6), "%s adapter %s: log-probabilities %.2e" % (name, label, worst))


def check_tokenizer(tokenizer, root):
    folder = root + "/with_" + re.sub(r"\W", "", tokenizer[-12:])
    ids = surogate.Tokenizer(tokenizer).vocab_size
    surogate_run("new", "--arch", "llama-tiny", "--random", "--tokenizer", tokenizer, folder, "vocab_size=%d" % (ids + 7), "hidden_size=32")
    done = surogate_run("export", folder, "--to", "gguf", "--type", "f16", "--out", folder + ".gguf")
    for special in (False, True):
        check_tokens("%s special=%s" % (tokenizer, special), folder, folder + ".gguf", special)
    print(done.stderr.strip())


def main():
    global SUROGATE
    SUROGATE = os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory() as root:
        with open(root + "/text.txt", "w") as f:
            f.write("\n".join(texts(4000)))
        surogate_run("tokenizer", "train", "--vocab-size", "512", "--out", root + "/tokenizer", root + "/text.txt")
        for name in sys.argv[2:] or list(CASES) + ADAPTERS + [root + "/tokenizer"]:
            if name in CASES:
                check_family(name, root, root + "/tokenizer")
            elif name in ADAPTERS:
                check_adapter(name.split(" ")[0], root, root + "/tokenizer")
            else:
                check_tokenizer(name, root)
    sys.exit("%d checks failed" % len(failed) if failed else 0)


if __name__ == "__main__":
    main()
