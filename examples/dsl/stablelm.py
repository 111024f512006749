"""StableLM: Llama with layer norms. A part of each head is rotated; each head may have a norm of its own, and attention and MLP
may be parallel after one norm."""

from typing import Any

from surogate.dsl import Key, Module, Param, Tensor, block, concat, forward, graph, hf_config, hf_mapping, model, module, recompute
from surogate.models import llama
from surogate.models.layers import DECODER, IGNORED, REFUSED, REQUIRE, LayerNorm, changed

CONFIG = changed(
    DECODER,
    eps=Key("layer_norm_eps", "1e-5", min=0),
    rotary_share=Key(["rope_parameters.partial_rotary_factor", "partial_rotary_factor"], "0.25"),
    qkv_bias=Key("use_qkv_bias", "0"),
    qk_norm=Key("qk_layernorm", "0"),
    parallel=Key("use_parallel_residual", "0"),
    hidden_dropout=Key("hidden_dropout", "0", unused="it is trained without dropout"),
)
REQUIRE_STABLELM = changed(REQUIRE, "rotary_share == 1") | {"R % 2 == 0": "partial_rotary_factor must give an even number of a head's elements"}


@module
class HeadNorms(Module):
    """Norms each head: y = (x - mean(x)) / deviation(x) * weight, with separate weights for each head."""

    weight = Param(Tensor["size"], init="ones", decay=False)

    def __init__(self, heads: str) -> None:
        self.heads, self.size = heads, f"{heads} * D"

    @recompute("norm")
    @forward
    def forward(self, x: Tensor["B", "T", "heads", "D"]) -> Tensor["B", "T", "heads", "D"]:
        with graph() as g:
            return g.mul(g.layer_norm(x, eps="eps", name="even"), g.reshape(self.weight, 1, 1, self.heads, "D", name="weights"), name="y")


@hf_mapping({"q_norms.weight": concat("q_layernorm.norms.{head}.weight", head="H"),
             "k_norms.weight": concat("k_layernorm.norms.{head}.weight", head="G")})
@module
class Attention(llama.Attention):
    qkv_bias = "qkv_bias"

    def __init__(self) -> None:
        super().__init__()
        self.q_norms, self.k_norms = HeadNorms("H"), HeadNorms("G")

    def turned(self, g: Any, x: Any, rope: Any, positions: Any, name: str) -> Any:
        norms = self.q_norms if name.startswith("q") else self.k_norms
        x = g.select("qk_norm", lambda: norms(x, part="qkv"), lambda: x, name=name + ".normed")
        return super().turned(g, x, rope, positions, name)


@block
class Block(llama.Block):
    attention, norm = Attention, LayerNorm

    @forward
    def forward(self, x: Tensor["B", "T", "C"], rope: Any, positions: Any, doc_start: Any) -> Tensor["B", "T", "C"]:
        with graph() as g:
            h = self.norm1(x)
            y = g.add(x, self.attn(h, rope, positions, doc_start), name="res1")
            return g.add(y, self.mlp(g.select("parallel", lambda: h, lambda: self.norm2(y), name="h2")), name="res2")


@hf_config("StableLmForCausalLM", require=REQUIRE_STABLELM, ignored=IGNORED, refused=REFUSED, **CONFIG)
@model
class StableLM(llama.Llama):
    last_norm, rotary = LayerNorm, "R"
