#!/usr/bin/env python3
"""Writes tests/fixtures/half.safetensors: results of transformers in float16 on a CPU, and the same without rounding.

ids              (ROWS, TOKENS), drawn at random
NAME.half        (ROWS, TOKENS - 1): ln p of each token after the first, given the tokens before it, by families/NAME loaded in float16, with
                 its projections multiplied by SCALE
NAME.exact       the same with these float16 weights, computed in double precision

Needs torch, transformers, safetensors. Deterministic: same versions, same bytes.

  python3 tests/oracle/make_half.py
"""
import os

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

from oracle_common import exact, forward, implementation

FIXTURES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures")
FAMILIES, ROWS, TOKENS, SCALE, V = ("qwen3", "llama", "gpt2", "gemma3"), 12, 48, 2, 61


def logprobs(logits, ids):
    return torch.log_softmax(logits.double(), -1)[:, :-1].gather(-1, ids[:, 1:, None])[..., 0].float()


def load(folder, attention):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float16, attn_implementation=attention).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("proj.weight") or (".c_" in name and name.endswith(".weight")):
                p.mul_(SCALE)
    return model


def main():
    logging.set_verbosity_error()
    ids = torch.randint(3, V, (ROWS, TOKENS), generator=torch.Generator().manual_seed(11))
    tensors = {"ids": ids.int()}
    for name in FAMILIES:
        folder = os.path.join(FIXTURES, "families", name)
        half, whole = load(folder, "eager"), exact(load(folder, implementation(AutoConfig.from_pretrained(folder))), TOKENS)
        zeros = torch.zeros_like(ids)
        batch = dict(ids=ids, doc_start=zeros, position_ids=zeros + torch.arange(TOKENS))
        with torch.no_grad():
            tensors[name + ".half"] = logprobs(half(ids).logits, ids).contiguous()
            tensors[name + ".exact"] = logprobs(forward(whole, batch), ids).contiguous()
        print(name, float((tensors[name + ".half"] - tensors[name + ".exact"]).abs().max()))
    save_file(tensors, os.path.join(FIXTURES, "half.safetensors"))


main()
