#!/usr/bin/env python3
"""Writes tests/fixtures/adapter_kinds: adapters that hold more than LoRA's pairs, over the models of tests/fixtures/families, with
PEFT's results in double precision: logits of the packed batch and ten steps of training, on that fixture's batches.
Needs torch, transformers, peft, safetensors. Deterministic, as make_families.py.

  python3 tests/oracle/make_adapter_kinds.py            # all
  python3 tests/oracle/make_adapter_kinds.py whole      # one
"""
import os
import shutil
import sys
import warnings

import torch
from peft.utils import ModulesToSaveWrapper
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from make_families import COMMON, FAMILIES, T, make_adapter, make_batches, record
from oracle_common import exact, exact_norm, implementation

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "fixtures", "adapter_kinds")
BASES = os.path.join(HERE, "..", "fixtures", "families")
KINDS = {
    "whole": ("llama", dict(target_modules=["q_proj", "v_proj"], modules_to_save=["embed_tokens", "lm_head"])),
    "whole_head": ("llama", dict(target_modules="all-linear", modules_to_save=["lm_head", "norm"])),
    "whole_divided": ("qwen3", dict(target_modules=["q_proj"], modules_to_save=["embed_tokens"])),
    "whole_divided_head": ("qwen3", dict(target_modules=["q_proj"], modules_to_save=["lm_head"])),
    "whole_divided_both": ("gemma2", dict(target_modules=["q_proj"], modules_to_save=["embed_tokens", "lm_head"])),
    "whole_tied": ("qwen3", dict(target_modules=["q_proj"], modules_to_save=["embed_tokens"], ensure_weight_tying=True)),
    "tokens": ("llama", dict(target_modules=["q_proj", "v_proj"], trainable_token_indices=[7, 3, 60])),
    "tokens_both": ("llama", dict(target_modules="all-linear", trainable_token_indices=dict(embed_tokens=[5, 9], lm_head=[5, 9]))),
    "tokens_tied": ("qwen3", dict(target_modules=["q_proj"], trainable_token_indices=[7, 3, 60])),
    "tokens_scaled": ("gemma2", dict(target_modules=["q_proj"], trainable_token_indices=[4, 8])),
    "tokens_gpt2": ("gpt2", dict(target_modules=["c_attn"], fan_in_fan_out=True, trainable_token_indices=[4, 8])),
    "dora": ("llama", dict(target_modules="all-linear", use_dora=True)),
    "dora_qwen3": ("qwen3", dict(target_modules="all-linear", use_dora=True, use_rslora=True)),
    "dora_bias": ("qwen2", dict(target_modules=["q_proj", "k_proj", "v_proj", "down_proj"], use_dora=True)),
    "dora_gpt2": ("gpt2", dict(target_modules=["c_attn", "c_fc"], fan_in_fan_out=True, use_dora=True)),
    "dora_phi3": ("phi3", dict(target_modules="all-linear", use_dora=True)),
    "dora_whole": ("llama", dict(target_modules=["q_proj", "o_proj"], modules_to_save=["embed_tokens", "lm_head"], use_dora=True)),
    "whole_gpt2": ("gpt2", dict(target_modules=["c_attn"], fan_in_fan_out=True, modules_to_save=["wte", "ln_f"])),
}


def make_kind(name, base, settings):
    folder, base_folder = os.path.join(ROOT, name), os.path.join(BASES, base)
    config = FAMILIES[base]["config"]
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)

    def load(dtype=torch.float64):
        model = AutoModelForCausalLM.from_pretrained(base_folder, dtype=torch.float32, attn_implementation=implementation(config))
        return exact(model, T) if dtype == torch.float64 else model

    load_any = make_adapter(folder, load, settings, torch.Generator().manual_seed(sum(name.encode())))

    def load_adapted(dtype=torch.float64):
        model = load_any(dtype)
        for wrapper in model.modules():     # copies of exact norms would still read their originals
            copy = wrapper.modules_to_save["default"] if isinstance(wrapper, ModulesToSaveWrapper) else None
            if copy is not None and "forward" in vars(copy):
                copy.forward = exact_norm(copy)
        return model

    _, packed, steps = make_batches(COMMON["vocab_size"])
    out = {}
    record(out, "lora.", load_adapted, packed, steps)
    kept = ("lora.packed.logits", "lora.packed.loss", "lora.steps.loss", "lora.steps.grad_norm", "lora.steps.loss_after")
    out = {k[len("lora."):]: out[k].detach().float().contiguous() for k in kept}
    save_file(dict(sorted(out.items())), os.path.join(folder, "expected.safetensors"), metadata=dict(base=base))


def main():
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    warnings.filterwarnings("ignore", message=".*tie_word_embeddings.*")
    for name in sys.argv[1:] or KINDS:
        print(name)
        make_kind(name, *KINDS[name])


if __name__ == "__main__":
    main()
