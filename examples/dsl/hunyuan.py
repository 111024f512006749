"""Hunyuan dense: Llama with a norm of each query and key head after the rotary positions."""

from typing import Any

from surogate.dsl import Key, block, hf_config, hf_mapping, model, module
from surogate.models import llama
from surogate.models.layers import DECODER, FULL, IGNORED, REFUSED, RMSNorm, changed

CONFIG = changed(DECODER, eps=Key("rms_norm_eps", "1e-5", min=0))


@hf_mapping(head_norm_q="query_layernorm", head_norm_k="key_layernorm")
@module
class Attention(llama.Attention):
    qkv_bias = o_bias = "attention_bias"

    def __init__(self) -> None:
        super().__init__()
        self.head_norm_q, self.head_norm_k = RMSNorm("D"), RMSNorm("D")

    def turned(self, g: Any, x: Any, rope: Any, positions: Any, name: str) -> Any:
        norm = self.head_norm_q if name == "q.rope" else self.head_norm_k
        return norm(g.rope(x, rope, positions, name=name, part="qkv"), part="qkv")


@block
class Block(llama.Block):
    attention = Attention


@hf_config("HunYuanDenseV1ForCausalLM", require=changed(FULL, "attention_bias == 0"), ignored=IGNORED, refused=REFUSED, **CONFIG)
@model
class HunYuan(llama.Llama):
    pass
