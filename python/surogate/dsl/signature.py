"""Checks the arguments of an op against its line in `surogate ops`: dims, dtypes and attributes."""

from __future__ import annotations

import difflib
import math
import re
from typing import Any

from surogate.dsl.dims import Dim, show_dims, surely_more
from surogate.dsl.ops import Op, Operand
from surogate.dsl.spec import Each, check_symbols, dim, fail
from surogate.dsl.values import Dims, Value

# Least values of attributes that are known numbers. An attribute with 1 must be given if the op has no default, or 0 as a default.
LEAST = {"k": 1, "size": 1, "len": 1, "num_heads": 1, "num_kv_heads": 1, "head_dim": 1, "begin": 0, "before": 0, "after": 0, "window": 0}


def _show(op: Op, bound: dict[str, Any], operand: Operand) -> str:
    dims: list[str] = []
    for d in operand.dims:
        value = bound.get(d, d)
        dims += [x.text for x in value] if isinstance(value, tuple) else [value.text if isinstance(value, Dim) else d]
    if operand.dims == ("+",) and "+" in bound:
        dims[bound["+dim"]] = "any"
    return f"{operand.dtype} ({', '.join(dims)})".strip()


def _spread(a: Dims, b: Dims) -> Dims | None:
    """The dims that a and b broadcast to. Each dim must be equal, or 1 in a or b, or a or b must be a single number; otherwise None."""
    one = Dim("1")
    if (one,) in (a, b):
        return b if a == (one,) else a
    if len(a) != len(b) or any(one not in (x, y) and x != y for x, y in zip(a, b, strict=True)):
        return None
    return tuple(y if x == one else x for x, y in zip(a, b, strict=True))


def match(pattern: tuple[Any, ...], dims: Dims, bound: dict[str, Any]) -> bool:
    """Binds the pattern's dims to the actual dims. An expression in the pattern fits anything; if it is 2F, F is half of the dim."""
    if pattern == ("+",):  # bound["+dim"]: index of that dim
        total, k = bound.get("+"), bound["+dim"]
        if total is None:
            bound["+"] = dims
            return True
        if len(total) != len(dims) or any(x != y for d, (x, y) in enumerate(zip(total, dims, strict=True)) if d != k % len(dims)):
            return False
        bound["+"] = tuple(x + y if d == k % len(dims) else x for d, (x, y) in enumerate(zip(total, dims, strict=True)))
        return True
    if pattern == ("*",):
        spread = _spread(bound.get("*", dims), dims)
        bound["*"] = spread or bound["*"]
        return spread is not None
    if "..." in pattern:
        rest = len(pattern) - 1
        if len(dims) < rest:
            return False
        if not match(tuple(p for p in pattern if p != "..."), dims[len(dims) - rest :], bound):
            return False
        lead = dims[: len(dims) - rest]
        return bool(bound.setdefault("...", lead) == lead)
    if len(pattern) != len(dims):
        return False
    for p, d in zip(pattern, dims, strict=True):
        want = p if isinstance(p, Dim) else Dim(p) if p.isdigit() else bound.setdefault(p, d)
        if want != d:
            return False
        if isinstance(p, str) and (times := re.fullmatch(r"(\d+)([A-Za-z]\w*)", p)):
            bound.setdefault(times[2], d / int(times[1]))
    return True


def bind(op: Op, values: list[Value | None], attrs: dict[str, Any]) -> dict[str, Any]:
    """The dims that the letters of the op's line stand for in this call."""
    bound: dict[str, Any] = {}
    if ("+",) in (o.dims for o in op.inputs) and values[0] is not None:
        bound["+dim"] = dim_of(op, values[0].dims, attrs)
    for operand, value, after in zip(op.inputs, values, [*values[1:], None], strict=False):
        if value is None:
            continue
        if operand.other and after is None:  # no further operand: this one is the packed form
            operand = operand.other
        floats = ("", "f32", "bf16")
        fits = value.dtype in ((*floats, "i32") if operand.dtype == "any" else (operand.dtype,) if operand.dtype else floats)
        before, dims = dict(bound), value.dims
        if op.name == "pick" and operand.name == "ids" and values[0] is not None and len(dims) == len(values[0].dims):
            dims, bound["several"] = dims[:-1], dims[-1:]  # several ids per row
        if not fits and not operand.dtype and match(operand.dims, value.dims, dict(bound)):
            raise fail(f'{op.name}: {operand.name} is {value}, expected f32 or bf16, as g.cast({operand.name}, dtype="f32") makes it: {op.signature}')
        if not match(operand.dims, dims, bound) or not fits:
            raise fail(f"{op.name}: {operand.name} is {value}, expected {_show(op, before, operand)}: {op.signature}")
    return bound


