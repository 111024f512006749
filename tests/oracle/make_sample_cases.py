#!/usr/bin/env python3
"""Writes tests/fixtures/sample.safetensors: random logits after transformers' logits processors, in transformers' order: bias,
repetition, temperature, top-k, top-p, min-p.

Row i of each tensor is a case: logits (V), controls (8) as in src/ops/attrs.h, seen (V), bias_ids and bias (N), and logprobs (V) of the
distribution that is left, -inf where a token is dropped. Cases whose filters cut between tokens that differ by less than 1e-3 in score are
left out, because rounding decides there; so are cases that leave a token a probability below 1e-4, which a test by draws can't see.

  python3 tests/oracle/make_sample_cases.py
"""
import os

import torch
from safetensors.torch import save_file
from transformers import LogitsProcessorList, MinPLogitsWarper, RepetitionPenaltyLogitsProcessor, SequenceBiasLogitsProcessor
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures", "sample.safetensors")
CASES, V, N = 48, 96, 6
rng = torch.Generator().manual_seed(11)


def pick(*values):
    return values[int(torch.randint(len(values), (1,), generator=rng))]


def draw_case():
    logits = torch.randn(V, generator=rng) * pick(1.0, 2.0, 3.0)
    controls = dict(temperature=pick(0.6, 1.0, 1.4), top_k=pick(0, 0, 5, 12, 40), top_p=pick(1.0, 0.9, 0.6, 0.3),
                    min_p=pick(0.0, 0.0, 0.02, 0.1), repetition=pick(1.0, 1.3, 0.8))
    tokens = torch.randint(V, (1, 20), generator=rng)
    ids = torch.randperm(V, generator=rng)[:N].tolist()
    bias = [float(x) for x in torch.randn(N, generator=rng).float() * 2]
    bias[0] = -float("inf")
    return logits, controls, tokens, ids, bias if pick(True, False) else None


def processed(logits, controls, tokens, ids, bias):
    steps = LogitsProcessorList()
    if bias:
        steps.append(SequenceBiasLogitsProcessor({(i,): b for i, b in zip(ids, bias)}))
    if controls["repetition"] != 1:
        steps.append(RepetitionPenaltyLogitsProcessor(controls["repetition"]))
    before = steps(tokens, logits[None].clone())
    steps = LogitsProcessorList([TemperatureLogitsWarper(controls["temperature"])])
    if controls["top_k"]:
        steps.append(TopKLogitsWarper(controls["top_k"]))
    if controls["top_p"] < 1:
        steps.append(TopPLogitsWarper(controls["top_p"]))
    if controls["min_p"]:
        steps.append(MinPLogitsWarper(controls["min_p"]))
    return before[0], steps(tokens, before)[0]


def is_clear(before, after):
    kept, dropped = before[after > -float("inf")], before[(after == -float("inf")) & (before > -float("inf"))]
    apart = not len(dropped) or bool(kept.min() - dropped.max() > 1e-3)
    return apart and bool(torch.softmax(after.double(), -1)[after > -float("inf")].min() > 1e-4)


out = {name: [] for name in ("logits", "controls", "seen", "bias_ids", "bias", "logprobs")}
while len(out["logits"]) < CASES:
    logits, controls, tokens, ids, bias = draw_case()
    before, after = processed(logits, controls, tokens, ids, bias)
    if not is_clear(before, after):
        continue
    seen = torch.zeros(V, dtype=torch.int32)
    seen[tokens[0, :12]] |= -2**31
    for token in tokens[0, 12:].tolist():
        seen[token] += 1
    out["logits"].append(logits)
    out["controls"].append(torch.tensor([*controls.values(), 0, 0, 0]))
    out["seen"].append(seen)
    out["bias_ids"].append(torch.tensor(ids if bias else [-1] * N, dtype=torch.int32))
    out["bias"].append(torch.tensor(bias or [0.0] * N))
    out["logprobs"].append(torch.log_softmax(after.double(), -1).float())
save_file({name: torch.stack(rows) for name, rows in out.items()}, PATH)
print(f"{CASES} cases, {sum(int((row > -float('inf')).sum()) for row in out['logprobs'])} tokens kept")
