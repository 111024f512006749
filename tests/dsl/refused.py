"""Programs that the DSL accepts and the engine refuses, with the numbers of one config. Each is tests/dsl/heads.py with a text replaced. The
message must name the line of the Python file, the instance, the value found and the value expected.

    refused.py FOLDER    FOLDER has model (a config with a tokenizer), trained (a trained model), and run.yaml and lora.yaml, which train them
"""

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from surogate.dsl.__main__ import main as dsl

HEADS = Path("tests/dsl/heads.py").read_text()
SUROGATE = os.environ["SUROGATE"]
PLAN, TRAIN, LORA = ("plan", "run.yaml"), ("pt", "run.yaml", "output_dir=o"), ("plan", "lora.yaml")
GENERATE = ("generate", "written", "--prompt", "The number", "--max-tokens", "2")

NORMED = 'hidden = g.rms_norm(x, self.norm, eps="eps", name="hidden")'
D, WINDOW, COUNT, HEAD_DIM = 'D=Key(None, "C / H")', 'window="near[i] ? W : 0"', 'Array["L", "Block"]', 'head_dim="D", name="table"'
Q_NORM, WEIGHT = 'Param(Tensor["D"], init="ones")', 'Param(Tensor["out", "inner"], linear=True, init=normal(0.02))'

