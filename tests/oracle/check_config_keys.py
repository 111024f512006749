#!/usr/bin/env python3
"""Tries each key of config.json that a family's class in transformers has: absent, null, with its default, with other values and wrong types.
Surogate must compute the same as transformers, or refuse the model.

Makes a tiny random model of each family, changes one key of its config.json at a time, and compares the losses of `surogate eval` with those of
AutoModelForCausalLM over the same weights. Prints each case that differs. Fails if one of the first two kinds occurs without a message:

  DIFFERS   both read the model and compute something else
  LENIENT   transformers refuses it and Surogate reads it, except for keys on which neither weights nor results depend
  stricter  Surogate refuses what transformers reads; no failure

  python3 tests/oracle/check_config_keys.py build/surogate [FAMILY...]
"""
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import warnings

import torch
import torch.nn.functional as F
import transformers as hf
from transformers import AutoModelForCausalLM
from transformers.utils import logging

TOLERANCE = 2e-3
ABSENT = object()
OTHERS = [True, 2, 0, -1, 3.5, "x", "", [2], [], {}, {"a": 1}]
V = 300
SIZES = dict(vocab_size=V, num_hidden_layers=3, hidden_size=32, num_attention_heads=4, bos_token_id=1, eos_token_id=2, pad_token_id=0)
LLAMA = dict(**SIZES, intermediate_size=24, num_key_value_heads=2, max_position_embeddings=64)
WINDOW = dict(use_sliding_window=True, sliding_window=5, max_window_layers=1)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16, beta_fast=16, beta_slow=2, mscale=0.7, mscale_all_dim=0.9,
            attention_factor=1.3, truncate=False, rope_theta=5000.0)
