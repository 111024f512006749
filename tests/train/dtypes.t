#!/bin/bash
# The dtypes of gradients and adapters: what the plan counts, what files hold, that a run goes on with the same bits.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
make_text_run "per_device_train_batch_size: 1" "max_steps: 6" "learning_rate: 1e-3" "output_dir: $dir/unused"
region() { "$SUROGATE" plan "$dir/run.yaml" --json "$@" 2> "$dir/err" | sed -E "s/.*\"$region\": ([0-9]+).*/\1/"; }

# --- the plan's bytes: fp32 where it is asked for, or where many micro-steps are summed
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

# --- adapters over a bf16 base are what lora_dtype says
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
finish
