#!/bin/bash
# The dtypes of gradients and adapters: the plan's bytes, the dtypes in files, and that a resumed run has the same bits.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
make_text_run "per_device_train_batch_size: 1" "max_steps: 6" "learning_rate: 1e-3" "output_dir: $dir/unused"
region() { "$SUROGATE" plan "$dir/run.yaml" --json "$@" 2> "$dir/err" | sed -E "s/.*\"$region\": ([0-9]+).*/\1/"; }

# --- the plan's bytes: fp32 if it is asked for, or if many micro-steps are summed
region=grads
narrow=$(region model_dtype=bf16 gradient_accumulation_steps=64)
check "bf16 gradients take some bytes: $narrow" [ "${narrow:-0}" -gt 0 ]
for keys in "gradient_accumulation_steps=65" "gradient_accumulation_steps=2 grad_accum_dtype=fp32"; do
    # shellcheck disable=SC2086
    wide=$(region model_dtype=bf16 $keys)
    check "$keys: $wide bytes of gradients, $narrow in bf16" [ "$wide" = $((2 * narrow)) ]
done
check "grad_accum_dtype=bf16 is taken at its word" \
    [ "$(region model_dtype=bf16 gradient_accumulation_steps=1000 grad_accum_dtype=bf16)" = "$narrow" ]
refused "sums narrower than the gradients" 2 "grad_accum_dtype bf16 with model_dtype fp32" -- plan "$dir/run.yaml" grad_accum_dtype=bf16
refused "than those of a backward pass in fp32" 2 "grad_accum_dtype bf16 with gradient_dtype fp32" -- \
    plan "$dir/run.yaml" model_dtype=bf16 gradient_dtype=fp32 grad_accum_dtype=bf16
refused "than those of fp32 weights" 2 "grad_accum_dtype bf16 with matmul_dtype fp32 and master_dtype fp32" -- \
    plan "$dir/run.yaml" model_dtype=bf16 matmul_dtype=fp32 gradient_dtype=bf16 master_dtype=fp32 grad_accum_dtype=bf16

# --- adapters over a bf16 base have the dtype of lora_dtype
dtypes() { head -c 65536 "$1" | grep -aoE '"dtype": ?"[A-Z0-9]+"' | sort -u | tr '\n' ' '; }
for dtype in fp32 bf16; do
    keys="model_dtype=bf16 lora=true lora_rank=4 lora_dtype=$dtype"
    # shellcheck disable=SC2086
    run pt "$dir/run.yaml" $keys output_dir="$dir/$dtype" save_steps=3
    check "lora_dtype $dtype: the run ends well: $(tail -1 "$dir/err")" [ "$status" = 0 ]
    want=$([ $dtype = fp32 ] && echo F32 || echo BF16)
    for file in "$dir/$dtype/adapter_model.safetensors" "$dir/$dtype/checkpoint-6/adapter_model.safetensors"; do
        check "lora_dtype $dtype: $file holds $(dtypes "$file")" [ "$(dtypes "$file" | tr -d ' ')" = "\"dtype\":\"$want\"" ]
    done
    # shellcheck disable=SC2086
    run pt "$dir/run.yaml" $keys output_dir="$dir/$dtype-two" save_steps=3 max_steps=3 lr_scheduler_type=constant
    # shellcheck disable=SC2086
    run pt "$dir/run.yaml" $keys output_dir="$dir/$dtype-two" save_steps=3 resume_from_checkpoint=true lr_scheduler_type=constant
    # shellcheck disable=SC2086
    run pt "$dir/run.yaml" $keys output_dir="$dir/$dtype-one" save_steps=3 lr_scheduler_type=constant
    check "lora_dtype $dtype: a resumed run ends equal" cmp "$dir/$dtype-two/adapter_model.safetensors" "$dir/$dtype-one/adapter_model.safetensors"
done
region=grads
check "fp32 adapters have fp32 gradients" [ "$(region model_dtype=bf16 lora=true)" = $((2 * $(region model_dtype=bf16 lora=true lora_dtype=bf16))) ]

# --- kept copies of weights: bf16 masters of an fp32 model take half; with fp32 products and masters there is no bf16 copy beside the fp32
# weights
region=weights
whole=$(region model_dtype=fp32) half=$(region model_dtype=bf16)
check "bf16 masters of an fp32 model: $(region master_dtype=bf16) of $whole" [ "$(region master_dtype=bf16)" = "$half" ]
wide=$(region model_dtype=bf16 matmul_dtype=fp32 master_dtype=fp32)
check "weights of fp32 products, others in bf16: $half < $wide < $whole" [ "$half" -lt "$wide" -a "$wide" -lt "$whole" ]
check "with bf16 masters they stay in bf16" [ "$(region model_dtype=bf16 matmul_dtype=fp32)" = "$half" ]
region=optimizer
copies=$(($(region model_dtype=bf16 master_dtype=fp32) - $(region model_dtype=bf16)))
check "master copies of the other weights alone" \
    [ $(($(region model_dtype=bf16 matmul_dtype=fp32 master_dtype=fp32) - $(region model_dtype=bf16))) -lt $copies ]

# --- gradients have by default the dtype of products, which e4m3 can't be
train() {
    local out=$1
    shift
    run pt "$dir/run.yaml" output_dir="$dir/$out" lr_scheduler_type=constant save_steps=3 "$@"
    check "$out ends well: $(tail -1 "$dir/err")" [ "$status" = 0 ]
}
same() { check "$1 and $2: $3" cmp "$dir/$1/$3" "$dir/$2/$3"; }
train default matmul_dtype=bf16
train said matmul_dtype=bf16 gradient_dtype=bf16
same default said model.safetensors
train other matmul_dtype=bf16 gradient_dtype=fp32
check "not the model's" [ "$(cmp "$dir/default/model.safetensors" "$dir/other/model.safetensors" 2>&1)" != "" ]
train default-fp8 matmul_dtype=e4m3
train said-fp8 matmul_dtype=e4m3 gradient_dtype=fp32
same default-fp8 said-fp8 model.safetensors

# --- a resumed run has the same bits; recomputation and offloading change none
number=0
for keys in "model_dtype=bf16 matmul_dtype=fp32 master_dtype=fp32" "matmul_dtype=bf16 master_dtype=bf16" "model_dtype=bf16 gradient_dtype=fp32 lora=true" \
    "gradient_dtype=bf16 lora=true lora_dtype=bf16"; do
    number=$((number + 1))
    file=$([[ $keys == *lora=* ]] && echo adapter_model.safetensors || echo model.safetensors)
    # shellcheck disable=SC2086
    train one-$number $keys
    # shellcheck disable=SC2086
    train two-$number $keys max_steps=3
    # shellcheck disable=SC2086
    train two-$number $keys resume_from_checkpoint=true
    # shellcheck disable=SC2086
    train again-$number $keys recompute_block=true offload_weights=true offload_optimizer=true
    for other in two again; do
        same one-$number $other-$number $file
        same one-$number $other-$number checkpoint-6/optimizer.safetensors
    done
done
finish
