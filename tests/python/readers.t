#!/bin/bash
# Adapters of linear layers whose weights are read by other ops too. PYTHON: the interpreter.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
run_python tests/python/readers.py
finish
