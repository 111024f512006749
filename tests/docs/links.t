#!/bin/bash
# The links of all pages point to existing targets (links.py).
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
command -v python3 > /dev/null || { skip "python3 isn't installed" && finish; }
exec python3 tests/docs/links.py
