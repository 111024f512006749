#!/usr/bin/env python3
"""Writes tests/fixtures/dtype_knobs.json: losses and gradient norms of three AdamW steps for every pairing of model_dtype, matmul_dtype,
gradient_dtype and master_dtype (or lora_dtype), of the model and adapter in tests/fixtures/families/qwen3. Needs torch, safetensors.

All arithmetic is fp64. Values are rounded as docs/precision.md states: results of ops to model_dtype, operands of the blocks'
products to matmul_dtype and gradient_dtype, gradients of activations and weights, and stored weights. Products aren't fused. Stochastic
rounding is left out: weights stored in bf16 are updated without rounding, which is the mean of stochastic rounding.
"""
import json
import math
import os

import torch
from safetensors.torch import load_file

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = os.path.join(HERE, "..", "fixtures", "families", "qwen3")
ROWS, COLS, STEPS, RATE, VOCAB = 2, 24, 3, 0.01, 61
HEADS, KV, DIM, LAYERS = 4, 2, 8, 2
LORA_SCALE = 8 / math.sqrt(4)
LARGEST = {"e4m3": 448.0, "e5m2": 57344.0}
CODES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
torch.set_default_dtype(torch.float64)


def tokens():
    """Token ids, computed from row and column as in the test."""
    return torch.tensor([[(r * 31 + c * 7 + c * c % 11) % VOCAB for c in range(COLS + 1)] for r in range(ROWS)])


def to(x, dtype):
    return x.to(torch.bfloat16).to(torch.float64) if dtype == "bf16" else x


class Act(torch.autograd.Function):
    """Rounds an op's result to one dtype, and the gradient of the result to another."""

    @staticmethod
    def forward(ctx, x, dtype, gradient):
        ctx.gradient = gradient
        return to(x, dtype)

    @staticmethod
    def backward(ctx, d):
        return to(d, ctx.gradient), None, None


class Scales:
    """Delayed scales of FP8: computed from the largest magnitudes of earlier steps; for the first step from a pass that only measures."""

    def __init__(self):
        self.most, self.now, self.measuring = {}, {}, False

    def quantise(self, name, x, dtype, own=False):
        amax = x.abs().max().item()
        if not own:
            self.now[name] = max(self.now.get(name, 0), amax)
        if self.measuring and not own:
            return x
        scale = torch.tensor(LARGEST[dtype], dtype=torch.float32) / torch.tensor(amax if own else self.most[name], dtype=torch.float32)
        scaled = (x.to(torch.float32) * scale).clamp(-LARGEST[dtype], LARGEST[dtype])
        return scaled.to(CODES[dtype]).to(torch.float64) / scale.to(torch.float64)

    def step(self):
        for name, amax in self.now.items():
            self.most[name] = max(self.most.get(name, 0), amax)


class Product(torch.autograd.Function):
    """y = x w^T of a block, with operands rounded to matmul_dtype and gradient_dtype."""

    @staticmethod
    def forward(ctx, x, w, run, name):
        ctx.run, ctx.name = run, name
        ctx.save_for_backward(x, w)
        xq, wq = x, w
        if "e4m3" == run.matmul or run.gradient == "e5m2":
            alone = run.lora and run.matmul == "e4m3" and run.gradient == "e5m2"
            own = run.scales.measuring and alone
            xc = run.scales.quantise(name + ".x", x, "e4m3", own)
            if own:
                run.scales.now[name + ".x"] = max(run.scales.now.get(name + ".x", 0), x.abs().max().item())
            wc = run.scales.quantise(name, w, "e4m3", run.lora and (alone or not run.scales.measuring))
            ctx.codes = xc, wc
            if run.matmul == "e4m3":
                xq, wq = xc, wc
        if run.matmul == "bf16":
            xq, wq = to(x, "bf16"), to(w, "bf16")
        return to(xq @ wq.T, run.model)

    @staticmethod
    def backward(ctx, d):
        run = ctx.run
        x, w = ctx.saved_tensors
        if run.gradient == "e5m2":
            x, w = ctx.codes
            alone = run.lora and run.matmul == "e4m3"
            own = run.scales.measuring and alone
            dq = run.scales.quantise(ctx.name + ".dy", d, "e5m2", own)
            if own:
                run.scales.now[ctx.name + ".dy"] = max(run.scales.now.get(ctx.name + ".dy", 0), d.abs().max().item())
            d = dq
        elif run.gradient == "bf16":
            x, w, d = to(x, "bf16"), to(w, "bf16"), to(d, "bf16")
        flat = d.reshape(-1, d.shape[-1])
        return d @ w, flat.T @ x.reshape(-1, x.shape[-1]), None, None


