#!/bin/bash
# Files of an older version (made/, by ./make) still work: an interrupted run continues from its shards to the same bits, a program for its
# header runs with the library, a model with its own loss and inputs trains, and every name still exists.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
. tests/compat/collect.sh
made=$root/tests/compat/made
names=$root/tests/compat/names.py
build=$(realpath "$(dirname "$SUROGATE")")
cp -r "$made"/* "$dir/"
cd "$dir" || exit 1

# --- an interrupted run: `auto` resumes it with the existing shards, to the weights and the log of a run that was never interrupted
shards() { stat -c '%i %Y %s' begun/data/*/shard-*.tokens; }
before=$(shards)
run pt run.yaml output_dir=whole
check "a whole run: $(tail -1 err)" [ "$status" = 0 ]
run pt run.yaml output_dir=begun
check "it goes on: $(tail -1 err)" [ "$status" = 0 ]
check "from its checkpoint: $(cat err)" [ "$(grep -c "^step 100/" err)" = 0 ]
for file in model.safetensors checkpoint-400/model.safetensors checkpoint-400/optimizer.safetensors; do
    check "$file is that of the whole run" cmp "whole/$file" "begun/$file"
done
check "and so is the log" cmp <(without_times whole/metrics.jsonl) <(without_times begun/metrics.jsonl)
check "its shards are taken" [ "$before" = "$(shards)" ]
refused "another value is told" 2 "(there \"learning_rate: 0.001\", here \"learning_rate: 0.002\")" -- pt run.yaml output_dir=begun learning_rate=2e-3

# --- a program for the old header prints the same
if [ -e "$build/libsurogate.so" ]; then
    check "it compiles" "${CC:-cc}" -Wall -Werror -I"$made" -o program "$root/tests/compat/program.c" "$build/libsurogate.so"
    LD_LIBRARY_PATH=$build ./program > out 2> err
    check "it prints the same: $(tail -1 err)$(diff "$made/program.out" out)" cmp -s "$made/program.out" out
else
    skip "this build has no libsurogate.so"
fi

# --- names
find_python || {
    skip "names: no Python 3.10 with NumPy here"
    finish
}
mkdir now
collect "$root" now
for list in "$made"/*.txt; do
    list=$(basename "$list")
    [ "$list" = text.txt ] && continue
    [ "$list" = python.txt ] && [ ! -e "$build/libsurogate.so" ] && continue # the missing library was reported above
    check "$list: not there any more: $(comm -23 "$made/$list" "now/$list" | head -5 | tr '\n' ';')" \
        [ -z "$(comm -23 "$made/$list" "now/$list")" ]
done
finish
