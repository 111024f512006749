"""The engine's ops, as `surogate ops --json` lists them (a test keeps ops.json equal to that list)."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DTYPES = ("f32", "bf16", "i32", "i64", "u8", "i8", "f16", "e4m3", "e5m2", "e2m1", "nf4")
_OPERAND = re.compile(r"^(?:(\w+) )?(?:(" + "|".join((*DTYPES, "any")) + r") )?\(((?:[^()]|\([^()]*\))*)\)")


@dataclass(frozen=True)
class Operand:
    name: str
    dtype: str  # "": f32 or bf16; any: i32 too
    dims: tuple[str, ...]  # "...": any number of them
    optional: bool = False
    other: Operand | None = None  # an alternative operand in its place


@dataclass(frozen=True)
class Op:
    name: str
    signature: str
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    attrs: dict[str, dict[str, Any]] = field(default_factory=dict)
    usable: bool = True  # its signature gives all dims, so models can apply it


def _split(text: str) -> list[str]:
    """Splits at commas outside of brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def _operand(text: str) -> Operand | None:
    optional = text.startswith("[")
    text, _, other = text.partition("|")
    match = _OPERAND.match(text.strip("[]").strip())
    if not match:
        return None
    dims = tuple(d.strip() for d in match[3].split(","))
    dims = tuple("..." if d == "N" and k == 0 and len(dims) > 1 else d for k, d in enumerate(dims))
    return Operand(match[1] or "", match[2] or "", dims, optional, _operand(other.strip()) if other else None)


def _parse(entry: dict[str, Any]) -> Op:
    left, _, right = entry["signature"].partition("->")
    inputs = [_operand(part) for part in _split(left)]
    outputs = [_operand(part) for part in _split(right.partition(";")[0])]
    first = outputs[0] if outputs else None
    return Op(entry["name"], entry["signature"], tuple(o for o in inputs if o), tuple(o for o in outputs if o),
              {a["name"]: a for a in entry["attrs"]}, usable=first is not None and None not in inputs)


def load(text: str) -> dict[str, Op]:
    return {entry["name"]: _parse(entry) for entry in json.loads(text)}


OPS = load(Path(__file__).with_name("ops.json").read_text())
