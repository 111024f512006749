"""Gemma-2: norms before and after attention and MLP, a GELU gate, capped scores and logits, a window in every second layer."""

from typing import Any

from surogate.dsl import Choice, Flag, Module, Number, Param, Size, Tensor, block, forward, graph, hf_config, hf_mapping, model, module
from surogate.models import layers, llama
from surogate.models.layers import IGNORED, REFUSED, REQUIRE

CONFIG = layers.changed(
    layers.DECODER,
    "windows",
    G=layers.heads("4"),
    D=Size("head_dim", "256", most=65536),
    tied=Flag("tie_word_embeddings", "1"),
    activation=Choice(["hidden_activation", "hidden_act"], "0", choices={"gelu_pytorch_tanh": 0}),
    both_ways=Flag("use_bidirectional_attention", "0"),
    query_scalar=Number("query_pre_attn_scalar", "256", min=1, integer=True),
    score_cap=Number("attn_logit_softcapping", "50", null="0", min=0),
    logit_cap=Number("final_logit_softcapping", "30", null="0", min=0),
    window=layers.WINDOW_4096,
    near=Choice("layer_types", "i % 2 == 0", per="L", choices=layers.KINDS),
)
REQUIRE_GEMMA = REQUIRE | {"both_ways == 0": "use_bidirectional_attention isn't supported"}


@module
class RMSNorm(layers.RMSNorm):
    """y = x / rms(x) * (1 + weight)"""

    weight = Param(Tensor["size"], init="zeros", decay=False)
    more = {"offset": 1}


@module
class Attention(llama.Attention):
    more = {"window": "near[i] ? window : 0", "scale": "1 / sqrt(query_scalar)", "softcap": "score_cap"}


@module
class MLP(llama.MLP):
    """down(gelu(gate(x)) * up(x))"""

    more = {"gelu": True}


@hf_mapping(norm1="input_layernorm", attn="self_attn", norm2="post_attention_layernorm")
@hf_mapping(norm3="pre_feedforward_layernorm", norm4="post_feedforward_layernorm")
@block
class Block(Module):
    attention: Any = Attention

    def __init__(self) -> None:
        self.norm1, self.attn, self.norm2 = RMSNorm("C"), self.attention(), RMSNorm("C")
        self.norm3, self.mlp, self.norm4 = RMSNorm("C"), MLP(), RMSNorm("C")

    def rope(self, g: Any, rope: Any, near_rope: Any) -> Any:
        return rope

    @forward
    def forward(self, x: Tensor["B", "T", "C"], rope: Any, near_rope: Any, positions: Any, doc_start: Any) -> Tensor["B", "T", "C"]:
        with graph() as g:
            y = self.attn(self.norm1(x), self.rope(g, rope, near_rope), positions, doc_start)
            x = g.add(x, self.norm2(y), name="res1")
            return g.add(x, self.norm4(self.mlp(self.norm3(x))), name="res2")


@hf_config("Gemma2ForCausalLM", require=REQUIRE_GEMMA, ignored=IGNORED, refused=REFUSED, **CONFIG)
@model
class Gemma2(llama.Llama):
    def __init__(self) -> None:
        self.embed, self.norm, self.head = layers.Embedding(), RMSNorm("C"), layers.Linear("V", "C", head=True)

    def ropes(self, g: Any) -> tuple[Any, Any]:
        rope = layers.rope_table(g)
        return rope, rope

    @forward
    def forward(self, tokens: Tensor["B", "T", "i32"], positions: Any, doc_start: Any) -> dict[str, Any]:
        with graph() as g:
            x = g.scale(self.embed(tokens), by="bf16 ? round_bf16(sqrt(C)) : sqrt(C)", name="x0")  # rounded to the weights' dtype
            hidden = self.norm(self.blocks(x, *self.ropes(g), positions, doc_start))
            scores = self.head(hidden, name="scores")
            logits = g.select("logit_cap > 0", lambda: g.softcap(scores, cap="logit_cap", name="capped"), lambda: scores, name="logits")
            return {"hidden": hidden, "logits": logits}
