"""Trained weights wherever ops read tensors, weights that are computed from weights, weights that are read several times, and
blocks that pass several tensors on."""

from typing import Any

from surogate.dsl import Array, Module, Param, Size, Tensor, block, forward, graph, hf_config, hf_mapping, model, module, normal


@module
class Linear(Module):
    weight = Param(Tensor["out", "inner"], linear=True, init=normal(0.3))

    def __init__(self, out: str, inner: str) -> None:
        self.out, self.inner = out, inner

    @forward
    def forward(self, x: Tensor["...", "inner"]) -> Tensor["...", "out"]:
        with graph() as g:
            return g.linear(x, self.weight)


@module
class Attention(Module):
    """Scores divided by a learned temperature, and biased by a learned table of distances."""

    temperature = Param(Tensor["1"], init="ones")
    table = Param(Tensor["4", "H"], init=normal(0.5), decay=False)
    queries = Param(Tensor["C / H"], init="zeros")

    def __init__(self) -> None:
        self.q, self.k, self.v, self.o = (Linear("C", "C") for _ in range(4))

    @forward
    def forward(self, x: Tensor["B", "T", "C"], doc_start: Any) -> Tensor["B", "T", "C"]:
        with graph() as g:
            one = g.full(size="C / H", value=1.0, name="one")
            q, k, v = (g.reshape(getattr(self, n)(x), "B", "T", "H", "C / H", name=f"{n}.heads") for n in "qkv")
            q = g.rms_norm(q, g.add(self.queries, one, name="centred"), eps=1e-5, name="q.normed")  # a norm with weights around 0
            q = g.div(q, g.reshape(self.temperature, 1, 1, 1, 1, name="heat"), name="q.cold")
            y = g.attention(q, k, v, doc_start, bias=self.table, num_heads="H", num_kv_heads="H", head_dim="C / H")
            return self.o(g.reshape(y, "B", "T", "C", name="joined"))


@block
class Block(Module):
    norm = Param(Tensor["C"], init="ones", decay=False)
    scale = Param(Tensor["1", "1", "C"], init="ones")  # LayerScale
    mix = Param(Tensor["3"], init="zeros")

    def __init__(self) -> None:
        self.attention, self.gate, self.up, self.down = Attention(), Linear("F", "C"), Linear("F", "C"), Linear("C", "F")

    @forward
    def forward(self, x: Tensor["B", "T", "C"], doc_start: Any) -> Tensor["B", "T", "C"]:
        with graph() as g:
            h = g.rms_norm(x, self.norm, eps=1e-5, name="normed")
            y = self.down(g.swiglu(self.gate(h), self.up(h), name="act"))
            part = g.softmax(self.mix, name="shares")
            first, second = (g.slice(part, begin=k, size=1, name=f"share{k}") for k in range(2))
            y = g.add(g.mul(y, first, name="y.part"), g.mul(self.attention(h, doc_start), second, name="a.part"), name="both")
            return g.add(x, g.mul(y, self.scale, name="scaled"), name="sum")


@block
class Turned(Module):
    """Multiplies by one weight in the first turn, by another in later turns."""

    early = Param(Tensor["1", "1", "C"], init="ones")
    late = Param(Tensor["1", "1", "C"], init="ones")

    @forward
    def forward(self, x: Tensor["B", "T", "C"]) -> Tensor["B", "T", "C"]:
        with graph() as g:
            return g.select("turn > 0", lambda: g.mul(x, self.late, name="late_x"), lambda: g.mul(x, self.early, name="early_x"), name="turned")


@block
class Kept(Module):
    """Adds a part of the first block's input to each block's."""

    share = Param(Tensor["1", "1", "C"], init="zeros")

    @forward
    def forward(self, state: tuple[Any, Any]) -> tuple[Any, Any]:
        with graph() as g:
            x, first = state
            first = g.select("i == 0", lambda: x, lambda: first, name="first")
            return g.add(x, g.mul(first, self.share, name="part"), name="sum"), first


@hf_mapping.indexed("turned", "turned.{i}")
@hf_mapping.indexed("kept", "kept.{i}")
@hf_mapping.indexed("blocks", "blocks.{i}")
@hf_config("WeightsForCausalLM", V=Size("vocab_size"), C=Size("n_embd"), F=Size("n_inner"), L=Size("n_layer"), H=Size("n_head"),
           turns=Size("turns"))
@model
class Weights(Module):
    embed = Param(Tensor["V", "C"], init=normal(0.5))
    length = Param(Tensor["V", "1"], init="ones")
    first = Param(Tensor["C"], init="ones")
    blocks = Array["L", "Block"]
    turned = Array["L", "Turned"]
    kept = Array["L", "Kept"]

    def __init__(self) -> None:
        self.shared, self.looped = Block(), Block()

    @forward
    def forward(self, tokens: Tensor["B", "T", "i32"], doc_start: Any, labels: Any, hyper: Any) -> dict[str, Any]:
        with graph() as g:
            squares = g.sqrt(g.sum(g.mul(self.embed, self.embed, name="squares"), name="square"), name="norms")
            table = g.mul(g.div(self.embed, squares, name="directions"), self.length, name="table")  # weight normalisation
            x = g.layer_norm(g.embedding(tokens, table, name="x"), self.first, self.first, eps=1e-5, name="x.normed")
            x = self.shared(self.shared(x, doc_start), doc_start)
            x = g.repeat("turns", lambda y: self.looped(y, doc_start), x)
            x = g.repeat("turns", lambda y: self.turned(y), x)
            x, _ = self.kept((x, g.scale(x, by=0.0, name="none")))
            x = self.blocks(self.blocks(x, doc_start), doc_start)
            logits = g.linear(x, table, name="logits")
            losses = g.cross_entropy(logits, labels, name="losses")
            return {"logits": logits, "losses": losses, "loss": g.loss_sum(losses, hyper, name="loss")}
