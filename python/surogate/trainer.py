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
    """What an update did.

    step: from 1. loss: the mean of the trained targets, nats. norm: of all gradients, before clipping. seconds: that the device took.
    tokens: without padding; trained: targets of them. is_applied: False where loss or norm wasn't finite; weights are then as before.
    accuracy: the share of the trained targets that were the likeliest token, before the update; NaN where the model's loss has no such.
    scalars: by name, what the setting log_scalars asks for, and accuracy.
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
    """Of a train step: loss (nats) and accuracy (0 to 1), as Step has them."""

    loss: float
    accuracy: float


Callback = Callable[[Step], object]


def _call(callbacks: Sequence[Callback], step: Step) -> None:
    """A callback that fails is reported, and training goes on."""
    for callback in callbacks:
        try:
            callback(step)
        except Exception:
            print(f"surogate: a callback failed at step {step.step}; training goes on", file=sys.stderr)
            traceback.print_exc()


class Trainer(Closes):
    """A run whose steps are driven from Python, with the bits of the command on the same batches.

    Several ranks (gpus) are threads of this process; a micro-batch has the rows of all of them, rank after rank.

    Arguments are those of Run; what they say of data, logging, saving and evaluating has no effect. Micro-batches are handed in with
    step(), at most micro_batches of them, and update() makes a train step of them. Arrays are NumPy's, DLPack tensors in the host's
    memory, or nested lists.
    Opening loads the model and allocates all memory; SurogateError (NO_FIT) says which settings would fit.
    """

    def __init__(self, *args: PathLike, **settings: Any) -> None:
        self._handle = Handle("Trainer", lib.sg_trainer_open, lib.sg_trainer_close, *_native.arguments(args, settings))
        self._shapes: dict[str, tuple[int, tuple[int, ...]]] = {}
        info = self._info()
        self.rows: int = info.rows  #: of a micro-batch, at most (per_device_train_batch_size of each rank)
        self.cols: int = info.cols  #: tokens of a row, at most (sequence_len)
        self.micro_batches: int = info.micro_batches  #: of a step, at most (gradient_accumulation_steps)
        self.vocab_size: int = info.vocab_size
        self.num_parameters: int = info.parameters
        self.num_trained_parameters: int = info.trained_parameters
        self.device_bytes: int = info.device_bytes  #: of each rank
        self.seed: int = info.seed

    @classmethod
    def from_pretrained(cls, model: PathLike, *args: PathLike, **settings: Any) -> Trainer:
        """From the weights of a model's folder or hub repository."""
        return cls(*args, model=model, from_scratch=False, **settings)

    @classmethod
    def from_scratch(cls, model: PathLike, *args: PathLike, **settings: Any) -> Trainer:
        """From random weights, for the config.json (and the tokenizer, if there is one) of a folder or hub repository."""
        return cls(*args, model=model, from_scratch=True, **settings)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], *args: PathLike, **settings: Any) -> Trainer:
        """From random weights, for a Hugging Face config as a dict. There is no tokenizer, unless the setting `tokenizer` names one."""
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
        """Updates so far, with those of the checkpoint that it went on from."""
        return int(self._info().steps)

    def plan(self) -> dict[str, Any]:
        """Memory (bytes), work (FLOPs) and time (seconds) of a step, as Run.plan tells."""
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
        """Takes a micro-batch of the next update; all arrays (rows, cols), or (cols) for one row.

        targets: the id that comes after each token, -100 where nothing is trained; None: the next one of the row. segments: which document
        a token is of, -1 in padding; equal neighbours see one another. None: a row is one document. Numbers may begin at 0 in each row:
        each document of a step has dropout masks of its own. positions: from 0 in each document, which ends where they begin again; None:
        counted. Fewer rows or columns than the trainer's are padded. inputs: what the model reads besides, by name, integers or floats;
        (rows, cols, size) of an input that has several numbers a token.
        """
        rows = self._rows(input_ids, targets, segments, positions, inputs)
        with self._handle.use() as trainer:
            check(lib.sg_trainer_step(trainer, byref(rows.batch)))

    def drop(self) -> None:
        """Forgets the micro-batches of an unfinished step, unless its gradients are made."""
        with self._handle.use() as trainer:
            check(lib.sg_trainer_drop(trainer))

    def backward(self) -> None:
        """Makes the gradients of what was handed in, so that they can be looked at before the update."""
        with self._handle.use() as trainer:
            check(lib.sg_trainer_backward(trainer))

    def update(self, lr: float | None = None) -> Step:
        """Updates with what was handed in, and awaits its result; older ones that wait are passed over, as after a Ctrl+C.

        lr None: the run's schedule, which max_steps decides.
        """
        with self._handle.use():
            self.update_later(lr)
            while (step := self.result()).step < self.steps:
                pass
            return step

    def update_later(self, lr: float | None = None) -> None:
        """The same without waiting; two at most wait for result(), which keeps the device busy when called behind the next update."""
        rate = math.nan if lr is None else _native.real(lr, "lr")
        if lr is not None and not math.isfinite(rate):
            raise ValueError(f"lr is {lr}; expected a number from 0 on")
        with self._handle.use() as trainer:
            check(lib.sg_trainer_update(trainer, rate))

    def result(self) -> Step:
        """Awaits the oldest update of which no result was asked for."""
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
        """step() and update() in one, for steps of one micro-batch: (loss, accuracy) of the batch before the update."""
        with self._handle.use():
            self.step(input_ids, target_ids, segments, positions, inputs)
            try:
                step = self.update(lr)
            except BaseException:
                self._clear(0)
                raise
        return LossAndAccuracy(step.loss, step.accuracy)

    def fit(self, dataset: Dataset, callbacks: Sequence[Callback] = (), lr: Callable[[int], float] | None = None) -> Step | None:
        """Trains from the present step to the end of the dataset, as the command does; callbacks get each Step, one step late.

        A dataset whose micro-batches or seed aren't the trainer's is a ValueError that has both values.
        lr: of the step, counted from 0; None: the run's schedule. Returns the last Step; None: nothing was left to do. An exception in a
        callback is printed, and training goes on.
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
        """Others would train in silence as neither of the two was asked to."""
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
        """The micro-batches of a step, read where the library has them."""
        for _ in range(dataset.micro_batches):
            with dataset._next() as batch, self._handle.use() as trainer:
                if batch is None:
                    raise ValueError(f"the data ended within step {index + 1}")
                check(lib.sg_trainer_step_data(trainer, byref(batch)))

    def _clear(self, waiting: int) -> None:
        """After an interruption: the trainer stands between two steps."""
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
        """The mean loss (nats) of the targets; arrays as step() takes them, of any number of rows. NaN: there is no target."""
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
        """(rows, cols) ln p of each target, 0 where it is -100; arrays as eval() takes them."""
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
        """(rows, cols, vocab_size) of the present weights, 0 in padding; arrays as eval() takes them. Needs the setting whole_logits=True.

        They are what the loss takes the softmax of: capped or scaled where the model's are. Those of a bf16 model are rounded to bf16.
        inputs: those that the logits follow from are enough.
        """
        rows = self._rows(input_ids, None, segments, positions, inputs)
        logits = np.empty((*rows.ids.shape, self.vocab_size), np.float32)
        with self._handle.use() as trainer:
            check(lib.sg_trainer_logits(trainer, byref(rows.batch), _arrays.floats(logits), logits.size))
        return logits

    def generate(
        self, ids: Any, max_tokens: int = 128, temperature: float = 0.0, top_k: int = 0, top_p: float = 1.0, seed: int = 0
    ) -> NDArray[np.int32]:
        """(at most max_tokens) ids that go on from (count) ids, as Model.generate does. Needs the setting generate_samples=1."""
        array, out, count = _arrays.ids(ids, "ids"), POINTER(c_int32)(), c_size_t()
        chosen, most = _arrays.sampling(temperature, top_k, top_p, seed), _native.whole(max_tokens, "max_tokens")
        with self._handle.use() as trainer:
            check(lib.sg_trainer_generate(trainer, _arrays.pointer(array), array.size, most, byref(chosen), byref(out), byref(count)))
        return _native.take_ids(out, count.value)

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of what is trained, as Hugging Face's (or, of an adapter, PEFT's) files have them."""
        return {name: shape for name, (_, shape) in self._tensors().items()}

    def _tensors(self) -> dict[str, tuple[int, tuple[int, ...]]]:
        with self._handle.use() as trainer:
            if not self._shapes:
                for index in range(max(1, lib.sg_trainer_num_tensors(trainer))):  # 0 is a failure, which the first one's tells
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
        """A copy of a parameter, of the shape that parameters() says. KeyError if it isn't trained."""
        return self._read(name, lib.sg_trainer_weight)

    def gradients(self, name: str) -> NDArray[np.float32]:
        """A copy of a parameter's gradient in the last backward() or update(): of the mean loss, before clipping."""
        return self._read(name, lib.sg_trainer_gradient)

    def save_checkpoint(self, folder: PathLike | None = None) -> None:
        """folder/checkpoint-STEP (None: output_dir), whole or not at all; the command goes on from it with resume_from_checkpoint: true."""
        with self._handle.use() as trainer:
            check(lib.sg_trainer_save(trainer, _native.optional(folder, "folder")))

    def load_checkpoint(self, path: PathLike) -> None:
        """Weights, optimizer and step count of a checkpoint, in place of the present ones. SurogateError (CHECKPOINT): it is damaged."""
        with self._handle.use() as trainer:
            check(lib.sg_trainer_load(trainer, _native.text(path, "path")))

    def export_model(self, folder: PathLike) -> None:
        """A folder as Hugging Face reads it; with lora, its adapters merged in."""
        with self._handle.use() as trainer:
            check(lib.sg_trainer_export_model(trainer, _native.text(folder, "folder")))

    def export_adapter(self, folder: PathLike) -> None:
        """The adapter as PEFT reads it. SurogateError (INVALID) if none is trained."""
        with self._handle.use() as trainer:
            check(lib.sg_trainer_export_adapter(trainer, _native.text(folder, "folder")))
