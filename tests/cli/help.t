#!/bin/bash
# The help of every command fits 80 columns.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh

# narrow NAME: the output of the last run fits 80 columns.
narrow() {
    local wide
    wide=$(awk 'length > 80' "$dir/out" "$dir/err")
    check "$1: exit $status" [ "$status" = 0 ]
    check "$1: wider than 80 columns: $wide" [ -z "$wide" ]
}
run help
narrow help
commands=$(sed -n 's/^  surogate \([a-z]*\).*/\1/p' "$dir/out" | sort -u)
check "it lists the commands" [ "$(wc -w <<< "$commands")" -ge 25 ]
for command in $commands; do
    run "$command" --help
    narrow "$command --help"
done
for command in ops text decoder; do
    run bench $command --help
    narrow "bench $command --help"
done
run tokenizer train --help
narrow "tokenizer train --help"
run help keys
narrow "help keys"
for key in $(sed -n 's/^  \([a-z0-9_]*\) .*/\1/p' "$dir/out"); do
    run help keys "$key"
    narrow "help keys $key"
done
finish
