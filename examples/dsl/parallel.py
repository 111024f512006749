"""A Llama whose attention and MLP read the same norm, side by side."""

from typing import Any

from surogate.dsl import Module, Tensor, block, extends, forward, graph, hf_config, hf_mapping, model
from surogate.models import llama
from surogate.models.layers import DECODER, RMSNorm


@hf_mapping(norm="input_layernorm", attn="self_attn")
@block
class Block(Module):
    def __init__(self) -> None:
        self.norm = RMSNorm("C")
        self.attn = llama.Attention()
        self.mlp = llama.MLP()

    @forward
    def forward(self, x: Tensor["B", "T", "C"], rope: Any, positions: Any, doc_start: Any) -> Tensor["B", "T", "C"]:
        with graph() as g:
            h = self.norm(x)
            return g.add(x, g.add(self.attn(h, rope, positions, doc_start), self.mlp(h), name="both"), name="sum")


@hf_config("ParallelForCausalLM", **DECODER)
@model
@extends(llama.Llama)
class Parallel:
    pass
