"""Cross entropy in which each predicted token counts with a weight of its own, the number `weight` of the data."""

from typing import Any

from surogate.dsl import Module, Target, forward, graph, objective


@objective
class TokenWeights(Module):
    @forward
    def forward(self, logits: Any, labels: Any, hyper: Any, weight: Target["f32"]) -> dict[str, Any]:
        with graph() as g:
            losses = g.cross_entropy(logits, labels, name="losses")
            weighted = g.mul(losses, weight, name="weighted")
            return {"losses": losses, "loss": g.loss_sum(weighted, hyper, name="loss"), "cross": g.loss_sum(losses, hyper, name="cross")}
