"""EXAONE 4: norms after attention and MLP and on each head; if the model has windows, only layers with a window have rotary positions."""

from typing import Any

from surogate.dsl import Key, block, hf_config, model, module
from surogate.models import llama, olmo2
from surogate.models.layers import DECODER, IGNORED, KINDS, REFUSED, REQUIRE, WINDOW, RMSNorm, changed

CONFIG = changed(
    DECODER, "windows",
    window=WINDOW,
    pattern=Key("sliding_window_pattern", "4", integer=True),
    near=Key("layer_types", "window > 0 && (i + 1) % pattern != 0", per="L", choices=KINDS),
)


@module
class Attention(llama.Attention):
    norm = RMSNorm
    more = {"window": "near[i] ? window : 0"}

    def turned(self, g: Any, x: Any, rope: Any, positions: Any, name: str) -> Any:
        return g.select("near[i] || window == 0", lambda: g.rope(x, rope, positions, name=name + "d", part="qkv"), lambda: x, name=name)


@block
class Block(olmo2.Block):
    attention = Attention


@hf_config("Exaone4ForCausalLM", require=REQUIRE, ignored=IGNORED, refused=REFUSED, **CONFIG)
@model
class Exaone4(llama.Llama):
    pass
