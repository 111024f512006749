"""Arrays for the library: int32, row-major; arrays of that form aren't copied."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from ctypes import POINTER, c_char_p, c_float, c_int32, sizeof
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surogate import _native

IGNORED = -100
_ON_HOST = (1, 3, 11, 13)  # DLPack's codes of memory that the CPU reads: its own, pinned for CUDA or ROCm, managed by CUDA


def _of_dlpack(value: Any, name: str) -> Any:
    """A NumPy view of the DLPack tensor's own memory."""
    kind, index = value.__dlpack_device__()
    if kind not in _ON_HOST:
        place = {2: "cuda", 10: "rocm"}.get(kind, f"DLPack device {int(kind)}")
        raise TypeError(f"{name} lies in the memory of {place}:{index}; expected the host's: hand in a copy there, such as tensor.cpu()")
    return np.from_dlpack(value)


def _array(value: Any, name: str) -> NDArray[Any]:
    """A NumPy array from an array, a DLPack tensor in the host's memory, or nested lists."""
    if hasattr(value, "__dlpack__") and not isinstance(value, np.ndarray):
        value = _of_dlpack(value, name)
    try:
        return np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{name} is no array: {error}") from None


def int32(value: Any, name: str) -> NDArray[np.int32]:
    """An int32 array, read as by _array. TypeError: another dtype or memory; ValueError: a number that doesn't fit into 32 bits."""
    array = _array(value, name)
    if array.ndim == 0 and array.dtype.kind in "iu":
        raise ValueError(f"{name} is one number; expected an array")
    if array.size == 0 and array.dtype == np.float64:
        array = array.astype(np.int32)  # an empty list becomes float64
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} has dtype {array.dtype}; expected integers")
    if array.dtype != np.int32:
        limits = np.iinfo(np.int32)
        if array.size and (array.max() > limits.max or array.min() < limits.min):
            raise ValueError(f"{name} has values beyond 32 bits")
        array = array.astype(np.int32)
    return np.ascontiguousarray(array)


def rows(value: Any, name: str) -> NDArray[np.int32]:
    """An array (rows, cols); one dimension counts as one row."""
    array = int32(value, name)
    if array.ndim == 1:
        array = array[None]
    if array.ndim != 2:
        raise ValueError(f"{name} has shape {array.shape}; expected (rows, cols) or (cols)")
    return array


def ids(value: Any, name: str) -> NDArray[np.int32]:
    """An array (count) of token ids."""
    array = int32(value, name)
    if array.ndim != 1:
        raise ValueError(f"{name} has shape {array.shape}; expected one dimension")
    return array


def pointer(array: NDArray[np.int32] | None) -> Any:
    return None if array is None else array.ctypes.data_as(POINTER(c_int32))


def floats(array: NDArray[np.float32]) -> Any:
    return array.ctypes.data_as(POINTER(c_float))


def _own(value: Any, name: str, size: int, shape: tuple[int, ...]) -> NDArray[Any]:
    """An input as int32 or float32, of shape `shape`, (rows, cols), or (rows, cols, size) if size > 1; one row may come without `rows`."""
    array = _array(value, name)
    want = (*shape, size) if size > 1 else shape
    if array.ndim == len(want) - 1:
        array = array[None]
    if array.shape != want:
        raise ValueError(f"{name} has shape {array.shape}, input_ids {shape}; expected {want if size > 1 else 'the same'}")
    if array.dtype.kind not in "iuf":
        raise TypeError(f"{name} has dtype {array.dtype}; expected integers or floats")
    return np.ascontiguousarray(array, np.float32) if array.dtype.kind == "f" else int32(array, name)


