"""Models for evaluation and generation."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from ctypes import POINTER, byref, c_int32, c_size_t, c_void_p, sizeof
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surogate import _arrays, _native
from surogate._native import Closes, Handle, check, lib


@dataclass(frozen=True)
class Score:
    """The log-probabilities of a row of tokens."""

    ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]  #: ln p of each id, given the ids before it; the first is NaN
    prompt_tokens: int  #: number of ids in the prompt; 0: no prompt
    tokens: int  #: number of tokens in the sum; the prompt's aren't
    sum: float


@dataclass(frozen=True)
class Generated:
    """A text generated after a prompt."""

    index: int  #: index of the prompt, from 0
    sample: int  #: index among the samples of the prompt
    text: str | None  #: ends before a stop text; None: no tokenizer, or an error
    ids: NDArray[np.int32]  #: all ids, including those of a stop text
    logprobs: NDArray[np.float32] | None  #: the model's ln p of each id; None: not asked for
    top: list[dict[int, float]] | None  #: for each id the likeliest tokens with their ln p
    stop_reason: str | None  #: eos, stop, length or context
    error: str | None  #: why nothing was generated; None if skip_bad isn't set


def _prompt(value: Any, name: str) -> dict[str, Any]:
    """A prompt in the library's form."""
    if isinstance(value, str):
        return {"prompt": value}
    return _messages_or_ids(value, name)


def _messages_or_ids(value: Any, name: str) -> dict[str, Any]:
    if isinstance(value, list | tuple) and value and all(isinstance(message, Mapping) for message in value):
        return {"messages": value}
    if not isinstance(value, Mapping):
        return {"ids": _arrays.ids(value, name).tolist()}
    return {**value, "ids": _arrays.ids(value["ids"], name).tolist()} if "ids" in value else dict(value)


def _number(value: float | None) -> float:
    """None stands for -infinity, which JSON lacks."""
    return -np.inf if value is None else value


def _generated(row: dict[str, Any]) -> Generated:
    tokens = row.get("logprobs")
    return Generated(
        row["index"],
        row.get("sample", 0),
        row.get("text"),
        np.array(row.get("ids", []), np.int32),
        None if tokens is None else np.array([_number(token["logprob"]) for token in tokens], np.float32),
        None if tokens is None else [{best["id"]: _number(best["logprob"]) for best in token.get("top", [])} for token in tokens],
        row.get("stop_reason"),
        row.get("error"),
    )


def _row(value: Any, name: str) -> dict[str, Any]:
    """A row in the library's form."""
    if isinstance(value, str):
        return {"text": value}
    return _messages_or_ids(value, name)


def _listed(values: Iterable[Any], name: str) -> Iterable[Any]:
    """`values`, unless it is one text or one object: its letters or keys would count as rows."""
    if isinstance(values, str | bytes | Mapping):
        raise TypeError(f"{name} is one {type(values).__name__}; expected a list")
    return values


