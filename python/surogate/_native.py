"""The functions of surogate.h through ctypes, which releases the GIL during calls."""

from __future__ import annotations

import ctypes
import operator
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from ctypes import (
    POINTER,
    Structure,
    byref,
    c_bool,
    c_char_p,
    c_double,
    c_float,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint8,
    c_uint64,
    c_void_p,
)
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from surogate import _settings
from surogate.errors import Status, SurogateError

Result = TypeVar("Result")
Owner = TypeVar("Owner", bound="Closes")


class Input(Structure):
    _fields_ = [("name", c_char_p), ("ids", POINTER(c_int32)), ("values", POINTER(c_float))]


class Batch(Structure):
    _fields_ = [
        ("rows", c_int64),
        ("cols", c_int64),
        ("ids", POINTER(c_int32)),
        ("targets", POINTER(c_int32)),
        ("segments", POINTER(c_int32)),
        ("positions", POINTER(c_int32)),
        ("inputs", POINTER(Input)),
        ("num_inputs", c_size_t),
    ]


class Step(Structure):
    _fields_ = [
        ("step", c_int64),
        ("loss", c_double),
        ("norm", c_double),
        ("lr", c_double),
        ("seconds", c_double),
        ("tokens", c_int64),
        ("trained", c_int64),
        ("is_applied", c_bool),
        ("accuracy", c_double),
    ]


class Scalar(Structure):
    _fields_ = [("name", c_char_p), ("value", c_double)]


class TrainerInfo(Structure):
    _fields_ = [
        (name, c_int64)
        for name in ("rows", "cols", "micro_batches", "vocab_size", "steps", "parameters", "trained_parameters", "device_bytes", "seed")
    ]


class Tensor(Structure):
    _fields_ = [("name", c_char_p), ("ndim", c_int), ("dim", c_int64 * 4), ("numel", c_int64)]


class Sampling(Structure):
    _fields_ = [("temperature", c_double), ("top_k", c_int64), ("top_p", c_double), ("seed", c_uint64)]


class Generation(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("sampling", Sampling),
        ("min_p", c_double),
        ("repetition_penalty", c_double),
        ("presence_penalty", c_double),
        ("frequency_penalty", c_double),
        ("bias_ids", POINTER(c_int32)),
        ("biases", POINTER(c_float)),
        ("num_biases", c_size_t),
        ("stops", POINTER(c_char_p)),
        ("num_stops", c_size_t),
        ("max_tokens", c_int64),
        ("n", c_int64),
        ("rows", c_int64),
        ("top_logprobs", c_int32),
        ("logprobs", c_bool),
        ("ignore_eos", c_bool),
        ("skip_bad", c_bool),
        ("adapter_names", POINTER(c_char_p)),
        ("adapter_dirs", POINTER(c_char_p)),
        ("num_adapters", c_size_t),
    ]


class ModelOptions(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("adapter", c_char_p),
        ("device", c_char_p),
        ("threads", c_int),
        ("dtype", c_char_p),
        ("quantization", c_char_p),
        ("kv", c_char_p),
        ("split_k", c_bool),
    ]


class Outcome(Structure):
    _fields_ = [("already_finished", c_bool), ("steps", c_int64), ("loss", c_double), ("eval_loss", c_double)]


class DatasetInfo(Structure):
    _fields_ = [
        (name, c_int64) for name in ("steps", "micro_batches", "documents", "rows", "tokens", "trained", "batch_rows", "cols", "seed")
    ]


class TokenizerInfo(Structure):
    _fields_ = [(name, c_int32) for name in ("vocab_size", "bos", "eos", "pad")]


class Matrix(Structure):
    _fields_ = [("data", c_void_p), ("dtype", c_int), ("by_columns", c_bool), ("on_device", c_bool), ("scale", POINTER(c_float))]


class HeadOptions(Structure):
    _fields_ = [
        ("vocab", c_int64),
        ("dim", c_int64),
        ("max_rows", c_int64),
        ("dtype", c_int),
        ("device", c_char_p),
        ("gpu", c_int),
        ("threads", c_int),
        ("strategy", c_int),
        ("temperature", c_double),
        ("top_k", c_int64),
        ("top_p", c_double),
        ("seed", c_uint64),
        ("bias", POINTER(c_float)),
    ]


