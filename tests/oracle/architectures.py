#!/usr/bin/env python3
"""Do the models of examples/dsl compute what transformers does? Makes each one tiny and random. Compares log-probabilities, gradients,
AdamW steps, greedy generation, and the trained model as AutoModelForCausalLM loads it; for an adapter, PEFT's losses and gradients, and the
adapter as PEFT loads it. Needs torch, transformers, peft and the built library.

  SUROGATE_LIBRARY=build/libsurogate.so python3 tests/oracle/architectures.py [NAME...]
  python3 tests/oracle/architectures.py --write [NAME...]    writes tests/fixtures/architectures, which tests/python/architectures.t reads
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile

import numpy as np
import torch
import transformers as hf
from peft import LoraConfig, PeftModel
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, GenerationMixin
from transformers.modeling_outputs import CausalLMOutput
from transformers.models.t5.modeling_t5 import T5PreTrainedModel, T5Stack
from transformers.utils import logging

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
FIXTURES = os.path.join(HERE, "..", "fixtures", "architectures")
sys.path.insert(0, os.path.join(ROOT, "python"))

WAYS = ("examples/dsl", "python/surogate/models")
V, B, T, STEPS, LIMIT = 61, 2, 24, 5, 1e-5
COMMON = dict(vocab_size=V, max_position_embeddings=64, bos_token_id=1, eos_token_id=2, pad_token_id=0, num_hidden_layers=2, hidden_size=16,
              num_attention_heads=2)
LLAMA = dict(**COMMON, intermediate_size=20, num_key_value_heads=1)
DEEPSEEK = dict(**COMMON, num_key_value_heads=2, intermediate_size=20, first_k_dense_replace=2, q_lora_rank=10, kv_lora_rank=12, qk_rope_head_dim=4, qk_nope_head_dim=6,
                v_head_dim=8)
MPT = dict(vocab_size=V, max_seq_len=64, n_layers=2, d_model=16, n_heads=2, bos_token_id=1, eos_token_id=2, pad_token_id=0)

GPT2 = dict(vocab_size=V, n_positions=64, n_layer=3, n_embd=16, n_head=2, bos_token_id=1, eos_token_id=2, pad_token_id=0, resid_pdrop=0.0,
            embd_pdrop=0.0, attn_pdrop=0.0)

BLOOM = dict(vocab_size=V, hidden_size=16, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=2, pad_token_id=0)


class T5DecoderConfig(hf.T5Config):
    model_type = "t5_decoder"

    def __post_init__(self, **kwargs):
        super().__post_init__(**kwargs)
        self.tie_word_embeddings = False


class T5DecoderForCausalLM(T5PreTrainedModel, GenerationMixin):
    """transformers' decoder of T5 without cross attention: it has no encoder, so those layers are left out."""

    config_class = T5DecoderConfig

    def __init__(self, config):
        super().__init__(config)
        self.decoder = T5Stack(config)
        for part in self.decoder.block:
            del part.layer[1]
        self.lm_head = torch.nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.post_init()

    def forward(self, input_ids=None, attention_mask=None, inputs_embeds=None, **_):
        hidden = self.decoder(input_ids=input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds, use_cache=False)[0]
        return CausalLMOutput(logits=self.lm_head(hidden))


