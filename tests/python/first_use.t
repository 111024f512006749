#!/bin/bash
# Weights whose first use in a model does not run, and which are used again. PYTHON: which interpreter.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
SUROGATE_LIBRARY=$(dirname "$SUROGATE")/libsurogate.so
export SUROGATE SUROGATE_LIBRARY PYTHONPATH=$root/python PYTHONDONTWRITEBYTECODE=1

if ! find_python; then
    skip "no Python 3.10 with NumPy here"
elif [ ! -e "$SUROGATE_LIBRARY" ]; then
    skip "this build has no libsurogate.so"
else
    "$PYTHON" tests/python/first_use.py > "$dir/log" 2>&1
    read -r passed _ failed _ <<< "$(tail -1 "$dir/log")"
    [[ $passed$failed =~ ^[0-9]+$ ]] || passed=0 failed=1
    [ "$failed" = 0 ] || cat "$dir/log"
    num_passed=$((num_passed + passed))
    num_failed=$((num_failed + failed))
fi
finish
