"""Mistral: Llama in which a token attends only the last `window` tokens."""

from surogate.dsl import block, hf_config, model, module
from surogate.models import llama
from surogate.models.layers import DECODER, IGNORED, REFUSED, REQUIRE, WINDOW_4096, changed, heads

CONFIG = changed(DECODER, G=heads("8"), window=WINDOW_4096)


@module
class Attention(llama.Attention):
    more = {"window": "window"}


@block
class Block(llama.Block):
    attention = Attention


@hf_config("MistralForCausalLM", require=REQUIRE, ignored=IGNORED, refused=REFUSED, **CONFIG)
@model
class Mistral(llama.Llama):
    pass
