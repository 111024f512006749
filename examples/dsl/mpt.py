"""MPT: ALiBi instead of positions, layer norms without biases, one projection of queries, keys and values, which may be clipped."""

from typing import Any

from surogate.dsl import Array, Key, Module, Size, Tensor, block, each, forward, graph, hf_config, hf_mapping, model, module, tied_to
from surogate.models import layers
from surogate.models.layers import IGNORED, REFUSED, Embedding, Linear

A = "attn_config."
CONFIG = {
    "V": Size("vocab_size"),
    "C": Size("d_model"),
    "L": Size("n_layers", most=10000),
    "H": Size("n_heads", most=256),
    "D": Key(None, "C / H"),
    "n": Key(None, "pow(2, ceil(log(H) / log(2) - 1e-9))"),  # the least power of two that is at least H
    "eps": Key("layer_norm_epsilon", "1e-5", min=0),
    "init_std": Key("initializer_range", "0.02", min=0),
    "tied": Key("tie_word_embeddings", "1"),
    "scale": Key(A + "softmax_scale", "0"),
    "clip": Key(A + "clip_qkv", "0", min=0),
    "alibi": Key(A + "alibi", "1"),
    "alibi_most": Key(A + "alibi_bias_max", "8", min=0),
    "prefixed": Key(A + "prefix_lm", "0"),
    "qk_norm": Key(A + "qk_ln", "0"),
    "heads": Key(A + "attn_type", "0", choices={"multihead_attention": 0}),
    "plain": Key("no_bias", "1"),
    **{name.replace(".", "_"): Key(name, "0", unused="it is trained without dropout") for name in (A + "attn_pdrop", "resid_pdrop", "emb_pdrop")},
}
WANTED = {"alibi": 1, "prefixed": 0, "qk_norm": 0, "plain": 1}
REQUIRE = {"C % H == 0": "d_model must be a multiple of n_heads"} | {f"{k} == {v}": f"{CONFIG[k].entry['key']}: expected {bool(v)}" for k, v in WANTED.items()}
MORE = ("attn_config.attn_impl", "init_device", "learned_pos_emb", "norm_type", "max_seq_len", "verbose")
SLOPE = "pow(2, -alibi_most / n * (H == n ? i + 1 : i < floor(n / 2) ? 2 * i + 2 : 2 * i - n + 1))"


@module
class LayerNorm(layers.LayerNorm):
    bias = None


@hf_mapping(qkv="attn.Wqkv", o="attn.out_proj", up="ffn.up_proj", down="ffn.down_proj", norm1="norm_1", norm2="norm_2")
@block
class Block(Module):
    def __init__(self) -> None:
        self.norm1, self.qkv, self.o = LayerNorm("C"), Linear("3 * H * D", "C", matrices=("H * D",) * 3), Linear("C", "H * D")
        self.norm2, self.up, self.down = LayerNorm("C"), Linear("4 * C", "C"), Linear("C", "4 * C")

    def clipped(self, g: Any, x: Any) -> Any:
        most = g.full(size=1, value="clip", name="most")
        return g.maximum(g.minimum(x, most), g.scale(most, by=-1.0), name="clipped", part="qkv")

    @forward
    def forward(self, x: Tensor["B", "T", "C"], bias: Any, doc_start: Any) -> Tensor["B", "T", "C"]:
        with graph() as g:
            qkv = self.qkv(self.norm1(x), part="qkv")
            qkv = g.select("clip > 0", lambda: self.clipped(g, qkv), lambda: qkv, name="heads")
            y = g.attention(qkv, doc_start=doc_start, bias=bias, num_heads="H", num_kv_heads="H", head_dim="D", scale="scale", part="att")
            x = g.add(x, self.o(g.reshape(y, "B", "T", "H * D", name="out", part="att")), name="res1")
            return g.add(x, self.down(g.gelu(self.up(self.norm2(x), part="ffn"), part="swiglu")), name="res2")


@hf_mapping.indexed("blocks", "transformer.blocks.{i}")
@hf_mapping(embed="transformer.wte", norm="transformer.norm_f", head="lm_head")
@hf_config("MptForCausalLM", require=REQUIRE, ignored=(*IGNORED, *MORE), refused=REFUSED, **CONFIG)
@tied_to("head.weight", "embed.weight", when="tied")
@model
class MPT(Module):
    blocks = Array["L", "Block"]

    def __init__(self) -> None:
        self.embed, self.norm, self.head = Embedding(), LayerNorm("C"), Linear("V", "C", head=True)

    @forward
    def forward(self, tokens: Tensor["B", "T", "i32"], doc_start: Any) -> dict[str, Any]:
        with graph() as g:
            bias = g.alibi_table(len="P", num_heads="H", slopes=each("H", SLOPE))
            hidden = self.norm(self.blocks(self.embed(tokens), bias, doc_start))
            return {"hidden": hidden, "logits": self.head(hidden, name="logits")}
