#!/usr/bin/env python3
"""Writes tests/fixtures/mixed_types.safetensors: fp32 adapters over a bf16 base, as PEFT trains them, and as fp64 does.

Models, adapters and batches are those of tests/fixtures/families; the base's weights are rounded to bf16. `truth` computes in fp64
from there. `peft` is PEFT's usual arrangement: the base in bf16, adapters in fp32 (autocast_adapter_dtype, the default), forward
and backward under torch.autocast. Each has the loss and gradients of the packed batch, the losses of five steps of AdamW, and the
adapters after them. tests/run/test_dtypes.c asks that the program be as near the truth as PEFT is.
Needs what make_families.py needs. Deterministic: same versions, same bytes.

  python3 tests/oracle/make_mixed_types.py
"""
import contextlib
import os

import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.utils import logging

import make_families
from make_families import ROOT, trained
from oracle_common import exact, forward, mean_loss

OUT = os.path.join(ROOT, "..", "mixed_types.safetensors")
FAMILIES = ["llama", "qwen3"]
STEPS = 5


def load(folder, is_truth):
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    if is_truth:
        base = exact(base)
    model = PeftModel.from_pretrained(base, os.path.join(folder, "adapter"), is_trainable=True)
    if is_truth:
        return model.double()
    assert {p.dtype for _, p in trained(model)} == {torch.float32}
    assert {p.dtype for p in model.parameters() if not p.requires_grad} == {torch.bfloat16}
    return model


def autocast(is_truth):
    return contextlib.nullcontext() if is_truth else torch.autocast("cpu", dtype=torch.bfloat16)


def gradients(model, batch, is_truth):
    """As make_families.gradients, but the loss is computed from fp32 logits, as in transformers."""
    model.zero_grad(set_to_none=True)
    with autocast(is_truth):
        logits = forward(model, batch)
    loss = mean_loss(logits if is_truth else logits.float(), batch["labels"])
    loss.backward()
    grads = {n: p.grad.detach().clone() for n, p in trained(model)}
    return loss.detach(), grads, torch.sqrt(sum(g.double().pow(2).sum() for g in grads.values())), logits.detach()


def record(out, prefix, folder, batch, steps, is_truth):
    make_families.gradients = lambda model, b: gradients(model, b, is_truth)  # its train() calls this
    loss, grads, _, _ = gradients(load(folder, is_truth), batch, is_truth)
    model = load(folder, is_truth)
    losses, _, _ = make_families.train(model, steps)
    out[prefix + "loss"], out[prefix + "steps.loss"] = loss.reshape(1), losses
    out.update({prefix + "grad." + n: g for n, g in grads.items()})
    out.update({prefix + "after." + n: p.detach() for n, p in trained(model)})


def distance(out, family, what):
    """Distance of PEFT's result from the truth, in the L2 norm over all tensors of a kind."""
    names = [n for n in out if n.startswith(family + ".truth." + what)]
    truth = torch.cat([out[n].double().flatten() for n in names])
    return float((torch.cat([out[n.replace(".truth.", ".peft.")].double().flatten() for n in names]) - truth).norm() / truth.norm())


def main():
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    out = {}
    for family in FAMILIES:
        folder = os.path.join(ROOT, family)
        given = load_file(os.path.join(folder, "expected.safetensors"))
        kinds = ("ids", "labels", "position_ids", "doc_start")
        batch = {k: given["packed." + k].long() for k in kinds}
        steps = [{k: given["steps." + k][i].long() for k in kinds} for i in range(STEPS)]
        record(out, family + ".truth.", folder, batch, steps, True)
        record(out, family + ".peft.", folder, batch, steps, False)
        print(family, *("%s %.3g" % (what, distance(out, family, what)) for what in ("loss", "grad", "steps.loss", "after")))
    save_file({k: v.to(torch.float32).contiguous() for k, v in sorted(out.items())}, OUT,
              metadata=dict(torch=str(torch.__version__)))


if __name__ == "__main__":
    main()
