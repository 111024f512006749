#!/bin/bash
# What a GPU is seen to hold (NVML) is the plan and a fixed part for context and libraries, within 2 %, from 0.6B to 8B.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
used() { nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits -i 0; }
if ! nvidia-smi -L > /dev/null 2>&1; then
    skip "no GPU"
    finish
fi
context=0.55 # GiB: context, code, library handles
idle=$(used)
for arch in qwen3-0.6b qwen3-1.7b qwen3-8b; do "$SUROGATE" new --arch $arch "$dir/$arch" 2> /dev/null; done
while read -r arch keys; do
    # shellcheck disable=SC2086
    "$SUROGATE" bench model="$dir/$arch" sequence_len=2048 model_dtype=bf16 device=cuda gradient_accumulation_steps=1 $keys --steps 12 --json \
        > "$dir/out" 2> "$dir/err" &
    pid=$!
    peak=0
    while kill -0 $pid 2> /dev/null; do
        now=$(used)
        [ "$now" -gt "$peak" ] && peak=$now
    done
    wait $pid
    status=$?
    plan=$(sed -E 's/.*"memory_gib": ([0-9.]+).*/\1/' "$dir/out")
    seen=$(awk "BEGIN { printf \"%.3f\", ($peak - $idle) / 1024 }")
    echo "$arch $keys: plan $plan GiB, seen $seen GiB, $(awk "BEGIN { printf \"%.3f\", $seen - $plan }") beyond"
    check "$arch $keys: $(tail -1 "$dir/err")" [ $status = 0 ]
    check "$arch $keys: plan $plan + $context, seen $seen" awk "BEGIN { d = $seen / ($plan + $context) - 1; exit !(d < 0.02 && d > -0.02) }"
done << END
qwen3-0.6b per_device_train_batch_size=16 sample_packing=false
qwen3-0.6b per_device_train_batch_size=16 recompute_block=true
qwen3-0.6b per_device_train_batch_size=16 recompute_att=true
qwen3-0.6b per_device_train_batch_size=16 recompute_ffn=true recompute_qkv=true
qwen3-0.6b per_device_train_batch_size=16 recompute_swiglu=true recompute_rmsnorm=true
qwen3-0.6b per_device_train_batch_size=8 lora=true sample_packing=false
qwen3-1.7b per_device_train_batch_size=4 moment_dtype=bf16
qwen3-1.7b per_device_train_batch_size=8 lora=true recompute_block=true
qwen3-8b per_device_train_batch_size=2 lora=true
qwen3-8b per_device_train_batch_size=1 moment_dtype=bf16 recompute_block=true
qwen3-8b per_device_train_batch_size=1 lora=true qlora=nf4 recompute_block=true
qwen3-1.7b per_device_train_batch_size=4 recipe=fp8-hybrid
END
finish
