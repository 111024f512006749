"""Random models against results of PyTorch, both written by tests/oracle/graph_random.py. Prints counts."""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, "tests/oracle")
from graph_random import LIMIT, probe, trained  # noqa: E402


def difference(gradients, expected):
    """The largest difference of a gradient's two numbers, relative to its norm or, if that norm is 0 up to rounding, to the largest
    norm."""
    most, worst = max(norm for norm, _ in expected.values()), 0.0
    for name, gradient in gradients.items():
        want = expected.get(name, [0, 0])  # 0: the loss doesn't depend on it
        by = max(want[0], 1e-3 * most) * np.array([1, np.sqrt(gradient.size)])
        worst = max(worst, float((np.abs(np.subtract(probe(gradient), want)) / by).max()))
    return worst


def main():
    good, seeds = 0, json.loads(Path("tests/fixtures/graphs.json").read_text())
    for seed, expected in seeds.items():
        with tempfile.TemporaryDirectory() as folder:
            loss, _, gradients = trained(int(seed), folder)
        worst = max(abs(loss - expected["loss"]) / max(1, abs(expected["loss"])), difference(gradients, expected["gradients"]))
        good += worst <= LIMIT
        if not worst <= LIMIT:
            print("FAIL", seed, worst)
    print("%d passed, %d failed, 0 skipped" % (good, len(seeds) - good))


main()
