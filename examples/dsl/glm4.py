"""GLM-4-0414: norms before and after attention and MLP; adjacent elements of a part of each head are rotated in pairs."""

from typing import Any

from surogate.dsl import Key, Module, Tensor, block, forward, graph, hf_config, hf_mapping, model, module
from surogate.models import llama, phi3
from surogate.models.layers import DECODER, IGNORED, REFUSED, REQUIRE, RMSNorm, changed

CONFIG = changed(
    DECODER,
    rotary_share=Key(["rope_parameters.partial_rotary_factor", "partial_rotary_factor"], "0.5"),
    attention_bias=Key("attention_bias", "1"),
)
REQUIRE_GLM = changed(REQUIRE, "rotary_share == 1", "attention_bias == 0") | {
    "R % 2 == 0": "partial_rotary_factor must give an even number of a head's elements"}


@module
class Attention(llama.Attention):
    qkv_bias = "attention_bias"

    def turned(self, g: Any, x: Any, rope: Any, positions: Any, name: str) -> Any:
        return g.rope(x, rope, positions, interleaved=True, name=name, part="qkv")


@hf_mapping(norm1="input_layernorm", attn="self_attn", norm2="post_self_attn_layernorm")
@hf_mapping(norm3="post_attention_layernorm", norm4="post_mlp_layernorm")
@block
class Block(Module):
    def __init__(self) -> None:
        self.norm1, self.attn, self.norm2 = RMSNorm("C"), Attention(), RMSNorm("C")
        self.norm3, self.mlp, self.norm4 = RMSNorm("C"), phi3.MLP(), RMSNorm("C")

    @forward
    def forward(self, x: Tensor["B", "T", "C"], rope: Any, positions: Any, doc_start: Any) -> Tensor["B", "T", "C"]:
        with graph() as g:
            x = g.add(x, self.norm2(self.attn(self.norm1(x), rope, positions, doc_start)), name="res1")
            return g.add(x, self.norm4(self.mlp(self.norm3(x))), name="res2")


@hf_config("Glm4ForCausalLM", require=REQUIRE_GLM, ignored=IGNORED, refused=REFUSED, **CONFIG)
@model
class Glm4(llama.Llama):
    rotary = "R"
