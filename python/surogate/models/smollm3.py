"""SmolLM3: Llama in which every fourth layer has no rotary positions; those layers may attend a window."""

from typing import Any

from surogate.dsl import Choice, Flag, Number, block, hf_config, model, module
from surogate.models import llama
from surogate.models.layers import IGNORED, KINDS, REFUSED, REQUIRE, WINDOWED, changed, heads, rope_theta

CONFIG = changed(
    WINDOWED, "near",
    G=heads("4"),
    tied=Flag("tie_word_embeddings", "1"),
    theta=rope_theta("2000000"),
    rope_interval=Number("no_rope_layer_interval", "4", min=1, integer=True),
    has_rope=Flag("no_rope_layers", "(i + 1) % rope_interval != 0", per="L"),
    near=Choice("layer_types", "use_window && !has_rope[i]", per="L", choices=KINDS),
)


@module
class Attention(llama.Attention):
    more = {"window": "near[i] ? window : 0"}

    def turned(self, g: Any, x: Any, rope: Any, positions: Any, name: str) -> Any:
        return g.select("has_rope[i]", lambda: g.rope(x, rope, positions, name=name + "d", part="qkv"), lambda: x, name=name)


@block
class Block(llama.Block):
    attention = Attention


@hf_config("SmolLM3ForCausalLM", require=REQUIRE, ignored=IGNORED, refused=REFUSED, **CONFIG)
@model
class SmolLM3(llama.Llama):
    pass
