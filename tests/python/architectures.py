"""Models of examples/dsl against the numbers that tests/oracle/architectures.py has written of transformers; one line of counts."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from surogate import Trainer

FIXTURES = Path("tests/fixtures/architectures")
LIMIT = 1e-5


def error(ours, reference):
    ours, reference = np.asarray(ours, np.float64), np.asarray(reference, np.float64)
    return float(np.abs(ours - reference).max() / np.abs(reference).max())


def probe(values):
    """As tests/oracle/architectures.py has it."""
    values = np.asarray(values, np.float64).ravel()
    return [float(np.sqrt((values**2).sum())), float((values * np.cos(np.arange(values.size))).sum())]


def gradient_error(trainer, expected):
    """The largest difference of a gradient's two numbers, by its norm. Those of keys' biases are 0 but for rounding."""
    return max(max(abs(a - b) for a, b in zip(probe(trainer.gradients(n)), e)) / e[0] for n, e in expected.items() if e[0] > 1e-6)


def check(folder, ir, out):
    expected = json.loads((folder / "expected.json").read_text())
    ids = np.asarray(expected["ids"], np.int32)
    settings = dict(model=str(folder), ir=ir, output_dir=out, sequence_len=ids.shape[2] - 1, per_device_train_batch_size=ids.shape[1],
                    gradient_accumulation_steps=1, max_steps=len(ids) - 1, warmup_steps=0, device="cpu", weight_decay=0.0, model_dtype="fp32",
                    generate_samples=1, sample_max_tokens=8, recompute_block=True)
    found = {}
    with Trainer(**settings) as trainer:
        found["logprobs"] = error(trainer.logprobs(ids[0, :, :-1], ids[0, :, 1:]).reshape(ids.shape[1], -1), expected["logprobs"])
        trainer.step(ids[0, :, :-1], ids[0, :, 1:])
        trainer.backward()
        names = set(trainer.parameters()) ^ set(expected["gradients"])
        found["names"] = float(len(names))
        found["gradients / 10"] = gradient_error(trainer, expected["gradients"]) / 10
    with Trainer(**settings) as trainer:
        found["steps"] = max(abs(trainer.train_step(b[:, :-1], b[:, 1:], lr=1e-3)[0] / loss - 1) for b, loss in zip(ids[1:], expected["losses"]))
        text = trainer.generate(ids[0, 0, :8], max_tokens=8, temperature=0)
        found["generated"] = float(list(map(int, text)) != expected["generated"])
    bad = {what: e for what, e in found.items() if not e <= LIMIT}
    print("FAIL" if bad else "ok  ", folder.name, bad or "")
    return not bad


def main():
    folders = sorted(FIXTURES.iterdir())
    good = 0
    with tempfile.TemporaryDirectory() as out:
        for folder in folders:
            ir = os.path.join(out, "ir.json")
            source = "examples/dsl/%s.py" % folder.name.split("+")[0]
            subprocess.run([sys.executable, "-m", "surogate.dsl", "build", source, "-o", ir], check=True)
            good += check(folder, ir, os.path.join(out, "run"))
    print("%d passed, %d failed, 0 skipped" % (good, len(folders) - good))


main()
