#!/bin/bash
# Environment variables: src/base/variables.c lists exactly those that the sources read and docs/debugging.md explains; others give a
# warning.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh

names() { grep -rhoE --exclude=variables.c "$@" | tr -d '"`' | sed 's/=.*//' | sort -u; }
grep -oE '"SUROGATE_[A-Z0-9_]+"' src/base/variables.c | tr -d '"' | sort > "$dir/known"
names '"SUROGATE_[A-Z0-9_]+"' src python/surogate tests/test.h > "$dir/read"
grep '^| `SUROGATE_' docs/debugging.md | names '`SUROGATE_[A-Z0-9_]+[`=]' > "$dir/told"
check "what the sources read: $(diff "$dir/known" "$dir/read")" cmp -s "$dir/known" "$dir/read"
check "what docs/debugging.md has: $(diff "$dir/known" "$dir/told")" cmp -s "$dir/known" "$dir/told"

while read -r name; do export "$name=0"; done < "$dir/known"
run --help
check "those it knows: $(cat "$dir/err")" [ "$status/$(cat "$dir/err")" = 0/ ]
export SUROGATE_MODLES=/secret SUROGATE_=1 SUROGATE_SOMETHING_ELSE=2 SUROGATED=3
run --help
warns() { grep -qxF "warning: the environment has $1" "$dir/err"; }
check "exit $status" [ "$status" = 0 ]
check "a misspelt one: $(cat "$dir/err")" warns "SUROGATE_MODLES, which nothing reads; did you mean SUROGATE_MODELS?"
check "one like none" warns "SUROGATE_SOMETHING_ELSE, which nothing reads; docs/debugging.md lists what is read"
check "each once, no value, no other's" [ "$(wc -l < "$dir/err")$(grep -c -e secret -e SUROGATED "$dir/err")" = 30 ]
finish
