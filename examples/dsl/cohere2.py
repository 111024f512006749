"""Command-R7B: as Command-R, with windows in three of four layers; the fourth attends all earlier tokens, without rotary positions."""

from typing import Any

from cohere import CONFIG, REQUIRE_COHERE, Attention as Whole, Block as WholeBlock, Cohere
from surogate.dsl import Key, block, hf_config, model, module
from surogate.models.layers import IGNORED, KINDS, REFUSED, WINDOW_4096, changed

WINDOWED = changed(
    CONFIG, "windows", "qk_norm",
    window=WINDOW_4096,
    pattern=Key("sliding_window_pattern", "4", integer=True),
    near=Key("layer_types", "(i + 1) % pattern != 0", per="L", choices=KINDS),
)


@module
class Attention(Whole):
    more = {"window": "near[i] ? window : 0"}

    def turned(self, g: Any, x: Any, rope: Any, positions: Any, name: str) -> Any:
        return g.select("near[i]", lambda: g.rope(x, rope, positions, interleaved=True, name=name + "d", part="qkv"), lambda: x, name=name)


@block
class Block(WholeBlock):
    attention = Attention


@hf_config("Cohere2ForCausalLM", require=REQUIRE_COHERE, ignored=IGNORED, refused=REFUSED, **WINDOWED)
@model
class Cohere2(Cohere):
    pass
