"""Tensors in a @forward: dims and a dtype, without values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from surogate.dsl.dims import Dim, show_dims
from surogate.dsl.spec import fail

Dims = tuple[Dim, ...]


class Others(tuple["Value", ...]):
    """The further outputs of an op, by their names in `surogate ops`."""

    names: tuple[str, ...] = ()

    def __getitem__(self, k: Any) -> Any:
        if not isinstance(k, (int, slice)):
            raise fail(f"others[{k!r}]: expected a number; by name it is an attribute of the tensor: {self.show() or 'it has none'}")
        if isinstance(k, int) and not -len(self) <= k < len(self):
            raise fail(f"others[{k}]: {f'expected 0 to {len(self) - 1}, as the op has' if self else 'the tensor has'} {len(self) or 'no'} further outputs")
        return super().__getitem__(k)

    def show(self) -> str:
        return ", ".join(f".{name}" for name in self.names)


@dataclass(frozen=True, eq=False)
class Value:
    ref: str
    dims: Dims
    dtype: str = ""  # "": the model's
    when: str = ""  # the condition under which a weight exists
    others: Others = Others()  # further outputs of its op
    turn: list[dict[str, Any]] | None = None  # statements in which the argument of a repeat's turn is available

    def __repr__(self) -> str:
        return f"{self.dtype} {show_dims(self.dims)}".strip()

    def _operator(self, *_: Any) -> Any:
        raise fail("tensors have no operators; expected g.add(a, b), g.mul(a, b) or, with a number, g.scale(x, by=2)")

    def _sequence(self, *_: Any) -> Any:
        raise fail("a tensor is one value, no tuple; expected "
                   + (f"the further outputs of its op by name: {more}" if (more := self.others.show()) else "g.slice or g.columns for parts of it"))

    def _number(self, *_: Any) -> Any:
        raise fail("a tensor's numbers aren't known here; expected ops of the graph, as g.sum(x), or expressions of the config")

    def _order(self, _: Any) -> Any:
        raise fail("tensors can't be compared: their numbers aren't known here; expected g.ge(a, b) or g.gt(a, b), whose result is 0 or 1 for each element")

    def __bool__(self) -> bool:
        raise fail("a tensor is neither true nor false: its numbers aren't known here; expected g.select for the config's choices, or, of a weight with"
                   " when=, `is None`")

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (Value, int, float)):
            raise fail("tensors can't be compared: their numbers aren't known here; expected g.select for the config's choices")
        return False

    __hash__ = object.__hash__
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __neg__ = __pow__ = __matmul__ = __abs__ = _operator
    __iter__ = __len__ = __getitem__ = _sequence
    __float__ = __int__ = __index__ = _number
    __lt__ = __le__ = __gt__ = __ge__ = _order

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name in self.others.names:
            return self.others[self.others.names.index(name)]
        raise fail(f"a tensor has no {name}; ops are methods of the graph, as g.reshape(x, \"B\", \"T\", \"H\", \"D\")"
                   + (f", and its op's further outputs are {more}" if (more := self.others.show()) else ""))
