#!/usr/bin/env python3
"""Writes tests/fixtures/rope.json: config.json files with scaled rotary positions, and the frequencies and the factor of cosines and sines
that transformers has for a call of `reach` tokens. Needs torch and transformers.

  python3 tests/oracle/make_rope.py
"""
import json
import os

import transformers as hf
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.utils import logging

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures", "rope.json")
CLASSES = {"LlamaForCausalLM": hf.LlamaConfig, "Qwen2ForCausalLM": hf.Qwen2Config, "Qwen3ForCausalLM": hf.Qwen3Config,
           "MistralForCausalLM": hf.MistralConfig, "Phi3ForCausalLM": hf.Phi3Config, "Olmo2ForCausalLM": hf.Olmo2Config,
           "SmolLM3ForCausalLM": hf.SmolLM3Config, "Gemma2ForCausalLM": hf.Gemma2Config}
LONG = dict(long_factor=[1 + 0.37 * i * i for i in range(48)], short_factor=[1 + 0.05 * i for i in range(48)])
PHI = dict(hidden_size=3072, num_attention_heads=32, max_position_embeddings=131072, original_max_position_embeddings=4096, rope_theta=10000.0)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32768)
QWEN = dict(rope_theta=1000000.0, max_position_embeddings=131072)
# (architecture, keys of config.json, tokens of the call)
CASES = [
    ("LlamaForCausalLM", dict(rope_scaling=dict(type="linear", factor=2.5)), 4096),
    ("MistralForCausalLM", dict(rope_parameters=dict(rope_type="linear", rope_theta=3e4, factor=49.0)), 100),
    ("LlamaForCausalLM", dict(rope_scaling=dict(type="dynamic", factor=2.5), max_position_embeddings=512), 512),
    ("LlamaForCausalLM", dict(rope_theta=500000.0, rope_scaling=dict(
        rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192)), 9000),
    ("SmolLM3ForCausalLM", dict(rope_parameters=dict(rope_theta=2e6, **YARN), max_position_embeddings=131072), 64),
    ("Qwen2ForCausalLM", dict(rope_scaling=dict(type="yarn", factor=4.0, original_max_position_embeddings=32768), **QWEN), 64),
    ("Qwen3ForCausalLM", dict(head_dim=128, rope_scaling=dict(factor=4.0, type="yarn"), **{**QWEN, "max_position_embeddings": 40960}), 64),
    ("Qwen3ForCausalLM", dict(head_dim=128, rope_parameters=dict(**YARN, rope_theta=1e6, attention_factor=0.7)), 64),
    ("Qwen3ForCausalLM", dict(head_dim=128, rope_parameters=dict(**YARN, rope_theta=1e6, mscale=0.707, mscale_all_dim=0.5)), 64),
    ("Qwen3ForCausalLM", dict(head_dim=128, rope_parameters=dict(**YARN, rope_theta=1e6, mscale=0.707)), 64),
    ("Olmo2ForCausalLM", dict(rope_parameters=dict(**YARN, rope_theta=5e5, truncate=False, beta_fast=20, beta_slow=2.5)), 64),
    ("Gemma2ForCausalLM", dict(head_dim=64, rope_parameters=dict(**YARN, rope_theta=1e4, beta_fast=0, beta_slow=None)), 64),
    ("LlamaForCausalLM", dict(head_dim=8, rope_parameters=dict(  # both ends of the ramp are the same pair
        rope_type="yarn", rope_theta=1e4, factor=1.5, original_max_position_embeddings=40, beta_fast=8.0, beta_slow=7.0)), 64),
    ("LlamaForCausalLM", dict(head_dim=8, rope_parameters=dict(  # the last end is before the first
        rope_type="yarn", rope_theta=1e4, factor=16, original_max_position_embeddings=4)), 64),
    ("Phi3ForCausalLM", dict(rope_scaling=dict(type="longrope", **LONG), **PHI), 4096),
    ("Phi3ForCausalLM", dict(rope_scaling=dict(type="su", original_max_position_embeddings=4096, **LONG), **PHI), 4097),
    ("Phi3ForCausalLM", dict(rope_parameters=dict(rope_type="longrope", attention_factor=1.5, original_max_position_embeddings=17, **LONG),
                             **PHI), 131072),
    ("Phi3ForCausalLM", dict(hidden_size=3072, num_attention_heads=24, max_position_embeddings=131072, original_max_position_embeddings=4096,
                             partial_rotary_factor=0.75, rope_scaling=dict(type="longrope", **LONG)), 5000),
    ("LlamaForCausalLM", dict(head_dim=96, max_position_embeddings=64, rope_parameters=dict(
        rope_type="longrope", rope_theta=1e4, original_max_position_embeddings=64, factor=6.0, **LONG)), 65),
    ("MistralForCausalLM", dict(head_dim=96, rope_parameters=dict(
        rope_type="longrope", rope_theta=1e4, original_max_position_embeddings=64, factor=1.0, **LONG)), 64),
]


def main():
    logging.set_verbosity_error()
    cases = []
    for architecture, more, reach in CASES:
        given = dict(vocab_size=64, hidden_size=512, intermediate_size=64, num_hidden_layers=1, num_attention_heads=8, num_key_value_heads=8,
                     max_position_embeddings=131072) | more
        config = CLASSES[architecture].from_dict(json.loads(json.dumps(given)))
        kind = config.rope_parameters["rope_type"]
        frequencies, scale = ROPE_INIT_FUNCTIONS[kind](config, "cpu", seq_len=reach)
        cases.append(dict(reach=reach, config=dict(architectures=[architecture], **given), scale=float(scale), frequencies=frequencies.tolist()))
    with open(PATH, "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")
    print("%d cases" % len(cases))


if __name__ == "__main__":
    main()
