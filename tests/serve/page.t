#!/bin/bash
# The chat page in a headless browser, against a server without a model: narrow and wide, light and dark. PICTURES=folder keeps screenshots.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
if ! command -v chromium chromium-browser google-chrome > /dev/null; then
    skip "no Chromium here"
    finish
fi
timeout 300 python3 tests/serve/page.py ${PICTURES:+"$PICTURES"} > "$dir/said" 2>&1
status=$?
check "the page does what is expected: $(cat "$dir/said")" [ "$status" = 0 ]
finish
