"""Nemotron: layer norms that multiply by 1 + weight, an MLP of squared ReLU, rotary positions of a part of each head."""

from surogate.dsl import Key, Module, Param, Tensor, block, forward, graph, hf_config, hf_mapping, model, module, recompute
from surogate.models import layers, llama
from surogate.models.layers import DECODER, IGNORED, REFUSED, REQUIRE, Linear, changed

CONFIG = changed(
    DECODER,
    eps=Key("norm_eps", "1e-5", min=0),
    activation=Key("hidden_act", "0", choices={"relu2": 0}),
    rotary_share=Key(["rope_parameters.partial_rotary_factor", "partial_rotary_factor"], "0.5"),
)
REQUIRE_NEMOTRON = changed(REQUIRE, "rotary_share == 1", "attention_bias == 0", "mlp_bias == 0") | {
    "R % 2 == 0": "partial_rotary_factor must give an even number of a head's elements"}


@module
class LayerNorm(layers.LayerNorm):
    """y = (x - mean(x)) / deviation(x) * (1 + weight) + bias"""

    weight = Param(Tensor["size"], init="zeros", decay=False)

    @recompute("norm")
    @forward
    def forward(self, x: Tensor["...", "size"]) -> Tensor["...", "size"]:
        with graph() as g:
            return g.layer_norm(x, self.weight, self.bias, eps="eps", offset=1)


@module
class Attention(llama.Attention):
    qkv_bias = o_bias = "attention_bias"


@hf_mapping(up="up_proj", down="down_proj")
@module
class MLP(Module):
    """down(max(up(x), 0)^2)"""

    def __init__(self) -> None:
        self.up, self.down = Linear("F", "C", "mlp_bias"), Linear("C", "F", "mlp_bias")

    @forward
    def forward(self, x: Tensor["B", "T", "C"]) -> Tensor["B", "T", "C"]:
        with graph() as g:
            return self.down(g.relu(self.up(x, part="ffn"), squared=True, name="act", part="swiglu"))


@block
class Block(llama.Block):
    attention, feed_forward, norm = Attention, MLP, LayerNorm


@hf_config("NemotronForCausalLM", require=REQUIRE_NEMOTRON, ignored=IGNORED, refused=REFUSED, **CONFIG)
@model
class Nemotron(llama.Llama):
    last_norm, rotary = LayerNorm, "R"
