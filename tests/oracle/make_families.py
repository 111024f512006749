#!/usr/bin/env python3
"""Writes tests/fixtures/families: tiny random models of the shipped families with what they must compute.

The reference is transformers (and PEFT) in double precision; see oracle_common.exact. Every result is also checked
here against the untouched fp32 model, and packed documents against the same documents run alone.
Needs torch, transformers, peft, safetensors. Deterministic: same versions, same bytes.

  python3 tests/oracle/make_families.py            # all families
  python3 tests/oracle/make_families.py llama3     # one
"""
import json
import os
import shutil
import sys

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import save_file
from transformers import (AutoModelForCausalLM, Gemma2Config, Gemma3TextConfig, GPT2Config, LlamaConfig, MistralConfig, Olmo2Config,
                          Phi3Config, Qwen2Config, Qwen3Config, SmolLM3Config)
from transformers.utils import logging

from oracle_common import IGNORE, error, exact, forward, implementation, mean_loss

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures", "families")
B, T, STEPS = 2, 24, 10
PACKED = [[7, 1, 9, 7], [3, 16, 5]]
ADAMW = dict(lr=1e-3, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, clip=1.0)
COMMON = dict(vocab_size=61, max_position_embeddings=256, bos_token_id=1, eos_token_id=2, dtype="float32")
FAMILIES = {
    "llama": dict(   # Llama 2: as many key/value heads as query heads, untied
        config=LlamaConfig(**COMMON, hidden_size=16, intermediate_size=20, num_hidden_layers=2, num_attention_heads=2,
                           num_key_value_heads=2, rms_norm_eps=1e-5, tie_word_embeddings=False,
                           rope_parameters=dict(rope_type="default", rope_theta=1e4)),
        lora=dict(target_modules="all-linear", use_rslora=False)),
    "llama3": dict(  # Llama 3.2: grouped heads, scaled rope (one frequency kept, one blended, two slowed), tied
        config=LlamaConfig(**COMMON, hidden_size=16, intermediate_size=28, num_hidden_layers=3, num_attention_heads=4,
                           num_key_value_heads=2, head_dim=8, rms_norm_eps=1e-5, tie_word_embeddings=True,
                           rope_parameters=dict(rope_type="llama3", rope_theta=1e4, factor=8.0, low_freq_factor=1.0,
                                                high_freq_factor=4.0, original_max_position_embeddings=128)),
        lora=dict(target_modules=["q_proj", "v_proj"], use_rslora=False)),
    "qwen3": dict(
        config=Qwen3Config(**COMMON, hidden_size=20, intermediate_size=26, num_hidden_layers=2, num_attention_heads=4,
                           num_key_value_heads=2, head_dim=8, rms_norm_eps=1e-6, tie_word_embeddings=True,
                           rope_parameters=dict(rope_type="default", rope_theta=1e6)),
        lora=dict(target_modules="all-linear", use_rslora=True)),
    "qwen3_untied": dict(
        config=Qwen3Config(**COMMON, hidden_size=18, intermediate_size=22, num_hidden_layers=2, num_attention_heads=3,
                           num_key_value_heads=1, head_dim=10, rms_norm_eps=1e-6, tie_word_embeddings=False,
                           rope_parameters=dict(rope_type="default", rope_theta=1e6)),
        lora=dict(target_modules=["gate_proj", "up_proj", "down_proj"], use_rslora=False)),
    "qwen2": dict(   # Qwen2.5: biases on q, k, v
        config=Qwen2Config(**COMMON, hidden_size=24, intermediate_size=28, num_hidden_layers=2, num_attention_heads=3,
                           num_key_value_heads=1, rms_norm_eps=1e-6, tie_word_embeddings=True,
                           rope_parameters=dict(rope_type="default", rope_theta=1e6)),
        lora=dict(target_modules=["q_proj", "k_proj", "v_proj", "o_proj"], use_rslora=False)),
    "qwen2_window": dict(  # the upper of two layers attends a window
        config=Qwen2Config(**COMMON, hidden_size=12, intermediate_size=14, num_hidden_layers=2, num_attention_heads=2,
                           num_key_value_heads=1, rms_norm_eps=1e-6, tie_word_embeddings=True, use_sliding_window=True,
                           sliding_window=4, max_window_layers=1, rope_parameters=dict(rope_type="default", rope_theta=1e6)),
        lora=dict(target_modules="all-linear", use_rslora=False)),
    "mistral": dict(  # a window in every layer; heads x head_dim != hidden
        config=MistralConfig(**COMMON, hidden_size=12, intermediate_size=18, num_hidden_layers=2, num_attention_heads=4,
                             num_key_value_heads=2, head_dim=6, rms_norm_eps=1e-5, tie_word_embeddings=False, sliding_window=5,
                             rope_parameters=dict(rope_type="default", rope_theta=1e4)),
        lora=dict(target_modules="all-linear", use_rslora=False)),
    "gemma2": dict(  # norms before and after, times 1 + weight; GELU gate; capped scores and logits; a window in every second layer
        config=Gemma2Config(**{**COMMON, "pad_token_id": 0}, hidden_size=16, intermediate_size=18, num_hidden_layers=3,
                            num_attention_heads=2, num_key_value_heads=1, head_dim=8, rms_norm_eps=1e-6, query_pre_attn_scalar=12,
                            sliding_window=5, attn_logit_softcapping=2.0, final_logit_softcapping=3.0,
                            rope_parameters=dict(rope_type="default", rope_theta=1e4)),
        lora=dict(target_modules="all-linear", use_rslora=False)),
    "gemma3": dict(  # a norm of each head, a window in two layers of three; the others have a stretched rotary table
        config=Gemma3TextConfig(**{**COMMON, "pad_token_id": 0}, hidden_size=16, intermediate_size=22, num_hidden_layers=3,
                                num_attention_heads=2, num_key_value_heads=1, head_dim=8, rms_norm_eps=1e-6, query_pre_attn_scalar=12,
                                sliding_window=5, sliding_window_pattern=2, rope_parameters=dict(
                                    full_attention=dict(rope_type="linear", rope_theta=1e6, factor=4.0),
                                    sliding_attention=dict(rope_type="default", rope_theta=1e4))),
        lora=dict(target_modules="all-linear", use_rslora=False)),
    "phi3": dict(    # one projection for q, k, v and one for gate, up
        config=Phi3Config(**{**COMMON, "pad_token_id": 0}, hidden_size=16, intermediate_size=18, num_hidden_layers=2, num_attention_heads=4,
                          num_key_value_heads=2, rms_norm_eps=1e-5, tie_word_embeddings=False,
                          rope_parameters=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=1.0)),
        lora=dict(target_modules="all-linear", use_rslora=False)),
    "llama_linear": dict(  # all angles slowed alike
        config=LlamaConfig(**COMMON, hidden_size=16, intermediate_size=20, num_hidden_layers=2, num_attention_heads=2,
                           num_key_value_heads=1, rms_norm_eps=1e-5, tie_word_embeddings=False,
                           rope_parameters=dict(rope_type="linear", rope_theta=1e4, factor=3.0)),
        lora=dict(target_modules="all-linear", use_rslora=False)),
    "qwen3_yarn": dict(  # some of the eight pairs are kept, some blended, some slowed; both mscales; the ramp has fractional ends
        config=Qwen3Config(**COMMON, hidden_size=20, intermediate_size=26, num_hidden_layers=2, num_attention_heads=2,
                           num_key_value_heads=1, head_dim=16, rms_norm_eps=1e-6, tie_word_embeddings=True,
                           rope_parameters=dict(rope_type="yarn", rope_theta=1e3, factor=4.0, original_max_position_embeddings=64,
                                                beta_fast=4.0, beta_slow=0.5, mscale=1.2, mscale_all_dim=0.4, truncate=False)),
        lora=dict(target_modules="all-linear", use_rslora=False)),
    "phi3_long": dict(   # rows are longer than the original length
        config=Phi3Config(**{**COMMON, "pad_token_id": 0}, hidden_size=16, intermediate_size=18, num_hidden_layers=2, num_attention_heads=2,
                          num_key_value_heads=1, rms_norm_eps=1e-5, tie_word_embeddings=False, original_max_position_embeddings=6,
                          rope_parameters=dict(rope_type="longrope", rope_theta=1e4, partial_rotary_factor=1.0,
                                               short_factor=[1.0, 1.1, 1.25, 1.7], long_factor=[1.05, 1.9, 6.5, 41.0])),
        lora=dict(target_modules="all-linear", use_rslora=False)),
    "phi3_short": dict(  # rows are shorter than the original length, and three quarters of each head are rotated
        config=Phi3Config(**{**COMMON, "pad_token_id": 0}, hidden_size=32, intermediate_size=18, num_hidden_layers=2, num_attention_heads=4,
                          num_key_value_heads=1, rms_norm_eps=1e-5, tie_word_embeddings=False, original_max_position_embeddings=64,
                          rope_parameters=dict(rope_type="longrope", rope_theta=1e4, partial_rotary_factor=0.75,
                                               short_factor=[1.0, 1.1, 1.7], long_factor=[1.05, 6.5, 41.0])),
        lora=dict(target_modules="all-linear", use_rslora=False)),
    "olmo2": dict(   # norms after attention and MLP, and one over all heads of q and one over all of k
        config=Olmo2Config(**COMMON, hidden_size=16, intermediate_size=18, num_hidden_layers=2, num_attention_heads=4,
                           num_key_value_heads=2, rms_norm_eps=1e-6, tie_word_embeddings=False, pad_token_id=0,
                           rope_parameters=dict(rope_type="default", rope_theta=5e5)),
        lora=dict(target_modules="all-linear", use_rslora=False)),
    "smollm3": dict(  # a layer without rotary positions between two layers with them
        config=SmolLM3Config(**{**COMMON, "pad_token_id": None}, hidden_size=12, intermediate_size=14, num_hidden_layers=3,
                             num_attention_heads=3, num_key_value_heads=1, rms_norm_eps=1e-6, tie_word_embeddings=True,
                             no_rope_layers=[1, 0, 1], rope_parameters=dict(rope_type="default", rope_theta=1e4)),
        lora=dict(target_modules="all-linear", use_rslora=False)),
    "gpt2": dict(    # learned positions, layer norms, biases everywhere, weights stored transposed, GELU by tanh
        config=GPT2Config(vocab_size=61, n_positions=256, bos_token_id=1, eos_token_id=2, dtype="float32", n_embd=16, n_layer=2,
                          n_head=2, n_inner=None, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0),
        lora=dict(target_modules="all-linear", use_rslora=False, fan_in_fan_out=True)),
}


