#!/usr/bin/env python3
"""Writes tests/fixtures/nvfp4.safetensors: tensors in NVFP4 by the formulas of arXiv 2509.25149 in NumPy, each step rounded to fp32.

CASE.x; CASE.codes, two a byte; CASE.scale, e4m3 as bytes; CASE.global; CASE.w: dequantised. The metadata key `cases` is JSON: {"CASE":
{attribute of nvfp4_quantise: true, ...}, ...}. Where torchao defines the same thing, codes and scales are checked against its own: it has
no scales below 2^-6 and none of the attributes.

  python3 tests/oracle/make_nvfp4.py
"""
import json
import os

import ml_dtypes
import numpy as np
import torch
from safetensors.torch import save_file
from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize, per_tensor_amax_to_scale

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures", "nvfp4.safetensors")
E4M3, E2M1, F32 = ml_dtypes.float8_e4m3fn, ml_dtypes.float4_e2m1fn, np.float32
SIGNS = np.array([-1.0 if 0x9E37 >> i & 1 else 1.0 for i in range(16)])
HADAMARD = np.array([[(-1.0) ** bin(i & j).count("1") for j in range(16)] for i in range(16)]) / 4
rng = np.random.default_rng(4)


def nvfp4(x, transposed=False, two_d=False, four_six=False, hadamard=False):
    """Codes, scales, the tensor's scale and the decoded values."""
    x = x.T if transposed else x
    blocks = x.reshape(x.shape[0], -1, 16).astype(F32)
    if hadamard:
        blocks = ((blocks.astype(np.float64) * SIGNS) @ HADAMARD.T).astype(F32)
    amax = np.abs(blocks).max(2)
    whole = max(amax.max() / F32((256 if four_six else 448) * 6), F32(2.0 ** -100))
    if two_d:
        amax = amax.reshape(-1, 16, amax.shape[1]).max(1).repeat(16, 0)

    def quantise(top):
        scale = np.minimum(amax / F32(top) / whole, F32(448)).astype(E4M3)
        inverse = np.where(scale == 0, F32(0), F32(1) / whole / np.maximum(scale.astype(F32), F32(2.0 ** -9)))
        codes = np.clip(blocks * inverse[..., None], F32(-6), F32(6)).astype(E2M1)
        w = codes.astype(F32) * scale.astype(F32)[..., None] * whole
        error = ((w.astype(np.float64) - blocks) ** 2).sum(2)
        return scale, codes, w, error.reshape(-1, 16, amax.shape[1]).sum(1).repeat(16, 0) if two_d else error
    scale, codes, w, error = quantise(6)
    if four_six:
        four = quantise(4)
        better = four[3] < error
        scale, codes, w = (np.where(better.reshape(better.shape + (1,) * (a.ndim - 2)), b, a) for a, b in zip((scale, codes, w), four))
    codes = codes.view(np.uint8).reshape(x.shape)
    return codes[:, ::2] | codes[:, 1::2] << 4, scale.view(np.uint8), np.array([whole], F32), w.reshape(x.shape)


def cases():
    def normal(*dims):
        return rng.standard_normal(dims).astype(F32)
    yield "plain", normal(5, 64) * np.exp(normal(5, 1)), {}
    yield "bf16", torch.tensor(normal(7, 96) * F32(0.02)).bfloat16(), {}
    yield "one_block", normal(1, 16), {}
    yield "large", normal(3, 32) * F32(1e36), {}
    yield "small", normal(3, 32) * F32(1e-24), {}
    yield "tiny", normal(3, 32) * F32(1e-36), {}
    yield "spread", normal(6, 80) * F32(10) ** np.linspace(-9, 0, 30, dtype=F32).reshape(6, 5).repeat(16, 1), {}
    zeros = normal(4, 32)
    zeros[1], zeros[2, :16], zeros[3, ::2] = 0, -0.0, -0.0
    yield "zeros", zeros, {}
    yield "all_zero", np.zeros((2, 32), F32), {}
    ties = (np.arange(-48, 48, dtype=F32) / 8).reshape(1, 96).repeat(2, 0)  # block scales of 1, tensor scale 1
    ties[:, ::16], ties[1, 0] = 6, 2688
    yield "ties", ties, {}
    yield "squares", normal(32, 48), dict(two_d=True)
    yield "squares_t", normal(32, 48), dict(two_d=True, transposed=True)
    yield "four_six", normal(9, 80) * np.exp(normal(9, 1)), dict(four_six=True)
    yield "squares_four_six", normal(48, 32), dict(two_d=True, four_six=True)
    yield "transposed", normal(32, 21), dict(transposed=True)
    exact = np.rint(normal(32, 48) * 32).astype(F32) / 32  # sums are exact in any order
    yield "hadamard", exact, dict(hadamard=True)
    yield "hadamard_t", exact, dict(hadamard=True, transposed=True)


def check_torchao(case, x, codes, scale, whole):
    x = torch.tensor(x)
    theirs = per_tensor_amax_to_scale(x.abs().max())
    assert theirs == whole[0], case
    s, c = nvfp4_quantize(x, per_tensor_scale=theirs)
    same = scale >= 0x08  # the code of 2^-6
    assert np.array_equal(s.view(torch.uint8).numpy().reshape(scale.shape)[same], scale[same]), case
    assert np.array_equal(c.numpy().reshape(scale.shape + (8,))[same], codes.reshape(scale.shape + (8,))[same]), case
    return int(same.sum())


def main():
    kept, attributes, checked = {}, {}, 0
    for case, x, attrs in cases():
        stored = x if isinstance(x, torch.Tensor) else torch.tensor(x)
        x = stored.float().numpy()
        codes, scale, whole, w = nvfp4(x, **attrs)
        if not attrs and x.any() and case != "tiny":
            checked += check_torchao(case, x, codes, scale, whole)
        named = dict(x=stored, codes=torch.tensor(codes), scale=torch.tensor(scale), w=torch.tensor(w))
        named["global"] = torch.tensor(whole)
        kept.update(("%s.%s" % (case, name), t.contiguous()) for name, t in named.items())
        attributes[case] = attrs
    save_file(kept, PATH, metadata=dict(cases=json.dumps(attributes)))
    print("%d cases, %d blocks as torchao's, %d bytes" % (len(attributes), checked, os.path.getsize(PATH)))


if __name__ == "__main__":
    main()
