"""The micro-batches of a run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import byref
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from surogate import _native
from surogate._native import Closes, Handle, check, lib


@dataclass(frozen=True)
class Batch:
    """A micro-batch: arrays (rows, cols) int32.

    targets: the id after each token, -100 where it isn't trained. segments: the document of a token, -1 in padding. positions: from 0 in
    each document. inputs: the model's further inputs that the data sets provide, by name, in the form that Trainer.step accepts.
    """

    input_ids: NDArray[np.int32]
    targets: NDArray[np.int32]
    segments: NDArray[np.int32]
    positions: NDArray[np.int32]
    inputs: dict[str, NDArray[Any]] = field(default_factory=dict)


class Dataset(Closes):
    """The micro-batches that a run with these settings trains on (part "train") or is evaluated on ("validation"), in its order.

    The arguments are those of Run. Data that isn't tokenized yet is tokenized; Ctrl+C stops tokenizing after the current piece, and the
    next call continues there. An iteration continues at the current position, up to the end of the last step. len() is the number of
    micro-batches from the first step on.
    """

    def __init__(self, *args: str | os.PathLike[str], part: Literal["train", "validation"] = "train", **settings: Any) -> None:
        parts = ("train", "validation")
        if part not in parts:
            raise ValueError(f"part {part!r}; expected one of {parts}")
        array, count = _native.arguments(args, settings)
        self._handle = _native.interruptible(
            lambda: Handle("Dataset", lib.sg_dataset_open, lib.sg_dataset_close, array, count, parts.index(part))
        )
        info = _native.DatasetInfo()
        with self._handle.use() as dataset:
            check(lib.sg_dataset_get_info(dataset, byref(info)))
        self.steps: int = info.steps  #: set by max_steps or num_epochs
        self.micro_batches: int = info.micro_batches  #: number of micro-batches per step
        self.documents: int = info.documents  #: per epoch, like the numbers below
        self.rows: int = info.rows
        self.tokens: int = info.tokens
        self.trained_tokens: int = info.trained
        self.batch_rows: int = info.batch_rows  #: rows of a micro-batch
        self.cols: int = info.cols  #: tokens per row
        self.seed: int = info.seed

    def __len__(self) -> int:
        return self.steps * self.micro_batches

    def seek(self, step: int) -> None:
        """Makes the first micro-batch of `step` the next one; step is 0 to `steps`."""
        with self._handle.use() as dataset:
            check(lib.sg_dataset_seek(dataset, _native.whole(step, "step")))

    @contextmanager
    def _next(self) -> Iterator[_native.Batch | None]:
        """The library's own arrays, valid inside the `with`; None: the end."""
        batch = _native.Batch()
        with self._handle.use() as dataset:
            check(lib.sg_dataset_next(dataset, byref(batch)))
            yield batch if batch.rows else None

    def _own(self, given: _native.Input, shape: tuple[int, int]) -> NDArray[Any]:
        with self._handle.use() as dataset:
            size = lib.sg_dataset_input_size(dataset, given.name)
        array = given.ids or given.values
        return np.ctypeslib.as_array(array, (*shape, size) if size > 1 else shape).copy()

    def __iter__(self) -> Iterator[Batch]:
        while True:
            with self._next() as batch:
                if batch is None:
                    return
                shape = (batch.rows, batch.cols)
                own = {given.name.decode(): self._own(given, shape) for given in batch.inputs[: batch.num_inputs]}
                ids, targets, segments, positions = (
                    np.ctypeslib.as_array(array, shape).copy() for array in (batch.ids, batch.targets, batch.segments, batch.positions)
                )
            yield Batch(ids, targets, segments, positions, own)
