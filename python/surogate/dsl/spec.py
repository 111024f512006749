"""The declarations of a model file: tensors, parameters, modules, config keys, names in a model folder."""

from __future__ import annotations

import difflib
import inspect
import math
import os
import re
import sys
import traceback
from collections.abc import Callable, Container
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from surogate.dsl.dims import FUNCTIONS, Dim
from surogate.dsl.ops import DTYPES

_HERE, _PYTHON = str(Path(__file__).parent), str(Path(os.__file__).parent)  # messages point at no line of these folders
C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., Any])
Where = tuple[str, int]
MOST_NUMBERS = 1024  # per token of an input


def shown(where: Where) -> str:
    """FILE:LINE, the file relative to the present folder."""
    path, here = Path(where[0]), Path.cwd()
    return f"{path.relative_to(here) if path.is_relative_to(here) else path}:{where[1]}"


def is_shipped(where: Where) -> bool:
    return Path(where[0]).is_relative_to(Path(_HERE).parent)


class DslError(Exception):
    """An error in a model file, with its place."""

    def __init__(self, where: Where, message: str) -> None:
        message = message.replace("\n", "\\n")  # texts of the file may have line ends: one message is one line
        super().__init__(f"{shown(where)}: {message}")
        self.where = where
        self.module = ""  # path of the module that the error is about
        self.seen = not is_shipped(where)  # whether the message names a line outside of the package

    def within(self, path: str) -> DslError:
        """Adds the module's path, because a class may be used many times; the innermost path counts."""
        if path and not self.module:
            self.module, self.args = path, (f"{self.args[0]}, in {path}",)
        return self

    def seen_from(self, where: Where) -> DslError:
        """Adds the line that led into a shipped file, unless that is in a shipped file too."""
        if not self.seen and not is_shipped(where):
            self.seen, self.args = True, (f"{self.args[0]}, from {shown(where)}",)
        return self


def of_python(error: Exception, file: str) -> DslError | None:
    """A Python exception as a DslError that names the line of the model file; None: no line of a model file is in its traceback.
    """
    if isinstance(error, SyntaxError):
        return DslError((error.filename or file, error.lineno or 1), f"{type(error).__name__}: {error.msg}")
    outside = [(name, line) for name, line, *_ in traceback.extract_tb(error.__traceback__)
               if not name.startswith((_HERE, "<")) and (not name.startswith(_PYTHON) or "-packages" in name)]
    if not outside:
        return None
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, AttributeError) and isinstance(owner := error.obj, Module):
        near = difflib.get_close_matches(error.name or "", own := owner._names(), 1)
        text = f"{owner!r} has no {error.name}" + (f"; did you mean {near[0]}?" if near else f"; it has {', '.join(own) or 'nothing'}")
    return DslError(outside[-1], text).seen_from(next((where for where in reversed(outside) if not is_shipped(where)), outside[-1]))


