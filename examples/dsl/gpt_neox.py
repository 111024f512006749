"""GPT-NeoX and Pythia: attention and MLP in parallel, each after a layer norm; each head's query, key and value in one projection."""

from typing import Any

from surogate.dsl import Key, Module, Tensor, block, forward, graph, hf_config, hf_mapping, model, module
from surogate.models import llama
from surogate.models.layers import DECODER, IGNORED, REFUSED, ROPE, LayerNorm, Linear, changed

CONFIG = changed(
    DECODER, "G", "activation", "attention_bias", "mlp_bias",
    eps=Key("layer_norm_eps", "1e-5", min=0),
    tanh=Key("hidden_act", "0", choices={"gelu": 0, "gelu_new": 1, "gelu_fast": 1, "gelu_pytorch_tanh": 1}),
    theta=Key(["rope_parameters.rope_theta", "rotary_emb_base"], "10000", min=1),
    rotary_share=Key(["rope_parameters.partial_rotary_factor", "rotary_pct"], "0.25"),
    parallel=Key("use_parallel_residual", "1"),
    has_bias=Key("attention_bias", "1"),
)
REQUIRE_NEOX = ROPE | {"R % 2 == 0": "rotary_pct must give an even number of a head's elements"}
HEADS = {"num_heads": "H", "num_kv_heads": "H", "head_dim": "D"}


@hf_mapping(qkv="query_key_value", o="dense")
@module
class Attention(Module):
    def __init__(self) -> None:
        self.qkv = Linear("3 * H * D", "C", "has_bias", matrices=("D", "D", "D"))
        self.o = Linear("C", "H * D", "has_bias")

    def turned(self, g: Any, x: Any, rope: Any, positions: Any, name: str) -> Any:
        return g.rope(x, rope, positions, name=name + ".rope", part="qkv")

    @forward
    def forward(self, x: Tensor["B", "T", "C"], rope: Any, positions: Any, doc_start: Any) -> Tensor["B", "T", "C"]:
        with graph() as g:
            heads = g.reshape(self.qkv(x, part="qkv"), "B", "T", "H", "3 * D", name="qkv.heads", part="qkv")
            q, k, v = (g.columns(heads, begin=f"{n} * D", size="D", name="qkv"[n], part="qkv") for n in range(3))
            q, k = self.turned(g, q, rope, positions, "q"), self.turned(g, k, rope, positions, "k")
            y = g.attention(q, k, v, doc_start, name="heads", part="att", **HEADS)
            return self.o(g.reshape(y, "B", "T", "H * D", name="out", part="att"))


@hf_mapping(up="dense_h_to_4h", down="dense_4h_to_h")
@module
class MLP(Module):
    def __init__(self) -> None:
        self.up, self.down = Linear("F", "C", True), Linear("C", "F", True)

    @forward
    def forward(self, x: Tensor["B", "T", "C"]) -> Tensor["B", "T", "C"]:
        with graph() as g:
            return self.down(g.gelu(self.up(x, part="ffn"), tanh="tanh", name="act", part="swiglu"))


@hf_mapping(attn="attention")
@block
class Block(llama.Block):
    attention, feed_forward, norm = Attention, MLP, LayerNorm

    @forward
    def forward(self, x: Tensor["B", "T", "C"], rope: Any, positions: Any, doc_start: Any) -> Tensor["B", "T", "C"]:
        with graph() as g:
            y = g.add(x, self.attn(self.norm1(x), rope, positions, doc_start), name="res1")
            h = g.select("parallel", lambda: x, lambda: y, name="h")
            return g.add(y, self.mlp(self.norm2(h)), name="res2")


@hf_mapping.indexed("blocks", "gpt_neox.layers.{i}")
@hf_mapping(embed="gpt_neox.embed_in", norm="gpt_neox.final_layer_norm", head="embed_out")
@hf_config("GPTNeoXForCausalLM", require=REQUIRE_NEOX, ignored=IGNORED, refused=REFUSED,
           unread=(".rotary_emb.inv_freq", ".attention.bias", ".attention.masked_bias"), **CONFIG)
@model
class GPTNeoX(llama.Llama):
    last_norm, rotary = LayerNorm, "R"
