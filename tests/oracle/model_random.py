#!/usr/bin/env python3
"""Random models of the DSL against PyTorch in f64: loss, gradients, log-probabilities, greedy text; with lora=true gradients of the adapters.
The models share weights, have norms in unusual places, and read values once or often, to find passes that treat such a graph wrongly.

  SUROGATE_LIBRARY=build/libsurogate.so python3 tests/oracle/model_random.py FIRST LAST [KEY=VALUE...]     seeds; settings of the run
"""
import json
import os
import random
import sys
import tempfile

import numpy as np

try:
    import torch
    import torch.nn.functional as F
except ImportError:  # models can be made, but not checked
    torch = F = None

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "python"))
from surogate import Trainer
from surogate.dsl import Array, Module, Param, Size, Tensor, block, build, forward, graph, hf_config, hf_mapping, model, normal
from surogate.dsl.render import to_json

SIZES = dict(V=29, C=16, F=24, H=4, G=2, D=4, L=2)
B, T, LIMIT = 2, 12, 1e-4


class Random:
    """Ops (name, inputs, output, attributes), and weights (name, shape, whether it is a linear layer's). Inputs "w:..." are weights."""

    def __init__(self, rng, values, prefix):
        self.rng, self.values, self.prefix, self.ops, self.weights = rng, values, prefix, [], []

    def chance(self, p):
        return self.rng.random() < p

    def weight(self, *shape, linear=False, share=0.15):
        same = [w for w in self.weights if w[1:] == (shape, linear)]
        if not same or not self.chance(share):
            same = [(f"{self.prefix}w{len(self.weights)}", shape, linear)]
            self.weights += same
        return "w:" + self.rng.choice(same)[0]

    def add(self, op, inputs, is_state=True, **attrs):
        out = f"{self.prefix}{len(self.ops)}"
        self.ops.append((op, inputs, out, attrs))
        if is_state:
            self.values.append(out)
        return out

    def pick(self):
        return self.rng.choice(self.values[-3:] if self.chance(0.7) else self.values)

    def linear(self, x, rows, cols="C"):
        bias = [self.weight(rows)] if self.chance(0.3) else []
        return self.add("linear", [x, self.weight(rows, cols, linear=True), *bias], rows == "C")

    def norm(self, x, size="C"):
        kind = self.rng.choice(["rms", "rms", "offset", "ones", "layer", "plain"])
        if kind == "ones":
            return self.add("ones_norm", [x], size == "C", size=size)
        weights = [] if kind == "plain" else [self.weight(size)]
        return self.add("layer_norm" if kind in ("layer", "plain") else "rms_norm", [x, *weights], size == "C", **{"offset": 1} if kind == "offset" else {})

    def attention(self, x):
        kv = self.rng.choice("HG")
        attrs = dict(num_heads="H", num_kv_heads=kv, head_dim="D")
        attrs |= {k: v for k, v, p in (("window", 3, 0.3), ("softcap", 2.0, 0.2), ("scale", 0.7, 0.2)) if self.chance(p)}
        heads = [self.linear(x if self.chance(0.8) else self.pick(), f"{n} * D") for n in ("H", kv, kv)]
        heads = [self.add("reshape", [y], False, dims=["B", "T", n, "D"]) for y, n in zip(heads, ("H", kv, kv))]
        normed, turned, again = self.chance(0.4), self.chance(0.6), self.chance(0.15)
        turn = {k: True for k in ("inverse", "interleaved") if self.chance(0.15)}
        for k in range(2):
            heads[k] = self.norm(heads[k], "D") if normed else heads[k]
            heads[k] = self.add("rope", [heads[k], "rope", "positions"], False, **turn) if turned else heads[k]
            heads[k] = self.norm(heads[k], "D") if again else heads[k]
        y = self.add("attention", [*heads, "doc_start"], False, **attrs)
        return self.linear(self.add("reshape", [y], False, dims=["B", "T", "H * D"]), "C", "H * D")

    def mlp(self, x):
        gate = self.linear(x, "F")
        up = gate if self.chance(0.1) else self.linear(x, "F")
        return self.linear(self.add("swiglu", [gate, up], False, **{"gelu": True} if self.chance(0.3) else {}), "C", "F")

    def step(self):
        x, kind = self.pick(), self.rng.choice(["attention"] * 2 + ["mlp"] * 2 + ["add", "mul", "scale", "norm", "gelu", "relu", "softcap", "columns", "linear"])
        if kind in ("attention", "mlp"):
            y = getattr(self, kind)(self.norm(x) if self.chance(0.7) else x)
            self.add("add", [x, y])
            if self.chance(0.7):
                self.norm(self.values[-1])
        elif kind in ("add", "mul"):
            self.add(kind, [x, self.pick()])
        elif kind == "norm":
            self.norm(x)
        elif kind == "columns":
            self.add("columns", [self.linear(x, "F")], begin=self.rng.choice([0, 3, 8]), size="C")
        elif kind == "linear":
            self.linear(x, "C")
        else:
            self.add(kind, [x], **{"scale": {"by": -1.5}, "softcap": {"cap": 1.5}, "relu": {"squared": True}}.get(kind, {}))


