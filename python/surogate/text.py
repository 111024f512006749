"""Tokenizers and chat templates."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from ctypes import POINTER, byref, c_int32, c_size_t, c_uint8, c_void_p, cast
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from surogate import _arrays, _native
from surogate._native import Closes, Handle, check, lib

Messages = Sequence[Mapping[str, Any]]


class Tokenizer(Closes):
    """The tokenizer of a model's folder or of a repository of the hub."""

    def __init__(self, model: str | os.PathLike[str]) -> None:
        self._handle = Handle("Tokenizer", lib.sg_tokenizer_open, lib.sg_tokenizer_close, _native.text(model, "model"), forks=True)
        info = _native.TokenizerInfo()
        with self._handle.use() as tokenizer:
            check(lib.sg_tokenizer_get_info(tokenizer, byref(info)))
        self.vocab_size: int = info.vocab_size  #: largest id + 1
        self.bos_id: int | None = info.bos if info.bos >= 0 else None
        self.eos_id: int | None = info.eos if info.eos >= 0 else None
        self.pad_id: int | None = info.pad if info.pad >= 0 else None

    def encode(self, text: str, add_special: bool = True) -> NDArray[np.int32]:
        """(count) ids of a text. add_special: with the tokens that the tokenizer adds around a text (BOS, EOS)."""
        data, ids, count = _native.utf8(text, "text"), POINTER(c_int32)(), c_size_t()
        with self._handle.use() as tokenizer:
            check(lib.sg_tokenizer_encode(tokenizer, data, len(data), add_special, byref(ids), byref(count)))
        return _native.take_ids(ids, count.value)

    def decode(self, ids: Any, skip_special: bool = True) -> str:
        """The text of (count) ids. SurogateError (INVALID): the tokenizer has no such id."""
        array, text, length = _arrays.ids(ids, "ids"), c_void_p(), c_size_t()
        with self._handle.use() as tokenizer:
            check(lib.sg_tokenizer_decode(tokenizer, _arrays.pointer(array), array.size, skip_special, byref(text), byref(length)))
        return _native.take_text(text, length.value)


class ChatTemplate(Closes):
    """The chat template of a model's folder; or `source` in Jinja, with the special tokens of the folder, if one is given."""

    def __init__(self, model: str | os.PathLike[str] | None = None, source: str | None = None) -> None:
        self._handle = Handle(
            "ChatTemplate",
            lib.sg_chat_template_open,
            lib.sg_chat_template_close,
            _native.optional(model, "model"),
            _native.optional(source, "source"),
            forks=True,
        )

    def render(self, messages: Messages, tools: Sequence[Any] | None = None, add_generation_prompt: bool = False) -> str:
        """The text of a conversation; messages are {"role", "content", ...}. SurogateError (INVALID): the template refuses it."""
        text, length = c_void_p(), c_size_t()
        with self._handle.use() as template:
            conversation = _conversation(messages, tools)
            check(lib.sg_chat_template_render_text(template, conversation, add_generation_prompt, byref(text), byref(length)))
        return _native.take_text(text, length.value)

    def encode(
        self,
        messages: Messages,
        tokenizer: Tokenizer,
        tools: Sequence[Any] | None = None,
        train_on: Literal["assistant", "last_turn", "all"] = "assistant",
    ) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """A conversation as in training: (count) ids, and (count) flags: whether the id is trained."""
        choices = ("assistant", "last_turn", "all")
        if train_on not in choices:
            raise ValueError(f"train_on {train_on!r}; expected one of {choices}")
        if not isinstance(tokenizer, Tokenizer):
            raise TypeError(f"tokenizer is {tokenizer!r}; expected a Tokenizer")
        ids, mask, count = POINTER(c_int32)(), POINTER(c_uint8)(), c_size_t()
        data = _conversation(messages, tools)
        with self._handle.use() as template, tokenizer._handle.use() as with_tokenizer:
            check(
                lib.sg_chat_template_encode(template, with_tokenizer, data, choices.index(train_on), byref(ids), byref(mask), byref(count))
            )
        try:
            trained = np.ctypeslib.as_array(mask, (count.value,)) != 0 if count.value else np.empty(0, bool)
        finally:
            lib.sg_free(cast(mask, c_void_p))
        return _native.take_ids(ids, count.value), trained


def _conversation(messages: Messages, tools: Sequence[Any] | None) -> bytes:
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        raise TypeError(f"messages is {messages!r}; expected a list of dicts with role and content")
    for k, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise TypeError(f"messages[{k}] is {message!r}; expected a dict with role and content")
    row: dict[str, Any] = {"messages": list(messages)}
    if tools is not None:
        row["tools"] = list(tools)
    return json.dumps(row, allow_nan=False).encode()
