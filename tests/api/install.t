#!/bin/bash
# The files that `make install` puts in place are enough to build and run the C programs of docs/c_api.md.
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
notices=$dir/usr/share/doc/surogate/THIRD_PARTY_NOTICES
check "the licence" cmp LICENSE "$dir/usr/share/doc/surogate/LICENSE"
if command -v dpkg-query > /dev/null; then
    for name in libyaml libpcre2 libutf8proc zlib1g libzstd liblzma libbz2 liblz4 libbrotli libxxhash libevent libgcc; do
        check "the notice of $name" grep -q "^\(.* \)\?$name[0-9-]*dev " "$notices"
    done
    check "and their text" grep -qF "Permission is hereby granted, free of charge" "$notices"
    check "no notice is missing" tools/notices "$build" > /dev/null
    mkdir "$dir/lacks"
    cp -P "$build"/libsurogate.so* "$dir/lacks/"
    touch "$dir/libmissing.a"
    echo "$dir/lacks/libsurogate.so: $dir/libmissing.a" > "$dir/lacks/libsurogate.link.d"
    tools/notices "$dir/lacks" > /dev/null 2> "$dir/out" && fail "a library without a notice isn't told"
    check "one that is missing is named" grep -qxF "no licence notice was found of $dir/libmissing.a" "$dir/out"
else
    skip "not Debian: no notices"
fi
check "the schema of run files" cmp <("$SUROGATE" help schema) "$dir/usr/share/surogate/run.schema.json"
version=$(sed -n 's/^#define SUROGATE_VERSION "\(.*\)"$/\1/p' src/base/version.h)
check "the man page's version" grep -q -F "\"surogate $version\"" "$page"
check "pkg-config's version" grep -q -x -F "Version: $version" "$dir/usr/lib/pkgconfig/surogate.pc"
if command -v man > /dev/null; then
    check "the man page is laid out without a warning" test -z "$(man --warnings -l "$page" 2>&1 > /dev/null)"
    wide=$(MANWIDTH=80 man -l "$page" 2> /dev/null | sed 's/.\x08//g' | awk 'length > 80')
    check "the man page keeps within 80 columns: $wide" test -z "$wide"
fi
library=$(readlink "$dir/usr/lib/libsurogate.so")
check "the library's name has a number" grep -qx 'libsurogate\.so\.[0-9]*' <<< "$library"
if command -v readelf > /dev/null; then
    check "and it is what programs ask for" grep -qF "SONAME" <(readelf -d "$dir/usr/lib/$library" | grep -F "[$library]")
fi
shown=$(nm -D --defined-only "$dir/usr/lib/libsurogate.so" | awk '{ print $3 }' | sort)
declared=$(sed -n 's/^SG_API .*[ *]\(sg_[a-z_]*\)(.*/\1/p' include/surogate.h | sort)
check "the library shows what the header declares" test "$shown" = "$declared"
DESTDIR=$dir/stage tools/install "$build" /opt/surogate > /dev/null
check "DESTDIR comes before the prefix" grep -qx prefix=/opt/surogate "$dir/stage/opt/surogate/lib/pkgconfig/surogate.pc"
for told in "prefix relative:/relative/lib relative" "LIBDIR lib64:lib64 /opt/surogate"; do
    path=${told#*:}
    LIBDIR=${path% *} DESTDIR=$dir/stage tools/install "$build" "${path#* }" > "$dir/out" 2>&1 && fail "a relative path was taken: $told"
    check "$told" grep -qF "the ${told%%:*} isn't an absolute path" "$dir/out"
done

# Another folder for libraries; then an uninstall that removes everything.
files() { (cd "$dir/$1" && find . | sort); }
mkdir -p "$dir/other/share/man" "$dir/other/lib64"
echo mine > "$dir/other/share/man/mine"
before=$(files other)
(umask 077 && LIBDIR=$dir/other/lib64 tools/install "$build" "$dir/other/") > "$dir/out" 2>&1 || fail "LIBDIR: $(cat "$dir/out")"
check "libraries are in LIBDIR" test -s "$dir/other/lib64/$library" -a -s "$dir/other/lib64/pkgconfig/surogate.pc" -a ! -e "$dir/other/lib"
check "pkg-config says so" grep -qxF "libdir=\${prefix}/lib64" "$dir/other/lib64/pkgconfig/surogate.pc"
check "everybody may read it" test -z "$(find "$dir/other" -newer "$dir/usr/bin/surogate" ! -perm -004)"
check "the library has a number" test "$(readlink "$dir/other/lib64/libsurogate.so")" = "$library"
LIBDIR=$dir/other/lib tools/install "$build" "$dir/other" > "$dir/out" 2>&1 || fail "again: $(cat "$dir/out")"
check "what only the install before had is gone" test ! -e "$dir/other/lib64/libsurogate.so" -a -s "$dir/other/lib/libsurogate.so"
echo more >> "$dir/other/include/surogate.h"
tools/uninstall "$dir/other" > "$dir/out" 2>&1 || fail "tools/uninstall: $(cat "$dir/out")"
check "a file that was changed stays, and is named" grep -qF "include/surogate.h was changed since it was installed, and stays" "$dir/out"
rm -r "$dir/other/include"
check "all else is as before: $(diff <(echo "$before") <(files other))" test "$before" = "$(files other)"
tools/uninstall "$dir/other" > "$dir/out" 2>&1 && fail "there was nothing to remove"
check "what isn't installed is said" grep -qF "there is no $dir/other/share/surogate/installed" "$dir/out"
DESTDIR=$dir/stage tools/uninstall /opt/surogate > "$dir/out" 2>&1 || fail "with DESTDIR: $(cat "$dir/out")"
check "DESTDIR is empty again: $(files stage)" test "$(files stage)" = .
check "make passes the folders on" make -s install uninstall BUILD="$build" PREFIX="$dir/made" LIBDIR="$dir/made/lib64" -o build
check "and nothing stays" test ! -e "$dir/made"

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
# A program that was linked when the library's name had no version number.
echo 'const char *sg_version(void) { return ""; }' | "$CC" -shared -fPIC -Wl,-soname,libsurogate.so -x c -o "$dir/work/libsurogate.so" -
printf '#include <stdio.h>\n#include <surogate.h>\nint main(void) { puts(sg_version()); return 0; }\n' > "$dir/work/old.c"
"$CC" -I"$dir/usr/include" -o "$dir/work/old" "$dir/work/old.c" "$dir/work/libsurogate.so" || fail "an old program doesn't compile"
check "an old program finds the library" test "$(LD_LIBRARY_PATH=$dir/usr/lib "$dir/work/old")" = "$version"
check "it trains" grep -q '^step 6 loss [0-9.]*$' "$dir/train"
check "it leaves a model" test -s "$dir/work/out/model/model.safetensors"
check "and a checkpoint" test -s "$dir/work/out/checkpoint-6/manifest.json"
check "it generates" grep -q '^{"index":1,"sample":1,"id":"b","text":"' "$dir/generate"
check "and nothing else" [ "$(wc -l < "$dir/generate")" = 4 ]
check "it chooses ids" [ "$(cat "$dir/head")" = "70 38" ]
finish
