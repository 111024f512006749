"""GPT-2: learned positions, layer norms with biases, one projection for queries, keys and values, and an MLP with GELU."""

from typing import Any

from surogate.dsl import (
    Array,
    Choice,
    Flag,
    Module,
    Number,
    Size,
    Tensor,
    block,
    forward,
    graph,
    hf_config,
    hf_mapping,
    model,
    module,
    tied_to,
    transpose,
)
from surogate.models.layers import IGNORED, REFUSED, Embedding, LayerNorm, Linear

CONFIG = {
    "V": Size("vocab_size"),
    "C": Size("n_embd"),
    "L": Size("n_layer", most=10000),
    "H": Size("n_head", most=65536),
    "D": Size("head_dim", "C / H"),
    "F": Size("n_inner", "4 * C"),
    "max_positions": Size("n_positions", most=1 << 30),
    "eps": Number("layer_norm_epsilon", "1e-5", min=0),
    "init_std": Number("initializer_range", "0.02", min=0),
    "tied": Flag("tie_word_embeddings", "1"),
    "tanh": Choice("activation_function", "1", choices={"gelu_new": 1, "gelu_pytorch_tanh": 1, "gelu": 0}),
    "scaled": Flag("scale_attn_weights", "1"),
    "scaled_by_layer": Flag("scale_attn_by_inverse_layer_idx", "0"),
    "cross_attention": Flag("add_cross_attention", "0"),
    **{f"{place}_dropout": Number(f"{place}_pdrop", "0", unused="it is trained without dropout") for place in ("attn", "resid", "embd")},
}
REQUIRE_GPT2 = {
    "C % H == 0": "n_embd must be a multiple of n_head",
    "cross_attention == 0": "add_cross_attention isn't supported",
}
IGNORED_GPT2 = (*IGNORED, "n_ctx", "reorder_and_upcast_attn", "summary_activation",
                "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj")


HEADS = {"num_heads": "H", "num_kv_heads": "H", "head_dim": "D"}
SCALE = "scaled && !scaled_by_layer ? 0 : (scaled ? 1 / sqrt(D) : 1) / (scaled_by_layer ? i + 1 : 1)"  # 0: 1 / sqrt(D)


@hf_mapping({"weight": transpose("weight")})
@module
class Conv1D(Linear):
    """A linear layer whose weight is stored transposed in the model folder."""


@hf_mapping(qkv="c_attn", o="c_proj")
@module
class Attention(Module):
    def __init__(self) -> None:
        self.qkv = Conv1D("3 * H * D", "C", bias=True, matrices=("H * D",) * 3)
        self.o = Conv1D("C", "H * D", bias=True)

    @forward
    def forward(self, x: Tensor["B", "T", "C"], doc_start: Any) -> Tensor["B", "T", "C"]:
        with graph() as g:
            y = g.attention(self.qkv(x, part="qkv"), doc_start=doc_start, scale=SCALE, name="heads", part="att", **HEADS)
            return self.o(g.reshape(y, "B", "T", "H * D", name="out", part="att"))


@hf_mapping(up="c_fc", down="c_proj")
@module
class MLP(Module):
    def __init__(self) -> None:
        self.up = Conv1D("F", "C", bias=True)
        self.down = Conv1D("C", "F", bias=True)

    @forward
    def forward(self, x: Tensor["B", "T", "C"]) -> Tensor["B", "T", "C"]:
        with graph() as g:
            return self.down(g.gelu(self.up(x, part="ffn"), tanh="tanh", name="act", part="swiglu"))


@hf_mapping(norm1="ln_1", norm2="ln_2")
@block
class Block(Module):
    attention: Any = Attention
    feed_forward: Any = MLP

    def __init__(self) -> None:
        self.norm1, self.attn = LayerNorm("C"), self.attention()
        self.norm2, self.mlp = LayerNorm("C"), self.feed_forward()

    @forward
    def forward(self, x: Tensor["B", "T", "C"], doc_start: Any) -> Tensor["B", "T", "C"]:
        with graph() as g:
            x = g.add(x, self.attn(self.norm1(x), doc_start), name="res1")
            return g.add(x, self.mlp(self.norm2(x)), name="res2")


@hf_mapping.indexed("blocks", "transformer.h.{i}")
@hf_mapping(embed="transformer.wte", places="transformer.wpe", norm="transformer.ln_f", head="lm_head")
@hf_config("GPT2LMHeadModel", require=REQUIRE_GPT2, ignored=IGNORED_GPT2, refused=REFUSED,
           unread=(".attn.bias", ".attn.masked_bias"), prefix="transformer.", **CONFIG)
@tied_to("head.weight", "embed.weight", when="tied")
@model
class GPT2(Module):
    blocks = Array["L", "Block"]

    def __init__(self) -> None:
        self.embed, self.places = Embedding(), Embedding("max_positions")
        self.norm, self.head = LayerNorm("C"), Linear("V", "C", head=True)

    @forward
    def forward(self, tokens: Tensor["B", "T", "i32"], positions: Any, doc_start: Any) -> dict[str, Any]:
        with graph() as g:
            x = g.add(self.embed(tokens), self.places(positions), name="x0")
            hidden = self.norm(self.blocks(x, doc_start))
            return {"hidden": hidden, "logits": self.head(hidden, name="logits")}
