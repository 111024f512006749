"""A small language model: no attention, one MLP per layer."""

from typing import Any

from surogate.dsl import Array, Key, Module, Param, Size, Tensor, block, forward, graph, hf_config, hf_mapping, model, module, normal


@module
class Linear(Module):
    weight = Param(Tensor["out", "inner"], linear=True, init=normal(0.02))

    def __init__(self, out: str, inner: str) -> None:
        self.out, self.inner = out, inner

    @forward
    def forward(self, x: Tensor["...", "inner"]) -> Tensor["...", "out"]:
        with graph() as g:
            return g.linear(x, self.weight)


@block
class Block(Module):
    norm = Param(Tensor["C"], init="ones", decay=False)

    def __init__(self) -> None:
        self.up = Linear("4 * C", "C")
        self.down = Linear("C", "4 * C")

    @forward
    def forward(self, x: Tensor["B", "T", "C"]) -> Tensor["B", "T", "C"]:
        with graph() as g:
            h = self.up(g.rms_norm(x, self.norm, eps="eps", name="normed"))
            return g.add(x, self.down(g.gelu(h, name="act")), name="sum")


@hf_mapping.indexed("blocks", "transformer.h.{i}")
@hf_mapping({"embed": "transformer.wte.weight"})
@hf_config("TinyForCausalLM", V=Size("vocab_size"), C=Size("n_embd"), L=Size("n_layer"), eps=Key("layer_norm_epsilon", "1e-5", min=0))
@model
class Tiny(Module):
    embed = Param(Tensor["V", "C"], init=normal(0.02))
    blocks = Array["L", "Block"]

    def __init__(self) -> None:
        self.lm_head = Linear("V", "C")

    @forward
    def forward(self, tokens: Tensor["B", "T", "i32"], labels: Any, hyper: Any) -> dict[str, Any]:
        with graph() as g:
            x = g.embedding(tokens, self.embed, name="x0")
            logits = self.lm_head(self.blocks(x), name="logits")
            losses = g.cross_entropy(logits, labels, name="losses")
            return {"logits": logits, "losses": losses, "loss": g.loss_sum(losses, hyper, name="loss")}
