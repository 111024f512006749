"""Names that users have written down, a line each.   names.py keys | others | plan | metrics < what the program wrote;   names.py python"""

from __future__ import annotations

import enum
import inspect
import json
import re
import sys
from collections.abc import Iterator
from typing import Any


def keys() -> Iterator[str]:
    """Keys of run files and data sets with their defaults: `surogate help keys --schema`."""
    schema = json.load(sys.stdin)

    def of(node: dict[str, Any], place: str) -> Iterator[str]:
        for name, item in node.get("properties", {}).items():
            yield f"{place}{name} {json.dumps(item.get('default'))}"
            for inner in item.get("anyOf", []):
                yield from of(inner.get("items", inner), f"{place}{name}.")

    yield from of(schema, "")
    for name, node in schema.get("$defs", {}).items():
        yield from of(node, f"{name}.")


def others() -> Iterator[str]:
    """Other names and values of each key: `surogate help keys KEY...`."""
    for part in re.split(r"^(?=\S)", sys.stdin.read(), flags=re.M)[1:]:  # a key, then its help in indented lines
        key, text = part.split()[0], " ".join(part.split())
        values = re.search(r" Values: (.*?)\.(?= Other names: | Another tool's |$)", text)
        if values and not re.match("at least |above |[-0-9]", values[1]):  # words, not limits
            yield from (f"{key}: {word}" for word in re.findall(r"[^\s(),]+", values[1]) if word != "also")
        names = re.search(r" Other names: (.*?)\.(?= Another tool's |$)", text)
        yield from (f"{key} also {word}" for word in (names[1].split(", ") if names else []))


def plan() -> Iterator[str]:
    def of(node: Any, place: str) -> Iterator[str]:
        if isinstance(node, dict):
            for name, value in node.items():
                yield f"{place}{name}"
                yield from of(value, f"{place}{name}.")
        if isinstance(node, list):
            for value in node:
                yield from of(value, f"{place}[].")

    yield from of(json.load(sys.stdin), "")


def metrics() -> Iterator[str]:
    for line in map(json.loads, sys.stdin):
        for name, value in line.items():
            yield f"{line.get('log')}.{name} {type(value).__name__.replace('int', 'float')}"


def of_function(name: str, function: Any) -> Iterator[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return
    for index, parameter in enumerate(parameters):
        if parameter.kind is parameter.VAR_KEYWORD or parameter.kind is parameter.VAR_POSITIONAL:
            continue
        place = "*" if parameter.kind is parameter.KEYWORD_ONLY else str(index)
        fallback = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        if " at 0x" not in fallback:
            yield f"{name} {place}: {parameter.name}{fallback}"


def of_value(name: str, value: Any) -> Iterator[str]:
    yield name
    if inspect.isclass(value):
        yield from of_function(name, value)
        for member in dir(value):
            if not member.startswith("_") and not (issubclass(value, (enum.Enum, int, str)) and hasattr(int, member)):
                yield f"{name}.{member}"
                yield from of_function(f"{name}.{member}", getattr(value, member))
        for field in getattr(value, "__dataclass_fields__", {}):
            yield f"{name}.{field}"
    elif callable(value):
        yield from of_function(name, value)


def python() -> Iterator[str]:
    from importlib import import_module

    for home in ("surogate", "surogate.dsl", "surogate.models"):
        module = import_module(home)
        for name in getattr(module, "__all__", [n for n in dir(module) if not n.startswith("_")]):
            yield from of_value(f"{home}.{name}", getattr(module, name))


print("\n".join(sorted(set(globals()[sys.argv[1]]()))))
