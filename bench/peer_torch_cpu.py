#!/usr/bin/env python3
"""The peer of the CPU benchmark: training with PyTorch, in fp32 or bf16, eager and torch.compile, one JSON line each.

A decoder of the Llama/Qwen2/Qwen3 kind written out and tuned as a careful PyTorch user would: fused q/k/v and gate/up
projections, scaled_dot_product_attention, one cross entropy over all tokens, fused AdamW, gradient clipping, no copies
of the batch. The model is described by a folder's config.json, or is the built-in 15M Llama. Tokens are random.

  python3 bench/peer_torch_cpu.py --model llama-15m --batch 4
  python3 bench/peer_torch_cpu.py --model build/quickstart-model --batch 8 --modes eager
"""
import argparse
import json
import math
import os
import statistics
import sys
import time

# glibc returns large blocks to the kernel at every free and pays page faults at every malloc: eager steps of llama-15m take 1.4 times as
# long. Careful users avoid this (the tuning guide uses jemalloc); here glibc keeps the blocks.
KEEP_MEMORY = dict(MALLOC_MMAP_MAX_="0", MALLOC_TRIM_THRESHOLD_="100000000000", MALLOC_TOP_PAD_="268435456")
if __name__ == "__main__" and "--stock-malloc" not in sys.argv and "MALLOC_MMAP_MAX_" not in os.environ:
    os.execve(sys.executable, [sys.executable] + sys.argv, {**os.environ, **KEEP_MEMORY})

import torch
import torch._inductor.config
import torch.nn as nn
import torch.nn.functional as F

BUILT_IN = {
    "llama-15m": dict(model_type="llama", hidden_size=288, num_hidden_layers=6, num_attention_heads=6,
                      num_key_value_heads=6, intermediate_size=768, vocab_size=32000, rms_norm_eps=1e-5,
                      rope_theta=1e4, tie_word_embeddings=True),
    "qwen3-6x256": dict(model_type="qwen3", hidden_size=256, num_hidden_layers=6, num_attention_heads=4,
                        num_key_value_heads=2, head_dim=64, intermediate_size=768, vocab_size=4096, rms_norm_eps=1e-6,
                        rope_theta=1e6, tie_word_embeddings=True),
}


class Config:
    """The fields of a Hugging Face config.json that matter here."""

    def __init__(self, c):
        if c["model_type"] not in ("llama", "qwen2", "qwen3"):
            sys.exit("error: model_type %r is not one of llama, qwen2, qwen3" % c["model_type"])
        self.hidden, self.layers = c["hidden_size"], c["num_hidden_layers"]
        self.heads, self.kv_heads = c["num_attention_heads"], c["num_key_value_heads"]
        self.head_dim = c.get("head_dim") or self.hidden // self.heads
        self.inter, self.vocab = c["intermediate_size"], c["vocab_size"]
        self.eps, self.tied = c["rms_norm_eps"], bool(c.get("tie_word_embeddings"))
        rope = c.get("rope_parameters") or {}
        self.theta = c.get("rope_theta") or rope.get("rope_theta", 1e4)
        self.qk_norm, self.qkv_bias = c["model_type"] == "qwen3", c["model_type"] == "qwen2"


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.split = [c.heads * c.head_dim, c.kv_heads * c.head_dim, c.kv_heads * c.head_dim]
        self.norm1, self.norm2 = nn.RMSNorm(c.hidden, c.eps), nn.RMSNorm(c.hidden, c.eps)
        self.qkv = nn.Linear(c.hidden, sum(self.split), bias=c.qkv_bias)
        self.out = nn.Linear(self.split[0], c.hidden, bias=False)
        if c.qk_norm:
            self.q_norm, self.k_norm = nn.RMSNorm(c.head_dim, c.eps), nn.RMSNorm(c.head_dim, c.eps)
        self.gate_up = nn.Linear(c.hidden, 2 * c.inter, bias=False)
        self.down = nn.Linear(c.inter, c.hidden, bias=False)

    def attend(self, x, cos, sin):
        b, t, _ = x.shape
        q, k, v = [y.view(b, t, -1, self.c.head_dim).transpose(1, 2) for y in self.qkv(x).split(self.split, -1)]
        if self.c.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.c.heads != self.c.kv_heads)
        return self.out(y.transpose(1, 2).reshape(b, t, -1))

    def forward(self, x, cos, sin):
        x = x + self.attend(self.norm1(x), cos, sin)
        gate, up = self.gate_up(self.norm2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


def rotate(x, cos, sin):
    """Rotary embedding of x [B, heads, T, head_dim] in halves; cos, sin [T, head_dim / 2]."""
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Decoder(nn.Module):
    def __init__(self, c, seq):
        super().__init__()
        self.embed = nn.Embedding(c.vocab, c.hidden)
        self.blocks = nn.ModuleList([Block(c) for _ in range(c.layers)])
        self.norm = nn.RMSNorm(c.hidden, c.eps)
        self.head = nn.Linear(c.hidden, c.vocab, bias=False)
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, 0.0, 0.02)
        if c.tied:
            self.head.weight = self.embed.weight
        inv = c.theta ** (-torch.arange(0, c.head_dim, 2, dtype=torch.float64) / c.head_dim)
        angle = torch.outer(torch.arange(seq, dtype=torch.float64), inv)
        self.register_buffer("cos", angle.cos().float(), persistent=False)
        self.register_buffer("sin", angle.sin().float(), persistent=False)

    def forward(self, ids, labels):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return F.cross_entropy(self.head(self.norm(x)).view(-1, self.head.out_features), labels.view(-1))


