#!/bin/bash
# Weights whose first use in a model is in a part that doesn't run, and which are used again. PYTHON: the interpreter.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
run_python tests/python/first_use.py
finish