def make(seed):
    """Parts of a model: ops before, in and after the blocks; weights of the blocks and of the model."""
    rng = random.Random(seed)
    whole, body = Random(rng, [], "m"), Random(rng, ["x"], "b")
    embed = whole.weight("V", "C")
    whole.add("embedding", ["tokens", embed])
    before = len(whole.ops)
    for _ in range(rng.randint(1, 4)):
        body.step()
    body.add("add", ["x", body.pick()])
    whole.values += ["y", "y"]
    for _ in range(rng.randint(0, 2)):
        whole.step()
    head = embed if whole.chance(0.4) else whole.weight("V", "C", linear=True, share=0)
    logits = [("linear", [whole.norm(whole.values[-1]), head], "head", {}), ("softcap", ["head"], "logits", {"cap": 3.0})]
    if whole.chance(0.5):
        logits = [(*logits[0][:2], "logits", {})]
    loss = [("cross_entropy", ["logits", "labels"], "losses", {}), ("loss_sum", ["losses", "hyper"], "loss", {})]
    return whole.ops[:before], body.ops, whole.ops[before:] + logits + loss, body.weights, whole.weights


def dsl_class(parts):
    before, body, behind, body_weights, weights = parts

    def params(specs):
        return {n: Param(Tensor[shape], init=normal(0.3), **{"linear": True} if linear else {}) for n, shape, linear in specs}

    def run(self, g, ops, values):
        for op, inputs, out, attrs in ops:
            given = [getattr(self, i[2:]) if i.startswith("w:") else values[i] for i in inputs]
            if op == "reshape":
                values[out] = g.reshape(*given, *attrs["dims"], name=out)
            elif op == "ones_norm":
                values[out] = g.rms_norm(*given, g.full(size=attrs["size"], name=out + "_ones"), name=out)
            else:
                values[out] = getattr(g, op)(*given, name=out, **attrs)
            values |= {f"{out}.{k + 1}": value for k, value in enumerate(values[out].others)}
        return values

    class Block(Module):
        @forward
        def forward(self, x, rope, positions, doc_start, doc_id, step):
            with graph() as g:
                given = dict(x=x, rope=rope, positions=positions, doc_start=doc_start, doc_id=doc_id, step=step)
                return run(self, g, body, given)[body[-1][2]]

    class Whole(Module):
        blocks = Array["L", Block]

        @forward
        def forward(self, tokens, labels, positions, doc_start, doc_id, step, hyper):
            with graph() as g:
                values = dict(tokens=tokens, labels=labels, positions=positions, doc_start=doc_start, doc_id=doc_id, step=step, hyper=hyper)
                values["rope"] = g.rope_table(len="P", head_dim="D")
                run(self, g, before, values)
                values["y"] = self.blocks(values[before[-1][2]], values["rope"], positions, doc_start, doc_id, step)
                run(self, g, behind, values)
                return {k: values[k] for k in ("logits", "losses", "loss")}

    for cls, specs in ((Block, body_weights), (Whole, weights)):
        for name, spec in params(specs).items():
            setattr(cls, name, spec)
            spec.name = name
        hf_mapping({n: n + ".weight" for n, *_ in specs})(cls)
    hf_mapping.indexed("blocks", "blocks.{i}")(Whole)
    hf_config("RandomForCausalLM", max_positions=Size("max_positions"), **{s: Size(s.lower()) for s in SIZES})(Whole)
    block(Block)
    return model(Whole)