class HeadInfo(Structure):
    _fields_ = [
        ("device_bytes", c_int64),
        ("device", c_char_p),
        ("stream", c_void_p),
        ("batches", c_int64),
        ("waiting", c_int64),
    ]


_ARGS = [POINTER(c_char_p), c_size_t]
_OUT = POINTER(c_void_p)  # a handle, or memory for sg_free
_IDS_OUT = [POINTER(POINTER(c_int32)), POINTER(c_size_t)]
_IDS = [POINTER(c_int32), c_size_t]

# Argument types of functions that return a status.
PROTOTYPES: dict[str, list[Any]] = {
    "sg_run_open": [*_ARGS, _OUT],
    "sg_run_plan": [c_void_p, c_char_p, _OUT],
    "sg_run_train": [c_void_p, POINTER(Outcome)],
    "sg_trainer_open": [*_ARGS, _OUT],
    "sg_trainer_get_info": [c_void_p, POINTER(TrainerInfo)],
    "sg_trainer_plan": [c_void_p, _OUT],
    "sg_trainer_step": [c_void_p, POINTER(Batch)],
    "sg_trainer_step_data": [c_void_p, POINTER(Batch)],
    "sg_trainer_drop": [c_void_p],
    "sg_trainer_backward": [c_void_p],
    "sg_trainer_update": [c_void_p, c_double],
    "sg_trainer_result": [c_void_p, POINTER(Step)],
    "sg_trainer_scalar": [c_void_p, c_size_t, POINTER(Scalar)],
    "sg_trainer_losses": [c_void_p, POINTER(Batch), POINTER(c_float), POINTER(c_double), POINTER(c_int64)],
    "sg_trainer_logits": [c_void_p, POINTER(Batch), POINTER(c_float), c_size_t],
    "sg_trainer_generate": [c_void_p, *_IDS, c_int64, POINTER(Sampling), *_IDS_OUT],
    "sg_trainer_tensor": [c_void_p, c_size_t, POINTER(Tensor)],
    "sg_trainer_weight": [c_void_p, c_size_t, POINTER(c_float), c_size_t],
    "sg_trainer_gradient": [c_void_p, c_size_t, POINTER(c_float), c_size_t],
    "sg_trainer_save": [c_void_p, c_char_p],
    "sg_trainer_load": [c_void_p, c_char_p],
    "sg_trainer_export_model": [c_void_p, c_char_p],
    "sg_trainer_export_adapter": [c_void_p, c_char_p],
    "sg_dataset_open": [*_ARGS, c_int, _OUT],
    "sg_dataset_get_info": [c_void_p, POINTER(DatasetInfo)],
    "sg_dataset_seek": [c_void_p, c_int64],
    "sg_dataset_next": [c_void_p, POINTER(Batch)],
    "sg_tokenizer_open": [c_char_p, _OUT],
    "sg_tokenizer_get_info": [c_void_p, POINTER(TokenizerInfo)],
    "sg_tokenizer_encode": [c_void_p, c_char_p, c_size_t, c_bool, *_IDS_OUT],
    "sg_tokenizer_decode": [c_void_p, *_IDS, c_bool, _OUT, POINTER(c_size_t)],
    "sg_chat_template_open": [c_char_p, c_char_p, _OUT],
    "sg_chat_template_render": [c_void_p, c_char_p, c_bool, _OUT],
    "sg_chat_template_render_text": [c_void_p, c_char_p, c_bool, _OUT, POINTER(c_size_t)],
    "sg_chat_template_encode": [
        c_void_p,
        c_void_p,
        c_char_p,
        c_int,
        POINTER(POINTER(c_int32)),
        POINTER(POINTER(c_uint8)),
        POINTER(c_size_t),
    ],
    "sg_model_open": [c_char_p, c_char_p, c_char_p, c_int, _OUT],
    "sg_model_open_as": [c_char_p, POINTER(ModelOptions), _OUT],
    "sg_model_encode": [c_void_p, c_char_p, c_size_t, *_IDS_OUT],
    "sg_model_decode": [c_void_p, *_IDS, _OUT],
    "sg_model_decode_text": [c_void_p, *_IDS, _OUT, POINTER(c_size_t)],
    "sg_model_losses": [c_void_p, *_IDS, POINTER(c_float)],
    "sg_model_score": [c_void_p, c_char_p, c_size_t, POINTER(c_void_p), POINTER(c_size_t)],
    "sg_model_generate_rows": [c_void_p, c_char_p, c_size_t, POINTER(Generation), _OUT, POINTER(c_size_t)],
    "sg_model_generate": [c_void_p, *_IDS, c_int64, POINTER(Sampling), *_IDS_OUT],
    "sg_head_decoder_open": [POINTER(HeadOptions), POINTER(Matrix), _OUT],
    "sg_head_decoder_get_info": [c_void_p, POINTER(HeadInfo)],
    "sg_head_decoder_decode_later": [c_void_p, c_void_p, c_int, c_bool, c_int64],
    "sg_head_decoder_result": [c_void_p, POINTER(c_int32), c_int64],
}

