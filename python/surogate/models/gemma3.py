"""Gemma-3's text model: Gemma-2 with a norm of each query and key head, no caps, and rotary angles of their own where there is a window."""

from typing import Any

from surogate.dsl import Key, block, hf_config, model, module
from surogate.models import gemma2
from surogate.models.layers import IGNORED, KINDS, REFUSED, changed

PLACES = ("rope_parameters.full_attention.", "rope_scaling.")
CONFIG = changed(
    gemma2.CONFIG,
    *("llama3_rope", "rope_low", "rope_high", "rope_original"),
    theta=Key(["rope_parameters.full_attention.rope_theta", "rope_theta"], "1000000", min=1),
    near_theta=Key(["rope_parameters.sliding_attention.rope_theta", "rope_local_base_freq"], "10000", min=1),
    stretched=Key([place + key for place in PLACES for key in ("rope_type", "type")], "0", choices={"default": 0, "linear": 1}),
    near_stretched=Key("rope_parameters.sliding_attention.rope_type", "0", choices={"default": 0}),
    rope_factor=Key([place + "factor" for place in PLACES], "1", needed_if="stretched", min=1),
    pattern=Key(["sliding_window_pattern", "_sliding_window_pattern"], "6", min=1, integer=True),
    near=Key("layer_types", "(i + 1) % pattern != 0", per="L", choices=KINDS),
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


@hf_config("Gemma3ForCausalLM", require=REQUIRE, ignored=IGNORED, refused=REFUSED, **CONFIG)
@model
class Gemma3(gemma2.Gemma2):
    def ropes(self, g: Any) -> tuple[Any, Any]:
        # All wavelengths are beyond low_freq, and so divided by the factor.
        far = g.rope_table(len="P", head_dim="D", theta="theta", factor="stretched ? rope_factor : 0", low_freq=1e12, high_freq=2e12, name="far")
        return far, g.rope_table(len="P", head_dim="D", theta="near_theta", name="near")
