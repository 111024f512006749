#!/bin/bash
# The cost of planning, in instructions that callgrind counts: proportional to the depth, and little more if the plan doesn't fit and
# fitting settings are searched. The settings that are found do fit.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
# count NAME ARGS...: instructions of `plan` in $dir/NAME.
count() {
    local name=$1
    shift
    valgrind --tool=callgrind --callgrind-out-file=/dev/null "$SUROGATE" plan "$@" 2>&1 > /dev/null |
        sed -n 's/.*Collected : //p' > "$dir/$name"
}
# at_most NAME PERCENT OTHER: the count of NAME is at most this percentage of the count of OTHER.
at_most() {
    local got base
    got=$(cat "$dir/$1") base=$(cat "$dir/$3")
    check "$1: $got instructions, $(awk "BEGIN { printf \"%.2f\", $got / $base }") of $3" [ $((100 * got)) -le $(($2 * base)) ]
}
# model LAYERS: makes a model folder with LAYERS layers, and a run file beside it.
model() {
    make_tiny max_position_embeddings=1024 num_hidden_layers="$1"
    mv "$dir/model" "$dir/model$1"
    printf '%s\n' "model: $dir/model$1" "datasets: [{path: $dir/text.txt}]" "device: cpu" "gradient_accumulation_steps: 2" > "$dir/$1.yaml"
}

adapters="lora=true recompute_block=true"
for layers in 64 256 1024; do model $layers; done

# Settings that are said to fit do fit, up to the percent that is kept free.
# shellcheck disable=SC2086
for limit in 30MiB 60MiB 120MiB; do
    settings="device=cpu lora=false per_device_train_batch_size=8"
    run plan "$dir/64.yaml" $settings memory_limit=$limit
    check "64 layers don't fit into $limit ($status)" [ "$status" = 3 ]
    sed -n 's/^  about [0-9.]* MiB: //p' "$dir/err" > "$dir/fits"
    check "something does: $(cat "$dir/err")" [ -s "$dir/fits" ]
    while read -r change; do
        run plan "$dir/64.yaml" $settings $change memory_limit=$limit
        check "$change fits into $limit: $(cat "$dir/err")" [ "$status" = 0 ]
    done < "$dir/fits"
done

if ! valgrind --tool=none "$SUROGATE" --version > /dev/null 2>&1; then
    skip "valgrind isn't installed, or this program can't run in it"
    finish
fi

# shellcheck disable=SC2086
{
    count 1024 "$dir/1024.yaml" $adapters &
    count 64 "$dir/64.yaml" $adapters
    count 256 "$dir/256.yaml" $adapters
    wait
}
echo 400000000 > "$dir/a tenth of a second"
at_most 64 100 "a tenth of a second"
at_most 256 450 64
at_most 1024 450 256

# A search for settings that fit: with limits that some settings fit, and a limit that none fits.
count full64 "$dir/64.yaml" lora=false
# shellcheck disable=SC2086
for limit in 1KiB 8MiB 16MiB; do
    count "64 layers with adapters in $limit" "$dir/64.yaml" $adapters memory_limit=$limit
    at_most "64 layers with adapters in $limit" 400 64
    count "64 layers in $limit" "$dir/64.yaml" lora=false memory_limit=$limit
    at_most "64 layers in $limit" 400 full64
done
finish
