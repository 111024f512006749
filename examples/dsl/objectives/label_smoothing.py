"""Cross entropy against 1 - epsilon for the label plus epsilon spread evenly over all tokens (Szegedy et al. 2016)."""

from typing import Any

from surogate.dsl import Module, forward, graph, objective


@objective
class LabelSmoothing(Module):
    epsilon = 0.1

    @forward
    def forward(self, logits: Any, labels: Any, hyper: Any) -> dict[str, Any]:
        with graph() as g:
            losses = g.cross_entropy(logits, labels, name="losses")
            lse = losses.lse
            spread = g.sub(lse, g.reshape(g.mean(logits), "B", "T"), name="spread")  # the mean of -log p over all tokens
            spread = g.mul(spread, g.label_mask(labels), name="spread.trained")
            own = g.scale(losses, by=1 - self.epsilon, name="own")
            both = g.add(own, g.scale(spread, by=self.epsilon, name="all"), name="both")
            return {"losses": losses, "loss": g.loss_sum(both, hyper, name="loss")}
