"""Helium: Llama in which adjacent elements of each head are rotated in pairs."""

from typing import Any

from surogate.dsl import Key, Size, block, hf_config, model, module
from surogate.models import llama
from surogate.models.layers import DECODER, FULL, IGNORED, REFUSED, changed, heads, rope_theta

CONFIG = changed(
    DECODER,
    G=heads("20"),
    D=Size("head_dim", "128", most=65536),
    eps=Key("rms_norm_eps", "1e-8", min=0),
    theta=rope_theta("100000"),
)


@module
class Attention(llama.Attention):
    qkv_bias = "attention_bias"

    def turned(self, g: Any, x: Any, rope: Any, positions: Any, name: str) -> Any:
        return g.rope(x, rope, positions, interleaved=True, name=name, part="qkv")


@module
class MLP(llama.MLP):
    bias = "mlp_bias"


@block
class Block(llama.Block):
    attention, feed_forward = Attention, MLP


@hf_config("HeliumForCausalLM", require=changed(FULL, "attention_bias == 0", "mlp_bias == 0"), ignored=IGNORED, refused=REFUSED, **CONFIG)
@model
class Helium(llama.Llama):
    pass