def caller() -> Where:
    """File and line of the model file that called into the DSL."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def source_of(where: Where) -> str:
    """FILE:LINE as the IR has it: without the folder, so that a model has the same IR everywhere."""
    return f"{Path(where[0]).name}:{where[1]}"


def fail(message: str, where: Where | None = None) -> DslError:
    return DslError(where or caller(), message)


def texts(what: str, value: Any) -> list[str]:
    """Checks that value is a tuple or list of texts; returns it."""
    if not isinstance(value, (tuple, list)) or not all(isinstance(v, str) for v in value):
        raise fail(f'{what}: expected texts in a tuple, as ("rope", "bias"), found {value!r}')
    return list(value)


def pairs(what: str, value: Any, kind: type = str) -> dict[str, Any]:
    """Checks that value is a dict from texts to `kind`; returns it."""
    if not isinstance(value, dict) or not all(isinstance(k, str) and isinstance(v, kind) for k, v in value.items()):
        raise fail(f"{what}: expected a dict from texts to {'texts' if kind is str else 'whole numbers'}, found {value!r}")
    return value


def dim(value: Any, where: Where | None = None, what: str = "") -> Dim:
    """what: owner of the dim, for messages."""
    front = what and f"{what}: "
    if isinstance(value, bool) or not isinstance(value, (str, int, Dim)):
        raise fail(f"{front}expected a dim (a symbol, number or expression), found {value!r}", where)
    try:
        return Dim(value)
    except ValueError as error:
        raise fail(f"{front}{error}", where) from None


class TensorType:
    def __init__(self, items: tuple[Any, ...], where: Where) -> None:
        self.where = where
        self.dtype = items[-1] if items and items[-1] in DTYPES else ""
        self.items = items[:-1] if self.dtype else items
        for item in self.items:
            if item != "...":
                dim(item, where)

    def dims(self, owner: Any) -> tuple[str | Dim, ...]:
        """The dims; names of attributes of the module are replaced by their values. "..." stays."""
        return tuple(d if d == "..." else dim(_of(owner, d), self.where) for d in self.items)


def _of(owner: Any, item: Any) -> Any:
    if isinstance(item, str) and isinstance(value := getattr(owner, item, None) if item.isidentifier() else None, (str, int, Dim)):
        return value
    return item


class _TensorFactory:
    """Tensor["B", "T", "C", "bf16"]: dims, and the dtype if it isn't the model's."""

    def __getitem__(self, items: Any) -> TensorType:
        return TensorType(items if isinstance(items, tuple) else (items,), caller())

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise fail('Tensor takes its dims in square brackets: Tensor["B", "T", "C"]')


def _whole(value: Any, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


class InputType:
    def __init__(self, kind: str, items: Any, where: Where) -> None:
        given = items if isinstance(items, tuple) else (items,)
        self.dtype, self.pad, self.size = (*given, *("", 0, 1)[len(given) :])[:3]
        self.target = kind == "Target"
        what = f"{kind}[{', '.join(map(repr, given))}]"
        if not isinstance(self.dtype, str) or self.dtype not in ("i32", "f32"):
            raise fail(f"{what}: unknown dtype {self.dtype!r}; expected 'i32' or 'f32'", where)
        if not _whole(self.pad, -(2**31), 2**31 - 1) or (self.pad and self.dtype == "f32"):
            raise fail(f"{what}: padding holds {self.pad!r}; expected a whole number, for 'f32' 0", where)
        if len(given) > 3 or not _whole(self.size, 1, MOST_NUMBERS):
            raise fail(f"{what}: expected a dtype, what padding holds, and how many numbers a token has, 1 to {MOST_NUMBERS}", where)

    @property
    def dims(self) -> tuple[str, ...]:
        return ("B", "T", str(self.size)) if self.size > 1 else ("B", "T")

    @property
    def entry(self) -> dict[str, Any]:
        more = {"pad": self.pad, "size": self.size if self.size > 1 else 0, "target": self.target}
        return {"dtype": self.dtype} | {k: v for k, v in more.items() if v}


class _InputFactory:
    """Input["i32"], Input["i32", -100]: a number for each token, (B, T), which data sets and callers of a trainer give.
    Input["f32", 0, 8]: eight numbers for each token, (B, T, 8). Target[...]: numbers for the predicted token instead, as labels are."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __getitem__(self, items: Any) -> Any:
        return InputType(self.kind, items, caller())

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise fail(f'{self.kind} takes its dtype in square brackets: {self.kind}["i32"]')


Input: Any = _InputFactory("Input")
Target: Any = _InputFactory("Target")


class ArrayType:
    def __init__(self, items: Any, where: Where) -> None:
        if not isinstance(items, tuple) or len(items) != 2:
            raise fail('Array takes a count and a block: Array["n_layers", "Block"]', where)
        if isinstance(items[0], int) and not 0 <= items[0] <= 65536:
            raise fail(f"Array: {items[0]} times; expected 0 to 65536, or a symbol", where)
        self.where, self.count, self.block = where, dim(items[0], where), items[1]


