#!/bin/bash
# A run that is killed (SIGKILL) at random moments, also during saves, and restarted until it is done leaves the same weights, optimizer
# state and log, byte for byte, as a run that was never killed. Timing fields of the log are left out.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
kills_wanted=${KILLS:-100}
RANDOM=42

make_tiny max_position_embeddings=128
cat > "$dir/run.yaml" << END
model: $dir/model
datasets: [{path: $dir/text.txt}]
sequence_len: 32
per_device_train_batch_size: 2
gradient_accumulation_steps: 2
max_steps: 40
learning_rate: 1e-3
validation_split_ratio: 0
validation_datasets: [{path: $dir/valid.txt}]
eval_steps: 8
eval_max_batches: 2
model_dtype: bf16
save_steps: 4
END
head -200 "$dir/text.txt" > "$dir/valid.txt"


same_as_uninterrupted() {
    local file
    for file in model.safetensors checkpoint-40/model.safetensors checkpoint-40/optimizer.safetensors; do
        cmp "$dir/whole/$file" "$dir/killed/$file" || return 1
    done
    cmp <(without_times "$dir/whole/metrics.jsonl") <(without_times "$dir/killed/metrics.jsonl")
}

start=$EPOCHREALTIME
run pt "$dir/run.yaml" output_dir="$dir/whole"
check "the uninterrupted run ends well: $(tail -1 "$dir/err")" [ "$status" = 0 ]
milliseconds=$(awk "BEGIN { print int(1000 * ($EPOCHREALTIME - $start)) }")

kills=0
runs=0
inside_saves=0
while [ "$kills" -lt "$kills_wanted" ] && [ "$num_failed" = 0 ]; do
    rm -rf "$dir/killed"
    while :; do
        "$SUROGATE" pt "$dir/run.yaml" output_dir="$dir/killed" > /dev/null 2> "$dir/err" &
        pid=$!
        # The first kills may come at any time; after enough kills the run may finish.
        if [ "$kills" -lt "$kills_wanted" ]; then
            sleep "$(awk "BEGIN { printf \"%.4f\", $RANDOM / 32768 * $milliseconds * 0.4 / 1000 }")"
            kill -9 $pid 2> /dev/null && kills=$((kills + 1))
        fi
        wait $pid 2> /dev/null
        status=$?
        [ "$status" = 137 ] || break
        compgen -G "$dir/killed/.checkpoint-*.partial" > /dev/null && inside_saves=$((inside_saves + 1))
    done
    runs=$((runs + 1))
    if [ "$status" != 0 ]; then
        fail "a start after a kill ended with $status: $(tail -2 "$dir/err")"
    elif same_as_uninterrupted; then
        pass
    else
        fail "after $kills kills the results differ"
    fi
done
echo "$kills kills in $runs runs, $inside_saves of them inside a save"
check "kills were sent" [ "$kills" -ge "$kills_wanted" ]
check "some hit a save" [ "$inside_saves" -gt 0 ]
finish
