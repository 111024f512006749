"""OPT: learned positions (the table's first two rows are unused), layer norms before or after each part, one model with narrow
embeddings."""

from typing import Any

from surogate.dsl import Key, Module, Param, Size, Tensor, block, forward, graph, hf_config, hf_mapping, model, module, normal, rows, tied_to
from surogate.models import gpt2
from surogate.models.layers import IGNORED, REFUSED, Embedding, LayerNorm, Linear

CONFIG = {
    "V": Size("vocab_size"),
    "C": Size("hidden_size"),
    "F": Size("ffn_dim"),
    "L": Size("num_hidden_layers", most=10000),
    "H": Size("num_attention_heads", most=65536),
    "D": Key(None, "C / H"),
    "E": Size("word_embed_proj_dim", "C"),
    "projected": Key(None, "E != C"),
    "max_positions": Size("max_position_embeddings", most=1 << 24),
    "eps": Key(None, "1e-5"),
    "init_std": Key("init_std", "0.02", min=0),
    "tied": Key("tie_word_embeddings", "1"),
    "gelu": Key("activation_function", "0", choices={"relu": 0, "gelu": 1}),
    "before": Key("do_layer_norm_before", "1"),
    "has_bias": Key("enable_bias", "1"),
    "affine": Key("layer_norm_elementwise_affine", "1"),
    "no_last_norm": Key("_remove_final_layer_norm", "0"),
    **{name: Key(name, "0", unused="it is trained without dropout") for name in ("dropout", "attention_dropout", "activation_dropout", "layerdrop")},
}
REQUIRE = {"C % H == 0": "hidden_size must be a multiple of num_attention_heads", "affine == 1": "layer_norm_elementwise_affine: false isn't supported"}
HEADS = {"num_heads": "H", "num_kv_heads": "H", "head_dim": "D"}


@hf_mapping(q="q_proj", k="k_proj", v="v_proj", o="out_proj")
@module
class Attention(Module):
    def __init__(self) -> None:
        self.q, self.k, self.v = (Linear("H * D", "C", "has_bias") for _ in range(3))
        self.o = Linear("C", "H * D", "has_bias")

    @forward
    def forward(self, x: Tensor["B", "T", "C"], doc_start: Any) -> Tensor["B", "T", "C"]:
        with graph() as g:
            q, k, v = (g.reshape(getattr(self, n)(x, part="qkv"), "B", "T", "H", "D", name=n + ".heads", part="qkv") for n in "qkv")
            y = g.attention(q, k, v, doc_start, name="heads", part="att", **HEADS)
            return self.o(g.reshape(y, "B", "T", "H * D", name="out", part="att"))


@hf_mapping(up="fc1", down="fc2", attn="self_attn", norm1="self_attn_layer_norm", norm2="final_layer_norm")
@block
class Block(Module):
    def __init__(self) -> None:
        self.norm1, self.attn, self.norm2 = LayerNorm("C"), Attention(), LayerNorm("C")
        self.up, self.down = Linear("F", "C", "has_bias"), Linear("C", "F", "has_bias")

    @forward
    def forward(self, x: Tensor["B", "T", "C"], doc_start: Any) -> Tensor["B", "T", "C"]:
        with graph() as g:
            h = g.select("before", lambda: self.norm1(x, name="pre1"), lambda: x, name="h1")
            y = g.add(x, self.attn(h, doc_start), name="res1")
            y = g.select("before", lambda: y, lambda: self.norm1(y, name="post1"), name="y")
            h = self.up(g.select("before", lambda: self.norm2(y, name="pre2"), lambda: y, name="h2"), part="ffn")
            h = g.select("gelu", lambda: g.gelu(h, name="gelu", part="swiglu"), lambda: g.relu(h, name="relu", part="swiglu"), name="act")
            y = g.add(y, self.down(h), name="res2")
            return g.select("before", lambda: y, lambda: self.norm2(y, name="post2"), name="sum")


@module
class Places(Module):
    spare = Param(Tensor[2, "C"], frozen=True)  # loaded and saved, but no op reads it
    weight = Param(Tensor["max_positions", "C"], init=normal("init_std"))

    @forward
    def forward(self, positions: Tensor["B", "T", "i32"]) -> Tensor["B", "T", "C"]:
        with graph() as g:
            return g.embedding(positions, self.weight)


@module
class Words(Embedding):
    weight = Param(Tensor["V", "E"], init=normal("init_std"))

    @forward
    def forward(self, tokens: Tensor["B", "T", "i32"]) -> Tensor["B", "T", "E"]:
        with graph() as g:
            return g.embedding(tokens, self.weight)


POSITIONS = "model.decoder.embed_positions.weight"


@hf_mapping.indexed("blocks", "model.decoder.layers.{i}")
@hf_mapping({"places.spare": rows(POSITIONS, 0, "max_positions + 2"), "places.weight": rows(POSITIONS, 2, "max_positions + 2")})
@hf_mapping(words="model.decoder.embed_tokens", into="model.decoder.project_in", out="model.decoder.project_out", small_head="lm_head",
            embed="model.decoder.embed_tokens", norm="model.decoder.final_layer_norm")
@hf_config("OPTForCausalLM", require=REQUIRE, ignored=IGNORED, refused=REFUSED, **CONFIG)
@tied_to("small_head.weight", "words.weight", when="tied")
@model
class OPT(gpt2.GPT2):
    def __init__(self) -> None:
        super().__init__()
        self.places = Places()
        self.words, self.into = Words(), Linear("C", "E")
        self.out, self.small_head = Linear("E", "C"), Linear("V", "E", head=True)

    @forward
    def forward(self, tokens: Tensor["B", "T", "i32"], positions: Any, doc_start: Any) -> dict[str, Any]:
        with graph() as g:
            x = g.select("projected", lambda: self.into(self.words(tokens)), lambda: self.embed(tokens), name="x")
            x = self.blocks(g.add(x, self.places(positions), name="x0"), doc_start)
            x = g.select("before && !no_last_norm", lambda: self.norm(x), lambda: x, name="last")
            return {"logits": g.select("projected", lambda: self.small_head(self.out(x)), lambda: self.head(x), name="logits")}
