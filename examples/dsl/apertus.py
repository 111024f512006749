"""Apertus: Llama with a norm of each query and key head, and an MLP without a gate: its activation is xIELU, whose two parameters are
trained."""

from typing import Any

from surogate.dsl import Choice, Module, Number, Param, Tensor, block, forward, graph, hf_config, hf_mapping, model, module
from surogate.models import llama
from surogate.models.layers import DECODER, FULL, IGNORED, LLAMA3, REFUSED, Linear, RMSNorm, changed, rope_theta

CONFIG = changed(
    DECODER,
    eps=Number("rms_norm_eps", "1e-5", min=0),
    theta=rope_theta("12000000"),
    rope_kind=Choice(["rope_parameters.rope_type", "rope_scaling.rope_type"], LLAMA3, choices={"llama3": LLAMA3, "default": 0}),
    activation=Choice("hidden_act", "0", choices={"xielu": 0}),
)


@module
class XIELU(Module):
    """Where x > 0, softplus(alpha_p) x^2 + beta x; else (beta + softplus(alpha_n)) (exp(min(x, eps)) - 1 - x) + beta x (Huang and Schlag 2024)."""

    alpha_p, alpha_n = Param(Tensor["1"], init="zeros", decay=False), Param(Tensor["1"], init="zeros", decay=False)
    beta, eps = Param(Tensor["1"], init="ones", frozen=True, decay=False), Param(Tensor["1"], init="zeros", frozen=True, decay=False)

    @forward
    def forward(self, x: Tensor["B", "T", "F"]) -> Tensor["B", "T", "F"]:
        with graph() as g:
            def softplus(a: Any, name: str) -> Any:
                return g.scale(g.log_sigmoid(g.scale(a, by=-1.0, name=name + ".minus"), name=name + ".log"), by=-1.0, name=name)

            p, n = softplus(self.alpha_p, "p"), g.add(softplus(self.alpha_n, "softplus"), self.beta, name="n")
            linear = g.mul(x, self.beta, name="linear")
            above = g.mul(g.mul(x, x, name="squared"), p, name="above")
            less = g.sub(g.exp(g.minimum(x, self.eps, name="low"), name="exp"), g.full(size=1, name="one"), name="expm1")
            below = g.mul(g.sub(less, x, name="curve"), n, name="below")
            return g.add(g.where(g.gt(x, g.full(size=1, value=0.0, name="zero"), name="is_above"), above, below, name="part"), linear, name="y")


@module
class Attention(llama.Attention):
    qkv_bias = o_bias = "attention_bias"
    norm = RMSNorm


@hf_mapping(up="up_proj", down="down_proj", act="act_fn")
@module
class MLP(Module):
    def __init__(self) -> None:
        self.up, self.act, self.down = Linear("F", "C"), XIELU(), Linear("C", "F")

    @forward
    def forward(self, x: Tensor["B", "T", "C"]) -> Tensor["B", "T", "C"]:
        with graph() as g:
            return self.down(self.act(self.up(x, part="ffn"), part="swiglu"))


@hf_mapping(norm1="attention_layernorm", norm2="feedforward_layernorm")
@block
class Block(llama.Block):
    attention, feed_forward = Attention, MLP


@hf_config("ApertusForCausalLM", require=changed(FULL, "attention_bias == 0"), ignored=IGNORED, refused=REFUSED, **CONFIG)
@model
class Apertus(llama.Llama):
    pass
