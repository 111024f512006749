#!/bin/bash
# Faults of one of three ranks, which are processes or (every third round) threads of one process. At a random moment the rank is killed,
# stopped, hangs, is slow, gets a NaN, or its disk fails. Either all ranks end within the limits or all continue, and they say which rank it
# was. Then the same command ends well, with the bytes of an undisturbed run.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
trials=${TRIALS:-9}
RANDOM=${SEED:-3}
export SUROGATE_SECRET="a secret of these tests"
port=$((10000 + $$ * 7 % 20000)) # below the ports that systems assign
if ! cc -shared -fPIC -D_GNU_SOURCE -o "$dir/fail_io.so" tests/train/fail_io.c -ldl 2> "$dir/err"; then
    skip "no compiler for fail_io.c: $(head -1 "$dir/err")"
    finish
fi
make_text_run "max_steps: 24" "save_steps: 5" "per_device_train_batch_size: 2" "gradient_accumulation_steps: 1" "validation_split_ratio: 0.2" \
    "eval_steps: 8" "eval_max_batches: 2" "device: cpu" "threads: 2" "comm_timeout: 3" "dataset_cache_dir: $dir/cache"
head -600 "$dir/text.txt" > "$dir/some.txt"
mv "$dir/some.txt" "$dir/text.txt"
out=$dir/output # run.yaml isn't inside it
kinds=("save_total_limit=0" "lora=true lora_rank=2 lora_dropout=0.1" "zero_level=3 save_total_limit=1")

# launch RANK PRELOAD ARGS...: starts a rank, with the library PRELOAD in it.
launch() {
    local rank=$1 preload=$2
    shift 2
    # shellcheck disable=SC2086
    FAIL_UNDER=$out LD_PRELOAD=$preload "$SUROGATE" pt "$dir/run.yaml" output_dir="$out" $kind "$@" > /dev/null 2> "$dir/err$rank" &
    pid[rank]=$!
}
# start [VICTIM]: starts the ranks; the victim gets the fault of FAIL_AT and FAIL_AS.
start() {
    local victim=${1:-none} rank preload
    pid=()
    port=$((port + 1))
    rm -f "$dir"/err?
    for rank in $ranks; do
        preload=
        [ "$rank" = "$victim" ] && preload=$dir/fail_io.so
        if [ "$ranks" = 0 ]; then
            launch 0 "$preload" gpus=3
        else
            launch "$rank" "$preload" world_size=3 rank="$rank" rendezvous="127.0.0.1:$port"
        fi
    done
}
# await RANK...: waits; none of them may take longer than all limits together.
await() {
    local rank until=$((SECONDS + 60))
    for rank; do
        while kill -0 "${pid[rank]}" 2> /dev/null && [ $SECONDS -lt $until ]; do sleep 0.02; done
        if kill -0 "${pid[rank]}" 2> /dev/null; then
            fail "$name: rank $rank doesn't end"
            kill -9 "${pid[rank]}"
        fi
        ended[rank]=0
        wait "${pid[rank]}" 2> /dev/null || ended[rank]=$?
    done
}
others() { echo "$ranks" | tr -d "$victim"; }
random_sleep() { sleep "$(awk "BEGIN { print $RANDOM / 32768 * 0.5 }")"; }
# Each of these ranks failed, and names the victim.
all_say() {
    local rank
    for rank; do
        [ "${ended[rank]}" != 0 ] && [ "${ended[rank]}" -lt 128 ] && grep -qE "^error: .*(rank $culprit[: ]|ranks didn't come .*: $culprit)" "$dir/err$rank" || return 1
    done
}
# All ranks ended well: the fault came after the work was done.
all_well() {
    local rank
    for rank; do [ "${ended[rank]}" = 0 ] || return 1; done
}
same_bytes() {
    local file
    for file in "${results[@]}"; do cmp "$dir/whole-$kind/$file" "$out/$file" || return 1; done
    cmp <(without_times "$dir/whole-$kind/metrics.jsonl") <(without_times "$out/metrics.jsonl")
}
last_words() { tail -qn 1 "$dir"/err?; }

