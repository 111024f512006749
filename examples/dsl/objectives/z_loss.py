"""Cross entropy, and a term that keeps the sum of each token's exponentials near 1 (Chowdhery et al. 2022, PaLM: 1e-4)."""

from typing import Any

from surogate.dsl import Module, forward, graph, objective


@objective
class ZLoss(Module):
    weight = 1e-4

    @forward
    def forward(self, logits: Any, labels: Any, hyper: Any) -> dict[str, Any]:
        with graph() as g:
            losses = g.cross_entropy(logits, labels, name="losses")
            lse = losses.lse  # the logarithm of that sum
            squares = g.mul(g.mul(lse, lse), g.label_mask(labels), name="squares")
            z_loss = g.loss_sum(squares, hyper, name="z_loss")
            loss = g.add(g.loss_sum(losses, hyper, name="cross"), g.scale(z_loss, by=self.weight), name="loss")
            return {"losses": losses, "loss": loss, "z_loss": z_loss}
