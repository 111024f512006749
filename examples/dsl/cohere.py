"""Command-R: attention and MLP read one layer norm without bias, side by side; neighbouring elements of a head are rotated in pairs. In
Command-R+ each head has a norm of its own."""

from typing import Any

import stablelm
from surogate.dsl import Key, Module, Param, Tensor, block, forward, graph, hf_config, hf_mapping, model, module
from surogate.models import layers, llama
from surogate.models.layers import DECODER, FULL, IGNORED, REFUSED, changed

CONFIG = changed(
    DECODER,
    eps=Key("layer_norm_eps", "1e-5", min=0),
    tied=Key("tie_word_embeddings", "1"),
    logit_scale=Key("logit_scale", "0.0625"),
    qk_norm=Key("use_qk_norm", "0"),
)
REQUIRE_COHERE = changed(FULL, "attention_bias == 0")


@module
class LayerNorm(layers.LayerNorm):
    bias = None


@module
class Attention(llama.Attention):
    qkv_bias = o_bias = "attention_bias"

    def turned(self, g: Any, x: Any, rope: Any, positions: Any, name: str) -> Any:
        return g.rope(x, rope, positions, interleaved=True, name=name, part="qkv")


@module
class HeadNorms(stablelm.HeadNorms):
    weight = Param(Tensor["heads", "D"], init="ones", decay=False)


@hf_mapping(q_norms="q_norm", k_norms="k_norm")
@module
class NormedAttention(Attention):
    def __init__(self) -> None:
        super().__init__()
        self.q_norms, self.k_norms = HeadNorms("H"), HeadNorms("G")

    def turned(self, g: Any, x: Any, rope: Any, positions: Any, name: str) -> Any:
        norms = self.q_norms if name.startswith("q") else self.k_norms
        x = g.select("qk_norm", lambda: norms(x, part="qkv"), lambda: x, name=name + ".normed")
        return super().turned(g, x, rope, positions, name)


@hf_mapping(norm="input_layernorm", attn="self_attn")
@block
class Block(Module):
    attention: Any = NormedAttention

    def __init__(self) -> None:
        self.norm, self.attn, self.mlp = LayerNorm("C"), self.attention(), llama.MLP()

    @forward
    def forward(self, x: Tensor["B", "T", "C"], rope: Any, positions: Any, doc_start: Any) -> Tensor["B", "T", "C"]:
        with graph() as g:
            h = self.norm(x)
            y = g.add(x, self.attn(h, rope, positions, doc_start), name="res1")
            return g.add(y, self.mlp(h), name="res2")


@hf_config("CohereForCausalLM", require=REQUIRE_COHERE, ignored=IGNORED, refused=REFUSED, **CONFIG)
@model
class Cohere(llama.Llama):
    last_norm = LayerNorm

    @forward
    def forward(self, tokens: Tensor["B", "T", "i32"], positions: Any, doc_start: Any) -> dict[str, Any]:
        with graph() as g:
            x = self.norm(self.blocks(self.embed(tokens), self.rope(g), positions, doc_start))
            return {"logits": self.head(g.scale(x, by="logit_scale", name="scaled"), name="logits")}
