#!/usr/bin/env python3
"""Writes tests/fixtures/quantised: one tiny random Qwen3 as quantised folders, and what each must compute.

nf4, nf4_double  bitsandbytes' 4 bit without and with double quantisation, quantised, saved and run by transformers
fp8              fine-grained FP8: written here by the published format, run by transformers, which dequantises it on a CPU
nvfp4            ModelOpt's NVFP4: written and dequantised here, as transformers doesn't read it; transformers then runs the dequantised model

expected.safetensors: ids (2, 25) I32; losses (2, 24) F32, of each token after the first; k_proj F32, that matrix dequantised.
Needs torch, transformers, bitsandbytes, safetensors. Deterministic: same versions, same bytes.

  python3 tests/oracle/make_quantised.py
"""
import json
import os
import shutil
import tempfile

import torch
import torch.nn.functional as F
from bitsandbytes.functional import dequantize_4bit
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Qwen3Config
from transformers.utils import logging

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures", "quantised")
CONFIG = dict(vocab_size=61, hidden_size=64, intermediate_size=256, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
              head_dim=32, rms_norm_eps=1e-6, max_position_embeddings=256, tie_word_embeddings=True, bos_token_id=1, eos_token_id=2,
              rope_parameters=dict(rope_type="default", rope_theta=1e6), attn_implementation="eager")
MATRICES = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
KEPT = "model.layers.0.self_attn.o_proj"  # not quantised
K_PROJ = "model.layers.0.self_attn.k_proj.weight"


def make_base(folder):
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(Qwen3Config(**CONFIG), dtype=torch.float32)
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            noise = torch.randn(p.shape)
            p.copy_(1 + 0.2 * noise.clamp(-2, 2) if "norm" in name else 0.1 * noise)
    model.save_pretrained(folder)


def losses_of(model, ids):
    with torch.no_grad():
        logits = model(input_ids=ids[:, :-1].long(), use_cache=False).logits.float()
    return F.cross_entropy(logits.transpose(1, 2), ids[:, 1:].long(), reduction="none")


def write_expected(folder, ids, losses, k_proj):
    save_file({"ids": ids, "losses": losses, "k_proj": k_proj.float().contiguous()}, os.path.join(folder, "expected.safetensors"))


def make_nf4(base, folder, ids, double, dtype):
    quantise = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=double,
                                  llm_int8_skip_modules=["lm_head", KEPT])
    AutoModelForCausalLM.from_pretrained(base, dtype=dtype, quantization_config=quantise, device_map="cpu").save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, device_map="cpu", attn_implementation="eager")
    weight = model.model.layers[0].self_attn.k_proj.weight
    state = weight.quant_state
    state.dtype = torch.float32  # the decoded values, not rounded to the model's dtype
    k_proj = dequantize_4bit(weight.data, state)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, device_map="cpu", attn_implementation="eager")
    write_expected(folder, ids, losses_of(model.train(), ids), k_proj)  # without train() bitsandbytes multiplies in bf16 on some CPUs


def write_folder(base, folder, tensors, quantization):
    shutil.copy(os.path.join(base, "config.json"), folder)
    path = os.path.join(folder, "config.json")
    with open(path) as f:
        config = json.load(f)
    config["quantization_config"] = quantization
    with open(path, "w") as f:
        json.dump(config, f, indent=2)
        f.write("\n")
    save_file({n: t.contiguous() for n, t in tensors.items()}, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})


def names_of_matrices():
    return [f"model.layers.0.{m}.weight" for m in MATRICES]


def make_fp8(base, folder, ids):
    tensors = load_file(os.path.join(base, "model.safetensors"))
    for name in names_of_matrices():
        w = tensors[name]
        rows, cols = w.shape
        scales = torch.empty(-(-rows // 128), -(-cols // 128))
        codes = torch.empty(w.shape, dtype=torch.float8_e4m3fn)
        for i in range(scales.shape[0]):
            for j in range(scales.shape[1]):
                tile = (slice(128 * i, 128 * i + 128), slice(128 * j, 128 * j + 128))
                scales[i, j] = w[tile].abs().max() / 448
                codes[tile] = (w[tile] / scales[i, j]).to(torch.float8_e4m3fn)
        tensors[name] = codes
        tensors[name + "_scale_inv"] = scales
    write_folder(base, folder, tensors, {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
                                         "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head", KEPT]})
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, device_map="cpu", attn_implementation="eager")
    write_expected(folder, ids, losses_of(model, ids), model.model.layers[0].self_attn.k_proj.weight.detach())


E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def make_nvfp4(base, folder, ids):
    tensors = load_file(os.path.join(base, "model.safetensors"))
    dequantised = dict(tensors)
    for name in names_of_matrices():
        w = tensors[name]
        blocks = w.reshape(w.shape[0], -1, 16)
        overall = w.abs().max() / (448 * 6)
        scales = (blocks.abs().amax(-1) / 6 / overall).to(torch.float8_e4m3fn)
        scaled = blocks / (scales.float() * overall)[..., None]
        codes = (scaled.abs()[..., None] - E2M1).abs().argmin(-1)
        values = E2M1[codes] * scaled.sign() * scales.float()[..., None] * overall
        codes = (codes + 8 * (scaled < 0)).to(torch.uint8).reshape(w.shape)
        tensors[name] = codes[:, 0::2] | codes[:, 1::2] << 4
        tensors[name + "_scale"] = scales
        tensors[name + "_scale_2"] = overall
        tensors[name.replace(".weight", ".input_scale")] = torch.tensor(0.01)
        dequantised[name] = values.reshape(w.shape)
    tensors[KEPT.replace("o_proj", "k_proj") + ".k_scale"] = torch.tensor(1.0)
    tensors[KEPT.replace("o_proj", "v_proj") + ".v_scale"] = torch.tensor(1.0)
    write_folder(base, folder, tensors, {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", KEPT],
                                         "producer": {"name": "modelopt", "version": "0.33.0"}})
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="eager")
    model.load_state_dict({n: t for n, t in dequantised.items() if "lm_head" not in n}, strict=False)
    write_expected(folder, ids, losses_of(model, ids), dequantised[K_PROJ])


def main():
    logging.set_verbosity_error()
    torch.use_deterministic_algorithms(True)
    ids = torch.randint(3, 61, (2, 25), generator=torch.Generator().manual_seed(3), dtype=torch.int32)
    shutil.rmtree(ROOT, ignore_errors=True)
    with tempfile.TemporaryDirectory() as base:
        make_base(base)
        for name, make in [("nf4", lambda to: make_nf4(base, to, ids, False, torch.bfloat16)),
                           ("nf4_double", lambda to: make_nf4(base, to, ids, True, torch.float32)),
                           ("fp8", lambda to: make_fp8(base, to, ids)), ("nvfp4", lambda to: make_nvfp4(base, to, ids))]:
            folder = os.path.join(ROOT, name)
            os.makedirs(folder)
            make(folder)
            for left in set(os.listdir(folder)) - {"config.json", "model.safetensors", "expected.safetensors"}:
                os.remove(os.path.join(folder, left))


if __name__ == "__main__":
    main()
