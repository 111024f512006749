#!/usr/bin/env python3
"""Random models with further outputs, several loss terms, dropout in several places and several documents a row: loss and gradients against
PyTorch in f64. Dropout masks are drawn by the same Philox generator. A difference above the limit is accepted if PyTorch's own gradients in f32
are off by at least a quarter of it: then sums cancel, as for biases of keys. Such models are counted.

  SUROGATE_LIBRARY=build/libsurogate.so python3 tests/oracle/graph_random.py 0-1499
  ... graph_random.py 0-39,371,576 tests/fixtures/graphs.json      writes what tests/python/graphs.t compares with
"""
import json
import os
import random
import sys
import tempfile

import model_random as base
import numpy as np
from model_random import SIZES, F, torch
from surogate import Trainer
from surogate.dsl import build
from surogate.dsl.render import to_json

B, T, LIMIT = 2, 12, 1e-5
SETTINGS = [{}, {"fusion": "none"}, {"recompute_block": True}]


class Graph(base.Random):
    """Also records losses (rows, columns) that a term of the loss may be made from: they exist only outside of blocks."""

    def __init__(self, *args):
        super().__init__(*args)
        self.terms = []

    def drop(self, x):
        site = {"site": self.rng.randint(0, 3)} if self.chance(0.2) else {}
        return self.add("dropout", [x, "doc_id", "positions", "step"], p=self.rng.choice([0.1, 0.5]), **site)

    def attention(self, x):
        y = super().attention(x)
        made = next(op for op in reversed(self.ops) if op[0] == "attention")
        if self.chance(0.6):  # lse is read as an activation; below, it may also become a term of the loss
            lse = self.add("reshape", [made[2] + ".1"], False, dims=["B", "T", "H"])
            y = self.add("add", [y, self.linear(lse, "C", "H")], False)
        if self.chance(0.4):
            self.terms.append(self.add("reshape", [made[2] + ".1"], False, dims=["B * H", "T"]))
        return y

    def step(self):
        kind = self.rng.choice(["dropout", "sum and norm", "other", "other", "other"])
        if kind == "dropout":
            self.drop(self.pick())
        elif kind == "sum and norm":
            both = self.add("add_rms_norm", [self.pick(), self.pick(), self.weight("C")])
            self.values.append(both + ".1")
        else:
            super().step()


def add_losses(whole, logits):
    """Adds loss terms: losses, their lse, losses of a second head, attention's lse. The terms are added up, or one sum continues another."""
    head = whole.add("cross_entropy", [logits, "labels"], False, **{"hits": True} if whole.chance(0.3) else {})
    terms = [head, *whole.terms]
    if whole.chance(0.7):
        terms.append(whole.add("mul", [head + ".1", head + ".1"], False) if whole.chance(0.5) else head + ".1")
    if whole.chance(0.5):
        second = whole.linear(whole.norm(whole.pick()), "V")
        second = whole.add("softcap", [second], False, cap=3.0) if whole.chance(0.5) else second
        second = whole.add("cross_entropy", [second, "labels"], False)
        terms += [second, second + ".1"][whole.rng.randint(0, 1) :]
    if whole.chance(0.3):
        terms.append(whole.add("mul", [head, terms[-1]], False) if terms[-1] not in whole.terms else head)
    if whole.chance(0.2):
        terms = terms[1:] or [head + ".1"]
    whole.rng.shuffle(terms)
    loss = whole.add("loss_sum", [terms[0], "hyper"], False)
    for term in terms[1:]:
        if whole.chance(0.3):
            loss = whole.add("loss_sum", [term, "hyper", loss], False)
        else:
            more = whole.add("scale", [whole.add("loss_sum", [term, "hyper"], False)], False, by=whole.rng.choice([0.3, -0.5, 1.7]))
            loss = whole.add("add", [loss, more], False)
    return head, loss


def renamed(ops, names):
    def new(name):
        first, dot, rest = name.partition(".")
        return names.get(first, first) + dot + rest

    return [(op, [new(i) for i in inputs], new(out), attrs) for op, inputs, out, attrs in ops]


def make(seed):
    """As model_random.make."""
    rng = random.Random(seed)
    whole, body = Graph(rng, [], "m"), Graph(rng, ["x"], "b")
    embed = whole.weight("V", "C")
    whole.add("embedding", ["tokens", embed])
    if whole.chance(0.3):
        whole.drop(whole.values[-1])
    before = len(whole.ops)
    for _ in range(rng.randint(1, 3)):
        body.step()
    body.add("add", ["x", body.drop(body.pick()) if body.chance(0.6) else body.pick()])
    whole.values += ["y", "y"]
    for _ in range(rng.randint(0, 3)):
        whole.step()
    body.ops = [op for op in body.ops if op[2] not in body.terms]  # a block returns one tensor
    head = embed if whole.chance(0.4) else whole.weight("V", "C", linear=True, share=0)
    logits = whole.add("linear", [whole.norm(whole.values[-1]), head], False)
    if whole.chance(0.3):
        logits = whole.add("softcap", [logits], False, cap=3.0)
    losses, loss = add_losses(whole, logits)
    ops = renamed(whole.ops, {logits: "logits", losses: "losses", loss: "loss"})
    return ops[:before], body.ops, ops[before:], body.weights, whole.weights