# (result type, argument types) of the other functions.
OTHERS: dict[str, tuple[Any, list[Any]]] = {
    "sg_trainer_input_size": (c_int64, [c_void_p, c_char_p]),
    "sg_dataset_input_size": (c_int64, [c_void_p, c_char_p]),
    "sg_version": (c_char_p, []),
    "sg_message": (c_char_p, []),
    "sg_exit_code": (c_int, [c_int]),
    "sg_free": (None, [c_void_p]),
    "sg_interrupt": (None, []),
    "sg_run_close": (None, [c_void_p]),
    "sg_trainer_close": (None, [c_void_p]),
    "sg_trainer_num_tensors": (c_size_t, [c_void_p]),
    "sg_trainer_num_scalars": (c_size_t, [c_void_p]),
    "sg_dataset_close": (None, [c_void_p]),
    "sg_tokenizer_close": (None, [c_void_p]),
    "sg_chat_template_close": (None, [c_void_p]),
    "sg_model_close": (None, [c_void_p]),
    "sg_head_decoder_close": (None, [c_void_p]),
}


def _places() -> Iterator[str]:
    """Where the library may be: as SUROGATE_LIBRARY says, in the wheel, in the build folder of a source tree, on the system's path."""
    here = Path(__file__).resolve().parent
    if told := os.environ.get("SUROGATE_LIBRARY"):
        yield told
        return
    yield str(here / "lib" / "libsurogate.so")
    yield str(here.parents[1] / "build" / "libsurogate.so")
    yield "libsurogate.so.1"
    yield "libsurogate.so"


def _open() -> ctypes.CDLL:
    problem = ""
    for place in _places():
        if "/" in place and not Path(place).exists():
            problem = problem or f"{place} isn't there"
            continue
        try:
            return ctypes.CDLL(place)
        except OSError as error:
            problem = str(error)
    raise ImportError(
        f"libsurogate.so can't be opened: {problem}. Run make build in the source tree, install the wheel, "
        "or set SUROGATE_LIBRARY to its path"
    )


def _load() -> ctypes.CDLL:
    library = _open()
    for name, arguments in PROTOTYPES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = c_int, arguments
    for name, (result, arguments) in OTHERS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


lib = _load()


def version() -> str:
    return str(lib.sg_version().decode())


def check(status: int) -> None:
    """Raises an exception with the error of this thread's last call, unless status is 0."""
    if status:
        raise SurogateError(Status(status), lib.sg_message().decode(errors="replace"))


def arguments(args: tuple[str | os.PathLike[str], ...], settings: Mapping[str, Any]) -> tuple[Any, int]:
    """Run files, "key=value" texts and keyword settings as arguments of the library."""
    texts = _settings.texts(args, settings)
    array = (c_char_p * max(len(texts), 1))(*[text.encode() for text in texts])
    return array, len(texts)


def text(value: str | os.PathLike[str], name: str) -> bytes:
    """A text or path for the library. TypeError: anything else; ValueError: an empty text, or one with a NUL."""
    return _settings.text(value, name).encode()


def optional(value: str | os.PathLike[str] | None, name: str) -> bytes | None:
    """As text(), but None gives NULL."""
    return None if value is None else text(value, name)


def utf8(value: str, name: str) -> bytes:
    """Any str for the library, even with NULs."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is {type(value).__name__}; expected str")
    return value.encode()


def whole(value: Any, name: str, low: int = -(2**63), high: int = 2**63 - 1) -> int:
    """An integer that the library's type can hold. TypeError, ValueError otherwise."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}; expected a whole number") from None
    if not low <= number <= high:
        raise ValueError(f"{name} is {number}; expected {low} to {high}")
    return number