def random_weights(model, rng):
    """In name order: matrices std 0.2 (embedding 0.1, so that eps shows), norms 1 +- 0.2 (Gemma's 0 +- 0.2), biases std 0.2."""
    centre = 0.0 if type(model).__name__.startswith("Gemma") else 1.0
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            noise = torch.randn(p.shape, generator=rng)
            std = 0.1 if any(word in name for word in ("embed_tokens", "wte", "wpe")) else 0.2
            is_norm = "norm" in name or ".ln_" in name
            p.copy_(centre + 0.2 * noise.clamp(-2, 2) if is_norm and name.endswith("weight") else std * noise)


def make_batch(rng, vocab, lengths, masked):
    """lengths: for each row, the lengths of its documents. A document's last token predicts nothing, unless the document is the whole row:
    then it has T + 1 tokens. masked: share of the other labels that are ignored."""
    ids = torch.randint(3, vocab, (len(lengths), T + 1), generator=rng)
    labels = ids[:, 1:].clone()
    ids = ids[:, :T].contiguous()
    position_ids, doc_start = torch.zeros_like(ids), torch.zeros_like(ids)
    for b, row in enumerate(lengths):
        assert sum(row) == T
        first = 0
        for n in row:
            position_ids[b, first:first + n] = torch.arange(n)
            doc_start[b, first:first + n] = first
            if len(row) > 1:
                labels[b, first + n - 1] = IGNORE
            first += n
    drop = torch.rand(labels.shape, generator=rng) < masked
    return dict(ids=ids, labels=labels.masked_fill(drop, IGNORE), position_ids=position_ids, doc_start=doc_start)