def size_of(dim):
    return eval(str(dim), {}, SIZES)


def turn(x, inverse=False, interleaved=False):
    half = x.shape[3] // 2
    angles = torch.arange(x.shape[1])[:, None] * 10000.0 ** (-torch.arange(half) / half)
    c, s = torch.cos(angles)[None, :, None], torch.sin(angles)[None, :, None] * (-1 if inverse else 1)
    a, b = (x[..., ::2], x[..., 1::2]) if interleaved else (x[..., :half], x[..., half:])
    y, z = a * c - b * s, b * c + a * s
    return torch.stack([y, z], -1).flatten(-2) if interleaved else torch.cat([y, z], -1)


def attend(q, k, v, num_heads, num_kv_heads, head_dim, window=0, softcap=0, scale=0):
    k, v = (x.repeat_interleave(size_of(num_heads) // size_of(num_kv_heads), 2) for x in (k, v))
    scores = torch.einsum("bthd,bshd->bhts", q, k) * (scale or size_of(head_dim) ** -0.5)
    scores = softcap * torch.tanh(scores / softcap) if softcap else scores
    i = torch.arange(q.shape[1])
    seen = (i[None] <= i[:, None]) & (i[None] > i[:, None] - (window or 1 << 20))
    return torch.einsum("bhts,bshd->bthd", torch.softmax(scores.masked_fill(~seen, -1e30), -1), v)


def rms(x, weight=1.0):
    return x * torch.rsqrt((x**2).mean(-1, keepdim=True) + 1e-6) * weight


OPS = {
    "embedding": lambda tokens, w: w[tokens],
    "linear": lambda x, w, bias=None: F.linear(x, w, bias),
    "reshape": lambda x, dims: x.reshape([x.shape["BT".index(d)] if d in ("B", "T") else size_of(d) for d in dims]),
    "ones_norm": lambda x, size: rms(x),
    "rms_norm": lambda x, w, offset=0: rms(x, w + offset),
    "layer_norm": lambda x, w=None: F.layer_norm(x, x.shape[-1:], w),
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "scale": lambda x, by: x * by,
    "softcap": lambda x, cap: cap * torch.tanh(x / cap),
    "gelu": lambda x: F.gelu(x),
    "relu": lambda x, squared: torch.relu(x) ** 2,
    "columns": lambda x, begin, size: x[..., begin : begin + size_of(size)],
    "swiglu": lambda gate, up, gelu=False: (F.gelu(gate, approximate="tanh") if gelu else F.silu(gate)) * up,
    "rope": lambda x, table, positions, **attrs: turn(x, **attrs),
    "attention": lambda q, k, v, doc_start, **attrs: attend(q, k, v, **attrs),
    "cross_entropy": lambda logits, labels: F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none"),
    "loss_sum": lambda losses, hyper: losses.mean(),
}


def torch_run(parts, weights, ids, labels, table=OPS, **given):
    values = dict.fromkeys(("positions", "doc_start", "doc_id", "step", "hyper", "rope")) | given
    values |= dict(tokens=torch.tensor(ids).long(), labels=torch.tensor(labels).long())

    def run(ops, values, prefix):
        for op, inputs, out, attrs in ops:
            named = dict(name=prefix + out) if op == "dropout" else {}
            made = table[op](*(weights[prefix + i[2:]] if i.startswith("w:") else values[i] for i in inputs), **attrs, **named)
            outs = made if isinstance(made, tuple) else (made,)
            values |= {f"{out}.{k}" if k else out: value for k, value in enumerate(outs)}
        return values[out]

    x = run(parts[0], values, "")
    for i in range(SIZES["L"]):
        x = run(parts[1], values | {"x": x}, f"blocks.{i}.")
    values["y"] = x
    run(parts[2], values, "")
    return values


def difference(loss, found, expected, gradients):
    """The largest difference of loss and gradients, and its name. A gradient's difference is relative to its norm or, if that is smaller, to
    1e-3 of the largest norm.
    """
    most = max((float(w.grad.norm()) for w in expected.values() if w.grad is not None), default=1.0)
    worst = [(abs(found - float(loss.detach())), "loss")]
    for name, weight in expected.items():
        want = np.zeros(weight.shape) if weight.grad is None else weight.grad.numpy()
        worst.append((float(np.linalg.norm(gradients[name] - want) / max(np.linalg.norm(want), 1e-3 * most)), name))
    return max(worst)


def to_torch(trainer):
    return {n: torch.tensor(trainer.weights(n).astype(np.float64), requires_grad=True) for n in trainer.parameters()}


def check_text(trainer, parts, weights, ids):
    """Compares log-probabilities, and the likeliest tokens after a prompt, unless two are nearly as likely."""
    logits = torch_run(parts, weights, ids[:, :-1], ids[:, 1:])["logits"].detach()
    expected = torch.log_softmax(logits, -1).gather(-1, torch.tensor(ids[:, 1:]).long()[..., None])[..., 0].numpy()
    worst = float(np.abs(trainer.logprobs(ids[:, :-1], ids[:, 1:]).reshape(expected.shape) - expected).max())
    text, gap = ids[:1, :5], 1.0
    for _ in range(4):
        last = torch_run(parts, weights, text, text)["logits"][0, -1].detach()
        likeliest = torch.topk(last, 2)
        gap = min(gap, float(likeliest.values[0] - likeliest.values[1]))
        text = np.append(text, [[int(likeliest.indices[0])]], 1)
    same = list(trainer.generate(ids[0, :5], max_tokens=4, temperature=0)) == list(text[0, 5:])
    return (worst, "logprobs") if same or gap < 1e-4 else (1.0, "text")


def check(seed, folder, settings):
    lora, parts = settings.get("lora") == "true", make(seed)
    config = {s.lower(): n for s, n in SIZES.items()} | {"architectures": ["RandomForCausalLM"], "max_positions": 64}
    for name, text in (("config.json", json.dumps(config)), ("ir.json", to_json(build(dsl_class(parts)).ir))):
        with open(os.path.join(folder, name), "w") as file:
            file.write(text)
    ids = np.random.default_rng(seed).integers(0, SIZES["V"], (B, T + 1), dtype=np.int32)
    common = dict(sequence_len=T, per_device_train_batch_size=B, gradient_accumulation_steps=1, max_steps=5, device="cpu", model_dtype="fp32", seed=seed + 1,
                  generate_samples=1, sample_max_tokens=8, output_dir=os.path.join(folder, "out"))
    with Trainer.from_scratch(folder, ir=os.path.join(folder, "ir.json"), **common | ({} if lora else settings)) as trainer:
        trained = to_torch(trainer)
        weights = {n.removesuffix(".weight"): w for n, w in trained.items()}
        found = [check_text(trainer, parts, weights, ids)]
        if lora:
            trainer.export_model(os.path.join(folder, "base"))
        else:
            trainer.step(ids[:, :-1], ids[:, 1:])
            trainer.backward()
            gradients = {n: trainer.gradients(n) for n in trained}
            loss = trainer.update(lr=1e-3).loss
    if lora:
        with Trainer.from_pretrained(os.path.join(folder, "base"), **common | {"lora_rank": 4, "lora_alpha": 8} | settings) as trainer:
            for _ in range(2):
                trainer.train_step(ids[:, :-1], ids[:, 1:], lr=3e-2)
            trained = to_torch(trainer)
            trainer.step(ids[:, :-1], ids[:, 1:])
            trainer.backward()
            gradients = {n: trainer.gradients(n) for n in trained}
            loss = trainer.update(lr=1e-3).loss
        for name in [n for n in trained if "lora_A" in n]:
            base = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            weights[base] = weights[base].detach() + 2 * trained[name.replace("lora_A", "lora_B")] @ trained[name]
    expected = torch_run(parts, weights, ids[:, :-1], ids[:, 1:])["loss"]
    expected.backward()
    return max(*found, difference(expected, loss, trained, gradients))


def main():
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    failed = 0
    for seed in range(int(sys.argv[1]), int(sys.argv[2])):
        with tempfile.TemporaryDirectory() as folder:
            try:
                error, what = check(seed, folder, dict(a.split("=", 1) for a in sys.argv[3:]))
            except Exception as problem:
                if "matches no linear layer" in str(problem):  # no linear layer leads to the loss
                    continue
                error, what = float("nan"), str(problem)
        if not error <= LIMIT:
            failed += 1
            print("FAIL %d: %s %.1e" % (seed, what, error), flush=True)
    print("%d models, %d failed" % (int(sys.argv[2]) - int(sys.argv[1]), failed))
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
