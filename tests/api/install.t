#!/bin/bash
# What `make install` puts in place is enough for C programs: those of docs/c_api.md.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
build=$(dirname "$SUROGATE")
[ -e "$build/libsurogate.so" ] || {
    skip "this build has no libsurogate.so"
    finish
}
CC=${CC:-cc}

tools/install "$build" "$dir/usr" > "$dir/out" 2>&1 || fail "tools/install: $(cat "$dir/out")"
for file in bin/surogate lib/libsurogate.so lib/pkgconfig/surogate.pc include/surogate.h share/man/man1/surogate.1; do
    check "$file" test -s "$dir/usr/$file"
done
"$dir/usr/bin/surogate" version > "$dir/out" 2>&1 || fail "the installed program: $(cat "$dir/out")"
page=$dir/usr/share/man/man1/surogate.1
check "the man page lists the commands" grep -q 'surogate sft' "$page"
check "and what each takes" grep -q -F -e '\-\-prompt\-file FILE' "$page"
check "and how a run may end" grep -q -x 75 "$page"
for shell in bash:bash-completion/completions/surogate zsh:zsh/site-functions/_surogate fish:fish/vendor_completions.d/surogate.fish; do
    check "completions of ${shell%%:*}" cmp <("$SUROGATE" help completions "${shell%%:*}") "$dir/usr/share/${shell#*:}"
done
check "the schema of run files" cmp <("$SUROGATE" help schema) "$dir/usr/share/surogate/run.schema.json"
version=$(sed -n 's/^#define SUROGATE_VERSION "\(.*\)"$/\1/p' src/base/version.h)
check "the man page's version" grep -q -F "\"surogate $version\"" "$page"
check "pkg-config's version" grep -q -x -F "Version: $version" "$dir/usr/lib/pkgconfig/surogate.pc"
if command -v man > /dev/null; then
    check "the man page is laid out without a warning" test -z "$(man --warnings -l "$page" 2>&1 > /dev/null)"
fi
shown=$(nm -D --defined-only "$dir/usr/lib/libsurogate.so" | awk '{ print $3 }' | sort)
declared=$(sed -n 's/^SG_API .*[ *]\(sg_[a-z_]*\)(.*/\1/p' include/surogate.h | sort)
check "the library shows what the header declares" test "$shown" = "$declared"
DESTDIR=$dir/stage tools/install "$build" /opt/surogate > /dev/null
check "DESTDIR comes before the prefix" grep -qx prefix=/opt/surogate "$dir/stage/opt/surogate/lib/pkgconfig/surogate.pc"
tools/install "$build" relative > "$dir/out" 2>&1 && fail "a relative prefix was taken"

mkdir "$dir/work"
ln -s "$root/examples" "$dir/work/examples"
yes 'To be, or not to be, that is the question.' | head -n 200 > "$dir/work/text.txt"
awk -v dir="$dir/work" 'BEGIN { split("train generate head", names) } /^```c$/ { name = dir "/" names[++num] ".c"; next } /^```$/ { name = "" } name { print > name }' docs/c_api.md
flags="-I$dir/usr/include -L$dir/usr/lib -lsurogate"
if command -v pkg-config > /dev/null; then
    flags=$(PKG_CONFIG_PATH=$dir/usr/lib/pkgconfig pkg-config --cflags --libs surogate)
fi
for example in train generate head; do
    # shellcheck disable=SC2086
    check "the example $example compiles" "$CC" -Wall -Wextra -Werror -o "$dir/work/$example" "$dir/work/$example.c" $flags
    (cd "$dir/work" && LD_LIBRARY_PATH=$dir/usr/lib "./$example") > "$dir/$example" 2> "$dir/err" || fail "the example $example: $(cat "$dir/err")"
done
check "it trains" grep -q '^step 6 loss [0-9.]*$' "$dir/train"
check "it leaves a model" test -s "$dir/work/out/model/model.safetensors"
check "and a checkpoint" test -s "$dir/work/out/checkpoint-6/manifest.json"
check "it generates" grep -q '^{"index":1,"sample":1,"id":"b","text":"' "$dir/generate"
check "and nothing else" [ "$(wc -l < "$dir/generate")" = 4 ]
check "it chooses ids" [ "$(cat "$dir/head")" = "70 38" ]
finish
