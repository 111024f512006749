"""Distillation of a teacher's likeliest tokens: for each trained token the data has the ids of the teacher's K likeliest ones, and ln p of each,
as `surogate score --logprobs K` writes them.

The divergence KL(teacher || model) is that of the teacher's distribution over these K tokens, which is made to add up to 1, from the model's
distribution over all: what the model gives to other tokens raises the loss. The cross entropy of the label is added to it."""

from typing import Any

from surogate.dsl import Module, Target, forward, graph, objective


@objective
class TopKKL(Module):
    k = 8
    cross_weight = 0.5

    @forward
    def forward(self, logits: Any, labels: Any, hyper: Any, top_ids: Target["i32", -100, k], top_logprobs: Target["f32", 0, k]) -> dict[str, Any]:
        with graph() as g:
            losses = g.cross_entropy(logits, labels, name="losses")
            own = g.pick(g.log_softmax(logits, name="log_p"), top_ids, name="own")
            given = g.label_mask(top_ids, name="given")
            # where a token has fewer than K, padding has no part of the teacher's distribution
            theirs = g.where(given, top_logprobs, g.full(size=1, value=-1e30), name="theirs.given")
            theirs = g.log_softmax(theirs, name="theirs")
            terms = g.mul(g.exp(theirs), g.sub(theirs, own), name="terms")
            terms = g.mul(terms, given, name="terms.given")  # a token without a teacher's ids adds nothing
            kl = g.mul(g.reshape(g.sum(terms), "B", "T"), g.label_mask(labels, name="trained"), name="kl.tokens")
            kl = g.loss_sum(kl, hyper, name="kl")
            cross = g.loss_sum(losses, hyper, name="cross")
            loss = g.add(g.scale(kl, by=1 - self.cross_weight, name="kl.part"), g.scale(cross, by=self.cross_weight, name="cross.part"), name="loss")
            return {"losses": losses, "loss": loss, "kl": kl, "cross": cross}
