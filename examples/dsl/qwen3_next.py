"""Gated attention, as in Qwen3-Next's layers of full attention: each element of a head has a gate, the sigmoid of the query projection's
other half; norms of each head multiply by 1 + weight; a part of each head is rotated. Its layers of linear attention and its experts aren't
here."""

from typing import Any

from surogate.dsl import Key, Param, Tensor, block, forward, graph, hf_config, model, module, recompute
from surogate.models import layers, llama
from surogate.models.layers import DECODER, IGNORED, REFUSED, REQUIRE, Linear, changed

CONFIG = changed(
    DECODER,
    eps=Key("rms_norm_eps", "1e-6", min=0),
    rotary_share=Key(["rope_parameters.partial_rotary_factor", "partial_rotary_factor"], "0.25"),
    experts=Key("num_experts", "512", integer=True),
    full=Key("layer_types", "0", per="L", choices={"full_attention": 1}),
)
REQUIRE_NEXT = changed(REQUIRE, "rotary_share == 1") | {
    "R % 2 == 0": "partial_rotary_factor must give an even number of a head's elements",
    "experts == 0": "num_experts must be 0: experts aren't supported",
    "full[0]": "layer_types must be full_attention in each layer: linear attention isn't supported"}
IGNORED_NEXT = (*IGNORED, "num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size", "norm_topk_prob",
                "output_router_logits", "router_aux_loss_coef", "decoder_sparse_step", "mlp_only_layers")


@module
class Norm(layers.RMSNorm):
    """y = x / sqrt(mean(x^2)) * (1 + weight)"""

    weight = Param(Tensor["size"], init="zeros", decay=False)

    @recompute("norm")
    @forward
    def forward(self, x: Tensor["...", "size"]) -> Tensor["...", "size"]:
        with graph() as g:
            return g.rms_norm(x, self.weight, eps="eps", offset=1)


@module
class Attention(llama.Attention):
    norm = Norm

    def __init__(self) -> None:
        super().__init__()
        self.q = Linear("2 * H * D", "C")

    @forward
    def forward(self, x: Tensor["B", "T", "C"], rope: Any, positions: Any, doc_start: Any) -> Tensor["B", "T", "C"]:
        with graph() as g:
            both = g.reshape(self.q(x, part="qkv"), "B", "T", "H", "2 * D", name="both", part="qkv")
            q = g.slice(both, dim=3, begin=0, size="D", name="q.heads", part="qkv")
            k = g.reshape(self.k(x, part="qkv"), "B", "T", "G", "D", name="k.heads", part="qkv")
            v = g.reshape(self.v(x, part="qkv"), "B", "T", "G", "D", name="v.heads", part="qkv")
            q = self.turned(g, self.q_norm(q, name="q.norm", part="qkv"), rope, positions, "q.rope")
            k = self.turned(g, self.k_norm(k, name="k.norm", part="qkv"), rope, positions, "k.rope")
            y = g.attention(q, k, v, doc_start, num_heads="H", num_kv_heads="G", head_dim="D", name="heads", part="att")
            gate = g.sigmoid(g.slice(both, dim=3, begin="D", size="D", name="gate", part="att"), name="open", part="att")
            return self.o(g.reshape(g.mul(y, gate, name="gated", part="att"), "B", "T", "H * D", name="out", part="att"))


@block
class Block(llama.Block):
    attention, norm = Attention, Norm


@hf_config("Qwen3NextForCausalLM", require=REQUIRE_NEXT, ignored=IGNORED_NEXT, refused=REFUSED, **CONFIG)
@model
class Qwen3Next(llama.Llama):
    last_norm, rotary = Norm, "R"
