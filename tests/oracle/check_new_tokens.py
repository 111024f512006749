#!/usr/bin/env python3
"""New tokens against transformers: makes a tiny model with `surogate new`, trains it with new_tokens, new_special_tokens and
pad_vocab_multiple, and compares the saved folder with the model after add_tokens and resize_token_embeddings: ids of texts, special
tokens, sizes, and new rows up to the noise that transformers adds to the mean. Adapters are loaded by PEFT over their base.

  python3 tests/oracle/check_new_tokens.py build/surogate
"""
import json
import os
import subprocess
import sys
import tempfile

import torch
from peft import PeftModel
from transformers import AddedToken, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

TOKENS, SPECIAL = ["<tool>", "wörd"], ["<|think|>", "<|a,b|>"]
TEXTS = ["line <tool> 3 <|think|>says wörd.", "<|a,b|><|think|> wörd<tool>line", "line 12 says 3"]


def surogate(*args):
    return subprocess.run([os.path.abspath(sys.argv[1]), *args], capture_output=True, text=True, check=True).stdout


def make_base(folder, tied):
    text = os.path.join(folder, "text.txt")
    with open(text, "w") as f:
        f.write("".join("line %d says %d and goes on\n" % (i, i * 7919 % 1000) for i in range(400)))
    tokenizer, base = os.path.join(folder, "tokenizer"), os.path.join(folder, "base")
    surogate("tokenizer", "train", "--vocab-size", "300", "--out", tokenizer, text)
    size = json.load(open(os.path.join(tokenizer, "tokenizer.json")))
    rows = max(max(size["model"]["vocab"].values()), *(t["id"] for t in size["added_tokens"])) + 1
    surogate("new", "--arch", "qwen3-tiny", "--random", "--tokenizer", tokenizer, base, "hidden_size=32", "intermediate_size=48",
             "vocab_size=%d" % rows, "head_dim=8", "tie_word_embeddings=%s" % str(tied).lower())
    return base, text


def train(folder, base, text, name, *keys):
    out = os.path.join(folder, name)
    run = os.path.join(folder, "run.yaml")
    with open(run, "w") as f:
        json.dump(dict(model=base, datasets=[dict(path=text)], sequence_len=64, model_dtype="fp32", max_steps=1, learning_rate=0.0,
                       new_tokens=TOKENS, new_special_tokens=SPECIAL, pad_vocab_multiple=32, output_dir=out), f)
    surogate("pt", run, *keys)
    return out


def check(what, good):
    print("%-4s %s" % ("ok" if good else "FAIL", what))
    return bool(good)


def check_folder(what, base, out):
    theirs, tokenizer = AutoModelForCausalLM.from_pretrained(base), AutoTokenizer.from_pretrained(base)
    old = theirs.get_input_embeddings().weight.shape[0]
    tokenizer.add_special_tokens(dict(additional_special_tokens=[AddedToken(t, normalized=False, special=True) for t in SPECIAL]))
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in TOKENS])
    theirs.resize_token_embeddings(len(tokenizer), pad_to_multiple_of=32, mean_resizing=True)
    ours, mine = AutoModelForCausalLM.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    good = check(what + ": ids of texts", all(mine(t).input_ids == tokenizer(t).input_ids for t in TEXTS))
    good &= check(what + ": what is special", all(mine.decode(mine(t).input_ids, skip_special_tokens=True) ==
                                                  tokenizer.decode(tokenizer(t).input_ids, skip_special_tokens=True) for t in TEXTS))
    good &= check(what + ": vocab_size", ours.config.vocab_size == theirs.config.vocab_size)
    for part in ("get_input_embeddings", "get_output_embeddings"):
        a, b = getattr(ours, part)().weight, getattr(theirs, part)().weight
        good &= check("%s: %s: rows of before" % (what, part), a.shape == b.shape and torch.equal(a[:old], b[:old]))
        good &= check("%s: %s: new rows" % (what, part), (a[old:] - b[old:]).abs().max() < 1e-4)
    return good


def main():
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    good = True
    for tied in (True, False):
        with tempfile.TemporaryDirectory() as folder:
            os.environ["HF_HOME"] = os.path.join(folder, "cache")
            base, text = make_base(folder, tied)
            what = "tied" if tied else "untied"
            good &= check_folder(what, base, train(folder, base, text, "full", "weight_decay=0"))
            adapter = train(folder, base, text, "adapter", "lora=true", "lora_modules_to_save=[embed_tokens,lm_head]", "merge_adapter=true",
                            "lora_ensure_weight_tying=%s" % str(tied).lower(), "learning_rate=0.01")
            grown = json.load(open(os.path.join(adapter, "adapter_config.json")))["base_model_name_or_path"]
            ids = AutoTokenizer.from_pretrained(adapter)(TEXTS[0], return_tensors="pt").input_ids
            a = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(grown), adapter)(ids).logits
            b = AutoModelForCausalLM.from_pretrained(os.path.join(adapter, "merged"))(ids).logits
            good &= check(what + ": the adapter in PEFT", (a - b).abs().max() < 1e-5 * b.abs().max())
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
