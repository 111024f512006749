"""Qwen3: Llama with a norm of each query and key head. Its upper layers may attend a window."""

from surogate.dsl import Size, block, hf_config, model, module
from surogate.models import llama, qwen2
from surogate.models.layers import IGNORED, REFUSED, REQUIRE, RMSNorm, changed

CONFIG = changed(qwen2.CONFIG, D=Size("head_dim", "128", most=65536))


@module
class Attention(llama.Attention):
    norm = RMSNorm
    more = {"window": "use_window && near[i] ? window : 0"}


@block
class Block(llama.Block):
    attention = Attention


@hf_config("Qwen3ForCausalLM", require=REQUIRE, ignored=IGNORED, refused=REFUSED, **CONFIG)
@model
class Qwen3(llama.Llama):
    pass
