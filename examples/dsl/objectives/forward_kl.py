"""Distillation: for each trained token, the divergence KL(teacher || model) of the two distributions (Hinton et al. 2015).

The key teacher_model of a run file names the teacher, which must have the model's vocabulary."""

from typing import Any

from surogate.dsl import Module, forward, graph, objective


@objective
class ForwardKL(Module):
    temperature = 2.0

    @forward
    def forward(self, logits: Any, teacher_logits: Any, labels: Any, hyper: Any) -> dict[str, Any]:
        with graph() as g:
            cold = 1 / self.temperature
            own = g.log_softmax(g.scale(logits, by=cold, name="own.cold"), name="own")
            theirs = g.log_softmax(g.scale(teacher_logits, by=cold, name="theirs.cold"), name="theirs")
            terms = g.mul(g.exp(theirs), g.sub(theirs, own), name="terms")
            kl = g.mul(g.reshape(g.sum(terms), "B", "T"), g.label_mask(labels), name="kl")
            return {"loss": g.scale(g.loss_sum(kl, hyper), by=self.temperature**2, name="loss")}