class _ArrayFactory:
    """Array["n_layers", "Block"]: applies a block that many times; each turn reads the output of the one before."""

    def __getitem__(self, items: Any) -> ArrayType:
        return ArrayType(items, caller())

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise fail('Array takes a count and a block in square brackets: Array["n_layers", "Block"]')


__all__ = ["Array", "Tensor"]
if TYPE_CHECKING:
    from typing import Literal as Tensor  # a type checker takes the dims as words

    Array: Any
else:
    Tensor, Array = _TensorFactory(), _ArrayFactory()


PARAM_FLAGS = ("linear", "head", "decay", "frozen")
_PARAM_OPTIONS = ("init", *PARAM_FLAGS, "dtype", "module", "matrices")


class ParamSpec:
    """A weight. `when`: a symbol or expression of the config, or an attribute of the module; if it is false the weight doesn't exist."""

    def __init__(self, shape: Any, when: str | bool, options: dict[str, Any], where: Where) -> None:
        if not isinstance(shape, TensorType):
            raise fail(f'expected the shape as Tensor["M", "K"], found {shape!r}', where)
        if shape.dtype not in ("", "f32", "bf16"):
            raise fail(f"a weight of {shape.dtype}; expected f32 or bf16", where)
        for name in options:
            if name not in _PARAM_OPTIONS:
                raise fail(f"a weight has no {name}; it may have {', '.join(_PARAM_OPTIONS)}, when", where)
        init = options.get("init", "ones")
        if init not in ("zeros", "ones") and not (isinstance(init, dict) and init.keys() == {"normal"}):
            found = f'"{init}"' if isinstance(init, str) else repr(init)
            raise fail(f'init: expected "zeros", "ones" or normal(deviation), found {found}', where)
        if isinstance(init, dict):
            normal(init["normal"], where)
        if options.get("dtype", "f32") not in ("f32", "bf16"):
            raise fail(f'a weight\'s dtype is {options["dtype"]!r}, expected "f32" or "bf16"', where)
        if not isinstance(options.get("module", ""), str) or re.search(r"\s", options.get("module", "")):
            raise fail(f"a weight's module is {options['module']!r}, expected the name of a linear layer", where)
        if not isinstance(when, (str, bool, type(None))):
            raise fail(f"a weight's when is {when!r}, expected True, False, or an expression of the config", where)
        self.shape, self.when, self.options, self.where, self.name = shape, when, options, where, ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, owner: Any, cls: type) -> Any:
        from surogate.dsl.graph import current

        return self if owner is None else current(self.where).param(owner, self)


def Param(shape: Any, *more: Any, when: str | bool = True, **options: Any) -> Any:
    """A weight as a class attribute: weight = Param(Tensor["M", "K"], init=normal(0.02))."""
    if more:
        raise fail(f'Param: found {", ".join(map(repr, (shape, *more)))}, expected the shape as Tensor["M", "K"], and options by name')
    return ParamSpec(shape, when, options, caller())


def param(function: Any = None, *, when: str | bool = True, **options: Any) -> Any:
    """A weight as a method: @param, or @param(init="ones"), over def weight(self) -> Tensor["C"]: ..."""

    def declare(f: Any) -> ParamSpec:
        where = f.__code__.co_filename, f.__code__.co_firstlineno
        return ParamSpec(f.__annotations__.get("return"), when, options, where)

    return declare if function is None else declare(function)


def normal(deviation: str | float, where: Where | None = None) -> dict[str, Any]:
    """Normally distributed at the start."""
    if isinstance(deviation, str):
        return {"normal": dim(deviation, where, "normal").text}
    if not isinstance(deviation, (int, float)) or not 0 <= deviation < float("inf"):
        raise fail(f"normal: a deviation of {deviation!r}, expected a number from 0 on, or an expression", where)
    return {"normal": deviation}