class Rows:
    """A micro-batch for the library; it keeps the arrays alive."""

    def __init__(
        self,
        input_ids: Any,
        targets: Any,
        segments: Any = None,
        positions: Any = None,
        inputs: Mapping[str, Any] | None = None,
        size_of: Callable[[str], int] = lambda name: 1,
    ) -> None:
        self.ids = rows(input_ids, "input_ids")
        self.targets = next_ids(self.ids, segments, positions) if targets is None else rows(targets, "targets")
        self.segments = None if segments is None else rows(segments, "segments")
        self.positions = None if positions is None else rows(positions, "positions")
        if inputs is not None and not isinstance(inputs, Mapping):
            raise TypeError(f"inputs is {inputs!r}; expected arrays by name")
        self.own = {name: _own(value, name, size_of(name), self.ids.shape) for name, value in (inputs or {}).items()}
        for name, array in (("targets", self.targets), ("segments", self.segments), ("positions", self.positions)):
            if array is not None and array.shape != self.ids.shape:
                raise ValueError(f"{name} has shape {array.shape}, input_ids {self.ids.shape}; expected the same")
        shape = self.ids.shape
        given = [
            _native.Input(
                _native.text(name, "an input's name"), *((None, floats(array)) if array.dtype == np.float32 else (pointer(array),))
            )
            for name, array in self.own.items()
        ]
        self.batch = _native.Batch(
            shape[0],
            shape[1],
            pointer(self.ids),
            pointer(self.targets),
            pointer(self.segments),
            pointer(self.positions),
            (_native.Input * len(given))(*given),
            len(given),
        )


def next_ids(input_ids: NDArray[np.int32], segments: Any = None, positions: Any = None) -> NDArray[np.int32]:
    """Targets of plain texts: the next token of each; -100 after the last token of a row or document (by segments and positions)."""
    targets = np.full_like(input_ids, IGNORED)
    targets[:, :-1] = input_ids[:, 1:]
    if segments is not None:
        of = rows(segments, "segments")
        if of.shape == input_ids.shape:
            targets[:, :-1][(of[:, 1:] != of[:, :-1]) | (of[:, :-1] < 0)] = IGNORED
    if positions is not None:
        at = rows(positions, "positions")
        if at.shape == input_ids.shape:
            targets[:, :-1][at[:, 1:] == 0] = IGNORED
    return targets


def sampling(temperature: float, top_k: int, top_p: float, seed: int) -> _native.Sampling:
    return _native.Sampling(
        _native.real(temperature, "temperature"),
        _native.whole(top_k, "top_k"),
        _native.factor(top_p, "top_p"),
        _native.whole(seed, "seed", 0, 2**64 - 1),
    )


def generation(
    chosen: _native.Sampling,
    biases: Mapping[int, float],
    stop: Iterable[str],
    logprobs: int | None,
    adapters: Mapping[str, str | os.PathLike[str]],
) -> _native.Generation:
    """Settings of sg_model_generate_rows with sampling, lists and logprobs filled in; the other fields are 0. It keeps the arrays alive."""
    if isinstance(stop, str):
        raise TypeError(f"stop is {stop!r}; expected a list of texts")
    stops = [_native.text(each, f"stop[{i}]") for i, each in enumerate(stop)]
    found = _native.Generation(size=sizeof(_native.Generation), sampling=chosen)
    found.bias_ids = (c_int32 * len(biases))(*int32(list(biases), "logit_bias").tolist())
    found.biases = (c_float * len(biases))(*(_native.real(bias, "logit_bias") for bias in biases.values()))
    found.num_biases = len(biases)
    found.stops, found.num_stops = (c_char_p * len(stops))(*stops), len(stops)
    names = [_native.text(name, "adapters") for name in adapters]
    dirs = [_native.text(folder, f"adapters[{name!r}]") for name, folder in adapters.items()]
    found.adapter_names, found.adapter_dirs = (c_char_p * len(names))(*names), (c_char_p * len(dirs))(*dirs)
    found.num_adapters = len(names)
    found.logprobs = logprobs is not None
    found.top_logprobs = 0 if logprobs is None else _native.whole(logprobs, "logprobs", 0, 2**31 - 1)
    return found
