#!/usr/bin/env python3
"""Writes tests/fixtures/adapters: the layers that PEFT adapts, with rank and scale, for settings of run files; and, in double precision, the
results of training that continues from an adapter.

selected.json            a list of {family, settings, use_rslora, modules: [[path, r, scale], ...]}
qwen3/                   an adapter of tests/fixtures/families/qwen3 with settings of every kind, as PEFT writes it
expected.safetensors     steps.loss, steps.grad_norm: of ten steps on the batches of the family's expected.safetensors, starting from the
                         adapter
                         after.NAME: the adapter's tensors after these steps
                         merged.NAME: the family's weights plus 0.25 times its own adapter, -1.5 times this adapter and 0.5 times
                         the adapter of tests/fixtures/row_adapters
                         pissa.loss, pissa.grad_norm: of the same steps with new adapters that PiSSA initialises; pissa.merged.NAME: the
                         weights with these adapters merged after the last step; olora.*: the same for OLoRA

Needs torch, transformers, peft, safetensors. Deterministic: same versions, same bytes.

  python3 tests/oracle/make_adapters.py
"""
import json
import os
import shutil

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from make_families import ROOT, make_batches, strip, train, trained
from oracle_common import error, exact

OUT = os.path.join(ROOT, "..", "adapters")
T = 24
CASES = [
    ("qwen3", dict(target_modules="all-linear")),
    ("qwen3", dict(target_modules=["q_proj", "mlp.down_proj"])),
    ("qwen3", dict(target_modules=r".*\.(q|k)_proj")),
    ("qwen3", dict(target_modules=r"model\.layers\.1\..*_proj", exclude_modules=["k_proj", "up_proj"])),
    ("qwen3", dict(target_modules="all-linear", exclude_modules=r".*mlp.*")),
    ("qwen3", dict(target_modules=["q_proj", "v_proj"], layers_to_transform=[1])),
    ("qwen3", dict(target_modules=["q_proj", "v_proj"], layers_to_transform=0)),
    ("qwen3", dict(target_modules=["q_proj", "v_proj"], layers_to_transform=[0], layers_pattern="layers")),
    ("qwen3", dict(target_modules=["q_proj", "model.layers.1.self_attn.k_proj"], layers_to_transform=[0], layers_pattern=["h", "layers"])),
    ("qwen3", dict(target_modules="all-linear", rank_pattern={"q_proj": 2, r"layers\.1\.mlp\..*": 7, ".*": 3})),
    ("qwen3", dict(target_modules="all-linear", use_rslora=True, rank_pattern={"self_attn.q_proj": 9},
                   alpha_pattern={r".*\.0\..*": 5, "down_proj": 0.5})),
    ("qwen3_untied", dict(target_modules=["lm_head", "o_proj"], alpha_pattern={"lm_head": 3})),
    ("gpt2", dict(target_modules=["c_attn", "mlp.c_proj"], layers_to_transform=[1], layers_pattern="h", rank_pattern={"c_attn": 3})),
    ("gpt2", dict(target_modules="all-linear", exclude_modules=["mlp.c_proj"])),
    ("phi3", dict(target_modules=["qkv_proj", "down_proj"], rank_pattern={"^model.layers.0.self_attn.qkv_proj": 1})),
]
GOES_ON = dict(r=5, lora_alpha=12, use_rslora=True, target_modules=["q_proj", "v_proj", "o_proj", "down_proj", "up_proj"],
               exclude_modules=r".*\.0\.mlp\.up_proj", rank_pattern={"v_proj": 3, r"layers\.1\.mlp\.down_proj": 8},
               alpha_pattern={r".*\.1\.self_attn\.o_proj": 4.5}, lora_dropout=0.0)


def base_of(family, dtype=torch.float32):
    model = AutoModelForCausalLM.from_pretrained(os.path.join(ROOT, family), dtype=torch.float32, attn_implementation="eager")
    return exact(model, T) if dtype == torch.float64 else model


def selected(family, settings):
    fan = dict(fan_in_fan_out=True) if family == "gpt2" else {}
    model = get_peft_model(base_of(family), LoraConfig(r=4, lora_alpha=8, task_type="CAUSAL_LM", **fan, **settings))
    layers = [(name.removeprefix("base_model.model."), m) for name, m in model.named_modules() if isinstance(m, LoraLayer)]
    settings = dict(settings)
    rslora = settings.pop("use_rslora", False)
    return dict(family=family, settings=settings, use_rslora=rslora,
                modules=sorted([name, m.r["default"], m.scaling["default"]] for name, m in layers))