class Module:
    """The base class of @module, @block, @model and @objective; derive from it for type checkers. Calling a module runs its @forward."""

    _path: str = ""
    _kind: str = ""
    _abstract: bool = False
    _config: Any = None
    _mapping: dict[str, Any] = {}  # path of a module or weight -> its name in a model folder
    _indexed: dict[str, str] = {}
    _export: dict[str, Any] = {}  # path of a module or weight -> its name in a saved folder, if that differs
    _export_indexed: dict[str, str] = {}
    _ties: tuple[tuple[str, str, str, Where], ...] = ()
    _where: Where = ("", 0)
    _made: Where = ("", 0)  # where it was created

    def __new__(cls, *_: Any, **__: Any) -> Module:
        made = super().__new__(cls)
        made._made = caller()
        return made

    def __repr__(self) -> str:
        return f"the module {self._path or type(self).__name__}"

    def _names(self) -> list[str]:
        """Names of its weights and parts."""
        kinds = (Module, ParamSpec, ArrayType)
        own = {n: v for cls in reversed(type(self).__mro__) for n, v in vars(cls).items()} | vars(self)
        return [n for n, v in own.items() if isinstance(v, kinds) and not n.startswith("_")]

    def __call__(self, *args: Any, name: str | None = None, part: str | None = None, **more: Any) -> Any:
        from surogate.dsl.graph import current

        where = caller()
        try:
            return current(where).call(self, args, more, name, part)
        except DslError as error:
            raise error.seen_from(where).seen_from(self._where) from None


def _declare(kind: str) -> Callable[[C], C]:
    def declare(cls: C) -> C:
        if not isinstance(cls, type):
            raise fail(f"@{kind} stands before a class")
        members = {"_kind": kind, "_abstract": False, "_where": caller(), "__module__": cls.__module__, "__qualname__": cls.__qualname__}
        if not issubclass(cls, Module):
            return type(cls.__name__, (cls, Module), members)  # type: ignore[return-value]
        for key, value in members.items():
            setattr(cls, key, value)
        return cls

    declare.__qualname__ = kind  # as Python's own messages name it
    return declare


module, block, model, primitive = _declare("module"), _declare("block"), _declare("model"), _declare("primitive")
objective = _declare("objective")


def abstract(cls: C) -> C:
    """A class that is only extended, never used itself."""
    setattr(cls, "_abstract", True)
    return cls


def extends(base: type) -> Callable[[C], C]:
    """Takes over the base's weights, forward, config, names and ties; the class's own definitions win."""

    def merge(cls: C) -> C:
        if not (isinstance(base, type) and issubclass(base, Module)):
            raise fail(f"@extends: expected a @module, @block or @model, found {base!r}")
        own = {k: v for k, v in vars(cls).items() if k not in ("__dict__", "__weakref__")}
        return type(cls.__name__, (base,), own)  # type: ignore[return-value]

    return merge


def forward(function: F) -> F:
    _mark("@forward", function, "_forward", True)
    return function


def _mark(decorator: str, function: Any, key: str, value: Any) -> None:
    if not inspect.isfunction(function):
        raise fail(f"{decorator} stands before a method, found {function!r}")
    setattr(function, key, value)


PARTS = ("norm", "qkv", "att", "ffn", "swiglu")


def recompute(part: str) -> Callable[[F], F]:
    """Ops of this forward are recomputed if recompute_PART is on, unless a caller names another part."""
    if not isinstance(part, str) or part not in PARTS:
        found = f'"{part}"' if isinstance(part, str) else "a method" if callable(part) else repr(part)
        raise fail(f'@recompute: expected one of {", ".join(PARTS)}, found {found}')

    def mark(function: F) -> F:
        _mark("@recompute", function, "_part", part)
        return function

    return mark


def save(*names: str) -> Callable[[F], F]:
    """Values of this forward, by their names in the module, that are kept for the backward pass whatever the recomputation flags say."""
    texts("@save", names)
    where = caller()

    def mark(function: F) -> F:
        _mark("@save", function, "_save", (names, where))
        return function

    return mark


