#!/usr/bin/env python3
"""Writes tests/fixtures/dtypes.json: hashes of conversions by ml_dtypes (f16: NumPy), of every code and of many values. Needs numpy, ml_dtypes.

For each format, the FNV-1a hash of:
  decode  the float32 bits of all codes, NaN as 7fc00000
  bf16    the codes of all 65,536 bf16 values
  ties    the codes of the midpoints of neighbouring finite values, each with the float32 before and after it
For e4m3, e5m2 and e2m1 also digests of the codes of a million and of a hundred million floats (random_floats, digest).
Finite values beyond the range become infinity or NaN in ml_dtypes, but the largest finite value here; this script corrects them. It also
corrects NaN of f16 to a quiet NaN without a payload, and in formats without NaN and infinity, NaN to 0 and infinity to the largest value.
nf4 has bitsandbytes' table and rounding (backends/utils.py, and bucketize over midpoints in backends/default/ops.py).
"""
import json
import os

import ml_dtypes
import numpy as np

NF4 = np.array([-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
                -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
                0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0], np.float32)
# bits, type, code of the largest finite value
FLOATS = {"f16": (16, np.float16, 0x7BFF), "e4m3": (8, ml_dtypes.float8_e4m3fn, 0x7E), "e5m2": (8, ml_dtypes.float8_e5m2, 0x7B),
          "e2m1": (4, ml_dtypes.float4_e2m1fn, 7)}


def fnv(array):
    h = 0xCBF29CE484222325
    for byte in array.tobytes():
        h = (h ^ byte) * 0x100000001B3 & (1 << 64) - 1
    return "%016x" % h


def decode(name):
    if name == "nf4":
        return NF4
    if name == "i8":
        return np.arange(256, dtype=np.uint8).view(np.int8).astype(np.float32)
    bits, kind, _ = FLOATS[name]
    return np.arange(1 << bits, dtype=np.uint16 if bits == 16 else np.uint8).view(kind).astype(np.float32)


def encode(name, x):
    if name == "nf4":
        codes = np.searchsorted((NF4[:-1] + NF4[1:]) / np.float32(2), x, side="left")
        return np.where(np.isnan(x), 7, codes).astype(np.uint8)
    if name == "i8":
        return np.where(np.isnan(x), 0, np.clip(np.rint(x), -128, 127)).astype(np.int8).view(np.uint8)
    bits, kind, largest = FLOATS[name]
    unsigned = np.uint16 if bits == 16 else np.uint8
    sign = np.signbit(x).astype(unsigned) << (bits - 1)
    beyond = np.abs(x) > decode(name)[largest]
    if name != "e2m1":
        beyond &= np.isfinite(x)
    codes = np.where(beyond, sign | largest, x.astype(kind).view(unsigned))
    if name == "f16":
        codes = np.where(np.isnan(x), sign | 0x7E00, codes)
    if name == "e2m1":
        codes = np.where(np.isnan(x), 0, codes)
    return codes.astype(unsigned)


def random_floats(begin, count):
    """Floats begin, begin + 1, ... of the sequence: for even i any bits, for odd i magnitudes from 2^-31 to 2^32."""
    i = np.arange(begin, begin + count, dtype=np.uint32)
    w = (i ^ i >> 16) * np.uint32(0x85EBCA6B)
    w = (w ^ w >> 13) * np.uint32(0xC2B2AE35)
    w ^= w >> 16
    near = w & np.uint32(0x807FFFFF) | (np.uint32(96) + (w >> 23 & np.uint32(63))) << 23
    return np.where(i & 1, near, w).view(np.float32)


def digest(name, count):
    """Digest of codes c_0, c_1, ...: the sum of (c_i + 1)(2 i + 1), modulo 2^64."""
    total, part = 0, 10 ** 6
    for begin in range(0, count, part):
        codes = encode(name, random_floats(begin, part)).astype(np.uint64) + np.uint64(1)
        total += int(np.sum(codes * (2 * np.arange(begin, begin + part, dtype=np.uint64) + np.uint64(1))))
    return "%016x" % (total & (1 << 64) - 1)


def main():
    out = {}
    every = (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32)
    with np.errstate(all="ignore"):
        for name in ["i8", "f16", "e4m3", "e5m2", "e2m1", "nf4"]:
            values = decode(name)
            finite = np.unique(values[np.isfinite(values)])
            middle = (finite[:-1] + finite[1:]) / np.float32(2)
            low, high = np.nextafter(middle, np.float32(-np.inf)), np.nextafter(middle, np.float32(np.inf))
            ties = np.stack([low, middle, high], 1).reshape(-1)
            words = np.where(np.isnan(values), np.uint32(0x7FC00000), values.view(np.uint32)).astype(np.uint32)
            out[name] = {"decode": fnv(words), "bf16": fnv(encode(name, every)), "ties": fnv(encode(name, ties))}
            if name in ("e4m3", "e5m2", "e2m1"):
                out[name].update(million=digest(name, 10 ** 6), long=digest(name, 10 ** 8))
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures", "dtypes.json")
    with open(path, "w") as file:
        json.dump(out, file, indent=1)
        file.write("\n")


main()
