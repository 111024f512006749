#!/bin/bash
# bench/bench_copy without a GPU: a small run on the CPU gives the bits of the chain without copies; the null device simulates a full one,
# in which weights are copied in beside products.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
bench=$(dirname "$SUROGATE")/bench/bench_copy

"$bench" cpu 4 32 > "$dir/cpu" 2>&1
check "runs on the CPU" [ $? = 0 ]
check "every chain with copies gives equal bits" [ "$(grep -c ' equal$' "$dir/cpu")" = 8 ]

"$bench" null:h200 > "$dir/null" 2>&1
check "simulates on the null device" [ $? = 0 ]
# Simulated time by the device's rates of a chain with these tokens and copies.
simulated() { awk -v tokens="$1" -v copies="$2" '$1 == tokens && $2 == copies { print int($7); exit }' "$dir/null"; }
alone=$(simulated 12288 none)
check "balanced, copies hide behind products" [ "$(simulated 12288 weights)" -lt $((alone * 5 / 4)) ]
check "few tokens wait for the link" [ "$(simulated 4096 weights)" -gt $(($(simulated 4096 none) * 2)) ]
check "a wrong width is refused" [ "$("$bench" cpu 4 33 2>&1 | grep -c '^usage')" = 1 ]
finish
