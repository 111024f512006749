#!/usr/bin/env python3
"""Do weights that any op reads, weights computed from weights, and blocks that are applied several times (tests/dsl/weights.py) have the loss,
gradients, AdamW steps and greedy texts that PyTorch has? Needs torch and the built library.

  SUROGATE_LIBRARY=build/libsurogate.so python3 tests/oracle/weights.py
  python3 tests/oracle/weights.py --write    writes tests/fixtures/weights.json, which tests/python/weights.t reads
"""
import json
import os
import subprocess
import sys
import tempfile

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
FIXTURE = os.path.join(HERE, "..", "fixtures", "weights.json")
CONFIG = dict(architectures=["WeightsForCausalLM"], vocab_size=29, n_embd=12, n_inner=20, n_layer=2, n_head=3, turns=3, dtype="float32")
V, C, F, L, H, TURNS = (CONFIG[k] for k in ("vocab_size", "n_embd", "n_inner", "n_layer", "n_head", "turns"))
B, T, STEPS, LIMIT, PROMPT, TEXT = 2, 16, 4, 1e-5, 7, 8
BLOCK = {"norm": (C,), "scale": (1, 1, C), "mix": (3,), "gate.weight": (F, C), "up.weight": (F, C), "down.weight": (C, F),
         "attention.temperature": (1,), "attention.table": (4, H), "attention.queries": (C // H,),
         **{f"attention.{n}.weight": (C, C) for n in "qkvo"}}
SHAPES = {"embed": (V, C), "length": (V, 1), "first": (C,)}
SHAPES |= {f"{block}.{n}": shape for block in ("shared", "looped", *(f"blocks.{i}" for i in range(L))) for n, shape in BLOCK.items()}
SHAPES |= {f"{name}.{i}.{n}": (1, 1, C) for i in range(L) for name, n in (("turned", "early"), ("turned", "late"), ("kept", "share"))}
AROUND_1 = ("norm", "scale", "temperature", "length", "first", "early", "late")


def weights():
    rng = np.random.default_rng(5)
    return {n: ((n.split(".")[-1] in AROUND_1) + 0.3 * rng.standard_normal(shape)).astype(np.float32) for n, shape in sorted(SHAPES.items())}


def batches():
    return np.random.default_rng(6).integers(0, V, (STEPS, B, T + 1), dtype=np.int32)


def prompts():
    return np.concatenate(batches())[:, :PROMPT]


def probe(values):
    """Two numbers that identify a gradient: its norm, and its product with a wave."""
    values = np.asarray(values, np.float64).ravel()
    return [float(np.sqrt((values**2).sum())), float((values * np.cos(np.arange(values.size))).sum())]


def write_model(folder):
    """Writes config.json and the weights in fp32."""
    os.makedirs(folder, exist_ok=True)
    header, at, tensors = {}, 0, weights()
    for name, values in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [at, at + values.nbytes]}
        at += values.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text + b"".join(values.tobytes() for values in tensors.values()))
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(CONFIG, f)
    subprocess.run([sys.executable, "-m", "surogate.dsl", "build", os.path.join(ROOT, "tests", "dsl", "weights.py"), "-o",
                    os.path.join(folder, "surogate_ir.json")], check=True, env={**os.environ, "PYTHONPATH": os.path.join(ROOT, "python")})


