"""Phi-1 to Phi-2: attention and MLP read one layer norm, side by side; biases everywhere, in the head too."""

from typing import Any

from surogate.dsl import Key, Module, Tensor, block, forward, graph, hf_config, hf_mapping, model, module
from surogate.models import llama
from surogate.models.layers import DECODER, IGNORED, REFUSED, REQUIRE, Embedding, LayerNorm, Linear, changed

CONFIG = changed(
    DECODER, "activation",
    eps=Key("layer_norm_eps", "1e-5", min=0),
    tanh=Key("hidden_act", "1", choices={"gelu": 0, "gelu_new": 1, "gelu_pytorch_tanh": 1}),
    rotary_share=Key(["rope_parameters.partial_rotary_factor", "partial_rotary_factor"], "0.5"),
    qk_norm=Key("qk_layernorm", "0"),
    **{f"{place}_dropout": Key(f"{place}_pdrop", "0", unused="it is trained without dropout") for place in ("resid", "embd")},
)
REQUIRE_PHI = changed(REQUIRE, "rotary_share == 1") | {
    "R % 2 == 0": "partial_rotary_factor must give an even number of a head's elements",
}


@hf_mapping(o="dense", q_norms="q_layernorm", k_norms="k_layernorm")
@module
class Attention(llama.Attention):
    qkv_bias = o_bias = True

    def __init__(self) -> None:
        super().__init__()
        self.q_norms, self.k_norms = LayerNorm("D"), LayerNorm("D")

    def turned(self, g: Any, x: Any, rope: Any, positions: Any, name: str) -> Any:
        norm = self.q_norms if name.startswith("q") else self.k_norms
        x = g.select("qk_norm", lambda: norm(x, part="qkv"), lambda: x, name=name + ".normed")
        return super().turned(g, x, rope, positions, name)


@hf_mapping(up="fc1", down="fc2")
@module
class MLP(Module):
    def __init__(self) -> None:
        self.up, self.down = Linear("F", "C", True), Linear("C", "F", True)

    @forward
    def forward(self, x: Tensor["B", "T", "C"]) -> Tensor["B", "T", "C"]:
        with graph() as g:
            return self.down(g.gelu(self.up(x, part="ffn"), tanh="tanh", name="act", part="swiglu"))


@hf_mapping(norm="input_layernorm", attn="self_attn")
@block
class Block(Module):
    attention: Any = Attention
    feed_forward: Any = MLP

    def __init__(self) -> None:
        self.norm, self.attn, self.mlp = LayerNorm("C"), self.attention(), self.feed_forward()

    @forward
    def forward(self, x: Tensor["B", "T", "C"], rope: Any, positions: Any, doc_start: Any) -> Tensor["B", "T", "C"]:
        with graph() as g:
            h = self.norm(x)
            y = g.add(x, self.attn(h, rope, positions, doc_start), name="res1")
            return g.add(y, self.mlp(h), name="res2")


@hf_mapping(norm="model.final_layernorm")
@hf_config("PhiForCausalLM", require=REQUIRE_PHI, ignored=IGNORED, refused=REFUSED, **CONFIG)
@model
class Phi(llama.Llama):
    rotary = "R"

    def __init__(self) -> None:
        self.embed, self.norm, self.head = Embedding(), LayerNorm("C"), Linear("V", "C", True, head=True)
