"""The objective of pre-training and fine-tuning: cross entropy of the labels, averaged over the trained tokens of a step."""

from typing import Any

from surogate.dsl import Module, forward, graph, objective


@objective
class SFT(Module):
    @forward
    def forward(self, logits: Any, labels: Any, hyper: Any) -> dict[str, Any]:
        with graph() as g:
            losses = g.cross_entropy(logits, labels, name="losses")
            return {"losses": losses, "loss": g.loss_sum(losses, hyper, name="loss")}
