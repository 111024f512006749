#!/usr/bin/env python3
"""Do adapters that a run trained with settings of each kind mean the same to PEFT? Trains a tiny model with each, continues
the training from the adapter, and compares the losses of a text with PEFT's of the saved folder, in double precision.

  python3 tests/oracle/check_lora_settings.py build/surogate
"""
import json
import os
import sys
import tempfile

import torch
import torch.nn.functional as F
from peft import PeftModel
from transformers.utils import logging

from check_adapter_keys import load, make_base, surogate

TOLERANCE = 1e-5
SETTINGS = [
    ["lora_target_modules=[q_proj,v_proj]", "lora_layers_to_transform=[1]"],
    ["lora_layers_to_transform=[0,2]", "lora_layers_pattern=layers"],
    ["lora_target_modules=.*(q_proj|mlp.*)", "lora_exclude_modules=[gate_proj]", "lora_rank_pattern={up_proj: 3}",
     'lora_alpha_pattern={"layers.0.mlp.down_proj": 5.5}', "lora_use_rslora=true"],
    ["lora_init=pissa"],
    ["lora_init=olora", "lora_use_rslora=true", "lora_target_modules=[q_proj,up_proj]", "lora_rank_pattern={up_proj: 3}",
     "lora_alpha_pattern={q_proj: 7}"],
    ["lora_use_dora=true"],
    ["lora_use_dora=true", "lora_use_rslora=true", "lora_target_modules=[q_proj,up_proj]", "lora_rank_pattern={up_proj: 3}",
     "lora_dropout=0.1", "lora_init=gaussian"],
    ["lora_exclude_modules=.*mlp.*", r'lora_rank_pattern={"layers\\.1\\..*": 2}'],
]


def losses_of(base, folder, ids):
    model = PeftModel.from_pretrained(load(base).double(), folder).double().eval()
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids])).logits[0]
    return F.cross_entropy(logits[:-1], torch.tensor(ids[1:]), reduction="none")


def check(base, folder, text):
    ours = surogate("eval", base, "--adapter", folder, "--text", text, "--json", "--dtype", "fp32", "--device", "cpu")
    ours.check_returncode()
    printed = json.loads(ours.stdout)
    return float((torch.tensor(printed["losses"]).double() - losses_of(base, folder, printed["ids"])).abs().max())


def main():
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    worst = 0
    with tempfile.TemporaryDirectory() as folder:
        base, text = make_base(folder), os.path.join(folder, "short.txt")
        with open(text, "w") as f:
            f.write("line 5 says 17 and goes on")
        for i, settings in enumerate(SETTINGS):
            run = ["pt", "model=" + base, "datasets.0.path=" + os.path.join(folder, "text.txt"), "sequence_len=64", "max_steps=4",
                   "model_dtype=fp32", "learning_rate=1e-2", "device=cpu", "lora_rank=4"]
            first, second = os.path.join(folder, "a%d" % i), os.path.join(folder, "b%d" % i)
            for out, more in (first, ["lora=true", *settings]), (second, ["adapter=" + first]):
                done = surogate(*run, "output_dir=" + out, *more)
                if done.returncode:
                    sys.exit("FAIL %s: %s" % (more, done.stderr))
                difference = check(base, out, text)
                worst = max(worst, difference)
                print("%.1e  %s" % (difference, " ".join(more).replace(folder, "DIR")))
    sys.exit(worst > TOLERANCE)


if __name__ == "__main__":
    main()
