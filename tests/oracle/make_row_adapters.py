#!/usr/bin/env python3
"""Writes tests/fixtures/row_adapters: a second adapter for two families, with other ranks and modules than the adapter in families/; and
greedy texts of prompts with the first adapter, the second or none, by PEFT in double precision.

FAMILY/                       the second adapter, as PEFT writes it
greedy.safetensors            as tests/fixtures/greedy.safetensors; prompt i has none, the first or the second adapter by i mod 3

Needs torch, transformers, peft, safetensors. Deterministic: same versions, same bytes.

  python3 tests/oracle/make_row_adapters.py
"""
import json
import os

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import save_file
from transformers.utils import logging

from make_greedy import FIXTURES, draw_prompts, load_family, packed, record

OUT = os.path.join(FIXTURES, "row_adapters")
SECOND = dict(
    qwen3=dict(r=9, lora_alpha=12, use_rslora=True, target_modules=["q_proj", "v_proj", "down_proj"], rank_pattern={"v_proj": 3},
               layers_to_transform=[1]),
    gpt2=dict(r=2, lora_alpha=6, target_modules=["c_attn", "mlp.c_proj"], fan_in_fan_out=True))


def write_second(family, folder):
    torch.manual_seed(3)
    model = get_peft_model(load_family(os.path.join(FIXTURES, "families", family), False).float(), LoraConfig(task_type="CAUSAL_LM", **SECOND[family]))
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_" in name:
                p.copy_(torch.randn(p.shape) * 0.5)
    model.save_pretrained(folder)
    os.remove(os.path.join(folder, "README.md"))
    path = os.path.join(folder, "adapter_config.json")
    with open(path) as f:
        config = json.load(f)
    config["target_modules"] = sorted(config["target_modules"])
    with open(path, "w") as f:
        json.dump(config | dict(base_model_name_or_path=None), f, indent=2, sort_keys=True)


def with_adapters(family, folder):
    """Logits of whole rows; row i has adapter i mod 3; 0: none."""
    dirs = [None, os.path.join(FIXTURES, "families", family, "adapter"), folder]
    models = [load_family(os.path.join(FIXTURES, "families", family), False) for _ in dirs]
    models = [PeftModel.from_pretrained(model, d).double().eval() if d else model for model, d in zip(models, dirs)]

    def logits_of(rows):
        parts = [packed(model)(rows[i::3]) for i, model in enumerate(models)]
        out = torch.zeros(len(rows), *parts[0].shape[1:], dtype=parts[0].dtype)
        for i, part in enumerate(parts):
            out[i::3] = part
        return out
    return logits_of


def main():
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    prompts = draw_prompts()
    out = dict(prompt_ids=torch.cat(prompts).int(), prompt_lens=torch.tensor([len(p) for p in prompts], dtype=torch.int32))
    for family in SECOND:
        folder = os.path.join(OUT, family)
        write_second(family, folder)
        record(out, family, with_adapters(family, folder), prompts)
    save_file({name: tensor.contiguous() for name, tensor in sorted(out.items())}, os.path.join(OUT, "greedy.safetensors"))


if __name__ == "__main__":
    main()
