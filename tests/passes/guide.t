#!/bin/bash
# The pass that docs/passes.md adds is built (build/examples) and works as the page says; tests/docs/docs.t checks that the page shows its
# files unchanged.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
. tests/passes/cases.sh
[ "${1:-}" = --update ] && update=yes

SUROGATE=$(dirname "$SUROGATE")/examples/surogate
replay_case examples/pass/rename.ir
check "the line is in the list" grep -qxF "$(cat examples/pass/passes.def)" "$(dirname "$SUROGATE")/passes/passes.def"
check "the page shows three files" [ "$(grep -c '^```.* title="examples/pass/' docs/passes.md)" = 3 ]
finish
