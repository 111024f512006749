"""Multi-token prediction (DeepSeek-V3, 2024, section 2.2) over Llama's blocks: a further module predicts the token after the next. It reads
the last block's output and the next token's embedding, has its own block and norms, and shares the embedding and the head with the model.

The loss is the cross entropy of the next token plus `mtp_weight` times the cross entropy of the token after it, each divided by the number
of trained tokens. Tokens of another document are never labels. Generating and evaluating read only the next token's logits."""

from typing import Any

from surogate.dsl import Module, Size, Tensor, block, forward, graph, hf_config, hf_mapping, model, module
from surogate.models import llama
from surogate.models.layers import DECODER, FULL, IGNORED, REFUSED, Linear, RMSNorm


@block
class Block(llama.Block):
    pass


@hf_mapping(token_norm="enorm", hidden_norm="hnorm", join="eh_proj", norm="shared_head.norm")
@module
class NextToken(Module):
    """Hidden states that predict the token after the next, from the last block's output and the next token's embedding."""

    def __init__(self) -> None:
        self.token_norm, self.hidden_norm, self.norm = RMSNorm("C"), RMSNorm("C"), RMSNorm("C")
        self.join = Linear("C", "2 * C")
        self.block = Block()

    @forward
    def forward(self, hidden: Tensor["B", "T", "C"], token: Tensor["B", "T", "C"], rope: Any, positions: Any, doc_start: Any) -> Any:
        with graph() as g:
            both = g.concat(self.token_norm(token), self.hidden_norm(hidden), dim=-1, name="both")
            return self.norm(self.block(self.join(both), rope, positions, doc_start))


@hf_config("LlamaMTPForCausalLM", require={**FULL, "mtp_layers == 1": "num_nextn_predict_layers: one module is there"}, ignored=IGNORED,
           refused=REFUSED, mtp_layers=Size("num_nextn_predict_layers", "1"), **DECODER)
@model
class LlamaMTP(llama.Llama):
    mtp_weight = 0.3

    def __init__(self) -> None:
        super().__init__()
        self.mtp = NextToken()

    @forward
    def forward(self, tokens: Tensor["B", "T", "i32"], positions: Any, doc_start: Any, labels: Any, hyper: Any) -> dict[str, Any]:
        with graph() as g:
            def next_of(x: Any, name: str) -> Any:  # id of the token after each; 0 after a row's last token
                return g.slice(g.pad(x, dim=1, after=1, name=f"{name}.longer"), dim=1, begin=1, size="T", name=name)

            rope = self.rope(g)
            last = self.blocks(self.embed(tokens), rope, positions, doc_start)
            hidden = self.norm(last)
            logits = self.head(hidden, name="logits")
            token = self.embed(next_of(tokens, "next.tokens"), name="next.embed")
            after = self.head(self.mtp(last, token, rope, positions, doc_start), name="mtp.logits")

            start = g.add(g.cast(doc_start, dtype="f32", name="start"), g.full(size=1, name="one"), name="start.from_1")
            is_same = g.eq(start, next_of(start, "next.start"), name="same")  # the next token is of the same document
            losses = g.cross_entropy(logits, labels, name="losses")
            mtp = g.mul(g.cross_entropy(after, next_of(labels, "next.labels"), name="mtp.losses"), is_same, name="mtp.tokens")
            mtp = g.loss_sum(mtp, hyper, name="mtp")
            cross = g.loss_sum(losses, hyper, name="cross")
            loss = g.add(cross, g.scale(mtp, by=self.mtp_weight, name="mtp.part"), name="loss")
            return {"hidden": hidden, "logits": logits, "losses": losses, "loss": loss, "cross": cross, "mtp": mtp}
