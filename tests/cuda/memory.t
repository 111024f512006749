#!/bin/bash
# The GPU memory that NVML reports is the plan plus a fixed part for context and libraries, within 2 %, from 0.6B to 8B. The fixed part that
# `bench` reports is right within 1 % or 128 MiB, on one GPU and on each of two.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
used() { nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits -i "${1:-0}"; }
# said NAME PLAN BESIDE SEEN: the plan plus the other memory that the program reports must be the memory seen. In GiB.
said() {
    check "$1: plan $2 + context and libraries ${3:-not said}, seen $4" \
        awk "BEGIN { d = $4 - $2 - ${3:-1000}; if (d < 0) d = -d; exit !(d <= 0.125 || d <= 0.01 * $4) }"
}
beside() { sed -nE 's/.*"context_gib": \[([^]]*)\].*/\1/p' "$dir/out" | tr -d ' ' | cut -d, -f"$1"; }
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
    said "$arch $keys" "$plan" "$(beside 1)" "$seen"
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

gpus=$(nvidia-smi -L | wc -l)
[ -n "${CUDA_VISIBLE_DEVICES+set}" ] && gpus=$(echo "$CUDA_VISIBLE_DEVICES" | tr ',' '\n' | grep -c .)
if [ "$gpus" -lt 2 ]; then
    skip "fewer than two GPUs"
    finish
fi
export NCCL_NVLS_ENABLE=0
idle=("$(used 0)" "$(used 1)")
for keys in "" "zero_level=3" "memcpy_all_gather=false memcpy_send_recv=false"; do
    # shellcheck disable=SC2086
    "$SUROGATE" bench model="$dir/qwen3-0.6b" sequence_len=2048 model_dtype=bf16 device=cuda gradient_accumulation_steps=1 gpus=2 \
        per_device_train_batch_size=8 $keys --steps 12 --json > "$dir/out" 2> "$dir/err" &
    pid=$!
    peak=(0 0)
    while kill -0 $pid 2> /dev/null; do
        for gpu in 0 1; do
            now=$(used $gpu)
            [ "$now" -gt "${peak[gpu]}" ] && peak[gpu]=$now
        done
    done
    wait $pid
    check "two GPUs $keys: $(tail -1 "$dir/err")" [ $? = 0 ]
    plan=$(sed -E 's/.*"memory_gib": ([0-9.]+).*/\1/' "$dir/out")
    for gpu in 0 1; do
        said "GPU $gpu of two, $keys" "$plan" "$(beside $((gpu + 1)))" "$(awk "BEGIN { print (${peak[gpu]} - ${idle[gpu]}) / 1024 }")"
    done
done
finish
