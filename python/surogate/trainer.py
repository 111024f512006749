"""Training step by step."""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from ctypes import POINTER, byref, c_double, c_int32, c_int64, c_size_t, c_void_p
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from surogate import _arrays, _native
from surogate._native import Closes, Handle, check, lib
from surogate.dataset import Dataset
from surogate.errors import SurogateError

PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class Step:
    """The result of an update.

    step: from 1. loss: mean over the trained targets, in nats. norm: of all gradients, before clipping. seconds: of the device. tokens:
    without padding; trained: number of trained targets. is_applied: False if loss or norm wasn't finite; the weights are then unchanged.
    accuracy: share of the trained targets that were the likeliest token before the update; NaN if the model's loss doesn't give it.
    scalars: by name, the numbers that the setting log_scalars asks for, and accuracy.
    """

    step: int
    loss: float
    norm: float
    lr: float
    seconds: float
    tokens: int
    trained: int
    is_applied: bool
    accuracy: float
    scalars: dict[str, float] = field(default_factory=dict)


class LossAndAccuracy(NamedTuple):
    """Loss (nats) and accuracy (0 to 1) of a train step, as in Step."""

    loss: float
    accuracy: float


Callback = Callable[[Step], object]


def _call(callbacks: Sequence[Callback], step: Step) -> None:
    """Calls the callbacks. An exception in a callback is printed, and training continues."""
    for callback in callbacks:
        try:
            callback(step)
        except Exception:
            print(f"surogate: a callback failed at step {step.step}; training goes on", file=sys.stderr)
            traceback.print_exc()


