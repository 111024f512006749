"""Models for evaluation and generation."""

from __future__ import annotations

import os
from ctypes import POINTER, byref, c_int32, c_size_t, c_void_p
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surogate import _arrays, _native
from surogate._native import Closes, Handle, check, lib


class Model(Closes):
    """A model's folder, or an adapter's folder that names its base.

    adapter: a PEFT folder over the model. device: "auto", "cpu" or "cuda". threads of the CPU; 0: all cores.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        adapter: str | os.PathLike[str] | None = None,
        device: str = "auto",
        threads: int = 0,
    ) -> None:
        self._handle = Handle(
            "Model",
            lib.sg_model_open,
            lib.sg_model_close,
            _native.text(model, "model"),
            _native.optional(adapter, "adapter"),
            _native.optional(device, "device"),
            _native.whole(threads, "threads", -(2**31), 2**31 - 1),
        )

    def encode(self, text: str) -> NDArray[np.int32]:
        """(count) ids of a text as the model is fed it."""
        data, ids, count = _native.utf8(text, "text"), POINTER(c_int32)(), c_size_t()
        with self._handle.use() as model:
            check(lib.sg_model_encode(model, data, len(data), byref(ids), byref(count)))
        return _native.take_ids(ids, count.value)

    def decode(self, ids: Any) -> str:
        """The text of (count) ids, special tokens left out."""
        array, text, length = _arrays.ids(ids, "ids"), c_void_p(), c_size_t()
        with self._handle.use() as model:
            check(lib.sg_model_decode_text(model, _arrays.pointer(array), array.size, byref(text), byref(length)))
        return _native.take_text(text, length.value)

    def logprobs(self, ids: Any) -> NDArray[np.float32]:
        """(count - 1) ln p of each id after the first, given all before it. At least two ids."""
        array = _arrays.ids(ids, "ids")
        losses = np.empty(max(array.size - 1, 0), np.float32)
        with self._handle.use() as model:
            check(lib.sg_model_losses(model, _arrays.pointer(array), array.size, _arrays.floats(losses)))
        return np.negative(losses, out=losses)

    def generate(
        self, ids: Any, max_tokens: int = 128, temperature: float = 0.0, top_k: int = 0, top_p: float = 1.0, seed: int = 0
    ) -> NDArray[np.int32]:
        """(at most max_tokens) ids that go on from (count) ids; ends before an end-of-text token.

        temperature 0: the likeliest token; top_k 0 and top_p 1: of all tokens.
        """
        array, out, count = _arrays.ids(ids, "ids"), POINTER(c_int32)(), c_size_t()
        chosen, most = _arrays.sampling(temperature, top_k, top_p, seed), _native.whole(max_tokens, "max_tokens")
        with self._handle.use() as model:
            check(lib.sg_model_generate(model, _arrays.pointer(array), array.size, most, byref(chosen), byref(out), byref(count)))
        return _native.take_ids(out, count.value)
