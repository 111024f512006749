"""Gemma: Llama with norms that multiply by 1 + weight, a GELU gate, and embeddings multiplied by the square root of their size."""

from typing import Any

from surogate.dsl import Choice, Flag, Size, Tensor, block, forward, graph, hf_config, model
from surogate.models import gemma2, llama
from surogate.models.layers import DECODER, FULL, IGNORED, REFUSED, changed, heads

CONFIG = changed(
    DECODER,
    G=heads("16"),
    D=Size("head_dim", "256", most=65536),
    tied=Flag("tie_word_embeddings", "1"),
    activation=Choice("hidden_act", "0", choices={"gelu_pytorch_tanh": 0, "gelu": 0}),  # in Gemma "gelu" means gelu_pytorch_tanh too
    both_ways=Flag("use_bidirectional_attention", "0"),
)
REQUIRE_GEMMA = FULL | {"both_ways == 0": "use_bidirectional_attention isn't supported"}


@block
class Block(llama.Block):
    feed_forward, norm = gemma2.MLP, gemma2.RMSNorm


@hf_config("GemmaForCausalLM", require=REQUIRE_GEMMA, ignored=(*IGNORED, "hidden_activation"), refused=REFUSED, **CONFIG)
@model
class Gemma(llama.Llama):
    last_norm = gemma2.RMSNorm

    @forward
    def forward(self, tokens: Tensor["B", "T", "i32"], positions: Any, doc_start: Any) -> dict[str, Any]:
        with graph() as g:
            x = g.scale(self.embed(tokens), by="bf16 ? round_bf16(sqrt(C)) : sqrt(C)", name="x0")  # rounded as the weights
            hidden = self.norm(self.blocks(x, self.rope(g), positions, doc_start))
            return {"hidden": hidden, "logits": self.head(hidden, name="logits")}
