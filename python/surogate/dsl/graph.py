"""The graph builder: runs the forwards of a model once, checks every shape, and writes the statements of docs/ir.md."""

from __future__ import annotations

import difflib
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from surogate.dsl.dims import Dim, same_size, show_dims, surely_more
from surogate.dsl.ops import OPS, Op
from surogate.dsl.signature import attribute, bind, check_sizes, check_there, match, outputs
from surogate.dsl.spec import (
    PARAM_FLAGS,
    PARTS,
    ArrayType,
    Config,
    DslError,
    InputType,
    Module,
    ParamSpec,
    TensorType,
    Where,
    caller,
    check_symbols,
    dim,
    fail,
    of_python,
    source_of,
)
from surogate.dsl.values import Dims, Others
from surogate.dsl.values import Value as Value

# Inputs that the engine gives every graph: docs/ir.md.
INPUTS: dict[str, tuple[tuple[str, ...], str]] = dict.fromkeys(("tokens", "labels", "positions", "doc_start", "doc_id"), (("B", "T"), "i32"))
INPUTS |= {"step": (("4",), "i64"), "hyper": (("8",), "f32")}
OUTPUTS = {"hidden": ("B", "T", "C"), "logits": ("B", "T", "V"), "losses": ("B", "T"), "loss": ("1",)}
# Further inputs of an objective: outputs of the trained model, and of its teacher (`teacher.logits`).
READ = {"hidden": (("B", "T", "C"), ""), "logits": (("B", "T", "V"), ""), "teacher_logits": (("B", "T", "V"), "")}


NAME = r"[^\s,()\[\]{}=\"@:#\\]{1,200}"  # name of a value
# The symbols of an objective: the vocabulary, and the width of the hidden state.
OBJECTIVE = Config("", {}, ("", 0))
OBJECTIVE.known = {"V": False, "C": False}


# Names from other frameworks, and the op or hint to use instead.
INSTEAD = {
    **dict.fromkeys(("matmul", "dense", "dot", "mm", "bmm", "einsum"), "products with a weight are g.linear(x, w), w of (out, in)"),
    **dict.fromkeys(("transpose", "permute", "swapaxes"), "no op turns dims; attention takes (B, T, H, D)"),
    **dict.fromkeys(("view", "flatten", "squeeze", "unsqueeze"), "expected g.reshape(x, dims...)"),
    **dict.fromkeys(("split", "chunk", "narrow"), "expected g.slice(x, dim=.., begin=.., size=..) for each part"),
    **dict.fromkeys(("clamp", "clip"), "expected g.minimum(g.maximum(x, low), high)"),
    **dict.fromkeys(("pow", "square"), "expected g.mul(x, x)"),
    **dict.fromkeys(("cat", "stack"), "expected g.concat(a, b, dim=..)"),
    **dict.fromkeys(("neg", "negative"), "expected g.scale(x, by=-1)"),
    **dict.fromkeys(("relu2", "squared_relu"), "expected g.relu(x, squared=True)"),
    **dict.fromkeys(("gelu_new", "gelu_tanh"), "expected g.gelu(x, tanh=True)"),
    **dict.fromkeys(("ones", "zeros"), "expected g.full(size=.., value=..)"),
    "geglu": "expected g.swiglu(gate, up, gelu=True)",
    "softplus": "expected g.scale(g.log_sigmoid(g.scale(x, by=-1)), by=-1)",
    "argmax": "expected g.max(x).ids",
    "masked_fill": "expected g.where(cond, a, b)",
}


@dataclass
class Node:
    op: str
    inputs: list[str]
    out: Value
    where: Where
    layer: bool
    attrs: dict[str, Any]


@dataclass
class Frame:
    module: Module
    part: str | None
    alias: str
    call: int = 1  # number of the module's call, from 1
    made: dict[str, list[str]] = field(default_factory=dict)  # names of values, by their name in the module's first call


@dataclass
class Turn:
    """A body of statements. In a repeat all weights come first; elsewhere each weight comes before its first use."""

    params: list[dict[str, Any]]
    ops: list[dict[str, Any]] = field(default_factory=list)
    index: str = ""
    shared: bool = False  # its turns read the same weights, as in g.repeat
    count: str = ""  # number of turns, if it may be 0
    needs: tuple[tuple[str, bool], ...] = ()  # conditions under which it runs, and whether each holds
    never: bool = False  # whether it surely never runs


_builders: list[Builder] = []


def current(where: Where | None = None) -> Builder:
    if not _builders:
        raise fail("weights and modules are used inside of a model's @forward only", where)
    return _builders[-1]


def graph() -> Graph:
    """`with graph() as g:` gives the engine's ops as methods: g.linear(x, w)."""
    return Graph(current())


class Graph:
    def __init__(self, builder: Builder) -> None:
        self._builder = builder

    def __enter__(self) -> Graph:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        def apply(*args: Any, **more: Any) -> Value:
            return self._builder.op(name, args, more)

        apply.__qualname__ = name  # as Python's own messages name it
        return apply

    def reshape(self, x: Any, *dims: Any, name: str | None = None, part: str | None = None) -> Any:
        """The elements of x under other dims: g.reshape(x, "B", "T", "H", "D")."""
        return self._builder.reshape(x, dims, name, part)

    def select(self, when: str, then: Callable[[], Any], otherwise: Callable[[], Any], name: str) -> Any:
        """Selects one of two values by an expression of the config and the layer's index: g.select("i % 4 == 3", f, g, name="x")."""
        return self._builder.select(when, then, otherwise, name)

    def repeat(self, count: Any, turn: Callable[..., Any], *first: Any) -> Any:
        """Applies `turn` to the tensors, `count` times with the same weights: g.repeat("L", lambda x: self.block(x), x)."""
        return self._builder.repeat_shared(count, turn, first)


class Repeated(Module):
    def __init__(self, count: Dim, block: Module, where: Where) -> None:
        self.count, self.block, self._where = count, block, where

    def _single(self, *_: Any) -> Any:
        raise fail(f"{self._path}: the blocks of an Array run one after the other, and none stands alone; expected self.{self._path.split('.')[-1]}(x)")

    __iter__ = __len__ = __getitem__ = _single


def _join(prefix: str, name: Any) -> Any:
    if isinstance(name, str):
        return ".".join(p for p in (prefix, name) if p)
    return {k: _join(prefix, v) if isinstance(v, str) and k in ("transpose", "slice") else [_join(prefix, n) for n in v] if k == "concat" else v
            for k, v in name.items()}