class Key:
    """A symbol's place in config.json: its key or spellings, its default, what it must satisfy. With per="L" it is a list of L values.
    Key(None, "C / H") has no key: its value is computed from the symbols before it."""

    def __init__(self, key: str | list[str] | None, default: str | float | None = None, **limits: Any) -> None:
        for name in limits:
            if name not in ("needed_if", "choices", "min", "above", "max", "integer", "per", "unused", "null", "type"):
                raise fail(f"Key has no {name}; it may have default, null, needed_if, choices, min, above, max, integer, per, unused, type")
        if key is None and default is None:
            raise fail("Key(None) says nothing; expected what the symbol is, as in Key(None, \"C / H\")")
        if key is not None and not isinstance(key, str):
            texts("Key", key)
        if key is not None and not (key and all(key)):
            raise fail(f"Key: {key!r} names no key of config.json")
        if isinstance(default, (int, float)):
            default = str(default + 0)  # True is 1
        if default is not None and not isinstance(default, str):
            raise fail(f"Key: default is {default!r}, expected a number or an expression")
        for name in limits:
            self.check_limit(name, limits[name])
        if limits.get("type") == "text" and not limits.get("choices"):
            raise fail('Choice: expected choices={"TEXT": NUMBER, ...}, the texts that are supported')
        low, high = max(limits.get("min", -math.inf), limits.get("above", -math.inf)), limits.get("max", math.inf)
        if low > high:
            raise fail(f"Key: no number is at least {low} and at most {high}")
        self.where = caller()
        self.entry: dict[str, Any] = ({} if key is None else {"key": key}) | ({} if default is None else {"default": default}) | limits

    @staticmethod
    def check_limit(name: str, value: Any) -> None:
        if name == "choices":
            if not pairs("Key: choices", value, int):
                raise fail('Key: choices: expected texts and their numbers, as {"TEXT": 1}, found none')
        elif name == "integer" and not isinstance(value, bool):
            raise fail(f"Key: integer is {value!r}, expected True or False")
        elif name in ("min", "above", "max") and (isinstance(value, bool) or not isinstance(value, (int, float))):
            raise fail(f"Key: {name} is {value!r}, expected a number")
        elif name in ("needed_if", "per", "unused", "null") and not isinstance(value, str):
            raise fail(f"Key: {name} is {value!r}, expected a text")
        elif name == "type" and value not in ("number", "flag", "text"):
            raise fail(f"Key: type is {value!r}, expected number, flag or text")


class Each:
    def __init__(self, per: str, value: str) -> None:
        self.per, self.value = per, value


def each(per: str, value: str) -> Any:
    """A list attribute of an op: `per` numbers, each computed by the expression `value`, in which i is the index."""
    return Each(per, value)


def Number(key: str | list[str], default: str | float | None = None, **limits: Any) -> Key:
    """A Key that must be a number."""
    return Key(key, default, type="number", **limits)


def Size(key: str, default: str | int | None = None, most: int = 1 << 24) -> Key:
    """A Key that must be an integer from 1 on."""
    return Number(key, default, min=1, max=most, integer=True)


def Flag(key: str | list[str], default: str | float | None = None, **limits: Any) -> Key:
    """A Key that must be true or false."""
    return Key(key, default, type="flag", **limits)


def Choice(key: str | list[str], default: str | float | None = None, **limits: Any) -> Key:
    """A Key that must be one of the texts in its choices."""
    return Key(key, default, type="text", **limits)


class Config:
    def __init__(self, architecture: str, symbols: dict[str, Key], where: Where) -> None:
        self.architecture, self.symbols, self.where = architecture, symbols, where
        self.require: list[dict[str, str]] = []
        self.known: dict[str, bool] = {}  # symbols, and whether each is a list
        self.ignored: list[str] = []
        self.refused: list[str] = []
        self.unread: list[str] = []
        self.prefix = ""
        self.roles: dict[str, str] = {}


