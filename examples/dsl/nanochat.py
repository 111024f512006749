"""nanochat: norms without weights, heads that are rotated in the opposite direction and then normed, squared ReLU, capped logits."""

from typing import Any

from surogate.dsl import Key, Module, Tensor, block, forward, graph, hf_config, hf_mapping, model, module, recompute
from surogate.models import llama
from surogate.models.layers import DECODER, FULL, IGNORED, REFUSED, Linear, changed

CONFIG = changed(DECODER, activation=Key("hidden_act", "0", choices={"relu2": 0}), cap=Key("final_logit_softcapping", "15", above=0))


@module
class Norm(Module):
    """y = x / rms(x)"""

    def __init__(self, size: str) -> None:
        self.size = size

    @recompute("norm")
    @forward
    def forward(self, x: Tensor["...", "size"]) -> Tensor["...", "size"]:
        with graph() as g:
            return g.rms_norm(x, g.full(size=self.size, name="ones"), eps="eps")


@module
class Attention(llama.Attention):
    qkv_bias = o_bias = "attention_bias"
    norm = Norm

    @forward
    def forward(self, x: Tensor["B", "T", "C"], rope: Any, positions: Any, doc_start: Any) -> Tensor["B", "T", "C"]:
        with graph() as g:
            q = g.reshape(self.q(x, part="qkv"), "B", "T", "H", "D", name="q.heads", part="qkv")
            k = g.reshape(self.k(x, part="qkv"), "B", "T", "G", "D", name="k.heads", part="qkv")
            v = g.reshape(self.v(x, part="qkv"), "B", "T", "G", "D", name="v.heads", part="qkv")
            q = self.q_norm(g.rope(q, rope, positions, inverse=True, name="q.rope", part="qkv"))
            k = self.k_norm(g.rope(k, rope, positions, inverse=True, name="k.rope", part="qkv"))
            y = g.attention(q, k, v, doc_start, num_heads="H", num_kv_heads="G", head_dim="D", name="heads", part="att")
            return self.o(g.reshape(y, "B", "T", "H * D", name="out", part="att"))


@hf_mapping(up="fc1", down="fc2")
@module
class MLP(Module):
    def __init__(self) -> None:
        self.up, self.down = Linear("F", "C"), Linear("C", "F")

    @forward
    def forward(self, x: Tensor["B", "T", "C"]) -> Tensor["B", "T", "C"]:
        with graph() as g:
            return self.down(g.relu(self.up(x, part="ffn"), squared=True, name="act", part="swiglu"))


@block
class Block(llama.Block):
    attention, feed_forward, norm = Attention, MLP, Norm


@hf_config("NanoChatForCausalLM", require=changed(FULL, "attention_bias == 0"), ignored=IGNORED, refused=REFUSED, **CONFIG)
@model
class NanoChat(llama.Llama):
    last_norm = Norm

    def __init__(self) -> None:
        super().__init__()
        self.first_norm = Norm("C")

    @forward
    def forward(self, tokens: Tensor["B", "T", "i32"], positions: Any, doc_start: Any) -> dict[str, Any]:
        with graph() as g:
            x = self.blocks(self.first_norm(self.embed(tokens)), self.rope(g), positions, doc_start)
            return {"logits": g.softcap(self.head(self.norm(x)), cap="cap", name="logits")}