class Builder:
    def __init__(self, root: Module, config: Config) -> None:
        self.root, self.config = root, config
        self.made: dict[str, list[list[dict[str, Any]]]] = {}  # value -> lists of statements in which it is available
        self.symbols = {"B": False, "T": False, "P": False, "reach": False, "bf16": False} | config.known
        self.everywhere = dict(self.symbols)  # without the indexes of repeats
        self.turns = [Turn([])]
        self.turns[0].params = self.turns[0].ops
        self.sinks = [self.turns[0].ops]
        self.frames: list[Frame] = []
        self.params: dict[str, Value | None] = {}
        self.branches: list[tuple[str, bool]] = []  # conditions of the selects around this turn, and whether each holds
        self.bodies: list[list[dict[str, Any]]] = []  # bodies of the repeats around the current turn
        self.calls: dict[int, int] = {}  # number of calls of each module
        self.declared: dict[str, list[frozenset[tuple[str, bool]]]] = {}  # weight -> branches that have made it
        self.late: dict[str, Where] = {}  # weights that no turn makes in time: those that only later turns of the present g.repeat read
        self.names: set[str] = set(INPUTS)
        self.tensors: dict[str, str] = {}  # tensor of a model folder -> the weight that it holds
        self.linears: dict[str, str] = {}  # linear layer of a model folder, as LoRA names it -> its weight
        self.nodes: list[Node] = []
        self.statements: dict[str, list[dict[str, Any]]] = {}  # value -> statements that make it
        self.attrs: dict[int, tuple[str, ...]] = {}
        self.modules: list[Module] = []
        self.refs: dict[str, str] = {}  # path of a weight that was asked for -> the name that ops read
        self.read: set[str] = set()  # refs that ops or outputs read
        self.place(root, (), "")
        for module in self.modules:
            self.check_names(module)
        self.ties: dict[str, tuple[str, str]] = {}
        for weight, other, when, where in root._ties:
            for path in (weight, other):
                self.spec_at(path, where)
            check_symbols(dim(when, where), self.everywhere, where, what="@tied_to: when")
            if weight in self.ties:
                raise fail(f"@tied_to: {weight} is tied to {other} and to {self.ties[weight][0]}; expected one of them", where)
            self.ties[weight] = (other, when)
        for weight, other, _, where in root._ties:
            if other in self.ties:
                raise fail(f"@tied_to: {weight} is tied to {other}, which is tied itself; expected the weight that both are", where)

    def source(self, where: Where) -> dict[str, str]:
        """Source lines of a statement that contains others. Objectives have no source lines: resumed runs compare their text."""
        return {"source": source_of(where)} if self.root._kind == "model" else {}

    def place(self, module: Module, attrs: tuple[str, ...], path: str) -> None:
        """Gives every module below its path, and makes the blocks of Arrays."""
        if id(module) in self.attrs:
            raise fail(f"{path}: the same module as {module._path}; every place needs one of its own", module._where)
        self.attrs[id(module)] = attrs
        self.modules.append(module)
        module._path = path
        for cls in reversed(type(module).__mro__):
            for name, array in list(vars(cls).items()):
                if isinstance(array, ArrayType):
                    setattr(module, name, Repeated(array.count, self.find_block(type(module), array), array.where))
        children = {n: v for cls in reversed(type(module).__mro__) for n, v in vars(cls).items() if isinstance(v, Module)}
        for name, child in {**children, **{n: v for n, v in vars(module).items() if isinstance(v, Module)}}.items():
            if isinstance(module, Repeated):
                if path.count("{") == 4:
                    raise fail(f"{path}: more than 4 Arrays inside of one another", module._where)
                self.place(child, attrs, f"{path}.{{{'ijkl'[path.count('{')]}}}")
            else:
                self.place(child, (*attrs, name), f"{path}.{name}".lstrip("."))

    def check_names(self, module: Module) -> None:
        """Checks that every name in the class's own mappings exists."""
        cls, base = type(module), type(module).__mro__[1]
        for kind in ("_mapping", "_indexed", "_export", "_export_indexed"):
            for key in sorted(set(vars(cls).get(kind, {})) - set(getattr(base, kind, {}))):
                owner, what = module, f"@hf_{'export' if 'export' in kind else 'mapping'}"
                *parts, last = key.split(".")
                for name in (*parts, last):
                    owner = owner.block if isinstance(owner, Repeated) else owner
                    if not isinstance(owner, Module):
                        raise fail(f"{what}: {key}: there is nothing below a weight", module._where)
                    found = inspect.getattr_static(owner, name, None)
                    if found is None:
                        near = difflib.get_close_matches(name, owner._names(), 1)
                        raise fail(f"{what}: {type(owner).__name__} has no {name}"
                                   + (f"; did you mean {near[0]}?" if near else f"; it has {', '.join(owner._names())}"), module._where)
                    owner = found
                if "indexed" in kind and not isinstance(owner, Repeated):
                    raise fail(f"{what}.indexed: {key} is no Array; expected one", module._where)

    def find_block(self, owner: type, array: ArrayType) -> Module:
        block = array.block
        for cls in owner.__mro__ if isinstance(block, str) else ():
            block = getattr(sys.modules.get(cls.__module__), array.block, block)
            if not isinstance(block, str):
                break
        if not (isinstance(block, type) and issubclass(block, Module)):
            blocks = [n for n, v in vars(sys.modules[owner.__module__]).items() if isinstance(v, type) and issubclass(v, Module)]
            near = difflib.get_close_matches(str(block), blocks, 1)
            raise fail(f"Array: {block!r} is no @block of this file" + (f"; did you mean {near[0]}?" if near else ""), array.where)
        try:
            inspect.signature(block).bind()
        except (TypeError, ValueError) as error:
            raise fail(f"Array: {block.__name__} takes arguments ({error}); expected a @block whose __init__ has none", array.where) from None
        return block()

    # ---- weights ----

    def folder_name(self, module: Any, rest: tuple[str, ...], prefix: str = "", saved: bool = False) -> Any:
        """Name in a model folder of the attributes `rest` below the module; saved: the name under which it is written."""
        if isinstance(module, Repeated):
            module = module.block
        if not rest:
            return prefix
        for n in range(len(rest), 0, -1):
            key = ".".join(rest[:n])
            maps = [module._mapping, module._indexed] if not saved else [module._export, module._export_indexed, module._mapping, module._indexed]
            name = next((names[key] for names in maps if key in names), None)
            if name is None and n > 1:
                continue
            name = _join(prefix, name if name is not None else key)
            if n == len(rest):
                return name
            child = module
            for attr in rest[:n]:
                child = getattr(child.block if isinstance(child, Repeated) else child, attr)
            return self.folder_name(child, rest[n:], name, saved)
        return prefix

    def entry(self, owner: Module, spec: ParamSpec) -> tuple[dict[str, Any], Dims]:
        path = f"{owner._path}.{spec.name}".lstrip(".")
        dims = tuple(check_symbols(d, self.symbols, spec.where, what=path) for d in spec.shape.dims(owner) if isinstance(d, Dim))
        if len(dims) != len(spec.shape.items):
            raise fail(f'{path}: a weight has a whole shape, without "..."', spec.where)
        if not 1 <= len(dims) <= 4 or any(surely_more(Dim(1), d) for d in dims):
            raise fail(f"{path} is {show_dims(dims)}, expected 1 to 4 dims, each 1 or more", spec.where)
        attrs = self.attrs[id(owner)]
        entry: dict[str, Any] = {"param": path, "shape": [d.text for d in dims], "hf": self.folder_name(self.root, (*attrs, spec.name))}
        saved = self.folder_name(self.root, (*attrs, spec.name), "", True)
        for source in (entry["hf"], saved):
            self.check_source(entry["param"], source, spec)
        entry |= {"export": saved} if saved != entry["hf"] else {}
        for index in re.findall(r"\{.\}", owner._path):
            for name in (entry["hf"], saved):
                if index not in str(name):
                    raise fail(f"{entry['param']} is {name!r} in a model folder, the same in every turn; expected {index} in it", spec.where)
        for key, value in spec.options.items():
            if key != "init":
                value = self.option(owner, value)
            if key == "init" and isinstance(value, dict):
                check_symbols(dim(text, spec.where) if isinstance(text := value["normal"], str) else Dim(0), self.symbols, spec.where, what=f"{path}: init")
            if key in PARAM_FLAGS and not isinstance(value, bool):
                raise fail(f"{entry['param']}: {key} is {value!r}, expected True or False", spec.where)
            if key == "matrices":
                value = self.matrices(entry["param"], value, spec)
            if key == "linear" and value and "module" not in spec.options:
                entry["module"] = self.module_name(entry["hf"], self.folder_name(self.root, attrs), spec)
            if (key not in PARAM_FLAGS or value != (key == "decay")) and (key != "matrices" or value):
                entry[key] = value
        if spec.shape.dtype:
            entry["dtype"] = spec.shape.dtype
        entry["source"] = source_of(spec.where)
        return entry, dims

    def matrices(self, path: str, value: Any, spec: ParamSpec) -> list[str]:
        """The rows of each matrix within a weight; empty: the weight is one matrix."""
        if value is not None and not isinstance(value, (tuple, list)):
            raise fail(f'{path}: matrices is {value!r}, expected the rows of each in a tuple, as ("H * D", "G * D", "G * D")', spec.where)
        what = f"{path}: matrices"
        return [check_symbols(dim(rows, spec.where, what), self.symbols, spec.where, what=what).text for rows in value or ()]

    def check_source(self, path: str, source: Any, spec: ParamSpec) -> None:
        """Checks a weight's place in a model folder."""
        names = [source] if isinstance(source, str) else [n for k in ("concat", "transpose", "slice") if k in source
                                                          for n in (source[k] if k == "concat" else [source[k]])]
        for name in names:
            if not isinstance(name, str) or not re.fullmatch(r"(\{[^{}]+\}|[^\s,()\[\]{}=\"@:#\\])+", name):
                raise fail(f'{path} is {name!r} in a model folder, expected a name without blanks or any of ,()[]="@:#\\', spec.where)
            known = self.everywhere | dict.fromkeys("ijkl"[: path.count("{")], False)
            if isinstance(source, dict) and "index" in source:
                known |= {source["index"]: False}
            for inner in re.findall(r"\{(.*?)\}", name):
                check_symbols(dim(inner, spec.where, f"{path} is {name!r} in a model folder"), known, spec.where, what=f"{path} is {name!r} in a model folder")
        for key in ("begin", "total", "per"):
            if not isinstance(source, str) and key in source:
                check_symbols(dim(source[key], spec.where, f"{path}: {key}"), self.symbols, spec.where, what=f"{path}: {key}")

    def module_name(self, tensor: Any, owner: str, spec: ParamSpec) -> str:
        """LoRA's name of the linear layer whose weight is this tensor of a model folder."""
        name = tensor.removesuffix(".weight") if isinstance(tensor, str) and tensor.endswith(".weight") else owner
        if not name:
            raise fail(f'{spec.name}: no linear layer has this name; expected "weight" of a module of its own, a name in a model folder that ends'
                       ' in ".weight", or module="NAME"', spec.where)
        return name

    def spec_at(self, path: str, where: Where | None = None) -> tuple[Module, ParamSpec]:
        module: Any = self.root
        *attrs, name = path.split(".")
        for attr in attrs:
            module = getattr(module, attr, None)
        spec = inspect.getattr_static(type(module), name, None)
        if not isinstance(module, Module) or not isinstance(spec, ParamSpec):
            weights = [f"{m._path}.{n}".lstrip(".") for m in self.modules if "{" not in m._path for n in m._names()
                       if isinstance(inspect.getattr_static(type(m), n, None), ParamSpec)]
            near = difflib.get_close_matches(path, weights, 1)
            raise fail(f'@tied_to: the model has no weight "{path}" outside of its Arrays; '
                       + (f"did you mean {near[0]}?" if near else f"it has {', '.join(weights) or 'none'}"), where)
        return module, spec

    def param(self, owner: Module, spec: ParamSpec) -> Value | None:
        if id(owner) not in self.attrs:
            raise fail(f"{spec.name} is a weight of a module that isn't an attribute of the model", None)
        path = f"{owner._path}.{spec.name}".lstrip(".")
        if path not in self.params:
            self.params[path] = self.make_param(owner, spec, path)
        if (value := self.params[path]) is not None:
            self.refs[path] = value.ref
            turn = self.turn_of(path)
            self.made.setdefault(value.ref, []).append(self.sinks[-1] if self.branches and turn is self.turns[-1] else turn.params)
        return value

    def check_read(self) -> None:
        """Refuses weights that nothing reads: they would be made and saved, but never trained."""
        for module in self.modules:
            for name in dir(type(module)):
                spec = inspect.getattr_static(type(module), name)
                if not isinstance(spec, ParamSpec) or self.option(module, spec.when) in (False, None) or self.option(module, spec.options.get("frozen")) is True:
                    continue
                path = f"{module._path}.{name}".lstrip(".")
                if self.root._kind == "objective":
                    raise fail(f"{path}: an objective has no weights of its own; expected it in the model", spec.where)
                if self.refs.get(path) not in self.read:
                    error = fail(f"{path}: no op reads this weight; expected an op that does, or frozen=True for one that is only loaded and saved", spec.where)
                    raise error.seen_from(module._made)

    @staticmethod
    def option(owner: Module, value: Any) -> Any:
        """The value of a weight's option: itself, or the attribute of the weight's module with that name."""
        names_attr = isinstance(value, str) and not isinstance(inspect.getattr_static(type(owner), value, None), ParamSpec)
        return getattr(owner, value) if names_attr and hasattr(owner, value) else value

    def unless_declared(self, path: str, sink: list[dict[str, Any]], here: frozenset[tuple[str, bool]]) -> list[dict[str, Any]]:
        """The list for a weight's statement: the sink, or its part for when no earlier branch made the weight; unused if one surely did."""
        made = [m for m in self.declared.get(path, []) if not any((when, not holds) in here for when, holds in m)]
        self.declared.setdefault(path, []).append(here)
        if any(m <= here for m in made):
            return []
        rest: list[dict[str, Any]] = []
        if made:
            either = ["(" + " && ".join(f"({when})" if holds else f"!({when})" for when, holds in sorted(m - here)) + ")" for m in made]
            sink.append({"if": " || ".join(either), "then": [], "else": rest})
        return rest if made else sink

    @staticmethod
    def inside(sink: list[dict[str, Any]], when: str, holds: bool) -> list[dict[str, Any]]:
        """A list of statements in the sink that run under a condition."""
        inner: list[dict[str, Any]] = []
        sink.append({"if": when, "then": inner if holds else [], "else": [] if holds else inner})
        return inner

    def make_param(self, owner: Module, spec: ParamSpec, path: str) -> Value | None:
        when = self.option(owner, spec.when)
        if when is False or when is None:
            return None
        if self.root._kind == "objective":
            raise fail(f"{path}: an objective has no weights of its own; expected it in the model", spec.where)
        if path in self.names:
            raise fail(f'{path}: there is a value of the same name as this weight; give that one another: name="..."', spec.where)
        statement, dims = self.entry(owner, spec)
        then: list[dict[str, Any]] = [statement]
        turn, ref = self.turn_of(path), path
        in_branch = turn is self.turns[-1] and bool(self.branches)  # the branch makes its own weights
        branches, target = (self.branches, self.sinks[-1]) if in_branch else ([], turn.params)
        if self.depends_on_turn(branches):  # made before the branches: perhaps only a later turn runs this one
            branches, target = [b for b in branches if not self.depends_on_turn([b])], turn.params
            for when, holds in branches:
                target = self.inside(target, when, holds)
        elif in_branch and (first := self.first_turn()):
            target = self.inside(target, first, True)
        needs = (*turn.needs, *self.in_first_turn(branches))
        if not self.skips_first_turn(needs):
            self.late.pop(path, None)
        elif path not in self.declared and not self.turns[-1].never and not self.fails(self.branches):
            self.late[path] = spec.where
        sink = self.unless_declared(path, target, frozenset(needs))
        if not in_branch and when is True and path not in self.ties:  # only weights that always exist
            other = self.tensors.setdefault(str(statement["hf"]), path)
            if other != path:
                raise fail(f"{path} is {statement['hf']!r} in a model folder, as {other} is; give each its own name, or say @tied_to", spec.where)
            if statement.get("linear") and "module" in statement:
                if self.linears.setdefault(statement["module"], path) != path and "module" not in spec.options:
                    statement["module"] = statement["hf"] if isinstance(statement["hf"], str) else path
                other = self.linears.setdefault(statement["module"], path)
                if other != path:
                    raise fail(f'{path} is the weight of the linear layer {statement["module"]}, as {other} is, and LoRA would name both the same;'
                               ' give each module="NAME"', spec.where)
        if isinstance(when, str):
            check_symbols(dim(when, spec.where, f"{path}: when"), self.symbols, spec.where, what=f"{path}: when")
            sink.append({"if": when, "then": then, "else": []} | self.source(spec.where))
            return Value(path, dims, spec.shape.dtype, when)
        readers = [(weight, cond) for weight, (other, cond) in self.ties.items() if other == path]
        if path in self.ties:
            other, cond = self.ties[path]
            base, ref = self.param(*self.spec_at(other)), path.replace(".", "_")
            self.read.add(other)
            if base is None or base.dims != dims:
                raise fail(f"{path} is {show_dims(dims)}, expected {'none' if base is None else show_dims(base.dims)} as {other}, which it is tied to", spec.where)
            sink.append({"if": cond, "then": [{"let": ref, "is": other}], "else": [*then, {"let": ref, "is": path}]})
        elif readers:
            more = self.entry(*self.spec_at(readers[0][0]))[0]
            own = {"untied": more["hf"]} if isinstance(more["hf"], str) else {}
            both = {**statement, **{k: v for k, v in more.items() if k not in ("param", "shape", "hf", "export", "init", "source")}, **own}
            sink.append({"if": readers[0][1], "then": [both], "else": then})
        else:
            sink.append(statement)
        return Value(ref, dims, spec.shape.dtype)

    def first_turn(self) -> str:
        """Condition of the first turn of all enclosing g.repeat, which makes the weights that the turns share; "": no g.repeat."""
        return " && ".join(f"{t.index} == 0" for t in self.turns if t.shared)

    def in_first_turn(self, conditions: list[tuple[str, bool]]) -> list[tuple[str, bool]]:
        """The conditions in the first turn of all enclosing g.repeat: their indexes are replaced by 0."""
        turns = [t.index for t in self.turns if t.shared]
        return [(re.sub(rf"\b({'|'.join(turns)})\b", "0", when) if turns else when, holds) for when, holds in conditions]

    def depends_on_turn(self, conditions: list[tuple[str, bool]]) -> bool:
        """Whether a condition depends on the index of an enclosing g.repeat, whose turns share weights."""
        turns = {t.index for t in self.turns if t.shared}
        return any(turns & dim(when).names for when, _ in conditions)

    @staticmethod
    def fails(conditions: Iterable[tuple[str, bool]]) -> bool:
        """Whether a condition surely fails, whatever its symbols are."""
        return any(Dim(f"({when}) != 0") == Dim(0 if holds else 1) for when, holds in conditions)

    def skips_first_turn(self, conditions: tuple[tuple[str, bool], ...]) -> bool:
        """Whether a condition surely fails in the first turn of an enclosing g.repeat. conditions: as in_first_turn gives them."""
        return bool(self.first_turn()) and self.fails(conditions)

    def turn_of(self, path: str) -> Turn:
        """The turn that makes a weight: the innermost whose index is in its path."""
        inner = re.findall(r"\{(\w)\}", path)[-1:]
        return next((t for t in reversed(self.turns) if [t.index] == inner), self.turns[0])

    # ---- ops ----

    @staticmethod
    def check_name(op: str, name: Any) -> None:
        if name is not None and (not isinstance(name, str) or not re.fullmatch(NAME, name)):
            raise fail(f'{op}: name is {name!r}, expected a text without blanks or any of ,()[]{{}}="@:#\\')

    def name_of(self, op: str, name: str | None) -> str:
        frame = self.frames[-1]
        prefix = f"{frame.module._path}." if frame.module._path else ""
        own = frame.alias or frame.module._path
        self.check_name(op, name)
        turns = "".join(f"~{{{t.index} + 1}}".replace(" ", "") for t in self.turns if t.shared)
        names = [prefix + name] if name else [own, prefix + op] if own else [prefix + op]
        marks = [turns, f"{turns}~{frame.call}"] if frame.call > 1 else [turns]
        plain, full = next(((n, n + mark) for n in names for mark in marks if n + mark not in self.names and n + mark not in self.params), ("", ""))
        if not full:
            raise fail(f'{op}: there is a value named "{names[-1]}"; give this one another: name="..."')
        self.names.add(full)
        frame.made.setdefault(plain, []).append(full)
        return full

    def readable(self, op: str, what: str, value: Any, where: Where | None = None) -> Value:
        if not isinstance(value, Value):
            more = ": what calling it gives" if isinstance(value, Module) else ""
            more = f": one of {value.show()}" if isinstance(value, Others) else more
            more = ": inputs stand one by one" if isinstance(value, (list, tuple)) and not more and any(isinstance(v, Value) for v in value) else more
            more = f", as g.full(size=1, value={value})" if isinstance(value, (int, float)) and not isinstance(value, bool) else more
            raise fail(f"{op}: {what} is {value!r}, expected a tensor{more}", where)
        if not set(re.findall(r"\{(\w+)", value.ref)) <= {t.index for t in self.turns}:
            raise fail(f"{op}: {what} was made inside of a repeat, and isn't there outside of it; expected what the blocks gave", where)
        if value.ref not in self.made:
            raise fail(f"{op}: {what} is of another graph; expected a value that this @forward was given or made", where)
        here, places = [*self.sinks, *(t.params for t in self.turns)], [value.turn] if value.turn is not None else self.made[value.ref]
        if not any(sink is place for place in places for sink in here):
            inside = value.turn is not None or any(place is body for place in places for body in self.bodies)
            raise fail(f"{op}: {what} was made {'inside of a repeat' if inside else 'in a branch of g.select'}, and isn't there outside of it; expected what"
                       f" {'its turns' if inside else 'g.select'} gave", where)
        self.read.add(value.ref)
        return value

    def inputs_of(self, op: Op, args: tuple[Any, ...], more: dict[str, Any]) -> list[Value | None]:
        if not op.usable:
            raise fail(f"{op.name}: the engine makes it; models don't apply it")
        if len(args) > len(op.inputs):
            attrs = isinstance(args[len(op.inputs)], (str, int, float)) and op.attrs
            raise fail(f"{op.name}: {len(args)} inputs, expected at most {len(op.inputs)}: {op.signature}"
                       + (f"; attributes have names, as {next(iter(op.attrs))}={args[len(op.inputs)]!r}" if attrs else ""))
        values: list[Value | None] = []
        for k, operand in enumerate(op.inputs):
            given = args[k] if k < len(args) else more.pop(operand.name, more.pop(operand.other.name, None) if operand.other else None)
            if given is None and not operand.optional:
                raise fail(f"{op.name}: {operand.name} is missing; expected {op.signature}")
            values.append(None if given is None else self.readable(op.name, operand.name, given))
        while values and values[-1] is None:
            values.pop()
        return values

    def op(self, name: str, args: tuple[Any, ...], more: dict[str, Any]) -> Value:
        op = OPS.get(name)
        if op is None:
            plain = {o.replace("_", ""): o for o in OPS}
            near = difflib.get_close_matches(name.lower().replace("_", ""), plain, 1, 0.7)
            advice = INSTEAD.get(name) or (f"did you mean {plain[near[0]]}?" if near else "`surogate ops` lists them")
            raise fail(f"unknown op {name}; {advice}")
        label, part, keep = more.pop("name", None), more.pop("part", None), more.pop("save", None)
        values = self.inputs_of(op, args, more)
        attrs = {k: attribute(op, k, v, self.symbols) for k, v in more.items()}
        check_there(op, attrs)
        bound = bind(op, values, attrs)
        check_sizes(op, values, attrs, bound)
        return self.emit(op, values, attrs, outputs(op, values, attrs, bound), label, part, keep)

    def emit(self, op: Op, values: list[Value | None], attrs: dict[str, Any], outs: list[tuple[Dims, str]], label: str | None,
             part: str | None, keep: bool | None = None) -> Value:
        if keep not in (None, True, False):
            raise fail(f"{op.name}: save is {keep!r}, expected True (kept for the backward pass) or False (computed again)")
        if part is not None and part not in (*PARTS, "block"):
            raise fail(f"{op.name}: part is {part!r}, expected one of {', '.join(PARTS)}, block")
        ref = self.name_of(op.name, label)
        part, where = part or next((f.part for f in reversed(self.frames) if f.part), None), caller()

        def statement(absent: str) -> dict[str, Any]:
            names = [None if v is None or (absent and v.when == absent) else v.ref for v in values]
            return {"op": op.name, "in": names, "out": ref} | ({"attrs": attrs} if attrs else {}) | ({"part": part} if part else {}) | (
                {} if keep is None else {"save": keep}) | {"source": source_of(where)}

        conditions = sorted({v.when for v in values if v is not None and v.when})
        if len(conditions) > 1:
            raise fail(f"{op.name}: weights of several conditions ({', '.join(conditions)}); expected one")
        for operand, value in zip(op.inputs, values, strict=False):
            if value is not None and value.when and not operand.optional:
                raise fail(f"{op.name}: {operand.name} isn't there unless {value.when}; expected a weight that always is")
        forms = [statement(absent) for absent in ("", *conditions)]
        self.sinks[-1].append({"if": conditions[0], "then": forms[:1], "else": forms[1:]} if conditions else forms[0])
        self.statements[ref] = forms
        others = Others(Value(f"{ref}.{k}", *o) for k, o in enumerate(outs) if k)
        others.names = tuple(o.name for o in op.outputs[1:] if not o.optional or o.name not in op.attrs or attrs.get(o.name))
        for taken in (v.ref for v in others if v.ref in self.names):
            raise fail(f'{op.name}: there is a value named "{taken}", as its further output would be; give one of them another: name="..."')
        self.names |= {v.ref for v in others}
        for made in (ref, *(v.ref for v in others)):
            self.made[made] = [self.sinks[-1]]
        value = Value(ref, *outs[0], "", others)
        self.nodes.append(Node(op.name, [v.ref for v in values if v is not None], value, where, len(self.turns) > 1, attrs))
        return value

    def reshape(self, x: Any, dims: tuple[Any, ...], name: str | None, part: str | None) -> Value:
        x = self.readable("reshape", "x", x)
        want = tuple(check_symbols(dim(d, None, "reshape"), self.symbols, what="reshape") for d in dims)
        if any(surely_more(Dim(1), d) for d in want):
            raise fail(f"reshape: dims are {show_dims(want)}, expected each to be 1 or more, as \"T\"; none is left to be found")
        if not 1 <= len(want) <= 4 or not same_size(x.dims, want):
            raise fail(f"reshape: x is {x}, expected as many elements as {show_dims(want)}, of 1 to 4 dims")
        attrs: dict[str, Any] = {"ndim": len(want)} | {f"d{k}": d.text for k, d in enumerate(want)}
        return self.emit(OPS["reshape"], [x], attrs, [(want, x.dtype)], name, part)

    # ---- modules ----

    def check(self, what: str, owner: Module, want: Any, value: Any, where: Where | None) -> None:
        if not isinstance(want, TensorType):
            return
        dims = want.dims(owner)
        for d in dims:
            if isinstance(d, Dim):
                check_symbols(d, self.symbols, want.where, what=what)
        text = f"{want.dtype} ({', '.join(d if isinstance(d, str) else d.text for d in dims)})".strip()
        if not isinstance(value, Value):
            raise fail(f"{what} is {value!r}, expected a tensor {text}" + ("; a @forward returns what it makes" if value is None and where else ""), where)
        if not match(dims, value.dims, {}) or (want.dtype and want.dtype != value.dtype):
            raise fail(f"{what} is {value}, expected {text}", where)

    def forward_of(self, module: Module) -> Any:
        found = [f for n in dir(type(module)) if getattr(f := inspect.getattr_static(type(module), n), "_forward", False)]
        if len(found) != 1:
            raise fail(f"{type(module).__name__} has {len(found)} methods with @forward, expected 1", module._where)
        return found[0]

    def call(self, module: Module, args: tuple[Any, ...], more: dict[str, Any], name: str | None, part: str | None) -> Any:
        try:
            return self.apply(module, args, more, name, part)
        except (DslError, RecursionError) as error:
            raise error.within(self.instance(module)) if isinstance(error, DslError) else error from None
        except Exception as error:
            if not (message := of_python(error, "")):
                raise
            raise message.within(self.instance(module)) from None

    def instance(self, module: Module) -> str:
        """For messages: the module's path and its branches. A helper that isn't part of the model counts as its caller."""
        module = module if id(module) in self.attrs or not self.frames else self.frames[-1].module
        branches = " and ".join(when if holds else f"!({when})" for when, holds in self.branches)
        return (module._path or type(module).__name__) + (f" where {branches}" if branches else "")

    def apply(self, module: Module, args: tuple[Any, ...], more: dict[str, Any], name: str | None, part: str | None) -> Any:
        if id(module) not in self.attrs:
            raise fail(f"{type(module).__name__} isn't an attribute of the model; expected it to be set in __init__ or in the class, and not in a list")
        if isinstance(module, Repeated):
            return self.repeat(module, args, more)
        function, label = self.forward_of(module), type(module).__name__
        self.check_name(label, name)
        try:
            bound = inspect.signature(function).bind(module, *args, **more)
        except TypeError as error:
            raise fail(f"{label}: {error}; expected {', '.join(list(inspect.signature(function).parameters)[1:]) or 'nothing'}") from None
        where = None if self.frames else (function.__code__.co_filename, function.__code__.co_firstlineno)
        for key, value in list(bound.arguments.items())[1:]:
            self.check(f"{label}: {key}", module, function.__annotations__.get(key), value, where)
        alias = ".".join(p for p in (self.frames[-1].module._path, name) if p) if name and self.frames else ""
        inherited = next((f.part for f in reversed(self.frames) if f.part), None)
        self.calls[id(module)] = self.calls.get(id(module), 0) + 1
        frame = Frame(module, part or inherited or getattr(function, "_part", None), alias, self.calls[id(module)])
        self.frames.append(frame)
        result = function(*bound.args, **bound.kwargs)
        self.frames.pop()
        self.read_frozen(module)
        self.save(frame, *getattr(function, "_save", ((), None)))
        if self.frames:
            for plain, refs in frame.made.items():
                self.frames[-1].made.setdefault(plain, []).extend(refs)
        code = function.__code__
        self.check(f"{label}: its result", module, function.__annotations__.get("return"), result, (code.co_filename, code.co_firstlineno))
        return result

    def read_frozen(self, module: Module) -> None:
        """Declares weights that are only loaded and saved, without an op that reads them."""
        for name in dir(type(module)):
            if isinstance(spec := inspect.getattr_static(type(module), name), ParamSpec) and self.option(module, spec.options.get("frozen")) is True:
                self.param(module, spec)

    def save(self, frame: Frame, names: tuple[str, ...], where: Where | None) -> None:
        prefix = f"{frame.module._path}." if frame.module._path else ""
        for name in names:
            forms = [form for ref in frame.made.get(prefix + name, []) for form in self.statements.get(ref, [])]
            if not forms:
                made = [plain.removeprefix(prefix) for plain, refs in frame.made.items() if refs[0] in self.statements and plain.startswith(prefix)]
                raise fail(f"@save: {type(frame.module).__name__} makes no {name!r}; it makes {', '.join(filter(None, made)) or 'nothing with a name'}", where)
            for form in forms:
                form.setdefault("save", True)

    def repeat(self, module: Repeated, args: tuple[Any, ...], more: dict[str, Any]) -> Any:
        if not args:
            raise fail(f"{module._path}: expected the tensor that goes from one to the next, or a tuple of several")
        several = isinstance(args[0], tuple)
        first = [self.readable(module._path, f"tensor {k}" if several else "the first argument", v) for k, v in enumerate(args[0] if several else args[:1])]
        if not first:
            raise fail(f"{module._path}: the first argument is (), expected the tensors that go from one to the next")
        check_symbols(module.count, self.symbols, module._where, what="Array")
        names = list(inspect.signature(self.forward_of(module.block)).parameters)
        if len(names) < 2:
            raise fail(f"{type(module.block).__name__}: its @forward takes no tensor", module.block._where)
        index = "ijkl"[module._path.count("{")]
        if index in (t.index for t in self.turns):
            raise fail(f"{module._path}: applied inside of one of its own blocks")
        carried = [self.carried(f"{names[1]}{k or ''}", v) for k, v in enumerate(first)]
        with self.body(Turn([], index=index)) as turn:
            given = tuple(replace(c, turn=turn.ops) for c in carried)
            made = self.call(module.block, (given if several else given[0], *args[1:]), more, None, None)
            block, results = type(module.block).__name__, made if several and isinstance(made, tuple) else (made,)
            if not all(isinstance(r, Value) for r in results) or [r.dims for r in results] != [v.dims for v in first]:
                raise fail(f"{block}: its result is {made!r}, expected {tuple(first) if several else first[0]} as its first input", module.block._where)
            results = tuple(self.readable(block, "its result", r, module.block._where) for r in results)
        first_turn = self.first_turn()
        params = [{"if": first_turn, "then": turn.params, "else": []}] if first_turn and turn.params else turn.params
        self.sinks[-1].append({"repeat": module.count.text, "index": index, "carry": {c.ref: v.ref for c, v in zip(carried, first, strict=True)},
                               "body": params + turn.ops, "yield": {c.ref: r.ref for c, r in zip(carried, results, strict=True)}}
                              | self.source(module._where))
        return tuple(carried) if several else carried[0]

    def carried(self, name: str, first: Value) -> Value:
        """The name inside a repeat for the carried value, and after the repeat for its last value."""
        while name in self.names:
            name += "_"
        self.names.add(name)
        self.made[name] = [self.sinks[-1]]
        return Value(name, first.dims, first.dtype)

    @contextmanager
    def body(self, turn: Turn) -> Iterator[Turn]:
        """Statements inside belong to the turn. If the repeat may have no turns, weights that it makes may not exist after it."""
        runs, before = [(f"{turn.count} > 0", True)] if turn.count else [], dict(self.params)
        turn.needs = (*self.turns[-1].needs, *self.in_first_turn([*self.branches, *runs]))
        turn.never = self.turns[-1].never or self.fails([*self.branches, *runs])
        self.turns.append(turn)
        self.sinks.append(turn.ops)
        self.bodies.append(turn.ops)
        self.symbols[turn.index] = False
        outside, self.branches = self.branches, []
        yield turn
        self.branches = outside
        del self.symbols[turn.index]
        self.sinks.pop()
        self.turns.pop()
        self.params = before if turn.count else self.params

    def repeat_shared(self, count: Any, turn: Callable[..., Any], first: tuple[Any, ...]) -> Any:
        times, index = check_symbols(dim(count, None, "repeat"), self.symbols, what="repeat"), "turn" + "".join("_" for t in self.turns if t.shared)
        if not callable(turn) or not first:
            raise fail("repeat: expected how often, a function and what it is given first, as g.repeat(\"L\", lambda x: self.block(x), x)")
        if index in self.symbols:
            raise fail(f"repeat: {index} is the index of its turns; give the symbol {index} of the config another name")
        given = [self.readable("repeat", f"tensor {k}", v) for k, v in enumerate(first)]
        carried = [self.carried(f"carried{k or ''}", v) for k, v in enumerate(given)]
        outermost, before = len(self.turns) == 1 and not self.branches, len(self.turns[0].params)
        indexes = {t.index for t in self.turns} & set(re.findall(r"\w+", times.text))  # indexes begin at 0
        body = Turn([], index=index, shared=True, count="" if surely_more(times, Dim(0)) and not indexes else times.text)
        with self.body(body):
            result = turn(*(replace(c, turn=body.ops) for c in carried))
            results = [self.readable("repeat", "a turn's result", r) for r in (result if isinstance(result, tuple) else (result,))]
        if [(r.dims, r.dtype) for r in results] != [(v.dims, v.dtype) for v in given]:
            raise fail(f"repeat: a turn gives {', '.join(map(repr, results))}, expected {', '.join(map(repr, given))} as it is given")
        for path, where in self.late.items():
            raise fail(f"{path}: the first turn of g.repeat doesn't apply its Array; expected g.select inside of the block, or the Array in the first turn too",
                       where)
        if outermost:  # weights that only this body reads belong to the first turn's layer
            made = self.turns[0].params[before:]
            mine = [p for p in made if '"let"' not in json.dumps(p)]  # a let's name would be known in one turn only
            self.turns[0].params[before:] = [p for p in made if p not in mine]
            for path in re.findall(r'"param": "([^"]+)"', json.dumps(mine)) if body.count else ():
                self.declared[path][-1] = frozenset(body.needs)
            body.params = [{"if": f"{index} == 0", "then": mine, "else": []}] if mine else []
        self.sinks[-1].append({"repeat": times.text, "index": index, "carry": {c.ref: v.ref for c, v in zip(carried, given, strict=True)},
                               "body": body.params + body.ops, "yield": {c.ref: r.ref for c, r in zip(carried, results, strict=True)}}
                              | self.source(caller()))
        return tuple(carried) if len(carried) > 1 else carried[0]

    def select(self, when: str, then: Callable[[], Any], otherwise: Callable[[], Any], name: str) -> Value:
        check_symbols(dim(when, None, "select: when"), self.symbols, what="select: when")
        if not callable(then) or not callable(otherwise):
            raise fail("select: expected two functions, as lambda: self.full(x)")
        ref, values, bodies = re.sub("[{}]", "", self.name_of("select", name)), [], []  # the name of a let has no index
        for holds, branch in ((True, then), (False, otherwise)):
            before = dict(self.params)
            self.sinks.append([])
            self.branches.append((dim(when).text, holds))
            values.append(self.readable("select", "a branch's result", branch()))
            self.branches.pop()
            bodies.append([*self.sinks.pop(), {"let": ref, "is": values[-1].ref}])
            self.params = before
        if values[0].dims != values[1].dims or values[0].dtype != values[1].dtype:
            raise fail(f"select: its second branch gives {values[1]}, expected {values[0]} as its first")
        self.sinks[-1].append({"if": when, "then": bodies[0], "else": bodies[1]} | self.source(caller()))
        self.made[ref] = [self.sinks[-1]]
        return Value(ref, values[0].dims, values[0].dtype)


