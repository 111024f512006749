"""Whole runs: what the command does."""

from __future__ import annotations

import json
import os
from ctypes import byref, c_void_p
from dataclasses import dataclass
from typing import Any

from surogate import _native
from surogate._native import Closes, Handle, check, lib


@dataclass(frozen=True)
class Outcome:
    """already_finished: an earlier start had finished this run; losses in nats a token, NaN: none."""

    already_finished: bool
    steps: int
    loss: float
    eval_loss: float


class Run(Closes):
    """A run as the command line takes it: a run file's path, "key=value" texts, settings by keyword.

    SurogateError (INVALID) has all problems of the settings at once.
    """

    def __init__(self, *args: str | os.PathLike[str], **settings: Any) -> None:
        self._handle = Handle("Run", lib.sg_run_open, lib.sg_run_close, *_native.arguments(args, settings), forks=True)

    def plan(self, gpu: str | None = None) -> dict[str, Any]:
        """Memory (bytes), work (FLOPs) and time (seconds) of a step, for a named GPU or this machine's device. Loads nothing."""
        json_text = c_void_p()
        with self._handle.use() as run:
            check(lib.sg_run_plan(run, _native.optional(gpu, "gpu"), byref(json_text)))
        plan: dict[str, Any] = json.loads(_native.take_text(json_text))
        return plan

    def train(self) -> Outcome:
        """Trains to the end, or goes on with what an earlier call left; the model is in output_dir then. Progress is shown on stderr.

        Ctrl+C saves a checkpoint after the step and raises KeyboardInterrupt; a second one ends the process at once.
        """
        outcome = _native.Outcome()
        with self._handle.use() as run:
            _native.interruptible(lambda: check(lib.sg_run_train(run, byref(outcome))))
        return Outcome(outcome.already_finished, outcome.steps, outcome.loss, outcome.eval_loss)
