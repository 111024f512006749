"""GPT-BigCode, as StarCoder and SantaCoder: GPT-2 in which all query heads share one key head and one value head."""

from typing import Any

from surogate.dsl import Choice, Flag, Tensor, block, forward, graph, hf_config, model, module
from surogate.models import gpt2
from surogate.models.layers import REFUSED, Linear, changed

CONFIG = changed(
    gpt2.CONFIG, "scaled_by_layer",
    tanh=Choice("activation_function", "1", choices={"gelu_new": 1, "gelu_pytorch_tanh": 1, "gelu": 0}),
    many=Flag("multi_query", "1"),
)
REQUIRE = changed(gpt2.REQUIRE_GPT2) | {"many == 1": "multi_query: false isn't supported"}
MORE = ("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32", "inference_runner", "max_batch_size", "max_sequence_length", "num_key_value_heads",
        "pad_key_length", "pre_allocate_kv_cache", "validate_runner_input")


@module
class Attention(gpt2.Attention):
    def __init__(self) -> None:
        self.qkv, self.o = Linear("(H + 2) * D", "C", True, matrices=("H * D", "D", "D")), Linear("C", "H * D", True)

    @forward
    def forward(self, x: Tensor["B", "T", "C"], doc_start: Any) -> Tensor["B", "T", "C"]:
        with graph() as g:
            y = g.attention(self.qkv(x, part="qkv"), doc_start=doc_start, num_heads="H", num_kv_heads=1, head_dim="D", scale="scaled ? 0 : 1",
                            name="heads", part="att")
            return self.o(g.reshape(y, "B", "T", "H * D", name="out", part="att"))


@module
class MLP(gpt2.MLP):
    def __init__(self) -> None:
        self.up, self.down = Linear("F", "C", True), Linear("C", "F", True)


@block
class Block(gpt2.Block):
    attention, feed_forward = Attention, MLP


@hf_config("GPTBigCodeForCausalLM", require=REQUIRE, ignored=(*gpt2.IGNORED_GPT2, *MORE), refused=REFUSED, prefix="transformer.", **CONFIG)
@model
class GPTBigCode(gpt2.GPT2):
    pass
