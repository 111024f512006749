"""A model learns to repeat a row of ids: its accuracy rises from chance to more than 0.95. Then it decodes rows that it never saw.

    python examples/decoder/copy_task.py [--gpu 0] [--steps 400]
"""

from __future__ import annotations

import argparse

import numpy as np
from surogate import NeuroGenModel

IDS, LENGTH, BATCH = 16, 6, 32  # ids that rows are made of; ids per row; rows per step
AGAIN = IDS  # the id that asks for the row once more
IGNORED = -100


def rows(random: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Input ids and targets (the id after each input id). Only targets after AGAIN are trained."""
    said = random.integers(0, IDS, (count, LENGTH), dtype=np.int32)
    whole = np.concatenate([said, np.full((count, 1), AGAIN, np.int32), said], axis=1)
    targets = whole[:, 1:].copy()
    targets[:, :LENGTH] = IGNORED
    return whole[:, :-1], targets


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--gpu", type=int, default=-1, help="0: the first GPU; -1: the CPU")
    options.add_argument("--steps", type=int, default=400, help="at most")
    given = options.parse_args()
    random = np.random.default_rng(1)
    with NeuroGenModel(IDS + 1, 64, given.gpu, max_batch=BATCH, max_length=2 * LENGTH + 1) as model:
        recent: list[float] = []
        for step in range(given.steps):
            loss, accuracy = model.train_step(*rows(random, BATCH))
            recent = [*recent[-9:], accuracy]
            if step % 5 == 0:
                print(f"step {step:4d}  loss {loss:.3f}  accuracy {accuracy:.3f}")
            if len(recent) == 10 and np.mean(recent) > 0.99:
                break
        print(f"step {step:4d}  loss {loss:.3f}  accuracy {np.mean(recent):.3f} of the last {len(recent)} steps")
        unseen = rows(np.random.default_rng(2), 20)[0][:, : LENGTH + 1]
        right = sum(np.array_equal(model.generate(row, 2 * LENGTH + 1)[LENGTH + 1 :], row[:LENGTH]) for row in unseen)
        print(f"decoded {right} of {len(unseen)} new rows without a mistake")


if __name__ == "__main__":
    main()
