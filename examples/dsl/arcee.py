"""Arcee: Llama with an MLP of squared ReLU."""

from surogate.dsl import Key, block, hf_config, model, module
from surogate.models import llama
from surogate.models.layers import DECODER, FULL, IGNORED, REFUSED, changed
from nemotron import MLP

CONFIG = changed(DECODER, eps=Key("rms_norm_eps", "1e-5", min=0), activation=Key("hidden_act", "0", choices={"relu2": 0}))


@module
class Attention(llama.Attention):
    qkv_bias = o_bias = "attention_bias"


@block
class Block(llama.Block):
    attention, feed_forward = Attention, MLP


@hf_config("ArceeForCausalLM", require=changed(FULL, "attention_bias == 0", "mlp_bias == 0"), ignored=IGNORED, refused=REFUSED, **CONFIG)
@model
class Arcee(llama.Llama):
    pass
