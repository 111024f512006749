#!/usr/bin/env python3
"""Writes tests/fixtures/chats.parquet: conversations as Arrow keeps them, whose structs hold a null for each field that other rows have.

Needs pyarrow. tests/data/test_format.c says what the rows must become.
"""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

FIXTURE = Path(__file__).resolve().parents[1] / "fixtures" / "chats.parquet"


def call(name, arguments):
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


ROWS = [
    {  # the struct of the arguments has both keys: here q is null
        "messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "tool_calls": [call("weather", {"city": "A"})]},
            {"role": "tool", "content": "hot", "tool_call_id": "1"},
            {"role": "assistant", "content": "b", "loss": False},
        ],
        "tools": [{"type": "function", "function": {"name": "weather", "parameters": {"properties": {"city": {"type": "string"}}}}}],
        "asked": "{\"city\": null}",
    },
    {
        "messages": [
            {"role": "user", "content": "c"},
            {"role": "assistant", "tool_calls": [call("search", {"q": "x", "deep": [{"n": 1}, {"m": 2}, None]})]},
        ],
        "tools": [{"type": "function", "function": {"name": "search", "parameters": {"properties": {"q": {"type": "string"}}}}}],
        "scores": [("k", None), ("l", 2)],
    },
]

leaf = pa.struct([("type", pa.string())])
arguments = pa.struct([("city", pa.string()), ("q", pa.string()), ("deep", pa.list_(pa.struct([("n", pa.int64()), ("m", pa.int64())])))])
function = pa.struct([("name", pa.string()), ("arguments", arguments)])
message = pa.struct(
    [
        ("role", pa.string()),
        ("content", pa.string()),
        ("tool_calls", pa.list_(pa.struct([("type", pa.string()), ("function", function)]))),
        ("tool_call_id", pa.string()),
        ("loss", pa.bool_()),
    ]
)
parameters = pa.struct([("properties", pa.struct([("city", leaf), ("q", leaf)]))])
tool = pa.struct([("type", pa.string()), ("function", pa.struct([("name", pa.string()), ("parameters", parameters)]))])
schema = pa.schema(
    [("messages", pa.list_(message)), ("tools", pa.list_(tool)), ("asked", pa.string()), ("scores", pa.map_(pa.string(), pa.int64()))]
)
pq.write_table(pa.Table.from_pylist(ROWS, schema=schema), FIXTURE, compression="snappy")
