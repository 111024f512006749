#!/bin/bash
# A new key takes a row of options.def and the code that uses it. In a copy of the sources a key is added and built: the key is read,
# explained, recorded and used, and runs that began before the key existed can be resumed.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
tree=$dir/tree
mkdir "$tree"
cp -r CMakeLists.txt src include models tools examples "$tree/"

# --- two files change
sed -i "/^COMPILES(FLOAT, weight_decay)/a OPTION(run, FLOAT, decay_share, \"1\", RANGE(0, 1), RESULT, \"Part of weight_decay that is applied.\")\\
COMPILES(FLOAT, decay_share)" "$tree/src/config/options.def"
sed -i 's/= options->weight_decay,/= options->weight_decay * options->decay_share,/' "$tree/src/passes/optimizers.c"
check "it is added" [ "$(grep -c "decay_share" "$tree/src/config/options.def" "$tree/src/passes/optimizers.c" | tr '\n' ' ')" = \
    "$tree/src/config/options.def:2 $tree/src/passes/optimizers.c:1 " ]
cmake -S "$tree" -B "$tree/build" -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCUDA=0 > "$dir/log" 2>&1 &&
    cmake --build "$tree/build" -j "$(nproc)" --target surogate >> "$dir/log" 2>&1
[ -x "$tree/build/surogate" ] || {
    fail "it is built: $(tail -5 "$dir/log")"
    finish
}

# --- runs that begin before the key exists; one of them loses its record
cp -r tests/compat/made/* "$dir/"
cd "$dir" || exit 1
"$SUROGATE" pt run.yaml output_dir=now > out 2> err &
until [ -s now/metrics.jsonl ] || ! kill -0 $! 2> /dev/null; do sleep 0.01; done
kill -INT $!
wait $!
check "a run is begun: $(tail -1 err)" grep -q '"finished": false' now/run.json
cp -r now lost
rm lost/run.json

SUROGATE=$tree/build/surogate
for out in begun now lost; do
    cp -r $out $out-refused
    refused "$out with another value" 2 "other settings" -- pt run.yaml output_dir=$out-refused decay_share=0.5
    run pt run.yaml output_dir=$out
    check "$out goes on: $(tail -1 err)" [ "$status" = 0 ]
    check "$out goes on from its checkpoint: $(head -5 err)" grep -q "^going on from" err
    check "and records the key" grep -q 'decay_share: 1' $out/run.json
done
refused "the key is named" 2 'here "decay_share: 0.5"' -- pt run.yaml output_dir=begun-refused decay_share=0.5

# --- it is a key like the others
run help keys decay_share
check "help: $(cat out)" grep -q "Part of weight_decay that is applied." out
run help keys --schema
check "schema" grep -q '"decay_share": .*"default": 1,.*"minimum": 0, "maximum": 1' out
refused "a bad value" 2 "decay_share" "0 to 1" -- pt run.yaml decay_share=2
run pt run.yaml output_dir=none max_steps=4 decay_share=0
run pt run.yaml output_dir=without max_steps=4 weight_decay=0
run pt run.yaml output_dir=whole max_steps=4
check "it has its effect" cmp none/model.safetensors without/model.safetensors
check "which isn't nothing" test "$(cat none/model.safetensors | sha256sum)" != "$(cat whole/model.safetensors | sha256sum)"
finish