def real(value: Any, name: str) -> float:
    """A number as float. TypeError otherwise."""
    if not hasattr(value, "__float__") and not hasattr(value, "__index__"):
        raise TypeError(f"{name} is {value!r}; expected a number")
    return float(value)


def factor(value: Any, name: str) -> float:
    """As real. ValueError for 0, which the library's structures read as 1: no limit, no penalty."""
    number = real(value, name)
    if number == 0:
        raise ValueError(f"{name} is 0; expected a number above 0; 1 changes nothing")
    return number


def take_text(memory: c_void_p, length: int | None = None) -> str:
    """Copies and frees the text that a call returned."""
    try:
        data = ctypes.string_at(memory.value or 0) if length is None else ctypes.string_at(memory.value or 0, length)
    finally:
        lib.sg_free(memory)
    return data.decode(errors="replace")


def take_ids(ids: Any, count: int) -> NDArray[np.int32]:
    """Copies and frees the (count) ids that a call returned."""
    try:
        return np.ctypeslib.as_array(ids, (count,)).copy() if count else np.empty(0, np.int32)
    finally:
        lib.sg_free(ctypes.cast(ids, c_void_p))


def interruptible(call: Callable[[], Result], then: str = ", then saving") -> Result:
    """Runs a call that sg_interrupt can end. Ctrl+C asks it to end and is then raised; a second Ctrl+C ends the process.

    In another thread than the main thread Ctrl+C raises nothing, and the call runs normally. then: the message's words for what follows
    the step.
    """
    if threading.current_thread() is not threading.main_thread():
        return call()
    results: list[Result] = []
    failures: list[BaseException] = []
    done = threading.Event()

    def work() -> None:
        try:
            results.append(call())
        except BaseException as error:
            failures.append(error)
        finally:
            done.set()

    try:
        threading.Thread(target=work, daemon=True).start()
        done.wait()
    except KeyboardInterrupt:
        print(f"\nfinishing this step{then}; once more to stop at once", file=sys.stderr)
        try:
            while not done.wait(0.1):
                lib.sg_interrupt()
        except KeyboardInterrupt:
            os._exit(128 + signal.SIGINT)
        raise KeyboardInterrupt(*map(str, failures)) from None
    if failures:
        raise failures[0]
    return results[0]


class Handle:
    """An open object of the library. Calls of several threads take turns. After close() they raise ValueError.

    The object is closed when it is garbage-collected. After a fork the child has the object's memory, but not its threads and device.
    Calls there raise RuntimeError, unless the object needs neither threads nor a device (`forks`).
    """

    def __init__(
        self, what: str, open_it: Callable[..., int], close_it: Callable[[c_void_p], None], *args: Any, forks: bool = False
    ) -> None:
        self._what = what
        self._process = None if forks else os.getpid()
        self._lock = threading.RLock()
        self._close_it = close_it
        self._pointer: c_void_p | None = None
        pointer = c_void_p()
        check(open_it(*args, byref(pointer)))
        self._pointer = pointer

    @contextmanager
    def use(self) -> Iterator[c_void_p]:
        if self._process not in (None, os.getpid()):
            raise RuntimeError(f"the {self._what} was opened by process {self._process}, before a fork; open another in this process")
        with self._lock:
            if self._pointer is None:
                raise ValueError(f"the {self._what} is closed; open another")
            yield self._pointer

    def close(self) -> None:
        """Frees the object; a second call does nothing. In a forked child it does nothing: the parent owns the object."""
        if self._process not in (None, os.getpid()):
            return
        with self._lock:
            pointer, self._pointer = self._pointer, None
            if pointer is not None:
                self._close_it(pointer)

    def __del__(self) -> None:
        self.close()


class Closes:
    """The owner of a Handle: closed by close(), at the end of a `with`, or when garbage-collected. It can't be copied or pickled."""

    _handle: Handle

    def close(self) -> None:
        """Frees memory and device. A second call does nothing; other calls then raise ValueError."""
        self._handle.close()

    def __enter__(self: Owner) -> Owner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> str:
        raise TypeError(f"a {type(self).__name__} can't be copied or pickled; open another with the same arguments")
