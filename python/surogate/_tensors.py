"""Arrays of floats and bytes without a copy: NumPy's, and through DLPack other libraries', on the host or on a GPU."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_int32, c_int64, c_uint8, c_uint16, c_uint64, c_void_p
from typing import Any

import numpy as np

DTYPES = {"float32": 0, "float16": 1, "bfloat16": 2, "int8": 3}  #: as in sg_dtype
_ON_HOST = (1, 3, 11)  # DLPack's codes of memory that the CPU reads: its own, pinned for CUDA or ROCm
_ON_CUDA = (2, 13)  # a GPU's memory; memory that CUDA manages for CPU and GPU


class _DLTensor(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("kind", c_int32),
        ("index", c_int32),
        ("ndim", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


_CODES = {(2, 32): "float32", (2, 16): "float16", (4, 16): "bfloat16", (0, 8): "int8"}

_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = c_void_p, [ctypes.py_object, ctypes.c_char_p]


class Tensor:
    """Address, dtype, shape and strides of an array, and the object that keeps it alive."""

    def __init__(
        self, owner: Any, address: int, dtype: str, shape: tuple[int, ...], strides: tuple[int, ...], gpu: int | None = None
    ) -> None:
        self.owner = owner
        self.address = address
        self.dtype = dtype
        self.shape = shape
        self.strides = strides  #: in elements
        self.gpu = gpu  #: None: the host's memory

    def is_by_rows(self) -> bool:
        """Whether the array is row-major without gaps."""
        step = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1 and stride != step:
                return False
            step *= size
        return True

    def is_by_columns(self) -> bool:
        return Tensor(None, 0, self.dtype, self.shape[::-1], self.strides[::-1]).is_by_rows()


def _of_array(array: np.ndarray[Any, Any], name: str) -> Tensor:
    if array.dtype.name not in DTYPES or not array.dtype.isnative:  # ">f4" is called float32 too
        raise TypeError(f"{name} has dtype {array.dtype}; expected one of {', '.join(DTYPES)}")
    strides = tuple(stride // array.itemsize for stride in array.strides)
    return Tensor(array, array.ctypes.data, array.dtype.name, array.shape, strides)


def _of_dlpack(value: Any, name: str, stream: int | None) -> Tensor:
    kind, index = (int(part) for part in value.__dlpack_device__())
    if kind not in _ON_HOST + _ON_CUDA:
        place = {10: "rocm"}.get(kind, f"DLPack device {kind}")
        raise TypeError(f"{name} lies in the memory of {place}:{index}; expected the host's or a CUDA GPU's")
    capsule = value.__dlpack__(stream=stream) if kind in _ON_CUDA else value.__dlpack__()
    tensor = _DLTensor.from_address(_pointer_of(capsule, b"dltensor"))
    dtype = _CODES.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if dtype is None:
        raise TypeError(f"{name} has a dtype of DLPack's code {tensor.code} with {tensor.bits} bits; expected one of {', '.join(DTYPES)}")
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else tuple(int(np.prod(shape[i + 1 :])) for i in range(tensor.ndim))
    return Tensor(capsule, (tensor.data or 0) + tensor.byte_offset, dtype, shape, strides, index if kind in _ON_CUDA else None)


def tensor(value: Any, name: str, stream: int | None = None) -> Tensor:
    """An array with a dtype of DTYPES, without a copy; nested lists become float32. stream: the stream that reads a GPU's array."""
    if isinstance(value, np.ndarray):
        return _of_array(value, name)
    if hasattr(value, "__dlpack__"):
        return _of_dlpack(value, name, stream)
    try:
        return _of_array(np.asarray(value, np.float32), name)
    except ValueError as error:
        raise ValueError(f"{name} is no array: {error}") from None
