#!/bin/bash
# Weights whose first use in a model does not run, and which are used again. PYTHON: which interpreter.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
run_python tests/python/first_use.py
finish
