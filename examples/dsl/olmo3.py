"""OLMo-3: OLMo-2 with windows in three of four layers. Only layers without a window scale angles for longer sequences (as with YaRN)."""

from typing import Any

from surogate.dsl import Choice, Number, Tensor, block, forward, graph, hf_config, model, module
from surogate.models import llama, olmo2
from surogate.models.layers import FULL, IGNORED, KINDS, REFUSED, WINDOW_4096, WINDOWED, changed, rope_of, rope_table

NEAR = "rope_parameters.sliding_attention."
CONFIG = changed(
    WINDOWED, "near",
    **rope_of("full_attention", theta="500000"),
    eps=Number("rms_norm_eps", "1e-5", min=0),
    near_theta=Number([NEAR + "rope_theta", "rope_theta"], "500000", min=1),
    near_stretched=Choice(NEAR + "rope_type", "0", choices={"default": 0}),
    window=WINDOW_4096,
    near=Choice("layer_types", "(i + 1) % 4 != 0", per="L", choices=KINDS),
)


@module
class Attention(olmo2.Attention):
    more = {"window": "near[i] ? window : 0"}


@block
class Block(olmo2.Block):
    attention = Attention

    @forward
    def forward(self, x: Tensor["B", "T", "C"], rope: Any, near_rope: Any, positions: Any, doc_start: Any) -> Tensor["B", "T", "C"]:
        with graph() as g:
            rope = g.select("near[i]", lambda: near_rope, lambda: rope, name="rope")
            x = g.add(x, self.norm1(self.attn(x, rope, positions, doc_start)), name="res1")
            return g.add(x, self.norm2(self.mlp(x)), name="res2")


@hf_config("Olmo3ForCausalLM", require=FULL, ignored=IGNORED, refused=REFUSED, **CONFIG)
@model
class Olmo3(llama.Llama):
    @forward
    def forward(self, tokens: Tensor["B", "T", "i32"], positions: Any, doc_start: Any) -> dict[str, Any]:
        with graph() as g:
            near_rope = g.rope_table(len="P", head_dim="D", theta="near_theta", name="near")
            hidden = self.norm(self.blocks(self.embed(tokens), rope_table(g), near_rope, positions, doc_start))
            return {"hidden": hidden, "logits": self.head(hidden, name="logits")}
