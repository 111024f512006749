"""Pre-training and fine-tuning of language models, driven from Python.

Importing this package loads nothing: the native library is opened when one of the names below is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from surogate.dataset import Batch as Batch
    from surogate.dataset import Dataset as Dataset
    from surogate.decoder import GPUDecoder as GPUDecoder
    from surogate.decoder import NeuroGenModel as NeuroGenModel
    from surogate.errors import Status as Status
    from surogate.errors import SurogateError as SurogateError
    from surogate.model import Generated as Generated
    from surogate.model import Model as Model
    from surogate.model import Score as Score
    from surogate.run import Outcome as Outcome
    from surogate.run import Run as Run
    from surogate.server import Server as Server
    from surogate.server import serve as serve
    from surogate.text import ChatTemplate as ChatTemplate
    from surogate.text import Tokenizer as Tokenizer
    from surogate.trainer import Step as Step
    from surogate.trainer import Trainer as Trainer

_HOMES = {
    "Batch": "dataset",
    "ChatTemplate": "text",
    "Dataset": "dataset",
    "GPUDecoder": "decoder",
    "Generated": "model",
    "Model": "model",
    "NeuroGenModel": "decoder",
    "Outcome": "run",
    "Run": "run",
    "Score": "model",
    "Server": "server",
    "Status": "errors",
    "Step": "trainer",
    "SurogateError": "errors",
    "Tokenizer": "text",
    "Trainer": "trainer",
    "serve": "server",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from surogate._native import version

        return version()
    if name not in _HOMES:
        raise AttributeError(f"module 'surogate' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"surogate.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
