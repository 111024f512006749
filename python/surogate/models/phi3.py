"""Phi-3: Llama with one projection for queries, keys and values and one for gate and up."""

from typing import Any

from surogate.dsl import Key, Module, Tensor, block, forward, graph, hf_config, hf_mapping, model, module
from surogate.models import llama
from surogate.models.layers import DECODER, IGNORED, REFUSED, REQUIRE, WINDOW, Linear, changed

CONFIG = changed(DECODER, window=WINDOW, eps=Key("rms_norm_eps", "1e-5", min=0))
HEADS = {"num_heads": "H", "num_kv_heads": "G", "head_dim": "D"}


@hf_mapping(qkv="qkv_proj", o="o_proj")
@module
class Attention(Module):
    """Each of H query heads attends with one of G key/value heads."""

    def __init__(self) -> None:
        self.qkv = Linear("(H + 2 * G) * D", "C")
        self.o = Linear("C", "H * D")

    @forward
    def forward(self, x: Tensor["B", "T", "C"], rope: Tensor["P", "D"], positions: Any, doc_start: Any) -> Tensor["B", "T", "C"]:
        with graph() as g:
            qkv = g.qkv_norm_rope(self.qkv(x, part="qkv"), table=rope, positions=positions, name="rope", part="qkv", **HEADS)
            y = g.attention(qkv, doc_start=doc_start, window="window", name="heads", part="att", **HEADS)
            return self.o(g.reshape(y, "B", "T", "H * D", name="out", part="att"))


@hf_mapping(gate_up="gate_up_proj", down="down_proj")
@module
class MLP(Module):
    """down(silu(gate) * up), gate and up side by side"""

    def __init__(self) -> None:
        self.gate_up = Linear("2 * F", "C")
        self.down = Linear("C", "F")

    @forward
    def forward(self, x: Tensor["B", "T", "C"]) -> Tensor["B", "T", "C"]:
        with graph() as g:
            return self.down(g.swiglu(self.gate_up(x, part="ffn"), name="act", part="swiglu"))


@block
class Block(llama.Block):
    attention = Attention
    feed_forward = MLP


@hf_config("Phi3ForCausalLM", require=REQUIRE, ignored=IGNORED, refused=REFUSED, **CONFIG)
@model
class Phi3(llama.Llama):
    pass
