"""Whole runs: the same as the command."""

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
    """already_finished: the run had been finished by an earlier start. loss, eval_loss: nats per token; NaN: none."""

    already_finished: bool
    steps: int
    loss: float
    eval_loss: float


class Run(Closes):
    """A run with the command's arguments: a run file's path, "key=value" texts, settings by keyword.

    SurogateError (INVALID) lists all problems of the settings at once.
    """

    def __init__(self, *args: str | os.PathLike[str], **settings: Any) -> None:
        self._handle = Handle("Run", lib.sg_run_open, lib.sg_run_close, *_native.arguments(args, settings), forks=True)

    def plan(self, gpu: str | None = None) -> dict[str, Any]:
        """Memory (bytes), work (FLOPs) and time (seconds) of a step on a named GPU, or on this machine's device. Loads no weights."""
        json_text = c_void_p()
        with self._handle.use() as run:
            check(lib.sg_run_plan(run, _native.optional(gpu, "gpu"), byref(json_text)))
        plan: dict[str, Any] = json.loads(_native.take_text(json_text))
        return plan

    def train(self) -> Outcome:
        """Trains to the end, or resumes what an earlier call left; the model is then in output_dir. Progress is printed on stderr.

        Ctrl+C saves a checkpoint after the step and raises KeyboardInterrupt; a second Ctrl+C ends the process at once.
        """
        outcome = _native.Outcome()
        with self._handle.use() as run:
            _native.interruptible(lambda: check(lib.sg_run_train(run, byref(outcome))))
        return Outcome(outcome.already_finished, outcome.steps, outcome.loss, outcome.eval_loss)
