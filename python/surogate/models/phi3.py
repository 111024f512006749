"""Phi-3: Llama with one projection for queries, keys and values and one for gate and up."""

from typing import Any

from surogate.dsl import Module, Number, Tensor, block, forward, graph, hf_config, hf_mapping, model, module
from surogate.models import llama
from surogate.models.layers import DECODER, IGNORED, LONGROPE, REFUSED, REQUIRE, WINDOW, Linear, changed, rope_kind

# Includes older spellings of longrope.
CONFIG = changed(DECODER, window=WINDOW, eps=Number("rms_norm_eps", "1e-5", min=0),
                 rope_kind=rope_kind(default=0, longrope=LONGROPE, su=LONGROPE, yarn=LONGROPE))
REQUIRE_PHI3 = changed(REQUIRE, "rotary_share == 1") | {"R % 2 == 0": "partial_rotary_factor must give an even number of a head's elements"}
HEADS = {"num_heads": "H", "num_kv_heads": "G", "head_dim": "D"}


@hf_mapping(qkv="qkv_proj", o="o_proj")
@module
class Attention(Module):
    """Each of H query heads attends with one of G key/value heads."""

    def __init__(self) -> None:
        self.qkv = Linear("(H + 2 * G) * D", "C", matrices=("H * D", "G * D", "G * D"))
        self.o = Linear("C", "H * D")

    def whole(self, g: Any, qkv: Any, rope: Any, positions: Any, doc_start: Any) -> Any:
        turned = g.qkv_norm_rope(qkv, table=rope, positions=positions, name="rope", part="qkv", **HEADS)
        return g.attention(turned, doc_start=doc_start, window="window", name="att", part="att", **HEADS)

    def partial(self, g: Any, qkv: Any, rope: Any, positions: Any, doc_start: Any) -> Any:
        """If only a part of each head is rotated: takes q, k and v out of the packed rows separately."""
        def heads(name: str, begin: str, count: str) -> Any:
            part = g.columns(qkv, begin=begin, size=f"{count} * D", name=name, part="qkv")
            return g.reshape(part, "B", "T", count, "D", name=name + ".heads", part="qkv")

        q, k, v = heads("q", "0", "H"), heads("k", "H * D", "G"), heads("v", "(H + G) * D", "G")
        q = g.rope(q, rope, positions, name="q.rope", part="qkv")
        k = g.rope(k, rope, positions, name="k.rope", part="qkv")
        return g.attention(q, k, v, doc_start, window="window", name="att.part", part="att", **HEADS)

    @forward
    def forward(self, x: Tensor["B", "T", "C"], rope: Tensor["P", "R"], positions: Any, doc_start: Any) -> Tensor["B", "T", "C"]:
        with graph() as g:
            qkv = self.qkv(x, part="qkv")
            y = g.select("R == D", lambda: self.whole(g, qkv, rope, positions, doc_start),
                         lambda: self.partial(g, qkv, rope, positions, doc_start), name="heads")
            return self.o(g.reshape(y, "B", "T", "H * D", name="out", part="att"))


@hf_mapping(gate_up="gate_up_proj", down="down_proj")
@module
class MLP(Module):
    """down(silu(gate) * up), with gate and up packed in one projection"""

    def __init__(self) -> None:
        self.gate_up = Linear("2 * F", "C", matrices=("F", "F"))
        self.down = Linear("C", "F")

    @forward
    def forward(self, x: Tensor["B", "T", "C"]) -> Tensor["B", "T", "C"]:
        with graph() as g:
            return self.down(g.swiglu(self.gate_up(x, part="ffn"), name="act", part="swiglu"))


@block
class Block(llama.Block):
    attention = Attention
    feed_forward = MLP


@hf_config("Phi3ForCausalLM", require=REQUIRE_PHI3, ignored=IGNORED, refused=REFUSED, **CONFIG)
@model
class Phi3(llama.Llama):
    rotary = "R"
