"""GPT-J: attention and MLP read one layer norm, in parallel; adjacent elements of a part of each head are rotated in pairs."""

from typing import Any

import phi
from surogate.dsl import Array, Key, Module, Number, Tensor, block, forward, graph, hf_config, hf_mapping, model, module, tied_to
from surogate.models import gpt2, llama
from surogate.models.layers import IGNORED, REFUSED, Embedding, LayerNorm, Linear, changed

CONFIG = changed(
    gpt2.CONFIG, "scaled", "scaled_by_layer", "cross_attention",
    G=Key(None, "H"),
    R=Number("rotary_dim", "64", null="0", min=0, integer=True),
    tied=Key("tie_word_embeddings", "0"),
)
REQUIRE = {"C % H == 0": "n_embd must be a multiple of n_head", "R > 0 && R % 2 == 0 && R <= D": "rotary_dim must be an even part of a head's elements"}


@hf_mapping(o="out_proj")
@module
class Attention(llama.Attention):
    def turned(self, g: Any, x: Any, rope: Any, positions: Any, name: str) -> Any:
        return g.rope(x, rope, positions, interleaved=True, name=name, part="qkv")


@hf_mapping(up="fc_in", down="fc_out")
@module
class MLP(phi.MLP):
    pass


@hf_mapping(norm="ln_1", attn="attn")
@block
class Block(phi.Block):
    attention, feed_forward = Attention, MLP


@hf_mapping.indexed("blocks", "transformer.h.{i}")
@hf_mapping(embed="transformer.wte", norm="transformer.ln_f", head="lm_head")
@hf_config("GPTJForCausalLM", require=REQUIRE, ignored=(*IGNORED, *gpt2.IGNORED_GPT2, "rotary", "scale_attn_weights"), refused=REFUSED,
           unread=(".attn.bias", ".attn.masked_bias"), **CONFIG)
@tied_to("head.weight", "embed.weight", when="tied")
@model
class GPTJ(Module):
    blocks = Array["L", "Block"]

    def __init__(self) -> None:
        self.embed, self.norm, self.head = Embedding(), LayerNorm("C"), Linear("V", "C", True, head=True)

    @forward
    def forward(self, tokens: Tensor["B", "T", "i32"], positions: Any, doc_start: Any) -> dict[str, Any]:
        with graph() as g:
            rope = g.rope_table(len="P", head_dim="R", theta=10000.0, name="rope")
            hidden = self.norm(self.blocks(self.embed(tokens), rope, positions, doc_start))
            return {"hidden": hidden, "logits": self.head(hidden, name="logits")}
