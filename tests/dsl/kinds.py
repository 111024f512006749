"""Layers of two kinds, chosen by index; biases if the config says so; a model that extends a base; a weight as a method."""

from surogate.dsl import (
    Array,
    Dim,
    Key,
    Param,
    Size,
    Tensor,
    abstract,
    block,
    extends,
    forward,
    graph,
    hf_config,
    hf_mapping,
    model,
    module,
    param,
    recompute,
)


@module
class Lin:
    weight = Param(Tensor["o", "n"], init="ones")
    bias = Param(Tensor["o"], init="zeros", when="use_bias")

    def __init__(self, o, n):
        self.o, self.n = o, n

    @forward
    def forward(self, x: Tensor["...", "n"]) -> Tensor["...", "o"]:
        with graph() as g:
            return g.linear(x, self.weight, self.bias)


@block
class Block:
    def __init__(self):
        self.a = Lin("C", Dim("C"))
        self.b = Lin("C", "C")
        self.c = Lin("C", "C")

    @param(init="ones", decay=False, frozen=True)
    def norm(self) -> Tensor["C"]: ...

    @recompute("ffn")
    @forward
    def forward(self, x):
        with graph() as g:
            h = g.rms_norm(x, self.norm, name="n")
            h = g.select("first[i]", lambda: self.c(h, name="c1"), lambda: h, name="h")
            h = g.select("first[i]", lambda: self.a(h), lambda: self.b(h), name="pick")
            h = g.select("i < 2", lambda: self.c(h, name="c2"), lambda: h, name="h2")
            return g.add(x, h, name="s")


@hf_config("KindsForCausalLM", V=Size("vocab_size"), C=Size("n_embd"), L=Size("n_layer"), use_bias=Key("use_bias", "0"),
           first=Key("kinds", "i % 2 == 0", per="L", choices={"a": 1, "b": 0}))
@hf_mapping({"embed": "wte"})
@hf_mapping.indexed("blocks", "h.{i}")
@abstract
@model
class Base:
    blocks = Array["L", "Block"]
    embed = Param(Tensor["V", "C"])

    @forward
    def forward(self, tokens, labels, hyper):
        with graph() as g:
            x = self.blocks(g.embedding(tokens, self.embed, name="x0"))
            logits = g.linear(x, self.embed, name="logits")
            losses = g.cross_entropy(logits, labels, name="losses")
            return {"logits": logits, "losses": losses, "loss": g.loss_sum(losses, hyper, name="loss")}


@model
@extends(Base)
class Kinds:
    pass
