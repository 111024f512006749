#!/bin/bash
# The DSL: models/*.json agree with python/surogate/models, ops.json is the engine's list, wrong files give one message with the right line.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
export PYTHONPATH=$root/python PYTHONDONTWRITEBYTECODE=1

command -v python3 > /dev/null || { skip "python3 isn't installed" && finish; }
check "models/*.json and ops.json are current" tools/write-models --check

python3 tests/dsl/wrong.py > "$dir/wrong" || cat "$dir/wrong"
read -r good _ bad _ < <(tail -1 "$dir/wrong")
num_passed=$((num_passed + ${good:-0}))
num_failed=$((num_failed + ${bad:-1}))
check "at least 300 wrong programs" [ "${good:-0}" -ge 300 ]

python3 -m surogate.dsl show --svg surogate.models.llama -o "$dir/llama.svg"
check "the drawing is XML with a box for each op" python3 -c "import sys, xml.dom.minidom as x
assert len(x.parse(sys.argv[1]).getElementsByTagName('text')) == 23" "$dir/llama.svg"
shown() { # shown MODEL LINE: the output has the line, apart from runs of spaces
    python3 -m surogate.dsl show "surogate.models.$1" | tr -s ' ' > "$dir/shown"
    check "$1: $2" grep -qxF " $2" "$dir/shown"
}
shown gemma2 "blocks.{i}.norm1 (B, T, C) rms_norm(x, blocks.{i}.norm1.weight, eps=eps, offset=1)"
shown gemma2 "blocks.{i}.mlp.act (B, T, F) swiglu(blocks.{i}.mlp.gate, blocks.{i}.mlp.up, gelu=True)"
shown gemma2 "blocks.{i}.attn.k.heads (B, T, G, D) reshape(blocks.{i}.attn.k)"
check "a list is shown by its length" sh -c "python3 -m surogate.dsl show surogate.models.llama | grep -qF ', frequencies=each(rope_kind && !dynamic ? R / 2 : 0, ...))'"
for name in llama surogate.models.lama; do
    python3 -m surogate.dsl show "$name" > "$dir/out" 2> "$dir/err" && fail "$name was shown"
    check "$name: $(tail -1 "$dir/err")" [ "$(cat "$dir/err")" = "$name: no Python module of that name; expected FILE.py or a module, as surogate.models.llama" ]
done
finish
