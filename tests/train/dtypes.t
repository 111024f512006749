#!/bin/bash
# The dtype of gradients: what the plan counts.
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

finish
