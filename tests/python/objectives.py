"""The example objectives (tests/oracle/objectives.py) against the numbers that it has written of PyTorch; one line of counts."""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, "tests/oracle")
from objectives import CASES, LIMIT, NAMES, probe, trained  # noqa: E402


def main():
    good, count, told = 0, 0, json.loads(Path("tests/fixtures/objectives.json").read_text())
    for objective in NAMES:
        for seq, settings in CASES:
            expected = told[f"{objective} {seq}"]
            with tempfile.TemporaryDirectory() as folder:
                loss, _, gradients, _ = trained(objective, seq, settings, folder)
            most = max(norm for norm, _ in expected["gradients"].values())
            worst = abs(loss - expected["loss"]) / max(1, abs(expected["loss"]))
            for name, gradient in gradients.items():
                off = np.abs(np.subtract(probe(gradient), expected["gradients"][name])) / (most * np.array([1, np.sqrt(gradient.size)]))
                worst = max(worst, float(off.max()))
            good, count = good + (worst <= LIMIT), count + 1
            if not worst <= LIMIT:
                print("FAIL", objective, seq, settings, worst)
    print("%d passed, %d failed, 0 skipped" % (good, count - good))


main()
