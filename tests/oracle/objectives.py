#!/usr/bin/env python3
"""The objectives of examples/dsl/objectives over the model of examples/dsl/tiny.py, and the loss of examples/dsl/mtp.py: loss and gradients of a step of two
micro-batches against PyTorch in f64.

  SUROGATE_LIBRARY=build/libsurogate.so python3 tests/oracle/objectives.py tests/fixtures/objectives.json      writes what tests/python/objectives.t compares with
"""
import importlib.util
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
from surogate import Trainer
from surogate.dsl import build
from surogate.dsl.render import to_json

try:
    import torch
    import torch.nn.functional as F
except ImportError:  # needed only to write the fixture
    torch = F = None

LIMIT = 1e-5
V, EPS = 96, 1e-5
TINY = "examples/dsl/tiny.py"
NAMES = {"z_loss": "ZLoss", "label_smoothing": "LabelSmoothing", "forward_kl": "ForwardKL", "token_weights": "TokenWeights", "top_k_kl": "TopKKL"}
MTP = dict(architectures=["LlamaMTPForCausalLM"], vocab_size=V, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
           num_key_value_heads=2, head_dim=4, rms_norm_eps=EPS, rope_theta=10000.0, max_position_embeddings=1024, num_nextn_predict_layers=1)
# Tokens of a row (two rows per micro-batch), and settings that must not change the result.
CASES = [(20, {}), (20, {"fusion": "none"}), (20, {"recompute_block": True}), (1024, {}), (1024, {"head_chunks": 2})]


def written(path, name, folder):
    """Writes the IR of a class of a file to the folder."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    file = Path(folder, f"{Path(path).stem}.json")
    file.write_text(to_json(build(getattr(module, name)).ir))
    return str(file)


def batch(micro, seq):
    """Ids, labels (some aren't trained) and documents of two rows."""
    place = np.arange(2 * seq, dtype=np.int64).reshape(2, seq) + 7919 * micro
    ids, labels = place * place % 89 % V, (place * 31 + 5) % 83 % V
    labels[place % 5 == 0] = -100
    return ids.astype(np.int32), labels.astype(np.int32)


def own_inputs(objective, micro, seq):
    """The further inputs of the objective."""
    place = np.arange(2 * seq, dtype=np.int64).reshape(2, seq) + 7919 * micro
    if objective == "token_weights":
        return {"weight": (place * 17 % 13 / 8).astype(np.float32)}
    if objective == "top_k_kl":
        ids = (place[..., None] * 5 + 11 * np.arange(8)) % V  # 8 different ids for each token of a row
        logprobs = -(ids * 37 % 19) / 5
        ids[place % 7 == 0] = -100
        ids[place % 4 == 1, 5:] = -100  # fewer than K ids
        return {"top_ids": ids.astype(np.int32), "top_logprobs": np.where(ids < 0, 0, logprobs).astype(np.float32)}  # as in padding
    return None


def segments(seq):
    """Two rows of several documents each, and padding at the end of one."""
    rows = np.arange(2 * seq).reshape(2, seq) // 7
    rows[1, -3:] = -1
    return rows.astype(np.int32)


def make_folder(folder, width):
    Path(folder).mkdir()
    config = {"architectures": ["TinyForCausalLM"], "vocab_size": V, "n_embd": width, "n_layer": 2}
    Path(folder, "config.json").write_text(json.dumps(config))
    return folder


def stepped(trainer, seq, count, objective=""):
    """The trainer after some steps, so that no logits are near 0."""
    for step in range(count):
        for micro in range(2):
            trainer.step(*batch(2 * step + micro, seq), inputs=own_inputs(objective, 2 * step + micro, seq))
        trainer.update(lr=1e-2)
    return {n: trainer.weights(n).astype(np.float64) for n in trainer.parameters()}


def trained(objective, seq, settings, folder):
    """Loss, weights, gradients and the teacher's weights of the engine's first step."""
    ir = written(TINY, "Tiny", folder)
    own = make_folder(f"{folder}/own", 32)
    common = dict(sequence_len=seq, per_device_train_batch_size=2, gradient_accumulation_steps=2, max_steps=99, device="cpu", model_dtype="fp32", ir=ir)
    settings = dict(settings)
    taught = None
    if objective == "forward_kl":
        with Trainer.from_scratch(make_folder(f"{folder}/teacher.config", 48), seed=9, output_dir=f"{folder}/unused", **common) as teacher:
            taught = stepped(teacher, 20, 20)
            teacher.export_model(f"{folder}/teacher")
        settings["teacher_model"] = f"{folder}/teacher"
    file = written(f"examples/dsl/objectives/{objective}.py", NAMES[objective], folder)
    with Trainer.from_scratch(own, seed=3, output_dir=f"{folder}/out", objective=file, **common, **settings) as trainer:
        weights = stepped(trainer, 20, 4, objective)
        for micro in range(2):
            trainer.step(*batch(micro, seq), inputs=own_inputs(objective, micro, seq))
        trainer.backward()
        gradients = {n: trainer.gradients(n) for n in weights}
        return trainer.update(lr=1e-3).loss, weights, gradients, taught


def trained_mtp(settings, folder):
    """As `trained`, for the model of examples/dsl/mtp.py and rows of several documents; also returns its two loss terms."""
    seq, ir = 24, written("examples/dsl/mtp.py", "LlamaMTP", folder)
    Path(folder, "own").mkdir()
    Path(folder, "own/config.json").write_text(json.dumps(MTP))
    common = dict(sequence_len=seq, per_device_train_batch_size=2, gradient_accumulation_steps=2, max_steps=99, device="cpu", model_dtype="fp32", ir=ir,
                  sample_packing=True, log_scalars="mtp,cross", output_dir=f"{folder}/out", seed=3)
    with Trainer.from_scratch(f"{folder}/own", **common, **settings) as trainer:
        for step in range(4):
            for micro in range(2):
                trainer.step(*batch(2 * step + micro, seq), segments(seq))
            trainer.update(lr=1e-2)
        weights = {n: trainer.weights(n).astype(np.float64) for n in trainer.parameters()}
        for micro in range(2):
            trainer.step(*batch(micro, seq), segments(seq))
        trainer.backward()
        gradients = {n: trainer.gradients(n) for n in weights}
        step = trainer.update(lr=1e-3)
        return [step.loss, step.scalars["mtp"]], weights, gradients


def rms(x, weight):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + EPS) * weight