def random_lengths(rng):
    row, left = [], T
    while left:
        row.append(min(left, int(torch.randint(1, T, (1,), generator=rng))))
        left -= row[-1]
    return row


def make_batches(vocab):
    rng = torch.Generator().manual_seed(11)
    plain = make_batch(rng, vocab, [[T], [T]], 0.0)
    packed = make_batch(rng, vocab, PACKED, 0.15)
    packed["labels"][1, 19:] = IGNORE      # a whole document that isn't trained on
    steps = [make_batch(rng, vocab, [random_lengths(rng) for _ in range(B)], 0.2) for _ in range(STEPS)]
    return plain, packed, steps


def trained(model):
    """(name, parameter) of the trained parameters, with the names in the saved files, sorted."""
    return sorted((n.replace(".default.", "."), p) for n, p in model.named_parameters() if p.requires_grad)


def gradients(model, batch):
    """loss, {name: gradient}, norm of all gradients, logits."""
    model.zero_grad(set_to_none=True)
    logits = forward(model, batch)
    loss = mean_loss(logits, batch["labels"])
    loss.backward()
    grads = {n: p.grad.detach().clone() for n, p in trained(model)}
    norm = torch.sqrt(sum(g.pow(2).sum() for g in grads.values()))
    return loss.detach(), grads, norm, logits.detach()


def decays(name, p):
    """Weight decay as in transformers' trainer: on matrices, and on DoRA's magnitudes."""
    return p.dim() == 2 or "lora_magnitude" in name