hf.AutoConfig.register("t5_decoder", T5DecoderConfig)
AutoModelForCausalLM.register(T5DecoderConfig, T5DecoderForCausalLM)
# Name of the file in examples/dsl, with a variant after "+" -> the transformers config.
MODELS = {
    "albert": hf.AlbertConfig(**{**COMMON, "num_hidden_layers": 3}, embedding_size=10, intermediate_size=20, hidden_dropout_prob=0.0,
                              attention_probs_dropout_prob=0.0),
    "apertus": hf.ApertusConfig(**{**LLAMA, "max_position_embeddings": 16384}),
    "arcee": hf.ArceeConfig(**LLAMA),
    "bloom": hf.BloomConfig(**{**BLOOM, "n_head": 3, "hidden_size": 18}),
    "bloom+normed": hf.BloomConfig(**BLOOM, apply_residual_connection_post_layernorm=True),
    "codegen": hf.CodeGenConfig(**{**GPT2, "n_head": 4, "n_embd": 32}, rotary_dim=4),
    "cohere": hf.CohereConfig(**LLAMA),
    "cohere+norms": hf.CohereConfig(**LLAMA, use_qk_norm=True),
    "cohere2": hf.Cohere2Config(**{**LLAMA, "num_hidden_layers": 4}, head_dim=8, sliding_window=5),
    "deepseek_v3": hf.DeepseekV3Config(**{**DEEPSEEK, "q_lora_rank": None}),
    "deepseek_v3+yarn": hf.DeepseekV3Config(**DEEPSEEK, rope_parameters=dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, mscale=0.7, mscale_all_dim=1.2,
                                                                              original_max_position_embeddings=16)),
    "ernie4_5": hf.Ernie4_5Config(**LLAMA, head_dim=8, use_bias=True),
    "exaone4": hf.Exaone4Config(**{**LLAMA, "num_hidden_layers": 3}, sliding_window=5, sliding_window_pattern=2),
    "falcon": hf.FalconConfig(**COMMON, ffn_hidden_size=20),
    "falcon+groups": hf.FalconConfig(**{**COMMON, "num_attention_heads": 4}, ffn_hidden_size=20, num_kv_heads=2, new_decoder_architecture=True,
                                     bias=True),
    "falcon+alibi": hf.FalconConfig(**COMMON, ffn_hidden_size=20, alibi=True),
    "gemma": hf.GemmaConfig(**LLAMA, head_dim=8),
    "glm4": hf.Glm4Config(**LLAMA, head_dim=8),
    "gpt_bigcode": hf.GPTBigCodeConfig(**GPT2),
    "gpt_neo": hf.GPTNeoConfig(vocab_size=V, max_position_embeddings=64, hidden_size=16, num_layers=2, num_heads=2, window_size=5,
                               attention_types=[[["global", "local"], 1]], bos_token_id=1, eos_token_id=2, pad_token_id=0),
    "gpt_neox": hf.GPTNeoXConfig(**COMMON, intermediate_size=20),
    "gpt_neox+serial": hf.GPTNeoXConfig(**COMMON, intermediate_size=20, use_parallel_residual=False, attention_bias=False),
    "gpt2+by_layer": hf.GPT2Config(**GPT2, scale_attn_by_inverse_layer_idx=True),
    "gptj": hf.GPTJConfig(**GPT2, rotary_dim=4),
    "granite": hf.GraniteConfig(**LLAMA, embedding_multiplier=12.0, attention_multiplier=0.3, residual_multiplier=0.22, logits_scaling=8.0),
    "helium": hf.HeliumConfig(**LLAMA, head_dim=8, attention_bias=True, mlp_bias=True),
    "hunyuan": hf.HunYuanDenseV1Config(**LLAMA, head_dim=8),
    "mpt": hf.MptConfig(**MPT),
    "mpt+clip": hf.MptConfig(**{**MPT, "n_heads": 3, "d_model": 18}, attn_config=dict(clip_qkv=0.6, softmax_scale=0.3)),
    "nanochat": hf.NanoChatConfig(**LLAMA, final_logit_softcapping=3.0),
    "nemotron": hf.NemotronConfig(**LLAMA),
    "olmo": hf.OlmoConfig(**LLAMA),
    "olmo+clip": hf.OlmoConfig(**LLAMA, clip_qkv=0.5),
    "olmo3": hf.Olmo3Config(**{**LLAMA, "num_hidden_layers": 4}, sliding_window=5, rope_scaling=dict(
        rope_type="yarn", factor=4.0, beta_fast=32.0, beta_slow=1.0, original_max_position_embeddings=16, attention_factor=1.2)),
    "opt": hf.OPTConfig(**COMMON, ffn_dim=20, word_embed_proj_dim=16, enable_bias=False),
    "opt+behind": hf.OPTConfig(**COMMON, ffn_dim=20, word_embed_proj_dim=12, do_layer_norm_before=False, activation_function="gelu"),
    "persimmon": hf.PersimmonConfig(**COMMON, intermediate_size=20),
    "phi": hf.PhiConfig(**LLAMA),
    "phi+norms": hf.PhiConfig(**LLAMA, qk_layernorm=True),
    "qwen3_next": hf.Qwen3NextConfig(**LLAMA, head_dim=8, layer_types=["full_attention"] * 2, num_experts=0,
                                     rope_parameters=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.5)),
    "seed_oss": hf.SeedOssConfig(**LLAMA, head_dim=8, attention_dropout=0.0, residual_dropout=0.0),
    "stablelm": hf.StableLmConfig(**LLAMA, use_qkv_bias=True),
    "stablelm+norms": hf.StableLmConfig(**{**LLAMA, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 32}, qk_layernorm=True),
    "stablelm+parallel": hf.StableLmConfig(**LLAMA, use_parallel_residual=True),
    "starcoder2": hf.Starcoder2Config(**LLAMA, sliding_window=5),
    "t5_decoder": T5DecoderConfig(vocab_size=V, d_model=16, d_kv=6, d_ff=20, num_layers=2, num_heads=2, relative_attention_num_buckets=8,
                                  relative_attention_max_distance=12, feed_forward_proj="gated-gelu", dropout_rate=0.0, is_decoder=True,
                                  is_encoder_decoder=False, use_cache=False, tie_word_embeddings=False, pad_token_id=0, bos_token_id=1, eos_token_id=2),
}
# Models that don't generate.
MASKED = ("albert",)
# Weights that the files, and so Surogate, name differently from transformers.
IN_FILES = {"gpt_neox": {"lm_head.weight": "embed_out.weight"}}
# Models with norm weights around 0.
AROUND_0 = ("gemma", "nemotron", "qwen3_next")
# Layers with adapters, for models in which PEFT takes the MLP for a layer of experts.
ADAPTED = {
    "deepseek_v3": {"lora_target_modules": ["kv_a_proj_with_mqa", "kv_b_proj", "o_proj"]},
    "qwen3_next": {"lora_target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]},
}


def error(ours, reference):
    ours, reference = np.asarray(ours, np.float64), np.asarray(reference, np.float64)
    return float(np.abs(ours - reference).max() / max(np.abs(reference).max(), 1e-30))


def make_model(name, folder):
    """Writes a folder with bf16 weights, and returns the model in fp32."""
    rng = torch.Generator().manual_seed(sum(name.encode()))
    torch.manual_seed(0)
    model = (AutoModelForMaskedLM if name in MASKED else AutoModelForCausalLM).from_config(MODELS[name])
    with torch.no_grad():
        for n, p in sorted(model.named_parameters()):
            is_norm = p.dim() == 1 and n.endswith("weight")
            p.copy_((is_norm and name not in AROUND_0) + 0.2 * torch.randn(p.shape, generator=rng))
    model.bfloat16().save_pretrained(folder)
    return load(folder)


def load(folder):
    """Loads a folder. Missing, unexpected and misshapen tensors are errors here, where transformers only warns."""
    kernel = "sdpa" if getattr(hf.AutoConfig.from_pretrained(folder), "alibi", False) else "eager"  # eager adds Falcon's biases twice
    auto = AutoModelForMaskedLM if hf.AutoConfig.from_pretrained(folder).model_type in MASKED else AutoModelForCausalLM
    model, info = auto.from_pretrained(folder, dtype=torch.float32, attn_implementation=kernel, output_loading_info=True)
    problems = {k: v for k, v in info.items() if k.endswith("_keys") and v}
    if problems:
        sys.exit("FAIL %s: %s" % (folder, problems))
    return model.eval()


def logits_of(model, ids):
    with torch.no_grad():
        return model(input_ids=torch.from_numpy(ids).long(), use_cache=False).logits.double()


def log_probabilities(model, ids):
    return torch.log_softmax(logits_of(model, ids), -1).numpy()


def mean_loss(model, ids):
    ids = torch.from_numpy(ids).long()
    logits = model(input_ids=ids[:, :-1], use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.reshape(-1, V), ids[:, 1:].reshape(-1))


def train(model, batches, lr):
    """The losses of AdamW."""
    weights = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
    losses = []
    for batch in batches:
        loss = mean_loss(model, batch)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def reference(name, model):
    """Reference results for ids (STEPS + 1, B, T + 1).

    From the first batch come log-probabilities of its tokens, and gradients; from the others the losses of AdamW. Last comes the text that the trained
    model generates after the beginning of the first batch.
    """
    rng = np.random.default_rng(sum(name.encode()))
    ids = rng.integers(3, V, (STEPS + 1, B, T + 1), dtype=np.int32)
    everything = log_probabilities(model, ids[0, :, :-1])
    mean_loss(model, ids[0]).backward()
    renamed = IN_FILES.get(name.split("+")[0], {})
    gradients = {renamed.get(n, n): p.grad.numpy().copy() for n, p in model.named_parameters()}
    losses = train(model, ids[1:], lr=1e-3)
    if name in MASKED:
        return ids, everything, gradients, losses, None
    text = model.generate(torch.from_numpy(ids[0, :1, :8]).long(), max_new_tokens=8, do_sample=False, use_cache=False, eos_token_id=None)
    return ids, everything, gradients, losses, text[0, 8:].tolist()


def frozen_of(model):
    """Tensors in a folder that aren't trained."""
    return sorted(set(model.state_dict()) - {n for n, _ in model.named_parameters(remove_duplicate=False)})


def probe(values):
    """Two numbers that identify a gradient: its norm, and its product with a wave."""
    values = np.asarray(values, np.float64).ravel()
    return [float(np.sqrt((values**2).sum())), float((values * np.cos(np.arange(values.size))).sum())]


def write(name):
    folder = os.path.join(FIXTURES, name)
    shutil.rmtree(folder, ignore_errors=True)
    model = make_model(name, folder)
    ids, everything, gradients, losses, text = reference(name, model)
    last = logits_of(load(folder), ids[0, :1, :-1])[0, -1].numpy()  # of one row's last token; `model` is trained now
    picked = np.take_along_axis(everything, ids[0, :, 1:, None].astype(np.int64), 2)[..., 0]
    for other in set(os.listdir(folder)) - {"config.json", "model.safetensors"}:
        os.remove(os.path.join(folder, other))
    with open(os.path.join(folder, "expected.json"), "w") as f:
        json.dump(dict(ids=ids.tolist(), logprobs=picked.round(9).tolist(), logits=last.round(9).tolist(), losses=losses, generated=text,
                       gradients={n: probe(g) for n, g in sorted(gradients.items())}, **({"frozen": names} if (names := frozen_of(model)) else {})), f)
        f.write("\n")


def build_ir(name, folder):
    path, file = os.path.join(folder, "ir.json"), name.split("+")[0] + ".py"
    source = next(f for f in (os.path.join(ROOT, way, file) for way in WAYS) if os.path.exists(f))
    subprocess.run([sys.executable, "-m", "surogate.dsl", "build", source, "-o", path], check=True,
                   env={**os.environ, "PYTHONPATH": os.path.join(ROOT, "python")})
    return path


def of_all_tokens(trainer, ids):
    return np.stack([trainer.logprobs(ids, np.full(ids.shape, v, np.int32)).reshape(ids.shape) for v in range(V)], -1)


def adapted_by_peft(base, folder, is_masked):
    """The base with the adapter, ready for training."""
    lora = LoraConfig.from_pretrained(folder)
    lora.task_type = None if is_masked else lora.task_type  # CAUSAL_LM asks for a model that generates
    return PeftModel.from_pretrained(load(base), folder, config=lora, is_trainable=True).eval()


def check_adapter(base, folder, ids, settings, is_masked):
    """Compares an adapter trained here with one that PEFT trains from the same A and B, then PEFT's gradients of the adapter trained here.
    """
    from surogate import Trainer
    begin, end = folder + "-0", folder
    with Trainer.from_pretrained(base, lora=True, lora_rank=4, **settings) as trainer:
        trainer.export_adapter(begin)
        ours = [trainer.train_step(batch[:, :-1], batch[:, 1:], lr=1e-2)[0] for batch in ids[1:]]
        trainer.export_adapter(end)
        trainer.step(ids[0, :, :-1], ids[0, :, 1:])
        trainer.backward()
        gradients = {n: trainer.gradients(n) for n in trainer.parameters()}
        everything = of_all_tokens(trainer, ids[0, :, :-1])
    losses = train(adapted_by_peft(base, begin, is_masked), ids[1:], lr=1e-2)
    adapted = adapted_by_peft(base, end, is_masked)
    mean_loss(adapted, ids[0]).backward()
    expected = {n.replace(".default", ""): p.grad.numpy() for n, p in adapted.named_parameters() if p.requires_grad}
    assert set(gradients) == set(expected), set(gradients) ^ set(expected)
    return {"adapter": error(everything, log_probabilities(adapted, ids[0, :, :-1])),
            "its gradients / 10": max(error(gradients[n], g) for n, g in expected.items() if np.abs(g).max() > 1e-9) / 10,
            "its steps": max(abs(a / b - 1) for a, b in zip(ours, losses))}


def check(name, folder):
    from surogate import Trainer
    base = os.path.join(folder, "base")
    model = make_model(name, base)
    ids, everything, gradients, losses, text = reference(name, model)
    settings = dict(sequence_len=T, per_device_train_batch_size=B, gradient_accumulation_steps=1, max_steps=STEPS, warmup_steps=0, device="cpu",
                    weight_decay=0.0, max_grad_norm=1.0, model_dtype="fp32", output_dir=os.path.join(folder, "out"), ir=build_ir(name, folder))
    found = {}
    with Trainer.from_pretrained(base, **settings) as trainer:
        found["logits"] = error(of_all_tokens(trainer, ids[0, :, :-1]), everything)
        trainer.step(ids[0, :, :-1], ids[0, :, 1:])
        trainer.backward()
        trained = set(trainer.parameters()) - set(frozen_of(model))
        assert trained == set(gradients), trained ^ set(gradients)
        found["gradients / 10"] = max(error(trainer.gradients(n), g) for n, g in gradients.items() if np.abs(g).max() > 1e-8) / 10
    samples = {} if text is None else dict(generate_samples=1, sample_max_tokens=8)
    with Trainer.from_pretrained(base, **samples, **settings) as trainer:
        found["steps"] = max(abs(trainer.train_step(b[:, :-1], b[:, 1:], lr=1e-3)[0] / loss - 1) for b, loss in zip(ids[1:], losses))
        if text is not None:
            found["generated"] = float(list(map(int, trainer.generate(ids[0, 0, :8], max_tokens=8, temperature=0))) != text)
        ours = of_all_tokens(trainer, ids[0, :, :-1])
        trainer.export_model(os.path.join(folder, "saved"))
    found["saved"] = error(ours, log_probabilities(load(os.path.join(folder, "saved")), ids[0, :, :-1]))
    found.update(check_adapter(base, os.path.join(folder, "adapter"), ids, {**settings, **ADAPTED.get(name.split("+")[0], {})}, name in MASKED))
    good = all(e <= LIMIT for e in found.values())
    print("%-4s %-16s %s" % ("ok" if good else "FAIL", name, "  ".join("%s %.1e" % each for each in found.items())), flush=True)
    return good


def main():
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    names = [name for name in sys.argv[1:] if name != "--write"] or list(MODELS)
    if "--write" in sys.argv[1:]:
        for name in names:
            write(name)
        return
    with tempfile.TemporaryDirectory() as folder:
        results = [check(name, os.path.join(folder, name)) for name in names]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
