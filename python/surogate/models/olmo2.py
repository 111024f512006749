"""OLMo-2: norms after attention and MLP instead of before them, and a norm over all query heads together, another over all key heads."""

from typing import Any

from surogate.dsl import Module, Number, Tensor, block, forward, graph, hf_config, hf_mapping, model, module
from surogate.models import llama
from surogate.models.layers import DECODER, FULL, IGNORED, REFUSED, Linear, RMSNorm, changed

CONFIG = changed(DECODER, eps=Number("rms_norm_eps", "1e-5", min=0))


@hf_mapping(q="q_proj", k="k_proj", v="v_proj", o="o_proj")
@module
class Attention(Module):
    """Each of H query heads attends with one of G key/value heads."""

    more: dict[str, Any] = {}

    def __init__(self) -> None:
        self.q = Linear("H * D", "C")
        self.k = Linear("G * D", "C")
        self.v = Linear("G * D", "C")
        self.o = Linear("C", "H * D")
        self.q_norm = RMSNorm("H * D")
        self.k_norm = RMSNorm("G * D")

    @forward
    def forward(self, x: Tensor["B", "T", "C"], rope: Tensor["P", "D"], positions: Any, doc_start: Any) -> Tensor["B", "T", "C"]:
        with graph() as g:
            q = self.q_norm(self.q(x, part="qkv"), part="qkv")
            k = self.k_norm(self.k(x, part="qkv"), part="qkv")
            q = g.reshape(q, "B", "T", "H", "D", name="q.heads", part="qkv")
            k = g.reshape(k, "B", "T", "G", "D", name="k.heads", part="qkv")
            v = g.reshape(self.v(x, part="qkv"), "B", "T", "G", "D", name="v.heads", part="qkv")
            q = g.rope(q, rope, positions, name="q.rope", part="qkv")
            k = g.rope(k, rope, positions, name="k.rope", part="qkv")
            y = g.attention(q, k, v, doc_start, num_heads="H", num_kv_heads="G", head_dim="D", name="heads", part="att", **self.more)
            return self.o(g.reshape(y, "B", "T", "H * D", name="out", part="att"))


@hf_mapping(attn="self_attn", norm1="post_attention_layernorm", norm2="post_feedforward_layernorm")
@block
class Block(Module):
    attention: Any = Attention

    def __init__(self) -> None:
        self.attn = self.attention()
        self.norm1 = RMSNorm("C")
        self.mlp = llama.MLP()
        self.norm2 = RMSNorm("C")

    @forward
    def forward(self, x: Tensor["B", "T", "C"], rope: Any, positions: Any, doc_start: Any) -> Tensor["B", "T", "C"]:
        with graph() as g:
            x = g.add(x, self.norm1(self.attn(x, rope, positions, doc_start)), name="res1")
            return g.add(x, self.norm2(self.mlp(x)), name="res2")


@hf_config("Olmo2ForCausalLM", require=FULL, ignored=IGNORED, refused=REFUSED, **CONFIG)
@model
class Olmo2(llama.Llama):
    pass