def reference():
    """Loss and gradients of the first batch, losses of AdamW's steps over all, greedy texts with their log-probabilities."""
    import torch

    w = {n: torch.tensor(v, dtype=torch.float64, requires_grad=True) for n, v in weights().items()}

    def rms(x, weight):
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-5) * weight

    def attention(x, at):
        rows, size = x.shape[1], C // H
        q, k, v = (torch.nn.functional.linear(x, w[f"{at}.{n}.weight"]).reshape(len(x), rows, H, size).transpose(1, 2) for n in "qkv")
        q = rms(q, w[f"{at}.queries"] + 1) / w[f"{at}.temperature"]
        far = (torch.arange(rows)[:, None] - torch.arange(rows)).clamp(0, 3)
        scores = q @ k.transpose(2, 3) / size**0.5 + w[f"{at}.table"][far].permute(2, 0, 1)
        scores = scores.masked_fill(torch.ones(rows, rows).triu(1).bool(), -torch.inf)
        return torch.nn.functional.linear((scores.softmax(-1) @ v).transpose(1, 2).reshape(x.shape), w[f"{at}.o.weight"])

    def block(x, at):
        h = rms(x, w[f"{at}.norm"])
        gate, up = (torch.nn.functional.linear(h, w[f"{at}.{n}.weight"]) for n in ("gate", "up"))
        y = torch.nn.functional.linear(torch.nn.functional.silu(gate) * up, w[f"{at}.down.weight"])
        shares = w[f"{at}.mix"].softmax(-1)
        return x + (y * shares[0] + attention(h, f"{at}.attention") * shares[1]) * w[f"{at}.scale"]

    def logits(ids):
        table = w["embed"] / w["embed"].norm(dim=1, keepdim=True) * w["length"]
        x = torch.nn.functional.layer_norm(table[ids], (C,), w["first"], w["first"], 1e-5)
        for at in ["shared"] * 2 + ["looped"] * TURNS:
            x = block(x, at)
        for turn in range(TURNS):
            for i in range(L):
                x = x * w[f"turned.{i}.{'late' if turn else 'early'}"]
        first = x
        for i in range(L):
            x = x + first * w[f"kept.{i}.share"]
        for at in [f"blocks.{i}" for i in range(L)] * 2:
            x = block(x, at)
        return torch.nn.functional.linear(x, table)

    def mean_loss(batch):
        batch = torch.from_numpy(batch).long()
        return torch.nn.functional.cross_entropy(logits(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())

    ids = batches()
    texts, logprobs = torch.from_numpy(prompts()).long(), []
    with torch.no_grad():
        for _ in range(TEXT):
            best = logits(texts)[:, -1].log_softmax(-1).max(-1)
            texts = torch.cat([texts, best.indices[:, None]], 1)
            logprobs.append(best.values.tolist())
    loss = mean_loss(ids[0])
    loss.backward()
    gradients = {n: probe(p.grad) for n, p in w.items()}
    optimizer = torch.optim.AdamW(w.values(), lr=1e-2, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
    losses = []
    for batch in ids:
        optimizer.zero_grad()
        step_loss = mean_loss(batch)
        step_loss.backward()
        torch.nn.utils.clip_grad_norm_(w.values(), 1.0)
        optimizer.step()
        losses.append(float(step_loss.detach()))
    return {"loss": float(loss.detach()), "gradients": gradients, "losses": losses, "texts": texts[:, PROMPT:].tolist(), "logprobs": np.transpose(logprobs).tolist()}


def errors(told, folder, **settings):
    """Differences of Surogate's numbers from the recorded ones. With accumulation, micro-batches share a batch's rows."""
    from surogate import Trainer

    ids = batches()
    micro = settings.get("gradient_accumulation_steps", 1)
    settings = dict(sequence_len=T, per_device_train_batch_size=B // micro, gradient_accumulation_steps=micro, max_steps=STEPS, warmup_steps=0,
                    device="cpu", weight_decay=0.0, max_grad_norm=1.0, model_dtype="fp32", output_dir=os.path.join(folder, "out"),
                    model=folder) | settings
    found = {}
    with Trainer(**settings) as trainer:
        for rows in np.split(ids[0], micro):
            trainer.step(rows[:, :-1], rows[:, 1:])
        trainer.backward()
        assert set(trainer.parameters()) == set(SHAPES), set(trainer.parameters()) ^ set(SHAPES)
        found["gradients / 10"] = max(max(abs(a - b) for a, b in zip(probe(trainer.gradients(n)), e)) / max(e[0], 1e-6)
                                      for n, e in told["gradients"].items()) / 10
    with Trainer(**settings) as trainer:
        for k, batch in enumerate(ids):
            for rows in np.split(batch, micro):
                trainer.step(rows[:, :-1], rows[:, 1:])
            trainer.backward()
            found[f"step {k}"] = abs(trainer.update(1e-2).loss / told["losses"][k] - 1)
    return found


def text_errors(told, folder):
    """For texts generated token by token with a KV cache: how many differ, and how far their log-probabilities are off."""
    from surogate import Model

    with Model(folder, device="cpu") as model:
        made = model.generate_rows(list(prompts()), max_tokens=TEXT, ignore_eos=True, logprobs=0, rows=3)
    return {"texts": float(sum(row.ids.tolist() != ids for row, ids in zip(made, told["texts"]))),
            "logprobs / 10": float(np.abs(np.array([row.logprobs for row in made]) - told["logprobs"]).max()) / 10}


def main():
    if "--write" in sys.argv[1:]:
        with open(FIXTURE, "w") as f:
            json.dump(reference(), f)
            f.write("\n")
        return
    with tempfile.TemporaryDirectory() as folder:
        write_model(folder)
        told = reference()
        found = errors(told, folder) | text_errors(told, folder)
    print("  ".join("%s %.1e" % each for each in found.items()))
    sys.exit(0 if all(e <= LIMIT for e in found.values()) else 1)


if __name__ == "__main__":
    sys.path.insert(0, os.path.join(ROOT, "python"))
    main()
