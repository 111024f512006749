#!/usr/bin/env python3
"""The objectives of examples/dsl/objectives over the model of examples/dsl/tiny.py: loss and gradients of a step of two micro-batches against PyTorch in f64.

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
except ImportError:  # only what writes the fixture needs it
    torch = F = None

LIMIT = 1e-5
V, EPS = 96, 1e-5
TINY = "examples/dsl/tiny.py"
NAMES = {"z_loss": "ZLoss", "label_smoothing": "LabelSmoothing", "forward_kl": "ForwardKL"}
# Tokens of a row (two rows a micro-batch), and settings that compute the same.
CASES = [(20, {}), (20, {"fusion": "none"}), (20, {"recompute_block": True}), (1024, {}), (1024, {"head_chunks": 2})]


def written(path, name, folder):
    """The IR of a class of a file, written to the folder."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    file = Path(folder, f"{Path(path).stem}.json")
    file.write_text(to_json(build(getattr(module, name)).ir))
    return str(file)


def batch(micro, seq):
    """Ids, labels of which some aren't trained, and documents of two rows."""
    place = np.arange(2 * seq, dtype=np.int64).reshape(2, seq) + 7919 * micro
    ids, labels = place * place % 89 % V, (place * 31 + 5) % 83 % V
    labels[place % 5 == 0] = -100
    return ids.astype(np.int32), labels.astype(np.int32)


def make_folder(folder, width):
    Path(folder).mkdir()
    config = {"architectures": ["TinyForCausalLM"], "vocab_size": V, "n_embd": width, "n_layer": 2}
    Path(folder, "config.json").write_text(json.dumps(config))
    return folder


def stepped(trainer, seq, count):
    """The weights after some steps, so that no logits are near 0."""
    for step in range(count):
        for micro in range(2):
            trainer.step(*batch(2 * step + micro, seq))
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
        weights = stepped(trainer, 20, 4)
        for micro in range(2):
            trainer.step(*batch(micro, seq))
        trainer.backward()
        gradients = {n: trainer.gradients(n) for n in weights}
        return trainer.update(lr=1e-3).loss, weights, gradients, taught


def logits_of(weights, ids):
    x = weights["transformer.wte.weight"][ids]
    for i in range(2):
        h = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + EPS) * weights[f"transformer.h.{i}.norm"]
        x = x + F.gelu(h @ weights[f"transformer.h.{i}.up.weight"].T) @ weights[f"transformer.h.{i}.down.weight"].T
    return x @ weights["lm_head.weight"].T


def losses_of(objective, logits, labels, taught):
    """Of each trained token."""
    at = labels != -100
    log_p = logits.log_softmax(-1)[at]
    cross = -log_p.gather(1, labels[at][:, None])[:, 0]
    if objective == "z_loss":
        return cross + 1e-4 * logits[at].logsumexp(-1) ** 2
    if objective == "label_smoothing":
        return F.cross_entropy(logits[at], labels[at], reduction="none", label_smoothing=0.1)
    q, p = (x[at].div(2).log_softmax(-1) for x in (logits, taught))
    return 4 * F.kl_div(q, p, reduction="none", log_target=True).sum(-1)


def expected(objective, seq, weights, taught):
    torch.set_default_dtype(torch.float64)
    weights = {n: torch.tensor(w, requires_grad=True) for n, w in weights.items()}
    taught = taught and {n: torch.tensor(w) for n, w in taught.items()}
    losses = []
    for micro in range(2):
        ids, labels = (torch.tensor(x).long() for x in batch(micro, seq))
        losses.append(losses_of(objective, logits_of(weights, ids), labels, taught and logits_of(taught, ids)))
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
    Path(sys.argv[1]).write_text("{" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in told.items()) + "}\n")


if __name__ == "__main__":
    main()
