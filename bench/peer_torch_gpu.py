#!/usr/bin/env python3
"""The peer of the GPU benchmark for models with windows and caps: LoRA training with PyTorch, one JSON line.

A decoder of the Mistral or Gemma-2 kind written out and tuned as a careful PyTorch user would: torch.compile, compiled
flex_attention with block masks (the cap of scores as score_mod), fused q/k/v and gate/up projections, a chunked cross
entropy that computes its gradient on the way forward and never holds all logits, fused AdamW. The base is bf16 and
frozen; adapters on all seven projections are fp32 and multiply in bf16. Weights are random and made on the GPU, tokens
are random too. The model is described by a folder's config.json.

  surogate new --arch mistral-7b-v0.1 build/mistral
  python3 bench/peer_torch_gpu.py --model build/mistral --seq 8192
  python3 bench/peer_torch_gpu.py --model build/tiny --seq 64 --device cpu --compile none
"""
import argparse
import json
import math
import os
import statistics
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

ALPHA = 2.0  # the adapters' products are multiplied by ALPHA / rank


class Config:
    """The fields of a Hugging Face config.json that matter here."""

    def __init__(self, c):
        if c["model_type"] not in ("llama", "mistral", "gemma2"):
            sys.exit("error: model_type %r is not one of llama, mistral, gemma2" % c["model_type"])
        self.gemma = c["model_type"] == "gemma2"
        self.hidden, self.layers = c["hidden_size"], c["num_hidden_layers"]
        self.heads, self.kv_heads = c["num_attention_heads"], c["num_key_value_heads"]
        self.head_dim = c.get("head_dim") or self.hidden // self.heads
        self.inter, self.vocab = c["intermediate_size"], c["vocab_size"]
        self.eps, self.tied = c["rms_norm_eps"], bool(c.get("tie_word_embeddings", self.gemma))
        self.theta = c.get("rope_theta", 1e4)
        self.scale = c.get("query_pre_attn_scalar", self.head_dim) ** -0.5
        self.score_cap, self.logit_cap = c.get("attn_logit_softcapping"), c.get("final_logit_softcapping")
        window = c.get("sliding_window") or 0
        self.windows = [0 if self.gemma and i % 2 else window for i in range(self.layers)]


class RMSNorm(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.eps, self.offset = c.eps, 1.0 if c.gemma else 0.0
        self.weight = nn.Parameter(torch.full((c.hidden,), 1.0 - self.offset))

    def forward(self, x):
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        return (h * (self.weight.float() + self.offset)).to(x.dtype)


class Adapted(nn.Module):
    """One matrix for all projections that read the same input, and an adapter for each projection."""

    def __init__(self, columns, rows, rank):
        super().__init__()
        self.rows, self.rank = rows, rank
        self.weight = nn.Parameter(torch.empty(sum(rows), columns).normal_(0.0, 0.02))
        self.a = nn.Parameter(torch.empty(rank * len(rows), columns, dtype=torch.float32).normal_(0.0, columns ** -0.5))
        self.b = nn.Parameter(torch.zeros(sum(rows), rank, dtype=torch.float32))

    def forward(self, x):
        low = F.linear(x, self.a.to(x.dtype)).split(self.rank, -1)
        b = (self.b * ALPHA).to(x.dtype).split(self.rows, 0)
        y = F.linear(x, self.weight).split(self.rows, -1)
        return [y + F.linear(low, b) for y, low, b in zip(y, low, b)]


class Block(nn.Module):
    def __init__(self, c, rank, cap):
        super().__init__()
        self.c, self.cap = c, cap
        inner, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
        self.norms = nn.ModuleList([RMSNorm(c) for _ in range(4 if c.gemma else 2)])
        self.qkv, self.out = Adapted(c.hidden, [inner, kv, kv], rank), Adapted(inner, [c.hidden], rank)
        self.gate_up = Adapted(c.hidden, [c.inter, c.inter], rank)
        self.down = Adapted(c.inter, [c.hidden], rank)

    def attend(self, x, cos, sin, mask):
        b, t, _ = x.shape
        q, k, v = [y.view(b, t, -1, self.c.head_dim).transpose(1, 2) for y in self.qkv(x)]
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        attention = flex_attention if q.is_cuda else plain_attention
        y = attention(q, k, v, score_mod=self.cap, block_mask=mask, scale=self.c.scale, enable_gqa=self.c.heads != self.c.kv_heads)
        return self.out(y.transpose(1, 2).reshape(b, t, -1))[0]

    def feed(self, x):
        gate, up = self.gate_up(x)
        gate = F.gelu(gate, approximate="tanh") if self.c.gemma else F.silu(gate)
        return self.down(gate * up)[0]

    def forward(self, x, cos, sin, mask):
        if not self.c.gemma:
            x = x + self.attend(self.norms[0](x), cos, sin, mask)
            return x + self.feed(self.norms[1](x))
        x = x + self.norms[1](self.attend(self.norms[0](x), cos, sin, mask))
        return x + self.norms[3](self.feed(self.norms[2](x)))


def rotate(x, cos, sin):
    """Rotary embedding of x [B, heads, T, head_dim] in halves; cos, sin [T, head_dim / 2] in fp32."""
    a, b = x.float().chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


def plain_attention(q, k, v, score_mod, block_mask, scale, enable_gqa):
    """The computation of flex_attention, which has no backward pass on CPUs."""
    at = torch.arange(q.shape[2])
    k, v = [x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v)]
    s = q @ k.transpose(-1, -2) * scale
    s = score_mod(s, 0, 0, 0, 0) if score_mod else s
    return s.masked_fill(~block_mask.mask_mod(0, 0, at[:, None], at[None, :]), -math.inf).softmax(-1) @ v


