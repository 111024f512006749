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
POLAR_EXPRESS = ((8.156554524902461, -22.48329292557795, 15.878769915207462), (4.042929935166739, -2.808917465908714, 0.5000178451051316),
                 (3.8916678022926607, -2.772484153217685, 0.5060648178503393), (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
                 (2.3465413258596377, -1.7097828382687081, 0.42323551169305323))


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


def rows_of_matrices(name, config):
    """The rows of each matrix that a weight of a linear layer in a block holds, over and over; None: it is one."""
    if name.endswith("gate_up_proj.weight"):
        return [config["intermediate_size"]] * 2
    if not name.endswith("query_key_value.weight"):
        return None
    heads, groups = config["num_attention_heads"], config["num_attention_heads"]
    if config.get("multi_query"):
        groups = 1
    if config.get("new_decoder_architecture"):
        groups = config["num_kv_heads"]
    size = config["hidden_size"] // heads
    return [heads // groups * size, size, size]


def first_normuon(gradient, lr):
    """How far the first step of NorMuon moves a matrix."""
    x = 0.05 * 1.95 * gradient  # momentum 0.95, as Nesterov has it
    x = x / (1.02 * np.linalg.norm(x) + 1e-6)
    for a, b, c in POLAR_EXPRESS:
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    x = x / np.sqrt(0.05 * (x**2).mean(1, keepdims=True))
    return -lr * 0.2 * np.sqrt(x.size) / np.linalg.norm(x) * x


def normuon_error(folder, settings, ids, lr=1e-2):
    """The largest difference of a linear layer's update, by its size. Each matrix of its weight moves by itself."""
    config, worst = json.loads((folder / "config.json").read_text()), 0.0
    with Trainer(**settings, optimizer="normuon", max_grad_norm=0) as trainer:
        trainer.step(ids[0, :, :-1], ids[0, :, 1:])
        trainer.backward()
        names = [n for n, shape in trainer.parameters().items() if len(shape) == 2 and ".0." in n]
        gradients, before = ({n: np.asarray(f(n), np.float64) for n in names} for f in (trainer.gradients, trainer.weights))
        trainer.update(lr)
        for name in names:
            rows = rows_of_matrices(name, config) or [len(before[name])]
            of = np.arange(len(before[name])) % sum(rows)
            for begin, size in zip(np.cumsum([0, *rows]), rows):
                mine = (of >= begin) & (of < begin + size)
                worst = max(worst, error((trainer.weights(name) - before[name])[mine], first_normuon(gradients[name][mine], lr)))
    return worst


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
    found["normuon / 10"] = normuon_error(folder, settings, ids) / 10
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