# (text to replace; replacement, in which & is the old text; command; pieces of the message, in which @ is the replacement's first line, @@ its last)
PROGRAMS: list[tuple[str, str, tuple[str, ...], tuple[str, ...]]] = [
    # sizes that the config doesn't give
    (D, 'D=Key(None, "C / 3")', PLAN, ("heads.py:107 (", "10.6667 isn't a whole number: D, as attribute head_dim, in table")),
    (D, 'D=Key(None, "C / H + 1")', PLAN, ("heads.py:107: table = rope_table(): attribute head_dim is 9, expected an even number",)),
    (HEAD_DIM, 'head_dim="2 * D", name="table"', PLAN, ("heads.py:54: blocks.0.attn.q.rope = rope(", "heads have 8 elements and the table turns 16")),
    (HEAD_DIM, 'head_dim="D - 1", name="table"', PLAN, ("@: table = rope_table(): attribute head_dim is 7, expected an even number",)),
    ('len="P", head', 'len="0 * P", head', PLAN, ("@: table = rope_table(): attribute len is 0, expected the number of positions",)),
    (WINDOW, 'window="near[i] ? 0 - W : 0"', PLAN, ("@: blocks.1.attn.y = attention(", "attributes window -8, softcap 0: expected 0 (none) or a positive")),
    (WINDOW, 'window="near[i + 1] ? W : 0"', PLAN, ("@ (", "near[3]: expected an index from 0 to 2, as attribute window, in blocks.2.attn.y")),
    (WINDOW, 'window="W / 3"', PLAN, ("@ (", "2.66667 isn't a whole number: W / 3, as attribute window, in blocks.0.attn.y")),
    (WINDOW, 'scale="sqrt(0 - i)"', PLAN, ("@ (", "nan, expected a finite number, as attribute scale, in blocks.1.attn.y")),
    (WINDOW, 'softcap="0 - 1"', PLAN, ("@: blocks.0.attn.y = attention(", "softcap -1: expected 0 (none) or a positive number")),
    ('eps="eps", name="q.normed"', 'eps="eps / (i != 1)", name="q.normed"', PLAN, ("@ (", "is inf, expected a finite number, as attribute eps, in blocks.1.attn.q.normed")),
    ('eps="eps", name="q.normed"', 'eps="0 - eps", name="q.normed"', PLAN, ("@: blocks.0.attn.q.normed = rms_norm(", "attribute eps is -1e-06, expected 0 or more")),
    (NORMED, 'hidden = g.layer_norm(x, self.norm, eps="0 - V", name="hidden")', PLAN, ("@: hidden = layer_norm(", "attribute eps is -320, expected 0 or more")),
    (WINDOW, 'scale="0 / i"', PLAN, ("@ (", "0 / i is nan, expected a finite number, as attribute scale, in blocks.0.attn.y")),
    (Q_NORM, 'Param(Tensor["D"], init=normal("0 - i"))', PLAN, ("@ (", "init: a deviation of -1, expected 0 or more, in blocks.1.attn.q_norm")),
    (WEIGHT, 'Param(Tensor["out", "inner"], matrices=("C", "C"))', PLAN, ("@ (", "blocks.0.attn.q.weight: its matrix 2 has 32 rows; expected at least 1")),
    (WEIGHT, 'Param(Tensor["out", "inner"], matrices=("C / 5",))', PLAN, ("@ (", "6.4 isn't a whole number: C / 5, as matrices[0], in blocks.0.attn.q.weight")),
    (COUNT, 'Array["L / 2", "Block"]', PLAN, ("@ (", "1.5 isn't a whole number: L / 2")),
    (COUNT, 'Array["L - 4", "Block"]', PLAN, ("@ (", "repeat: -1 times, expected 0 or more")),
    (COUNT, 'Array["L + 1", "Block"]', PLAN, ("heads.py:55 (", "near[3]: expected an index from 0 to 2, as attribute window, in blocks.3.attn.y")),
    ('"near[i]", lambda', '"1 / (i - 1)", lambda', PLAN, ("@ (", "is inf, expected a finite number, where i = 1")),
    ('"C % H == 0": "', '"near[3]": "', PLAN, ("written.json: rule:", "near[3]: expected an index from 0 to 2")),
    # ops
    (NORMED, 'g.topk(x, k="V", name="t")\n            &', PLAN, ("@: t = topk(", "attribute k is 320, expected 1 to 32, as x is f32[2,32,32]")),
    (NORMED, 'g.slice(x, begin="F", size=1, name="t")\n            &', PLAN, ("@: t = slice(", "1 from 48 on of dim 2 of x, which is f32[2,32,32]")),
    (NORMED, 'g.reshape(x, "B", "T", "C / 5", 5, name="t")\n            &', PLAN, ("@ (", "6.4 isn't a whole number: C / 5, as attribute d2, in t")),
    (NORMED, 'g.full(size="C - 40", name="t")\n            &', PLAN, ("@: t = full(): attribute size is -8, expected the number of elements",)),
    (NORMED, 'g.scale(x, by="1 / (C - 32)", name="t")\n            &', PLAN, ("@ (", "is inf, expected a finite number, as attribute by, in t")),
    (NORMED, 'g.linear_dx(x, self.embed, name="t")\n            &', PLAN, ("@: t = linear_dx(blocks.2.sum: f32[2,32,32], embed: f32[320,32]",)),
    # gradients
    (NORMED, 'x = g.mul(x, g.reshape(g.rms_norm(x, self.norm, name="n").rstd, "B", "T", 1, name="r"), name="m")\n            &', TRAIN,
     ("@: the loss reads", "the op has no gradient for it")),
    # generation refused
    (WINDOW, "&, bidirectional=True", GENERATE, ("@: blocks.0.attn.y: attention is bidirectional", "nothing can be generated")),
    ("g.attention(q, k, v, doc_start", "g.attention(q, k, v, positions", GENERATE, ("@: blocks.0.attn.y: attention takes positions for doc_start",)),
    (NORMED, 'x = g.sub(x, g.mean(x, dim=1, name="mid"), name="centred")\n            &', GENERATE, ("@: mid = mean(...) mixes tokens, or counts them",)),
    (NORMED, 'x = g.slice(g.pad(x, dim=1, before=1, name="p"), dim=1, size="T", name="s")\n            &', GENERATE, ("@: p = pad(...) mixes tokens",)),
    (NORMED, 'x = g.scale(x, by="1 / T", name="s")\n            &', GENERATE, ("@: s = scale(...) has an attribute by that follows from B or T",)),
    ('len="P", head', 'len="T", head', GENERATE, ("@: table = rope_table(...) has an attribute len that follows from B or T",)),
    # LoRA
    ("linear=True, ", "", LORA, ('"all-linear" matches no linear layer of this model; it has none: no weight of its IR has "linear": true',)),
    ("", "", (*LORA, "lora_target_modules=q_norm"), ('"q_norm" matches no linear layer of this model; it has q, k, v, o, wide, gate, up, down, lm_head',)),
    ("", "", (*LORA, "lora_target_modules=embed"), ('"embed" matches no linear layer of this model; it has q, k,',)),
    ("HeadsForCausalLM", "HandsForCausalLM", PLAN, ("written.json is of HandsForCausalLM, but model/config.json says HeadsForCausalLM",)),
]  # fmt: skip