for kind in "${kinds[@]}"; do
    ranks=0
    name="undisturbed, $kind"
    rm -rf "$out"
    FAIL_AT=0 FAIL_AS=none FAIL_COUNT=$dir/count start 0
    await 0
    check "$name: exit ${ended[0]}, $(last_words)" [ "${ended[0]}" = 0 ]
    read -r calls logs < "$dir/count"
    mv "$out" "$dir/whole-$kind"
done

faults=(kill nan slow disk stop hang)
errors=(EIO ENOSPC short)
declare -A count
for trial in $(seq 0 $((trials - 1))); do
    fault=${faults[$((trial % 6))]}
    # Faults that take as long as the limits are used only in every fifth turn of long runs.
    [ "$trial" -ge 12 ] && [ $((trial / 6 % 5)) != 0 ] && case $fault in stop | hang | slow) fault=kill ;; esac
    kind=${kinds[$((RANDOM % 3))]}
    results=(model.safetensors checkpoint-24/model.safetensors checkpoint-24/optimizer.safetensors)
    [[ $kind == *lora* ]] && results=(adapter_model.safetensors checkpoint-24/adapter_model.safetensors checkpoint-24/optimizer.safetensors)
    ranks="0 1 2"
    [ $((trial / 3 % 3)) = 2 ] && [ $fault != kill ] && [ $fault != stop ] && [ $fault != disk ] && ranks=0
    victim=$((RANDOM % 3))
    culprit=$victim
    [ "$ranks" = 0 ] && victim=0 && culprit="[0-2]"
    name="trial $trial, $fault, $kind, ranks $ranks, victim $victim"
    count[$fault]=$((${count[$fault]:-0} + 1))
    rm -rf "$out"
    ended=()
    case $fault in
    kill)
        start
        random_sleep
        kill -9 "${pid[victim]}" 2> /dev/null
        await $ranks
        check "$name: exit ${ended[*]}, $(last_words)" eval 'all_say $(others) || all_well $(others)'
        ;;
    stop)
        start
        random_sleep
        kill -STOP "${pid[victim]}" 2> /dev/null
        await $(others)
        kill -CONT "${pid[victim]}" 2> /dev/null
        await "$victim"
        check "$name: exit ${ended[*]}, $(last_words)" eval 'all_say $(others) || all_well $(others)'
        check "$name: it ends too" [ "${ended[victim]}" -lt 128 ]
        ;;
    disk)
        FAIL_AT=$((RANDOM % (calls / 3) + 1)) FAIL_AS=${errors[$((RANDOM % 3))]} FAIL_FOR=$((RANDOM % 20 + 1)) start "$victim"
        await $ranks
        check "$name: exit ${ended[*]}, $(last_words)" [ "$(printf '%s\n' "${ended[@]}" | sort -u | wc -l)" = 1 ]
        ;;
    nan | slow | hang)
        # A process makes a third of the calls. None in the first step fails, which has no limit; a slow rank is named only after some
        # steps.
        turns=$logs
        [ "$ranks" = 0 ] || turns=$((logs / 3))
        range=8
        [ $fault = slow ] && range=4
        FAIL_AT=$((RANDOM % (turns * range / 10) + turns / 10)) FAIL_AS=$fault start "$victim"
        await $ranks
        if [ $fault = hang ]; then
            check "$name: exit ${ended[*]}, $(last_words)" all_say $ranks
        else
            check "$name: exit ${ended[*]}, $(last_words)" all_well $ranks
        fi
        [ $fault = slow ] && check "$name: is named" grep -qE "rank $culprit is slow" "$dir/err0"
        if [ $fault = nan ]; then
            check "$name: one step is left out, or an evaluation not a number" [ "$(grep -cE '"skipped":true|"log":"eval".*"loss":null' "$out/metrics.jsonl")" = 1 ]
            rm -rf "$out"
        fi
        ;;
    esac
    start
    await $ranks
    check "$name: then exit ${ended[*]}, $(last_words)" all_well $ranks
    check "$name: other bytes" same_bytes
done
echo "faults:$(for fault in "${!count[@]}"; do echo -n " ${count[$fault]} $fault"; done)"
finish
