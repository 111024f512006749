"""A model whose loss is written with general ops: each of them is used, with operands broadcast over rows and columns."""

from typing import Any

from surogate.dsl import Module, Param, Size, Tensor, forward, graph, hf_config, model, normal


@hf_config("GeneralForCausalLM", V=Size("vocab_size"), C=Size("n_embd"), L=Size("n_layer"))
@model
class General(Module):
    words = Param(Tensor["V", "C"], init=normal(0.5))
    head = Param(Tensor["V", "C"], init=normal(0.5))

    @forward
    def forward(self, tokens: Tensor["B", "T", "i32"], labels: Any, hyper: Any) -> dict[str, Any]:
        with graph() as g:
            one = g.full(size=1, value=1.0, name="one")
            x = g.embedding(tokens, self.words, name="x")
            x = g.mul(x, g.sigmoid(g.silu(x, name="gate"), name="open"), name="gated")
            x = g.div(x, g.sqrt(g.add(g.mean(g.mul(x, x, name="squares"), name="variance"), one, name="above"), name="size"), name="normed")
            centre = g.mean(x, dim=1, dtype="f32", name="centre")
            x = g.cast(g.sub(x, g.tanh(centre, name="bounded"), name="moved"), dtype="f32", name="wide")
            x = g.add(x, self.moved(g, x, tokens), name="mixed")
            logits = g.linear(x, self.head, name="logits")
            logp = g.log_softmax(logits, name="logp")
            p = g.softmax(logits, name="p")
            picked = g.pick(logp, labels, name="picked")
            best = g.max(logits, name="best")
            sure = g.ge(best, g.expand(one_each(g, best), dim=-1, size=1, name="same"), name="sure")
            far = g.where(g.gt(logits, best, name="none"), p, name="nothing")
            entropy = g.sum(g.mul(p, logp, name="terms"), name="entropy")
            again = g.log(g.sum(g.exp(g.sub(logits, g.stop_gradient(best, name="held"), name="below"), name="powers"), name="all"), name="rest")
            z = g.where(sure, g.log_sigmoid(again, name="soft"), g.maximum(again, one, name="hard"), name="z")
            z = g.minimum(g.add(z, g.sum(far, name="zero"), name="both"), g.scale(one, by=3.0, name="most"), name="clipped")
            three = g.topk(logits, k=3, name="three")
            nearest = g.sum(g.where(g.ge(g.cast(three.ids, dtype="f32", name="places"), one, name="known"), three, name="chosen"), name="nearest")
            z = g.add(z, g.scale(nearest, by=0.001, name="near"), name="pulled")
            whole = g.cast(g.cast(g.scale(best, by=8.0, name="large"), dtype="i32", name="cut"), dtype="f32", name="whole")
            z = g.add(z, g.scale(whole, by=1e-4, name="steps"), name="stepped")
            sevens = g.reshape(g.full(size="B * T", value=7, dtype="i32", name="sevens"), "B", "T", name="seven")
            z = g.sub(z, g.scale(g.reshape(g.pick(logp, sevens, name="seventh"), "B", "T", 1, name="rows"), by=1e-3, name="push"), name="pushed")
            terms = g.reshape(g.add(g.scale(entropy, by=0.1, name="little"), z, name="added"), "B", "T", name="flat")
            same = g.eq(g.label_mask(labels, name="mask"), one, name="labelled")
            losses = g.mul(g.sub(g.scale(terms, by=0.01, name="weighed"), picked, name="each"), same, name="losses")
            return {"logits": logits, "losses": losses, "loss": g.loss_sum(losses, hyper, name="loss")}

    def moved(self, g: Any, x: Any, tokens: Any) -> Any:
        """Adds two terms: the previous token's x with its halves swapped, and the sum of x over all tokens with the same id."""
        low, high = (g.slice(x, dim=-1, begin=begin, size="C / 2", name=name) for begin, name in ((0, "low"), ("C / 2", "high")))
        before = g.slice(g.pad(g.concat(high, low, dim=-1, name="swapped"), dim=1, before=1, name="later"), dim=1, begin=0, size="T", name="before")
        alike = g.gather_rows(g.scatter_add_rows(x, tokens, size="V", name="sums"), tokens, name="alike")
        return g.add(g.scale(before, by=0.5, name="half"), g.scale(g.tanh(alike, name="flat_sums"), by=0.1, name="tenth"), name="around")


def one_each(g: Any, like: Any) -> Any:
    """Ones of the same dims, as exp(0)."""
    return g.exp(g.scale(like, by=0.0, name="zeros"), name="ones")
