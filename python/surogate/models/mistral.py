"""Mistral: Llama under a name of its own."""

from surogate.dsl import Key, extends, hf_config, model
from surogate.models import llama
from surogate.models.layers import DECODER, IGNORED, REFUSED, REQUIRE

CONFIG = DECODER | {"use_window": Key("sliding_window", "0")}


@hf_config("MistralForCausalLM", require=REQUIRE, ignored=IGNORED, refused=REFUSED, **CONFIG)
@model
@extends(llama.Llama)
class Mistral:
    pass
