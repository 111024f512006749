#!/bin/bash
# tools/check-layers on a small source tree: what it accepts, and what it reports.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh

# house INCLUDE LINK: makes src/base and src/ops, with INCLUDE in a file of base and LINK in CMakeLists.txt.
house() {
    rm -rf "$dir/house"
    mkdir -p "$dir/house/tools" "$dir/house/docs" "$dir/house/src/base" "$dir/house/src/ops"
    cp tools/check-layers "$dir/house/tools"
    printf '| `src/base/` | |\n| `src/ops/` | |\n' > "$dir/house/docs/architecture.md"
    printf 'set(LAYERS base ops)\n%s\n' "$2" > "$dir/house/CMakeLists.txt"
    echo "$1" > "$dir/house/src/base/a.c"
    echo '#include "base/a.h"' > "$dir/house/src/ops/b.c"
}
says() { # NAME TEXT
    "$dir/house/tools/check-layers" > "$dir/out" 2>&1 && status=0 || status=$?
    check "$1 is refused, with \"$2\": $(cat "$dir/out")" grep -qF "$2" "$dir/out"
    check "$1: status $status" [ "$status" = 1 ]
}

house '#include "base/a.h"' 'target_link_libraries(sg_ops PUBLIC sg_base)'
check "layers that look back" "$dir/house/tools/check-layers"
house '#  include "ops/b.h"' ''
says "an include of a later folder" 'src/base/a.c:1: base may not include ops/b.h'
house '' 'if(TARGET sg_ops)
  target_link_libraries(sg_base PUBLIC
    m sg_ops)
endif()'
says "a link to a later folder" 'sg_base may not link sg_ops'
house '' ''
mkdir "$dir/house/src/other"
says "a folder that is no layer" 'src/other is no layer'
rm -r "$dir/house/src/other"
echo '| `src/ops/` |' > "$dir/house/docs/architecture.md"
says "a table that lacks a folder" 'docs/architecture.md has the folders ops ; expected base ops'
finish
