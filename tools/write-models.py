#!/usr/bin/env python3
"""Writes models/*.json, the JSON IR of the shipped families (docs/ir.md). With --check: fails when a file differs."""
import json
import os
import sys

IGNORED = ["architectures", "model_type", "torch_dtype", "dtype", "transformers_version", "bos_token_id", "eos_token_id",
           "pad_token_id", "use_cache", "attention_dropout", "pretraining_tp", "_name_or_path", "auto_map", "id2label",
           "label2id", "max_window_layers", "sliding_window", "unsloth_version", "unsloth_fixed", "tokenizer_class",
           "return_dict", "output_attentions", "output_hidden_states", "is_encoder_decoder", "chunk_size_feed_forward",
           "problem_type", "finetuning_task", "task_specific_params"]
REFUSED = ["window", "bias", "rope", "rotary", "scal", "expert", "moe", "quant", "softcap", "multiplier", "layer_types",
           "alibi", "parallel", "activation", "norm_type", "qk_norm", "use_qk", "clip_qkv", "logit"]


def setting(symbol, key, default=None, **more):
    entry = {"symbol": symbol, "key": key}
    if default is not None:
        entry["default"] = default
    entry.update(more)
    return entry


def whole(symbol, key, default=None, most=1 << 24):
    return setting(symbol, key, default, min=1, max=most, integer=True)


def config():
    rope = ["rope_parameters.%s", "rope_scaling.%s"]
    return [
        whole("V", "vocab_size"), whole("C", "hidden_size"), whole("F", "intermediate_size"),
        whole("L", "num_hidden_layers", most=10000), whole("H", "num_attention_heads", most=65536),
        whole("G", "num_key_value_heads", "H", most=65536), whole("D", "head_dim", "C / H", most=65536),
        whole("max_positions", "max_position_embeddings", "1073741824", most=1 << 30),
        setting("eps", "rms_norm_eps", "1e-6", min=0), setting("init_std", "initializer_range", "0.02", min=0),
        setting("tied", "tie_word_embeddings", "0"),
        setting("activation", "hidden_act", "0", choices={"silu": 0, "swish": 0}),
        setting("theta", ["rope_parameters.rope_theta", "rope_theta"], "10000", min=1),
        setting("llama3_rope", [k % name for k in rope for name in ("rope_type", "type")], "0",
                choices={"default": 0, "llama3": 1}),
        setting("rope_factor", [k % "factor" for k in rope], "1", needed_if="llama3_rope", min=1),
        setting("rope_low", [k % "low_freq_factor" for k in rope], "1", needed_if="llama3_rope", min=0),
        setting("rope_high", [k % "high_freq_factor" for k in rope], "4", needed_if="llama3_rope", min=0),
        setting("rope_original", [k % "original_max_position_embeddings" for k in rope], "8192", needed_if="llama3_rope", min=1),
        setting("rotary_share", ["rope_parameters.partial_rotary_factor", "partial_rotary_factor"], "1"),
        setting("windows", "layer_types", "0", choices={"full_attention": 0}),
        setting("use_window", "use_sliding_window", "0"),
        setting("attention_bias", "attention_bias", "0"), setting("mlp_bias", "mlp_bias", "0"),
    ]


def require(more=()):
    return [
        {"that": "D % 2 == 0", "message": "head_dim must be even for rotary embedding"},
        {"that": "H % G == 0", "message": "num_attention_heads must be a multiple of num_key_value_heads"},
        {"that": "rotary_share == 1", "message": "partial rotary embedding isn't supported"},
        {"that": "use_window == 0", "message": "sliding window attention isn't supported"},
        {"that": "mlp_bias == 0", "message": "biases in the MLP aren't supported"},
        {"that": "attention_bias == 0", "message": "attention_bias isn't supported"},
    ] + list(more)


def linear(name, shape, hf, bias=False):
    weight = {"param": name + ".weight", "shape": shape, "hf": hf + ".weight", "module": hf, "linear": True,
              "init": {"normal": "init_std"}}
    if not bias:
        return [weight]
    return [weight, {"param": name + ".bias", "shape": shape[:1], "hf": hf + ".bias", "init": "zeros", "decay": False}]


def norm(name, size, hf):
    return {"param": name, "shape": [size], "hf": hf, "init": "ones", "decay": False}


def op(name, ins, out, part=None, **attrs):
    s = {"op": name, "in": ins, "out": out}
    if attrs:
        s["attrs"] = attrs
    if part:
        s["part"] = part
    return s


