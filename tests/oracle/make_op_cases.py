#!/usr/bin/env python3
"""Writes tests/fixtures/ops.safetensors: inputs and results of single ops, from PyTorch in double precision.

Tensors are named OP.CASE.inK and OP.CASE.outK, K as in src/ops/ops.def: an absent optional input has no tensor, an
output that has none isn't compared. Integers are I32 (step, segments, counts: I64), codes U8 or FP8, the rest F32. Codes of 4 bits
are two a byte: under a name that ends in .nf4 the first code is in the high bits, under .e2m1 in the low bits. The metadata key `cases` is
JSON: {"OP.CASE": {attribute: value, ...}, ...}. Backward results come from autograd through the forward formula, never
from a backward formula. Inputs are rounded to F32 first; results are computed in fp64 and rounded last.

  python3 tests/oracle/make_op_cases.py
"""
import json
import math
import os

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures", "ops.safetensors")
IGNORE = -100
rng = torch.Generator().manual_seed(5)
tensors, cases = {}, {}
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def rand(*dims, std=1.0, mean=0.0):
    """Normally distributed numbers that F32 can hold, as fp64."""
    return (mean + std * torch.randn(*dims, generator=rng)).float().double()


def ints(low, high, *dims):
    return torch.randint(low, high, dims, generator=rng)


def add(op, case, ins, outs, **attrs):
    def put(kind, k, t, wide=False):
        if t is None:
            return
        t = t.detach()
        name = "%s.%s.%s%d" % (op, case, kind, k)
        if (op, kind, k) in (("nf4_quantise", "out", 0), ("nf4_dequantise", "in", 0)):
            name, t = name + ".nf4", t[:, ::2] << 4 | t[:, 1::2]
        if (op, kind, k) in (("nvfp4_dequantise", "in", 0), ("fp4_linear", "in", 0), ("fp4_linear", "in", 1)):
            name, t = name + ".e2m1", t[:, ::2] | t[:, 1::2] << 4
        dtype = t.dtype if t.dtype in (torch.bfloat16, torch.float16, torch.int8, torch.uint8, E4M3, E5M2) else torch.float32 if t.is_floating_point() else torch.int64 if wide else torch.int32
        tensors[name] = t.to(dtype).clone(memory_format=torch.contiguous_format)
    wide = {"adamw": (7, 8), "normuon_update": (6,), "step_scalars": (3,), "step_result": (3,), "tell_rows": (0,), "tell_ids": (0,),
            "fp8_update": (5,), "replace_rows": (1,), "rows_at": (1,)}.get(op, ())
    for k, t in enumerate(ins):
        put("in", k, t, k in wide)
    for k, t in enumerate(outs):
        put("out", k, t, op == "step_scalars" or (op == "tell_ids" and k == 1))
    assert "%s.%s" % (op, case) not in cases
    cases["%s.%s" % (op, case)] = attrs


