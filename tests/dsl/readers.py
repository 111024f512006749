"""Linear layers whose weights other ops read, so that an adapter merged into them would change more than the layer."""

from typing import Any

from surogate.dsl import Array, Module, Param, Size, Tensor, block, forward, graph, hf_config, hf_mapping, model, module, normal


@module
class Linear(Module):
    weight = Param(Tensor["C", "C"], linear=True, init=normal(0.3))

    @forward
    def forward(self, x: Tensor["B", "T", "C"]) -> Tensor["B", "T", "C"]:
        with graph() as g:
            return g.linear(x, self.weight)


@module
class Outer(Module):
    """A layer whose name also occurs in the blocks; its weight is read in the normal way."""

    def __init__(self) -> None:
        self.shared = Linear()

    @forward
    def forward(self, x: Tensor["B", "T", "C"]) -> Tensor["B", "T", "C"]:
        return self.shared(x)


@block
class Block(Module):
    """One linear layer is ordinary, one has a weight that a norm also reads, and two have weights that are added."""

    def __init__(self) -> None:
        self.alone, self.shared, self.left, self.right = (Linear() for _ in range(4))

    @forward
    def forward(self, x: Tensor["B", "T", "C"]) -> Tensor["B", "T", "C"]:
        with graph() as g:
            row = g.reshape(g.slice(self.shared.weight, dim=0, size=1, name="row"), "C", name="scales")
            x = g.rms_norm(self.alone(self.shared(x)), row, eps=1e-5, name="normed")
            return g.linear(x, g.add(self.left.weight, self.right.weight, name="both"), name="sum")


@hf_mapping.indexed("blocks", "blocks.{i}")
@hf_config("ReadersForCausalLM", V=Size("vocab_size"), C=Size("n_embd"), L=Size("n_layer"))
@model
class Readers(Module):
    embed = Param(Tensor["V", "C"], init=normal(0.5))
    blocks = Array["L", "Block"]

    def __init__(self) -> None:
        self.outer = Outer()

    @forward
    def forward(self, tokens: Tensor["B", "T", "i32"]) -> dict[str, Any]:
        with graph() as g:
            x = self.blocks(self.outer(g.embedding(tokens, self.embed, name="x")))
            return {"logits": g.linear(x, self.embed, name="logits")}
