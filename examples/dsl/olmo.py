"""OLMo-1: Llama with layer norms that have no weights."""

from typing import Any

from surogate.dsl import Key, Module, Tensor, block, forward, graph, hf_config, model, module, recompute
from surogate.models import llama
from surogate.models.layers import DECODER, FULL, IGNORED, REFUSED, changed

CONFIG = changed(DECODER, "eps", clip=Key("clip_qkv", "0"))
REQUIRE_OLMO = changed(FULL, "attention_bias == 0") | {"clip == 0": "clip_qkv isn't supported"}


@module
class LayerNorm(Module):
    def __init__(self, size: str) -> None:
        pass

    @recompute("norm")
    @forward
    def forward(self, x: Tensor["B", "T", "C"]) -> Tensor["B", "T", "C"]:
        with graph() as g:
            return g.layer_norm(x, eps=1e-5)


@module
class Attention(llama.Attention):
    qkv_bias = o_bias = "attention_bias"


@block
class Block(llama.Block):
    attention, norm = Attention, LayerNorm


@hf_config("OlmoForCausalLM", require=REQUIRE_OLMO, ignored=IGNORED, refused=REFUSED, **CONFIG)
@model
class Olmo(llama.Llama):
    last_norm = LayerNorm