def grads(fn, inputs, upstream):
    """d<fn(inputs), upstream> / dinputs."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    return torch.autograd.grad(fn(*leaves), leaves, upstream)


def f32(x):
    """The value as a forward op would have stored it."""
    return x.detach().float().double()


# ---- formulas ----

def rms_norm(x, w, eps):
    return x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + eps) * w


def rms_rstd(x, eps):
    return 1 / torch.sqrt(x.pow(2).mean(-1) + eps)


def rope_table(length, dim, theta, frequencies=None, scale=1.0):
    plain = theta ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    frequencies = torch.tensor(frequencies, dtype=torch.float64) if frequencies else plain
    angle = torch.outer(torch.arange(length, dtype=torch.float64), frequencies)
    return torch.cat((angle.cos(), angle.sin()), -1) * scale


def rope(x, table, positions):
    """x (B,T,H,D): pairs (i, i + D/2) are rotated."""
    half = x.shape[-1] // 2
    cos, sin = table[positions][:, :, None, :half], table[positions][:, :, None, half:]
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def scores(q, k, doc_start, window=0, softcap=0.0):
    """q (B,T,H,D), k (B,T,G,D) -> (B,H,T,T), -inf where token t must not see. The window is transformers' sliding_window."""
    b, t, h, d = q.shape
    k = k.repeat_interleave(h // k.shape[2], dim=2)
    s = torch.einsum("bthd,bshd->bhts", q, k) / math.sqrt(d)
    if softcap:
        s = softcap * torch.tanh(s / softcap)
    at = torch.arange(t)
    seen = (at[None, None, :] <= at[None, :, None]) & (at[None, None, :] >= doc_start[:, :, None])
    if window:
        seen &= at[None, None, :] > at[None, :, None] - window
    return s.masked_fill(~seen[:, None], -torch.inf)


def full_scores(q, k, doc_start, window=0, softcap=0.0, bias=None, bidirectional=False):
    """As scores; bias (R,H) is by distance: 0, 1, ..; bidirectional: -(R // 2) to R // 2. The last entries also hold for larger distances.
    """
    b, t, h, d = q.shape
    s = torch.einsum("bthd,bshd->bhts", q, k.repeat_interleave(h // k.shape[2], dim=2)) / math.sqrt(d)
    if softcap:
        s = softcap * torch.tanh(s / softcap)
    at = torch.arange(t)
    distance = at[:, None] - at[None, :]
    if bias is not None:
        half = bias.shape[0] // 2 if bidirectional else 0
        s = s + bias[(distance + half).clamp(0, bias.shape[0] - 1)].permute(2, 0, 1)
    seen = doc_start[:, :, None] == doc_start[:, None, :]
    seen = seen & (distance >= 0) if not bidirectional else seen
    seen = seen & (distance.abs() < window) if window else seen
    return s.masked_fill(~seen[:, None], -torch.inf)


def full_attention(q, k, v, doc_start, sinks=None, **how):
    """-> o (B,T,H,E), lse (B,H,T). As in gpt-oss, a sink is a column of the softmax that is dropped afterwards."""
    s = full_scores(q, k, doc_start, **how)
    if sinks is not None:
        s = torch.cat((s, sinks[None, :, None, None].expand(*s.shape[:3], 1)), -1)
    p, values = s.softmax(-1)[..., :q.shape[1]], v.repeat_interleave(q.shape[2] // v.shape[2], dim=2)
    return torch.einsum("bhts,bshd->bthd", p, values), s.logsumexp(-1)


def attention(q, k, v, doc_start, **how):
    p = scores(q, k, doc_start, **how).softmax(-1)
    return torch.einsum("bhts,bshd->bthd", p, v.repeat_interleave(q.shape[2] // v.shape[2], dim=2))


def split_qkv(packed, h, g):
    b, t, c = packed.shape
    d = c // (h + 2 * g)
    return [y.view(b, t, -1, d) for y in packed.split([h * d, g * d, g * d], -1)]


def join_qkv(q, k, v):
    return torch.cat([y.flatten(2) for y in (q, k, v)], -1)


def qkv_norm_rope(packed, wq, wk, table, positions, h, g, eps):
    q, k, v = split_qkv(packed, h, g)
    if wq is not None:
        q, k = rms_norm(q, wq, eps), rms_norm(k, wk, eps)
    return join_qkv(rope(q, table, positions), rope(k, table, positions), v)


def swiglu(gate, up):
    return gate * torch.sigmoid(gate) * up


def token_losses(logits, labels):
    flat = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE, reduction="none")
    return flat.view(labels.shape)


def doc_starts(rows):
    return torch.stack([torch.cat([torch.full((n,), sum(row[:i])) for i, n in enumerate(row)]) for row in rows])


def positions_of(rows):
    return torch.stack([torch.cat([torch.arange(n) for n in row]) for row in rows])


# ---- cases ----

def make_embedding():
    tokens, w = ints(0, 11, 2, 7), rand(11, 9)
    add("embedding", "small", [tokens, w], [w[tokens]])
    dx, acc = rand(2, 7, 9), rand(11, 9)
    dw, = grads(lambda w: w[tokens], [w], dx)
    add("embedding_dw", "repeats", [tokens, dx], [dw], vocab=11)
    add("embedding_dw", "acc", [tokens, dx, acc], [dw + acc], vocab=11)


def make_linear():
    for case, n, k, m in (("odd", 5, 7, 3), ("wide", 9, 33, 20)):
        x, w, b, dy = rand(n, k), rand(m, k), rand(m), rand(n, m)
        add("linear", case, [x, w], [x @ w.T])
        add("linear", case + "_bias", [x, w, b], [x @ w.T + b])
        u = w[:2].flip(1)
        add("linear_pair", case, [x, w, u], [x @ w.T, x @ u.T])
        add("linear_pair", case + "_bias", [x, w, u, b], [x @ w.T + b, x @ u.T])
        dx, dw, db = grads(lambda x, w, b: F.linear(x, w, b), [x, w, b], dy)
        add("linear_dx", case, [dy, w], [dx], alpha=1.0, col=0)
        add("linear_dw", case, [dy, x], [dw], alpha=1.0, col=0, rows=m)
        add("col_sum", case, [dy], [db])
        acc = rand(m)
        add("col_sum", case + "_acc", [dy, acc], [db + acc])
    n, k, m, wide, col, alpha = 6, 10, 4, 13, 5, 0.75      # LoRA's B in columns 5..8 of a wider y
    x, w, y, dy = rand(n, k), rand(m, k), rand(n, wide), rand(n, wide)

    def slice_add(y, x, w):
        return torch.cat((y[:, :col], y[:, col:col + m] + alpha * x @ w.T, y[:, col + m:]), 1)
    add("linear_add", "slice", [y, x, w], [slice_add(y, x, w)], alpha=alpha, col=col)
    _, dx, dw = grads(slice_add, [y, x, w], dy)
    accx, accw = rand(n, k), rand(m, k)
    add("linear_dx", "slice", [dy, w], [dx], alpha=alpha, col=col)
    add("linear_dx", "slice_acc", [dy, w, accx], [dx + accx], alpha=alpha, col=col)
    add("linear_dw", "slice", [dy, x], [dw], alpha=alpha, col=col, rows=m)
    add("linear_dw", "slice_acc", [dy, x, accw], [dw + accw], alpha=alpha, col=col, rows=m)
    a, b = rand(3, 5, 7), rand(3, 5, 7)
    add("add", "small", [a, b], [a + b])


def make_norms():
    for case, dims, eps, std in (("odd", (2, 3, 19), 1e-6, 1.0), ("tiny", (4, 40), 1e-5, 3e-3)):
        x, w, dy = rand(*dims, std=std), rand(dims[-1], std=0.3, mean=1.0), rand(*dims)
        add("rms_norm", case, [x, w], [rms_norm(x, w, eps), rms_rstd(x, eps)], eps=eps)
        dx, dw = grads(lambda x, w: rms_norm(x, w, eps), [x, w], dy)
        rstd = f32(rms_rstd(x, eps))
        add("rms_norm_bwd", case, [dy, x, w, rstd], [dx, dw], eps=eps)
        accx, accw = rand(*dims), rand(dims[-1])
        add("rms_norm_bwd", case + "_acc", [dy, x, w, rstd, accx, accw], [dx + accx, dw + accw], eps=eps)
        b = rand(*dims, std=std)
        s = f32(x + b)
        add("add_rms_norm", case, [x, b, w], [x + b, rms_norm(s, w, eps), rms_rstd(s, eps)], eps=eps)


def make_rope():
    scaling = dict(frequencies=[1.0, 0.31, 0.09, 0.02, 4e-3, 5e-4, 4e-5, 3e-6], scale=1.19)
    add("rope_table", "plain", [], [rope_table(40, 16, 1e6)], len=40, head_dim=16, theta=1e6)
    add("rope_table", "given", [], [rope_table(40, 16, 1e4, **scaling)], len=40, head_dim=16, theta=1e4, **scaling)
    rows = [[5, 1, 3], [9]]
    positions = positions_of(rows)
    table = f32(rope_table(12, 6, 1e4))
    x, dy = rand(2, 9, 3, 6), rand(2, 9, 3, 6)
    add("rope", "documents", [x, table, positions], [rope(x, table, positions)], inverse=False)
    dx, = grads(lambda x: rope(x, table, positions), [x], dy)
    add("rope", "gradient", [dy, table, positions], [dx], inverse=True)

    h, g, d, eps = 4, 2, 6, 1e-6
    qkv, dy = rand(2, 9, (h + 2 * g) * d), rand(2, 9, (h + 2 * g) * d)
    wq, wk, accq, acck = rand(d, std=0.3, mean=1.0), rand(d, std=0.3, mean=1.0), rand(d), rand(d)
    attrs = dict(num_heads=h, num_kv_heads=g, head_dim=d, eps=eps)
    q, k, _ = split_qkv(qkv, h, g)
    rstd = rms_rstd(torch.cat((q, k), 2), eps)

    def normed(qkv, wq, wk):
        return qkv_norm_rope(qkv, wq, wk, table, positions, h, g, eps)

    def bare(qkv):
        return qkv_norm_rope(qkv, None, None, table, positions, h, g, eps)
    add("qkv_norm_rope", "norm", [qkv, wq, wk, table, positions], [normed(qkv, wq, wk), rstd], **attrs)
    add("qkv_norm_rope", "bare", [qkv, None, None, table, positions], [bare(qkv)], **attrs)
    dqkv, dwq, dwk = grads(normed, [qkv, wq, wk], dy)
    add("qkv_norm_rope_bwd", "norm", [dy, qkv, wq, wk, table, positions, f32(rstd)], [dqkv, dwq, dwk], **attrs)
    add("qkv_norm_rope_bwd", "norm_acc", [dy, qkv, wq, wk, table, positions, f32(rstd), accq, acck],
        [dqkv, dwq + accq, dwk + acck], **attrs)
    add("qkv_norm_rope_bwd", "bare", [dy, qkv, None, None, table, positions], grads(bare, [qkv], dy), **attrs)


def make_attention():
    for case, rows, h, g, d, std in (("documents", [[4, 1, 6], [11]], 4, 2, 4, 1.0),
                                     ("one_kv", [[3, 10]], 3, 1, 6, 1.0), ("heads", [[9]], 2, 2, 5, 4.0),
                                     ("long", [[20, 1, 45]], 2, 1, 8, 2.0)):
        b, t = len(rows), sum(rows[0])
        doc_start = doc_starts(rows)
        q, k, v = rand(b, t, h, d, std=std), rand(b, t, g, d, std=std), rand(b, t, g, d)
        do = rand(b, t, h, d)
        o, lse = attention(q, k, v, doc_start), scores(q, k, doc_start).logsumexp(-1)
        attrs = dict(num_heads=h, num_kv_heads=g, head_dim=d, scale=0.0)
        dq, dk, dv = grads(lambda q, k, v: attention(q, k, v, doc_start), [q, k, v], do)
        packed = join_qkv(q, k, v)
        if case in ("documents", "heads"):
            add("attention", case, [q, k, v, doc_start], [o, lse], **attrs)
            add("attention_bwd", case, [do, q, k, v, f32(o), f32(lse), doc_start], [dq, dk, dv], **attrs)
        if case == "heads":
            continue
        add("attention", case + "_packed", [packed, None, None, doc_start], [o, lse], **attrs)
        add("attention_bwd", case + "_packed", [do, packed, None, None, f32(o), f32(lse), doc_start],
            [join_qkv(dq, dk, dv)], **attrs)
    make_cached_attention()


def in_pages(x, size):
    """Rows (B,L,G,D) of a cache as pages (N,size,G,D) and their table. Rows alternate in taking pages, from the last page down; page 0 is
    unused.
    """
    b, count = x.shape[0], x.shape[1] // size
    pages = torch.full((1 + b * count, size, *x.shape[2:]), 3.0, dtype=x.dtype)
    table = torch.tensor([[b * count - i * b - row for i in range(count)] for row in range(b)], dtype=torch.int32)
    for row in range(b):
        for i in range(count):
            pages[table[row, i]] = x[row, i * size:(i + 1) * size]
    return pages, table


def make_cached_attention():
    """From the position on, the cache holds noise, which must not be read."""
    b, length, h, g, d = 2, 9, 4, 2, 4
    for case, position, t in (("prefill", 0, 5), ("decode", 7, 1), ("append", 4, 3), ("last", 8, 1)):
        total = position + t
        q, k, v = rand(b, total, h, d), rand(b, total, g, d), rand(b, total, g, d)
        kc, vc = 9 * rand(b, length, g, d), 9 * rand(b, length, g, d)
        kc[:, :position], vc[:, :position] = k[:, :position], v[:, :position]
        kc, vc = f32(kc), f32(vc)
        o = attention(q, k, v, torch.zeros(b, total, dtype=torch.int64))[:, position:]
        kc_after, vc_after = kc.clone(), vc.clone()
        kc_after[:, position:total], vc_after[:, position:total] = k[:, position:], v[:, position:]
        (kc, table), (vc, _), (kc_after, _), (vc_after, _) = (in_pages(x, 3) for x in (kc, vc, kc_after, vc_after))
        where = [torch.full((b,), position, dtype=torch.int32), table]
        attrs = dict(num_heads=h, num_kv_heads=g, head_dim=d, scale=0.0)
        q, k, v = q[:, position:], k[:, position:], v[:, position:]
        add("attention_cached", case, [q, k, v, kc, vc, *where], [o, kc_after, vc_after], **attrs)
        add("attention_cached", case + "_packed", [join_qkv(q, k, v), None, None, kc, vc, *where],
            [o, kc_after, vc_after], **attrs)


def make_local_attention():
    """A window, a cap on the scores, both; a cache longer than the window."""
    for case, rows, how in (("window", [[4, 1, 6], [11]], dict(window=3)), ("softcap", [[9]], dict(softcap=0.8)),
                            ("window_softcap", [[20, 1, 45]], dict(window=17, softcap=2.0))):
        b, t, h, g, d = len(rows), sum(rows[0]), 4, 2, 4
        doc_start = doc_starts(rows)
        q, k, v, do = rand(b, t, h, d, std=2.0), rand(b, t, g, d), rand(b, t, g, d), rand(b, t, h, d)
        o, lse = attention(q, k, v, doc_start, **how), scores(q, k, doc_start, **how).logsumexp(-1)
        attrs = dict(num_heads=h, num_kv_heads=g, head_dim=d, scale=0.0, **how)
        dq, dk, dv = grads(lambda q, k, v: attention(q, k, v, doc_start, **how), [q, k, v], do)
        add("attention", case, [join_qkv(q, k, v), None, None, doc_start], [o, lse], **attrs)
        add("attention_bwd", case, [do, q, k, v, f32(o), f32(lse), doc_start], [dq, dk, dv], **attrs)
    b, position, t, h, g, d = 1, 7, 3, 2, 1, 4
    q, k, v = rand(b, position + t, h, d), rand(b, position + t, g, d), rand(b, position + t, g, d)
    noise = torch.full((b, 2, g, d), 9.0, dtype=torch.float64)
    how = dict(window=4, softcap=1.5)
    o = attention(q, k, v, torch.zeros(b, position + t, dtype=torch.int64), **how)[:, position:]
    cache = [torch.cat((x[:, :position], torch.zeros(b, t, g, d), noise), 1) for x in (k, v)]
    after = [torch.cat((x, noise), 1) for x in (k, v)]
    cache, after = [in_pages(x, 4) for x in cache], [in_pages(x, 4)[0] for x in after]
    where = [torch.tensor([position], dtype=torch.int32), cache[0][1]]
    add("attention_cached", "window_softcap",
        [q[:, position:], k[:, position:], v[:, position:], *(pages for pages, _ in cache), *where], [o, *after],
        num_heads=h, num_kv_heads=g, head_dim=d, **how)


def make_full_attention():
    """Sinks, biases by distance, keys on both sides, values of another size: alone and together, also with a cache."""
    for case, sinks, rows, bidirectional, e, how in (
            ("sinks", True, 0, False, 4, {}), ("sinks_window", True, 0, False, 4, dict(window=5)), ("bias", False, 6, False, 4, {}),
            ("bias_softcap", False, 20, False, 4, dict(softcap=0.9)), ("bidirectional", False, 0, True, 4, {}),
            ("bidirectional_window", False, 0, True, 4, dict(window=3)), ("bidirectional_bias", False, 7, True, 4, {}),
            ("values", False, 0, False, 6, {}), ("all", True, 9, True, 3, dict(window=6, softcap=1.1))):
        h, g, d = 4, 2, 4
        doc_start = doc_starts([[4, 1, 7], [12]])
        q, k, v, do = rand(2, 12, h, d, std=2.0), rand(2, 12, g, d), rand(2, 12, g, e), rand(2, 12, h, e)
        more = [rand(h) if sinks else None, rand(rows, h) if rows else None]
        there = [x for x in more if x is not None]

        def apply(q, k, v, *there, doc_start=doc_start):
            there = list(there)
            return full_attention(q, k, v, doc_start, sinks=there.pop(0) if sinks else None, bias=there.pop(0) if rows else None,
                                  bidirectional=bidirectional, **how)
        o, lse = apply(q, k, v, *there)
        attrs = dict(num_heads=h, num_kv_heads=g, head_dim=d, scale=0.0, **how, **(dict(bidirectional=True) if bidirectional else {}))
        gradients = grads(lambda *x: apply(*x)[0], [q, k, v, *there], do)
        dmore = list(gradients[3:])
        dmore = [dmore.pop(0) if x is not None else None for x in more]
        add("attention", case, [q, k, v, doc_start, *more], [o, lse], **attrs)
        given = [do, q, k, v, f32(o), f32(lse), doc_start, None, *more]
        add("attention_bwd", case, given, [*gradients[:3], *dmore], **attrs)
        if sinks or rows:
            acc = [None if x is None else rand(*x.shape) for x in more]
            add("attention_bwd", case + "_acc", given + acc, [*gradients[:3], *(x if a is None else x + a for x, a in zip(dmore, acc))], **attrs)
        if bidirectional:
            continue
        o, _ = apply(q, k, v, *there, doc_start=torch.zeros(2, 12, dtype=torch.int64))
        noise = [torch.full((2, 3, g, n), 9.0, dtype=torch.float64) for n in (d, e)]
        cache = [in_pages(torch.cat((x[:, :7], torch.zeros_like(x[:, 7:]), n), 1), 5) for x, n in zip((k, v), noise)]
        after = [in_pages(torch.cat((x, n), 1), 5)[0] for x, n in zip((k, v), noise)]
        where = [torch.full((2,), 7, dtype=torch.int32), cache[0][1]]
        add("attention_cached", case, [q[:, 7:], k[:, 7:], v[:, 7:], *(pages for pages, _ in cache), *where, *more], [o[:, 7:], *after], **attrs)
    make_distances()


def make_distances():
    """Slopes as in BLOOM's build_alibi_tensor, buckets as in T5's _relative_position_bucket."""
    for n in (8, 13):
        power = 2 ** math.floor(math.log2(n))
        slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)] + [2 ** (-4 * (2 * i + 1) / power) for i in range(n - power)]
        table = -torch.arange(40, dtype=torch.float64)[:, None] * torch.tensor(slopes, dtype=torch.float64)
        add("alibi_table", "heads%d" % n, [], [table], len=40, num_heads=n)
    slopes = [0.5, -0.25]
    add("alibi_table", "given", [], [-torch.arange(9, dtype=torch.float64)[:, None] * torch.tensor(slopes, dtype=torch.float64)], len=9, num_heads=2,
        slopes=slopes)
    for case, length, buckets, most, bidirectional in (("causal", 300, 32, 128, False), ("even", 300, 32, 256, False), ("both", 301, 32, 128, True)):
        from transformers.models.t5.modeling_t5 import T5Attention
        first = length // 2 if bidirectional else 0
        relative = first - torch.arange(length)       # key - query
        ids = T5Attention._relative_position_bucket(relative, bidirectional=bidirectional, num_buckets=buckets, max_distance=most)
        add("distance_buckets", case, [], [ids[None]], len=length, buckets=buckets, most=most, **(dict(bidirectional=True) if bidirectional else {}))


def make_later():
    make_local_attention()
    positions, table, x = positions_of([[5, 1, 3], [9]]), f32(rope_table(12, 4, 1e4)), rand(2, 9, 3, 10)
    add("rope", "part", [x, table, positions], [torch.cat((rope(x[..., :4], table, positions), x[..., 4:]), -1)])
    x, dy = rand(3, 5, 13, std=40.0), rand(3, 5, 13)
    x[0, 0, :4] = torch.tensor([0.0, 1e-6, 3000.0, -3000.0])

    def softcap(x):
        return 30 * torch.tanh(x / 30)
    add("softcap", "thirty", [x], [softcap(x)], cap=30.0)
    add("softcap_bwd", "thirty", [dy, f32(softcap(x))], grads(softcap, [x], dy), cap=30.0)
    add("scale", "by", [x], [-45.25 * x], by=-45.25)
    gate, up, dh = rand(3, 5, 13, std=3.0), rand(3, 5, 13), rand(3, 5, 13)

    def geglu(gate, up):
        return F.gelu(gate, approximate="tanh") * up
    add("swiglu", "gelu", [gate, up], [geglu(gate, up)], gelu=True)
    add("swiglu_bwd", "gelu", [dh, torch.cat((gate, up), -1)], [torch.cat(grads(geglu, [gate, up], dh), -1)], gelu=True)
    x, w, dy, eps = rand(2, 3, 19), rand(19), rand(2, 3, 19), 1e-6

    def norm(x, w):
        return rms_norm(x, 1 + w, eps)
    rstd = rms_rstd(x, eps)
    add("rms_norm", "offset", [x, w], [norm(x, w), rstd], eps=eps, offset=1.0)
    add("rms_norm_bwd", "offset", [dy, x, w, f32(rstd)], grads(norm, [x, w], dy), eps=eps, offset=1.0)
    s = f32(x + dy)
    add("add_rms_norm", "offset", [x, dy, w], [x + dy, norm(s, w), rms_rstd(s, eps)], eps=eps, offset=1.0)
    b, t, c, v, cap = 2, 6, 10, 37, 5.0
    labels, x, w, dlosses = ints(0, v, b, t), rand(b, t, c), rand(v, c, std=2.0), rand(b, t)
    labels[0, 2] = IGNORE

    def losses(x, w):
        return token_losses(cap * torch.tanh(x @ w.T / cap), labels)
    add("lm_head_loss", "softcap", [x, w, labels], [losses(x, w)], softcap=cap)
    add("lm_head_loss_bwd", "softcap", [dlosses, x, w, labels], [losses(x, w), *grads(losses, [x, w], dlosses)], softcap=cap)


def make_parts():
    """Features that no shipped model uses: rotated neighbours, norms without weights or with w + 1, relu, products, some columns, vectors
    of one number.
    """
    positions, table, x, dy = positions_of([[5, 1, 3], [9]]), f32(rope_table(12, 4, 1e4)), rand(2, 9, 3, 10), rand(2, 9, 3, 10)

    def turned(x):
        halves = torch.cat((x[..., 0:4:2], x[..., 1:4:2]), -1)
        y = rope(halves, table, positions)
        return torch.cat((torch.stack((y[..., :2], y[..., 2:]), -1).flatten(-2), x[..., 4:]), -1)
    add("rope", "neighbours", [x, table, positions], [turned(x)], interleaved=True)
    add("rope", "neighbours_gradient", [dy, table, positions], grads(turned, [x], dy), interleaved=True, inverse=True)
    x, w, b, dy, eps = rand(4, 19), rand(19), rand(19), rand(4, 19), 1e-5
    mu, rstd = x.mean(-1), 1 / torch.sqrt(x.var(-1, correction=0) + eps)

    def norm(x, w, b):
        return F.layer_norm(x, (19,), w + 1, b, eps)
    add("layer_norm", "offset", [x, w, b], [norm(x, w, b), mu, rstd], eps=eps, offset=1.0)
    add("layer_norm_bwd", "offset", [dy, x, w, f32(mu), f32(rstd)], grads(norm, [x, w, b], dy), eps=eps, offset=1.0)
    add("layer_norm", "no_weight", [x], [F.layer_norm(x, (19,), None, None, eps), mu, rstd], eps=eps)
    add("layer_norm_bwd", "no_weight", [dy, x, None, f32(mu), f32(rstd)], grads(lambda x: F.layer_norm(x, (19,), None, None, eps), [x], dy), eps=eps)
    x, dy = rand(3, 5, 13, std=3.0), rand(3, 5, 13)
    x[0, 0, :3] = torch.tensor([0.0, -90.0, 90.0])
    for case, squared in (("plain", False), ("squared", True)):
        def relu(x):
            return F.relu(x).pow(2) if squared else F.relu(x)
        add("relu", case, [x], [relu(x)], squared=squared)
        add("relu_bwd", case, [dy, x], grads(relu, [x], dy), squared=squared)
    add("mul", "small", [x, dy], [x * dy])
    add("full", "quarter", [], [torch.full((7,), 0.25, dtype=torch.float64)], size=7, value=0.25)
    acc, dy = rand(3, 5, 13), rand(3, 5, 4)
    dx, = grads(lambda x: x[..., 6:10], [x], dy)
    add("columns", "middle", [x], [x[..., 6:10]], begin=6, size=4)
    add("columns_bwd", "middle", [dy], [dx], begin=6, cols=13)
    add("columns_bwd", "acc", [dy, acc], [dx + acc], begin=6, cols=13)


def make_rows():
    """Takes some rows of (B,T) and puts them back: the basis of computing in chunks of rows."""
    x, dy, acc = rand(2, 5, 3), rand(1, 4, 3), rand(2, 5, 3)

    def rows(x):
        return x.reshape(1, 10, 3)[:, 3:7]
    dx, = grads(rows, [x], dy)
    add("take_rows", "middle", [x], [rows(x)], begin=3, count=4)
    add("put_rows", "middle", [dy], [dx], begin=3, batch=2, seq=5)
    add("put_rows", "acc", [dy, acc], [dx + acc], begin=3, batch=2, seq=5)


def make_general():
    """Ops for objectives: broadcasting, functions of a number, sums over a dim, softmax, picked columns, masks."""
    pairs = dict(sub=torch.sub, mul=torch.mul, div=torch.div, minimum=torch.minimum, maximum=torch.maximum, add=torch.add,
                 ge=torch.ge, gt=torch.gt, eq=torch.eq)
    for op, fn in pairs.items():
        for case, a, b in (("rows", (3, 5, 13), (3, 5, 1)), ("both", (3, 1, 13), (1, 5, 13)), ("number", (1,), (2, 3, 4, 5))):
            a, b = rand(*a, std=2.0).round() + 0.0, rand(*b, std=2.0).round() + 0.0
            b = b if op != "div" else b.abs() + 0.5
            add(op, case, [a, b], [fn(a, b).double()])
    dy, a, b = rand(4, 13), rand(4, 13, std=2.0).round(), rand(4, 13, std=2.0).round()
    for case, fn in (("maximum", torch.maximum), ("minimum", torch.minimum)):
        add("maximum_bwd", case, [dy, a, b], [grads(lambda a, b: fn(a, b), [a, b], dy)[0]], least=case == "minimum")
    cond, a, b = (rand(3, 5, 1) > 0).double(), rand(3, 5, 13), rand(1)
    add("where", "rows", [cond, a, b], [torch.where(cond != 0, a, b)])
    add("where", "no_b", [cond, a], [torch.where(cond != 0, a, 0)])
    add("where", "no_a", [cond, None, a], [torch.where(cond != 0, 0, a)])
    x, dy = rand(3, 5, 13, std=4.0), rand(3, 5, 13)
    x[0, 0, :6] = torch.tensor([0.0, -88.0, 88.0, 1e-6, -20.0, 20.0])
    far = x.clone()
    far[0, 0, :2] = torch.tensor([-1000.0, 1000.0])
    small = x.clamp(-3, 3)
    positive = x.abs() + 1e-3
    for op, fn, x_of in (("exp", torch.exp, small), ("log", torch.log, positive), ("sqrt", torch.sqrt, positive), ("tanh", torch.tanh, far),
                         ("sigmoid", torch.sigmoid, far), ("silu", F.silu, x), ("log_sigmoid", F.logsigmoid, far)):
        add(op, "plain", [x_of], [fn(x_of)])
    y = f32(torch.sigmoid(x))
    add("sigmoid_bwd", "plain", [dy, y], [dy * y * (1 - y)])
    add("silu_bwd", "plain", [dy, x], grads(F.silu, [x], dy))
    add("log_sigmoid_bwd", "plain", [dy, far], grads(F.logsigmoid, [far], dy))
    for dim in (-1, 1, 0):
        case = "dim%d" % (dim % 3)
        add("sum", case, [x], [x.sum(dim, keepdim=True)], dim=dim)
        add("mean", case, [x], [x.mean(dim, keepdim=True)], dim=dim)
        ties = x.round()
        most, ids = ties.max(dim, keepdim=True)
        ids = (ties == most).to(torch.int64).argmax(dim, keepdim=True)   # index of the first largest
        add("max", case, [ties], [most, ids.to(torch.int32)], dim=dim)
        add("pick_bwd", case, [most, ids.to(torch.int32)], [torch.zeros_like(x).scatter(dim, ids, most)], dim=dim, size=x.shape[dim])
        add("expand", case, [most], [most.expand(x.shape)], dim=dim, size=x.shape[dim])
    for op, fn in (("softmax", torch.softmax), ("log_softmax", torch.log_softmax)):
        y = f32(fn(far, -1))
        add(op, "plain", [far], [fn(far, -1)])
        y = f32(fn(x, -1))
        add(op + "_bwd", "plain", [dy, y], grads(lambda x: fn(x, -1), [x], dy))
    ids = ints(0, 13, 3, 5)
    ids[0, 1], ids[1, 1], ids[2, 2] = IGNORE, 13, -3
    picked = x.gather(-1, ids.clamp(0, 12)[..., None])[..., 0]
    known = (ids >= 0) & (ids < 13)
    add("pick", "labels", [x, ids], [torch.where(known, picked, torch.where(ids == IGNORE, 0.0, math.nan))])
    dy = rand(3, 5)
    add("pick_bwd", "labels", [dy, ids], grads(lambda x: torch.where(known, x.gather(-1, ids.clamp(0, 12)[..., None])[..., 0], 0), [x], dy),
        dim=-1, size=13, inserted=True)
    several = ints(0, 13, 3, 5, 4)
    several[..., 3], several[1, :, 0], several[0, 2, 1] = several[..., 2], IGNORE, -3
    known = (several >= 0) & (several < 13)
    add("pick", "several", [x, several], [torch.where(known, x.gather(-1, several.clamp(0, 12)), torch.where(several == IGNORE, 0.0, math.nan))])
    dy = rand(3, 5, 4)
    add("pick_bwd", "several", [dy, several], grads(lambda x: torch.where(known, x.gather(-1, several.clamp(0, 12)), 0), [x], dy), dim=-1, size=13)
    add("label_mask", "labels", [ids], [(ids != IGNORE).double()])


def make_moves():
    """Concat, slice and pad along each dim, the largest of each row, rows by ids, integers."""
    for dim in (-1, 1, 0):
        case, x = "dim%d" % (dim % 3), rand(3, 5, 7)
        parts = [rand(*(n if d == dim % 3 else s for d, s in enumerate((3, 5, 7)))) for n in (2, 1, 4)]
        add("concat", case, [x, *parts], [torch.cat([x, *parts], dim)], dim=dim)
        add("slice", case, [x], [x.narrow(dim, 1, 2)], dim=dim, begin=1, size=2)
        around = [0, 0] * (2 - dim % 3) + [2, 3]
        add("pad", case, [x], [F.pad(x, around)], dim=dim, before=2, after=3)
    ids = ints(0, 9, 2, 5)
    add("concat", "whole", [ids, ids + 1], [torch.cat([ids, ids + 1], -1)], dim=-1)
    add("slice", "whole", [ids], [ids[:, 1:4]], dim=1, begin=1, size=3)
    x = rand(3, 5, 13, std=2.0).round() + 0.0
    x[0, 0, 4], x[0, 0, 9] = math.nan, math.inf
    for k in (1, 4, 13):
        places = torch.sort(x, dim=-1, descending=True, stable=True).indices[..., :k]
        add("topk", "k%d" % k, [x], [x.gather(-1, places), places.to(torch.int32)], k=k)
    y, (dy, where) = rand(3, 5, 13), (rand(3, 5, 4), torch.topk(rand(3, 5, 13), 4).indices)
    add("topk_bwd", "k4", [dy, where.to(torch.int32)], grads(lambda y: y.gather(-1, where), [y], dy), size=13)
    x, ids = rand(7, 9), ints(0, 7, 2, 6)
    add("gather_rows", "twice", [x, ids], [x[ids]])
    rows = rand(2, 6, 9)
    add("scatter_add_rows", "twice", [rows, ids], grads(lambda x: x[ids], [x], rows), size=7)
    add("full", "whole", [], [torch.full((5,), -100)], size=5, value=-100, dtype="i32")
    x = torch.tensor([0.0, -0.9, 1.9, -2.5, 7e9, -7e9, math.nan], dtype=torch.float64)
    add("cast", "to_whole", [x], [torch.tensor([0, 0, 1, -2, 2 ** 31 - 1, -2 ** 31, 0])], dtype="i32")
    add("cast", "of_whole", [torch.tensor([0, 5, -7, 2 ** 24])], [torch.tensor([0.0, 5.0, -7.0, 2.0 ** 24])], dtype="f32")


def make_chain():
    """Steps (code, dtype f32, operands, number, output): codes are rows of src/ops/elementwise/chain.def, results are numbered from 8 on.
    """
    def steps(*rows):
        return [float(n) for code, a, b, c, number, out in rows for n in (code, 0, a, b, c, number, out)]
    x, gate, row, one = rand(3, 5, 13), rand(3, 5, 13), rand(1, 1, 13), rand(1)
    act = F.silu(x)
    add("chain", "gate", [x, gate], [act * gate + x, act], steps=steps((17, 0, -1, -1, 0, 1), (2, 8, 1, -1, 0, -1), (0, 9, 0, -1, 0, 0)))
    soft = 3 * torch.tanh((x * row) / 3)
    add("chain", "spread", [x, row, one], [torch.where(soft >= one, -2 * soft, 0)],
        steps=steps((2, 0, 1, -1, 0, -1), (22, 8, -1, -1, 3, -1), (7, 9, 2, -1, 0, -1), (21, 9, -1, -1, -2, -1), (10, 10, 11, -1, 0, 0)))


def make_swiglu():
    gate, up, dh = rand(3, 5, 13, std=3.0), rand(3, 5, 13), rand(3, 5, 13)
    gate[0, 0, :4] = torch.tensor([90.0, -90.0, 0.0, -20.0])
    packed = torch.cat((gate, up), -1)
    dgate, dup = grads(swiglu, [gate, up], dh)
    add("swiglu", "two", [gate, up], [swiglu(gate, up)])
    add("swiglu", "packed", [packed], [swiglu(gate, up)])
    add("swiglu_bwd", "two", [dh, gate, up], [dgate, dup])
    add("swiglu_bwd", "packed", [dh, packed], [torch.cat((dgate, dup), -1)])


def make_gelu():
    x, dy = rand(3, 5, 13, std=3.0), rand(3, 5, 13)
    x[0, 0, :6] = torch.tensor([90.0, -90.0, 0.0, -7.0, -13.0, 4.0])
    for case, tanh in (("erf", False), ("tanh", True)):
        def gelu(x):
            return F.gelu(x, approximate="tanh" if tanh else "none")
        add("gelu", case, [x], [gelu(x)], tanh=tanh)
        add("gelu_bwd", case, [dy, x], grads(gelu, [x], dy), tanh=tanh)


def make_layer_norm():
    for case, dims, eps, mean, std in (("odd", (2, 3, 19), 1e-5, 0.0, 1.0), ("far", (4, 40), 1e-6, 30.0, 0.1)):
        c = dims[-1:]
        x, w, b, dy = rand(*dims, mean=mean, std=std), rand(*c, std=0.3, mean=1.0), rand(*c), rand(*dims)
        accx, accw, accb = rand(*dims), rand(*c), rand(*c)
        mu, rstd = x.mean(-1), 1 / torch.sqrt(x.var(-1, correction=0) + eps)
        add("layer_norm", case, [x, w, b], [F.layer_norm(x, c, w, b, eps), mu, rstd], eps=eps)
        add("layer_norm", case + "_bare", [x, w], [F.layer_norm(x, c, w, None, eps), mu, rstd], eps=eps)
        dx, dw, db = grads(lambda x, w, b: F.layer_norm(x, c, w, b, eps), [x, w, b], dy)
        add("layer_norm_bwd", case, [dy, x, w, f32(mu), f32(rstd)], [dx, dw, db], eps=eps)
        add("layer_norm_bwd", case + "_acc", [dy, x, w, f32(mu), f32(rstd), accx, accw, accb], [dx + accx, dw + accw, db + accb],
            eps=eps)


def make_losses():
    b, t, c, v = 2, 6, 10, 37
    labels = ints(0, v, b, t)
    labels[0, 2] = labels[1, :3] = IGNORE
    labels[1, 5] = v - 1
    dlosses = rand(b, t)
    for case, std in (("small", 1.0), ("large", 60.0)):
        logits = rand(b, t, v, std=std)
        lse = logits.logsumexp(-1)
        dlogits, = grads(lambda x: token_losses(x, labels), [logits], dlosses)
        add("cross_entropy", case, [logits, labels], [token_losses(logits, labels), lse])
        add("cross_entropy_bwd", case, [dlosses, logits, labels, f32(lse)], [dlogits])
    x, w, acc = rand(b, t, c), rand(v, c), rand(v, c)
    losses = token_losses(x @ w.T, labels)
    dx, dw = grads(lambda x, w: token_losses(x @ w.T, labels), [x, w], dlosses)
    add("lm_head_loss", "small", [x, w, labels], [losses])
    add("lm_head_loss_bwd", "small", [dlosses, x, w, labels], [losses, dx, dw])
    add("lm_head_loss_bwd", "acc", [dlosses, x, w, labels, acc], [losses, dx, dw + acc])
    hyper = f32(torch.tensor([1e-3, 1 / 7, 0, 0, 0, 0, 0, 0], dtype=torch.float64))
    sum_acc = rand(1)
    add("loss_sum", "first", [f32(losses), hyper], [(f32(losses).sum() * hyper[1]).reshape(1)])
    add("loss_sum", "acc", [f32(losses), hyper, sum_acc], [f32(losses).sum() * hyper[1] + sum_acc])
    add("loss_sum_bwd", "small", [hyper], [hyper[1].expand(b, t)], rows=b, cols=t)
    index = torch.tensor([4, 0])
    add("gather_row", "small", [x, index], [x[torch.arange(b), index][:, None]])


def make_replace_rows():
    w, rows, dy, acc = rand(9, 13), rand(4, 13), rand(9, 13), rand(4, 13)
    ids = torch.tensor([5, 0, 8, 5])
    last = torch.tensor([0.0, 1.0, 1.0, 1.0], dtype=torch.float64)[:, None]
    y = w.clone()
    for k, i in enumerate(ids.tolist()):
        y[i] = rows[k]
    none = w.clone()
    none[ids] = 0
    add("replace_rows", "twice", [w, ids, rows], [y])
    add("replace_rows", "none", [w, ids], [none])
    add("rows_at", "twice", [dy, ids], [dy[ids] * last])
    add("rows_at", "acc", [dy, ids, acc], [dy[ids] * last + acc])


def make_optimizer():
    """Segments: a matrix of 24, a gap of 8, a norm of 10 (no decay), a gap of 6. Gaps keep their contents."""
    e, a = 48, dict(beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1)
    segments = torch.tensor([[0, 24, 1, 0, 0], [32, 10, 0, 1, 0]])
    inside = torch.zeros(e, dtype=torch.bool)
    inside[0:24] = inside[32:42] = True
    for case, t, size, limit, loss in (("first", 1, 0.1, 1.0, 2.5), ("clipped", 4, 3.0, 1.0, 2.5),
                                       ("free", 4, 3.0, 0.0, 2.5), ("bad_loss", 4, 0.1, 1.0, math.nan),
                                       ("bad_norm", 4, 0.1, 1.0, 2.5)):
        w, g = rand(e), rand(e, std=size).masked_fill(~inside, 0)
        m, v = rand(e, std=size), rand(e, std=size).pow(2)
        if t == 1:
            m, v = torch.zeros_like(m), torch.zeros_like(v)
        v = f32(v).masked_fill(~inside, 0)
        m = m.masked_fill(~inside, 0)
        g[3] = 0.0
        norm2 = f32(g.pow(2).sum().reshape(1)) if case != "bad_norm" else torch.tensor([math.inf], dtype=torch.float64)
        hyper = f32(torch.tensor([1e-2, 0, 1 - a["beta1"] ** t, 1 - a["beta2"] ** t, 0, 0, 0, 0], dtype=torch.float64))
        bad = case.startswith("bad")
        clip = 1.0 if limit == 0 or bad else min(1.0, limit / math.sqrt(float(norm2)))
        results = {}     # torch's own AdamW, once with and once without decay
        for decay in (0.0, a["weight_decay"]):
            p = torch.nn.Parameter(w.clone())
            opt = torch.optim.AdamW([p], lr=float(hyper[0]), betas=(a["beta1"], a["beta2"]), eps=a["eps"],
                                    weight_decay=decay)
            opt.state[p] = dict(step=torch.tensor(float(t - 1)), exp_avg=m.clone(), exp_avg_sq=v.clone())
            p.grad = clip * g
            opt.step()
            results[decay] = (p.detach(), opt.state[p]["exp_avg"], opt.state[p]["exp_avg_sq"])
        w2, m2, v2 = w.clone(), m.clone(), v.clone()
        if not bad:
            for out, k in ((w2, 0), (m2, 1), (v2, 2)):
                out[0:24] = results[a["weight_decay"]][k][0:24]
                out[32:42] = results[0.0][k][32:42]
        loss = torch.tensor([loss], dtype=torch.float64)
        step = torch.tensor([7, t - 1, 0, 0])
        add("adamw", case, [w, g, m, v, norm2, loss, hyper, step, segments],
            [w2, m2, v2], **a, max_grad_norm=limit, stochastic=False)
    x = rand(1003, std=5.0)
    add("sum_squares", "odd", [x], [x.pow(2).sum().reshape(1)])


def make_lora():
    # q and v of a packed q, k, v: columns 0..7 and 11..13 of 14
    n, r, alpha, members, wide = 6, 5, 0.75, ((0, 8), (11, 3)), 14
    y, h, b, dy, acc = rand(n, wide), rand(n, 2 * r), rand(11, r), rand(n, wide), rand(11, r)

    def lora_add(y, h, b):
        first = 0
        for m, (col, rows) in enumerate(members):
            part = y[:, col:col + rows] + alpha * h[:, m * r:(m + 1) * r] @ b[first:first + rows].T
            y = torch.cat((y[:, :col], part, y[:, col + rows:]), 1)
            first += rows
        return y
    attrs = dict(alpha=alpha, rows0=8, col0=0, rows1=3, col1=11)
    add("lora_add", "two", [y, h, b], [lora_add(y, h, b)], **attrs)
    _, dh, db = grads(lora_add, [y, h, b], dy)
    add("lora_add_bwd", "two", [dy, h, b], [dh, db], **attrs)
    add("lora_add_bwd", "acc", [dy, h, b, acc], [dh, db + acc], **attrs)


def make_dora():
    n, c, k, r, alpha = 6, 11, 9, 3, 0.75
    w, a, b = rand(c, k), rand(r, k), rand(c, r)
    norm = (w + alpha * b @ a).norm(dim=1)
    add("dora_norm", "plain", [w, a, b], [norm], alpha=alpha)
    y, m, bias, dy, acc = rand(n, c), rand(c), rand(c), rand(n, c), rand(c)
    add("dora", "bias", [y, m, f32(norm), bias], [y * m / f32(norm) + bias])
    add("dora", "plain", [y, m, f32(norm)], [y * m / f32(norm)])
    _, dm = grads(lambda y, m: y * m / f32(norm), [y, m], dy)
    add("dora_dm", "plain", [dy, y, f32(norm)], [dm])
    add("dora_dm", "acc", [dy, y, f32(norm), acc], [dm + acc])


def make_normuon():
    """The ops before and after the matrix products. The gradient is clipped, and a row of x is 0; in case bad, the loss is NaN."""
    rows, columns, beta, beta2, eps, decay, limit = 5, 7, 0.95, 0.9, 1e-10, 0.1, 1.0
    for case, nesterov, bad in (("nesterov", True, False), ("plain", False, False), ("bad", True, True)):
        g, m = rand(rows, columns, std=3.0), rand(rows, columns)
        norm2 = f32(g.pow(2).sum().reshape(1)) + 100
        clipped = g * min(1.0, limit / math.sqrt(float(norm2)))
        m2 = beta * m + (1 - beta) * clipped
        u = beta * m2 + (1 - beta) * clipped if nesterov else m2
        loss = torch.tensor([math.nan if bad else 2.5], dtype=torch.float64)
        add("normuon_momentum", case, [g, m, norm2, loss],
            [torch.zeros_like(u), m] if bad else [u / (1.02 * u.norm() + 1e-6), m2], momentum=beta, max_grad_norm=limit, nesterov=nesterov)
        w, x, v = rand(rows, columns), rand(rows, columns), rand(rows).pow(2)
        x[2], v = 0, f32(v)
        hyper = f32(torch.tensor([1e-2, 0, 0, 0, 0, 0, 0, 0], dtype=torch.float64))
        v2 = beta2 * v + (1 - beta2) * x.pow(2).mean(1)
        o = x / (v2.sqrt() + eps)[:, None]
        w2 = w - hyper[0] * (decay * w + 0.2 * math.sqrt(rows * columns) / o.norm() * o)
        add("normuon_update", case, [w, x, v, norm2, loss, hyper, torch.tensor([7, 3, 0, 0])], [w, v] if bad else [w2, v2],
            beta2=beta2, eps=eps, weight_decay=decay, stochastic=False)
    x = rand(6, 6)
    add("add_identity", "square", [x], [3.5 * torch.eye(6, dtype=torch.float64) - 0.75 * x], a=3.5, b=-0.75)


def make_step_scalars():
    for case, count, norm2, loss in (("first", 0, 30.0, 2.5), ("later", 99999, 30.0, 2.5), ("bad_loss", 7, 30.0, math.nan), ("bad_norm", 7, math.inf, 2.5)):
        bad, hyper = case.startswith("bad"), f32(torch.tensor([1e-2, 0.25, 0, 0, 0, 0, 0, 0], dtype=torch.float64))
        after = hyper.clone()
        after[2], after[3] = 1 - 0.9 ** (count + 1), 1 - 0.95 ** (count + 1)
        one = lambda x: torch.tensor([x], dtype=torch.float64)
        add("step_scalars", case, [hyper, one(norm2), one(loss), torch.tensor([count])],
            [after, torch.tensor([count + (not bad)]), one(0.0 if bad else 1.0)], beta1=0.9, beta2=0.95)


def make_decoding():
    """The inputs of a decoding step, and its report to the host."""
    tokens, slots = torch.tensor([[7], [-1], [-1], [0]], dtype=torch.int32), torch.tensor([2, 0, -1, 1], dtype=torch.int32)
    chosen = torch.tensor([31, 32, 33], dtype=torch.int32)
    add("next_tokens", "rows", [tokens, slots, chosen], [torch.tensor([[7], [31], [0], [0]], dtype=torch.int32)])
    ring = torch.full((4, 3, 7), -5, dtype=torch.int32)
    ids, best_ids = torch.tensor([5, 9], dtype=torch.int32), torch.tensor([[5, 8], [9, 1]], dtype=torch.int32)
    logprobs, best = torch.tensor([[-0.5, -0.25], [-1.5, 0.0]]), torch.tensor([[-0.5, -2.0], [-1.5, -3.0]])
    after = ring.clone()
    after[6 % 4, :2] = torch.cat((ids[:, None], logprobs.view(torch.int32), best_ids, best.view(torch.int32)), 1)
    step = torch.tensor([3, 2, 6, 0])
    add("tell_rows", "ring", [step, ring, ids, logprobs, best_ids, best], [after])
    ring = torch.full((4, 3), -5, dtype=torch.int32)
    after = ring.clone()
    after[6 % 4, :2] = ids
    add("tell_ids", "ring", [torch.tensor([6]), ring, ids], [after, torch.tensor([7])])


def make_lora_rows():
    """Two adapters with different ranks, room for 5 rows, and rows that use only the base; two members."""
    adapters, scales = torch.tensor([1, -1, 0, 1]), [0.5, 3.0, 1.0, 0.7]
    for case, members in (("one", ((7, 6),)), ("two", ((7, 6), (4, 15)))):
        y, h, b, ranks, before = rand(4, 3, 20), rand(4, 3, 10 * len(members)), rand(2 * sum(m[0] for m in members), 5), [5, 2, 0, 3], 0
        after = y.clone()
        for m, (rows, col) in enumerate(members):
            for i, a in enumerate(adapters.tolist()):
                rank, at = ranks[2 * m + a], (2 * m + a) * 5
                own = b[2 * before + a * rows:][:rows, :rank]
                if a >= 0:
                    after[i, :, col:col + rows] += scales[2 * m + a] * h[i, :, at:at + rank] @ own.T
            before += rows
        count = 2 * len(members)
        attrs = dict(ranks=[float(r) for r in ranks[:count]], scales=scales[:count])
        for m, (rows, col) in enumerate(members):
            attrs.update({"rows%d" % m: rows, "col%d" % m: col})
        add("lora_rows", case, [y, h, b, adapters], [after], **attrs)


def make_rows_linear():
    """Sums whole and in parts, gate and up in one matrix."""
    x, w, b = rand(3, 1, 128), rand(12, 128), rand(12)
    y = F.linear(x, w)
    add("rows_linear", "bias", [x, w, b], [y + b], parts=1, gated=False, gelu=False)
    add("rows_linear", "parts", [x, w], [y], parts=2, gated=False, gelu=False)
    gate, up = y.split(6, dim=-1)
    add("rows_linear", "silu", [x, w], [F.silu(gate) * up], parts=1, gated=True, gelu=False)
    add("rows_linear", "gelu", [x, w], [F.gelu(gate, approximate="tanh") * up], parts=1, gated=True, gelu=True)
    norm, residual = rand(128), rand(3, 1, 128)
    y = F.linear(F.rms_norm(x, (128,), norm, 1e-5), w)
    add("rows_linear", "norm", [x, w, b, norm], [y + b], parts=1, gated=False, gelu=False, eps=1e-5, offset=0)
    gate, up = F.linear(F.rms_norm(x + residual, (128,), norm + 1, 1e-5), w).split(6, dim=-1)
    add("rows_linear", "sum", [x, w, None, norm, residual], [F.silu(gate) * up, x + residual], parts=1, gated=True, gelu=False, eps=1e-5,
        offset=1)


def make_mark_seen():
    tokens, starts, last, slots = ints(0, 14, 4, 6), torch.tensor([0, 3, 0, 0]), torch.tensor([5, 2, 0, 4]), torch.tensor([2, 0, -1, 4])
    seen = ints(0, 3, 5, 12)
    seen[1, 3] = seen[0, 5] = -2**31
    after = seen.clone()
    for b in (0, 1, 3):
        if starts[b] == 0:
            after[slots[b]] = 0
        for token in tokens[b, :last[b] + 1].tolist():
            if token < 12:
                after[slots[b], token] |= -2**31
    add("mark_seen", "slots", [tokens, starts, last, slots, seen], [after])
    texts, after = torch.tensor([2, 4, 0, 9]), seen.clone()
    for b in (0, 1, 3):
        if starts[b] == 0:
            after[slots[b]] = 0
        for t, token in enumerate(tokens[b, :last[b] + 1].tolist()):
            if token < 12 and starts[b] + t < texts[b]:
                after[slots[b], token] |= -2**31
            elif token < 12:
                after[slots[b], token] += 1
    add("mark_seen", "text", [tokens, starts, last, slots, seen, texts], [after])


def make_step_result():
    """Step 6 writes the third row of a ring of 4 rows."""
    loss, norm2, applied, ring = rand(1), rand(1).pow(2).float().double(), torch.ones(1, dtype=torch.float64), rand(4, 4)
    after = ring.clone()
    after[2, :3] = torch.cat([loss, norm2, applied])
    add("step_result", "third", [loss, norm2, applied, torch.tensor([1, 6, 0, 0]), ring], [after])


def make_copy():
    x = rand(3, 5)
    add("copy", "plain", [x], [x])


def make_cast():
    """Ties on both sides of an even number, values that round up to the next power or to infinity, the smallest numbers of both types."""
    bits = [0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0x3FFFFFFF, 0x7F7FFFFF, 0x7F7F7FFF, 0x7F800000, 0x00000001, 0x00008000,
            0x00018000, 0x00800000, 0x00000000, 0x42280000]
    x = torch.tensor(bits + [b - (1 << 31) for b in bits], dtype=torch.int32).view(torch.float32).reshape(4, 7)
    add("cast", "f32", [x], [x])
    add("cast", "bf16", [x], [x.to(torch.bfloat16)], dtype="bf16")


def make_nf4():
    """Double quantisation written out; the last block is short."""
    def nearest(x, values):
        return (x[..., None] - values).abs().argmin(-1).to(torch.uint8)
    values = torch.tensor([-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
                           -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
                           0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0], dtype=torch.float64)
    means = [10.0 ** (i - 6) * (0.1 + 0.9 * (k + 0.5) / 2 ** i) for i in range(7) for k in range(2 ** i)]
    dynamic = torch.tensor(sorted([-m for m in means] + [0.0, 1.0] + means), dtype=torch.float64)
    x = rand(6, 90)
    blocks = F.pad(x.flatten(), (0, 36)).reshape(9, 64)
    scale = blocks.abs().amax(1)
    codes = nearest(blocks / scale[:, None], values).flatten()[:540].reshape(6, 90)
    offset = scale.mean().reshape(1)
    nested = (scale - offset).abs().max().reshape(1)
    absmax = nearest((scale - offset) / nested, dynamic)

    def weight(scales):
        return values[codes.long()] * scales.repeat_interleave(64)[:540].reshape(6, 90)
    add("nf4_quantise", "short_block", [x], [codes, absmax, nested, offset])
    add("nf4_dequantise", "nested", [codes, absmax, nested, offset], [weight(dynamic[absmax.long()] * nested + offset)])
    add("nf4_dequantise", "plain", [codes, scale], [weight(scale)])


def make_fp8_tiles():
    """Tiles of 128 rows and columns; tiles at the edges are smaller."""
    for case, (n, k) in dict(tall=(130, 5), wide=(3, 259)).items():
        def spread(scale):
            return scale.repeat_interleave(128, 0)[:n].repeat_interleave(128, 1)[:, :k]
        down, across = -(-n // 128), -(-k // 128)
        x = f32(rand(n, k) * torch.exp(rand(n, 1)))
        tiles = F.pad(x, (0, across * 128 - k, 0, down * 128 - n)).reshape(down, 128, across, 128)
        scale = tiles.abs().amax((1, 3)) / 448
        codes = (x / spread(scale)).to(torch.float8_e4m3fn)
        add("fp8_tiles_quantise", case, [x], [codes, scale])
        add("fp8_tiles_dequantise", case, [codes, f32(scale)], [codes.double() * spread(f32(scale))])


def make_nvfp4():
    """Every code under scales of every kind; tests/oracle/make_nvfp4.py tests how codes are made."""
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
    codes = ints(0, 16, 5, 48).to(torch.uint8)
    scale = torch.cat([torch.tensor([0, 2 ** -9, 448.0], dtype=torch.float64), rand(12).abs()]).reshape(5, 3).to(torch.float8_e4m3fn)
    w = torch.cat([values, -values])[codes.long()] * scale.double().repeat_interleave(16, 1) * f32(torch.tensor(0.013))
    add("nvfp4_dequantise", "rows", [codes, scale, torch.tensor([0.013])], [w])
    add("nvfp4_dequantise", "columns", [codes, scale, torch.tensor([0.013])], [w.T], transposed=True)


def make_fp8():
    def scale(value):
        value = torch.tensor(float(value)).float()
        return torch.stack([1 / value, value, torch.tensor(0.0), torch.tensor(0.0)]).double()

    def codes(x, s, dtype, most):
        return torch.where(x.isfinite(), (x * s[1]).float().clamp(-most, most), torch.nan).to(dtype)
    x, s, amax = rand(5, 37, std=3), scale(40), torch.tensor([0.5], dtype=torch.float64)
    e4m3 = codes(x, s, E4M3, 448)
    add("fp8_quantise", "e4m3", [x, s, amax], [e4m3, e4m3.view(torch.uint8).t().contiguous().view(E4M3), x.abs().max().reshape(1)])
    x = rand(3, 20)
    x[1, 4], x[2, 7], x[0, 3] = math.inf, math.nan, 1e30
    add("fp8_quantise", "not_finite", [x, s], [codes(x, s, E5M2, 57344)], dtype="e5m2")

    a, b, sa, sb, bias, acc = rand(6, 33).to(E5M2), rand(9, 33).to(E4M3), scale(3), scale(0.7), rand(9), rand(6, 9)
    product = (a.double() @ b.double().t()) * sa[0] * sb[0]
    add("scaled_linear", "bias", [a, b, sa, sb, bias], [product + bias])
    add("scaled_linear", "acc", [a, b, sa, sb, None, acc], [0.25 * product + acc], alpha=0.25)

    x = rand(4, 50)
    add("fp8_own_scale", "e4m3", [x, s], [scale(448 / x.abs().max())])
    add("fp8_own_scale", "margin", [x, s], [scale(57344 / x.abs().max() / 4)], dtype="e5m2", margin=2)
    add("fp8_own_scale", "zeros", [0 * x, s], [s])

    now, history, most = rand(4).abs(), rand(3, 4).abs(), torch.tensor([448.0, 57344.0, 448.0, 57344.0], dtype=torch.float64)
    now[2] = math.inf
    old = torch.stack([scale(2), scale(3), scale(4), scale(5)])
    after = history.clone()
    after[(8 - 1) % 3] = torch.where(now.isfinite(), now, 0)
    for case, amax in ("largest", after.amax(0)), ("newest", after[(8 - 1) % 3]):
        new = torch.stack([scale(most[i] / amax[i] / 2) if amax[i] > 0 else old[i] for i in range(4)])
        add("fp8_update", case, [now, history, old, most, torch.ones(1), torch.tensor([8])], [0 * most, after, new],
            margin=1, most_recent=case == "newest")
    add("fp8_update", "not_applied", [now, history, old, most, torch.zeros(1), torch.tensor([8])], [0 * most, history, old])


def make_fp8_blocks():
    """Scales for 1 x 128 and for 128 x 128 elements; blocks at the edges are smaller."""
    def row_scales(x):
        across = -(-x.shape[1] // 128)
        return F.pad(x, (0, across * 128 - x.shape[1])).reshape(-1, across, 128).abs().amax(2) / 448

    def spread(scale, cols):
        return scale.repeat_interleave(128, 1)[:, :cols]
    x = f32(rand(5, 300) * torch.exp(rand(5, 1)))
    scale = row_scales(x)
    add("fp8_rows_quantise", "rows", [x], [(x / spread(scale, 300)).to(E4M3), scale.t()])
    x = f32(rand(2, 3, 130))
    scale = row_scales(x.reshape(6, 130))
    add("fp8_rows_quantise", "three_dims", [x], [(x.reshape(6, 130) / spread(scale, 130)).to(E4M3).reshape(2, 3, 130), scale.t()])

    codes, scale = rand(150, 270).to(E4M3), f32(rand(2, 3).abs())
    turned = codes.view(torch.uint8).t().contiguous().view(E4M3)
    add("fp8_tiles_turn", "edges", [codes, scale], [turned, F.pad(scale.t(), (0, 2)), F.pad(scale, (0, 1))])
    add("fp8_turn", "edges", [codes], [turned])

    a, b, bias, acc = rand(6, 300).to(E4M3), rand(140, 300).to(E4M3), rand(140), rand(6, 140)
    sa, sb = f32(rand(6, 3).abs()), f32(rand(2, 3).abs())
    product = (a.double() * spread(sa, 300)) @ (b.double() * spread(sb.repeat_interleave(128, 0)[:140], 300)).t()
    add("block_linear", "bias", [a, b, sa.t(), F.pad(sb, (0, 1)), bias], [product + bias])
    add("block_linear", "acc", [a, b, sa.t(), sb, None, acc], [0.25 * product + acc], alpha=0.25)


def make_fp4_products():
    """Scales in tiles of 128 rows x 4 blocks, as in cuBLAS 13's documentation ("1D block scaling factors layout")."""
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)

    def operand(rows, cols):
        codes, scale = ints(0, 16, rows, cols).to(torch.uint8), rand(rows, cols // 16).abs().to(E4M3)
        numbers = torch.cat([values, -values])[codes.long()] * scale.double().repeat_interleave(16, 1)
        down, across = -(-rows // 128), -(-cols // 64)
        tiles = F.pad(scale.view(torch.uint8), (0, 4 * across - cols // 16, 0, 128 * down - rows))
        tiles = tiles.reshape(down, 4, 32, across, 4).permute(0, 3, 2, 1, 4).reshape(down, across, 512).contiguous()
        return codes, tiles.view(E4M3), f32(rand(1).abs()), numbers
    a, a_scale, a_global, x = operand(5, 80)
    b, b_scale, b_global, w = operand(140, 80)
    bias, acc = rand(140), rand(5, 140)
    product = a_global * b_global * (x @ w.t())
    scales = [a_scale, b_scale, a_global, b_global]
    add("fp4_linear", "bias", [a, b, *scales, bias], [product + bias])
    add("fp4_linear", "acc", [a, b, *scales, None, acc], [0.25 * product + acc], alpha=0.25)
    add("nvfp4_dequantise", "tiled", [b, b_scale, b_global], [w * b_global], tiled=True)


def make_head_rows():
    """Matrices of each format, and rows that are rounded to the format as matrix units do."""
    x, w, bias, scale = rand(5, 43), rand(21, 43, std=0.3), rand(21), rand(21).abs()
    add("head_rows", "f32", [x, w, None, bias], [x @ w.t() + bias])
    for case, dtype in (("bf16", torch.bfloat16), ("f16", torch.float16)):
        rounded, half = x.to(dtype), w.to(dtype)
        product = rounded.double() @ half.double().t()
        add("head_rows", case, [x, half, None, bias], [product + bias])
        add("head_rows", case + "_both", [rounded, half], [product])
    codes = ints(-128, 128, 21, 43).to(torch.int8)
    add("head_rows", "i8", [x, codes, scale, bias], [scale * (x @ codes.double().t()) + bias])


def make_codes():
    """int8 codes with a scale for each row; products with codes."""
    x, w, bias = rand(5, 43), f32(rand(21, 43) * torch.exp(rand(21, 1))), rand(21)
    scale = w.abs().amax(1) / 127
    codes = torch.round(w / scale[:, None]).to(torch.int8)
    add("int8_quantise", "rows", [w], [codes, scale])
    scale = f32(scale)
    add("int8_dequantise", "rows", [codes, scale], [codes.double() * scale[:, None]])
    add("int8_linear", "bias", [x, codes, scale, bias], [scale * (x @ codes.double().t()) + bias])
    add("int8_linear", "three_dims", [x.reshape(5, 1, 43), codes, scale], [(scale * (x @ codes.double().t())).reshape(5, 1, 21)])

    x, codes, scale, bias = rand(4, 150), rand(140, 150).to(E4M3), f32(rand(2, 2).abs()), rand(140)
    w = codes.double() * scale.repeat_interleave(128, 0)[:140].repeat_interleave(128, 1)[:, :150]
    add("fp8_tiles_linear", "edges", [x, codes, scale, bias], [x @ w.t() + bias])


def fused_codes(op, x, codes, scale, w):
    """Products with gate and up in one matrix, and products that read the norm of a sum."""
    k, half = x.shape[-1], w.shape[0] // 2
    norm, residual = rand(k), rand(*x.shape)
    gate, up = (x @ w.t()).split(half, dim=-1)
    add(op, "gelu", [x, codes, scale], [F.gelu(gate, approximate="tanh") * up], gated=True, gelu=True)
    add(op, "norm", [x, codes, scale, None, norm], [F.rms_norm(x, (k,), norm, 1e-5) @ w.t()], eps=1e-5)
    gate, up = (F.rms_norm(x + residual, (k,), norm + 1, 1e-5) @ w.t()).split(half, dim=-1)
    add(op, "sum", [x, codes, scale, None, norm, residual], [F.silu(gate) * up, x + residual], gated=True, eps=1e-5, offset=1)


def make_fused_codes():
    """Products with codes, with the other features of rows_linear."""
    x, scale = rand(3, 43), f32(rand(20).abs())
    codes = ints(-127, 128, 20, 43).to(torch.int8)
    fused_codes("int8_linear", x, codes, scale, codes.double() * scale[:, None])
    x, codes, scale = rand(3, 150), rand(140, 150).to(E4M3), f32(rand(2, 2).abs())
    fused_codes("fp8_tiles_linear", x, codes, scale, codes.double() * scale.repeat_interleave(128, 0)[:140].repeat_interleave(128, 1)[:, :150])


def make_turned_attention():
    """One token per row, rotated and attended; from its position on the cache holds noise."""
    b, length, position, h, g, d, eps = 2, 9, 7, 4, 2, 4, 1e-6
    table, positions = f32(rope_table(12, d, 1e4)), torch.arange(position + 1).expand(b, -1)
    wq, wk = rand(d, std=0.3, mean=1.0), rand(d, std=0.3, mean=1.0)
    for case, norms in (("norm", [wq, wk]), ("bare", [None, None])):
        qkv = rand(b, position + 1, (h + 2 * g) * d)
        q, k, v = split_qkv(qkv_norm_rope(qkv, *norms, table, positions, h, g, eps), h, g)
        o = attention(q, k, v, torch.zeros(b, position + 1, dtype=torch.int64))[:, position:]
        caches = [9 * rand(b, length, g, d) for _ in range(2)]
        for cache, x in zip(caches, (k, v)):
            cache[:, :position] = x[:, :position]
        before = [in_pages(f32(cache), 3) for cache in caches]
        for cache, x in zip(caches, (k, v)):
            cache[:, position] = x[:, position]
        after = [in_pages(cache, 3)[0] for cache in caches]
        where = [torch.full((b,), position, dtype=torch.int32), before[0][1]]
        add("attention_turned", case, [qkv[:, position:], *(pages for pages, _ in before), *where, *norms, table, positions[:, position:]],
            [o, *after], num_heads=h, num_kv_heads=g, head_dim=d, scale=0.0, eps=eps)


def make_latents():
    """Latent attention as in the paper; and as attention over latents, with a product per head before and after it."""
    b, t, position, h, n, r, e, rank = 2, 9, 6, 3, 5, 4, 7, 8
    w, latent, shared = rand(h * (n + e), rank), rand(b, t, rank), rand(b, t, 1, r)
    heads = w.view(h, n + e, rank)
    q = rand(b, t, h, n + r)
    k, v = torch.einsum("btc,hnc->bthn", latent, heads[:, :n]), torch.einsum("btc,hec->bthe", latent, heads[:, n:])
    doc_start = torch.zeros(b, t, dtype=torch.int64)
    o = attention(q, torch.cat((k, shared.expand(-1, -1, h, -1)), -1), v, doc_start)
    turned = torch.einsum("bthn,hnc->bthc", q[..., :n], heads[:, :n])
    keys = torch.cat((latent[:, :, None], shared), -1)
    weights = (torch.einsum("bthd,bsd->bhts", torch.cat((turned, q[..., n:]), -1), keys[:, :, 0]) / math.sqrt(n + r))
    weights = weights.masked_fill(torch.ones(t, t).triu(1).bool(), -torch.inf).softmax(-1)
    latents = torch.einsum("bhts,bsc->bthc", weights, latent)
    add("group_linear", "turned", [q[..., :n], w], [turned], size=n, turned=True)
    add("group_linear", "plain", [latents, w], [o], begin=n)  # both forms compute the same
    x, all_rows = rand(4, 2, 5), rand(6, 5)
    add("group_linear", "all", [x, all_rows], [torch.einsum("ngk,grk->ngr", x, all_rows.view(2, 3, 5))])
    noise = torch.full((b, 3, 1, rank + r), 9.0, dtype=torch.float64)
    cache, pages = in_pages(torch.cat((keys[:, :position], torch.zeros_like(keys[:, position:]), noise), 1), 4)
    after = in_pages(torch.cat((keys, noise), 1), 4)[0]
    add("attention_latent", "tokens",
        [torch.cat((turned, q[..., n:]), -1)[:, position:], keys[:, position:], cache, torch.full((b,), position, dtype=torch.int32), pages],
        [latents[:, position:], after], num_heads=h, head_dim=rank + r, value_dim=rank, scale=1 / math.sqrt(n + r))


def main():
    torch.set_num_threads(1)
    for make in (make_embedding, make_linear, make_norms, make_rope, make_attention, make_swiglu, make_losses,
                 make_optimizer, make_lora, make_gelu, make_layer_norm, make_normuon, make_step_scalars,
                 make_step_result, make_copy, make_cast, make_nf4, make_fp8_tiles,
                 make_nvfp4, make_fp8, make_fp8_blocks, make_fp4_products, make_later, make_parts, make_general, make_moves, make_chain, make_rows,
                 make_mark_seen, make_decoding, make_head_rows, make_lora_rows, make_codes,
                 make_turned_attention, make_rows_linear, make_replace_rows, make_dora,
                 make_fused_codes, make_full_attention, make_latents):
        make()
    save_file(dict(sorted(tensors.items())), PATH, metadata=dict(cases=json.dumps(cases, sort_keys=True)))
    print("%d cases of %d ops, %d bytes" % (len(cases), len({c.split(".")[0] for c in cases}), os.path.getsize(PATH)))


if __name__ == "__main__":
    main()
