"""Weights that any op reads, and blocks applied several times (tests/dsl/weights.py), against results of
PyTorch, which tests/oracle/weights.py wrote, in several ways to train. Prints counts."""

import json
import sys
import tempfile

import numpy as np

sys.path.insert(0, "tests/oracle")
from weights import FIXTURE, LIMIT, SHAPES, T, batches, errors, text_errors, write_model  # noqa: E402

from surogate import Trainer  # noqa: E402

HOST = {f"offload_{what}": True for what in ("grads", "weights", "residual", "optimizer", "master")}
WAYS = (
    {},
    dict(fusion="none"),
    dict(recompute_block=True, gradient_accumulation_steps=2),
    dict(HOST, shard_gradients=True, gradient_accumulation_steps=2),
    dict(gpus=2, zero_level=1, per_device_train_batch_size=1),
    dict(HOST, gpus=2, zero_level=3, per_device_train_batch_size=1, recompute_block=True),
)
ROUNDED = 0.05  # limit for gradients and losses with bf16 weights


def adapters_are_shared(folder):
    """A block that is applied several times has one adapter, which a step changes; its other weights stay unchanged."""
    ids = batches()
    with Trainer(model=folder, lora=True, lora_rank=2, model_dtype="fp32", device="cpu", sequence_len=T, per_device_train_batch_size=len(ids[0]),
                 gradient_accumulation_steps=1, output_dir=folder + "/adapted") as trainer:
        names = sorted(trainer.parameters())
        before = {n: np.array(trainer.weights(n)) for n in names}
        losses = [trainer.train_step(ids[0, :, :-1], ids[0, :, 1:], lr=1e-2)[0] for _ in range(3)]
        changed = [n for n in names if not np.array_equal(before[n], trainer.weights(n))]
    linears = sum(n.endswith(".weight") for n in SHAPES)
    return len(names) == 2 * linears and len(changed) == len(names) and losses[2] < losses[0]


def main():
    with open(FIXTURE) as f:
        told = json.load(f)
    good, count = 0, len(WAYS) + 4
    with tempfile.TemporaryDirectory() as folder:
        write_model(folder)
        for way in ("texts", *WAYS):
            found = text_errors(told, folder) if way == "texts" else errors(told, folder, **way)
            bad = {what: e for what, e in found.items() if not e <= LIMIT}
            print("FAIL" if bad else "ok  ", way, bad or "")
            good += not bad
        for way in (dict(grad_accum_dtype="fp32", gradient_accumulation_steps=2), dict(gpus=2, zero_level=3, per_device_train_batch_size=1)):
            bad = {what: e for what, e in errors(told, folder, model_dtype="bf16", **way).items() if not e <= ROUNDED}
            print("FAIL" if bad else "ok  ", "bf16", way, bad or "")
            good += not bad
        good += adapters_are_shared(folder)
    print("%d passed, %d failed, 0 skipped" % (good, count - good))


main()
