"""Starcoder2: Llama with layer norms, biases and an MLP of GELU; attention may have a window."""

from surogate.dsl import Key, Module, Tensor, block, forward, graph, hf_config, hf_mapping, model, module
from surogate.models import llama
from surogate.models.layers import DECODER, IGNORED, REFUSED, REQUIRE, WINDOW, LayerNorm, Linear, changed

CONFIG = changed(
    DECODER, "activation",
    eps=Key("norm_epsilon", "1e-5", min=0),
    tied=Key("tie_word_embeddings", "1"),
    tanh=Key("hidden_act", "1", choices={"gelu": 0, "gelu_new": 1, "gelu_pytorch_tanh": 1}),
    window=WINDOW,
    has_bias=Key("use_bias", "1"),
    **{f"{place}_dropout": Key(f"{place}_dropout", "0", unused="it is trained without dropout") for place in ("residual", "embedding")},
)


@module
class Attention(llama.Attention):
    qkv_bias = o_bias = "has_bias"
    more = {"window": "window"}


@hf_mapping(up="c_fc", down="c_proj")
@module
class MLP(Module):
    def __init__(self) -> None:
        self.up, self.down = Linear("F", "C", "has_bias"), Linear("C", "F", "has_bias")

    @forward
    def forward(self, x: Tensor["B", "T", "C"]) -> Tensor["B", "T", "C"]:
        with graph() as g:
            return self.down(g.gelu(self.up(x, part="ffn"), tanh="tanh", name="act", part="swiglu"))


@block
class Block(llama.Block):
    attention, feed_forward, norm = Attention, MLP, LayerNorm


@hf_config("Starcoder2ForCausalLM", require=REQUIRE, ignored=IGNORED, refused=REFUSED, **CONFIG)
@model
class Starcoder2(llama.Llama):
    last_norm = LayerNorm
