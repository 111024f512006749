"""What the shipped decoders share: layers, keys of config.json, what isn't supported."""

from typing import Any

from surogate.dsl import Key, Module, Param, Size, Tensor, forward, graph, module, normal, recompute


@module
class Linear(Module):
    """y = x weight^T + bias"""

    weight = Param(Tensor["out", "inner"], linear=True, init=normal("init_std"), head="is_head")
    bias = Param(Tensor["out"], init="zeros", decay=False, when="has_bias")

    def __init__(self, out: str, inner: str, bias: bool = False, head: bool = False) -> None:
        self.out, self.inner, self.has_bias, self.is_head = out, inner, bias, head

    @forward
    def forward(self, x: Tensor["...", "inner"]) -> Tensor["...", "out"]:
        with graph() as g:
            return g.linear(x, self.weight, self.bias)


@module
class RMSNorm(Module):
    """y = x / rms(x) * weight"""

    weight = Param(Tensor["size"], init="ones", decay=False)
    more: dict[str, Any] = {}

    def __init__(self, size: str) -> None:
        self.size = size

    @recompute("norm")
    @forward
    def forward(self, x: Tensor["...", "size"]) -> Tensor["...", "size"]:
        with graph() as g:
            return g.rms_norm(x, self.weight, eps="eps", **self.more)


@module
class LayerNorm(Module):
    """y = (x - mean(x)) / deviation(x) * weight + bias"""

    weight = Param(Tensor["size"], init="ones", decay=False)
    bias = Param(Tensor["size"], init="zeros", decay=False)

    def __init__(self, size: str) -> None:
        self.size = size

    @recompute("norm")
    @forward
    def forward(self, x: Tensor["...", "size"]) -> Tensor["...", "size"]:
        with graph() as g:
            return g.layer_norm(x, self.weight, self.bias, eps="eps")


@module
class Embedding(Module):
    """Row `token` of the weight."""

    weight = Param(Tensor["rows", "C"], init=normal("init_std"))

    def __init__(self, rows: str = "V") -> None:
        self.rows = rows

    @forward
    def forward(self, tokens: Tensor["B", "T", "i32"]) -> Tensor["B", "T", "C"]:
        with graph() as g:
            return g.embedding(tokens, self.weight)


def changed(config: dict[str, Key], *without: str, **keys: Key) -> dict[str, Key]:
    """Other keys of config.json: some left out, some new or in place of others."""
    return {name: key for name, key in config.items() if name not in (*without, *keys)} | keys


def rope_key(name: str, default: str, **limits: Any) -> Key:
    return Key([f"{place}.{name}" for place in ("rope_parameters", "rope_scaling")], default, **limits)


ATTENTION_DROPOUT = Key("attention_dropout", "0", unused="attention is trained without dropout")

DECODER: dict[str, Key] = {
    "V": Size("vocab_size"),
    "C": Size("hidden_size"),
    "F": Size("intermediate_size"),
    "L": Size("num_hidden_layers", most=10000),
    "H": Size("num_attention_heads", most=65536),
    "G": Size("num_key_value_heads", "H", most=65536),
    "D": Size("head_dim", "C / H", most=65536),
    "max_positions": Size("max_position_embeddings", "1073741824", most=1 << 30),
    "eps": Key("rms_norm_eps", "1e-6", min=0),
    "init_std": Key("initializer_range", "0.02", min=0),
    "tied": Key("tie_word_embeddings", "0"),
    "activation": Key("hidden_act", "0", choices={"silu": 0, "swish": 0}),
    "theta": Key(["rope_parameters.rope_theta", "rope_theta"], "10000", min=1),
    "llama3_rope": Key([f"{place}.{name}" for place in ("rope_parameters", "rope_scaling") for name in ("rope_type", "type")], "0",
                       choices={"default": 0, "llama3": 1}),
    "rope_factor": rope_key("factor", "1", needed_if="llama3_rope", min=1),
    "rope_low": rope_key("low_freq_factor", "1", needed_if="llama3_rope", min=0),
    "rope_high": rope_key("high_freq_factor", "4", needed_if="llama3_rope", min=0),
    "rope_original": rope_key("original_max_position_embeddings", "8192", needed_if="llama3_rope", min=1),
    "rotary_share": Key(["rope_parameters.partial_rotary_factor", "partial_rotary_factor"], "1"),
    "windows": Key("layer_types", "0", choices={"full_attention": 0}),
    "use_window": Key("use_sliding_window", "0"),
    "attention_bias": Key("attention_bias", "0"),
    "mlp_bias": Key("mlp_bias", "0"),
    "attention_dropout": ATTENTION_DROPOUT,
}

KINDS = {"full_attention": 0, "sliding_attention": 1}

# The same, where layers may attend a window: those from max_window_layers on, or which layer_types names.
WINDOW = Key("sliding_window", "0", min=0, integer=True)
WINDOWED = changed(DECODER, "windows", window=WINDOW, full_layers=Key("max_window_layers", "L"),
                   near=Key("layer_types", "i >= full_layers", per="L", choices=KINDS))

REQUIRE = {
    "D % 2 == 0": "head_dim must be even for rotary embedding",
    "H % G == 0": "num_attention_heads must be a multiple of num_key_value_heads",
    "rotary_share == 1": "partial rotary embedding isn't supported",
    "mlp_bias == 0": "biases in the MLP aren't supported",
    "attention_bias == 0": "attention_bias isn't supported",
}

FULL = REQUIRE | {"use_window == 0": "sliding window attention isn't supported"}

# Keys of config.json that change nothing here, and parts of names of keys that would if they were set.
IGNORED = ("architectures", "model_type", "torch_dtype", "dtype", "transformers_version", "bos_token_id", "eos_token_id",
           "pad_token_id", "use_cache", "pretraining_tp", "_name_or_path", "auto_map", "id2label",
           "label2id", "max_window_layers", "sliding_window", "unsloth_version", "unsloth_fixed", "tokenizer_class",
           "return_dict", "output_attentions", "output_hidden_states", "is_encoder_decoder", "chunk_size_feed_forward",
           "problem_type", "finetuning_task", "task_specific_params")
REFUSED = ("window", "bias", "rope", "rotary", "scal", "expert", "moe", "quant", "softcap", "multiplier", "layer_types",
           "alibi", "parallel", "activation", "norm_type", "qk_norm", "use_qk", "clip_qkv", "logit")
