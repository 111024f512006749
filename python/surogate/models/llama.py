"""Llama 2 to 3.3: blocks of attention with rotary positions and of a gated MLP; each reads a norm and is added to its input."""

from typing import Any

from surogate.dsl import Array, Module, Tensor, block, forward, graph, hf_config, hf_mapping, model, module, tied_to
from surogate.models.layers import DECODER, FULL, IGNORED, REFUSED, Embedding, Linear, RMSNorm, rope_table


@hf_mapping(q="q_proj", k="k_proj", v="v_proj", o="o_proj")
@module
class Attention(Module):
    """Each of H query heads attends with one of G key/value heads."""

    qkv_bias: Any = False  # or an expression of the config
    o_bias: Any = False
    norm: Any = None  # norm of each query and key head
    more: dict[str, Any] = {}

    def __init__(self) -> None:
        self.q = Linear("H * D", "C", self.qkv_bias)
        self.k = Linear("G * D", "C", self.qkv_bias)
        self.v = Linear("G * D", "C", self.qkv_bias)
        self.o = Linear("C", "H * D", self.o_bias)
        self.q_norm = self.norm("D") if self.norm else None
        self.k_norm = self.norm("D") if self.norm else None

    def turned(self, g: Any, x: Any, rope: Any, positions: Any, name: str) -> Any:
        return g.rope(x, rope, positions, name=name, part="qkv")

    @forward
    def forward(self, x: Tensor["B", "T", "C"], rope: Any, positions: Any, doc_start: Any) -> Tensor["B", "T", "C"]:
        with graph() as g:
            q = g.reshape(self.q(x, part="qkv"), "B", "T", "H", "D", name="q.heads", part="qkv")
            k = g.reshape(self.k(x, part="qkv"), "B", "T", "G", "D", name="k.heads", part="qkv")
            v = g.reshape(self.v(x, part="qkv"), "B", "T", "G", "D", name="v.heads", part="qkv")
            q = self.q_norm(q, name="q.norm", part="qkv") if self.q_norm else q
            q = self.turned(g, q, rope, positions, "q.rope")
            k = self.k_norm(k, name="k.norm", part="qkv") if self.k_norm else k
            k = self.turned(g, k, rope, positions, "k.rope")
            y = g.attention(q, k, v, doc_start, num_heads="H", num_kv_heads="G", head_dim="D", name="heads", part="att", **self.more)
            return self.o(g.reshape(y, "B", "T", "H * D", name="out", part="att"))


@hf_mapping(gate="gate_proj", up="up_proj", down="down_proj")
@module
class MLP(Module):
    """down(silu(gate(x)) * up(x))"""

    bias: Any = False
    more: dict[str, Any] = {}

    def __init__(self) -> None:
        self.gate = Linear("F", "C", self.bias)
        self.up = Linear("F", "C", self.bias)
        self.down = Linear("C", "F", self.bias)

    @forward
    def forward(self, x: Tensor["B", "T", "C"]) -> Tensor["B", "T", "C"]:
        with graph() as g:
            gate, up = self.gate(x, part="ffn"), self.up(x, part="ffn")
            return self.down(g.swiglu(gate, up, name="act", part="swiglu", **self.more))


@hf_mapping(norm1="input_layernorm", attn="self_attn", norm2="post_attention_layernorm")
@block
class Block(Module):
    attention: Any = Attention
    feed_forward: Any = MLP
    norm: Any = RMSNorm

    def __init__(self) -> None:
        self.norm1 = self.norm("C")
        self.attn = self.attention()
        self.norm2 = self.norm("C")
        self.mlp = self.feed_forward()

    @forward
    def forward(self, x: Tensor["B", "T", "C"], rope: Any, positions: Any, doc_start: Any) -> Tensor["B", "T", "C"]:
        with graph() as g:
            x = g.add(x, self.attn(self.norm1(x), rope, positions, doc_start), name="res1")
            return g.add(x, self.mlp(self.norm2(x)), name="res2")


@hf_mapping.indexed("blocks", "model.layers.{i}")
@hf_mapping(embed="model.embed_tokens", norm="model.norm", head="lm_head")
@hf_config("LlamaForCausalLM", require=FULL, ignored=IGNORED, refused=REFUSED, **DECODER)
@tied_to("head.weight", "embed.weight", when="tied")
@model
class Llama(Module):
    blocks = Array["L", "Block"]
    last_norm: Any = RMSNorm
    rotary = "D"  # rotated elements of a head

    def __init__(self) -> None:
        self.embed = Embedding()
        self.norm = self.last_norm("C")
        self.head = Linear("V", "C", head=True)

    def rope(self, g: Any) -> Any:
        return rope_table(g, self.rotary)

    @forward
    def forward(self, tokens: Tensor["B", "T", "i32"], positions: Any, doc_start: Any) -> dict[str, Any]:
        with graph() as g:
            x = self.embed(tokens)
            hidden = self.norm(self.blocks(x, self.rope(g), positions, doc_start))
            return {"hidden": hidden, "logits": self.head(hidden, name="logits")}
