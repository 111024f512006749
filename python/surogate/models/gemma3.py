"""Gemma-3's text model: Gemma-2 with a norm of each query and key head, no caps, and separate rotary angles in layers with a window."""

from typing import Any

from surogate.dsl import Choice, Number, block, hf_config, model, module
from surogate.models import gemma2
from surogate.models.layers import IGNORED, KINDS, LINEAR, REFUSED, changed, rope_table

PLACES = ("rope_scaling.", "rope_parameters.full_attention.")
CONFIG = changed(
    gemma2.CONFIG, "near",
    score_cap=Number("attn_logit_softcapping", "0", min=0),
    logit_cap=Number("final_logit_softcapping", "0", min=0),
    theta=Number([*(place + "rope_theta" for place in PLACES), "rope_theta"], "1000000", min=1),
    near_theta=Number(["rope_parameters.sliding_attention.rope_theta", "rope_local_base_freq"], "10000", min=1),
    rope_kind=Choice([place + key for place in PLACES for key in ("rope_type", "type")], "0", choices={"default": 0, "linear": LINEAR}),
    near_stretched=Choice("rope_parameters.sliding_attention.rope_type", "0", choices={"default": 0}),
    rope_factor=Number([place + "factor" for place in PLACES], "1", needed_if="rope_kind", min=1),
    pattern=Number("sliding_window_pattern", "6", min=1, integer=True),
    near=Choice("layer_types", "(i + 1) % pattern != 0", per="L", choices=KINDS),
)
REQUIRE = gemma2.REQUIRE_GEMMA | {"score_cap == 0": "attn_logit_softcapping isn't supported: transformers leaves it out"}


@module
class Attention(gemma2.Attention):
    norm = gemma2.RMSNorm


@block
class Block(gemma2.Block):
    attention = Attention

    def rope(self, g: Any, rope: Any, near_rope: Any) -> Any:
        return g.select("near[i]", lambda: near_rope, lambda: rope, name="rope")


@hf_config("Gemma3ForCausalLM", require=REQUIRE, ignored=(*IGNORED, "_sliding_window_pattern"), refused=REFUSED, **CONFIG)
@model
class Gemma3(gemma2.Gemma2):
    def ropes(self, g: Any) -> tuple[Any, Any]:
        return rope_table(g), g.rope_table(len="P", head_dim="D", theta="near_theta", name="near")
