"""Code shared by the shipped decoders: layers, keys of config.json, unsupported settings."""

from typing import Any, TypeVar

from surogate.dsl import Choice, Flag, Key, Module, Number, Param, Size, Tensor, each, forward, graph, module, normal, recompute


@module
class Linear(Module):
    """y = x weight^T + bias"""

    weight = Param(Tensor["out", "inner"], linear=True, init=normal("init_std"), head="is_head", matrices="matrices")
    bias = Param(Tensor["out"], init="zeros", decay=False, when="has_bias")
    matrices: tuple[str, ...] = ()

    def __init__(self, out: str, inner: str, bias: bool = False, head: bool = False, matrices: tuple[str, ...] = ()) -> None:
        self.out, self.inner, self.has_bias, self.is_head, self.matrices = out, inner, bias, head, matrices

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
    """Rows of the weight, one per token."""

    weight = Param(Tensor["rows", "C"], init=normal("init_std"))

    def __init__(self, rows: str = "V") -> None:
        self.rows = rows

    @forward
    def forward(self, tokens: Tensor["B", "T", "i32"]) -> Tensor["B", "T", "C"]:
        with graph() as g:
            return g.embedding(tokens, self.weight)


V = TypeVar("V")


def changed(config: dict[str, V], *without: str, **keys: V) -> dict[str, V]:
    """A copy of keys of config.json, or of rules: some left out, some replaced, new ones at the end."""
    return {name: keys.get(name, key) for name, key in config.items() if name not in without} | keys


def rope_key(name: str, default: str, *above: str, **limits: Any) -> Key:
    """above: keys that win over this one."""
    kind = Flag if name == "truncate" else Number
    return kind([*above, *(f"{place}.{name}" for place in ("rope_parameters", "rope_scaling"))], default, **limits)


def rope_kind(**choices: int) -> Key:
    return Choice([f"{place}.{name}" for place in ("rope_parameters", "rope_scaling") for name in ("rope_type", "type")], "0", choices=choices)


def rope_theta(default: str) -> Key:
    return Number([f"{place}rope_theta" for place in ("rope_parameters.", "rope_scaling.", "")], default, min=1)


# How rotary angles are scaled. DYNAMIC concerns sequences beyond max_position_embeddings, which don't occur here.
LLAMA3, LINEAR, DYNAMIC, YARN, LONGROPE = range(1, 6)
TAU = "6.283185307179586"


def turns_so_often(place: str, turns: str) -> str:
    """`place` with {0} replaced by the index of the pair that makes `turns` full turns within the original length; 0 without yarn."""
    return "yarn ? " + place.format(f"R * log(rope_original / ({turns} * {TAU})) / (2 * log(theta))") + " : 0"


ATTENTION_DROPOUT = Number("attention_dropout", "0", unused="attention is trained without dropout")

DECODER: dict[str, Key] = {
    "V": Size("vocab_size"),
    "C": Size("hidden_size"),
    "F": Size("intermediate_size"),
    "L": Size("num_hidden_layers", most=10000),
    "H": Size("num_attention_heads", most=65536),
    "G": Size("num_key_value_heads", "H", most=65536),
    "D": Size("head_dim", "C / H", most=65536),
    "rope_kind": rope_kind(default=0, llama3=LLAMA3, linear=LINEAR, dynamic=DYNAMIC, yarn=YARN, longrope=LONGROPE),
    "llama3": Key(None, f"rope_kind == {LLAMA3}"),
    "dynamic": Key(None, f"rope_kind == {DYNAMIC}"),
    "yarn": Key(None, f"rope_kind == {YARN}"),
    "longrope": Key(None, f"rope_kind == {LONGROPE}"),
    "max_positions": Number("max_position_embeddings", "1073741824", needed_if="dynamic || yarn || longrope", min=1, max=1 << 30, integer=True),
    "eps": Number("rms_norm_eps", "1e-6", min=0),
    "init_std": Number("initializer_range", "0.02", min=0),
    "tied": Flag("tie_word_embeddings", "0"),
    "activation": Choice("hidden_act", "0", choices={"silu": 0, "swish": 0}),
    "theta": rope_theta("10000"),
    "rotary_share": Number(["rope_parameters.partial_rotary_factor", "rope_scaling.partial_rotary_factor", "partial_rotary_factor"], "1",
                        above=0, max=1),
    "R": Key(None, "floor(D * rotary_share)"),  # rotated elements of a head
    "rope_original": rope_key("original_max_position_embeddings", "yarn ? max_positions : 8192",
                              "original_max_position_embeddings", needed_if="llama3 || longrope", min=1, integer=True),
    "rope_factor": rope_key("factor", "longrope ? max(1, max_positions / rope_original) : 1",
                            needed_if="rope_kind && !longrope", min=1),
    "rope_low": rope_key("low_freq_factor", "1", needed_if="llama3", min=0),
    "rope_high": rope_key("high_freq_factor", "4", needed_if="llama3", min=0),
    "rope_fast": rope_key("beta_fast", "32", min=0),
    "rope_slow": rope_key("beta_slow", "1", min=0),
    "rope_whole": rope_key("truncate", "1"),
    "mscale": rope_key("mscale", "0"),
    "mscale_all": rope_key("mscale_all_dim", "0"),
    "rope_first": Key(None, turns_so_often("max(0, rope_whole ? floor({0}) : {0})", "(rope_fast ? rope_fast : 32)")),
    "rope_last": Key(None, turns_so_often("min(R - 1, rope_whole ? ceil({0}) : {0})", "(rope_slow ? rope_slow : 1)")),
    "rope_plain": Key(None, "pow(theta, -2 * i / R)", per="floor(R / 2)"),  # frequency of pair i without scaling
    # The share of its frequency that pair i keeps; the rest is divided by rope_factor. llama3: depends on the turns of the pair within the
    # original length; yarn: on i.
    "rope_keep": Key(None, f"min(1, max(0, llama3 ? (rope_original * rope_plain[i] / {TAU} - rope_low) / (rope_high - rope_low)"
                     " : yarn ? 1 - (i - rope_first) / (rope_last == rope_first ? 0.001 : rope_last - rope_first) : 0))", per="floor(R / 2)"),
    "rope_short": rope_key("short_factor", "1", needed_if="longrope", per="floor(R / 2)", above=0),
    "rope_long": rope_key("long_factor", "1", needed_if="longrope", per="floor(R / 2)", above=0),
    "rope_scale": rope_key("attention_factor",
                           "yarn ? mscale && mscale_all ? (0.1 * mscale * log(rope_factor) + 1) /"
                           " (0.1 * mscale_all * log(rope_factor) + 1) : 0.1 * log(rope_factor) + 1"
                           " : longrope && rope_factor > 1 ? sqrt(1 + log(rope_factor) / log(rope_original)) : 1", above=0),
    "windows": Choice("layer_types", "0", per="L", choices={"full_attention": 0}),
    "use_window": Flag("use_sliding_window", "0"),
    "attention_bias": Flag("attention_bias", "0"),
    "mlp_bias": Flag("mlp_bias", "0"),
    "attention_dropout": ATTENTION_DROPOUT,
}