def mask_of(window, seq, device):
    """Mask of keys up to the query's own position; window 0: all of them."""
    def near(b, h, q, k):
        return (q >= k) & (q - k < (window or seq))
    return create_block_mask(near, None, None, seq, seq, device=device)


def cap_of(cap, by):
    """The score_mod cap tanh(s / cap). With exp it is equal up to rounding, and takes fewer instructions."""
    if not cap:
        return None
    if by == "tanh":
        return lambda s, b, h, q, k: cap * torch.tanh(s / cap)
    return lambda s, b, h, q, k: cap - 2 * cap / (torch.exp(s * (2 / cap)) + 1)


class Decoder(nn.Module):
    """The model up to its last norm."""

    def __init__(self, c, seq, rank, cap_by):
        super().__init__()
        self.c = c
        self.embed = nn.Parameter(torch.empty(c.vocab, c.hidden).normal_(0.0, 0.02))
        self.head = self.embed if c.tied else nn.Parameter(torch.empty(c.vocab, c.hidden).normal_(0.0, 0.02))
        cap = cap_of(c.score_cap, cap_by)
        self.blocks = nn.ModuleList([Block(c, rank, cap) for _ in range(c.layers)])
        self.norm = RMSNorm(c)
        inv = c.theta ** (-torch.arange(0, c.head_dim, 2, dtype=torch.float64) / c.head_dim)
        angle = torch.outer(torch.arange(seq, dtype=torch.float64), inv)
        self.register_buffer("cos", angle.cos().float(), persistent=False)
        self.register_buffer("sin", angle.sin().float(), persistent=False)

    def forward(self, ids, masks):
        x = F.embedding(ids, self.embed)
        if self.c.gemma:
            x = x * self.c.hidden ** 0.5
        for block, window in zip(self.blocks, self.c.windows):
            x = block(x, self.cos, self.sin, masks[window])
        return self.norm(x)


def chunk_loss(h, head, labels, cap, share):
    """Summed loss of one chunk of tokens, and `share` times the gradient of its hidden values."""
    z = (h @ head.t()).float()
    logits = cap * torch.tanh(z / cap) if cap else z
    log_sum = torch.logsumexp(logits, -1, keepdim=True)
    hot = torch.arange(logits.shape[1], device=h.device)[None, :] == labels[:, None]
    grad = (torch.exp(logits - log_sum) - hot.float()) * share
    if cap:
        grad = grad * (1 - (logits / cap) ** 2)
    return (log_sum - logits.gather(1, labels[:, None])).sum(), grad.to(h.dtype) @ head


class ChunkedLoss(torch.autograd.Function):
    """`share` times the summed cross entropy of h @ head^T; the head is frozen."""

    @staticmethod
    def forward(ctx, h, head, labels, cap, share, chunk, step):
        grad, loss = torch.empty_like(h), torch.zeros((), device=h.device)
        for i in range(0, h.shape[0], chunk):
            part, grad[i:i + chunk] = step(h[i:i + chunk], head, labels[i:i + chunk], cap, share)
            loss += part
        ctx.save_for_backward(grad)
        return loss * share

    @staticmethod
    def backward(ctx, scale):
        return ctx.saved_tensors[0] * scale.to(ctx.saved_tensors[0].dtype), None, None, None, None, None, None