def attribute(op: Op, name: str, value: Any, symbols: dict[str, bool]) -> Any:
    """The statement's form of an attribute: a number, a word, or an expression of `symbols`."""
    if name not in op.attrs:
        near = difflib.get_close_matches(name, op.attrs, 1)
        raise fail(f"{op.name} has no attribute {name}" + (f"; did you mean {near[0]}?" if near else f"; it has {', '.join(op.attrs) or 'none'}"))
    kind = op.attrs[name]["type"]
    if kind == "dtype":
        known = {"cast": ("f32", "bf16", "i32"), "full": ("f32", "i32")}.get(op.name, ("f32", "bf16"))
        if value not in known:
            raise fail(f"{op.name}: {name} is {value!r}, expected {' or '.join(chr(34) + k + chr(34) for k in known)}")
        return value
    if isinstance(value, Each) or kind == "list":
        if not isinstance(value, Each) or kind != "list":
            raise fail(f"{op.name}: {name} is {'a list' if isinstance(value, Each) else repr(value)}, expected "
                       + ('a list, as each("D / 2", "i + 1")' if kind == "list" else f"{kind} or an expression"))
        what = f"{op.name}: {name}"
        return {"per": check_symbols(dim(value.per, None, what), symbols, what=what).text,
                "value": check_symbols(dim(value.value, None, what), symbols | {"i": False}, what=what).text}
    what = f"{op.name}: {name}"
    text = check_symbols(dim(value, None, what), symbols, what=what).text if isinstance(value, (str, Dim)) else str(value)
    if name in LEAST and re.fullmatch(r"-?\d+", text) and int(text) < LEAST[name]:
        raise fail(f"{op.name}: {name} is {text}, expected {LEAST[name]} or more")
    if isinstance(value, (str, Dim)):
        return text
    if isinstance(value, float) and not math.isfinite(value):
        raise fail(f"{op.name}: {name} is {value!r}, expected a finite number")
    if not isinstance(value, (bool, int) if kind == "bool" else int if kind == "int" else (int, float)) or isinstance(value, bool) != (kind == "bool"):
        raise fail(f"{op.name}: {name} is {value!r}, expected {kind} or an expression")
    return value


def check_sizes(op: Op, values: list[Value | None], attrs: dict[str, Any], bound: dict[str, Any]) -> None:
    """Refuses sizes that can't fit with any config. The engine checks all sizes once the numbers are known."""
    for name, d in (("num_heads", "H"), ("num_kv_heads", "G"), ("head_dim", "D")):
        if op.name == "attention" and len(values) > 2 and d in bound and isinstance(bound[d], Dim):
            said, there = Dim(attrs[name]), bound[d]
            if surely_more(said, there) or surely_more(there, said):
                raise fail(f"{op.name}: {name} is {said}, expected {there}, as q is {values[0]}" + (f" and k {values[1]}" if d == "G" else ""))
    if op.name in ("slice", "columns", "topk") and (x := values[0]) is not None:
        whole = x.dims[dim_of(op, x.dims, attrs) if op.name == "slice" else -1]
        begin, size = attrs.get("begin", 0), attrs.get("k" if op.name == "topk" else "size", 1)
        if surely_more(Dim(begin) + Dim(size), whole):
            part = f"k is {size}" if op.name == "topk" else f"begin is {begin} and size {size}"
            raise fail(f"{op.name}: {part}, expected no more than the {whole} of the dim, as x is {x}")


def dim_of(op: Op, dims: Dims, attrs: dict[str, Any]) -> int:
    """The dim that the attribute dim names, counted from 0."""
    k = attrs.get("dim", -1)
    if not isinstance(k, int) or not -len(dims) <= k < len(dims):
        raise fail(f"{op.name}: dim is {k!r}, expected a number from {-len(dims)} to {len(dims) - 1}, as {op.inputs[0].name} is {show_dims(dims)}")
    return k % len(dims)


def resized(op: Op, dims: Dims, attrs: dict[str, Any]) -> Dims:
    """The dims of the result of an op along one dim: the dim becomes 1, grows by before and after, or becomes attribute size."""
    if "dim" not in op.attrs or ("+",) in (o.dims for o in op.inputs):
        return dims
    k = dim_of(op, dims, attrs)
    if "size" in op.attrs and "begin" not in op.attrs and dims[k] != Dim("1"):
        raise fail(f"{op.name}: x is {show_dims(dims)}, expected 1 as dim {attrs.get('dim', -1)}")
    size = dims[k] if "before" in op.attrs else Dim(attrs.get("size", 1))
    for more in ("before", "after"):
        size = size + Dim(attrs[more]) if attrs.get(more) else size
    return (*dims[:k], size, *dims[k + 1 :])


def outputs(op: Op, values: list[Value | None], attrs: dict[str, Any], bound: dict[str, Any]) -> list[tuple[Dims, str]]:
    """Dims and dtype of each output."""
    own = next((v.dtype for o, v in zip(op.inputs, values, strict=False) if v is not None and o.dtype in ("", "any")), "")
    outs = []
    for operand in op.outputs:
        dims: list[Dim] = []
        for d in operand.dims:
            names = d.split(" or ")  # the first name that is known
            known = (bound.get(n, attrs.get(n, op.attrs[n]["default"] or None) if n in op.attrs else None) for n in names)
            got = next((g for g in known if g is not None), None)
            dims += got if isinstance(got, tuple) else [Dim(d if got is None else got)]
        dims += bound.get("several", ())
        outs.append((resized(op, tuple(dims), attrs), operand.dtype if operand.dtype == "i32" else attrs.get("dtype", operand.dtype) or own))
    return outs


def check_there(op: Op, attrs: dict[str, Any]) -> None:
    """Checks that attributes are given whose default, 0 or none, is no usable value."""
    for k, a in op.attrs.items():
        if (k in LEAST or k == "cap") and LEAST.get(k, 1) and not a["default"] and k not in attrs:
            raise fail(f"{op.name}: {k} is missing; expected a number, 1 or more, or an expression: {k}=...")
