"""OLMo-1: Llama with layer norms that have no weights; queries, keys and values may be clipped."""

from typing import Any

from surogate.dsl import Key, Module, Tensor, block, forward, graph, hf_config, model, module, recompute
from surogate.models import llama
from surogate.models.layers import DECODER, FULL, IGNORED, REFUSED, Linear, changed

CONFIG = changed(DECODER, "eps", clip=Key("clip_qkv", "0", min=0))
REQUIRE_OLMO = changed(FULL, "attention_bias == 0")


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
class Clipped(Linear):
    """A linear layer whose result is within -clip and clip, if there is a clip."""

    @forward
    def forward(self, x: Tensor["...", "inner"]) -> Tensor["...", "out"]:
        with graph() as g:
            def clipped() -> Any:
                most = g.full(size=1, value="clip", name="most")
                return g.maximum(g.minimum(y, most), g.scale(most, by=-1.0), name="within")

            y = g.linear(x, self.weight, self.bias, name="all")
            return g.select("clip > 0", clipped, lambda: y, name="y")


@module
class Attention(llama.Attention):
    o_bias = "attention_bias"

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (Clipped(f"{heads} * D", "C", "attention_bias") for heads in "HGG")


@block
class Block(llama.Block):
    attention, norm = Attention, LayerNorm


@hf_config("OlmoForCausalLM", require=REQUIRE_OLMO, ignored=IGNORED, refused=REFUSED, **CONFIG)
@model
class Olmo(llama.Llama):
    last_norm = LayerNorm
