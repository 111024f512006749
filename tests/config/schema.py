"""Checks run files against a JSON Schema, with the keywords that the schemas of `surogate help schema` use.

schema.py SCHEMA FILE...      prints errors, one per line: FILE: PLACE: WHAT
schema.py SCHEMA              checks the schema itself: each default, and each word of a key, against the key
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

KNOWN = {"$schema", "title", "description", "default", "deprecated", "$defs"}
QUOTED = r'"(?:[^"\\]|\\.)*"'
TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None), "integer": int, "number": (int, float)}


def scalar(text: str) -> Any:
    """A word as YAML 1.2 reads it."""
    if text[:1] == '"':
        return json.loads(text)
    if text[:1] == "[":
        return [scalar(item.strip()) for item in re.findall(rf"\s*({QUOTED}|[^,\s][^,]*)", text[1:-1])]
    if text[:1] == "{":
        return {key.strip(): scalar(word.strip()) for key, word in (item.split(":") for item in text[1:-1].split(","))}
    words = {"true": True, "false": False, "null": None, "": None}
    if text in words:
        return words[text]
    if re.fullmatch(r"[-+]?[0-9]+", text):
        return int(text)
    return float(text) if re.fullmatch(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", text) else text


VALUE = rf'({QUOTED}|\[(?:{QUOTED}|[^]"])*\]|\{{[^}}]*\}}|[^"\[#|>{{&*\s](?:(?! #).)*?)\s*(?: #.*)?'


def read(text: str) -> dict[str, Any]:
    """Reads the part of YAML that these run files use: keys, and below them lists of words or of mappings."""
    out: dict[str, Any] = {}
    items: list[Any] = []
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        pair = re.fullmatch(rf"(  - |    |)(\w+):(?: +{VALUE})?", line)
        if not pair and (word := re.fullmatch(rf"  - {VALUE}", line)):
            items.append(scalar(word[1]))
            continue
        if not pair:
            raise ValueError(f"this reader doesn't know: {line}")
        indent, key, value = pair.groups()
        if indent == "  - ":
            items.append({})
        (items[-1] if indent else out)[key] = scalar(value or "")
        if not indent and not value:
            out[key] = items = []
    return out


def same(a: Any, b: Any) -> bool:
    return a == b and isinstance(a, bool) == isinstance(b, bool)


class Schema:
    def __init__(self, text: str) -> None:
        self.root = json.loads(text)

    def find(self, reference: str) -> Any:
        node = self.root
        for part in reference.removeprefix("#/").split("/"):
            node = node[part]
        return node

    def number(self, schema: dict[str, Any], value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return True
        low, high, above = (schema.get(name) for name in ("minimum", "maximum", "exclusiveMinimum"))
        return (low is None or value >= low) and (high is None or value <= high) and (above is None or value > above)

    def is_type(self, schema: dict[str, Any], value: Any) -> bool:
        names = schema.get("type", list(TYPES))
        for name in [names] if isinstance(names, str) else names:
            if isinstance(value, TYPES[name]) and (name == "boolean" or not isinstance(value, bool)):
                return True
        return False

    def members(self, schema: dict[str, Any], value: dict[str, Any], place: str) -> list[str]:
        bad = [f"{place}{name}: is missing" for name in schema.get("required", []) if name not in value]
        for name, item in value.items():
            fitting = [schema["properties"][name]] if name in schema.get("properties", {}) else []
            fitting += [inner for pattern, inner in schema.get("patternProperties", {}).items() if re.search(pattern, name)]
            fitting = fitting or [schema.get("additionalProperties", True)]
            for inner in fitting:
                bad += self.problems(inner, item, f"{place}{name}.")
        return bad

    def problems(self, schema: Any, value: Any, place: str = "") -> list[str]:
        """How the value differs from the schema."""
        if isinstance(schema, bool):
            return [] if schema else [f"{place.rstrip('.')}: unknown"]
        unknown = set(schema) - KNOWN - {"$ref", "type", "enum", "anyOf", "items", "required", "properties", "patternProperties"}
        unknown -= {"additionalProperties", "minimum", "maximum", "exclusiveMinimum"}
        if unknown:
            raise ValueError(f"this reader doesn't know {unknown}")
        fits = self.is_type(schema, value) and self.number(schema, value)
        fits = fits and ("enum" not in schema or any(same(value, word) for word in schema["enum"]))
        bad = [] if fits else [f"{place.rstrip('.')}: {value!r} isn't valid"]
        if "$ref" in schema:
            bad += self.problems(self.find(schema["$ref"]), value, place)
        if "anyOf" in schema:
            choices = [self.problems(inner, value, place) for inner in schema["anyOf"]]
            bad += [] if [] in choices else max(choices, key=len)
        if isinstance(value, dict):
            bad += self.members(schema, value, place)
        if isinstance(value, list) and "items" in schema:
            bad += [line for i, item in enumerate(value) for line in self.problems(schema["items"], item, f"{place}{i}.")]
        return bad

    def own(self) -> list[str]:
        """Errors in the schema itself."""
        bad = []
        for scope in (self.root, self.root["$defs"]["dataset"]):
            for name, inner in scope["properties"].items():
                words = [inner["default"]] if "default" in inner else []
                words += [word for choice in inner.get("anyOf", []) for word in choice.get("enum", [])]
                bad += [line for word in words for line in self.problems(inner, word, f"{name}.")]
        return bad


def main() -> int:
    schema = Schema(Path(sys.argv[1]).read_text(encoding="utf-8"))
    bad = [] if sys.argv[2:] else schema.own()
    for name in sys.argv[2:]:
        bad += [f"{name}: {line}" for line in schema.problems(schema.root, read(Path(name).read_text(encoding="utf-8")))]
    print("\n".join(bad), end="\n" if bad else "")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
