#!/usr/bin/env python3
"""Checks each column and key of the layouts of public tools: it must change the training, or be named as unused.

  python3 tests/oracle/dataset_columns.py build/surogate [-v]

For each layout, `surogate inspect` reads a row without and with each known column (of Axolotl, LLaMA-Factory, TRL, ms-swift, torchtune, OpenAI
and well-known datasets). Ids or mask must differ, or the column must be named, or the row refused. Spellings of one conversation must give
equal ids and masks. With pyarrow, each row is also read from Parquet, with a null for each field that only other rows have, and must give
the same result. Prints columns that are ignored silently, and then exits with 1.
"""

from __future__ import annotations

import copy
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

try:
    import pyarrow as arrow
    import pyarrow.parquet as parquet
except ImportError:
    arrow = None

SUROGATE = str(Path(sys.argv[1] if len(sys.argv) > 1 else "build/surogate").resolve())
VERBOSE = "-v" in sys.argv

# Prints everything a conversation may have; `bare` prints only roles and contents.
FULL = """{%- if tools %}<tools>{{ tools | tojson }}</tools>{% endif -%}
{%- for m in messages -%}
<|im_start|>{{ m.role }}{% if m.name %} name={{ m.name }}{% endif %}{% if m.tool_call_id %} id={{ m.tool_call_id }}{% endif %}
{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}
{%- for c in m.tool_calls or [] %}<call {{ c.id }}>{{ c.function | tojson }}</call>{% endfor %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif -%}"""
BARE = """{%- for m in messages -%}
<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif -%}"""

ASK, SAY = {"role": "user", "content": "what is it"}, {"role": "assistant", "content": "it is this"}
TALK = [ASK, SAY, {"role": "user", "content": "and then"}, {"role": "assistant", "content": "that too"}]
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}}
CALL = {"id": "c12345678", "type": "function", "function": {"name": "look", "arguments": {"at": "sky"}}}
CALLING = [ASK, {"role": "assistant", "content": "", "tool_calls": [CALL]}, {"role": "tool", "content": "blue"}, SAY]
NULLED = {**CALL, "function": {"name": "look", "arguments": {"at": "sky", "how": None}}}
# A row whose structs have fields of their own, so that the structs of other rows hold nulls for them.
FILLER = {"messages": [{"role": "user", "content": "z", "zz": 1, "tool_calls": [{"zz": 1, "function": {"zz": 1, "arguments": {"zz": 1}}}]}],
          "tools": [{"zz": 1, "function": {"zz": 1, "parameters": {"zz": 1}}}]}  # fmt: skip
SHAREGPT = [{"from": "human", "value": "what is it"}, {"from": "gpt", "value": "it is this"}]


def text(value: Any) -> str:
    return json.dumps(value)


def as_table(row: Any) -> Any:
    """The row as columns, with fillers where the types allow; None: a column would have mixed types, or the row isn't made of columns."""
    for rows in [[row, FILLER], [row]] if "messages" in row else [[row]]:
        try:
            return arrow.Table.from_pylist(rows) if arrow and isinstance(row, dict) else None
        except (arrow.ArrowInvalid, arrow.ArrowTypeError):
            pass
    return None


