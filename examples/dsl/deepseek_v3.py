"""DeepSeek-V3's dense form: latent attention (MLA). Queries are computed from one normed vector of lower rank, keys and values from
another. Only a part of each key is rotated, and all heads share that part. Values have another size than keys."""

from typing import Any

from surogate.dsl import Key, Module, Number, Size, Tensor, block, forward, graph, hf_config, hf_mapping, model, module
from surogate.models import llama
from surogate.models.layers import DECODER, IGNORED, REFUSED, ROPE, Linear, RMSNorm, changed

CONFIG = changed(
    DECODER, "G",
    D=Size("qk_rope_head_dim", 64),  # D: rotated elements of a head; N: its other elements
    N=Size("qk_nope_head_dim", 128),
    E=Size("v_head_dim", 128),
    Q=Number("q_lora_rank", "1536", null="0", min=0, integer=True),
    K=Size("kv_lora_rank", 512),
    interleaved=Key("rope_interleave", "1"),
    dense_layers=Number("first_k_dense_replace", "3", min=0, integer=True),
    scale=Key(None, "(yarn && mscale_all ? pow(0.1 * mscale_all * log(rope_factor) + 1, 2) : 1) / sqrt(N + D)"),
)
REQUIRE = {**ROPE, "D % 2 == 0": "qk_rope_head_dim must be even", "dense_layers >= L": "a mixture of experts isn't supported",
           "attention_bias == 0": "attention_bias isn't supported", "mlp_bias == 0": "mlp_bias isn't supported"}
EXPERTS = ("moe_intermediate_size", "n_routed_experts", "n_shared_experts", "num_experts_per_tok", "routed_scaling_factor", "moe_layer_freq",
           "num_local_experts", "output_router_logits", "head_dim", "num_key_value_heads", "scoring_func")


@module
class LatentNorm(RMSNorm):
    @forward
    def forward(self, x: Tensor["...", "size"]) -> Tensor["...", "size"]:
        with graph() as g:
            return g.rms_norm(x, self.weight, eps=1e-6)


@hf_mapping(q="q_proj", q_down="q_a_proj", q_norm="q_a_layernorm", q_up="q_b_proj", kv_down="kv_a_proj_with_mqa", kv_norm="kv_a_layernorm",
            kv_up="kv_b_proj", o="o_proj")
@module
class Attention(Module):
    def __init__(self) -> None:
        self.q, self.q_down, self.q_up = Linear("H * (N + D)", "C"), Linear("Q", "C"), Linear("H * (N + D)", "Q")
        self.kv_down, self.kv_up, self.o = Linear("K + D", "C"), Linear("H * (N + E)", "K"), Linear("C", "H * E")
        self.q_norm, self.kv_norm = LatentNorm("Q"), LatentNorm("K")

    @forward
    def forward(self, x: Tensor["B", "T", "C"], rope: Any, positions: Any, doc_start: Any) -> Tensor["B", "T", "C"]:
        with graph() as g:
            def part(value: Any, begin: str, size: str, name: str) -> Any:
                return g.columns(value, begin=begin, size=size, name=name, part="qkv")

            def turned(value: Any, name: str) -> Any:
                return g.rope(value, rope, positions, interleaved="interleaved", name=name, part="qkv")

            q = g.select("Q > 0", lambda: self.q_up(self.q_norm(self.q_down(x, part="qkv")), part="qkv"), lambda: self.q(x, part="qkv"), name="q.all")
            q = g.reshape(q, "B", "T", "H", "N + D", name="q.heads", part="qkv")
            q = g.concat(part(q, "0", "N", "q.still"), turned(part(q, "N", "D", "q.part"), "q.rope"), dim=-1, name="q.whole", part="qkv")
            down = self.kv_down(x, part="qkv")
            kv = self.kv_up(self.kv_norm(part(down, "0", "K", "latent")), part="qkv")
            kv = g.reshape(kv, "B", "T", "H", "N + E", name="kv.heads", part="qkv")
            k = turned(g.reshape(part(down, "K", "D", "k.part"), "B", "T", "1", "D", name="k.shared", part="qkv"), "k.rope")
            k = g.expand(k, dim=2, size="H", name="k.spread", part="qkv")
            k = g.concat(part(kv, "0", "N", "k.still"), k, dim=-1, name="k.whole", part="qkv")
            y = g.attention(q, k, part(kv, "N", "E", "v"), doc_start, num_heads="H", num_kv_heads="H", head_dim="N + D", scale="scale", name="heads",
                            part="att")
            return self.o(g.reshape(y, "B", "T", "H * E", name="out", part="att"))


@block
class Block(llama.Block):
    attention = Attention


@hf_config("DeepseekV3ForCausalLM", require=REQUIRE, ignored=(*IGNORED, *EXPERTS), refused=REFUSED, **CONFIG)
@model
class DeepseekV3(llama.Llama):
    pass
