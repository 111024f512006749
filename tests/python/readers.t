#!/bin/bash
# Adapters of linear layers whose weights other ops read. PYTHON: which interpreter.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
run_python tests/python/readers.py
finish