class Model(Closes):
    """A model's folder, or an adapter's folder that names its base.

    adapter: a PEFT folder that is applied to the model. device: "auto", "cpu" or "cuda". threads: of the CPU; 0: all cores. dtype: of
    weights and arithmetic, "fp32", "bf16" or "fp16"; None: the folder's. quantization: keeps the matrices of the blocks as codes, which are
    made while loading, "int8", "fp8", "nf4" or "nvfp4"; "none": as floats; None: as in the folders. kv: format of cached keys and values,
    "fp8", or "auto" for the model's dtype. split_k: while decoding, long sums are computed in parts, on GPUs of compute capability 9.0;
    this is faster, but gives other bits.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        adapter: str | os.PathLike[str] | None = None,
        device: str = "auto",
        threads: int = 0,
        dtype: str | None = None,
        quantization: str | None = None,
        kv: str | None = None,
        split_k: bool = False,
    ) -> None:
        options = _native.ModelOptions(
            sizeof(_native.ModelOptions),
            _native.optional(adapter, "adapter"),
            _native.optional(device, "device"),
            _native.whole(threads, "threads", -(2**31), 2**31 - 1),
            _native.optional(dtype, "dtype"),
            _native.optional(quantization, "quantization"),
            _native.optional(kv, "kv"),
            bool(split_k),
        )
        self._handle = Handle("Model", lib.sg_model_open_as, lib.sg_model_close, _native.text(model, "model"), byref(options))

    def encode(self, text: str) -> NDArray[np.int32]:
        """(count) ids of a text, as the model reads it."""
        data, ids, count = _native.utf8(text, "text"), POINTER(c_int32)(), c_size_t()
        with self._handle.use() as model:
            check(lib.sg_model_encode(model, data, len(data), byref(ids), byref(count)))
        return _native.take_ids(ids, count.value)

    def decode(self, ids: Any) -> str:
        """The text of (count) ids, without special tokens."""
        array, text, length = _arrays.ids(ids, "ids"), c_void_p(), c_size_t()
        with self._handle.use() as model:
            check(lib.sg_model_decode_text(model, _arrays.pointer(array), array.size, byref(text), byref(length)))
        return _native.take_text(text, length.value)

    def logprobs(self, ids: Any) -> NDArray[np.float32]:
        """(count - 1) values: ln p of each id after the first, given all ids before it. Takes at least two ids."""
        array = _arrays.ids(ids, "ids")
        losses = np.empty(max(array.size - 1, 0), np.float32)
        with self._handle.use() as model:
            check(lib.sg_model_losses(model, _arrays.pointer(array), array.size, _arrays.floats(losses)))
        return np.negative(losses, out=losses)

    def score(self, rows: Iterable[Any]) -> list[Score]:
        """ln p of every token of each row.

        A row is a text, (count) ids, a list of messages, or an object as in `surogate score`: {"prompt", "completion"}, {"messages"} with
        or without "tools", or {"ids"} with "labels", a "mask" or "prompt_tokens", which say which tokens are summed. Of messages the
        assistant's turns are summed, as training lays them out. A row's numbers don't depend on other rows.
        """
        data = "\n".join(json.dumps(_row(row, f"rows[{i}]")) for i, row in enumerate(_listed(rows, "rows"))).encode()
        text, length = c_void_p(), c_size_t()
        if not data:
            return []
        with self._handle.use() as model:
            check(lib.sg_model_score(model, data, len(data), byref(text), byref(length)))
        found = map(json.loads, _native.take_text(text, length.value).splitlines())
        return [
            Score(
                np.array(row["ids"], np.int32),
                np.array(row["logprobs"], np.float32),
                row.get("prompt_tokens", 0),
                row["tokens"],
                row["sum"],
            )
            for row in found
        ]

    def generate(
        self, ids: Any, max_tokens: int = 128, temperature: float = 0.0, top_k: int = 0, top_p: float = 1.0, seed: int = 0
    ) -> NDArray[np.int32]:
        """At most max_tokens ids that continue (count) ids; ends before an end-of-text token.

        temperature 0: always the likeliest token. top_k 0 and top_p 1: no limit on the choice.
        """
        array, out, count = _arrays.ids(ids, "ids"), POINTER(c_int32)(), c_size_t()
        chosen, most = _arrays.sampling(temperature, top_k, top_p, seed), _native.whole(max_tokens, "max_tokens")
        with self._handle.use() as model:
            check(lib.sg_model_generate(model, _arrays.pointer(array), array.size, most, byref(chosen), byref(out), byref(count)))
        return _native.take_ids(out, count.value)

    def generate_rows(
        self,
        prompts: Iterable[Any],
        n: int = 1,
        max_tokens: int = 128,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        logit_bias: Mapping[int, float] | None = None,
        stop: Iterable[str] = (),
        ignore_eos: bool = False,
        logprobs: int | None = None,
        seed: int = 0,
        rows: int = 0,
        skip_bad: bool = False,
        adapters: Mapping[str, str | os.PathLike[str]] | None = None,
    ) -> list[Generated]:
        """n texts after each prompt.

        A prompt is a text, (count) ids, a list of messages, or an object as in `surogate generate --prompts`. Up to `rows` texts are
        generated at once; 0: 16 on a CPU, 64 on a GPU. A text doesn't depend on the others. logprobs 0: ln p of the ids; above 0: also of
        so many of the likeliest tokens. A logit bias of -inf bans a token. Ctrl+C is raised after the current step. adapters: PEFT folders
        by name; a prompt {"prompt": TEXT, "adapter": NAME} uses that adapter, other prompts the model alone.
        """
        data = "\n".join(json.dumps(_prompt(prompt, f"prompts[{i}]")) for i, prompt in enumerate(_listed(prompts, "prompts"))).encode()
        chosen = _arrays.sampling(temperature, top_k, top_p, seed)
        settings = _arrays.generation(chosen, logit_bias or {}, stop, logprobs, adapters or {})
        settings.max_tokens, settings.n = _native.whole(max_tokens, "max_tokens", 1), _native.whole(n, "n", 1)
        settings.rows = _native.whole(rows, "rows")
        settings.min_p, settings.repetition_penalty = _native.real(min_p, "min_p"), _native.factor(repetition_penalty, "repetition_penalty")
        settings.presence_penalty = _native.real(presence_penalty, "presence_penalty")
        settings.frequency_penalty = _native.real(frequency_penalty, "frequency_penalty")
        settings.ignore_eos, settings.skip_bad = bool(ignore_eos), bool(skip_bad)
        text, length = c_void_p(), c_size_t()
        if not data:
            return []
        with self._handle.use() as model:
            _native.interruptible(
                lambda: check(lib.sg_model_generate_rows(model, data, len(data), byref(settings), byref(text), byref(length))), then=""
            )
        return [_generated(json.loads(line)) for line in _native.take_text(text, length.value).split("\n") if line]