def write_adapter(folder, settings, seed):
    base = base_of("qwen3")
    base.name_or_path = base.config._name_or_path = ""
    torch.manual_seed(seed)
    model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", **settings))
    with torch.no_grad():
        for _, p in trained(model):
            p.copy_(torch.randn(p.shape) * 0.3)
    model.save_pretrained(folder)
    strip(folder, ["adapter_config.json", "adapter_model.safetensors"])
    path = os.path.join(folder, "adapter_config.json")
    with open(path) as f:
        config = json.load(f)
    if isinstance(config["target_modules"], list):
        config["target_modules"] = sorted(config["target_modules"])
    with open(path, "w") as f:
        json.dump(config | dict(base_model_name_or_path=None), f, indent=2, sort_keys=True)
        f.write("\n")


def goes_on(folder):
    steps = make_batches(61)[2]
    model = PeftModel.from_pretrained(base_of("qwen3", torch.float64), folder, is_trainable=True).double()
    losses, norms, _ = train(model, steps)
    out = {"steps.loss": losses, "steps.grad_norm": norms}
    return out | {"after." + name: p.detach() for name, p in trained(model)}


BEGINS = dict(r=3, lora_alpha=9, use_rslora=True, target_modules="all-linear", lora_dropout=0.0, rank_pattern={"down_proj": 5},
              alpha_pattern={"v_proj": 2})


def begins(init):
    model = get_peft_model(base_of("qwen3"), LoraConfig(task_type="CAUSAL_LM", init_lora_weights=init, **BEGINS))   # PEFT wants fp32 here
    exact(model.base_model.model, T)
    model.double()
    losses, norms, _ = train(model, make_batches(61)[2])
    out = {init + ".loss": losses, init + ".grad_norm": norms}
    for name, layer in model.named_modules():
        if isinstance(layer, LoraLayer):
            weight = layer.get_base_layer().weight + layer.get_delta_weight("default")
            out[init + ".merged." + name.removeprefix("base_model.model.") + ".weight"] = weight.detach()
    return out


def weighted(base, folders, weights):
    """The base's weights plus the adapters' changes computed by PEFT, each times its weight."""
    model = PeftModel.from_pretrained(base, folders[0], adapter_name="0").double()
    for i, folder in enumerate(folders[1:], 1):
        model.load_adapter(folder, adapter_name=str(i))
    model.double()
    out = {}
    for name, layer in model.named_modules():
        if isinstance(layer, LoraLayer):
            change = sum(w * layer.get_delta_weight(str(i)) for i, w in enumerate(weights) if str(i) in layer.lora_A)
            out[name.removeprefix("base_model.model.") + ".weight"] = (layer.get_base_layer().weight + change).detach()
    return model, out


def check_weighted():
    """Compares with PEFT's own sum, which it can make for adapters of one rank without rsLoRA."""
    folders = [os.path.join(OUT, "plain%d" % i) for i in range(2)]
    for i, folder in enumerate(folders):
        write_adapter(folder, dict(r=4, lora_alpha=8, target_modules=["q_proj", "down_proj"]), 20 + i)
    model, want = weighted(base_of("qwen3", torch.float64), folders, [0.25, 0.75])
    model.add_weighted_adapter(["0", "1"], [0.25, 0.75], "sum", combination_type="cat")
    model.set_adapter("sum")
    got = model.double().merge_and_unload().state_dict()
    for name, value in want.items():
        assert error(got[name], value) < 1e-6, name   # PEFT multiplies in fp32
        assert value.shape == got[name].shape
    for folder in folders:
        shutil.rmtree(folder)


def merged():
    folders = [os.path.join(ROOT, "qwen3", "adapter"), os.path.join(OUT, "qwen3"), os.path.join(ROOT, "..", "row_adapters", "qwen3")]
    check_weighted()
    return {"merged." + name: value for name, value in weighted(base_of("qwen3", torch.float64), folders, [0.25, -1.5, 0.5])[1].items()}


def main():
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    shutil.rmtree(OUT, ignore_errors=True)
    os.makedirs(OUT)
    with open(os.path.join(OUT, "selected.json"), "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(selected(*case)) for case in CASES) + "\n]\n")
    write_adapter(os.path.join(OUT, "qwen3"), GOES_ON, 5)
    out = goes_on(os.path.join(OUT, "qwen3")) | merged() | begins("pissa") | begins("olora")
    save_file({k: v.to(torch.float32).contiguous() for k, v in sorted(out.items())}, os.path.join(OUT, "expected.safetensors"))


if __name__ == "__main__":
    main()
