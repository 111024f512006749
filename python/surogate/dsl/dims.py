"""Dim: an expression over a model's symbols. It keeps its spelling, and is compared by value ("H * D" equals "D * H")."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from fractions import Fraction

_TOKEN = re.compile(r"\s*(?:(\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+)|(\w+)|(\|\||&&|[=!<>]=|[-+*/%<>!?:(),\[\]]))")
_LEVELS = (("||",), ("&&",), ("==", "!="), ("<=", ">=", "<", ">"), ("+", "-"), ("*", "/", "%"))

FUNCTIONS = {"sqrt": 1, "log": 1, "floor": 1, "ceil": 1, "round_bf16": 1, "pow": 2, "min": 2, "max": 2}  # and the number of their arguments

# A sum: product of symbols (sorted) -> factor. A quotient such as "1/H" counts as a symbol.
Sum = dict[tuple[str, ...], Fraction]


def _combine(a: Sum, b: Sum, sign: int) -> Sum:
    out = dict(a)
    for key, factor in b.items():
        out[key] = out.get(key, Fraction(0)) + sign * factor
    return {key: factor for key, factor in out.items() if factor}


def _inverse(symbol: str) -> str:
    return symbol[2:] if symbol.startswith("1/") else "1/" + symbol


def _reduced(symbols: tuple[str, ...]) -> tuple[str, ...]:
    left: list[str] = []
    for symbol in symbols:
        if _inverse(symbol) in left:
            left.remove(_inverse(symbol))
        else:
            left.append(symbol)
    return tuple(sorted(left))


def _product(a: Sum, b: Sum) -> Sum:
    out: Sum = {}
    for left, x in a.items():
        for right, y in b.items():
            out = _combine(out, {_reduced(left + right): x * y}, 1)
    return out


def _opaque(text: str) -> Sum:
    return {(text,): Fraction(1)}


def _constant(value: Sum) -> Fraction | None:
    """The number that the sum is; None: it depends on symbols."""
    return value.get((), Fraction(0)) if set(value) <= {()} else None


_TESTS: dict[str, Callable[[Fraction, Fraction], bool]] = {
    "||": lambda a, b: bool(a or b), "&&": lambda a, b: bool(a and b), "==": operator.eq, "!=": operator.ne, "<=": operator.le, ">=": operator.ge,
    "<": operator.lt, ">": operator.gt,
}


def _test(sign: str, left: Sum, right: Sum) -> Sum:
    """A comparison, && or ||: a number if both sides are numbers."""
    a, b = _constant(left), _constant(right)
    if a is None or b is None:
        return _opaque(f"({_show(left)}{sign}{_show(right)})")
    return {(): Fraction(1)} if _TESTS[sign](a, b) else {}


def _show(value: Sum) -> str:
    terms = ["*".join(([str(f)] if f != 1 or not key else []) + list(key)) for key, f in sorted(value.items())]
    return "+".join(terms) or "0"


class _Parser:
    """The grammar of docs/ir.md. A part that isn't a sum of products becomes a symbol of its own."""

    def __init__(self, text: str) -> None:
        self.text, self.at, self.depth, end = text, 0, 0, 0
        if len(text.encode()) > 4096:
            raise ValueError(f'expression "{text[:40]}...": longer than 4,096 bytes')
        self.tokens: list[tuple[str, str, str]] = []  # numbers, names and operators
        self.names: set[str] = set()
        self.lists: set[str] = set()  # names that have an index after them
        while text[end:].strip():
            match = _TOKEN.match(text, end)
            if not match:
                raise ValueError(f'expression "{text}": unexpected "{text[end:].strip()[0]}"')
            self.tokens.append((match[1] or "", match[2] or "", match[3] or ""))
            end = match.end()

    def accept(self, *operators: str) -> str:
        if self.at < len(self.tokens) and self.tokens[self.at][2] in operators:
            self.at += 1
            return self.tokens[self.at - 1][2]
        return ""

    def parse(self) -> Sum:
        value = self.choice()
        if self.at < len(self.tokens):
            raise ValueError(f'expression "{self.text}": unexpected "{"".join(self.tokens[self.at])}"')
        return value

    def choice(self) -> Sum:
        condition = self.binary(0)
        if not self.accept("?"):
            return condition
        yes = self.choice()
        if not self.accept(":"):
            raise ValueError(f'expression "{self.text}": expected ":"')
        return _opaque(f"({_show(condition)}?{_show(yes)}:{_show(self.choice())})")

    def binary(self, level: int) -> Sum:
        if level == len(_LEVELS):
            return self.unary()
        left = self.binary(level + 1)
        while sign := self.accept(*_LEVELS[level]):
            right = self.binary(level + 1)
            if sign in "+-":
                left = _combine(left, right, 1 if sign == "+" else -1)
            elif sign == "*":
                left = _product(left, right)
            elif sign == "/" and len(right) == 1:
                ((symbols, factor),) = right.items()
                left = _product(left, {tuple(map(_inverse, symbols)): 1 / factor})
            elif sign in _TESTS:
                left = _test(sign, left, right)
            else:
                left = _opaque(f"({_show(left)}{sign}{_show(right)})")
        return left

    def unary(self) -> Sum:
        if self.accept("-"):
            return _product({(): Fraction(-1)}, self.unary())
        if self.accept("!"):
            return _test("==", self.unary(), {})
        if self.accept("("):
            self.depth += 1
            if self.depth > 64:
                raise ValueError(f'expression "{self.text[:40]}...": deeper than 64 levels')
            inner = self.choice()
            if not self.accept(")"):
                raise ValueError(f'expression "{self.text}": expected ")"')
            self.depth -= 1
            return inner
        number, name, sign = self.tokens[self.at] if self.at < len(self.tokens) else ("", "", "")
        if not number and not name:
            raise ValueError(f'expression "{self.text}": expected a number, a symbol or "("' + (f', found "{sign}"' if sign else ""))
        self.at += 1
        if name in FUNCTIONS and self.accept("("):
            given = [_show(self.choice())]
            while len(given) < FUNCTIONS[name] and self.accept(","):
                given.append(_show(self.choice()))
            if len(given) < FUNCTIONS[name] or not self.accept(")"):
                raise ValueError(f'expression "{self.text}": expected "{"," if len(given) < FUNCTIONS[name] else ")"}"')
            return _opaque(f"{name}({','.join(given)})")
        if name and self.at < len(self.tokens) and self.tokens[self.at][2] == "(":
            raise ValueError(f'expression "{self.text}": unknown function {name}; expected one of {", ".join(sorted(FUNCTIONS))}')
        if name and self.accept("["):
            index = self.choice()
            if not self.accept("]"):
                raise ValueError(f'expression "{self.text}": expected "]"')
            self.lists.add(name)
            return _opaque(f"{name}[{_show(index)}]")
        if name:
            self.names.add(name)
            return _opaque(name)
        value = Fraction(number)
        return {(): value} if value else {}


