#!/usr/bin/env python3
"""Every field of PEFT's LoraConfig: does Surogate compute what PEFT does, or refuse the adapter? Prints a table.

Makes a tiny model with `surogate new`, for each case an adapter with PEFT (random A and B), and compares the losses of `surogate eval` with
those of the adapter that PEFT loads over the same base in fp32. Fails when one differs silently, when a field of LoraConfig has no case, or
when src/model/peft_keys.def doesn't know one.

  python3 tests/oracle/check_adapter_keys.py build/surogate
"""
import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
import warnings

import peft
import torch
import torch.nn.functional as F
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM
from transformers.utils import logging

TOLERANCE = 1e-4
QV = ["q_proj", "v_proj"]
# field: [(arguments of LoraConfig, keys of adapter_config.json written over PEFT's)]
CASES = {
    "task_type": [(dict(), {}), (dict(), dict(task_type=None))],
    "peft_type": [(dict(), dict(peft_type="LOHA"))],
    "auto_mapping": [(dict(), dict(auto_mapping={"base_model_class": "X"}))],
    "peft_version": [(dict(), dict(peft_version="0.9.0"))],
    "base_model_name_or_path": [(dict(), dict(base_model_name_or_path="org/name"))],
    "revision": [(dict(), dict(revision="v2"))],
    "inference_mode": [(dict(), dict(inference_mode=False))],
    "r": [(dict(r=3), {})],
    "target_modules": [(dict(target_modules="all-linear"), {}), (dict(target_modules=r".*\.(q|v)_proj"), {}),
                       (dict(target_modules=r"model\.layers\.[12]\.mlp\.(?!down|act).*"), {}), (dict(target_modules=["q_proj", "lm_head"]), {}),
                       (dict(target_modules=["model.layers.0.self_attn.q_proj", "up_proj"]), {}),
                       (dict(target_modules=["embed_tokens", "q_proj"]), {}), (dict(), dict(target_modules=["q_proj"]))],
    "exclude_modules": [(dict(exclude_modules=["layers.1.self_attn.q_proj"]), {}), (dict(exclude_modules=r".*layers\.0.*"), {})],
    "lora_alpha": [(dict(lora_alpha=24), {})],
    "lora_dropout": [(dict(lora_dropout=0.3), {})],
    "fan_in_fan_out": [(dict(), dict(fan_in_fan_out=True))],
    "bias": [(dict(bias="all"), {}), (dict(bias="lora_only"), {})],
    "use_rslora": [(dict(use_rslora=True), {}), (dict(use_rslora=True, rank_pattern={"q_proj": 2}), {})],
    "modules_to_save": [(dict(modules_to_save=["norm"]), {}), (dict(modules_to_save=["embed_tokens"]), {}),
                        (dict(modules_to_save=["lm_head"]), {}), (dict(modules_to_save=["mlp"]), {})],
    "init_lora_weights": [(dict(init_lora_weights=v), {}) for v in (False, "gaussian", "orthogonal", "mica", "pissa", "pissa_niter_4", "olora")]
    + [(dict(), dict(init_lora_weights=v)) for v in ("eva", "loftq", "corda", "lora_ga", "another", None)],
    "layers_to_transform": [(dict(layers_to_transform=[1, 2]), {}), (dict(layers_to_transform=0), {})],
    "layers_pattern": [(dict(layers_to_transform=[1], layers_pattern="layers"), {}), (dict(layers_to_transform=[1], layers_pattern=["h", "layers"]), {})],
    "rank_pattern": [(dict(rank_pattern={"q_proj": 2}), {}), (dict(rank_pattern={r"layers\.[01]\.self_attn\.v_proj": 6, "v_proj": 3}), {}),
                     (dict(), dict(rank_pattern={"q_proj": 2}))],
    "alpha_pattern": [(dict(alpha_pattern={"q_proj": 32}), {}), (dict(alpha_pattern={r"^model\.layers\.2.*v_proj": 1, "v_proj": 20}), {}),
                      (dict(alpha_pattern={"layers.1.self_attn.q_proj": 7}, rank_pattern={"q_proj": 2}), {})],
    "megatron_config": [(dict(), dict(megatron_config={"a": 1}))],
    "megatron_core": [(dict(), dict(megatron_core="other"))],
    "trainable_token_indices": [(dict(trainable_token_indices=[1, 2]), {})],
    "loftq_config": [(dict(), dict(loftq_config={"loftq_bits": 4}))],
    "eva_config": [(dict(), dict(eva_config={"rho": 2.0}))],
    "corda_config": [(dict(), dict(corda_config={"corda_method": "ipm"}))],
    "lora_ga_config": [(dict(), dict(lora_ga_config={"direction": "ArB2r"}))],
    "use_dora": [(dict(use_dora=True), {})],
    "velora_config": [(dict(), dict(velora_config={"num_groups": 2}))],
    "alora_invocation_tokens": [(dict(alora_invocation_tokens=[5]), {})],
    "use_qalora": [(dict(), dict(use_qalora=True))],
    "qalora_group_size": [(dict(), dict(qalora_group_size=8))],
    "monteclora_config": [(dict(), dict(monteclora_config={"num_samples": 2}))],
    "layer_replication": [(dict(layer_replication=[[0, 2], [1, 3]]), {})],
    "runtime_config": [(dict(), dict(runtime_config={"ephemeral_gpu_offload": True}))],
    "lora_bias": [(dict(lora_bias=True), {})],
    "target_parameters": [(dict(), dict(target_parameters=["mlp.up_proj.weight"]))],
    "use_bdlora": [(dict(), dict(use_bdlora={"nblocks": 2}))],
    "arrow_config": [(dict(), dict(arrow_config={"top_k": 1}))],
    "kasa_config": [(dict(), dict(kasa_config={"beta": 1e-4}))],
    "ensure_weight_tying": [(dict(), dict(ensure_weight_tying=True)), (dict(modules_to_save=["embed_tokens"], ensure_weight_tying=True), {})],
    "a key of tomorrow": [(dict(), dict(use_tomorrow=True)), (dict(), dict(use_tomorrow=False)), (dict(), dict(tomorrow_config=None))],
}
REFUSED_BY_PEFT = "PEFT refuses it"