def train(model, steps):
    """AdamW over the steps, written out. Returns losses and norms (before clipping) of each step, and the first
    step's batch's loss after the last update. Changes the model."""
    a = ADAMW
    m = {n: torch.zeros_like(p) for n, p in trained(model)}
    v = {n: torch.zeros_like(p) for n, p in trained(model)}
    losses, norms = [], []
    for step, batch in enumerate(steps, 1):
        loss, grads, norm, _ = gradients(model, batch)
        losses.append(loss)
        norms.append(norm)
        scale = min(1.0, a["clip"] / float(norm))
        with torch.no_grad():
            for n, p in trained(model):
                g = grads[n] * scale
                m[n] = a["beta1"] * m[n] + (1 - a["beta1"]) * g
                v[n] = a["beta2"] * v[n] + (1 - a["beta2"]) * g * g
                m_hat, v_hat = m[n] / (1 - a["beta1"] ** step), v[n] / (1 - a["beta2"] ** step)
                decay = a["weight_decay"] if decays(n, p) else 0.0
                p -= a["lr"] * (m_hat / (v_hat.sqrt() + a["eps"]) + decay * p)
    with torch.no_grad():
        after = mean_loss(forward(model, steps[0]), steps[0]["labels"])
    return torch.stack(losses), torch.stack(norms), after


def check_optimizer(load, steps):
    """torch.optim.AdamW and clip_grad_norm_ give the same curve as train()."""
    model = load()
    params = [p for _, p in trained(model)]
    groups = [dict(params=[p for n, p in trained(model) if decays(n, p)], weight_decay=ADAMW["weight_decay"]),
              dict(params=[p for n, p in trained(model) if not decays(n, p)], weight_decay=0.0)]
    opt = torch.optim.AdamW([g for g in groups if g["params"]], lr=ADAMW["lr"], eps=ADAMW["eps"],
                            betas=(ADAMW["beta1"], ADAMW["beta2"]))
    losses = []
    for batch in steps:
        loss = gradients(model, batch)[0]
        torch.nn.utils.clip_grad_norm_(params, ADAMW["clip"])
        opt.step()
        losses.append(loss)
    return torch.stack(losses)


def check_packing(model, batch, logits):
    """Each document alone gives the logits it has in the packed row."""
    for b in range(B):
        for start in sorted(set(batch["doc_start"][b].tolist())):
            where = (batch["doc_start"][b] == start).nonzero()[:, 0]
            alone = model(input_ids=batch["ids"][b:b + 1, where], use_cache=False).logits[0].detach()
            assert error(logits[b, where], alone) < 1e-12


def spell_v4(config):
    """Rewrites config.json of transformers 5 in the spelling of 4.x."""
    c = dict(config)
    if "rope_parameters" in c:
        rope = dict(c.pop("rope_parameters"))
        if "sliding_attention" in rope:
            c["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
            rope = dict(rope["full_attention"])
        c["rope_theta"] = rope.pop("rope_theta")
        if rope["rope_type"] != "default" and "partial_rotary_factor" in rope:
            c["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
        c["rope_scaling"] = rope if rope["rope_type"] != "default" else None
    c["torch_dtype"] = c.pop("dtype")
    c["transformers_version"] = "4.51.3"
    c.pop("layer_types", None)
    return dict(sorted(c.items()))


def write_json(path, value):
    with open(path, "w") as f:
        json.dump(value, f, indent=2)
        f.write("\n")


def strip(folder, keep):
    for name in os.listdir(folder):
        if name not in keep:
            os.remove(os.path.join(folder, name))


def make_model(folder, config, rng):
    """Writes the HF folder; returns a loader of the fp64 model."""
    def load(dtype=torch.float64):
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation=implementation(config))
        return exact(model, T) if dtype == torch.float64 else model

    model = AutoModelForCausalLM.from_config(config)
    random_weights(model, rng)
    model.save_pretrained(folder)
    strip(folder, ["config.json", "model.safetensors"])
    with open(os.path.join(folder, "config.json")) as f:
        written = json.load(f)
    old = os.path.join(folder, "v4")
    os.makedirs(old)
    write_json(os.path.join(old, "config.json"), spell_v4(written))
    shutil.copy(os.path.join(folder, "model.safetensors"), old)
    from_old = AutoModelForCausalLM.from_pretrained(old, dtype=torch.float32)
    assert getattr(from_old.config, "rope_parameters", None) == getattr(load(torch.float32).config, "rope_parameters", None)
    os.rename(os.path.join(old, "config.json"), os.path.join(folder, "config_v4.json"))
    shutil.rmtree(old)
    return load


def make_adapter(folder, load, settings, rng):
    """Writes a PEFT folder with random A and B; returns a loader of the fp64 model with it, only A and B training."""
    base = load(torch.float32)
    base.name_or_path = base.config._name_or_path = ""
    model = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, bias="none", task_type="CAUSAL_LM",
                                            **settings))
    with torch.no_grad():
        for name, p in trained(model):
            noise = 0.2 * torch.randn(p.shape, generator=rng)
            p.copy_(p * (1 + noise) if "lora_magnitude" in name else noise)
    model.save_pretrained(folder)
    strip(folder, ["adapter_config.json", "adapter_model.safetensors"])
    path = os.path.join(folder, "adapter_config.json")
    with open(path) as f:
        written = json.load(f)
    written["target_modules"] = sorted(written["target_modules"])
    written["base_model_name_or_path"] = None
    write_json(path, dict(sorted(written.items())))

    def load_adapted(dtype=torch.float64):
        adapted = PeftModel.from_pretrained(load(dtype), folder, is_trainable=True)
        return adapted.double() if dtype == torch.float64 else adapted
    return load_adapted


