#!/bin/bash
# Archive, wheel and Debian package made from two copies of the sources have the same bytes: with other folder names, file times, umasks and
# hours. The package passes lintian. Each copy is compiled with a ccache of its own: this takes minutes to an hour.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
for tool in git dpkg-deb dpkg-shlibdeps python3; do
    command -v $tool > /dev/null || {
        skip "no $tool here"
        finish
    }
done
export SOURCE_DATE_EPOCH=1700000000 CCACHE_NOHASHDIR=1
files() { # NAME: prints the names of the packages in $dir/NAME/dist
    local name
    for name in "$dir/$1"/dist/*; do
        case ${name##*/} in
        install.sh | *.tar.gz | *.whl | *.deb) basename "$name" ;;
        esac
    done
}
mkdir "$dir/tree" # a snapshot, in case somebody works on the tree meanwhile
git ls-files -z --cached --others --exclude-standard | xargs -0 cp -P --parents -t "$dir/tree" || fail "the tree can't be copied: a file of git's index isn't there"
# packages FOLDER BUILD UMASK TIME ZONE: copies the tree and makes the packages from the copy.
packages() {
    (
        umask "$3"
        mkdir -p "$dir/$1"
        cp -rP "$dir/tree/." "$dir/$1"
        find "$dir/$1" -exec touch -hd "$4" {} +
        export TZ=$5 CCACHE_DIR=$dir/ccache-${1%%/*}
        unset CMAKE_C_COMPILER_LAUNCHER
        cd "$dir/$1" && make configure CUDA=0 BUILD="$2" && cmake --build "$2" -j "$(nproc)" --target surogate surogate_library &&
            tools/release "$2" dist && make deb BUILD="$2"
    ) > "$dir/out" 2>&1 || fail "$1: $(tail -5 "$dir/out")"
}
packages a build 022 2020-02-02T02:02:02 UTC
packages longer/name-of-b folder/of-binaries 077 2021-03-04T05:06:07 Asia/Tokyo
check "four files: $(files a | tr '\n' ' ')" test "$(files a | wc -l)" = 4
for name in $(files a); do
    check "$name" cmp "$dir/a/dist/$name" "$dir/longer/name-of-b/dist/$name"
done
package=$(echo "$dir"/a/dist/*.deb)
check "no folder of this machine is in it" test -z "$(dpkg-deb --fsys-tarfile "$package" | tar xO ./usr/bin/surogate | strings | grep -F "$dir")"
if command -v lintian > /dev/null; then
    lintian --allow-root --fail-on error "$package" > "$dir/out" 2>&1 || fail "lintian: $(cat "$dir/out")"
    check "lintian read it" test -s "$dir/out"
else
    skip "no lintian here"
fi
finish