def rows_of(seed):
    """Tokens, targets, documents and positions of one micro-batch."""
    rng = random.Random(-seed - 1)
    ids = [[rng.randrange(SIZES["V"]) for _ in range(T)] for _ in range(B)]
    labels = [[-100 if rng.random() < 0.2 else rng.randrange(SIZES["V"]) for _ in range(T)] for _ in range(B)]
    starts = [sorted({0, *(rng.randrange(T) for _ in range(rng.randint(0, 2)))}) for _ in range(B)]
    first = [[max(s for s in row if s <= t) for t in range(T)] for row in starts]
    documents = [[10 * r + row.index(s) for s in of] for r, (row, of) in enumerate(zip(starts, first))]
    positions = [[t - s for t, s in enumerate(of)] for of in first]
    return tuple(np.asarray(x, np.int32) for x in (ids, labels, documents, positions, first))


# ---- draws, as src/ops/random.h and src/base/philox.h say ----

WORD = (1 << 64) - 1


def mix(x):
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & WORD
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & WORD
    return x ^ (x >> 31)


def dropout_key(seed, step, site):
    key = mix(seed + 0x9E3779B97F4A7C15 & WORD)
    key = mix(key ^ (step + 0x9E3779B97F4A7C15 & WORD))
    return mix(mix(key ^ (1 << 56)) ^ site)


def name_key(name):
    h = 0xCBF29CE484222325
    for byte in name.encode():
        h = (h ^ byte) * 0x100000001B3 & WORD
    return h >> 16


def philox(c, key):
    """c: four arrays of uint64 below 2^32."""
    low = np.uint64(0xFFFFFFFF)
    k = [key & 0xFFFFFFFF, key >> 32]
    for _ in range(10):
        p, q = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [(q >> np.uint64(32)) ^ c[1] ^ np.uint64(k[0]), q & low, (p >> np.uint64(32)) ^ c[3] ^ np.uint64(k[1]), p & low]
        k = [k[0] + 0x9E3779B9 & 0xFFFFFFFF, k[1] + 0xBB67AE85 & 0xFFFFFFFF]
    return c


