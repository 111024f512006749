#!/bin/bash
# The decoder over a matrix and the small model from Python, and the example that trains and decodes. PYTHON: the interpreter.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
SUROGATE_LIBRARY=$(dirname "$SUROGATE")/libsurogate.so
export SUROGATE_LIBRARY PYTHONPATH=$root/python PYTHONDONTWRITEBYTECODE=1

if ! find_python; then
    skip "no Python 3.10 with NumPy here"
elif [ ! -e "$SUROGATE_LIBRARY" ]; then
    skip "this build has no libsurogate.so"
else
    "$PYTHON" python/tests/test_decoder.py > "$dir/log" 2>&1
    read -r passed _ failed _ skipped _ <<< "$(tail -1 "$dir/log")"
    [[ $passed$failed$skipped =~ ^[0-9]+$ ]] || passed=0 failed=1 skipped=0
    [ "$failed" = 0 ] || cat "$dir/log"
    num_passed=$((num_passed + passed))
    num_failed=$((num_failed + failed))
    num_skipped=$((num_skipped + skipped))
    "$PYTHON" examples/decoder/copy_task.py > "$dir/out" 2> "$dir/err" || fail "the example: $(cat "$dir/err")"
    check "it begins at chance" grep -qE '^step +0 .* accuracy 0\.(0|1)' "$dir/out"
    check "it learns" grep -qE 'accuracy (0\.9[5-9]|1\.0)[0-9]* of the last 10' "$dir/out"
    check "it decodes what it never saw" grep -qE '^decoded (19|20) of 20' "$dir/out"
fi
finish
