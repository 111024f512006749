"""Qwen3: Llama with a norm of each query and key head. Its upper layers may attend a window."""

from surogate.dsl import block, hf_config, model, module
from surogate.models import llama
from surogate.models.layers import IGNORED, REFUSED, REQUIRE, WINDOWED, RMSNorm


@module
class Attention(llama.Attention):
    norm = RMSNorm
    more = {"window": "use_window && near[i] ? window : 0"}


@block
class Block(llama.Block):
    attention = Attention


@hf_config("Qwen3ForCausalLM", require=REQUIRE, ignored=IGNORED, refused=REFUSED, **WINDOWED)
@model
class Qwen3(llama.Llama):
    pass
