"""CodeGen: GPT-J whose projections of queries, values and keys are stored in four pieces, as it was trained on four devices."""

from typing import Any

import gptj
from surogate.dsl import Module, Tensor, block, forward, graph, hf_config, hf_mapping, model, module
from surogate.models.gpt2 import IGNORED_GPT2
from surogate.models.layers import REFUSED, Linear

PIECES = 4
REQUIRE = gptj.REQUIRE | {f"H % {PIECES} == 0": f"n_head must be a multiple of {PIECES}"}


@hf_mapping(qkv="qkv_proj", o="out_proj")
@module
class Attention(Module):
    def __init__(self) -> None:
        self.qkv = Linear("3 * H * D", "C", matrices=(f"C / {PIECES}",) * 3)
        self.o = Linear("C", "H * D")

    @forward
    def forward(self, x: Tensor["B", "T", "C"], rope: Any, positions: Any, doc_start: Any) -> Tensor["B", "T", "C"]:
        with graph() as g:
            pieces = g.reshape(self.qkv(x, part="qkv"), "B", "T", PIECES, f"3 * H * D / {PIECES}", name="pieces", part="qkv")
            q, v, k = (g.columns(pieces, begin=f"{n} * H * D / {PIECES}", size=f"H * D / {PIECES}", name="qvk"[n], part="qkv") for n in range(3))
            q, v, k = (g.reshape(part, "B", "T", "H", "D", name=f"{n}.heads", part="qkv") for part, n in ((q, "q"), (v, "v"), (k, "k")))
            q, k = (g.rope(part, rope, positions, interleaved=True, name=f"{n}.rope", part="qkv") for part, n in ((q, "q"), (k, "k")))
            y = g.attention(q, k, v, doc_start, num_heads="H", num_kv_heads="H", head_dim="D", name="heads", part="att")
            return self.o(g.reshape(y, "B", "T", "H * D", name="out", part="att"))


@block
class Block(gptj.Block):
    attention = Attention


@hf_config("CodeGenForCausalLM", require=REQUIRE, ignored=(*IGNORED_GPT2, "scale_attn_weights"), refused=REFUSED,
           unread=(".attn.causal_mask", ".attn.bias", ".attn.masked_bias"), **gptj.CONFIG)
@model
class CodeGen(gptj.GPTJ):
    pass
