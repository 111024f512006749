#!/bin/bash
# On a GPU: two runs are equal bit by bit, and so is a run that was killed (SIGKILL) and started again. Full training and LoRA, several
# documents in a row and one, each recipe, each format of a frozen base.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
if ! nvidia-smi -L > /dev/null 2>&1; then
    skip "no GPU"
    finish
fi
RANDOM=7
make_tiny head_dim=128 max_position_embeddings=128
cat > "$dir/run.yaml" << END
model: $dir/model
datasets: [{path: $dir/text.txt}]
sequence_len: 128
per_device_train_batch_size: 4
gradient_accumulation_steps: 2
max_steps: 1000
learning_rate: 1e-3
model_dtype: bf16
device: cuda
save_steps: 100
END
same() {
    local file
    for file in "$dir/$1/checkpoint-1000"/{optimizer,*model}.safetensors; do cmp "$file" "$dir/$2/checkpoint-1000/${file##*/}" || return 1; done
}
while IFS=: read -r variant keys; do
    # shellcheck disable=SC2086
    set -- $keys
    name=${variant// /-}
    start=$EPOCHREALTIME
    run pt "$dir/run.yaml" output_dir="$dir/$name" "$@"
    check "$variant ends well: $(tail -1 "$dir/err")" [ "$status" = 0 ]
    milliseconds=$(awk "BEGIN { print int(1000 * ($EPOCHREALTIME - $start)) }")
    run pt "$dir/run.yaml" output_dir="$dir/$name-again" "$@"
    check "$variant: two runs are equal" same "$name" "$name-again"
    kills=0
    while :; do
        "$SUROGATE" pt "$dir/run.yaml" output_dir="$dir/$name-killed" "$@" > /dev/null 2> "$dir/err" &
        pid=$!
        if [ $kills -lt 3 ]; then
            sleep "$(awk "BEGIN { printf \"%.3f\", 0.6 + $RANDOM / 32768 * 0.3 * $milliseconds / 1000 }")"
            kill -9 $pid 2> /dev/null && kills=$((kills + 1))
        fi
        wait $pid 2> /dev/null
        status=$?
        [ $status = 137 ] || break
    done
    echo "$variant: $kills kills, $milliseconds ms a run"
    check "$variant: a killed run ends well: $(tail -1 "$dir/err")" [ "$status" = 0 ]
    check "$variant: a killed run is equal" same "$name" "$name-killed"
done << END
packed full: sample_packing=true
packed lora: sample_packing=true lora=true
dense full: sample_packing=false
dense lora: sample_packing=false lora=true
fp8 full: recipe=fp8-hybrid
fp8 lora: recipe=fp8-hybrid lora=true
nvfp4 full: recipe=nvfp4
nvfp4 lora: recipe=nvfp4 lora=true
nf4 base: lora=true qlora=nf4
fp8 base: lora=true qlora=fp8
fp8 base and recipe: lora=true qlora=fp8 recipe=fp8-hybrid
nvfp4 base: lora=true qlora=nvfp4
END
finish
