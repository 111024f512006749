#!/bin/bash
# The examples of the documents: in a console block, lines after "$ " are run one after the other in a fresh folder, the others are
# what they print, on stdout and stderr. UPDATE=1 writes what they print into the documents.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh

export PYTHONPATH=$root/python PYTHONDONTWRITEBYTECODE=1
surogate() { "$SUROGATE" "$@"; }
# replay FILE: the document again, its console blocks with what the commands print now.
replay() {
    local line console=no out
    while IFS= read -r line; do
        if [ "$line" = '```console' ]; then
            console=yes
        elif [ "$line" = '```' ]; then
            console=no
        elif [ $console = yes ]; then
            case $line in
            '$ '*)
                printf '%s\n' "$line"
                out=$(eval "${line#\$ }" 2>&1)
                [ -z "$out" ] || printf '%s\n' "$out"
                ;;
            esac
            continue
        fi
        printf '%s\n' "$line"
    done < "$1"
}

for page in README.md docs/*.md; do
    grep -q '^```console' "$page" || continue
    mkdir -p "$dir/work"
    ln -sfn "$root/examples" "$dir/work/examples"
    (cd "$dir/work" && replay "$root/$page") > "$dir/page"
    if cmp -s "$page" "$dir/page"; then
        pass
    elif [ -n "${UPDATE:-}" ]; then
        cp "$dir/page" "$page"
        pass
    else
        diff "$page" "$dir/page"
        fail "$page: its examples print something else"
    fi
    rm -rf "$dir/work"
done
check "there are examples" [ $((num_passed + num_failed)) -gt 0 ]
finish
