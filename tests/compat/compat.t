#!/bin/bash
# What an older version left (made/, by ./make) still counts: a begun run goes on to the same bits from its shards, a program of its header runs
# with the library, a model with a loss and inputs of its own trains, and every name is there.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
. tests/compat/collect.sh
made=$root/tests/compat/made
names=$root/tests/compat/names.py
build=$(realpath "$(dirname "$SUROGATE")")
cp -r "$made"/* "$dir/"
cd "$dir" || exit 1

# --- a begun run: auto goes on, with the shards that are there, to the weights and the log of one that was never interrupted
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

# --- a program of the old header; what it prints
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
    [ "$list" = python.txt ] && [ ! -e "$build/libsurogate.so" ] && continue # told above
    check "$list: not there any more: $(comm -23 "$made/$list" "now/$list" | head -5 | tr '\n' ';')" \
        [ -z "$(comm -23 "$made/$list" "now/$list")" ]
done
finish
