"""Falcon: attention and MLP side by side; one projection, which has the queries, the key and the value of each key/value head. With `alibi`
it has ALiBi in place of rotary positions; transformers rounds those biases to bf16, which changes them from some hundred tokens on."""

from typing import Any

from surogate.dsl import Key, Module, Size, Tensor, block, each, forward, graph, hf_config, hf_mapping, model, module
from surogate.models import llama
from surogate.models.layers import DECODER, IGNORED, REFUSED, ROPE, LayerNorm, Linear, changed

CONFIG = changed(
    DECODER, "G", "attention_bias", "mlp_bias", "activation",
    F=Size("ffn_hidden_size", "4 * C"),
    eps=Key("layer_norm_epsilon", "1e-5", min=0),
    tied=Key("tie_word_embeddings", "1"),
    tanh=Key("activation", "0", choices={"gelu": 0, "gelu_new": 1, "gelu_pytorch_tanh": 1}),
    many=Key("multi_query", "1"),
    new=Key("new_decoder_architecture", "0"),
    kv_heads=Size("num_kv_heads", "H"),
    G=Key(None, "new ? kv_heads : many ? 1 : H"),
    num_norms=Key("num_ln_in_parallel_attn", "new ? 2 : 1"),
    parallel=Key("parallel_attn", "1"),
    has_bias=Key("bias", "0"),
    alibi=Key("alibi", "0"),
    n=Key(None, "pow(2, floor(log(H) / log(2) + 1e-9))"),  # the largest power of two that is at most H
    hidden_dropout=Key("hidden_dropout", "0", unused="it is trained without dropout"),
)
REQUIRE_FALCON = {
    **ROPE,
    "H % G == 0": "num_attention_heads must be a multiple of num_kv_heads",
    "rotary_share == 1": "partial rotary embedding isn't supported",
    "parallel == 1": "parallel_attn: false isn't supported",
    "num_norms == 1 || new": "num_ln_in_parallel_attn is for new_decoder_architecture",
}
HEADS = {"num_heads": "H", "num_kv_heads": "G", "head_dim": "D", "part": "att"}
SLOPE = "pow(2, i < n ? -8 * (i + 1) / n : -4 * (2 * (i - n) + 1) / n) / sqrt(D)"


@hf_mapping(qkv="query_key_value", o="dense")
@module
class Attention(Module):
    def __init__(self) -> None:
        self.qkv = Linear("(H + 2 * G) * D", "C", "has_bias", matrices=("H / G * D", "D", "D"))
        self.o = Linear("C", "H * D", "has_bias")

    @forward
    def forward(self, x: Tensor["B", "T", "C"], rope: Any, positions: Any, doc_start: Any) -> Tensor["B", "T", "C"]:
        with graph() as g:
            groups = g.reshape(self.qkv(x, part="qkv"), "B", "T", "G", "(H / G + 2) * D", name="groups", part="qkv")
            q = g.columns(groups, begin=0, size="H / G * D", name="q", part="qkv")
            k = g.columns(groups, begin="H / G * D", size="D", name="k", part="qkv")
            v = g.columns(groups, begin="(H / G + 1) * D", size="D", name="v", part="qkv")
            q = g.reshape(q, "B", "T", "H", "D", name="q.heads", part="qkv")

            def turned() -> Any:
                ends = (g.rope(x, rope, positions, name=name, part="qkv") for x, name in ((q, "q.rope"), (k, "k.rope")))
                return g.attention(*ends, v, doc_start, name="turned", **HEADS)

            def biased() -> Any:
                return g.attention(q, k, v, doc_start, bias=g.alibi_table(len="P", num_heads="H", slopes=each("H", SLOPE)), name="biased", **HEADS)

            y = g.select("alibi", biased, turned, name="heads")
            return self.o(g.reshape(y, "B", "T", "H * D", name="out", part="att"))


@hf_mapping(up="dense_h_to_4h", down="dense_4h_to_h")
@module
class MLP(Module):
    def __init__(self) -> None:
        self.up, self.down = Linear("F", "C", "has_bias"), Linear("C", "F", "has_bias")

    @forward
    def forward(self, x: Tensor["B", "T", "C"]) -> Tensor["B", "T", "C"]:
        with graph() as g:
            return self.down(g.gelu(self.up(x, part="ffn"), tanh="tanh", name="act", part="swiglu"))


@hf_mapping(norm="input_layernorm", norm1="ln_attn", norm2="ln_mlp", attn="self_attention")
@block
class Block(Module):
    def __init__(self) -> None:
        self.norm, self.norm1, self.norm2 = LayerNorm("C"), LayerNorm("C"), LayerNorm("C")
        self.attn, self.mlp = Attention(), MLP()

    @forward
    def forward(self, x: Tensor["B", "T", "C"], rope: Any, positions: Any, doc_start: Any) -> Tensor["B", "T", "C"]:
        with graph() as g:
            h1 = g.select("num_norms == 2", lambda: self.norm1(x), lambda: self.norm(x), name="h1")
            h2 = g.select("num_norms == 2", lambda: self.norm2(x), lambda: h1, name="h2")
            y = g.add(x, self.attn(h1, rope, positions, doc_start), name="res1")
            return g.add(y, self.mlp(h2), name="res2")


@hf_mapping.indexed("blocks", "transformer.h.{i}")
@hf_mapping(embed="transformer.word_embeddings", norm="transformer.ln_f")
@hf_config("FalconForCausalLM", require=REQUIRE_FALCON, ignored=IGNORED, refused=REFUSED, **CONFIG)
@model
class Falcon(llama.Llama):
    last_norm = LayerNorm
