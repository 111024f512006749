#!/usr/bin/env python3
"""Does a folder that Surogate saved mean the same to transformers? Loads DIR with AutoModelForCausalLM, computes logits
in fp64 and compares them with those Surogate printed: max|difference| / max|reference| <= --tolerance.

LOGITS is JSON: {"ids": [[...], ...], "logits": [[[...], ...], ...]}, ids [B, T] and logits [B, T, V]; one row may be
given without the outer list.

  python3 tests/oracle/check_saved.py DIR LOGITS.json
"""
import argparse
import json
import sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

from oracle_common import error, exact, implementation


def parser(text):
    ap = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("model", metavar="DIR")
    ap.add_argument("logits", metavar="LOGITS")
    ap.add_argument("--tolerance", type=float, default=1e-5)
    return ap


def load_exact(folder, reach=0):
    """The fp64 model, for rows of `reach` tokens. Missing, unexpected and misshapen tensors are errors here, where transformers only warns."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True,
                                                       attn_implementation=implementation(AutoConfig.from_pretrained(folder)))
    problems = {k: v for k, v in info.items() if k.endswith("_keys") and v}
    if problems:
        sys.exit("FAIL %s: %s" % (folder, problems))
    return exact(model, reach)


def compare(model, args):
    with open(args.logits) as f:
        printed = json.load(f)
    ids, ours = torch.tensor(printed["ids"]), torch.tensor(printed["logits"], dtype=torch.float64)
    if ids.dim() == 1:
        ids, ours = ids[None], ours[None] if ours.dim() == 2 else ours
    with torch.no_grad():
        reference = model(input_ids=ids, use_cache=False).logits
    if ours.shape != reference.shape:
        sys.exit("FAIL logits are %s, expected %s" % (list(ours.shape), list(reference.shape)))
    e = error(ours, reference)
    good = e <= args.tolerance
    print("%s largest logit error %.2e (limit %.0e), %d x %d tokens"
          % ("ok" if good else "FAIL", e, args.tolerance, *ids.shape))
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    arguments = parser(__doc__).parse_args()
    compare(load_exact(arguments.model), arguments)