LLAMA3 = dict(rope_type="llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=3.0, original_max_position_embeddings=32, rope_theta=5000.0)
LINEAR = dict(rope_type="linear", factor=3.0, rope_theta=5000.0)
DYNAMIC = dict(rope_type="dynamic", factor=3.0, rope_theta=5000.0)
LONG = dict(rope_type="longrope", factor=4.0, original_max_position_embeddings=16, short_factor=[1.1, 1.3, 1.5, 2.0],
            long_factor=[1.5, 2.5, 3.5, 4.5], attention_factor=1.2, rope_theta=5000.0)
ROPES = dict(plain=dict(rope_type="default", rope_theta=5000.0), linear=LINEAR, llama3=LLAMA3, yarn=YARN, dynamic=DYNAMIC, long=LONG)
FAMILIES = {
    "llama": (hf.LlamaConfig, LLAMA, ROPES),
    "qwen2": (hf.Qwen2Config, LLAMA | WINDOW, ROPES),
    "qwen3": (hf.Qwen3Config, LLAMA | WINDOW | dict(head_dim=8), ROPES),
    "mistral": (hf.MistralConfig, LLAMA | dict(sliding_window=5), ROPES),
    "olmo2": (hf.Olmo2Config, LLAMA, ROPES),
    "smollm3": (hf.SmolLM3Config, LLAMA | WINDOW | dict(no_rope_layer_interval=2), ROPES),
    "phi3": (hf.Phi3Config, LLAMA | dict(sliding_window=5, original_max_position_embeddings=16),
             dict(plain=ROPES["plain"], long={k: v for k, v in LONG.items() if k != "factor"})),
    "gemma2": (hf.Gemma2Config, LLAMA | dict(head_dim=8, sliding_window=5, query_pre_attn_scalar=16), dict(plain=ROPES["plain"], linear=LINEAR)),
    "gemma3": (hf.Gemma3TextConfig, LLAMA | dict(head_dim=8, sliding_window=5, query_pre_attn_scalar=16), {}),
    "gpt2": (hf.GPT2Config, dict(vocab_size=V, n_embd=32, n_head=4, n_layer=2, n_positions=64, bos_token_id=1, eos_token_id=2, pad_token_id=0), {}),
}
# Keys of transformers 4 and other keys that are no field of a class.
OLDER = ("rope_theta", "rope_scaling", "partial_rotary_factor", "head_dim", "attention_bias", "mlp_bias", "rope_local_base_freq",
         "sliding_window_pattern", "hidden_activation", "hidden_act", "qk_layernorm", "torch_dtype", "original_max_position_embeddings")
# Keys that don't affect an evaluation.
FREE = ("architectures", "model_type", "transformers_version", "dtype", "torch_dtype", "use_cache", "bos_token_id", "eos_token_id", "pad_token_id",
        "attention_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop", "initializer_range", "pretraining_tp", "chunk_size_feed_forward",
        "is_encoder_decoder", "output_hidden_states", "return_dict", "output_attentions", "id2label", "label2id", "problem_type",
        "reorder_and_upcast_attn", "summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels", "summary_first_dropout",
        "_sliding_window_pattern")


def surogate(*args):
    return subprocess.run([os.path.abspath(sys.argv[1]), *args], capture_output=True, text=True)


def make_model(config, folder):
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.add_(torch.randn_like(p) * (0.3 if p.dim() == 1 else 0.6))
    model.save_pretrained(folder)
    with open(os.path.join(folder, "config.json")) as f:
        return json.load(f)


def theirs(folder, ids):
    try:
        model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
        problems = {k: v for k, v in info.items() if k.endswith("_keys") and v}
        if problems:
            return str(problems)
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    except Exception as e:
        return "%s: %s" % (type(e).__name__, " ".join(str(e).split()))
    return F.cross_entropy(logits[:-1].double(), torch.tensor(ids[1:]), reduction="none")


class Check:
    def __init__(self, top):
        self.top, self.bad, self.cases, self.same, self.ids = top, 0, 0, 0, {}

    def losses(self, folder, long):
        done = surogate("eval", folder, "--text", os.path.join(self.top, "long.txt" if long else "short.txt"), "--json", "--device", "cpu", "--threads",
                        "1", *(["--context", "4400"] if long else []))
        if done.returncode != 0:
            return (done.stderr.strip().splitlines() or ["exit %d" % done.returncode])[-1].replace(folder, "DIR"), done.returncode
        printed = json.loads(done.stdout)
        self.ids[long] = printed["ids"]
        return torch.tensor(printed["losses"], dtype=torch.float64), 0

    def case(self, family, folder, config, what, free=False, long=False):
        with open(os.path.join(folder, "config.json"), "w") as f:
            json.dump(config, f)
        ours, status = self.losses(folder, long)
        if long not in self.ids:
            sys.exit("%s: %s" % (family, ours))
        assert not long or 4096 < len(self.ids[long]) < 4400
        want = theirs(folder, self.ids[long])
        self.cases += 1
        if isinstance(ours, str) and status != 2:
            verdict, good = "CRASH " + ours, False
        elif isinstance(ours, str):
            verdict, good = (None, True) if isinstance(want, str) else ("stricter: " + ours, True)
        elif isinstance(want, str):
            verdict, good = ("free: " if free else "LENIENT: ") + want[:150], free
        else:
            e = float((ours - want).abs().max()) if ours.shape == want.shape else float("inf")
            verdict, good = (None, True) if e < TOLERANCE else ("DIFFERS by %.2g" % e, False)
        self.same += verdict is None
        self.bad += not good
        if verdict and not verdict.startswith("free"):
            print("%-8s %-60s %s" % (family, what, verdict), flush=True)


def changed(config, path, value):
    out = json.loads(json.dumps(config))
    at = out
    for key in path[:-1]:
        at = at[key]
    if value is ABSENT:
        at.pop(path[-1], None)
    else:
        at[path[-1]] = value
    return out


def defaults(cls):
    return {f.name: f.default for f in dataclasses.fields(cls) if f.default is not dataclasses.MISSING}


def is_harmless(name, value, default):
    """Whether Surogate may accept a value that transformers refuses: null for an absent key, one value for a list (docs/ir.md), 0 and 1 for false
    and true, or a whole number for a fraction or None. A layer whose window isn't given has none."""
    if name in ("sliding_window", "use_sliding_window") and value in (ABSENT, False) or name in ("layer_types", "no_rope_layers") and not isinstance(value, list):
        return True
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value is None or (whole and (value in (0, 1) or default is None or isinstance(default, float))) or (isinstance(default, list) and isinstance(value, float))


def vary(check, family, folder, config, path, values, default=None):
    for value in values:
        name = ".".join(path)
        if name in ("max_position_embeddings", "n_positions") and value == 2:
            continue  # the text is then evaluated in pieces
        if name == "sliding_window" and value == 0 and not isinstance(value, bool):
            continue  # no window here; transformers would mask every token
        what = "%s %s" % (name, "absent" if value is ABSENT else json.dumps(value))
        long = name == "sliding_window" and value in (ABSENT, None, 4096)
        now = config | dict(max_position_embeddings=8192) if long else config
        check.case(family, folder, changed(now, path, value), what, path[0] in FREE or is_harmless(path[-1], value, default), long)


def check_family(check, family, cls, arguments, ropes):
    folder = os.path.join(check.top, family)
    config = make_model(cls(**arguments), folder)
    for name in os.listdir(os.path.join(check.top, "tokenizer")):
        os.symlink(os.path.join(check.top, "tokenizer", name), os.path.join(folder, name))
    check.case(family, folder, config, "as saved")
    values = defaults(cls)
    keys = sorted(set(config) | set(values) | set(OLDER) - {"layer_types" if family == "mistral" else ""})
    for key in keys:
        if key in ("transformers_version", "architectures", "model_type"):
            continue
        default = values.get(key)
        tried = [ABSENT, None] + ([default] if isinstance(default, (int, float, str, bool)) else []) + OTHERS
        vary(check, family, folder, config, [key], tried, default)
    if "layer_types" in values:
        vary(check, family, folder, config, ["layer_types"], [5, "full_attention", ["full_attention"] * 3, ["sliding_attention"] * 3,
                                                              ["full_attention", "sliding_attention", "x"], ["full_attention"] * 2])
    if family == "gemma3":
        check_gemma3(check, folder, config)
    for name, rope in ropes.items():
        check_rope(check, family, folder, config, name, rope)


def check_rope(check, family, folder, config, name, rope):
    now = {k: v for k, v in config.items() if k not in ("rope_parameters", "rope_theta", "rope_scaling")}
    before = now | dict(rope_theta=rope["rope_theta"], rope_scaling={k: v for k, v in rope.items() if k != "rope_theta"})
    now["rope_parameters"] = rope
    label = family + ":" + name
    for key in sorted(set(rope) | {"type", "partial_rotary_factor"}):
        vary(check, label, folder, now, ["rope_parameters", key], [ABSENT, None, 0, 1, 2.5, "x", True, [2]], rope.get(key))
        vary(check, label, folder, before, ["rope_scaling", key], [ABSENT, None, 0, 2.5, "x"], rope.get(key))
    vary(check, label, folder, before, ["rope_theta"], [ABSENT, None, 777.0, "x"])
    vary(check, label, folder, before, ["max_position_embeddings"], [ABSENT, None, 40])
    other = dict(rope_type="linear", factor=2.0) if family != "phi3" else dict(rope_type="default")
    for scaling in ({}, None, other, other | dict(rope_theta=777.0), dict(rope_type="default")):
        check.case(label, folder, now | dict(rope_scaling=scaling), "rope_parameters beside rope_scaling %s" % json.dumps(scaling))
        check.case(label, folder, now | dict(rope_scaling=scaling, rope_theta=333.0), "the same, and rope_theta")
    without = {k: v for k, v in rope.items() if k != "rope_theta"}
    check.case(label, folder, now | dict(rope_parameters=without, rope_theta=333.0), "rope_theta beside rope_parameters")
    check.case(label, folder, now | dict(rope_theta=333.0), "rope_theta in both")
    check.case(label, folder, now | dict(rope_parameters={}, rope_theta=333.0), "rope_theta beside empty rope_parameters")
    if "rope_type" in without:
        check.case(label, folder, now | dict(rope_scaling={("type" if k == "rope_type" else k): v for k, v in without.items()}, rope_parameters=None,
                                             rope_theta=333.0), "type in place of rope_type")


def check_gemma3(check, folder, config):
    for place in ("full_attention", "sliding_attention"):
        for key in ("rope_theta", "rope_type", "factor"):
            vary(check, "gemma3", folder, config, ["rope_parameters", place, key], [ABSENT, None, 0, 2.5, "x", "linear"])
        vary(check, "gemma3", folder, config, ["rope_parameters", place], [ABSENT, None, {}, 2, dict(rope_type="linear", factor=2.0)])
    for scaling in ({}, None, dict(rope_type="linear", factor=2.0), dict(type="linear", factor=2.0), dict(rope_type="linear", factor=2.0, rope_theta=777.0)):
        for parameters in (config["rope_parameters"], None, ABSENT, dict(full_attention=dict(rope_type="default"))):
            for more in ({}, dict(rope_theta=333.0, rope_local_base_freq=55.0)):
                now = changed(config, ["rope_parameters"], parameters) | dict(rope_scaling=scaling) | more
                check.case("gemma3", folder, now, "rope_parameters %s rope_scaling %s %s"
                           % ("absent" if parameters is ABSENT else json.dumps(parameters), json.dumps(scaling), json.dumps(more)))
    base = {k: v for k, v in config.items() if k != "layer_types"}
    for key in ("sliding_window_pattern", "_sliding_window_pattern"):
        for value in (2, 0, "x"):
            check.case("gemma3", folder, {k: v for k, v in base.items() if k != "_sliding_window_pattern"} | {key: value}, "%s %s" % (key, value))


def main():
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    print("transformers", hf.__version__)
    with tempfile.TemporaryDirectory() as top:
        check = Check(top)
        with open(os.path.join(top, "text.txt"), "w") as f:
            f.write("".join("line %d says %d and goes on\n" % (i, i * 7919 % 1000) for i in range(400)))
        surogate("tokenizer", "train", "--vocab-size", str(V), "--out", os.path.join(top, "tokenizer"), os.path.join(top, "text.txt")).check_returncode()
        for name, text in (("short", "line 7 says 433 and goes on\nline 8 says 3"), ("long", "".join("line %d says %d " % (i, i * 7919 % 1000) for i in range(395)))):
            with open(os.path.join(top, name + ".txt"), "w") as f:
                f.write(text)
        for family in sys.argv[2:] or FAMILIES:
            check_family(check, family, *FAMILIES[family])
    print("%d cases, %d the same, %d bad" % (check.cases, check.same, check.bad))
    sys.exit(bool(check.bad))


if __name__ == "__main__":
    main()
