"""Granite: Llama whose embedding, scores, residual branches and logits are multiplied by numbers of the config."""

from typing import Any

from surogate.dsl import Key, Tensor, block, forward, graph, hf_config, model, module
from surogate.models import llama
from surogate.models.layers import DECODER, FULL, IGNORED, REFUSED, changed

CONFIG = changed(
    DECODER,
    embedding_multiplier=Key("embedding_multiplier", "1"),
    attention_multiplier=Key("attention_multiplier", "1"),
    residual_multiplier=Key("residual_multiplier", "1"),
    logits_scaling=Key("logits_scaling", "1"),
)
REQUIRE_GRANITE = changed(FULL, "attention_bias == 0", "mlp_bias == 0") | {"logits_scaling != 0": "logits_scaling must not be 0"}


@module
class Attention(llama.Attention):
    qkv_bias = o_bias = "attention_bias"
    more = {"scale": "attention_multiplier"}


@module
class MLP(llama.MLP):
    bias = "mlp_bias"


@block
class Block(llama.Block):
    attention, feed_forward = Attention, MLP

    @forward
    def forward(self, x: Tensor["B", "T", "C"], rope: Any, positions: Any, doc_start: Any) -> Tensor["B", "T", "C"]:
        with graph() as g:
            y = g.scale(self.attn(self.norm1(x), rope, positions, doc_start), by="residual_multiplier", name="y1")
            x = g.add(x, y, name="res1")
            return g.add(x, g.scale(self.mlp(self.norm2(x)), by="residual_multiplier", name="y2"), name="res2")


@hf_config("GraniteForCausalLM", require=REQUIRE_GRANITE, ignored=IGNORED, refused=REFUSED, **CONFIG)
@model
class Granite(llama.Llama):
    @forward
    def forward(self, tokens: Tensor["B", "T", "i32"], positions: Any, doc_start: Any) -> dict[str, Any]:
        with graph() as g:
            x = g.scale(self.embed(tokens), by="embedding_multiplier", name="x0")
            x = self.norm(self.blocks(x, self.rope(g), positions, doc_start))
            # Scales the head's input, not its output: head and loss then are one op, which never holds the whole logits.
            return {"logits": self.head(g.scale(x, by="1 / logits_scaling", name="scaled"), name="logits")}