def llama_block(weights, name, x, segment):
    """Llama's block, with heads of 4 elements and groups of 2."""
    w = lambda n: weights[f"{name}.{n}.weight"]  # noqa: E731
    rows, seq, _ = x.shape
    begins = torch.tensor([[max([c for c in range(t + 1) if c == 0 or row[c] != row[c - 1]]) for t in range(seq)] for row in segment.tolist()])
    angle = (torch.arange(seq) - begins)[..., None] * 10000.0 ** (-torch.arange(2) / 2)
    cos, sin = (torch.cat([f(angle)] * 2, -1)[:, :, None] for f in (torch.cos, torch.sin))
    def heads(n):
        return (rms(x, w("input_layernorm")) @ w(f"self_attn.{n}").T).reshape(rows, seq, -1, 4)
    def turned(y):
        return y * cos + torch.cat([-y[..., 2:], y[..., :2]], -1) * sin
    q, k, v = turned(heads("q_proj")), turned(heads("k_proj")).repeat_interleave(2, 2), heads("v_proj").repeat_interleave(2, 2)
    seen = (segment[:, :, None] == segment[:, None]) & torch.ones(seq, seq, dtype=torch.bool).tril()
    scores = torch.einsum("bthd,bshd->bhts", q, k) / 2
    y = torch.einsum("bhts,bshd->bthd", scores.masked_fill(~seen[:, None], -1e300).softmax(-1), v).reshape(rows, seq, -1)
    x = x + y @ w("self_attn.o_proj").T
    h = rms(x, w("post_attention_layernorm"))
    return x + (F.silu(h @ w("mlp.gate_proj").T) * (h @ w("mlp.up_proj").T)) @ w("mlp.down_proj").T


def expected_mtp(weights):
    torch.set_default_dtype(torch.float64)
    weights = {n: torch.tensor(w, requires_grad=True) for n, w in weights.items()}
    sums, count = [0.0, 0.0], 0
    for micro in range(2):
        ids, labels = (torch.tensor(x).long() for x in batch(micro, 24))
        segment = torch.tensor(segments(24))
        labels[segment < 0] = -100
        embed, head = weights["model.embed_tokens.weight"], weights["lm_head.weight"]
        x = embed[ids]
        for i in range(2):
            x = llama_block(weights, f"model.layers.{i}", x, segment)
        shift = lambda t, fill: torch.cat([t[:, 1:], torch.full_like(t[:, :1], fill)], 1)  # noqa: E731
        both = torch.cat([rms(embed[shift(ids, 0)], weights["mtp.enorm.weight"]), rms(x, weights["mtp.hnorm.weight"])], -1)
        after = rms(llama_block(weights, "mtp.block", both @ weights["mtp.eh_proj.weight"].T, segment), weights["mtp.shared_head.norm.weight"]) @ head.T
        second = shift(labels, -100).masked_fill(shift(segment, -2) != segment, -100)
        logits = rms(x, weights["model.norm.weight"]) @ head.T
        for k, (y, to) in enumerate(((logits, labels), (after, second))):
            sums[k] = sums[k] + F.cross_entropy(y.flatten(0, 1), to.flatten(), ignore_index=-100, reduction="sum")
        count += int((labels != -100).sum())
    loss, mtp = (sums[0] + 0.3 * sums[1]) / count, sums[1] / count
    loss.backward()
    return [float(loss.detach()), float(mtp.detach())], {n: w.grad.numpy() for n, w in weights.items()}


