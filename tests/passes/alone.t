#!/bin/bash
# Passes run alone: tests/passes/PASS/*.ir.
#   tests/passes/alone.t [--update]    --update writes what comes out into the files
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
. tests/passes/cases.sh
[ "${1:-}" = --update ] && update=yes

# bind has no graph to start from, load makes another graph, head makes one from the options, and cache always chooses a token. autodiff and
# optimise refuse a graph in which there is nothing to do.
always_changes=" bind cache autodiff optimise load head "
for name in $(sed -n 's/^PASS(\([a-z_]*\),.*/\1/p' src/passes/passes.def); do
    count=0
    same=0
    for file in tests/passes/"$name"/*.ir; do
        [ -f "$file" ] || continue
        replay_case "$file"
        count=$((count + 1))
        [ "$(case_input "$file" | grep -v '^#')" = "$(grep -v '^#' "$dir/out")" ] && same=$((same + 1))
    done
    [ "$name" = bind ] || check "$name: three cases" [ $count -ge 3 ]
    [[ $always_changes == *" $name "* ]] || check "$name: a case where it changes nothing" [ $same -ge 1 ]
done
finish
