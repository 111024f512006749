#!/bin/bash
# Weights wherever ops read tensors, computed weights, blocks applied several times: the results are PyTorch's. PYTHON: the interpreter.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
run_python tests/python/weights.py
finish