@dataclass
class Built:
    ir: dict[str, Any]
    nodes: list[Node]
    outputs: dict[str, Value]


def build(cls: type) -> Built:
    """The IR of a @model or an @objective: docs/ir.md."""
    try:
        return _build(cls)
    except Exception as error:
        message = error if isinstance(error, DslError) else of_python(error, "")
        if not message:
            raise
        raise message.seen_from(getattr(cls, "_where", ("", 0))) from None


def _build(cls: type) -> Built:
    where = getattr(cls, "_where", ("", 0))
    if not (isinstance(cls, type) and issubclass(cls, Module)) or cls._kind not in ("model", "objective"):
        raise fail(f"{getattr(cls, '__name__', cls)!s}: expected a class with @model or @objective")
    if cls._abstract:
        raise fail(f"{cls.__name__} is abstract; build a {cls._kind} that extends it", where)
    if cls._kind == "model" and not isinstance(cls._config, Config):
        raise fail(f"{cls.__name__} has no @hf_config, which says what its symbols are", where)
    config = cls._config if cls._kind == "model" else OBJECTIVE
    try:
        inspect.signature(cls).bind()
    except (TypeError, ValueError) as error:
        raise DslError(where, f"{cls.__name__} takes arguments ({error}); expected a @{cls._kind} whose __init__ has none") from None
    try:
        builder = Builder(cls(), config)
    except RecursionError:
        raise DslError(where, f"{cls.__name__}: modules hold one another without end") from None
    _builders.append(builder)
    try:
        function = builder.forward_of(builder.root)
        line = (function.__code__.co_filename, function.__code__.co_firstlineno)
        own = {n: t for n, t in function.__annotations__.items() if isinstance(t, InputType)}
        result = builder.call(builder.root, (), _given(builder, cls, function, own, line), None, None)
        check_outputs(builder, cls, result, line)
        builder.check_read()
    except RecursionError:
        raise DslError(where, f"{cls.__name__}: modules call one another without end") from None
    finally:
        _builders.pop()
    ir: dict[str, Any] = {"surogate_ir": 1}
    if cls._kind == "objective":
        ir |= {"objective": cls.__name__}
    else:
        ir |= {"architecture": config.architecture, "config": [{"symbol": s} | k.entry for s, k in config.symbols.items()], "roles": config.roles,
               "require": config.require, "ignored": config.ignored, "refused": config.refused, "unread": config.unread}
    ir |= {"inputs": [{"name": n} | t.entry for n, t in own.items()]} if own else {}
    ir |= ({"prefix": config.prefix} if config.prefix else {}) | {"graph": builder.sinks[0]}
    return Built(ir, builder.nodes, result)


