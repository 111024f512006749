#!/usr/bin/env python3
"""Writes the fixtures of GGUF.

  gguf.safetensors   values (F32), their blocks in the simple types by gguf and in the K types by llama.cpp, and the values that gguf
                     decodes from all blocks
  gguf_families.txt  the SHA-256 of the F32 file of each folder in tests/fixtures/families; gguf's reader has checked that names, shapes
                     and values equal the folder's

Needs xllamacpp, gguf and safetensors.

  python3 tests/oracle/make_gguf.py build-cpu/surogate
"""
import hashlib
import json
import os
import shutil
import sys
import tempfile

import gguf
import numpy as np
from gguf import GGMLQuantizationType as T
from safetensors.numpy import load_file, save_file

import check_gguf

# Settings that the format can't express, and their replacements: tests/cli/export.t uses the same.
FITTED = {"gemma2": ('"query_pre_attn_scalar": 12', '"query_pre_attn_scalar": 8'),
          "gemma3": ('"query_pre_attn_scalar": 12', '"query_pre_attn_scalar": 8')}
FIXTURES = os.path.join(os.path.dirname(__file__), "../fixtures")


def sample():
    rng = np.random.default_rng(5)
    rows = [rng.normal(0, .02, 256), rng.laplace(0, 1, 256), rng.uniform(-1, 1, 256), rng.exponential(.1, 256), -rng.exponential(3, 256),
            rng.normal(0, 1, 256) * np.repeat(rng.uniform(.01, 1, 8), 32), np.where(rng.random(256) < .9, 0, rng.normal(0, 1, 256)),
            np.repeat([0, -.37, .25, 0], 64)]
    return np.asarray(rows, np.float32)


def make_blocks():
    values = sample()
    out = {"values": values}
    for kind in (T.F16, T.BF16, T.Q8_0, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q4_K, T.Q5_K, T.Q6_K):
        blocks = check_gguf.reference_blocks(values, kind) if kind.name.endswith("_K") else gguf.quants.quantize(values, kind)
        out[kind.name] = np.ascontiguousarray(blocks).view(np.uint8)
        out[kind.name + ".decoded"] = np.ascontiguousarray(gguf.quants.dequantize(blocks, kind), np.float32).reshape(values.shape)
    save_file(out, FIXTURES + "/gguf.safetensors")


def make_families(root):
    lines = []
    for name in sorted(os.listdir(FIXTURES + "/families")):
        folder, path = "%s/%s" % (root, name), "%s/%s.gguf" % (root, name)
        if not os.path.exists("%s/families/%s/model.safetensors" % (FIXTURES, name)):
            continue
        shutil.copytree("%s/families/%s" % (FIXTURES, name), folder)
        with open(folder + "/config.json") as f:
            text = f.read()
        with open(folder + "/config.json", "w") as f:
            f.write(text.replace(*FITTED.get(name, ("", ""))))
        done = check_gguf.surogate_run("export", folder, "--to", "gguf", "--type", "f32", "--out", path, ok=False)
        if done.returncode:
            print("%s: refused: %s" % (name, done.stderr.strip().replace("\n", " ")))
            continue
        config, tensors = json.load(open(folder + "/config.json")), load_file(folder + "/model.safetensors")
        check_gguf.check_tensors(name, path, tensors, config)
        lines.append("%s  %s\n" % (hashlib.sha256(open(path, "rb").read()).hexdigest(), name))
    with open(FIXTURES + "/gguf_families.txt", "w") as f:
        f.writelines(lines)


def main():
    check_gguf.SUROGATE = os.path.abspath(sys.argv[1])
    make_blocks()
    with tempfile.TemporaryDirectory() as root:
        make_families(root)
    sys.exit(1 if check_gguf.failed else 0)


if __name__ == "__main__":
    main()
