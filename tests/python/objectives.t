#!/bin/bash
# The example objectives have the losses and gradients that PyTorch has, whole and in chunks of rows. PYTHON: which interpreter.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
run_python tests/python/objectives.py
finish
