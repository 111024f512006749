#!/bin/bash
# Every code block of README.md and docs/ does what the page says (blocks.py); generated pages have no blocks to run. UPDATE=1 writes the
# output of console blocks into the pages. PAGES="docs/dsl.md ...": only these pages.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
command -v python3 > /dev/null || { skip "python3 isn't installed" && finish; }
export SUROGATE
find_python || skip "Python blocks: no Python 3.10 with NumPy here"

# shellcheck disable=SC2046,SC2086
"$PYTHON" tests/docs/blocks.py ${UPDATE:+--update} ${PAGES:-$(grep -L "^<!-- Written by" README.md docs/*.md docs/*/*.md)} > "$dir/log" 2>&1
read -r passed _ failed _ skipped _ <<< "$(tail -1 "$dir/log")"
[[ $passed$failed$skipped =~ ^[0-9]+$ ]] || passed=0 failed=1 skipped=0
[ "$failed" = 0 ] || cat "$dir/log"
num_passed=$((num_passed + passed))
num_failed=$((num_failed + failed))
num_skipped=$((num_skipped + skipped))
for family in $("$SUROGATE" version | tail -n +3); do check "docs/models.md has $family" grep -q "^| .$family. |" docs/models.md; done
finish