def measure(c, mode, args):
    """Median tokens/s over the timed steps of one mode."""
    torch.manual_seed(0)
    model = Decoder(c, args.seq).to({"fp32": torch.float32, "bf16": torch.bfloat16}[args.dtype])
    run = torch.compile(model, dynamic=False) if mode == "compile" else model
    decay = [p for p in model.parameters() if p.dim() == 2]
    rest = [p for p in model.parameters() if p.dim() != 2]
    opt = torch.optim.AdamW([dict(params=decay, weight_decay=0.1), dict(params=rest, weight_decay=0.0)], lr=3e-4,
                            betas=(0.9, 0.95), fused=True)
    tokens = torch.randint(0, c.vocab, (4, args.batch, args.seq + 1))
    batches = [(t[:, :-1].contiguous(), t[:, 1:].contiguous()) for t in tokens]
    times, loss, began = [], None, time.perf_counter()
    while len(times) < args.warmup + 3 or (len(times) < args.warmup + args.steps
                                           and sum(times[args.warmup:]) < args.seconds):
        start = time.perf_counter()
        ids, labels = batches[len(times) % len(batches)]
        loss = run(ids, labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        times.append(time.perf_counter() - start)
    loss = float(loss.detach())
    if not math.isfinite(loss):
        sys.exit("error: the loss is not finite")
    timed = times[args.warmup:]
    median = statistics.median(timed)
    return dict(peer="torch", mode=mode, dtype=args.dtype, model=args.model, parameters=sum(p.numel() for p in model.parameters()),
                batch=args.batch, seq=args.seq, threads=args.threads, stock_malloc=args.stock_malloc, steps=len(timed),
                step_ms=round(1e3 * median, 2), best_step_ms=round(1e3 * min(timed), 2),
                tokens_per_second=round(args.batch * args.seq / median, 1),
                best_tokens_per_second=round(args.batch * args.seq / min(timed), 1),
                first_step_s=round(times[0], 2), whole_s=round(time.perf_counter() - began, 1), loss=round(loss, 4),
                torch=str(torch.__version__))


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--model", default="llama-15m", help="folder with config.json, or: " + ", ".join(BUILT_IN))
    ap.add_argument("--batch", type=int, default=4)
    ap.add_argument("--seq", type=int, default=512)
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--modes", default="eager,compile")
    ap.add_argument("--dtype", default="fp32", choices=("fp32", "bf16"), help="of weights, activations and moments")
    ap.add_argument("--simdlen", type=int, help="bits of the vectors that torch.compile writes; default: the processor's")
    ap.add_argument("--warmup", type=int, default=2, help="steps not counted")
    ap.add_argument("--steps", type=int, default=20, help="most steps timed")
    ap.add_argument("--seconds", type=float, default=20, help="stop timing after this long, but not before 3 steps")
    ap.add_argument("--stock-malloc", action="store_true", help="leave glibc's malloc as it is")
    args = ap.parse_args()
    if args.model in BUILT_IN:
        raw = BUILT_IN[args.model]
    else:
        with open(os.path.join(args.model, "config.json")) as f:
            raw = json.load(f)
    torch.set_num_threads(args.threads)
    torch._inductor.config.cpp.simdlen = args.simdlen
    for mode in args.modes.split(","):
        if mode not in ("eager", "compile"):
            sys.exit("error: --modes takes eager and compile, not %r" % mode)
        print(json.dumps(measure(Config(raw), mode, args)), flush=True)


if __name__ == "__main__":
    main()