class Dim:
    """A size, such as H * D or C / H. Arithmetic on sizes gives expressions, which the engine evaluates."""

    def __init__(self, value: str | int | float | Dim) -> None:
        self.text: str = value.text if isinstance(value, Dim) else str(value)
        parser = _Parser(self.text)
        self.sum = parser.parse()
        self.names, self.lists = frozenset(parser.names), frozenset(parser.lists)

    def _with(self, operator: str, other: str | int | Dim, swap: bool = False) -> Dim:
        left, right = Dim(self), Dim(other)
        if swap:
            left, right = right, left
        wrap = [d.text if re.fullmatch(r"[\w.]+(\[\w+\])?", d.text) else f"({d.text})" for d in (left, right)]
        return Dim(f"{wrap[0]} {operator} {wrap[1]}")

    def __add__(self, other: str | int | Dim) -> Dim:
        return self._with("+", other)

    def __sub__(self, other: str | int | Dim) -> Dim:
        return self._with("-", other)

    def __mul__(self, other: str | int | Dim) -> Dim:
        return self._with("*", other)

    def __truediv__(self, other: str | int | Dim) -> Dim:
        return self._with("/", other)

    def __mod__(self, other: str | int | Dim) -> Dim:
        return self._with("%", other)

    def __radd__(self, other: str | int) -> Dim:
        return self._with("+", other, True)

    def __rmul__(self, other: str | int) -> Dim:
        return self._with("*", other, True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dim) and self.sum == other.sum

    def __hash__(self) -> int:
        return hash(frozenset(self.sum.items()))

    def __repr__(self) -> str:
        return self.text


def show_dims(dims: tuple[Dim, ...]) -> str:
    return "(" + ", ".join(d.text for d in dims) + ")"


def surely_more(a: Dim, b: Dim) -> bool:
    """Whether a is larger than b for all sizes that the symbols may stand for."""
    rest = _combine(a.sum, b.sum, -1)
    return bool(rest) and all(f > 0 and all(s.removeprefix("1/").isidentifier() for s in key) for key, f in rest.items())


def same_size(a: tuple[Dim, ...], b: tuple[Dim, ...]) -> bool:
    """Whether tensors of these two shapes have equally many elements."""
    sizes = []
    for dims in (a, b):
        size: Sum = {(): Fraction(1)}
        for dim in dims:
            size = _product(size, dim.sum)
        sizes.append(size)
    return sizes[0] == sizes[1]
