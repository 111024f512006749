#!/bin/bash
# A run that was allowed to start on a disk can be resumed there, after kills, signals and failed saves, and ends with the same results.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
make_text_run "dataset_cache_dir: $dir/cache" "max_steps: 400"
mkdir "$dir/disk"
if ! mount -t tmpfs -o size=64K tmpfs "$dir/disk" 2> /dev/null; then
    skip "no tmpfs can be mounted"
    finish
fi
trap 'umount "$dir/disk"; rm -rf "$dir"' EXIT
out=$dir/disk/out
go() { run pt "$dir/run.yaml" output_dir="$out" "${settings[@]}"; }
# disk TENTHS: mounts an empty disk of TENTHS tenths of the space that the run asks for.
disk() {
    rm -rf "$out"
    mount -o remount,size=64K "$dir/disk"
    go
    [ "$status" = 3 ] || fail "a disk of 64 KiB: exit $status, $(tail -1 "$dir/err")"
    need=$(sed -nE 's/.* takes? ([0-9.]+) MiB.*/\1/p' "$dir/err")
    mount -o remount,size="$(awk "BEGIN { print int($need * 1024 * $1 / 10) }")K" "$dir/disk"
    rm -rf "$out"
}
# Starts the run in the background and waits until it has made a step.
go_on() {
    : > "$dir/err"
    "$SUROGATE" pt "$dir/run.yaml" output_dir="$out" "${settings[@]}" > "$dir/out" 2> "$dir/err" &
    pid=$!
    until grep -q '^step ' "$dir/err" || ! kill -0 $pid 2> /dev/null; do sleep 0.01; done
}
same() { cmp "$dir/whole/$1" "$out/$1"; }
ends_the_same() {
    go
    check "$1: exit $status, $(tail -1 "$dir/err")" [ "$status" = 0 ]
    check "$1: equal weights" same "$model"
    check "$1: equal state" same checkpoint-400/optimizer.safetensors
    check "$1: $2 checkpoints are there: $(ls "$out")" [ "$(ls -d "$out"/checkpoint-* | wc -l)" = "$2" ]
}

for settings in "save_steps=40" "save_steps=0" "save_steps=40 save_total_limit=1" "save_steps=40 lora=true lora_rank=2 merge_adapter=true"; do
    read -ra settings <<< "$settings"
    name=${settings[*]}
    kept=2
    model=model.safetensors
    [[ $name == *save_steps=0* || $name == *limit=1* ]] && kept=1
    [[ $name == *lora* ]] && model=merged/model.safetensors
    rm -rf "$dir/whole"
    run pt "$dir/run.yaml" output_dir="$dir/whole" "${settings[@]}"
    disk 9
    go
    check "$name, a tenth too little: exit $status" [ "$status" = 3 ]
    disk 11
    ends_the_same "$name, undisturbed" $kept
    rm -rf "$out"
    for k in 1 2 3; do
        go_on
        kill -TERM $pid
        status=0
        wait $pid || status=$?
        check "$name, signal $k: exit $status, $(tail -1 "$dir/err")" [ "$status" = 75 ]
    done
    go_on
    kill -9 $pid
    { wait $pid; } 2> /dev/null
    # leftovers of kills at other moments: one checkpoint more than are kept, half a checkpoint, half a model
    newest=$(ls -d "$out"/checkpoint-* | sort -V | tail -1)
    cp -r "$newest" "$out/checkpoint-0"
    cp -r "$newest" "$out/.checkpoint-390.partial" 2> /dev/null
    head -c 8000000 /dev/zero > "$out/model.safetensors.partial" 2> /dev/null
    mkdir -p "$out/.merged.partial"
    cp "$dir/whole/run.json" "$out/.merged.partial/" 2> /dev/null
    ends_the_same "$name, cut often" $kept
    check "$name: nothing is left over: $(ls -A "$out")" [ "$(find "$out" -name '*.partial' | wc -l)" = 0 ]
    # a save fails at the end
    rm -rf "$out"
    go_on
    head -c 8000000 /dev/zero > "$dir/disk/filler" 2> /dev/null
    status=0
    wait $pid || status=$?
    check "$name, a full disk: exit $status, $(tail -1 "$dir/err")" [ "$status" = 6 ]
    rm "$dir/disk/filler"
    ends_the_same "$name, after a failed save" $kept
done
finish