class Trainer(Closes):
    """A run whose steps Python drives, with the same bits as the command on the same batches.

    Several ranks (gpus) are threads of this process; a micro-batch holds the rows of all ranks, rank after rank.

    The arguments are those of Run; settings of data, logging, saving and evaluating have no effect. step() takes up to micro_batches
    micro-batches, and update() makes a train step of them. Arrays are NumPy's, DLPack tensors in the host's memory, or nested lists.
    Opening loads the model and allocates all memory; SurogateError (NO_FIT) says which settings would fit.
    """

    def __init__(self, *args: PathLike, **settings: Any) -> None:
        self._handle = Handle("Trainer", lib.sg_trainer_open, lib.sg_trainer_close, *_native.arguments(args, settings))
        self._shapes: dict[str, tuple[int, tuple[int, ...]]] = {}
        info = self._info()
        self.rows: int = info.rows  #: rows of a micro-batch at most (per_device_train_batch_size of each rank)
        self.cols: int = info.cols  #: tokens per row at most (sequence_len)
        self.micro_batches: int = info.micro_batches  #: per step at most (gradient_accumulation_steps)
        self.vocab_size: int = info.vocab_size
        self.num_parameters: int = info.parameters
        self.num_trained_parameters: int = info.trained_parameters
        self.device_bytes: int = info.device_bytes  #: bytes of each rank
        self.seed: int = info.seed

    @classmethod
    def from_pretrained(cls, model: PathLike, *args: PathLike, **settings: Any) -> Trainer:
        """A trainer that starts from the weights of a model's folder or hub repository."""
        return cls(*args, model=model, from_scratch=False, **settings)

    @classmethod
    def from_scratch(cls, model: PathLike, *args: PathLike, **settings: Any) -> Trainer:
        """A trainer that starts from random weights, with the config.json (and the tokenizer, if any) of a folder or hub repository."""
        return cls(*args, model=model, from_scratch=True, **settings)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], *args: PathLike, **settings: Any) -> Trainer:
        """A trainer that starts from random weights, for a Hugging Face config as a dict.

        There is no tokenizer, unless the setting `tokenizer` names one.
        """
        with tempfile.TemporaryDirectory(prefix="surogate-") as folder:
            Path(folder, "config.json").write_text(json.dumps(config), encoding="utf-8")
            return cls(*args, model=folder, from_scratch=True, **settings)

    def _info(self) -> _native.TrainerInfo:
        info = _native.TrainerInfo()
        with self._handle.use() as trainer:
            check(lib.sg_trainer_get_info(trainer, byref(info)))
        return info

    @property
    def steps(self) -> int:
        """Number of updates so far, including those of the checkpoint that was loaded."""
        return int(self._info().steps)

    def plan(self) -> dict[str, Any]:
        """Memory (bytes), work (FLOPs) and time (seconds) of a step, as Run.plan gives them."""
        text = c_void_p()
        with self._handle.use() as trainer:
            check(lib.sg_trainer_plan(trainer, byref(text)))
        plan: dict[str, Any] = json.loads(_native.take_text(text))
        return plan

    def _input_size(self, name: str) -> int:
        with self._handle.use() as trainer:
            return int(lib.sg_trainer_input_size(trainer, _native.text(name, "an input's name")))

    def _rows(self, input_ids: Any, targets: Any, segments: Any, positions: Any, inputs: Mapping[str, Any] | None) -> _arrays.Rows:
        return _arrays.Rows(input_ids, targets, segments, positions, inputs, self._input_size)

    def step(
        self,
        input_ids: Any,
        targets: Any = None,
        segments: Any = None,
        positions: Any = None,
        inputs: Mapping[str, Any] | None = None,
    ) -> None:
        """Takes a micro-batch of the next update; arrays are (rows, cols), or (cols) for one row.

        targets: the id after each token, -100 where nothing is trained; None: the next id in the row. segments: the document of each token,
        -1 in padding; adjacent tokens with equal numbers see one another; None: a row is one document. Numbers may begin at 0 in each row:
        each document of a step still has its own dropout masks. positions: from 0 in each document; a document ends where they begin again;
        None: counted. Fewer rows or columns than the trainer's are padded. inputs: the model's further inputs by name, integers or floats,
        (rows, cols), or (rows, cols, size) if an input has several numbers per token.
        """
        rows = self._rows(input_ids, targets, segments, positions, inputs)
        with self._handle.use() as trainer:
            check(lib.sg_trainer_step(trainer, byref(rows.batch)))

    def drop(self) -> None:
        """Discards the micro-batches of an unfinished step, unless backward() has made its gradients."""
        with self._handle.use() as trainer:
            check(lib.sg_trainer_drop(trainer))

    def backward(self) -> None:
        """Computes the gradients of the micro-batches taken so far, so that they can be read before the update."""
        with self._handle.use() as trainer:
            check(lib.sg_trainer_backward(trainer))

    def update(self, lr: float | None = None) -> Step:
        """Makes an update from the micro-batches taken so far, and waits for its result.

        Results of earlier updates that weren't fetched are dropped, for example after Ctrl+C. lr None: the run's schedule, which depends on
        max_steps.
        """
        with self._handle.use():
            self.update_later(lr)
            while (step := self.result()).step < self.steps:
                pass
            return step

    def update_later(self, lr: float | None = None) -> None:
        """As update, without waiting. At most two updates may wait for result(); calling it after the next update keeps the device busy."""
        rate = math.nan if lr is None else _native.real(lr, "lr")
        if lr is not None and not math.isfinite(rate):
            raise ValueError(f"lr is {lr}; expected a number from 0 on")
        with self._handle.use() as trainer:
            check(lib.sg_trainer_update(trainer, rate))

    def result(self) -> Step:
        """Waits for the oldest update whose result wasn't fetched, and returns it."""
        step = _native.Step()
        with self._handle.use() as trainer:
            check(lib.sg_trainer_result(trainer, byref(step)))
            scalars = {}
            for index in range(lib.sg_trainer_num_scalars(trainer)):
                scalar = _native.Scalar()
                check(lib.sg_trainer_scalar(trainer, index, byref(scalar)))
                scalars[scalar.name.decode()] = scalar.value
        return Step(
            step.step, step.loss, step.norm, step.lr, step.seconds, step.tokens, step.trained, step.is_applied, step.accuracy, scalars
        )

    def train_step(
        self,
        input_ids: Any,
        target_ids: Any = None,
        lr: float | None = None,
        segments: Any = None,
        positions: Any = None,
        inputs: Mapping[str, Any] | None = None,
    ) -> LossAndAccuracy:
        """step() and update() in one call, for steps of one micro-batch. Returns the batch's loss and accuracy before the update."""
        with self._handle.use():
            self.step(input_ids, target_ids, segments, positions, inputs)
            try:
                step = self.update(lr)
            except BaseException:
                self._clear(0)
                raise
        return LossAndAccuracy(step.loss, step.accuracy)

    def fit(self, dataset: Dataset, callbacks: Sequence[Callback] = (), lr: Callable[[int], float] | None = None) -> Step | None:
        """Trains from the current step to the end of the dataset, as the command does.

        callbacks: called with each Step, one step late. An exception in a callback is printed, and training continues. lr: a function of
        the step, counted from 0; None: the run's schedule. Returns the last Step; None: there was nothing left to do. ValueError: the
        dataset's micro-batches or seed differ from the trainer's; the message has both values.
        """
        if not isinstance(dataset, Dataset):
            raise TypeError(f"dataset is {dataset!r}; expected a Dataset")
        if not isinstance(callbacks, Iterable):
            raise TypeError(f"callbacks is {callbacks!r}; expected a list of functions of a Step")
        callbacks = list(callbacks)
        for callback in callbacks:
            if not callable(callback):
                raise TypeError(f"a callback is {callback!r}; expected a function of a Step")
        self._check_same(dataset)
        last: Step | None = None
        first, waiting = self.steps, 0
        dataset.seek(first)
        try:
            for index in range(first, dataset.steps):
                self._take(dataset, index)
                self.update_later(None if lr is None else lr(index))
                waiting += 1
                if waiting == 2:
                    last, waiting = self.result(), 1
                    _call(callbacks, last)
            if waiting:
                last, waiting = self.result(), 0
                _call(callbacks, last)
        except BaseException:
            self._clear(waiting)
            raise
        return last

    def _check_same(self, dataset: Dataset) -> None:
        """Raises ValueError if settings of dataset and trainer differ: training would silently differ from what one of them asks for."""
        both = {
            "rows of a micro-batch (per_device_train_batch_size of each rank)": (dataset.batch_rows, self.rows),
            "sequence_len": (dataset.cols, self.cols),
            "gradient_accumulation_steps": (dataset.micro_batches, self.micro_batches),
            "seed": (dataset.seed, self.seed),
        }
        differ = [f"{name}: {its}, the trainer's {own}" for name, (its, own) in both.items() if its != own]
        if differ:
            raise ValueError(
                f"the dataset has {'; '.join(differ)}. Open it with the trainer's (memory: auto may have chosen them), "
                "or hand its batches in with step()"
            )

    def _take(self, dataset: Dataset, index: int) -> None:
        """Takes the micro-batches of a step from the library's own arrays, without a copy."""
        for _ in range(dataset.micro_batches):
            with dataset._next() as batch, self._handle.use() as trainer:
                if batch is None:
                    raise ValueError(f"the data ended within step {index + 1}")
                check(lib.sg_trainer_step_data(trainer, byref(batch)))

    def _clear(self, waiting: int) -> None:
        """After an interruption: drops the unfinished step, and the results of the `waiting` queued updates."""
        with suppress(SurogateError, ValueError):
            self.drop()
            for _ in range(waiting):
                self.result()

    def eval(
        self,
        input_ids: Any,
        targets: Any = None,
        segments: Any = None,
        positions: Any = None,
        inputs: Mapping[str, Any] | None = None,
    ) -> float:
        """Mean loss (nats) of the targets; NaN: there is no target. Arrays are as in step(), with any number of rows."""
        rows, loss = self._rows(input_ids, targets, segments, positions, inputs), c_double()
        with self._handle.use() as trainer:
            check(lib.sg_trainer_losses(trainer, byref(rows.batch), None, byref(loss), None))
        return float(loss.value)

    def logprobs(
        self,
        input_ids: Any,
        targets: Any = None,
        segments: Any = None,
        positions: Any = None,
        inputs: Mapping[str, Any] | None = None,
    ) -> NDArray[np.float32]:
        """(rows, cols) values: ln p of each target, 0 where the target is -100; arrays are as in eval()."""
        rows = self._rows(input_ids, targets, segments, positions, inputs)
        losses = np.zeros(rows.ids.shape, np.float32)
        with self._handle.use() as trainer:
            check(lib.sg_trainer_losses(trainer, byref(rows.batch), _arrays.floats(losses), None, byref(c_int64())))
        return np.subtract(0, losses, out=losses)

    def logits(
        self,
        input_ids: Any,
        segments: Any = None,
        positions: Any = None,
        inputs: Mapping[str, Any] | None = None,
    ) -> NDArray[np.float32]:
        """(rows, cols, vocab_size) logits with the current weights, 0 in padding; arrays are as in eval().

        Needs the setting whole_logits=True. These are the inputs of the loss's softmax: capped or scaled if the model does so. Logits of a
        bf16 model are rounded to bf16. inputs: only those that the logits depend on are needed.
        """
        rows = self._rows(input_ids, None, segments, positions, inputs)
        logits = np.empty((*rows.ids.shape, self.vocab_size), np.float32)
        with self._handle.use() as trainer:
            check(lib.sg_trainer_logits(trainer, byref(rows.batch), _arrays.floats(logits), logits.size))
        return logits

    def generate(
        self, ids: Any, max_tokens: int = 128, temperature: float = 0.0, top_k: int = 0, top_p: float = 1.0, seed: int = 0
    ) -> NDArray[np.int32]:
        """At most max_tokens ids that continue (count) ids, as Model.generate does. Needs the setting generate_samples=1."""
        array, out, count = _arrays.ids(ids, "ids"), POINTER(c_int32)(), c_size_t()
        chosen, most = _arrays.sampling(temperature, top_k, top_p, seed), _native.whole(max_tokens, "max_tokens")
        with self._handle.use() as trainer:
            check(lib.sg_trainer_generate(trainer, _arrays.pointer(array), array.size, most, byref(chosen), byref(out), byref(count)))
        return _native.take_ids(out, count.value)

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the trained tensors, as in Hugging Face's files (for an adapter, PEFT's)."""
        return {name: shape for name, (_, shape) in self._tensors().items()}

    def _tensors(self) -> dict[str, tuple[int, tuple[int, ...]]]:
        with self._handle.use() as trainer:
            if not self._shapes:
                for index in range(max(1, lib.sg_trainer_num_tensors(trainer))):  # 0: a failure, whose error the call for tensor 0 gives
                    tensor = _native.Tensor()
                    check(lib.sg_trainer_tensor(trainer, index, byref(tensor)))
                    self._shapes[tensor.name.decode()] = (index, tuple(tensor.dim[: tensor.ndim]))
            return self._shapes

    def _read(self, name: str, function: Callable[..., int]) -> NDArray[np.float32]:
        tensors = self._tensors()
        if name not in tensors:
            raise KeyError(f"{name!r} isn't trained; parameters() lists what is")
        index, shape = tensors[name]
        values = np.empty(shape, np.float32)
        with self._handle.use() as trainer:
            check(function(trainer, index, _arrays.floats(values), values.size))
        return values

    def weights(self, name: str) -> NDArray[np.float32]:
        """A copy of a parameter, in the shape that parameters() gives. KeyError: it isn't trained."""
        return self._read(name, lib.sg_trainer_weight)

    def gradients(self, name: str) -> NDArray[np.float32]:
        """A copy of a parameter's gradient in the last backward() or update(): of the mean loss, before clipping."""
        return self._read(name, lib.sg_trainer_gradient)

    def save_checkpoint(self, folder: PathLike | None = None) -> None:
        """Writes folder/checkpoint-STEP (None: output_dir), whole or not at all; resume_from_checkpoint: true resumes from it."""
        with self._handle.use() as trainer:
            check(lib.sg_trainer_save(trainer, _native.optional(folder, "folder")))

    def load_checkpoint(self, path: PathLike) -> None:
        """Loads weights, optimizer and step count of a checkpoint. SurogateError (CHECKPOINT): it is damaged."""
        with self._handle.use() as trainer:
            check(lib.sg_trainer_load(trainer, _native.text(path, "path")))

    def export_model(self, folder: PathLike) -> None:
        """Writes a folder in Hugging Face's format; with lora, the adapters are merged in."""
        with self._handle.use() as trainer:
            check(lib.sg_trainer_export_model(trainer, _native.text(folder, "folder")))

    def export_adapter(self, folder: PathLike) -> None:
        """Writes the adapter in PEFT's format. SurogateError (INVALID): no adapter is trained."""
        with self._handle.use() as trainer:
            check(lib.sg_trainer_export_adapter(trainer, _native.text(folder, "folder")))
