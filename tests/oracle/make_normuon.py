#!/usr/bin/env python3
"""Writes tests/fixtures/normuon.safetensors: how far 20 updates of NorMuon move matrices, in fp64 from the formula (arXiv
2510.05491; steps of Polar Express, Amsel et al. 2025, and of Newton and Schulz, Jordan 2024). A matrix with more rows
than columns is transposed, as in the paper; the engine doesn't transpose.

  python3 tests/oracle/make_normuon.py
"""
import os

import numpy
from safetensors.numpy import save_file

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures", "normuon.safetensors")
SHAPES, UPDATES = ((24, 56), (56, 24), (32, 32)), 20
STEPS = {
    "polar_express": ((8.156554524902461, -22.48329292557795, 15.878769915207462),
                      (4.042929935166739, -2.808917465908714, 0.5000178451051316),
                      (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
                      (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
                      (2.3465413258596377, -1.7097828382687081, 0.42323551169305323)),
    "newton_schulz": ((3.4445, -4.7750, 2.0315),) * 5,
}
MOMENTUM, BETA2, EPS, LR, DECAY, MAX_NORM = 0.95, 0.95, 1e-10, 0.02, 0.1, 1.0


def numbers(turn, rows, columns):
    """As in tests/passes/test_normuon.c: multiples of 1/64 in [-2, 2), which bf16 can hold; turn 0 gives the weights."""
    index = numpy.arange(rows * columns, dtype=numpy.uint32)
    h = index * numpy.uint32(0x9E3779B1) + numpy.uint32((turn * 1000 + rows) * 0x85EBCA77 & 0xFFFFFFFF)
    for shift, factor in ((15, 0x2C1B3C6D), (12, 0x297A2D39), (15, 1)):
        h = (h ^ (h >> numpy.uint32(shift))) * numpy.uint32(factor)
    return ((h >> numpy.uint32(24)).astype(float) - 128).reshape(rows, columns) / 64


def orthogonal(x, steps):
    if x.shape[0] > x.shape[1]:
        return orthogonal(x.T, steps).T
    x = x / (1.02 * numpy.linalg.norm(x) + 1e-6)
    for a, b, c in steps:
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


def moved(rows, columns, steps, nesterov):
    w = start = numbers(0, rows, columns)
    m, v = numpy.zeros((rows, columns)), numpy.zeros(rows)
    for t in range(1, UPDATES + 1):
        g = numbers(t, rows, columns)
        g = g * min(1.0, MAX_NORM / (numpy.linalg.norm(g) + 1e-6))
        m = MOMENTUM * m + (1 - MOMENTUM) * g
        o = orthogonal(MOMENTUM * m + (1 - MOMENTUM) * g if nesterov else m, steps)
        v = BETA2 * v + (1 - BETA2) * (o ** 2).mean(1)
        o = o / (numpy.sqrt(v) + EPS)[:, None]
        w = w - LR * DECAY * w - LR * 0.2 * numpy.sqrt(rows * columns) / numpy.linalg.norm(o) * o
    return (w - start).astype(numpy.float32)


def main():
    tensors = {"%s.%dx%d%s" % (name, *shape, "" if nesterov else ".plain"): moved(*shape, steps, nesterov)
               for name, steps in STEPS.items() for shape in SHAPES for nesterov in (True, False)
               if nesterov or shape == SHAPES[0]}
    save_file(tensors, PATH)
    print("%d tensors, %d bytes" % (len(tensors), os.path.getsize(PATH)))


if __name__ == "__main__":
    main()
