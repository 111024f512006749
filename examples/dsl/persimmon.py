"""Persimmon: each head's query, key and value in one projection, then a layer norm of queries and keys; half of each head is rotated."""

from typing import Any

import gpt_neox
from surogate.dsl import Key, Tensor, block, forward, graph, hf_config, hf_mapping, model, module
from surogate.models import llama
from surogate.models.layers import DECODER, IGNORED, REFUSED, ROPE, LayerNorm, changed

CONFIG = changed(
    DECODER, "G", "activation", "attention_bias", "mlp_bias",
    eps=Key("layer_norm_eps", "1e-5", min=0),
    activation=Key("hidden_act", "0", choices={"relu2": 0}),
    rotary_share=Key(["rope_parameters.partial_rotary_factor", "partial_rotary_factor"], "0.5"),
    has_bias=Key(None, "1"),
    qk_norm=Key("qk_layernorm", "1"),
    hidden_dropout=Key("hidden_dropout", "0", unused="it is trained without dropout"),
)
REQUIRE = ROPE | {"R % 2 == 0": "partial_rotary_factor must give an even number of a head's elements"}


@hf_mapping(q_norm="q_layernorm", k_norm="k_layernorm")
@module
class Attention(gpt_neox.Attention):
    def __init__(self) -> None:
        super().__init__()
        self.q_norm, self.k_norm = LayerNorm("D"), LayerNorm("D")

    def turned(self, g: Any, x: Any, rope: Any, positions: Any, name: str) -> Any:
        norm = self.q_norm if name == "q" else self.k_norm
        x = g.select("qk_norm", lambda: norm(x, part="qkv"), lambda: x, name=name + ".normed")
        return super().turned(g, x, rope, positions, name)


@module
class MLP(gpt_neox.MLP):
    @forward
    def forward(self, x: Tensor["B", "T", "C"]) -> Tensor["B", "T", "C"]:
        with graph() as g:
            return self.down(g.relu(self.up(x, part="ffn"), squared=True, name="act", part="swiglu"))


@block
class Block(llama.Block):
    attention, feed_forward, norm = Attention, MLP, LayerNorm


@hf_mapping(norm="model.final_layernorm")
@hf_config("PersimmonForCausalLM", require=REQUIRE, ignored=IGNORED, refused=REFUSED, **CONFIG)
@model
class Persimmon(llama.Llama):
    last_norm, rotary = LayerNorm, "R"