def _given(builder: Builder, cls: type[Module], function: Any, own: dict[str, InputType], line: Where) -> dict[str, Value]:
    """The tensors that the @forward of a model or an objective takes by name."""
    kinds = INPUTS | (READ if cls._kind == "objective" else {})
    names = list(inspect.signature(function).parameters)[1:]
    for name in names:
        if name not in kinds and name not in own:
            raise fail(f"{cls.__name__}: there is no input {name}; {'an objective' if cls._kind == 'objective' else 'a model'} reads {', '.join(kinds)};"
                       f" or its own: {name}: Input[\"i32\"]", line)
        if name in own and (name in kinds or name == "row"):
            raise fail(f"{cls.__name__}: {name} is an input of the engine; give the {cls._kind}'s own another name", line)
    builder.names |= set(own)
    builder.made |= {n.replace("_", ".") if n == "teacher_logits" else n: [builder.sinks[0]] for n in names}
    kinds |= {n: (t.dims, t.dtype) for n, t in own.items()}
    return {n: Value(n.replace("_", ".") if n == "teacher_logits" else n, tuple(map(Dim, kinds[n][0])), kinds[n][1]) for n in names}


def check_outputs(builder: Builder, cls: type[Module], result: Any, line: Where) -> None:
    """Writes the outputs of a @forward as statements.

    A model gives logits, hidden (the input of its head), losses and loss if it has its own, and further numbers. An objective gives loss,
    losses of tokens for evaluations if they are its own, and further numbers.
    """
    numbers = cls._kind == "objective"
    needed, more = ("loss", "losses and other numbers") if numbers else ("logits", "hidden, losses and loss")
    if not isinstance(result, dict) or needed not in result:
        raise fail(f"{cls.__name__}: its @forward gives {result!r}, expected a dict of {needed}, which may have {more} too", line)
    if not numbers and ("loss" in result) != ("losses" in result):
        raise fail(f"{cls.__name__}: its @forward gives only one of loss and losses; expected both or, for those of the engine, none", line)
    dims = OUTPUTS | ({} if numbers else {"logits": ("B", "T", cls._config.roles["vocabulary"])})
    if not numbers and isinstance(hidden := result.get("hidden"), Value):
        dims["hidden"] = ("B", "T", hidden.dims[-1].text)
    for name, value in result.items():
        near = [] if numbers or name in OUTPUTS else difflib.get_close_matches(str(name), set(OUTPUTS) - set(result), 1, 0.8)
        if not isinstance(name, str) or not re.fullmatch(NAME, name) or near:
            raise fail(f"{cls.__name__}: an output is named {name!r}; " + (f"did you mean {near[0]}?" if near else "expected a text without blanks"), line)
        value = builder.readable("output", name, value, line)
        if numbers and name in ("hidden", "logits"):
            raise fail(f"{cls.__name__}: {name} is the model's; expected loss, losses and further numbers", line)
        want = tuple(Dim(d) for d in dims.get(name, ("1",) if numbers else ()))
        if (numbers or name in dims) and value.dims != want:
            raise fail(f"{cls.__name__}: {name} is {value}, expected {show_dims(want)}", line)
        if name in OUTPUTS and value.dtype not in (("", "f32") if name in ("losses", "loss") else ("", "f32", "bf16")):
            raise fail(f"{cls.__name__}: {name} is {value}, expected {'f32 ' if name in ('losses', 'loss') else ''}{show_dims(value.dims)}", line)
        builder.sinks[0].append({"output": name, "is": value.ref} | builder.source(line))