def kept(shape, key, documents, positions, p):
    quad = np.arange((shape[-1] + 3) // 4, dtype=np.uint64)
    parts = np.broadcast_arrays(quad, positions.astype(np.uint64)[..., None], documents.astype(np.uint64)[..., None], np.uint64(0))
    words = np.stack(philox([x.copy() for x in parts], key), -1).reshape(*shape[:-1], -1)[..., : shape[-1]]
    return (words >> np.uint64(8)).astype(np.float32) / np.float32(1 << 24) >= np.float32(p)


# ---- PyTorch ----


def attend(q, k, v, first, num_heads, num_kv_heads, head_dim, window=0, softcap=0, scale=0):
    k, v = (x.repeat_interleave(base.size_of(num_heads) // base.size_of(num_kv_heads), 2) for x in (k, v))
    scores = torch.einsum("bthd,bshd->bhts", q, k) * (scale or base.size_of(head_dim) ** -0.5)
    scores = softcap * torch.tanh(scores / softcap) if softcap else scores
    i = torch.arange(q.shape[1])
    seen = (i[None] <= i[:, None]) & (i[None] > i[:, None] - (window or 1 << 20)) & (i[None, None] >= first[..., None])
    scores = scores.masked_fill(~seen[:, None], -1e30)
    return torch.einsum("bhts,bshd->bthd", torch.softmax(scores, -1), v), scores.logsumexp(-1)


def turn(x, table, positions, inverse=False, interleaved=False):
    half = x.shape[3] // 2
    angles = positions[:, :, None, None] * 10000.0 ** (-torch.arange(half) / half)
    c, s = torch.cos(angles), torch.sin(angles) * (-1 if inverse else 1)
    a, b = (x[..., ::2], x[..., 1::2]) if interleaved else (x[..., :half], x[..., half:])
    y, z = a * c - b * s, b * c + a * s
    return torch.stack([y, z], -1).flatten(-2) if interleaved else torch.cat([y, z], -1)


def add_norm(a, b, w):
    return a + b, base.rms(a + b, w)


def entropy(logits, labels, hits=False):
    losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").reshape(labels.shape)
    return losses, logits.logsumexp(-1)


def reshape(x, dims):
    return x.reshape([eval(d, {}, SIZES | {"B": B, "T": T}) for d in dims])


def torch_run(parts, weights, seed, rows):
    ids, labels, documents, positions, first = rows
    trained = int((labels != -100).sum())

    def dropout(x, doc_id, positions_, step, p, name, site=None):
        key = dropout_key(seed, 0, name_key(name) if site is None else site)
        return x * torch.tensor(kept(x.shape, key, documents, positions, p)) / (1 - p)

    table = base.OPS | {
        "attention": attend, "rope": turn, "add_rms_norm": add_norm, "cross_entropy": entropy, "reshape": reshape, "dropout": dropout,
        "loss_sum": lambda losses, hyper, so_far=0.0: losses.sum() / trained + so_far,
    }
    given = {"doc_start": torch.tensor(first).long(), "positions": torch.tensor(positions).to(torch.get_default_dtype())}
    return base.torch_run(parts, weights, ids, labels, table, **given)


# ---- a seed ----


def trained(seed, folder, parts=None):
    """Loss, weights and gradients of the engine's first step."""
    parts = parts or make(seed)
    config = {s.lower(): n for s, n in SIZES.items()} | {"architectures": ["RandomForCausalLM"], "max_positions": 64}
    for name, text in (("config.json", json.dumps(config)), ("ir.json", to_json(build(base.dsl_class(parts)).ir))):
        with open(os.path.join(folder, name), "w") as file:
            file.write(text)
    ids, labels, documents, positions, _ = rows_of(seed)
    settings = dict(sequence_len=T, per_device_train_batch_size=B, gradient_accumulation_steps=1, max_steps=2, device="cpu", model_dtype="fp32",
                    seed=seed + 1, output_dir=os.path.join(folder, "out"), ir=os.path.join(folder, "ir.json"))
    with Trainer.from_scratch(folder, **settings, **SETTINGS[seed % len(SETTINGS)]) as trainer:
        weights = {n: trainer.weights(n).astype(np.float64) for n in trainer.parameters()}
        trainer.step(ids, labels, documents, positions)
        trainer.backward()
        gradients = {n: trainer.gradients(n) for n in weights}
        return trainer.update(lr=1e-3).loss, weights, gradients


def expected(seed, parts, weights):
    weights = {n: torch.tensor(w, requires_grad=True) for n, w in weights.items()}
    loss = torch_run(parts, {n.removesuffix(".weight"): w for n, w in weights.items()}, seed + 1, rows_of(seed))["loss"]
    loss.backward()
    return loss, weights


def difference(want, loss, leaves, gradients):
    """As base.difference, but the loss's difference is relative to its size."""
    want = float(want.detach())
    scaled = torch.tensor(want / max(1, abs(want)))
    return base.difference(scaled, loss / max(1, abs(want)), leaves, gradients)


def own_difference(seed, parts, weights, want, leaves):
    """The difference between PyTorch in f32 and in f64."""
    torch.set_default_dtype(torch.float32)
    loss, rounded = expected(seed, parts, {n: w.astype(np.float32) for n, w in weights.items()})
    torch.set_default_dtype(torch.float64)
    gradients = {n: np.zeros(w.shape) if w.grad is None else w.grad.numpy() for n, w in rounded.items()}
    return difference(want, float(loss.detach()), leaves, gradients)[0]


def probe(values):
    values = np.asarray(values, np.float64).ravel()
    return [float("%.9g" % x) for x in (np.sqrt((values**2).sum()), (values * np.cos(np.arange(values.size))).sum())]


def main():
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    failed, cancelled, worst, told = 0, 0, (0.0, ""), {}
    seeds = [s for part in sys.argv[1].split(",") for s in range(int(part.split("-")[0]), int(part.split("-")[-1]) + 1)]
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            try:
                parts = make(seed)
                loss, weights, gradients = trained(seed, folder, parts)
                want, leaves = expected(seed, parts, weights)
                error, what = difference(want, loss, leaves, gradients)
                cancels = error > LIMIT and error <= 4 * own_difference(seed, parts, weights, want, leaves)
                told[seed] = {"loss": float(want.detach()), "gradients": {n: probe(w.grad) for n, w in leaves.items() if w.grad is not None}}
            except Exception as problem:
                error, what, cancels = float("nan"), str(problem), False
        cancelled += cancels
        if not cancels:
            worst = max(worst, (error, f"{what} of {seed}")) if error == error else worst
        if not error <= LIMIT and not cancels:
            failed += 1
            print("FAIL %d: %s %.1e" % (seed, what, error), flush=True)
    print("%d models, %d failed; the largest difference is %.1e, %s; %d whose sums cancel" % (len(seeds), failed, *worst, cancelled))
    if len(sys.argv) > 2 and not failed:
        with open(sys.argv[2], "w") as file:
            file.write("{" + ",\n".join("%s: %s" % (json.dumps(str(s)), json.dumps(t)) for s, t in told.items()) + "}\n")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