def logits_of(weights, ids):
    x = weights["transformer.wte.weight"][ids]
    for i in range(2):
        h = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + EPS) * weights[f"transformer.h.{i}.norm"]
        x = x + F.gelu(h @ weights[f"transformer.h.{i}.up.weight"].T) @ weights[f"transformer.h.{i}.down.weight"].T
    return x @ weights["lm_head.weight"].T


def losses_of(objective, logits, labels, taught, own):
    """The loss of each trained token."""
    at = labels != -100
    log_p = logits.log_softmax(-1)[at]
    cross = -log_p.gather(1, labels[at][:, None])[:, 0]
    if objective == "z_loss":
        return cross + 1e-4 * logits[at].logsumexp(-1) ** 2
    if objective == "label_smoothing":
        return F.cross_entropy(logits[at], labels[at], reduction="none", label_smoothing=0.1)
    if objective == "token_weights":
        return cross * torch.tensor(own["weight"]).double()[at]
    if objective == "top_k_kl":
        ids, theirs = torch.tensor(own["top_ids"]).long()[at], torch.tensor(own["top_logprobs"]).double()[at]
        theirs = theirs.masked_fill(ids < 0, -1e30).log_softmax(-1)
        terms = theirs.exp() * (theirs - log_p.gather(1, ids.clamp(0)))
        return 0.5 * cross + 0.5 * terms.masked_fill(ids < 0, 0).sum(-1)
    q, p = (x[at].div(2).log_softmax(-1) for x in (logits, taught))
    return 4 * F.kl_div(q, p, reduction="none", log_target=True).sum(-1)


def expected(objective, seq, weights, taught):
    torch.set_default_dtype(torch.float64)
    weights = {n: torch.tensor(w, requires_grad=True) for n, w in weights.items()}
    taught = taught and {n: torch.tensor(w) for n, w in taught.items()}
    losses = []
    for micro in range(2):
        ids, labels = (torch.tensor(x).long() for x in batch(micro, seq))
        losses.append(losses_of(objective, logits_of(weights, ids), labels, taught and logits_of(taught, ids), own_inputs(objective, micro, seq)))
    loss = torch.cat(losses).mean()
    loss.backward()
    return float(loss.detach()), {n: w.grad.numpy() for n, w in weights.items()}


def probe(values):
    values = np.asarray(values, np.float64).ravel()
    return [float("%.9g" % x) for x in (np.sqrt((values**2).sum()), (values * np.cos(np.arange(values.size))).sum())]


def main():
    told = {}
    for objective in NAMES:
        for seq in sorted({seq for seq, _ in CASES}):
            with tempfile.TemporaryDirectory() as folder:
                loss, weights, gradients, taught = trained(objective, seq, {}, folder)
            want, grads = expected(objective, seq, weights, taught)
            most = max(np.linalg.norm(g) for g in grads.values())
            worst = max(float(np.abs(gradients[n] - g).max()) / most for n, g in grads.items())
            print(f"{objective}, rows of {seq}: loss {loss} for {want}; a gradient's largest difference is {worst:.1e} of the largest norm")
            told[f"{objective} {seq}"] = {"loss": want, "gradients": {n: probe(g) for n, g in grads.items()}}
    with tempfile.TemporaryDirectory() as folder:
        losses, weights, gradients = trained_mtp({}, folder)
    want, grads = expected_mtp(weights)
    most = max(np.linalg.norm(g) for g in grads.values())
    worst = max(float(np.abs(gradients[n] - g).max()) / most for n, g in grads.items())
    print(f"mtp: losses {losses} for {want}; a gradient's largest difference is {worst:.1e} of the largest norm")
    told["mtp"] = {"losses": want, "gradients": {n: probe(g) for n, g in grads.items()}}
    Path(sys.argv[1]).write_text("{" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in told.items()) + "}\n")


if __name__ == "__main__":
    main()