def compiled(model, mode):
    """The functions that compute the model and a chunk of the loss."""
    if mode == "none":
        return model, chunk_loss
    if mode == "layer":
        for block in model.blocks:
            block.compile(dynamic=False)
    return (torch.compile(model, dynamic=False) if mode == "model" else model), torch.compile(chunk_loss, dynamic=False)


def make(c, args):
    dtype = torch.bfloat16 if args.device == "cuda" else torch.float32
    torch.manual_seed(0)
    torch.set_default_dtype(dtype)
    with torch.device(args.device):
        model = Decoder(c, args.seq, args.rank, args.cap_by)
    torch.set_default_dtype(torch.float32)
    model.requires_grad_(False)
    for part in model.modules():
        if isinstance(part, Adapted):
            part.a.requires_grad_(True)
            part.b.requires_grad_(True)
    return model


def measure(c, args):
    """Median tokens/s over the timed steps."""
    began = time.perf_counter()
    model = make(c, args)
    run, step_of_chunk = compiled(model, args.compile)
    masks = {w: mask_of(w, args.seq, args.device) for w in set(c.windows)}
    train = [p for p in model.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(train, lr=1e-4, weight_decay=0.01, fused=True)
    tokens = torch.randint(0, c.vocab, (args.accum, args.batch, args.seq + 1), device=args.device)
    share = 1.0 / (args.accum * args.batch * args.seq)
    wait = torch.cuda.synchronize if args.device == "cuda" else lambda: None
    times, loss = [], 0.0
    while len(times) < args.warmup + args.steps:
        wait()
        start = time.perf_counter()
        losses = []
        for t in tokens:
            h = run(t[:, :-1], masks).reshape(-1, c.hidden)
            part = ChunkedLoss.apply(h, model.head, t[:, 1:].reshape(-1), c.logit_cap, share, args.chunk, step_of_chunk)
            part.backward()
            losses.append(part.detach())
        nn.utils.clip_grad_norm_(train, 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        wait()
        times.append(time.perf_counter() - start)
        loss = float(sum(losses))
    if not math.isfinite(loss):
        sys.exit("error: the loss is not finite")
    timed = times[args.warmup:]
    median, count = statistics.median(timed), args.accum * args.batch * args.seq
    return dict(peer="torch", mode=args.compile, model=args.model, cap_by=args.cap_by if c.score_cap else None, batch=args.batch,
                accum=args.accum, seq=args.seq, rank=args.rank, parameters=sum(p.numel() for p in model.parameters()),
                trained=sum(p.numel() for p in train), steps=len(timed), step_ms=round(1e3 * median, 1),
                best_step_ms=round(1e3 * min(timed), 1), tokens_per_second=round(count / median, 1),
                best_tokens_per_second=round(count / min(timed), 1), first_step_s=round(times[0], 1),
                whole_s=round(time.perf_counter() - began, 1), loss=round(loss, 4),
                memory_gib=round(torch.cuda.max_memory_allocated() / 2**30, 1) if args.device == "cuda" else None,
                gpu=torch.cuda.get_device_name() if args.device == "cuda" else None, torch=str(torch.__version__))


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--model", required=True, help="folder with config.json of model_type llama, mistral or gemma2")
    ap.add_argument("--batch", type=int, default=2, help="rows of a micro-batch")
    ap.add_argument("--accum", type=int, default=4, help="micro-batches of a step")
    ap.add_argument("--seq", type=int, default=8192)
    ap.add_argument("--rank", type=int, default=16)
    ap.add_argument("--layers", type=int, help="only so many layers")
    ap.add_argument("--compile", default="layer", choices=["none", "layer", "model"],
                    help="each layer (compiled once for all of a kind) or the whole model at once")
    ap.add_argument("--cap-by", default="tanh", choices=["tanh", "exp"], help="how scores are capped")
    ap.add_argument("--chunk", type=int, default=2048, help="tokens whose logits are made at a time")
    ap.add_argument("--warmup", type=int, default=2, help="steps not counted")
    ap.add_argument("--steps", type=int, default=4, help="steps timed")
    ap.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    args = ap.parse_args()
    with open(os.path.join(args.model, "config.json")) as f:
        raw = json.load(f)
    if args.layers:
        raw["num_hidden_layers"] = args.layers
    if args.device == "cuda" and not torch.cuda.is_available():
        sys.exit("error: PyTorch sees no CUDA GPU; --device cpu --compile none tries the script without one")
    print(json.dumps(measure(Config(raw), args)), flush=True)


if __name__ == "__main__":
    main()
