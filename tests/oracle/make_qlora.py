#!/usr/bin/env python3
"""Writes tests/fixtures/qlora: a tiny random Qwen3 in bf16 with a PEFT adapter, and the results of transformers and PEFT over the
base that bitsandbytes makes of it: NF4 with double quantisation, dequantised in fp32, the rest in double precision.

Needs torch, transformers, peft, bitsandbytes, safetensors. Deterministic: same versions, same bytes.

  python3 tests/oracle/make_qlora.py
"""
import json
import os
import shutil

import bitsandbytes.functional as bnb
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, Qwen3Config

from oracle_common import exact

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures", "qlora")
B, T = 2, 24
CONFIG = Qwen3Config(vocab_size=61, max_position_embeddings=256, bos_token_id=1, eos_token_id=2, dtype="bfloat16", hidden_size=64,
                     intermediate_size=192, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
                     rms_norm_eps=1e-6, tie_word_embeddings=True, rope_parameters=dict(rope_type="default", rope_theta=1e6))


def random_weights(model, rng, std):
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            noise = torch.randn(p.shape, generator=rng)
            p.copy_(1 + 0.2 * noise.clamp(-2, 2) if "norm" in name else std * noise)


def quantised(weight):
    codes, state = bnb.quantize_4bit(weight, quant_type="nf4", blocksize=64, compress_statistics=True)
    return bnb.dequantize_4bit(codes, state).reshape(weight.shape)


def losses_of(model, ids):
    logits = model(input_ids=ids, use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none")


def main():
    shutil.rmtree(ROOT, ignore_errors=True)
    rng = torch.Generator().manual_seed(5)
    model = AutoModelForCausalLM.from_config(CONFIG, dtype=torch.float32)
    random_weights(model, rng, 0.1)
    model.to(torch.bfloat16).save_pretrained(ROOT)
    base = AutoModelForCausalLM.from_pretrained(ROOT, dtype=torch.float32, attn_implementation="sdpa")
    lora = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
    adapted = get_peft_model(base, lora)
    with torch.no_grad():
        for name, p in sorted(adapted.named_parameters()):
            if "lora_" in name:
                p.copy_(0.1 * torch.randn(p.shape, generator=rng))
    adapted.save_pretrained(os.path.join(ROOT, "adapter"))
    base = AutoModelForCausalLM.from_pretrained(ROOT, dtype=torch.float32, attn_implementation="sdpa")
    ids = torch.randint(3, 61, (B, T), generator=rng)
    plain = losses_of(exact(base), ids).detach()
    base = AutoModelForCausalLM.from_pretrained(ROOT, dtype=torch.float32, attn_implementation="sdpa")
    with torch.no_grad():
        for name, p in base.named_parameters():
            if ".layers." in name and p.dim() == 2:
                p.copy_(quantised(p.detach().clone()))
    nf4 = losses_of(exact(base), ids).detach()
    base = exact(PeftModel.from_pretrained(base, os.path.join(ROOT, "adapter"), is_trainable=True))
    losses = losses_of(base, ids)
    losses.mean().backward()
    out = {"plain.ids": ids.to(torch.int32), "plain.losses": plain, "nf4.losses": nf4, "adapted.losses": losses.detach()}
    for name, p in base.named_parameters():
        if p.grad is not None and "lora_" in name:
            out["grad." + name.replace(".default.", ".")] = p.grad
    print({k: float(v.mean()) for k, v in out.items() if "losses" in k})
    save_file({k: v.contiguous().float() if v.dtype == torch.float64 else v for k, v in out.items()},
              os.path.join(ROOT, "expected.safetensors"))
    for folder, keep in ((ROOT, {"config.json", "model.safetensors", "expected.safetensors", "adapter"}),
                         (os.path.join(ROOT, "adapter"), {"adapter_config.json", "adapter_model.safetensors"})):
        for name in os.listdir(folder):
            if name not in keep:
                os.remove(os.path.join(folder, name))
    path = os.path.join(ROOT, "adapter", "adapter_config.json")
    with open(path) as f:
        config = json.load(f)
    config["base_model_name_or_path"] = None
    config["target_modules"] = sorted({name.split(".")[-1] for name in config["target_modules"]})
    with open(path, "w") as f:
        json.dump(config, f, indent=2)
        f.write("\n")


main()