def rope_table(g: Any, size: str = "D") -> Any:
    """The table of rotary positions for `size` elements of a head: R, or D if all are rotated."""
    scaled = ("longrope ? rope_plain[i] / (reach > rope_original ? rope_long[i] : rope_short[i])"
              " : (1 - rope_keep[i]) * rope_plain[i] / rope_factor + rope_keep[i] * rope_plain[i]")
    return g.rope_table(len="P", head_dim=size, theta="theta", scale="yarn || longrope ? rope_scale : 1",
                        frequencies=each("rope_kind && !dynamic ? R / 2 : 0", scaled))


def rope_of(layers: str, theta: str) -> dict[str, Key]:
    """DECODER's keys of rotary positions for layers of one kind, if rope_parameters has an object for each kind; theta: its default."""
    def of(name: str) -> str:
        return name.replace("rope_parameters.", f"rope_parameters.{layers}.")

    keys = {symbol: dict(key.entry) for symbol, key in DECODER.items() if "rope_parameters." in str(key.entry.get("key"))}
    keys["theta"]["default"] = theta
    return {symbol: Key([of(name) for name in entry.pop("key")], **entry) for symbol, entry in keys.items()}


def heads(default: str, null: str = "H") -> Key:
    """Number of key/value heads, for configs whose default differs from the number of query heads."""
    return Number("num_key_value_heads", default, null=null, min=1, max=65536, integer=True)


KINDS = {"full_attention": 0, "sliding_attention": 1}

# Keys for models whose layers may attend a window: layers from max_window_layers on, or those that layer_types names.
WINDOW = Number("sliding_window", "0", min=0, integer=True)
WINDOW_4096 = Number("sliding_window", "4096", null="0", min=0, integer=True)
WINDOWED = changed(DECODER, "windows", window=WINDOW, full_layers=Number("max_window_layers", "L", integer=True),
                   near=Choice("layer_types", "i >= full_layers", per="L", choices=KINDS))

ROPE = {"!llama3 || rope_high > rope_low": "high_freq_factor must be greater than low_freq_factor"}
REQUIRE = {
    "D % 2 == 0": "head_dim must be even for rotary embedding",
    "H % G == 0": "num_attention_heads must be a multiple of num_key_value_heads",
    **ROPE,
    "rotary_share == 1": "partial rotary embedding isn't supported",
    "mlp_bias == 0": "biases in the MLP aren't supported",
    "attention_bias == 0": "attention_bias isn't supported",
}

FULL = REQUIRE | {"use_window == 0": "sliding window attention isn't supported"}

# IGNORED: keys of config.json that change nothing here. REFUSED: any other unknown key that is set is an error if its name contains one of
# these texts, because it may change the computation.
IGNORED = ("architectures", "model_type", "torch_dtype", "dtype", "transformers_version", "bos_token_id", "eos_token_id",
           "pad_token_id", "use_cache", "pretraining_tp", "_name_or_path", "auto_map", "id2label",
           "label2id", "max_window_layers", "sliding_window", "unsloth_version", "unsloth_fixed", "tokenizer_class",
           "return_dict", "output_attentions", "output_hidden_states", "is_encoder_decoder", "chunk_size_feed_forward",
           "problem_type", "finetuning_task", "task_specific_params")
REFUSED = ("window", "bias", "rope", "rotary", "scal", "expert", "moe", "quant", "softcap", "multiplier", "layer_types",
           "alibi", "parallel", "activation", "norm_type", "qk_norm", "use_qk", "clip_qkv", "logit")
