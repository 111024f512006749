#!/bin/bash
# Models that can generate one token at a time, and models for which generation is refused with the reason.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
export PYTHONPATH=$root/python PYTHONDONTWRITEBYTECODE=1
command -v python3 > /dev/null || { skip "python3 isn't installed" && finish; }
cd "$dir" || exit 1
mkdir model
echo '{"architectures": ["MixedForCausalLM"], "vocab_size": 32, "n_embd": 16, "n_layer": 2}' > model/config.json

# write LINE: writes a model in which this line computes h from x.
write() {
    cat > mixed.py << END_OF_MODEL
from typing import Any

from surogate.dsl import *


@block
class Block(Module):
    w = Param(Tensor["2 * C", "2 * C"], init=normal(0.02), linear=True)
    out = Param(Tensor["C", "2 * C"], init=normal(0.02), linear=True)

    @forward
    def forward(self, x: Tensor["B", "T", "C"], positions: Any, doc_start: Any) -> Tensor["B", "T", "C"]:
        with graph() as g:
            $1
            return g.add(x, h, name="sum")


@hf_mapping.indexed("blocks", "blocks.{i}")
@hf_config("MixedForCausalLM", V=Size("vocab_size"), C=Size("n_embd"), L=Size("n_layer"))
@model
class Mixed(Module):
    embed = Param(Tensor["V", "C"], init=normal(0.02))
    head = Param(Tensor["V", "C"], init=normal(0.02), head=True)
    blocks = Array["L", "Block"]

    @forward
    def forward(self, tokens: Tensor["B", "T", "i32"], positions: Any, doc_start: Any) -> dict[str, Any]:
        with graph() as g:
            x = self.blocks(g.embedding(tokens, self.embed, name="x0"), positions, doc_start)
            return {"hidden": x, "logits": g.linear(x, self.head, name="logits")}
END_OF_MODEL
    python3 -m surogate.dsl build mixed.py -o mixed.json 2> err || fail "$1: $(cat err)"
}
wide='y = g.linear(g.concat(x, x, name="two"), self.w, name="y");'
small='h = g.linear(y, self.out, name="h")'
in_both() { # in_both CHECK ARGS...: checks the program that reads the prompt and the one that continues from there
    for program in prefill decode; do "$@" ir model=model from_scratch=true ir=mixed.json device=cpu --program $program --after cache; done
}
makes() {
    run "$@"
    check "$line: $(tail -1 err)" [ "$status" = 0 ]
}
can() { # can LINE
    line=$1
    write "$wide $1; $small"
    in_both makes
}
cannot() { # cannot LINE TEXT...
    write "$wide $1; $small"
    local name=$1
    shift
    in_both refused "$name" 2 "mixed.py:14: " "nothing can be generated" "$@" --
}

can 'y = g.add(y, g.expand(g.mean(y, dim=-1, name="m"), dim=-1, size="2 * C", name="e"), name="z")'
can 'y = g.reshape(g.softmax(g.reshape(y, "B * T", "2", "C", name="r"), name="s"), "B", "T", "2 * C", name="z")'
can 'y = g.mul(y, g.reshape(g.tanh(g.reshape(g.sum(y, dim=-1, name="m"), "B", "T", name="r"), name="s"), "B", "T", 1, name="q"), name="z")'
can 'y = g.mul(y, g.reshape(g.full(size="B * T", name="f"), "B", "T", 1, name="r"), name="z")'
can 'y = g.slice(g.pad(y, before=3, name="p"), size="2 * C", name="z")'
can 't = g.topk(y, k=2, name="t"); y = g.add(y, g.reshape(g.slice(t, size=1, name="b"), "B", "T", 1, name="r"), name="z")'
can 'y = g.add(y, g.gather_rows(self.w, positions, name="g"), name="z")'
can 'y = g.reshape(g.attention(g.reshape(y, "B", "T", 2, "C", name="q"), g.reshape(y, "B", "T", 2, "C", name="k"), g.reshape(y, "B", "T", 2, "C", name="v"), doc_start, num_heads=2, num_kv_heads=2, head_dim="C", name="a"), "B", "T", "2 * C", name="z")'