def block(qkv_bias, qk_norm):
    p, hf = "blocks.{i}.", "model.layers.{i}."
    body = [norm(p + "norm1.weight", "C", hf + "input_layernorm.weight")]
    heads = {"q": "H", "k": "G", "v": "G"}
    for n, h in heads.items():
        body += linear(p + "attn." + n, [h + " * D", "C"], hf + "self_attn." + n + "_proj", qkv_bias)
    if qk_norm:
        body += [norm(p + "attn.%s_norm.weight" % n, "D", hf + "self_attn.%s_norm.weight" % n) for n in "qk"]
    body += linear(p + "attn.o", ["C", "H * D"], hf + "self_attn.o_proj")
    body += [norm(p + "norm2.weight", "C", hf + "post_attention_layernorm.weight")]
    body += linear(p + "mlp.gate", ["F", "C"], hf + "mlp.gate_proj")
    body += linear(p + "mlp.up", ["F", "C"], hf + "mlp.up_proj")
    body += linear(p + "mlp.down", ["C", "F"], hf + "mlp.down_proj")
    body += [op("rms_norm", ["x", p + "norm1.weight"], p + "norm1", "norm", eps="eps")]
    for n, h in heads.items():
        ins = [p + "norm1", p + "attn.%s.weight" % n] + ([p + "attn.%s.bias" % n] if qkv_bias else [])
        body += [op("linear", ins, p + "attn." + n, "qkv"),
                 op("reshape", [p + "attn." + n], p + "attn.%s.heads" % n, "qkv", ndim=4, d0="B", d1="T", d2=h, d3="D")]
    for n in "qk":
        last = p + "attn.%s.heads" % n
        if qk_norm:
            body += [op("rms_norm", [last, p + "attn.%s_norm.weight" % n], p + "attn.%s.norm" % n, "qkv", eps="eps")]
            last = p + "attn.%s.norm" % n
        body += [op("rope", [last, "rope_table", "positions"], p + "attn.%s.rope" % n, "qkv")]
    body += [op("attention", [p + "attn.q.rope", p + "attn.k.rope", p + "attn.v.heads", "doc_start"], p + "attn.heads", "att",
                num_heads="H", num_kv_heads="G", head_dim="D"),
             op("reshape", [p + "attn.heads"], p + "attn.out", "att", ndim=3, d0="B", d1="T", d2="H * D"),
             op("linear", [p + "attn.out", p + "attn.o.weight"], p + "attn.o"),
             op("add", ["x", p + "attn.o"], p + "res1"),
             op("rms_norm", [p + "res1", p + "norm2.weight"], p + "norm2", "norm", eps="eps"),
             op("linear", [p + "norm2", p + "mlp.gate.weight"], p + "mlp.gate", "ffn"),
             op("linear", [p + "norm2", p + "mlp.up.weight"], p + "mlp.up", "ffn"),
             op("swiglu", [p + "mlp.gate", p + "mlp.up"], p + "mlp.act", "swiglu"),
             op("linear", [p + "mlp.act", p + "mlp.down.weight"], p + "mlp.down"),
             op("add", [p + "res1", p + "mlp.down"], p + "res2")]
    return body


def family(architecture, qkv_bias=False, qk_norm=False, rules=()):
    head = linear("head", ["V", "C"], "lm_head")
    head[0]["head"] = True
    embed = {"param": "embed.weight", "shape": ["V", "C"], "hf": "model.embed_tokens.weight", "init": {"normal": "init_std"}}
    graph = [
        {"if": "tied", "then": [{**embed, "module": "lm_head", "linear": True, "head": True}], "else": [embed]},
        op("embedding", ["tokens", "embed.weight"], "embed"),
        op("rope_table", [], "rope_table", len="P", head_dim="D", theta="theta", factor="llama3_rope ? rope_factor : 0",
           low_freq="rope_low", high_freq="rope_high", original_len="rope_original"),
        {"repeat": "L", "index": "i", "carry": {"x": "embed"}, "body": block(qkv_bias, qk_norm),
         "yield": {"x": "blocks.{i}.res2"}},
        norm("norm.weight", "C", "model.norm.weight"),
        op("rms_norm", ["x", "norm.weight"], "norm", "norm", eps="eps"),
        {"if": "tied", "then": [{"let": "head_weight", "is": "embed.weight"}],
         "else": head + [{"let": "head_weight", "is": "head.weight"}]},
        op("linear", ["norm", "head_weight"], "logits"),
        op("cross_entropy", ["logits", "labels"], "losses"),
        op("loss_sum", ["losses", "hyper"], "loss"),
        {"output": "logits", "is": "logits"}, {"output": "losses", "is": "losses"}, {"output": "loss", "is": "loss"},
    ]
    return {"surogate_ir": 1, "architecture": architecture, "config": config(), "require": require(rules),
            "ignored": IGNORED, "refused": REFUSED, "graph": graph}


def dump(value, depth=0):
    """JSON with a statement a line, so that line numbers in errors point at one."""
    pad = "  " * depth
    if isinstance(value, list) and any(isinstance(v, dict) for v in value):
        return "[\n" + ",\n".join(pad + "  " + dump(v, depth + 1) for v in value) + "\n" + pad + "]"
    if isinstance(value, dict) and any(isinstance(v, list) and any(isinstance(x, dict) for x in v) for v in value.values()):
        return "{\n" + ",\n".join(pad + "  " + json.dumps(k) + ": " + dump(v, depth + 1) for k, v in value.items()) + "\n" + pad + "}"
    return json.dumps(value)


def main():
    here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "models")
    families = {"qwen3.json": family("Qwen3ForCausalLM", qk_norm=True),
                "qwen2.json": family("Qwen2ForCausalLM", qkv_bias=True),
                "llama.json": family("LlamaForCausalLM")}
    stale = []
    for name, ir in families.items():
        path, text = os.path.join(here, name), dump(ir) + "\n"
        if "--check" in sys.argv:
            stale += [] if os.path.exists(path) and open(path).read() == text else [name]
        else:
            open(path, "w").write(text)
    if stale:
        sys.exit("models/%s differ from what tools/write-models.py writes; run it" % ", ".join(stale))


main()
