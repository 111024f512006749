#!/bin/bash
# The example objectives have PyTorch's losses and gradients, whole and in chunks of rows. PYTHON: the interpreter.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
run_python tests/python/objectives.py
finish