cannot 'y = g.slice(g.pad(y, dim=1, before=1, name="p"), dim=1, size="T", name="z")' "p = pad(...) mixes tokens"
cannot 'y = g.expand(g.mean(y, dim=1, name="m"), dim=1, size="T", name="z")' "m = mean(...) mixes tokens"
cannot 'y = g.expand(g.mean(y, dim=0, name="m"), dim=0, size="B", name="z")' "m = mean(...) mixes tokens"
cannot 'y = g.scale(y, by="1 / T", name="z")' "z = scale(...) has an attribute by that follows from B or T"
cannot 'y = g.scale(y, by="1 / B", name="z")' "z = scale(...) has an attribute by that follows from B or T"
cannot 'y = g.gather_rows(g.reshape(y, "B * T", "2 * C", name="r"), positions, name="z")' "z = gather_rows(...) mixes tokens"
cannot 'y = g.gather_rows(g.scatter_add_rows(y, positions, size=8, name="s"), positions, name="z")' "s = scatter_add_rows(...) mixes tokens"
cannot 'y = g.add(y, g.reshape(g.full(size="T", name="f"), 1, "T", 1, name="r"), name="z")' "z = add(...) mixes tokens, or counts them"
cannot 'y = g.add(y, g.gather_rows(g.reshape(g.full(size="T * 2 * C", name="f"), "T", "2 * C", name="r"), positions, name="q"), name="z")' "reads" "whose size follows from B or T"
attention='g.attention(g.reshape(y, "B", "T", 2, "C", name="q"), g.reshape(y, "B", "T", 2, "C", name="k"), g.reshape(y, "B", "T", 2, "C", name="v")'
cannot "a = $attention"', doc_start, None, g.alibi_table(len="T", num_heads=2, name="bias"), num_heads=2, num_kv_heads=2, head_dim="C", name="a"); y = g.reshape(a, "B", "T", "2 * C", name="z")' "bias = alibi_table(...) has an attribute len that follows from B or T"
write "$wide a = $attention"', positions, num_heads=2, num_kv_heads=2, head_dim="C", name="a"); y = g.reshape(a, "B", "T", "2 * C", name="z"); '"$small"
in_both refused "another doc_start" 2 "blocks.0.a: attention takes positions for doc_start" "nothing can be generated" --
# A weight's row that is taken by constant ids has a gradient.
write "$wide "'ids = g.reshape(g.full(size=1, value=0, dtype="i32", name="f"), 1, 1, name="i"); y = g.mul(y, g.embedding(ids, self.w, name="row"), name="z"); '"$small"
for program in micro_first decode; do
    run ir model=model from_scratch=true ir=mixed.json device=cpu --program $program
    check "a row by constant ids, $program: $(tail -1 err)" [ "$status" = 0 ]
done
# Models that mix tokens can still be evaluated.
write "$wide "'y = g.slice(g.pad(y, dim=1, before=1, name="p"), dim=1, size="T", name="z"); '"$small"
run ir model=model from_scratch=true ir=mixed.json device=cpu --program score
check "score: $(tail -1 err)" [ "$status" = 0 ]
# Generation and evaluation may compute in fp16: results of ops that keep their input's dtype are then fp16 too.
write "$wide "'y = g.softmax(y, name="s"); e = g.expand(g.reshape(g.max(y, dim=-1, name="m"), "B", "T", 1, name="r"), dim=-1, size="2 * C", name="e"); y = g.add(y, e, name="z"); '"$small"
seq 1 500 | sed 's/^/The number is /' > text.txt
"$SUROGATE" tokenizer train --vocab-size 280 --out small text.txt > /dev/null 2>&1
sed 's/"vocab_size": 32/"vocab_size": 280/' model/config.json > small/config.json
run pt model=small ir=mixed.json from_scratch=true 'datasets=[{path: text.txt, type: text}]' sequence_len=32 max_steps=30 learning_rate=1e-2 device=cpu model_dtype=fp32 output_dir=trained
check "it trains: $(tail -1 err)" [ "$status" = 0 ]
write "$wide "'y = g.add(y, g.gather_rows(g.reshape(g.full(size="16 * 2 * C", name="f"), 16, "2 * C", name="r"), positions, name="g"), name="z"); '"$small"
refused "an id that no row has" 2 "mixed.py:14: blocks.0.g = gather_rows: id 16 at position 16 is outside the 16 rows of x" -- \
    pt model=small ir=mixed.json from_scratch=true 'datasets=[{path: text.txt, type: text}]' sequence_len=64 max_steps=1 device=cpu model_dtype=fp32 output_dir=none
for dtype in fp32 fp16; do
    run generate trained --prompt "The number is" --max-tokens 8 --temperature 0 --dtype $dtype
    check "it writes in $dtype: $(tail -1 err)" [ "$status" = 0 ]
    cp out $dtype
done
check "the same" cmp fp32 fp16
check "LoRA names both linear weights of a module apart" [ "$(grep -o '"module": "[^"]*"' mixed.json | sort -u | tr '\n' ' ')" = '"module": "blocks.{i}" "module": "blocks.{i}.out" ' ]
finish
