#!/bin/bash
# The architectures of examples/dsl compute the same as in transformers. PYTHON: the interpreter.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
run_python tests/python/architectures.py
finish
