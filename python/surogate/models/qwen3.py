"""Qwen3: Llama with a norm of each query and key head."""

from surogate.dsl import block, extends, hf_config, model
from surogate.models import llama
from surogate.models.layers import DECODER, IGNORED, REFUSED, REQUIRE


@block
class Block(llama.Block):
    qk_norm = True


@hf_config("Qwen3ForCausalLM", require=REQUIRE, ignored=IGNORED, refused=REFUSED, **DECODER)
@model
@extends(llama.Llama)
class Qwen3:
    pass
