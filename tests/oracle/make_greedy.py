#!/usr/bin/env python3
"""Writes tests/fixtures/greedy.safetensors: greedy texts by transformers (and PEFT) in double precision, without a cache.

prompt_ids, prompt_lens       (tokens of all prompts), (PROMPTS); several prompts share their first tokens
NAME.texts                    (PROMPTS, TOKENS). The names: families/LLAMA, with projections multiplied by SCALE, since texts would repeat one
                              token otherwise; families/LLAMA+adapter, the same with its adapter; quantised/NF4, with dequantised weights;
                              architectures/FALCON, with matrices in layers multiplied by SCALE, for the first prompts only;
                              loaded/FORMAT/LLAMA, with projections multiplied by SCALE, and then matrices in layers quantised and dequantised
NAME.near, NAME.margins       (n), (n): flat indices in texts at which the two largest logits differ by less than MARGIN, and these differences
NAME.logprobs                 (LOGPROBS, TOKENS): ln p of the tokens of the first texts

Needs torch, transformers, peft, safetensors. Deterministic: same versions, same bytes.

  python3 tests/oracle/make_greedy.py
"""
import json
import os

import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

import architectures
from oracle_common import exact, forward, implementation

FIXTURES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures")
PROMPTS, LONGEST, TOKENS, LOGPROBS, OF_ARCHITECTURES, SCALE, V = 200, 48, 16, 40, 32, 2, 61
REACH = LONGEST + TOKENS
MARGIN = 1e-3
WITH_ADAPTER = ("qwen3", "gpt2")
LOADED = ("gpt2", "phi3", "qwen3")


def draw_prompts():
    """Prompts of 1 to LONGEST tokens; every third one begins like one of two others, for 17 tokens or more."""
    rng = torch.Generator().manual_seed(5)
    shared = torch.randint(3, V, (2, LONGEST), generator=rng)
    prompts = []
    for i in range(PROMPTS):
        length = 1 + int(torch.randint(LONGEST, (1,), generator=rng))
        ids = torch.randint(3, V, (length,), generator=rng)
        if i % 3 == 0 and length > 17:
            same = 17 + int(torch.randint(length - 17, (1,), generator=rng))
            ids[:same] = shared[i % 2, :same]
        prompts.append(ids)
    return prompts


def greedy(logits_of, prompts):
    """texts, margins, logprobs, each (prompts, TOKENS)."""
    lens = torch.tensor([len(p) for p in prompts])
    rows = torch.zeros(len(prompts), REACH, dtype=torch.long)
    for row, prompt in zip(rows, prompts):
        row[:len(prompt)] = prompt
    index, texts, margins, logprobs = torch.arange(len(prompts)), [], [], []
    for t in range(TOKENS):
        with torch.no_grad():
            logits = logits_of(rows)[index, lens + t - 1].double()
        best = logits.topk(2).values
        texts.append(logits.argmax(-1))
        margins.append(best[:, 0] - best[:, 1])
        logprobs.append(torch.log_softmax(logits, -1)[index, texts[-1]])
        if t + 1 < TOKENS:
            rows[index, lens + t] = texts[-1]
    return torch.stack(texts, 1), torch.stack(margins, 1), torch.stack(logprobs, 1)


def packed(model):
    """Logits of whole rows, each row one document."""
    def logits_of(rows):
        zeros = torch.zeros_like(rows)
        return forward(model, dict(ids=rows, doc_start=zeros, position_ids=zeros + torch.arange(rows.shape[1])))
    return logits_of


def scaled(model, is_scaled):
    with torch.no_grad():
        for name, p in model.named_parameters():
            if is_scaled(name, p):
                p.mul_(SCALE)
    return model


def is_projection(name, _):
    return name.endswith("proj.weight") or (".c_" in name and name.endswith(".weight"))


def is_in_layer(name, p):
    return p.dim() == 2 and (".layers." in name or ".h." in name)


def load_family(folder, has_adapter):
    config = AutoConfig.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation=implementation(config))
    model = exact(scaled(model, is_projection), REACH)
    return PeftModel.from_pretrained(model, os.path.join(folder, "adapter")).double().eval() if has_adapter else model


def halves(codes, high_first):
    pair = [codes & 15, codes >> 4]
    return torch.stack(pair[::-1] if high_first else pair, -1).flatten().long()


def of_nf4(tensors, name):
    """bitsandbytes' NF4: 16 values, a scale for 64 elements; the scales may be codes, with scales for 256 and an offset."""
    part = {n[len(name) + 1:]: t for n, t in tensors.items() if n.startswith(name + ".")}
    state = json.loads(bytes(next(t for n, t in part.items() if n.startswith("quant_state")).tolist()))
    scales = part["absmax"]
    if "nested_absmax" in part:
        scales = part["nested_quant_map"][scales.long()] * part["nested_absmax"].repeat_interleave(state["nested_blocksize"])[:len(scales)]
        scales = scales + state["nested_offset"]
    values = part["quant_map"][halves(tensors[name].flatten(), True)].double()
    return (values * scales.double().repeat_interleave(state["blocksize"])[:len(values)]).reshape(state["shape"])


def of_fp8(tensors, name):
    """FP8 in tiles of 128 x 128."""
    codes, scales = tensors[name].double(), tensors[name + "_scale_inv"].double()
    rows, cols = codes.shape
    return codes * scales.repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :cols]


