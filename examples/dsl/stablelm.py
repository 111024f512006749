"""StableLM: Llama with layer norms. Rotary positions turn a part of each head; attention and MLP may stand side by side."""

from typing import Any

from surogate.dsl import Key, Tensor, block, forward, graph, hf_config, model, module
from surogate.models import llama
from surogate.models.layers import DECODER, IGNORED, REFUSED, REQUIRE, LayerNorm, changed

CONFIG = changed(
    DECODER,
    eps=Key("layer_norm_eps", "1e-5", min=0),
    rotary_share=Key(["rope_parameters.partial_rotary_factor", "partial_rotary_factor"], "0.25"),
    qkv_bias=Key("use_qkv_bias", "0"),
    qk_norm=Key("qk_layernorm", "0"),
    parallel=Key("use_parallel_residual", "0"),
)
REQUIRE_STABLELM = changed(REQUIRE, "rotary_share == 1") | {
    "R % 2 == 0": "partial_rotary_factor must give an even number of a head's elements",
    "qk_norm == 0": "qk_layernorm isn't supported",
    "parallel == 0": "use_parallel_residual isn't supported",
}


@module
class Attention(llama.Attention):
    qkv_bias = "qkv_bias"


@block
class Block(llama.Block):
    attention, norm = Attention, LayerNorm


@hf_config("StableLmForCausalLM", require=REQUIRE_STABLELM, ignored=IGNORED, refused=REFUSED, **CONFIG)
@model
class StableLM(llama.Llama):
    last_norm, rotary = LayerNorm, "R"
