"""Distillation of a teacher's likeliest tokens: for each trained token the data has the ids of the K tokens that the teacher finds
likeliest, and ln p of each, as `surogate score --logprobs K` writes them.

In KL(teacher || model), the teacher's distribution covers these K tokens and is scaled to add up to 1. The model's covers all tokens:
probability that the model gives to other tokens raises the loss. The cross entropy of the label is added."""

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
            # if a token has fewer than K ids, padding gets probability 0 in the teacher's distribution
            theirs = g.where(given, top_logprobs, g.full(size=1, value=-1e30), name="theirs.given")
            theirs = g.log_softmax(theirs, name="theirs")
            terms = g.mul(g.exp(theirs), g.sub(theirs, own), name="terms")
            terms = g.mul(terms, given, name="terms.given")  # a token without a teacher's ids adds nothing
            kl = g.mul(g.reshape(g.sum(terms), "B", "T"), g.label_mask(labels, name="trained"), name="kl.tokens")
            kl = g.loss_sum(kl, hyper, name="kl")
            cross = g.loss_sum(losses, hyper, name="cross")
            loss = g.add(g.scale(kl, by=1 - self.cross_weight, name="kl.part"), g.scale(cross, by=self.cross_weight, name="cross.part"), name="loss")
            return {"losses": losses, "loss": loss, "kl": kl, "cross": cross}