# The roles that the engine asks for, and their symbols unless a model names others.
ROLES = {"vocabulary": "V", "positions": "max_positions", "tied": "tied"}


def hf_config(architecture: str, *, require: dict[str, str] | None = None, ignored: tuple[str, ...] = (), refused: tuple[str, ...] = (),
              unread: Any = (".rotary_emb.inv_freq",), roles: Any = None, prefix: Any = "", **symbols: Key) -> Callable[[C], C]:
    """The model's symbols as keys of config.json. require: {expression: the message if it is false}. unread: ends of the names of tensors that
    are skipped. roles: {"vocabulary": SYMBOL}, the symbols for vocabulary, positions and tied, if they aren't named as in ROLES. prefix: a
    beginning that the tensors' names in a model folder may lack."""
    config = Config(architecture, symbols, caller())
    if not isinstance(architecture, str) or not architecture or not isinstance(prefix, str):
        raise fail(f"hf_config: the architecture is {architecture!r} and the prefix {prefix!r}, expected texts")
    for name, key in symbols.items():
        if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) or name in ("B", "T", "P", "reach", "i", "j", "k", "l") or name in FUNCTIONS:
            raise fail(f"{name}: not a name for a symbol; expected ASCII letters, digits and _, and another than B, T, P, reach, i, j, k, l and those of"
                       " functions")
        if not isinstance(key, Key):
            raise fail(f'{name}: expected Key("hidden_size") or Size("hidden_size"), found {key!r}')
    known = config.known  # grows below: a key's expressions may name the symbols before it
    for name, key in symbols.items():
        for field in ("per", "default", "null", "needed_if"):
            if isinstance(text := key.entry.get(field), str):
                entry = {"i": False} if "per" in key.entry and field != "per" else {}
                try:
                    check_symbols(dim(text, key.where), known | entry, key.where, later=symbols)
                except DslError as error:
                    raise error.seen_from(config.where) from None
        known[name] = "per" in key.entry
    for expression, message in pairs("hf_config: require", require or {}).items():
        check_symbols(dim(expression), known, config.where)
        config.require.append({"that": expression, "message": message})
    config.ignored, config.refused, config.unread = (texts(f"hf_config: {what}", value) for what, value in
                                                     (("ignored", ignored), ("refused", refused), ("unread", unread)))
    config.prefix = prefix
    config.roles = {role: name for role, name in ROLES.items() if name in known} | pairs("hf_config: roles", roles or {})
    for role, name in config.roles.items():
        if role not in ROLES or known.get(name, True):
            raise fail(f"roles: {role} is {name}; expected one number's symbol under {', '.join(ROLES)}")
    if "vocabulary" not in config.roles:
        raise fail(f'no symbol says how many tokens there are; expected {ROLES["vocabulary"]}, or roles={{"vocabulary": SYMBOL}}')

    def attach(cls: C) -> C:
        setattr(cls, "_config", config)
        return cls

    return attach


# Names of dtypes in other programs.
_DTYPES = {"fp32": "f32", "float32": "f32", "float": "f32", "bfloat16": "bf16", "fp16": "f16", "float16": "f16", "int32": "i32", "int64": "i64", "int": "i32"}


def check_symbols(value: Dim, known: dict[str, bool], where: Where | None = None, later: Container[str] = (), what: str = "") -> Dim:
    """known: symbols, and whether each is a list; later: names of symbols that are defined later; what: owner of the expression, for
    messages.
    """
    front = (what and f"{what}: ") + f'"{value.text}": '
    for name in sorted((value.names | value.lists) - set(known)):
        if name in later:
            raise fail(f"{front}{name} is named below; a key reads symbols above it", where)
        if name in _DTYPES:
            raise fail(f"{front}{name} is neither a symbol nor a dtype; did you mean {_DTYPES[name]}?", where)
        raise fail(f"{front}unknown symbol {name}; expected one of {', '.join(sorted(known))}", where)
    for name in sorted(value.names):
        if known[name]:
            raise fail(f"{front}{name} is a list; expected the index of one value, as {name}[i]", where)
    for name in sorted(value.lists):
        if not known[name]:
            raise fail(f"{front}{name} is one number; expected it without [ ]", where)
    return value