def record(out, prefix, load, batch, steps, with_plain=None):
    """Fills out with logits, loss, norm, gradients and the curve of one model, checking each against fp32."""
    model, single = load(), load(torch.float32)
    for name, b in [("packed", batch)] + ([("plain", with_plain)] if with_plain else []):
        loss, grads, norm, logits = gradients(model, b)
        loss32, grads32, norm32, logits32 = gradients(single, b)
        assert error(logits32, logits) < 5e-6 and error(loss32, loss) < 1e-6 and error(norm32, norm) < 5e-6
        assert all(error(grads32[n], g) < 5e-5 for n, g in grads.items())
        out[prefix + name + ".logits"], out[prefix + name + ".loss"] = logits, loss.reshape(1)
        out[prefix + name + ".grad_norm"] = norm.reshape(1)
        if name == "packed":
            out.update({prefix + name + ".grad." + n: g for n, g in grads.items()})
            if not prefix:
                check_packing(model, b, logits)
    losses, norms, after = train(load(), steps)
    assert torch.allclose(losses, check_optimizer(load, steps), rtol=1e-6)
    losses32, norms32, _ = train(load(torch.float32), steps)
    worst = max(float((losses32 / losses - 1).abs().max()), float((norms32 / norms - 1).abs().max()))
    assert worst < 2e-5, worst
    out[prefix + "steps.loss"], out[prefix + "steps.grad_norm"] = losses, norms
    out[prefix + "steps.loss_after"] = after.reshape(1)
    print("  %-6s loss %.4f -> %.4f  norm %.3f  fp32 curve differs by %.1e"
          % (prefix or "full", losses[0], after, norms[0], worst))


def make_family(name, spec):
    folder = os.path.join(ROOT, name)
    shutil.rmtree(folder, ignore_errors=True)
    rng = torch.Generator().manual_seed(sum(name.encode()))
    load = make_model(folder, spec["config"], rng)
    load_adapted = make_adapter(os.path.join(folder, "adapter"), load, spec["lora"], rng)
    plain, packed, steps = make_batches(spec["config"].vocab_size)
    out = {}
    for key in ("ids", "labels", "position_ids", "doc_start"):
        out["plain." + key], out["packed." + key] = plain[key], packed[key]
        out["steps." + key] = torch.stack([s[key] for s in steps])
    record(out, "", load, packed, steps, with_plain=plain)
    record(out, "lora.", load_adapted, packed, steps)
    out = {k: v.detach().to(torch.float32 if v.is_floating_point() else torch.int32).contiguous()
           for k, v in sorted(out.items())}
    # one key only: safetensors writes several in random order
    save_file(out, os.path.join(folder, "expected.safetensors"), metadata=dict(
        conventions="labels[b][t] is the token to predict at position t (already shifted), -100 is ignored; "
                    "position t of row b attends to doc_start[b][t] .. t"))
    write_json(os.path.join(folder, "expected.json"), dict(
        architecture=spec["config"].architectures[0] if spec["config"].architectures else None,
        batch_size=B, seq_len=T, num_steps=STEPS, adamw=ADAMW, weight_decay_on="tensors of 2 dims",
        loss="mean over labels that aren't -100; labels are already shifted",
        reference="fp64", torch=str(torch.__version__)))


def main():
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    for name in sys.argv[1:] or FAMILIES:
        print(name)
        make_family(name, FAMILIES[name])


if __name__ == "__main__":
    main()
