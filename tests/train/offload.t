#!/bin/bash
# Runs that keep weights, states and activations on the host write the same bytes as runs that don't, and each resumes from the other's
# checkpoints. Unsupported combinations are named.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
make_text_run "model_dtype: bf16" "per_device_train_batch_size: 2" "gradient_accumulation_steps: 2" "learning_rate: 1e-2" "device: cpu" \
    "lr_scheduler_type: constant" "recompute_block: true" "dataset_cache_dir: $dir/cache"
sed -i '/^model_dtype: fp32$/d' "$dir/run.yaml"

# train OUT STEPS KEYS...: trains, or resumes the run in OUT.
train() {
    local out=$dir/$1 steps=$2
    shift 2
    run pt "$dir/run.yaml" output_dir="$out" max_steps="$steps" "$@"
    check "$out to step $steps with $*: $(tail -1 "$dir/err")" [ "$status" = 0 ]
}
# same A B FILE...: both runs have the same bytes in each FILE.
same() {
    local a=$1 b=$2 file
    shift 2
    for file; do check "$a and $b have the same $file" cmp "$dir/$a/$file" "$dir/$b/$file"; done
}
says() { check "it says \"$1\": $(cat "$dir/err")" grep -qF -e "$1" "$dir/err"; }

all="offload_optimizer=true offload_weights=true offload_residual=true"
files="checkpoint-6/model.safetensors checkpoint-6/optimizer.safetensors"

# ---- the same bytes ----

for optimizer in adamw_8bit normuon; do
    train $optimizer 6 optimizer=$optimizer
    # shellcheck disable=SC2086
    train $optimizer-all 6 optimizer=$optimizer $all use_write_combined=true
    # shellcheck disable=SC2086
    same $optimizer $optimizer-all $files
done
for optimizer in adamw_8bit normuon; do
    # shellcheck disable=SC2086
    train $optimizer-grads 6 optimizer=$optimizer $all offload_grads=true shard_gradients=true
    # shellcheck disable=SC2086
    same $optimizer $optimizer-grads $files
done
train masters 6 master_dtype=fp32
# shellcheck disable=SC2086
train masters-all 6 master_dtype=fp32 $all offload_master=true use_zero_copy=true
# shellcheck disable=SC2086
same masters masters-all $files
train nf4 6 lora=true qlora=nf4
train nf4-all 6 lora=true qlora=nf4 offload_quants=true offload_residual=true
same nf4 nf4-all adapter_model.safetensors checkpoint-6/optimizer.safetensors
# Matrices stay codes: of a block, only norms are kept on the host, beside the residual.
train codes 2 recipe=fp8-hybrid
train codes-all 2 recipe=fp8-hybrid offload_weights=true offload_residual=true
same codes codes-all checkpoint-2/model.safetensors checkpoint-2/optimizer.safetensors

# ---- from one another's checkpoints ----

train parts 2 optimizer=adamw_8bit offload_optimizer=true
# shellcheck disable=SC2086
train parts 4 optimizer=adamw_8bit resume_from_checkpoint=true $all
train parts 6 optimizer=adamw_8bit resume_from_checkpoint=true offload_residual=true
# shellcheck disable=SC2086
same adamw_8bit parts $files

# ---- plans ----

"$SUROGATE" new --arch qwen3-8b "$dir/8b" 2> /dev/null
printf '%s\n' "model: $dir/8b" "from_scratch: true" "optimizer: adamw_8bit" "sequence_len: 2048" "recompute_block: true" \
    "per_device_train_batch_size: 8" "gradient_accumulation_steps: 2" "gpu_memory: 24GB" > "$dir/8b.yaml"
run plan "$dir/8b.yaml" --gpu h200
check "8B doesn't fit in 24 GB: $status" [ "$status" = 3 ]
says "(gpu_memory)"
# shellcheck disable=SC2086
run plan "$dir/8b.yaml" --gpu h200 $all
check "but it does with its weights and states on the host: $(cat "$dir/err")" [ "$status" = 0 ]
# shellcheck disable=SC2086
run plan "$dir/8b.yaml" --gpu h200 $all shard_gradients=true offload_grads=true
check "and with gradients there too: $(cat "$dir/err")" [ "$status" = 0 ]
check "no gradients are on the GPU" [ "$(grep -c "^  grads " "$dir/out")" = 0 ]
# shellcheck disable=SC2086
run plan "$dir/8b.yaml" --gpu h200 $all
check "which the plan shows" grep -qE "^  pinned +3[0-9]\.[0-9]+ GiB   of the host's memory" "$dir/out"

# ---- refused ----

refused "gradients" 2 "offload_grads" "shard_gradients" -- plan "$dir/run.yaml" --gpu h200 offload_grads=true
refused "whole gradients" 2 "offload_grads" "set shard_gradients: true" -- plan "$dir/run.yaml" --gpu h200 --gpus 2 offload_grads=true
refused "whole gradients, searched" 2 "offload_grads" "set shard_gradients: true" -- \
    plan "$dir/run.yaml" --gpu h200 --gpus 2 offload_grads=true memory=auto
run plan "$dir/run.yaml" --gpu h200 use_zero_copy=true
says "use_zero_copy"
finish
