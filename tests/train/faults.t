#!/bin/bash
# Injected errors: a disk call fails (EIO, ENOSPC) or a write is cut in half, at a random call of a run, and again in the
# next start, on a disk of 1.1 times the space that the run asks for. Then the same command ends well, with the bytes of an undisturbed run.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
trials=${TRIALS:-20}
RANDOM=${SEED:-1}
make_text_run "max_steps: 24" "save_steps: 5" "per_device_train_batch_size: 2" "validation_split_ratio: 0.2" "eval_steps: 8" "eval_max_batches: 2"
head -600 "$dir/text.txt" > "$dir/some.txt"
mv "$dir/some.txt" "$dir/text.txt"
mkdir "$dir/disk"
if ! cc -shared -fPIC -D_GNU_SOURCE -o "$dir/fail_io.so" tests/train/fail_io.c -ldl 2> "$dir/err"; then
    skip "no compiler for fail_io.c: $(head -1 "$dir/err")"
    finish
fi
if ! mount -t tmpfs -o size=128K tmpfs "$dir/disk" 2> "$dir/err"; then
    skip "no tmpfs can be mounted"
    finish
fi
trap 'umount "$dir/disk"; rm -rf "$dir"' EXIT
export FAIL_UNDER=$dir/disk
out=$dir/disk/out
kinds=("" "lora=true lora_rank=2 merge_adapter=true" "save_total_limit=1 max_shard_size=1MiB")
[ -n "${RANKS:-}" ] && kinds=("gpus=4 gradient_accumulation_steps=1 device=cpu" "gpus=2 device=cpu lora=true lora_rank=2 merge_adapter=true"
    "gpus=3 device=cpu zero_level=3 save_total_limit=1 max_shard_size=1MiB")
go() {
    # shellcheck disable=SC2086
    run pt "$dir/run.yaml" output_dir="$out" $kind
}
# The files that the run leaves: its results, its last checkpoint, and its log without times. Earlier checkpoints may be missing, because a
# failed save left one out.
contents() {
    (
        cd "$1" || exit
        find . -type f ! -path './data/*' ! -path './checkpoint-[0-9]/*' ! -path './checkpoint-1?/*' ! -path './checkpoint-20/*' ! -name metrics.jsonl \
            ! -name report.html ! -name trainer_state.json ! -name manifest.json ! -name run.json ! -name run_state.json -exec sha256sum {} + | sort -k 2
        grep -v metrics_ checkpoint-24/run_state.json
        without_times metrics.jsonl
        grep -c '"finished": true' run.json
    )
}
# Makes the disk for a kind of run and records the results of an undisturbed run there.
prepare() {
    rm -rf "$out"
    mount -o remount,size=128K "$dir/disk"
    go
    mount -o remount,size="$(sed -nE 's/.* takes? ([0-9.]+) MiB.*/\1/p' "$dir/err" | awk '{ print int($1 * 1024 * 1.1) }')K" "$dir/disk"
    rm -rf "$out"
    FAIL_COUNT=$dir/count LD_PRELOAD=$dir/fail_io.so go
    check "undisturbed, $kind: exit $status, $(tail -1 "$dir/err")" [ "$status" = 0 ]
    read -r calls _ < "$dir/count"
    contents "$out" > "$dir/whole"
}

errors=(EIO ENOSPC short)
lengths=(1 1 2 20 100 1000000) # numbers of failing calls
failed_runs=0
num_ends=0
declare -A ends
for trial in $(seq "$trials"); do
    if [ $((trial % 7)) = 1 ]; then
        kind=${kinds[$((trial / 7 % 3))]}
        prepare
    fi
    rm -rf "$out"
    story=
    for _ in 1 2; do
        how=${errors[$((RANDOM % 3))]}
        at=$(((RANDOM * 32768 + RANDOM) % calls + 1))
        for_calls=${lengths[$((RANDOM % 6))]}
        FAIL_AT=$at FAIL_AS=$how FAIL_FOR=$for_calls LD_PRELOAD=$dir/fail_io.so go
        story+="$how at $at for $for_calls: exit $status; "
        ends[$status]=$((${ends[$status]:-0} + 1))
        num_ends=$((num_ends + 1))
        [ "$status" = 0 ] || failed_runs=$((failed_runs + 1))
        [ "$status" -lt 128 ] || fail "trial $trial, $story $(tail -2 "$dir/err")"
        [ "$status" = 0 ] || grep -q "^error: " "$dir/err" || fail "trial $trial, $story it doesn't say why: $(tail -2 "$dir/err")"
        if grep "must make the same calls" "$dir/err"; then fail "trial $trial, $story ranks went different ways"; fi
    done
    go
    if [ "$status" != 0 ]; then
        fail "trial $trial, $kind, $story then exit $status: $(tail -2 "$dir/err")"
    elif ! contents "$out" | cmp -s "$dir/whole"; then
        fail "trial $trial, $kind, $story other bytes: $(contents "$out" | diff - "$dir/whole" | head -8)"
    else
        pass
    fi
done
echo "$num_ends disturbed starts, exit statuses:$(for s in "${!ends[@]}"; do echo -n " $s: ${ends[$s]}"; done)"
check "errors ended some of them" [ "$failed_runs" -gt $((trials / 10)) ]
finish
