#!/usr/bin/env python3
"""Writes tests/fixtures/nf4.safetensors: tensors that bitsandbytes quantised to NF4 with double quantisation, on the CPU.

CASE.x; CASE.codes, CASE.scales (fp32), CASE.absmax, CASE.nested, CASE.offset; CASE.w: dequantised; CASE.plain: with the fp32 scales,
to bf16.

bitsandbytes' compiled CPU code uses scales of wrong blocks if the length of a row is a multiple of 16 but not of 64, and flushes subnormal
bf16 results to 0. So the whole tensor is given as one row, and PyTorch rounds fp32 results. bitsandbytes sums the mean of the scales in fp32;
the offset here is the mean in fp64, within 4 ulp of bitsandbytes', and the later steps use this offset.

  python3 tests/oracle/make_nf4.py
"""
import os

import bitsandbytes.functional as bnb
import torch
from safetensors.torch import save_file

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures", "nf4.safetensors")
rng = torch.Generator().manual_seed(11)


def cases():
    def normal(*dims):
        return torch.randn(*dims, generator=rng)
    yield "blocks", normal(6, 128)
    yield "nested", (normal(132, 126) * torch.exp(normal(132, 1))).bfloat16()  # 260 blocks, the last of 56 elements
    yield "bf16", (normal(10, 96) * 0.02).bfloat16()
    yield "bf16_short", normal(3, 50).bfloat16()
    yield "least", normal(1, 2)
    yield "one_block", normal(4, 16)
    zeros = normal(5, 64)
    zeros[1], zeros[2, ::2], zeros[3] = 0, -0.0, -0.0
    yield "zeros", zeros
    yield "all_zero", torch.zeros(2, 64)
    yield "all_zero_short", torch.zeros(2, 80)
    yield "large", normal(8, 64) * 1e36
    yield "small", normal(7, 62) * 1e-38
    yield "mixed", normal(8, 64) * 10 ** torch.linspace(-44, 36, 8)[:, None]
    halves = torch.arange(-64, 64).repeat(2, 1) / 64.0  # even steps; some values are halfway between two values of the format
    code = bnb.get_4bit_type("nf4", device="cpu")
    halves[1, 1:16] = (code[1:] + code[:-1]) / 2
    yield "ties", halves


def with_exact_offset(state, scales):
    offset = scales.double().mean().float()
    assert abs(offset.view(torch.int32) - state.offset.view(torch.int32)) <= 4
    state.offset = offset
    state.absmax, state.state2 = bnb.quantize_blockwise(scales - offset, blocksize=256)


def main():
    torch.set_num_threads(1)
    kept = {}
    for case, x in cases():
        codes, state = bnb.quantize_4bit(x, quant_type="nf4", blocksize=64, compress_statistics=True)
        plain_codes, plain = bnb.quantize_4bit(x, quant_type="nf4", blocksize=64, compress_statistics=False)
        assert torch.equal(codes, plain_codes)
        with_exact_offset(state, plain.absmax)
        plain.shape = state.shape = (1, x.numel())
        plain.dtype = state.dtype = torch.float32
        named = dict(x=x, codes=codes.reshape(x.shape[0], -1), scales=plain.absmax, absmax=state.absmax, nested=state.state2.absmax,
                     offset=state.offset.reshape(1), w=bnb.dequantize_4bit(codes, state).reshape(x.shape),
                     plain=bnb.dequantize_4bit(codes, plain).reshape(x.shape).bfloat16())
        kept.update(("%s.%s" % (case, name), t.contiguous().clone()) for name, t in named.items())
    save_file(kept, PATH, metadata=dict(cases=" ".join(sorted({k.split(".")[0] for k in kept}))))
    print("%d tensors, %d bytes" % (len(kept), os.path.getsize(PATH)))


if __name__ == "__main__":
    main()
