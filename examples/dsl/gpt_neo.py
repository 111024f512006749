"""GPT-Neo: GPT-2 with separate projections for queries, keys and values, scores that aren't scaled, and a window in every second layer."""

from typing import Any

from surogate.dsl import Key, Module, Number, Size, Tensor, block, forward, graph, hf_config, hf_mapping, model, module
from surogate.models import gpt2
from surogate.models.layers import ATTENTION_DROPOUT, REFUSED, Linear, changed

CONFIG = changed(
    gpt2.CONFIG, "scaled", "scaled_by_layer", "cross_attention", "attn_dropout", "resid_dropout", "embd_dropout",
    C=Size("hidden_size"),
    L=Size("num_layers", most=10000),
    H=Size("num_heads", most=65536),
    F=Size("intermediate_size", "4 * C"),
    max_positions=Size("max_position_embeddings", most=1 << 24),
    window=Size("window_size", 256),
    near=Key("attention_layers", per="L", choices={"global": 0, "local": 1}),
    attention_dropout=ATTENTION_DROPOUT,
    **{f"{place}_dropout": Number(f"{place}_dropout", "0", unused="it is trained without dropout") for place in ("resid", "embed")},
)
MORE = ("attention_types", "classifier_dropout", "gradient_checkpointing")


@hf_mapping(q="q_proj", k="k_proj", v="v_proj", o="out_proj")
@module
class Attention(Module):
    def __init__(self) -> None:
        self.q, self.k, self.v = (Linear("H * D", "C") for _ in range(3))
        self.o = Linear("C", "H * D", True)

    @forward
    def forward(self, x: Tensor["B", "T", "C"], doc_start: Any) -> Tensor["B", "T", "C"]:
        with graph() as g:
            q, k, v = (g.reshape(getattr(self, n)(x, part="qkv"), "B", "T", "H", "D", name=n + ".heads", part="qkv") for n in "qkv")
            y = g.attention(q, k, v, doc_start, scale=1.0, window="near[i] ? window : 0", name="heads", part="att", **gpt2.HEADS)
            return self.o(g.reshape(y, "B", "T", "H * D", name="out", part="att"))


@hf_mapping(up="c_fc", down="c_proj")
@module
class MLP(gpt2.MLP):
    def __init__(self) -> None:
        self.up, self.down = Linear("F", "C", True), Linear("C", "F", True)


@hf_mapping(attn="attn.attention")
@block
class Block(gpt2.Block):
    attention, feed_forward = Attention, MLP


@hf_config("GPTNeoForCausalLM", require={"C % H == 0": "hidden_size must be a multiple of num_heads"}, ignored=(*gpt2.IGNORED_GPT2, *MORE), refused=REFUSED,
           unread=(".attention.bias", ".attention.masked_bias"), prefix="transformer.", **CONFIG)
@model
class GPTNeo(gpt2.GPT2):
    pass
