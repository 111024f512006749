#!/bin/bash
# The pass that docs/passes.md adds is built (build/examples) and does what the page says; the page shows its files as they are.
#   tests/passes/guide.t [--update]
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
. tests/passes/cases.sh
[ "${1:-}" = --update ] && update=yes

SUROGATE=$(dirname "$SUROGATE")/examples/surogate
replay_case examples/pass/rename.ir
check "the line is in the list" grep -qxF "$(cat examples/pass/passes.def)" "$(dirname "$SUROGATE")/passes/passes.def"
files=$(sed -n 's/^```.* file=//p' docs/passes.md)
check "the page shows three files" [ "$(echo "$files" | wc -l)" = 3 ]
for file in $files; do
    awk -v start=" file=$file" 'on && /^```$/ { exit } on; index($0, "```") == 1 && substr($0, length($0) - length(start) + 1) == start { on = 1 }' \
        docs/passes.md > "$dir/block"
    if diff "$file" "$dir/block"; then pass; else fail "docs/passes.md: $file isn't what the page shows"; fi
done
finish
