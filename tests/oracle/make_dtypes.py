#!/usr/bin/env python3
"""Writes tests/fixtures/dtypes.json: hashes of what ml_dtypes (f16: NumPy) makes of every code and of many values. Needs numpy, ml_dtypes.

Of each format, FNV-1a of:
  decode  the float32 bits of all codes, NaN as 7fc00000
  bf16    the codes of all 65,536 bf16 values
  ties    the codes of the midpoints of neighbouring finite values, each with the float32 before and after it
Beyond the finite range ml_dtypes rounds to infinity or NaN; ours is the largest finite value, which is put in here. So are
the quiet NaN without a payload for f16, and 0 for a NaN where the format has none. nf4 is the table
and the rounding of bitsandbytes (backends/utils.py, and bucketize over midpoints in backends/default/ops.py).
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
    codes = np.where(np.abs(x) > decode(name)[largest], sign | largest, x.astype(kind).view(unsigned))
    if name == "f16":
        codes = np.where(np.isnan(x), sign | 0x7E00, codes)
    if name == "e2m1":
        codes = np.where(np.isnan(x), 0, codes)
    return codes.astype(unsigned)


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
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures", "dtypes.json")
    with open(path, "w") as file:
        json.dump(out, file, indent=1)
        file.write("\n")


main()
