"""The decoder of T5 alone, as a language model: no positions, but a learned bias of scores for each bucket of distances, the same in all
layers; scores aren't scaled, and the MLP has a GELU gate (T5 1.1)."""

from typing import Any

from surogate.dsl import Array, Key, Module, Param, Size, Tensor, block, forward, graph, hf_config, hf_mapping, model, module, normal
from surogate.models.layers import IGNORED, REFUSED, Embedding, Linear, RMSNorm

CONFIG = {
    "V": Size("vocab_size"),
    "C": Size("d_model"),
    "D": Size("d_kv"),
    "F": Size("d_ff"),
    "L": Size("num_layers", most=10000),
    "H": Size("num_heads", most=65536),
    "buckets": Size("relative_attention_num_buckets", 32),
    "most": Size("relative_attention_max_distance", 128),
    "eps": Key("layer_norm_epsilon", "1e-6", min=0),
    "init_std": Key(None, "0.05"),
    "gate": Key("feed_forward_proj", "0", choices={"gated-gelu": 1, "relu": 0}),
    "tied": Key("tie_word_embeddings", "1"),
    "dropout": Key("dropout_rate", "0", unused="it is trained without dropout"),
}
REQUIRE = {"gate == 1": "feed_forward_proj must be gated-gelu", "tied == 0": "tie_word_embeddings must be false"}
MORE = ("classifier_dropout", "decoder_start_token_id", "dense_act_fn", "initializer_factor", "is_decoder", "is_gated_act", "num_decoder_layers",
        "scale_decoder_outputs")


@module
class Biases(Module):
    weight = Param(Tensor["buckets", "H"], init=normal("init_std"), decay=False)

    @forward
    def forward(self) -> Any:
        with graph() as g:
            ids = g.distance_buckets(len="most + 1", buckets="buckets", most="most")  # all distances from `most` on share one bucket
            return g.reshape(g.embedding(ids, self.weight, name="rows"), "most + 1", "H", name="table")


@hf_mapping(norm1="layer.0.layer_norm", q="layer.0.SelfAttention.q", k="layer.0.SelfAttention.k", v="layer.0.SelfAttention.v",
            o="layer.0.SelfAttention.o", norm2="layer.1.layer_norm", gate="layer.1.DenseReluDense.wi_0", up="layer.1.DenseReluDense.wi_1",
            down="layer.1.DenseReluDense.wo")
@block
class Block(Module):
    def __init__(self) -> None:
        self.norm1, self.norm2, self.o = RMSNorm("C"), RMSNorm("C"), Linear("C", "H * D")
        self.q, self.k, self.v = (Linear("H * D", "C") for _ in range(3))
        self.gate, self.up, self.down = Linear("F", "C"), Linear("F", "C"), Linear("C", "F")

    @forward
    def forward(self, x: Tensor["B", "T", "C"], bias: Any, doc_start: Any) -> Tensor["B", "T", "C"]:
        with graph() as g:
            h = self.norm1(x)
            q, k, v = (g.reshape(getattr(self, n)(h, part="qkv"), "B", "T", "H", "D", name=n + ".heads", part="qkv") for n in "qkv")
            y = g.attention(q, k, v, doc_start, bias=bias, num_heads="H", num_kv_heads="H", head_dim="D", scale=1.0, part="att")
            x = g.add(x, self.o(g.reshape(y, "B", "T", "H * D", name="out", part="att")), name="res1")
            h = self.norm2(x)
            return g.add(x, self.down(g.swiglu(self.gate(h, part="ffn"), self.up(h, part="ffn"), gelu=True, part="swiglu")), name="res2")


@hf_mapping.indexed("blocks", "decoder.block.{i}")
@hf_mapping(embed="decoder.embed_tokens", norm="decoder.final_layer_norm", head="lm_head",
            biases="decoder.block.0.layer.0.SelfAttention.relative_attention_bias")
@hf_config("T5DecoderForCausalLM", require=REQUIRE, ignored=(*IGNORED, *MORE), refused=REFUSED, **CONFIG)
@model
class T5Decoder(Module):
    blocks = Array["L", "Block"]

    def __init__(self) -> None:
        self.embed, self.biases, self.norm, self.head = Embedding(), Biases(), RMSNorm("C"), Linear("V", "C", head=True)

    @forward
    def forward(self, tokens: Tensor["B", "T", "i32"], doc_start: Any) -> dict[str, Any]:
        with graph() as g:
            hidden = self.norm(self.blocks(self.embed(tokens), self.biases(), doc_start))
            return {"hidden": hidden, "logits": self.head(hidden, name="logits")}
