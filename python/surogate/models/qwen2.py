"""Qwen2.5: Llama with biases in the query, key and value projections."""

from surogate.dsl import block, extends, hf_config, model
from surogate.models import llama
from surogate.models.layers import DECODER, IGNORED, REFUSED, REQUIRE


@block
class Block(llama.Block):
    qkv_bias = True


@hf_config("Qwen2ForCausalLM", require=REQUIRE, ignored=IGNORED, refused=REFUSED, **DECODER)
@model
@extends(llama.Llama)
class Qwen2:
    pass
