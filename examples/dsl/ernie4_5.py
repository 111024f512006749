"""ERNIE 4.5: Llama in which adjacent elements of each head are rotated in pairs."""

from typing import Any

from surogate.dsl import Key, Size, block, hf_config, model, module
from surogate.models import llama
from surogate.models.layers import DECODER, FULL, IGNORED, REFUSED, changed

CONFIG = changed(
    DECODER,
    D=Size("head_dim", "128", most=65536),
    eps=Key("rms_norm_eps", "1e-5", min=0),
    tied=Key("tie_word_embeddings", "1"),
    has_bias=Key("use_bias", "0"),
)


@module
class Attention(llama.Attention):
    qkv_bias = o_bias = "has_bias"

    def turned(self, g: Any, x: Any, rope: Any, positions: Any, name: str) -> Any:
        return g.rope(x, rope, positions, interleaved=True, name=name, part="qkv")


@module
class MLP(llama.MLP):
    bias = "has_bias"


@block
class Block(llama.Block):
    attention, feed_forward = Attention, MLP


@hf_config("Ernie4_5ForCausalLM", require=FULL, ignored=IGNORED, refused=REFUSED, **CONFIG)
@model
class Ernie(llama.Llama):
    pass
