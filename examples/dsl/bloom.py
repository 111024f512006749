"""BLOOM: ALiBi instead of positions, a norm of the embeddings, each head's query, key and value in one projection."""

from typing import Any

from surogate.dsl import Array, Key, Module, Number, Size, Tensor, block, forward, graph, hf_config, hf_mapping, model, tied_to
from surogate.models.layers import IGNORED, REFUSED, Embedding, LayerNorm, Linear

CONFIG = {
    "V": Size("vocab_size"),
    "C": Number(["hidden_size", "n_embed"], min=1, max=1 << 24, integer=True),
    "L": Number(["n_layer", "num_hidden_layers"], min=1, max=10000, integer=True),
    "H": Number(["n_head", "num_attention_heads"], min=1, max=256, integer=True),
    "D": Key(None, "C / H"),
    "eps": Key("layer_norm_epsilon", "1e-5", min=0),
    "init_std": Key("initializer_range", "0.02", min=0),
    "tied": Key("tie_word_embeddings", "1"),
    "normed": Key("apply_residual_connection_post_layernorm", "0"),
    **{f"{place}_dropout": Key(f"{place}_dropout", "0", unused="it is trained without dropout") for place in ("hidden", "attention")},
}
MORE = ("attention_softmax_in_fp32", "bias_dropout_fusion", "masked_softmax_fusion", "offset_alibi", "seq_length", "skip_bias_add", "skip_bias_add_qkv",
        "slow_but_exact", "unk_token_id")


@hf_mapping(norm1="input_layernorm", qkv="self_attention.query_key_value", o="self_attention.dense", norm2="post_attention_layernorm",
            up="mlp.dense_h_to_4h", down="mlp.dense_4h_to_h")
@block
class Block(Module):
    def __init__(self) -> None:
        self.norm1, self.qkv, self.o = LayerNorm("C"), Linear("3 * H * D", "C", True, matrices=("D", "D", "D")), Linear("C", "H * D", True)
        self.norm2, self.up, self.down = LayerNorm("C"), Linear("4 * C", "C", True), Linear("C", "4 * C", True)

    @forward
    def forward(self, x: Tensor["B", "T", "C"], bias: Any, doc_start: Any) -> Tensor["B", "T", "C"]:
        with graph() as g:
            h = self.norm1(x)
            heads = g.reshape(self.qkv(h, part="qkv"), "B", "T", "H", "3 * D", name="qkv.heads", part="qkv")
            q, k, v = (g.columns(heads, begin=f"{n} * D", size="D", name="qkv"[n], part="qkv") for n in range(3))
            y = g.attention(q, k, v, doc_start, bias=bias, num_heads="H", num_kv_heads="H", head_dim="D", name="heads", part="att")
            y = self.o(g.reshape(y, "B", "T", "H * D", name="out", part="att"))
            x = g.add(g.select("normed", lambda: h, lambda: x, name="kept1"), y, name="res1")
            h = self.norm2(x)
            y = self.down(g.gelu(self.up(h, part="ffn"), tanh=True, name="act", part="swiglu"))
            return g.add(g.select("normed", lambda: h, lambda: x, name="kept2"), y, name="res2")


@hf_mapping.indexed("blocks", "transformer.h.{i}")
@hf_mapping(embed="transformer.word_embeddings", embed_norm="transformer.word_embeddings_layernorm", norm="transformer.ln_f", head="lm_head")
@hf_config("BloomForCausalLM", require={"C % H == 0": "hidden_size must be a multiple of n_head"}, ignored=(*IGNORED, *MORE), refused=REFUSED,
           prefix="transformer.", **CONFIG)
@tied_to("head.weight", "embed.weight", when="tied")
@model
class Bloom(Module):
    blocks = Array["L", "Block"]

    def __init__(self) -> None:
        self.embed, self.embed_norm, self.norm, self.head = Embedding(), LayerNorm("C"), LayerNorm("C"), Linear("V", "C", head=True)

    @forward
    def forward(self, tokens: Tensor["B", "T", "i32"], doc_start: Any) -> dict[str, Any]:
        with graph() as g:
            x = self.embed_norm(self.embed(tokens))
            hidden = self.norm(self.blocks(x, g.alibi_table(len="P", num_heads="H", name="biases"), doc_start))
            return {"hidden": hidden, "logits": self.head(hidden, name="logits")}