_SOURCES = ({"concat"}, {"concat", "index", "per"}, {"transpose"}, {"slice", "begin", "total"})  # docs/ir.md


class _Mapping:
    """@hf_mapping(embed="model.embed_tokens"): the name in a model folder of a module, or of one weight ("q.weight")."""

    def __init__(self, name: str, field: str, indexed: str) -> None:
        self._name, self._field, self._indexed = name, field, indexed

    def _add(self, field: str, names: dict[str, Any]) -> Callable[[C], C]:
        def attach(cls: C) -> C:
            setattr(cls, field, {**getattr(cls, field, {}), **names})
            return cls

        return attach

    def __call__(self, names: dict[str, Any] | None = None, *others: Any, **more: Any) -> Callable[[C], C]:
        if others or not isinstance(names or {}, dict):
            found = ", ".join(map(repr, (names, *others)))
            raise fail(f'@{self._name}: expected names as q="q_proj" or {{"q.weight": "q_proj.weight"}}, found {found}')
        for key, name in {**(names or {}), **more}.items():
            if not isinstance(name, str) and not (isinstance(name, dict) and name.keys() in _SOURCES):
                raise fail(f"@{self._name}: {key} is {name!r}, expected a name, concat(...), transpose(...) or rows(...)")
        return self._add(self._field, {**(names or {}), **more})

    def indexed(self, array: str, prefix: str) -> Callable[[C], C]:
        """The name of each turn of an Array: @hf_mapping.indexed("blocks", "model.layers.{i}")."""
        if not isinstance(prefix, str) or not re.search(r"\{.+\}", prefix):
            found = f'"{prefix}"' if isinstance(prefix, str) else repr(prefix)
            raise fail(f'@{self._name}.indexed: expected the index in the name, as "model.layers.{{i}}", found {found}')
        return self._add(self._indexed, {array: prefix})


hf_mapping = _Mapping("hf_mapping", "_mapping", "_indexed")
# Names under which trained weights are saved, if they differ from the names for loading. Loading reads these names too.
hf_export = _Mapping("hf_export", "_export", "_export_indexed")


def concat(*names: str, **index: str | int) -> dict[str, Any]:
    """Tensors of a model folder one below the other. One for each of H heads: concat("norms.{h}.weight", h="H")."""
    if not names or not texts("concat", names):
        raise fail("concat: expected the names of tensors")
    if len(index) > 1:
        raise fail(f"concat: {len(index)} indexes, expected one, as h=\"H\"")
    return {"concat": list(names)} | {k: v for name, count in index.items() for k, v in (("index", name), ("per", dim(count).text))}


def transpose(name: str) -> dict[str, Any]:
    return {"transpose": name}


def rows(name: str, begin: str | int, total: str | int) -> dict[str, Any]:
    """Rows of a packed tensor that has `total` of them, from `begin` on."""
    return {"slice": name, "begin": dim(begin).text if isinstance(begin, str) else begin, "total": dim(total).text if isinstance(total, str) else total}


def tied_to(weight: str, other: str, when: str = "1") -> Callable[[C], C]:
    """`weight` is `other` where the expression holds: @tied_to("head.weight", "embed.weight", when="tied")."""
    texts("@tied_to", (weight, other, when))
    dim(when, None, "@tied_to: when")
    if weight == other:
        raise fail(f"@tied_to: {weight} is tied to itself")
    where = caller()

    def attach(cls: C) -> C:
        setattr(cls, "_ties", (*getattr(cls, "_ties", ()), (weight, other, when, where)))
        return cls

    return attach
