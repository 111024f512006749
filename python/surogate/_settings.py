"""Settings in the form of the command line. Needs neither NumPy nor the native library."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any


def text(value: Any, name: str) -> str:
    """A text or path as str. TypeError: anything else; ValueError: an empty text, or one with a NUL."""
    found = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(found, str):
        raise TypeError(f"{name} is {value!r}; expected a text or path")
    if not found or "\0" in found:
        raise ValueError(f"{name} is {found!r}; expected a text or path that isn't empty and has no NUL")
    return found


def _value(key: str, value: Any) -> str:
    """A setting's value as text: a str unchanged, anything else as JSON, including paths and NumPy's numbers."""

    def plain(inner: Any) -> Any:
        if isinstance(inner, os.PathLike):
            return os.fspath(inner)
        if hasattr(inner, "tolist"):
            return inner.tolist()
        raise TypeError(f"{key} has {inner!r} ({type(inner).__name__}); expected texts, numbers, booleans, lists and dicts of them")

    return value if isinstance(value, str) else os.fspath(value) if isinstance(value, os.PathLike) else json.dumps(value, default=plain)


def texts(args: Sequence[str | os.PathLike[str]], settings: Mapping[str, Any]) -> list[str]:
    """Run files, "key=value" texts and keyword settings, as a list of texts."""
    for arg in args:
        if isinstance(arg, Mapping):
            raise TypeError("settings are a dict; expected them as keywords: **settings")
    return [text(arg, "an argument") for arg in args] + [text(f"{key}={_value(key, value)}", key) for key, value in settings.items()]