# keys of config.json, and pieces of what `plan` says
CONFIGS: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"num_attention_heads": 3}, ("model/config.json: hidden_size isn't a multiple of num_attention_heads", "hidden_size is 32, num_attention_heads is 3")),
    ({"num_key_value_heads": 3}, ("heads.py:55: blocks.0.attn.y = attention(", "num_heads 4, num_kv_heads 3", "a multiple of num_kv_heads heads")),
    ({"num_attention_heads": "4"}, ("model/config.json: num_attention_heads", "expected")),
    ({"num_attention_heads": None}, ("model/config.json: num_attention_heads: missing",)),
    ({"hidden_size": 0}, ("model/config.json: hidden_size", "expected", "at least 1")),
    ({"hidden_size": 32.5}, ("model/config.json: hidden_size", "32.5")),
    ({"rms_norm_eps": -1}, ("model/config.json: rms_norm_eps: -1; expected at least 0",)),
    ({"layer_types": ["far", "near"]}, ("model/config.json: layer_types: 2 entries; expected 3, as num_hidden_layers is 3",)),
    ({"layer_types": ["far", "near", "middle"]}, ("model/config.json: layer_types", '"middle" isn\'t supported', "supported: near, far")),
    ({"tie_word_embeddings": "yes"}, ("model/config.json: tie_word_embeddings", "true or false")),
    ({"sinks": 2}, ("model/config.json: sinks", "true or false")),
]  # fmt: skip


def build(text: str, folder: Path) -> None:
    (folder / "heads.py").write_text(text)
    sys.argv = ["surogate.dsl", "build", str(folder / "heads.py"), "-o", str(folder / "written.json")]
    before = list(sys.path)
    with contextlib.redirect_stderr(io.StringIO()):
        dsl()
    sys.path[:] = before


def says(command: tuple[str, ...], folder: Path) -> tuple[int, str]:
    done = subprocess.run([SUROGATE, *command], cwd=folder, capture_output=True, text=True)
    return done.returncode, done.stderr


def program(old: str, new: str, command: tuple[str, ...], pieces: tuple[str, ...], folder: Path) -> str:
    new = new.replace("&", old)
    text = HEADS.replace(old, new, 1) if old else HEADS
    if old and text == HEADS:
        return f"the right one has no {old!r}"
    first = text.count("\n", 0, text.find(new)) + 1
    last = first + new.count("\n")
    try:
        build(text, folder)
    except SystemExit as end:
        status, got = 2, str(end.code)
    else:
        (folder / "trained" / "surogate_ir.json").write_text((folder / "written.json").read_text())
        status, got = says(command, folder)
    missing = [piece for piece in pieces if piece.replace("@@", f"heads.py:{last}").replace("@", f"heads.py:{first}") not in got]
    return f"status {status}, without {missing}: {got[-600:]}" if missing or status != 2 else ""


def main() -> None:
    folder, failed = Path(sys.argv[1]), 0
    build(HEADS, folder)
    if says(PLAN, folder)[0] != 0:
        failed += 1
        print("FAILED: the right program")
    (folder / "written").symlink_to("trained")
    for old, new, command, pieces in PROGRAMS:
        if problem := program(old, new, command, pieces, folder):
            failed += 1
            print(f"FAILED: {new}: {' '.join(command)}: {problem}")
    build(HEADS, folder)
    path = folder / "model" / "config.json"
    right = json.loads(path.read_text())
    for keys, pieces in CONFIGS:
        path.write_text(json.dumps({key: value for key, value in {**right, **keys}.items() if value is not None}))
        status, got = says(PLAN, folder)
        if status != 2 or not all(piece in got for piece in pieces):
            failed += 1
            print(f"FAILED: {keys}: status {status}: {got[-600:]}")
    print(f"{len(PROGRAMS) + len(CONFIGS) + 1 - failed} passed, {failed} failed, 0 skipped")
    sys.exit(failed > 0)


main()
