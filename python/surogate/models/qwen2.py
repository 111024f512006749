"""Qwen2.5: Llama with biases in the query, key and value projections. Its upper layers may attend a window."""

from surogate.dsl import Number, block, hf_config, model, module
from surogate.models import llama
from surogate.models.layers import IGNORED, REFUSED, REQUIRE, WINDOW_4096, WINDOWED, changed, heads

CONFIG = changed(WINDOWED, G=heads("32"), window=WINDOW_4096, full_layers=Number("max_window_layers", "28", integer=True))


@module
class Attention(llama.Attention):
    qkv_bias = True
    more = {"window": "use_window && near[i] ? window : 0"}


@block
class Block(llama.Block):
    attention = Attention


@hf_config("Qwen2ForCausalLM", require=REQUIRE, ignored=IGNORED, refused=REFUSED, **CONFIG)
@model
class Qwen2(llama.Llama):
    pass
