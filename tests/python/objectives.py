"""The example objectives against results of PyTorch, which tests/oracle/objectives.py wrote. Prints counts."""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
from surogate import SurogateError, Trainer

sys.path.insert(0, "tests/oracle")
from objectives import CASES, LIMIT, NAMES, TINY, batch, make_folder, own_inputs, probe, trained, trained_mtp, written  # noqa: E402


def furthest(expected, losses, gradients):
    """The largest difference of losses and gradients from PyTorch's."""
    most = max(norm for norm, _ in expected["gradients"].values())
    worst = max(abs(x - want) / max(1, abs(want)) for x, want in zip(losses, expected.get("losses", [expected.get("loss")]), strict=True))
    for name, gradient in gradients.items():
        off = np.abs(np.subtract(probe(gradient), expected["gradients"][name])) / (most * np.array([1, np.sqrt(gradient.size)]))
        worst = max(worst, float(off.max()))
    return worst


def evaluated():
    """Evaluations run without an input that the objective's losses don't read; steps need it."""
    with tempfile.TemporaryDirectory() as folder:
        file = written("examples/dsl/objectives/token_weights.py", "TokenWeights", folder)
        settings = dict(sequence_len=20, per_device_train_batch_size=2, max_steps=9, device="cpu", model_dtype="fp32", objective=file)
        with Trainer.from_scratch(
            make_folder(f"{folder}/own", 32), seed=3, output_dir=f"{folder}/out", ir=written(TINY, "Tiny", folder), **settings
        ) as trainer:
            without, given = (trainer.eval(*batch(0, 20), inputs=inputs) for inputs in (None, own_inputs("token_weights", 0, 20)))
            try:
                trainer.step(*batch(0, 20))
            except SurogateError as refusal:
                return without == given and "reads the input weight, which the batch lacks" in str(refusal)
    return False


def main():
    good, count, told = 0, 0, json.loads(Path("tests/fixtures/objectives.json").read_text())
    for objective in NAMES:
        for seq, settings in CASES:
            expected = told[f"{objective} {seq}"]
            with tempfile.TemporaryDirectory() as folder:
                loss, _, gradients, _ = trained(objective, seq, settings, folder)
            worst = furthest(expected, [loss], gradients)
            good, count = good + (worst <= LIMIT), count + 1
            if not worst <= LIMIT:
                print("FAIL", objective, seq, settings, worst)
    for settings in ({}, {"fusion": "none"}, {"recompute_block": True}):
        with tempfile.TemporaryDirectory() as folder:
            losses, _, gradients = trained_mtp(settings, folder)
        worst = furthest(told["mtp"], losses, gradients)
        good, count = good + (worst <= LIMIT), count + 1
        if not worst <= LIMIT:
            print("FAIL mtp", settings, worst)
    good, count = good + evaluated(), count + 1
    print("%d passed, %d failed, 0 skipped" % (good, count - good))


main()
