"""Writes tests/cli/port_cadence.tsv: the steps at which transformers' Trainer evaluates and saves, for each way to set them.

A run has 40 steps, 10 an epoch, set by max_steps or by num_train_epochs. A row has the keys, as YAML in one line; the steps before the last
one that evaluate; the steps before the last one that save a checkpoint, or "best".
Usage: python tests/oracle/make_cadence.py > tests/cli/port_cadence.tsv
"""
import itertools
import warnings

from transformers import TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import DefaultFlowCallback

STEPS, PER_EPOCH = 40, 10
LENGTHS = [{"max_steps": STEPS}, {"num_train_epochs": STEPS // PER_EPOCH}]
EVALS = {
    "eval_strategy": [None, "no", "steps", "epoch"],
    "eval_steps": [None, 0, 4, 7, 0.125],
    "logging_steps": [None, 5, 0.25],
}
SAVES = {"eval_strategy": ["epoch"], "save_strategy": [None, "no", "steps", "epoch", "best"], "save_steps": [None, 0, 6, 0.25]}


def events(keys):
    """The steps with an evaluation and those with a checkpoint, before the last step."""
    args = TrainingArguments(output_dir="/tmp", report_to=[], use_cpu=True, metric_for_best_model="loss", **keys)
    state = TrainerState(max_steps=STEPS)
    state.compute_steps(args, STEPS)
    flow, evals, saves = DefaultFlowCallback(), [], []
    for step in range(1, STEPS):
        state.global_step, state.epoch = step, step / PER_EPOCH
        control = flow.on_step_end(args, state, TrainerControl())
        if step % PER_EPOCH == 0:
            control = flow.on_epoch_end(args, state, control)
        evals += [step] if control.should_evaluate else []
        saves += [step] if control.should_save else []
    return evals, ["best"] if keys.get("save_strategy") == "best" else saves


def main():
    warnings.simplefilter("ignore")
    for kind, length in itertools.product([EVALS, SAVES], LENGTHS):
        for values in itertools.product(*kind.values()):
            keys = {name: value for name, value in zip(kind, values) if value is not None}
            evals, saves = events(keys | length)
            text = ", ".join(f'{name}: "{value}"' if value == "no" else f"{name}: {value}" for name, value in (keys | length).items())
            print(text, *(" ".join(map(str, steps)) or "-" for steps in (evals, saves)), sep="\t")


main()
