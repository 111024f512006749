#!/bin/bash
# Random models have PyTorch's gradients, through further outputs, terms of the loss and dropout. PYTHON: the interpreter.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
run_python tests/python/graphs.py
finish