class Run:
    def __init__(self, model, matmul, gradient, kept, lora):
        self.model, self.matmul, self.gradient, self.lora = model, matmul, gradient, lora
        self.flow = "fp32" if "fp32" in (model, gradient) else "bf16"  # gradients of activations
        self.scales = Scales()
        weights = {k: v.double() for k, v in load_file(os.path.join(FOLDER, "model.safetensors")).items()}
        adapter = {}
        if lora:
            adapter = load_file(os.path.join(FOLDER, "adapter", "adapter_model.safetensors"))
            adapter = {k.replace("base_model.model.", ""): v.double() for k, v in adapter.items()}
        self.frozen = weights if lora else {}
        self.trained = {k: to(v, kept) for k, v in (adapter if lora else weights).items()}
        wide = model == "bf16" and matmul == "fp32" and kept == "fp32" and not lora
        self.work = {k: "fp32" if wide and self.is_linear(k) else model for k in weights}
        wide_sums = model == "fp32" or gradient == "fp32" or wide or (lora and kept == "fp32")
        self.sums = "fp32" if wide_sums else "bf16"  # gradients of weights
        self.moments = {k: [torch.zeros_like(v), torch.zeros_like(v)] for k, v in self.trained.items()}
        self.count = 0

    @staticmethod
    def is_linear(name):
        return "_proj." in name

    def leaves(self):
        """The weights that products read."""
        out = {k: to(v, self.model) for k, v in self.frozen.items()}
        out.update({k: to(v, self.work.get(k, self.model)).clone().requires_grad_(True) for k, v in self.trained.items()})
        return out

    def act(self, x):
        return Act.apply(x, self.model, self.flow)

    def linear(self, w, x, path):
        y = self.act(Product.apply(x, w[path + ".weight"], self, path))
        if not self.lora:
            return y
        a, b = w[path + ".lora_A.weight"], w[path + ".lora_B.weight"]
        return self.act(y + LORA_SCALE * (self.act(x @ a.T) @ b.T))

    def norm(self, x, w):
        return self.act(x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * w)

    def rope(self, x):
        at = torch.arange(COLS)[:, None] * 1e6 ** (-torch.arange(DIM // 2) * 2 / DIM)
        cos, sin = at.cos()[None, :, None], at.sin()[None, :, None]
        a, b = x[..., : DIM // 2], x[..., DIM // 2 :]
        return self.act(torch.cat([a * cos - b * sin, b * cos + a * sin], -1))

    def attention(self, w, x, path):
        q = self.linear(w, x, path + ".q_proj").reshape(ROWS, COLS, HEADS, DIM)
        k = self.linear(w, x, path + ".k_proj").reshape(ROWS, COLS, KV, DIM)
        v = self.linear(w, x, path + ".v_proj").reshape(ROWS, COLS, KV, DIM)
        q = self.rope(self.norm(q, w[path + ".q_norm.weight"]))
        k = self.rope(self.norm(k, w[path + ".k_norm.weight"]))
        k, v = (t.repeat_interleave(HEADS // KV, 2) for t in (k, v))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(DIM)
        scores = scores.masked_fill(torch.ones(COLS, COLS).triu(1).bool(), -math.inf)
        y = self.act(torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v))
        return self.linear(w, y.reshape(ROWS, COLS, HEADS * DIM), path + ".o_proj")

    def forward(self, w, ids):
        embed = w["model.embed_tokens.weight"]
        x = self.act(embed[ids[:, :-1]])
        for i in range(LAYERS):
            path = "model.layers.%d" % i
            x = self.act(x + self.attention(w, self.norm(x, w[path + ".input_layernorm.weight"]), path + ".self_attn"))
            h = self.norm(x, w[path + ".post_attention_layernorm.weight"])
            gate, up = self.linear(w, h, path + ".mlp.gate_proj"), self.linear(w, h, path + ".mlp.up_proj")
            x = self.act(x + self.linear(w, self.act(torch.nn.functional.silu(gate) * up), path + ".mlp.down_proj"))
        logits = self.act(self.norm(x, w["model.norm.weight"]) @ embed.T)
        return torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), ids[:, 1:].reshape(-1))

    def gradients(self, ids):
        w = self.leaves()
        loss = self.forward(w, ids)
        loss.backward()
        return loss.item(), {k: to(w[k].grad, self.sums) for k in self.trained}

    def step(self, ids):
        if self.count == 0 and (self.matmul == "e4m3" or self.gradient == "e5m2"):
            self.scales.measuring = True
            self.gradients(ids)
            self.scales.measuring = False
            self.scales.step()
        loss, grads = self.gradients(ids)
        self.scales.step()
        self.count += 1
        for name, g in grads.items():
            m, v = self.moments[name]
            m.mul_(0.9).add_(g, alpha=0.1)
            v.mul_(0.999).addcmul_(g, g, value=0.001)
            root = (v / (1 - 0.999**self.count)).sqrt() + 0.1
            self.trained[name] = self.trained[name] - RATE * (m / (1 - 0.9**self.count)) / root
        return loss, math.sqrt(sum((g * g).sum().item() for g in grads.values()))


def trains(model, matmul, gradient):
    """Whether the combination trains: a bf16 model has no product of e5m2 and fp32."""
    return gradient != "e5m2" or model != "bf16" or matmul != "fp32"


def main():
    ids, runs = tokens(), []
    for lora in (False, True):
        for model in ("fp32", "bf16"):
            for matmul in ("fp32", "bf16", "e4m3"):
                for gradient in ("fp32", "bf16", "e5m2"):
                    for kept in ("fp32", "bf16"):
                        row = {"lora": lora, "model": model, "matmul": matmul, "gradient": gradient, "kept": kept}
                        if trains(model, matmul, gradient):
                            run = Run(model, matmul, gradient, kept, lora)
                            steps = [run.step(ids) for _ in range(STEPS)]
                            row["losses"], row["norms"] = [[float("%.9g" % s[i]) for s in steps] for i in (0, 1)]
                        runs.append(row)
    with open(os.path.join(HERE, "..", "fixtures", "dtype_knobs.json"), "w") as file:
        file.write("[\n" + ",\n".join(json.dumps(row) for row in runs) + "\n]\n")


main()