def surogate(*args):
    return subprocess.run([os.path.abspath(sys.argv[1]), *args], capture_output=True, text=True)


def make_base(folder, **config):
    text = os.path.join(folder, "text.txt")
    with open(text, "w") as f:
        f.write("".join("line %d says %d and goes on\n" % (i, i * 7919 % 1000) for i in range(400)))
    tokenizer, base = os.path.join(folder, "tokenizer"), os.path.join(folder, "base")
    surogate("tokenizer", "train", "--vocab-size", "300", "--out", tokenizer, text).check_returncode()
    sizes = dict(hidden_size=32, intermediate_size=48, vocab_size=300, head_dim=8, num_hidden_layers=3) | config
    surogate("new", "--arch", "qwen3-tiny", "--random", "--tokenizer", tokenizer, base, *("%s=%s" % item for item in sizes.items())).check_returncode()
    return base


def load(base):
    return AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)


def make_adapter(base, folder, arguments, written):
    torch.manual_seed(1)
    model = get_peft_model(load(base), LoraConfig(**(dict(r=4, lora_alpha=8, task_type="CAUSAL_LM", target_modules=QV) | arguments)))
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.requires_grad and "magnitude" not in name:
                p.add_(torch.randn_like(p) * 0.2)
    model.save_pretrained(folder)
    path = os.path.join(folder, "adapter_config.json")
    with open(path) as f:
        config = json.load(f)
    with open(path, "w") as f:
        json.dump(config | written, f, indent=2)


def theirs(base, folder, ids):
    try:
        model = PeftModel.from_pretrained(load(base), folder)
        with torch.no_grad():
            logits = model.eval()(input_ids=torch.tensor([ids])).logits[0]
    except Exception as e:
        return REFUSED_BY_PEFT + ": " + str(e).splitlines()[0]
    return F.cross_entropy(logits[:-1].double(), torch.tensor(ids[1:]), reduction="none")


def judge(base, folder, text):
    """The result of a case, and whether it is acceptable."""
    ours = surogate("eval", base, "--adapter", folder, "--text", text, "--json")
    if ours.returncode != 0:
        return "refused: " + ours.stderr.strip().splitlines()[-1].replace(folder, "DIR"), ours.returncode == 2
    printed = json.loads(ours.stdout)
    want = theirs(base, folder, printed["ids"])
    if isinstance(want, str):
        return "read; " + want, True
    difference = float((torch.tensor(printed["losses"]) - want).abs().max())
    return "read, largest difference of a loss %.1e" % difference, difference < TOLERANCE


def known_keys():
    with open(os.path.join(os.path.dirname(__file__), "../../src/model/peft_keys.def")) as f:
        return set(re.findall(r"PEFT_KEY\((\w+)", f.read()))


def main():
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    warnings.filterwarnings("ignore")
    fields = {f.name for f in dataclasses.fields(LoraConfig)}
    bad = ["no case for " + f for f in sorted(fields - set(CASES))] + ["peft_keys.def lacks " + f for f in sorted(fields - known_keys())]
    print("PEFT", peft.__version__)
    with tempfile.TemporaryDirectory() as top:
        text = os.path.join(top, "short.txt")
        with open(text, "w") as f:
            f.write("line 7 says 433 and goes on\nline 8")
        bases = []
        for name, config in (("untied", dict(tie_word_embeddings="false")), ("tied", dict(tie_word_embeddings="true"))):
            os.mkdir(os.path.join(top, name))
            bases.append(make_base(os.path.join(top, name), **config))
        at = 0
        for base in bases:
            for field, cases in CASES.items() if base == bases[0] else [("target_modules, tied", CASES["target_modules"])]:
                for arguments, written in cases:
                    folder = os.path.join(top, "adapter%d" % at)
                    at += 1
                    try:
                        make_adapter(base, folder, arguments, written)
                        said, good = judge(base, folder, text)
                    except Exception as e:
                        said, good = "%s: %s" % (REFUSED_BY_PEFT, str(e).splitlines()[0]), True
                    print("%-5s %-24s %-60s %s" % ("ok" if good else "BAD", field, json.dumps(arguments | written), said), flush=True)
                    if not good:
                        bad.append(field)
    print("\n".join(bad) if bad else "no silent difference")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
