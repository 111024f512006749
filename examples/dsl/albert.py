"""ALBERT, which predicts masked tokens (a trainer's caller gives them): one block that is applied L times, small embeddings, attention to
both sides."""

from typing import Any

from surogate.dsl import Choice, Key, Module, Param, Size, Tensor, block, forward, graph, hf_config, hf_mapping, model, module, normal, tied_to
from surogate.models.layers import IGNORED, REFUSED, LayerNorm, Linear

CONFIG = {
    "V": Size("vocab_size"),
    "E": Size("embedding_size", 128),
    "C": Size("hidden_size"),
    "F": Size("intermediate_size"),
    "L": Size("num_hidden_layers", most=10000),
    "H": Size("num_attention_heads", most=65536),
    **{name: Size(key, 1) for name, key in (("groups", "num_hidden_groups"), ("inner", "inner_group_num"))},
    "kinds": Size("type_vocab_size", 2),
    "max_positions": Size("max_position_embeddings", most=1 << 24),
    "eps": Key("layer_norm_eps", "1e-12", min=0),
    "init_std": Key("initializer_range", "0.02", min=0),
    "tied": Key("tie_word_embeddings", "1"),
    "tanh": Choice("hidden_act", "1", choices={"gelu_new": 1, "gelu_pytorch_tanh": 1, "gelu": 0}),
    **{name: Key(name, "0", unused="it is trained without dropout") for name in ("hidden_dropout_prob", "attention_probs_dropout_prob")},
}
REQUIRE = {"C % H == 0": "hidden_size must be a multiple of num_attention_heads", "groups * inner == 1": "only one block in one group is supported"}


@hf_mapping(q="attention.query", k="attention.key", v="attention.value", o="attention.dense", norm1="attention.LayerNorm", up="ffn",
            down="ffn_output", norm2="full_layer_layer_norm")
@block
class Block(Module):
    def __init__(self) -> None:
        self.q, self.k, self.v, self.o, self.norm1 = *(Linear("C", "C", bias=True) for _ in range(4)), LayerNorm("C")
        self.up, self.down, self.norm2 = Linear("F", "C", bias=True), Linear("C", "F", bias=True), LayerNorm("C")

    @forward
    def forward(self, x: Tensor["B", "T", "C"], doc_start: Any) -> Tensor["B", "T", "C"]:
        with graph() as g:
            q, k, v = (g.reshape(getattr(self, n)(x, part="qkv"), "B", "T", "H", "C / H", name=n + ".heads", part="qkv") for n in "qkv")
            y = g.attention(q, k, v, doc_start, bidirectional=True, num_heads="H", num_kv_heads="H", head_dim="C / H", name="heads", part="att")
            y = self.norm1(g.add(x, self.o(g.reshape(y, "B", "T", "C", name="out", part="att")), name="res1"))
            h = g.gelu(self.up(y, part="ffn"), tanh="tanh", name="act", part="swiglu")
            return self.norm2(g.add(y, self.down(h), name="res2"))


@hf_mapping(words="word_embeddings.weight", places="position_embeddings.weight", types="token_type_embeddings.weight", norm="LayerNorm")
@module
class Embeddings(Module):
    words = Param(Tensor["V", "E"], init=normal("init_std"))
    places = Param(Tensor["max_positions", "E"], init=normal("init_std"))
    types = Param(Tensor["kinds", "E"], init=normal("init_std"))

    def __init__(self) -> None:
        self.norm = LayerNorm("E")

    @forward
    def forward(self, tokens: Tensor["B", "T", "i32"], positions: Any) -> Tensor["B", "T", "E"]:
        with graph() as g:
            x = g.add(g.embedding(tokens, self.words, name="word"), g.embedding(positions, self.places, name="place"), name="placed")
            first = g.reshape(g.slice(self.types, dim=0, size=1, name="type0"), 1, 1, "E", name="type")  # every token has kind 0
            return self.norm(g.add(x, first, name="sum"))


@hf_mapping({"head.weight": "predictions.decoder.weight", "head.bias": "predictions.bias"})
@hf_mapping(embed="albert.embeddings", into="albert.encoder.embedding_hidden_mapping_in", out="predictions.dense", norm="predictions.LayerNorm",
            block="albert.encoder.albert_layer_groups.0.albert_layers.0")
@hf_config("AlbertForMaskedLM", require=REQUIRE, ignored=(*IGNORED, "position_embedding_type", "classifier_dropout_prob"), refused=REFUSED,
           unread=("predictions.decoder.bias", "pooler.weight", "pooler.bias", "classifier.weight", "classifier.bias"), **CONFIG)
@tied_to("head.weight", "embed.words", when="tied")
@model
class Albert(Module):
    def __init__(self) -> None:
        self.embed, self.into, self.block = Embeddings(), Linear("C", "E", bias=True), Block()
        self.out, self.norm, self.head = Linear("E", "C", bias=True), LayerNorm("E"), Linear("V", "E", bias=True, head=True)

    @forward
    def forward(self, tokens: Tensor["B", "T", "i32"], positions: Any, doc_start: Any) -> dict[str, Any]:
        with graph() as g:
            x = g.repeat("L", lambda x: self.block(x, doc_start), self.into(self.embed(tokens, positions)))
            hidden = self.norm(g.gelu(self.out(x), tanh="tanh", name="act"))
            return {"hidden": hidden, "logits": self.head(hidden, name="logits")}
