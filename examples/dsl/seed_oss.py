"""Seed-OSS: Llama with biases in the query, key and value projections."""

from surogate.dsl import Key, block, hf_config, model, module
from surogate.models import llama
from surogate.models.layers import DECODER, FULL, IGNORED, REFUSED, changed

CONFIG = changed(
    DECODER,
    attention_bias=Key("attention_bias", "1"),
    out_bias=Key("attention_out_bias", "0"),
    residual_dropout=Key("residual_dropout", "0", unused="it is trained without dropout"),
)


@module
class Attention(llama.Attention):
    qkv_bias, o_bias = "attention_bias", "out_bias"


@module
class MLP(llama.MLP):
    bias = "mlp_bias"


@block
class Block(llama.Block):
    attention, feed_forward = Attention, MLP


@hf_config("SeedOssForCausalLM", require=changed(FULL, "attention_bias == 0", "mlp_bias == 0"), ignored=IGNORED, refused=REFUSED, **CONFIG)
@model
class SeedOss(llama.Llama):
    pass