def of_nvfp4(tensors, name):
    """NVFP4: a scale for 16 elements, and one for the whole tensor."""
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)
    rows = len(tensors[name])
    codes = values[halves(tensors[name].flatten(), False)].reshape(rows, -1, 16)
    return (codes * tensors[name + "_scale"].double()[..., None] * tensors[name + "_scale_2"].double()).reshape(rows, -1)


def load_dequantised(folder, weight_of):
    tensors = load_file(os.path.join(folder, "model.safetensors"))
    config = AutoConfig.from_pretrained(folder)
    del config.quantization_config
    model = exact(AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa"), REACH).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            plain = tensors[name].is_floating_point() and tensors[name].itemsize > 1
            p.copy_(tensors[name].double() if plain else weight_of(tensors, name))
    return model


def by_rows(w):
    """int8: a scale for each row."""
    scale = (w.abs().amax(1, keepdim=True) / 127).float()
    return (w.float() / scale).round().double() * scale.double()


def by_tiles(w):
    """fp8: a scale for each tile of 128 x 128."""
    rows, cols = w.shape
    whole = torch.nn.functional.pad(w, (0, -cols % 128, 0, -rows % 128))
    scale = (whole.reshape(whole.shape[0] // 128, 128, -1, 128).abs().amax((1, 3)) / 448).float()
    scale = scale.repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :cols]
    return (w.float() / scale).to(torch.float8_e4m3fn).double() * scale.double()


def by_blocks(w):
    """nf4: 16 quantiles, a scale for 64 elements; the scales minus their mean as codes, with a scale for 256."""
    values = torch.tensor([-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
                           -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
                           0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0], dtype=torch.float64)
    means = [10.0 ** (i - 6) * (0.1 + 0.9 * (k + 0.5) / 2 ** i) for i in range(7) for k in range(2 ** i)]
    dynamic = torch.tensor(sorted([-m for m in means] + [0.0, 1.0] + means), dtype=torch.float64)

    def nearest(x, values):
        return values[(x[..., None] - values).abs().argmin(-1)]

    def blocks(x, size):
        return torch.nn.functional.pad(x.flatten(), (0, -x.numel() % size)).reshape(-1, size)
    parts = blocks(w, 64)
    scale = parts.abs().amax(1)
    codes = nearest(parts / scale.clamp(min=1e-30)[:, None], values)
    rest = blocks(scale - scale.mean(), 256)
    nested = rest.abs().amax(1, keepdim=True)
    steps = torch.floor((rest / nested + 1) / 2 * 65535 + 0.5) * 2 / 65535 - 1  # bitsandbytes looks for the nearest value here
    scale = (nearest(steps, dynamic) * nested).flatten()[:len(scale)] + scale.mean()
    return (codes * scale[:, None]).flatten()[:w.numel()].reshape(w.shape)


def load_rounded(folder, rounded):
    model = load_family(folder, False)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if is_in_layer(name, p):
                p.copy_(rounded(p.t()).t() if "Conv1D" in str(type(model.get_submodule(name.rpartition(".")[0]))) else rounded(p))
    return model


def record(out, name, logits_of, prompts):
    texts, margins, logprobs = greedy(logits_of, prompts)
    near = (margins.flatten() < MARGIN).nonzero()[:, 0]
    out.update({name + ".texts": texts.int(), name + ".near": near.int(), name + ".margins": margins.flatten()[near].float(),
                name + ".logprobs": logprobs[:LOGPROBS].float()})
    kinds = [len(set(text.tolist())) for text in texts]
    print("%-28s distinct tokens of a text: %.1f, at least %d; near: %d" % (name, sum(kinds) / len(kinds), min(kinds), len(near)), flush=True)


def main():
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    prompts = draw_prompts()
    out = dict(prompt_ids=torch.cat(prompts).int(), prompt_lens=torch.tensor([len(p) for p in prompts], dtype=torch.int32))
    families = sorted(entry.name for entry in os.scandir(os.path.join(FIXTURES, "families")) if entry.is_dir())
    for name in families + [name + "+adapter" for name in WITH_ADAPTER]:
        family, _, adapter = name.partition("+")
        record(out, "families/" + name, packed(load_family(os.path.join(FIXTURES, "families", family), bool(adapter))), prompts)
    for name, weight_of in dict(nf4=of_nf4, nf4_double=of_nf4, fp8=of_fp8, nvfp4=of_nvfp4).items():
        record(out, "quantised/" + name, packed(load_dequantised(os.path.join(FIXTURES, "quantised", name), weight_of)), prompts)
    for name, rounded in dict(int8=by_rows, fp8=by_tiles, nf4=by_blocks).items():
        for family in LOADED:
            model = load_rounded(os.path.join(FIXTURES, "families", family), rounded)
            record(out, "loaded/%s/%s" % (name, family), packed(model), prompts)
    for name in [name for name in architectures.MODELS if name not in architectures.MASKED]:
        model = scaled(architectures.load(os.path.join(FIXTURES, "architectures", name)), is_in_layer).double()
        record(out, "architectures/" + name, lambda rows: model(input_ids=rows, use_cache=False).logits, prompts[:OF_ARCHITECTURES])
    save_file({name: tensor.contiguous() for name, tensor in sorted(out.items())}, os.path.join(FIXTURES, "greedy.safetensors"))


if __name__ == "__main__":
    main()
