#!/usr/bin/env python3
"""Does what Surogate saves of every family mean the same to transformers and PEFT? Trains each fixture for some steps, once all weights and
once LoRA, saves it, loads it with AutoModelForCausalLM (missing and unexpected tensors are errors) or PEFT, and compares log-probabilities
with those of the trainer. Needs what make_families.py does, and the built library.

  SUROGATE_LIBRARY=build/libsurogate.so python3 tests/oracle/check_families.py [FAMILY...]
"""
import os
import sys
import tempfile

import numpy as np
import torch
from peft import PeftModel

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "python"))

from check_saved import load_exact  # noqa: E402
from make_families import FAMILIES, ROOT  # noqa: E402
from oracle_common import error  # noqa: E402
from surogate import Trainer  # noqa: E402

B, T, STEPS, LIMIT = 2, 24, 3, 1e-5


def reference(model, ids):
    with torch.no_grad():
        logits = model(input_ids=torch.from_numpy(ids).long(), use_cache=False).logits
    return torch.log_softmax(logits[:, :-1], -1).gather(2, torch.from_numpy(ids[:, 1:, None]).long())[..., 0]


def check(name, folder, lora):
    base, saved = os.path.join(ROOT, name), os.path.join(folder, "lora" if lora else "full")
    rng = np.random.default_rng(1)
    settings = dict(sequence_len=T, per_device_train_batch_size=B, gradient_accumulation_steps=1, learning_rate=1e-2, warmup_steps=0,
                    max_steps=STEPS, device="cpu", output_dir=os.path.join(folder, "out"), model_dtype="fp32")
    if lora:
        settings.update(lora=True, lora_rank=4)
    with Trainer.from_pretrained(base, **settings) as trainer:
        for _ in range(STEPS):
            trainer.train_step(rng.integers(3, 61, (B, T), dtype=np.int32))
        ids = rng.integers(3, 61, (B, T), dtype=np.int32)
        ours = trainer.logprobs(ids)
        (trainer.export_adapter if lora else trainer.export_model)(saved)
    model = PeftModel.from_pretrained(load_exact(base, T), saved).double() if lora else load_exact(saved, T)
    e = error(torch.from_numpy(np.array(ours)).reshape(B, -1)[:, :T - 1], reference(model, ids))
    print("%-4s %-12s %-4s %.1e" % ("ok" if e <= LIMIT else "FAIL", name, "lora" if lora else "full", e))
    return e <= LIMIT


def main():
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        results = [check(name, os.path.join(folder, name), lora) for name in sys.argv[1:] or FAMILIES for lora in (False, True)]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
