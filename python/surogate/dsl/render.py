"""A built model as JSON, text and SVG."""

from __future__ import annotations

import json
from html import escape
from typing import Any

from surogate.dsl.graph import Built, Node
from surogate.dsl.ops import OPS


def without_source(value: Any) -> Any:
    if isinstance(value, list):
        return [without_source(v) for v in value]
    return {k: without_source(v) for k, v in value.items() if k != "source"} if isinstance(value, dict) else value


def to_json(value: Any, depth: int = 0) -> str:
    """JSON with one statement per line, so that line numbers in errors point at a statement."""
    pad = "  " * depth
    if isinstance(value, list) and any(isinstance(v, dict) for v in value):
        return "[\n" + ",\n".join(f"{pad}  {to_json(v, depth + 1)}" for v in value) + f"\n{pad}]"
    if isinstance(value, dict) and any(isinstance(v, list) and any(isinstance(x, dict) for x in v) for v in value.values()):
        return "{\n" + ",\n".join(f"{pad}  {json.dumps(k)}: {to_json(v, depth + 1)}" for k, v in value.items()) + f"\n{pad}}}"
    return json.dumps(value)


def _attrs(node: Node) -> list[str]:
    """Attributes that differ from the op's defaults; of a list only its length. A reshape's dims are left out: they are printed beside it.
    """
    own = {} if node.op == "reshape" else {k: v for k, v in node.attrs.items() if v != OPS[node.op].attrs[k]["default"]}
    return [f"{k}={'each(' + v['per'] + ', ...)' if isinstance(v, dict) else v}" for k, v in own.items()]


def to_text(built: Built) -> str:
    rows = [(f"{'  ' * node.layer}{node.out.ref}", str(node.out), f"{node.op}({', '.join([*node.inputs, *_attrs(node)])})")
            for node in built.nodes]
    widths = [max(len(row[k]) for row in rows) for k in (0, 1)]
    return "".join(f"{a:{widths[0]}}  {b:{widths[1]}}  {c}\n" for a, b, c in rows)


def to_svg(built: Built) -> str:
    """Ops from top to bottom, with a frame around each layer, and lines from the values that each reads."""
    step, left, width = 34, 150, 470
    row = {node.out.ref: k for k, node in enumerate(built.nodes)}
    height = step * len(built.nodes) + 20
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 20}" height="{height}" font-family="monospace" font-size="11">']
    layer = [k for k, node in enumerate(built.nodes) if node.layer]
    if layer:
        y = 6 + step * layer[0]
        out.append(f'<rect x="{left - 8}" y="{y}" width="{width + 16}" height="{step * len(layer)}" fill="#eef3fa" stroke="#8aa5c8"/>')
    for k, node in enumerate(built.nodes):
        y = 10 + step * k
        for name in node.inputs:
            if name in row:
                bend, top = left - 12 - 9 * min(k - row[name], 14), 10 + step * row[name] + 13
                out.append(f'<path d="M{left} {top} C{bend} {top} {bend} {y + 13} {left} {y + 13}" fill="none" stroke="#999"/>')
        out.append(f'<rect x="{left}" y="{y}" width="{width}" height="26" rx="4" fill="#fff" stroke="#345"/>')
        out.append(f'<text x="{left + 8}" y="{y + 17}">{escape(node.out.ref)} = {escape(node.op)} {escape(str(node.out))}</text>')
    return "\n".join([*out, "</svg>\n"])