class Rig:
    """A model folder with a template, through which rows are inspected."""

    def __init__(self, folder: Path, template: str) -> None:
        self.folder, self.model, self.count = folder, folder / "model", 0
        (folder / "words.txt").write_text("some words to begin with, " * 20)
        special = "<|endoftext|>,<|im_start|>,<|im_end|>"
        self.run("tokenizer", "train", "--vocab-size", "300", "--special-tokens", special, "--eos-token", "<|im_end|>", "--out", str(self.model),
                 str(folder / "words.txt"))
        (self.model / "chat_template.jinja").write_text(template)

    def run(self, *args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([SUROGATE, *args], capture_output=True, text=True, check=False)

    def look(self, row: Any, options: tuple[str, ...] = (), as_parquet: bool = False) -> tuple[Any, list[str]]:
        """Returns (ids and mask of the row, or the error) and the fields that are named as unused."""
        self.count += 1
        path = self.folder / f"{self.count}.{'parquet' if as_parquet else 'jsonl'}"
        if as_parquet:
            parquet.write_table(as_table(row), path)
        else:
            path.write_text(json.dumps(row) + "\n")
        told = self.run("inspect", str(path), "--model", str(self.model), "--rows", "0", "sequence_len=4096", *options)
        if told.returncode:
            return "refused: " + told.stderr.strip(), []
        shown = json.loads(self.run("inspect", str(path), "--model", str(self.model), "--json", *options).stdout.splitlines()[0])
        names = [line.split(None, 2)[2] for line in told.stdout.splitlines() if line.startswith("not used ")]
        return (shown["ids"], shown["mask"]), names[0].split(", ") if names else []


def with_key(messages: list[Any], at: int, **more: Any) -> list[Any]:
    out = copy.deepcopy(messages)
    out[at].update(more)
    return out


# Columns of no layout: tested together, and each must be named.
EXTRAS = {"id": 7, "source": "web", "images": ["a.png"], "videos": ["a.mp4"], "audios": ["a.wav"], "kto_tag": True, "label": True, "score": 0.5,
          "chosen": "c", "rejected": "r", "chat_template_kwargs": {"enable_thinking": False}, "documents": [{"title": "t", "text": "x"}],
          "meta": {"a": 1}, "dataset": "d", "language": "en", "objects": {"ref": ["x"]}, "rejected_response": "no", "channel": "c",
          "segments": [{"label": True, "text": "x"}], "parallel_tool_calls": True, "weight": 0, "train": False, "loss": False}

# Name of a layout: (the smallest row of this layout, options of the run, further columns that its rows may have).
LAYOUTS: dict[str, tuple[dict[str, Any], tuple[str, ...], dict[str, Any]]] = {
    "text": ({"text": "some words"}, (), {"title": "T", "url": "u", "timestamp": "now", "content": "c", "label": 1}),
    "text by name": ({"body": "some words"}, ("text_field=body",), {"text": "t", "content": "c"}),
    "content": ({"content": "some words"}, (), {"title": "T", "role": "Pilot"}),
    "Alpaca": ({"instruction": "do it", "output": "done"}, (), {
        "input": "with this", "system": "S", "system_prompt": "S", "history": [["a", "b"]], "tools": [TOOL], "text": "whole",
        "context": "c", "category": "q", "prompt": "p", "query": "q", "response": "r", "question": "q", "answer": "a", "functions": [TOOL]}),
    "Alpaca, tools as text": ({"instruction": "do it", "output": "done"}, (), {"tools": text([TOOL]), "history": "not a list"}),
    "Alpaca, by format": ({"instruction": "do it", "output": "done"}, ("prompt_format=<{system}> {instruction} {input}: {output}",), {
        "input": "with this", "system": "S", "system_prompt": "S", "tools": [TOOL], "history": [["a", "b"]]}),
    "Dolly": ({"instruction": "do it", "response": "done"}, (), {"context": "with this", "category": "q", "input": "x"}),
    "OpenOrca": ({"question": "why", "response": "so"}, (), {"system_prompt": "S", "system": "S"}),
    "question": ({"question": "why", "answer": "so"}, (), {"context": "c", "choices": ["a", "b"], "input": "x", "explanation": "e"}),
    "prompt": ({"prompt": "why", "completion": "so"}, (), {"system": "S", "tools": [TOOL], "input": "x", "history": [["a", "b"]]}),
    "query": ({"query": "why", "response": "so"}, (), {"system": "S", "history": [["a", "b"]], "tools": [TOOL]}),
    "named fields": ({"q": "why", "a": "so", "s": "", "i": ""}, ("instruction_field=q", "output_field=a", "system_prompt_field=s", "input_field=i"), {
        "s": "S", "i": "I", "system": "S", "input": "I", "instruction": "x", "output": "y"}),
    "fixed prompt": ({"instruction": "do it", "output": "done"}, ("system_prompt=F",), {"system": "S", "system_prompt": "S"}),
    "no prompt": ({"instruction": "do it", "output": "done"}, ("system_prompt_type=none",), {"system": "S", "system_prompt": "S"}),
    "messages": ({"messages": TALK}, (), {
        "system": "S", "system_prompt": "S", "tools": [TOOL], "functions": [TOOL["function"]], "instruction": "i", "output": "o",
        "prompt": "p", "text": "t", "conversations": SHAREGPT, "completion": [SAY], "input": "x", "prompt_id": "p"}),
    "messages with a system": ({"messages": [{"role": "system", "content": "T"}, *TALK]}, (), {"system": "S", "system_prompt": "S"}),
    "ShareGPT": ({"conversations": SHAREGPT}, (), {"system": "S", "tools": text([TOOL]), "messages_count": 2}),
    "prompt of messages": ({"prompt": [ASK], "completion": [SAY]}, (), {
        "system": "S", "tools": [TOOL], "messages_id": 3, "text": "t", "input": "x"}),
    "other names": ({"log": [{"who": "user", "says": "a"}, {"who": "assistant", "says": "b"}]},
                    ("messages_field=log", "message_property_mappings={role: who, content: says}", "tools_field=kit"), {
        "kit": [TOOL], "tools": [TOOL], "messages": TALK, "system": "S"}),
}  # fmt: skip

FLAGS = [{"train": False}, {"training": False}, {"weight": 0}, {"loss": False}, {"loss_weight": 0.0}, {"masked": True}, {"loss": 1.5}]
KEYS = {"name": "N", "tool_call_id": "c12345678", "reasoning_content": "why", "reasoning": "why", "thinking": "why", "value": "v", "from": "system",
        "function_call": {"name": "look", "arguments": "{}"}, "tool_calls": [CALL], "weight": 0.5}  # fmt: skip
INERT = {"id": 5, "refusal": "no", "audio": {"id": 1}, "annotations": ["x"], "timestamp": "t", "training_detail": [1], "loss_scale": 0.5,
         "train_detail": [{"begin_offset": 0, "end_offset": 1, "train": False}], "train_on_turn": False, "images": ["a"], "mask": 1,
         "ipython": True, "eot": False, "recipient": "all", "end_turn": True, "channel": "final", "content_type": "text", "objects": [1]}  # fmt: skip
PARTS = [{"train": False}, {"weight": 0}, {"cache_control": {"type": "ephemeral"}}, {"loss_weight": 0.0}, {"annotations": ["x"]}]
CALL_KEYS = {"index": 1, "id": "d12345678", "extra": "x"}


def cases() -> list[tuple[str, Any, Any, tuple[str, ...]]]:
    """(what, the row without, the row with, options)"""
    out: list[tuple[str, Any, Any, tuple[str, ...]]] = []
    for layout, (row, options, columns) in LAYOUTS.items():
        out += [(f"{layout}: {name}", row, {**row, name: value}, options) for name, value in columns.items()]
        out.append((f"{layout}: {', '.join(EXTRAS)}", row, {**row, **EXTRAS}, options))
    for on in ("assistant", "last_turn", "all"):
        for at in range(4):
            for flag in FLAGS:
                is_trained = on == "all" or (on == "assistant" and at % 2 == 1) or at == 3
                if not is_trained and flag != FLAGS[-1]:
                    continue  # it agrees with the default rule
                out.append((f"{on}, message {at}, {flag}: {', '.join(flag)}", {"messages": TALK}, {"messages": with_key(TALK, at, **flag)}, (f"train_on={on}",)))
    for layout, talk in (("messages", TALK), ("messages with calls", CALLING)):
        for at in range(4):
            for key, value in KEYS.items():
                if key in talk[at]:
                    continue
                out.append((f"{layout}, message {at}: {key}", {"messages": talk}, {"messages": with_key(talk, at, **{key: value})}, ()))
            out.append((f"{layout}, message {at}: {', '.join(INERT)}", {"messages": talk}, {"messages": with_key(talk, at, **INERT)}, ()))
    for more in PARTS:
        part = {"type": "text", "text": "it is this"}
        without, has = [ASK, {**SAY, "content": [part]}], [ASK, {**SAY, "content": [{**part, **more}]}]
        out.append((f"part {more}: {', '.join(more)}", {"messages": without}, {"messages": has}, ()))
    for key, value in CALL_KEYS.items():
        calls = with_key(CALLING, 1, tool_calls=[{**CALL, key: value}])
        out.append((f"call: {key}", {"messages": CALLING}, {"messages": calls}, ()))
    return out


def spellings() -> list[tuple[str, Any, list[tuple[str, Any]]]]:
    """(what, a row, rows that must give the same)"""
    talk, function = {"messages": TALK}, CALL["function"]
    called = {"messages": CALLING, "tools": [TOOL]}
    parts = [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in TALK]

    def calling(calls: Any) -> dict[str, Any]:
        return {"messages": with_key(CALLING, 1, tool_calls=calls), "tools": [TOOL]}

    def tools(value: Any) -> dict[str, Any]:
        return {"messages": CALLING, "tools": value}

    return [
        ("a conversation", talk, [
            ("the list alone", TALK), ("JSON text", {"messages": text(TALK)}), ("each as JSON text", {"messages": [text(m) for m in TALK]}),
            ("conversations", {"conversations": TALK}), ("chat", {"chat": TALK}), ("dialogue", {"dialogue": TALK}),
            ("conversation", {"conversation": TALK}),
            ("ShareGPT", {"conversations": [{"from": {"user": "human", "assistant": "gpt"}[m["role"]], "value": m["content"]} for m in TALK]}),
            ("ShareGPT as text", {"conversations": text([{"from": m["role"], "value": m["content"]} for m in TALK])}),
            ("parts", {"messages": parts}),
            ("OpenAI's parts", {"messages": [
                {**m, "content": [{"type": "output_text" if m["role"] == "assistant" else "input_text", "text": m["content"]}]} for m in TALK]}),
            ("LLaMA-Factory's parts", {"messages": [{**m, "content": [{"type": "text", "value": m["content"]}]} for m in TALK]}),
            ("two parts", {"messages": [{**m, "content": [{"type": "text", "text": m["content"][:3]}, {"type": "text", "text": m["content"][3:]}]}
                                        for m in TALK]}),
            ("flags that say so", {"messages": [{**m, "train": m["role"] == "assistant"} for m in TALK]}),
            ("nulls", {"messages": [{**m, "tool_calls": None, "name": None, "loss": None} for m in TALK], "tools": None, "system": None}),
            ("instruction with history", {"instruction": TALK[2]["content"], "output": TALK[3]["content"],
                                          "history": [[TALK[0]["content"], TALK[1]["content"]]]}),
        ]),
        ("a question", {"messages": [ASK, SAY]}, [
            ("TRL's", {"prompt": [ASK], "completion": [SAY]}), ("TRL's as text", {"prompt": text([ASK]), "completion": text([SAY])}),
            ("prompt and text", {"prompt": [ASK], "completion": SAY["content"]}),
            *((f"{q}/{a}", {q: ASK["content"], a: SAY["content"]}) for q, a in (
                ("instruction", "output"), ("instruction", "response"), ("instruction", "answer"), ("instruction", "completion"),
                ("question", "answer"), ("question", "response"), ("prompt", "completion"), ("prompt", "response"), ("prompt", "output"),
                ("query", "response"), ("query", "answer"), ("input", "output"))),
        ]),
        ("the last answer alone", {"messages": with_key(TALK, 1, train=False)}, [
            ("TRL's", {"prompt": TALK[:3], "completion": TALK[3:]}),
            *((str(flag), {"messages": with_key(TALK, 1, **flag)}) for flag in FLAGS[:-1]),
        ]),
        ("a system prompt", {"messages": [{"role": "system", "content": "S"}, ASK, SAY]}, [
            ("system", {"messages": [ASK, SAY], "system": "S"}), ("system_prompt", {"messages": [ASK, SAY], "system_prompt": "S"}),
            ("Alpaca", {"instruction": ASK["content"], "output": SAY["content"], "system": "S"}),
            ("OpenOrca", {"question": ASK["content"], "response": SAY["content"], "system_prompt": "S"}),
            ("developer", {"messages": [{"role": "system", "content": "S"}, ASK, SAY]}),
        ]),
        ("tools and calls", called, [
            ("tools as text", tools(text([TOOL]))), ("each tool as text", tools([text(TOOL)])), ("bare", tools([TOOL["function"]])),
            ("bare, as text", tools([text(TOOL["function"])])), ("function as text", tools([{**TOOL, "function": text(TOOL["function"])}])),
            ("parameters as text", tools([{**TOOL, "function": {**TOOL["function"], "parameters": text(TOOL["function"]["parameters"])}}])),
            ("functions", {"messages": CALLING, "functions": [TOOL["function"]]}),
            ("calls as text", calling(text([CALL]))), ("each call as text", calling([text(CALL)])),
            ("arguments as text", calling([{**CALL, "function": {**function, "arguments": text(function["arguments"])}}])),
            ("function as text", calling([{**CALL, "function": text(function)}])),
        ]),
        ("a null that is said", calling([NULLED]), [
            ("as text", calling([{**CALL, "function": {**function, "arguments": text(NULLED["function"]["arguments"])}}])),
        ]),
        ("thinking", {"messages": [ASK, {**SAY, "reasoning_content": "why"}]}, [
            *((key, {"messages": [ASK, {**SAY, key: "why"}]}) for key in ("reasoning", "thinking")),
            *((f"a part: {part}", {"messages": [ASK, {**SAY, "content": [part, {"type": "text", "text": SAY["content"]}]}]}) for part in (
                {"type": "thinking", "thinking": "why"}, {"type": "thinking", "thinking": [{"type": "text", "text": "why"}]},
                {"type": "reasoning", "value": "why"}, {"type": "reasoning", "text": "why"})),
        ]),
    ]  # fmt: skip


def is_counted(what: str) -> bool:
    """Thinking and calls that a template doesn't print aren't named; their messages are counted instead."""
    return any(word in what for word in ("reasoning", "thinking", "function_call", "tool_calls"))


def find_silent(rig: Rig, name: str) -> tuple[int, int]:
    """(cases, silent ones)"""
    known: dict[str, Any] = {}
    counts = [0, 0]
    for what, without, has, options in cases():
        key = text([without, options])
        known[key] = known.get(key) or rig.look(without, options)
        (before, _), (after, named) = known[key], rig.look(has, options)
        is_named = {*what.rpartition(": ")[2].split(", ")} <= {field.split(".")[-1] for field in named}
        kind = "named" if is_named else "changes" if after != before else "silent"
        kind = "refused" if isinstance(after, str) else "counted" if kind == "silent" and name == "bare" and is_counted(what) else kind
        counts[0] += 1
        counts[1] += kind == "silent"
        if VERBOSE or kind == "silent":
            print(f"{kind:8} {name}: {what}" + (f"  ({after})" if kind == "refused" else ""))
    return counts[0], counts[1]


def find_differences(rig: Rig) -> tuple[int, int]:
    """(spellings, those that give something else)"""
    counts = [0, 0]
    for what, row, others in spellings():
        want = rig.look(row)[0]
        for other, spelt in [("itself", row), *others]:
            has_null = isinstance(spelt, dict) and text(NULLED["function"]["arguments"]) in text(spelt)  # in a struct a null is a filler
            for as_parquet in (False, True) if not has_null and as_table(spelt) is not None else (False,):
                got = rig.look(spelt, as_parquet=as_parquet)[0]
                counts[0] += 1
                counts[1] += got != want
                if VERBOSE or got != want:
                    said = f" ({got})" if isinstance(got, str) else ""
                    print(f"{'equal' if got == want else 'DIFFERS':8} {what}: {other}{', Parquet' if as_parquet else ''}{said}")
    return counts[0], counts[1]


def main() -> int:
    with tempfile.TemporaryDirectory() as scratch:
        for name in ("full", "bare"):
            Path(scratch, name).mkdir()
        full, bare = Rig(Path(scratch, "full"), FULL), Rig(Path(scratch, "bare"), BARE)
        seen = [find_silent(full, "full"), find_silent(bare, "bare")]
        spelt, differ = find_differences(full)
    columns, silent = (sum(pair[i] for pair in seen) for i in (0, 1))
    note = "" if arrow else "; no pyarrow: Parquet wasn't read"
    print(f"{columns} columns and keys, {silent} silent; {spelt} spellings, {differ} differ{note}")
    return 1 if silent or differ else 0


if __name__ == "__main__":
    sys.exit(main())
