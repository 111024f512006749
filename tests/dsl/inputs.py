"""A model with inputs of its own: a kind and a volume of each token, and a verdict on it, which a second term of the loss trains."""

from typing import Any

from surogate.dsl import Input, Module, Param, Size, Tensor, forward, graph, hf_config, model, normal


@hf_config("InputsForCausalLM", V=Size("vocab_size"), C=Size("n_embd"), K=Size("num_kinds"))
@model
class Inputs(Module):
    words = Param(Tensor["V", "C"], init=normal(0.5))
    kinds = Param(Tensor["K", "C"], init=normal(0.5))
    loud = Param(Tensor["C", 1], init=normal(0.5))
    head = Param(Tensor["V", "C"], init=normal(0.5))
    judge = Param(Tensor["K", "C"], init=normal(0.5))

    @forward
    def forward(self, tokens: Tensor["B", "T", "i32"], labels: Any, hyper: Any, kind: Input["i32"], volume: Input["f32"],
                verdict: Input["i32", -100]) -> dict[str, Any]:
        with graph() as g:
            x = g.add(g.embedding(tokens, self.words, name="word"), g.embedding(kind, self.kinds, name="of"), name="told")
            x = g.add(x, g.linear(g.reshape(volume, "B", "T", 1, name="column"), self.loud, name="louder"), name="heard")
            logits = g.linear(x, self.head, name="logits")
            losses = g.cross_entropy(logits, labels, name="losses")
            judged = g.cross_entropy(g.linear(x, self.judge, name="opinions"), verdict, name="judged")
            loss = g.add(g.loss_sum(losses, hyper, name="first"), g.loss_sum(judged, hyper, name="second"), name="loss")
            return {"logits": logits, "losses": losses, "loss": loss}
