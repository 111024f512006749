#!/bin/bash
# Random models have the gradients that PyTorch has, through further outputs, terms of the loss and dropout. PYTHON: which interpreter.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
run_python tests/python/graphs.py
finish
