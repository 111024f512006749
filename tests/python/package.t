#!/bin/bash
# The Python package on the CPU. PYTHON: the interpreter.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
SUROGATE_LIBRARY=$(dirname "$SUROGATE")/libsurogate.so
export SUROGATE_LIBRARY

if ! find_python; then
    skip "no Python 3.10 with NumPy here"
elif [ ! -e "$SUROGATE_LIBRARY" ]; then
    skip "this build has no libsurogate.so"
else
    "$PYTHON" python/tests/test_package.py > "$dir/log" 2>&1
    read -r passed _ failed _ skipped _ <<< "$(tail -1 "$dir/log")"
    [[ $passed$failed$skipped =~ ^[0-9]+$ ]] || passed=0 failed=1 skipped=0
    [ "$failed" = 0 ] || cat "$dir/log"
    num_passed=$((num_passed + passed))
    num_failed=$((num_failed + failed))
    num_skipped=$((num_skipped + skipped))
fi
finish
