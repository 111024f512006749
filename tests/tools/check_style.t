#!/bin/bash
# tools/check-style on a small source tree: what it accepts, and what it reports.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
command -v clang-format > /dev/null && command -v git > /dev/null || {
    skip "no clang-format or no git here"
    finish
}
mkdir "$dir/tools"
cp tools/check-style "$dir/tools"
cp .clang-format "$dir"
git -C "$dir" init -q

# body LINES TEXT: makes a.c with one function, which contains TEXT and LINES more lines.
body() {
    { printf 'static int f(int x)\n{\n%b' "$2"; yes '    x++;' | head -n "$1"; printf '    return x;\n}\n'; } > "$dir/a.c"
    git -C "$dir" add a.c
    "$dir/tools/check-style" > "$dir/out" 2>&1 && status=0 || status=$?
}

body 56 ''
check "60 lines pass: $(cat "$dir/out")" [ "$status" = 0 ]
body 57 ''
check "61 lines don't: status $status" [ "$status" = 1 ]
check "they are named: $(cat "$dir/out")" grep -qxF 'a.c:2: 61 lines, at most 60: static int f(int x)' "$dir/out"
body 50 '    static const int t[] = {\n        1,\n        2,\n        3,\n        4,\n        5,\n        6,\n    };\n'
check "those of a table don't count: $(cat "$dir/out")" [ "$(grep -c 'at most' "$dir/out")" = 0 ]
body 3 '      x--;\n'
check "a line that stands elsewhere doesn't pass: status $status" [ "$status" = 1 ]
check "its file is named: $(cat "$dir/out")" grep -qxF 'not as .clang-format says (make format): a.c' "$dir/out"
finish
