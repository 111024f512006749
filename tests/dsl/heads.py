"""A small language model with attention: grouped heads, a window in some layers, two halves of a gated MLP, a head that may be the embedding."""

from typing import Any

from surogate.dsl import (
    Array,
    Flag,
    Key,
    Module,
    Param,
    Size,
    Tensor,
    block,
    forward,
    graph,
    hf_config,
    hf_mapping,
    model,
    module,
    normal,
    tied_to,
)


@module
class Linear(Module):
    weight = Param(Tensor["out", "inner"], linear=True, init=normal(0.02))

    def __init__(self, out: str, inner: str) -> None:
        self.out, self.inner = out, inner

    @forward
    def forward(self, x: Tensor["...", "inner"]) -> Tensor["...", "out"]:
        with graph() as g:
            return g.linear(x, self.weight)


@module
class Attention(Module):
    q_norm = Param(Tensor["D"], init="ones")
    sinks = Param(Tensor["H"], init="zeros", when="sunk")

    def __init__(self) -> None:
        self.q, self.k, self.v = Linear("H * D", "C"), Linear("G * D", "C"), Linear("G * D", "C")
        self.o = Linear("C", "H * D")

    @forward
    def forward(self, x: Tensor["B", "T", "C"], table: Any, positions: Any, doc_start: Any) -> Tensor["B", "T", "C"]:
        with graph() as g:
            q = g.reshape(self.q(x), "B", "T", "H", "D", name="q.heads")
            k = g.reshape(self.k(x), "B", "T", "G", "D", name="k.heads")
            v = g.reshape(self.v(x), "B", "T", "G", "D", name="v.heads")
            q = g.rms_norm(q, self.q_norm, eps="eps", name="q.normed")
            q, k = g.rope(q, table, positions, name="q.rope"), g.rope(k, table, positions, name="k.rope")
            y = g.attention(q, k, v, doc_start, self.sinks, num_heads="H", num_kv_heads="G", head_dim="D", window="near[i] ? W : 0", name="y")
            return self.o(g.reshape(y, "B", "T", "H * D", name="y.flat"))


@module
class Mlp(Module):
    def __init__(self) -> None:
        self.gate, self.up, self.down = Linear("F", "C"), Linear("F", "C"), Linear("C", "F")

    @forward
    def forward(self, x: Tensor["B", "T", "C"]) -> Tensor["B", "T", "C"]:
        with graph() as g:
            return self.down(g.swiglu(self.gate(x), self.up(x), name="act"))


@block
class Block(Module):
    norm = Param(Tensor["C"], init="ones")

    def __init__(self) -> None:
        self.attn = Attention()
        self.mlp = Mlp()
        self.wide = Linear("C", "C")

    @forward
    def forward(self, x: Tensor["B", "T", "C"], table: Any, positions: Any, doc_start: Any) -> Tensor["B", "T", "C"]:
        with graph() as g:
            h = g.rms_norm(x, self.norm, eps="eps", name="normed")
            x = g.add(x, self.attn(h, table, positions, doc_start), name="attended")
            y = g.select("near[i]", lambda: self.mlp(x), lambda: self.wide(x), name="part")
            return g.add(x, y, name="sum")


@tied_to("lm_head.weight", "embed", when="tied")
@hf_mapping.indexed("blocks", "model.layers.{i}")
@hf_mapping(embed="model.embed_tokens.weight")
@hf_config("HeadsForCausalLM", V=Size("vocab_size"), C=Size("hidden_size"), F=Size("intermediate_size"), L=Size("num_hidden_layers"), H=Size("num_attention_heads"),
           G=Size("num_key_value_heads"), D=Key(None, "C / H"), W=Size("sliding_window", 8), eps=Key("rms_norm_eps", "1e-6", min=0),
           near=Key("layer_types", "i % 2", per="L", choices={"near": 1, "far": 0}), sunk=Flag("sinks", 0), tied=Flag("tie_word_embeddings", 0),
           require={"C % H == 0": "hidden_size isn't a multiple of num_attention_heads"})
@model
class Heads(Module):
    embed = Param(Tensor["V", "C"], init=normal(0.02))
    norm = Param(Tensor["C"], init="ones")
    blocks = Array["L", "Block"]

    def __init__(self) -> None:
        self.lm_head = Linear("V", "C")

    @forward
    def forward(self, tokens: Tensor["B", "T", "i32"], positions: Any, doc_start: Any) -> dict[str, Any]:
        with graph() as g:
            table = g.rope_table(len="P", head_dim="D", name="table")
            x = self.blocks(g.embedding(tokens, self.embed, name="x0"), table, positions, doc_start)
            hidden = g.rms_norm(x, self.norm, eps="eps", name="hidden")
            return {"logits": self.lm_head(hidden, name="logits"), "hidden": hidden}
