#!/bin/bash
# Host memory runs out at the n-th allocation: exit status 3 and one line, whichever allocation it is. TRIALS: number of trials per command.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
if ! cc -shared -fPIC -D_GNU_SOURCE -o "$dir/fail_malloc.so" tests/cli/fail_malloc.c -ldl 2> "$dir/err"; then
    skip "no compiler for fail_malloc.c: $(head -1 "$dir/err")"
    finish
fi
cd "$dir" || exit 1
"$SUROGATE" new --arch qwen3-tiny --random base > log 2>&1 || fail "new: $(tail -1 log)"
seq 1 2000 | sed 's/^/The number is /' > all.txt
"$SUROGATE" tokenizer train --vocab-size 300 --out tokenizer all.txt > log 2>&1 || fail "tokenizer: $(tail -1 log)"
cp tokenizer/tokenizer* base
seq 1 300 | sed 's/^/The number is /' > text.txt
cat > run.yaml << END
model: base
datasets: [{path: text.txt, type: text}]
sequence_len: 32
max_steps: 1
device: cpu
output_dir: out
END

# Allocation numbers in equal steps, and the last ones.
commands=("generate base --prompt The --max-tokens 2" "eval base --text text.txt --json" "pt run.yaml" "new --arch qwen3-tiny --random again")
for command in "${commands[@]}"; do
    rm -rf out again
    # shellcheck disable=SC2086
    FAIL_COUNT=count LD_PRELOAD=$dir/fail_malloc.so "$SUROGATE" $command > log 2>&1 || fail "$command: $(tail -1 log)"
    all=$(cat count) bad=""
    for ((k = 1; k <= ${TRIALS:-60}; k++)); do
        rm -rf out again
        at=$((all * k / (${TRIALS:-60} + 1) + 1))
        # shellcheck disable=SC2086
        FAIL_ALLOC=$at LD_PRELOAD=$dir/fail_malloc.so "$SUROGATE" $command > log 2>&1
        code=$?
        [ $code = 3 ] || bad="$bad; $at of $all: $code, $(tail -1 log)"
    done
    check "$command without memory${bad}" [ -z "$bad" ]
done
finish
