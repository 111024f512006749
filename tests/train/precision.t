#!/bin/bash
# Runs under the recipes fp8-hybrid and nvfp4: the loss, the same bits after kills and with recomputation, scales in checkpoints, the keys.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
RANDOM=7
make_text_run "per_device_train_batch_size: 2" "gradient_accumulation_steps: 2" "learning_rate: 1e-3" "lr_scheduler_type: constant" \
    "dataset_cache_dir: $dir/cache" "eval_max_batches: 2" "validation_split_ratio: 0.1"
# train OUT STEPS KEYS...: trains, or resumes the run in OUT.
train() {
    local out=$dir/$1 steps=$2 resume=true
    shift 2
    [ -e "$out" ] || resume=auto
    run pt "$dir/run.yaml" model_dtype=bf16 output_dir="$out" max_steps="$steps" resume_from_checkpoint=$resume "$@"
    check "$out to step $steps with $*: $(tail -1 "$dir/err")" [ "$status" = 0 ]
}
says() { check "it says \"$1\": $(cat "$dir/err")" grep -qF -e "$1" "$dir/err"; }
same() {
    local file
    for file in "${@:3}"; do check "$1 and $2: $file" cmp "$dir/$1/$file" "$dir/$2/$file"; done
}
# near A B LINE MOST: the last losses of two logs, in lines of this kind (step, eval), differ by at most MOST.
last() { grep "\"log\":\"$2\"" "$dir/$1/metrics.jsonl" | grep -o '"loss":[0-9.]*' | tail -1 | cut -d: -f2; }
near() {
    check "$3 loss of $1 and $2: $(last "$1" "$3"), $(last "$2" "$3")" awk -v a="$(last "$1" "$3")" -v b="$(last "$2" "$3")" -v most="$4" \
        'BEGIN { exit !(a > 0 && (a - b) ^ 2 <= (most * a) ^ 2) }'
}

# --- the loss, of training and evaluation, is near that of bf16; codes are in use
train bf16 30
train fp8 30 recipe=fp8-hybrid
near bf16 fp8 step 0.005
near bf16 fp8 eval 0.005
check "another model than bf16's" [ "$(cmp "$dir/bf16/model.safetensors" "$dir/fp8/model.safetensors" 2>&1)" != "" ]

train nvfp4 30 recipe=nvfp4
near bf16 nvfp4 step 0.01
near bf16 nvfp4 eval 0.01
for key in no_fp4_stochastic_rounding=true fp4_hadamard=false fp4_four_over_six=false; do
    train "nvfp4-$key" 30 recipe=nvfp4 $key
    near bf16 "nvfp4-$key" step 0.01
    check "$key changes something" [ "$(cmp "$dir/nvfp4/model.safetensors" "$dir/nvfp4-$key/model.safetensors" 2>&1)" != "" ]
done

# --- the two dtype keys mean the same as the recipe; one of them alone means something else
train dtypes 30 matmul_dtype=e4m3 gradient_dtype=e5m2
same fp8 dtypes model.safetensors
for key in matmul_dtype=e4m3 gradient_dtype=e5m2; do
    train "$key" 30 $key
    near bf16 "$key" step 0.005
    for other in bf16 fp8; do
        check "$key isn't $other" [ "$(cmp "$dir/$other/model.safetensors" "$dir/$key/model.safetensors" 2>&1)" != "" ]
    done
done
# --- evaluating a folder under a recipe: the one that it was trained with, or another
loss_of() { "$SUROGATE" eval "$@" --text "$dir/text.txt" --context 32 --json 2> "$dir/err" | sed -E 's/.*"mean":([0-9.]+).*/\1/'; }
for out in bf16 fp8; do
    plain=$(loss_of "$dir/$out")
    check "--recipe bf16 is what is there" [ "$plain" = "$(loss_of "$dir/$out" --recipe bf16)" ]
    for recipe in fp8-hybrid nvfp4; do
        loss=$(loss_of "$dir/$out" --recipe $recipe)
        check "$out under $recipe: $loss, in bf16 $plain" awk -v a="$plain" -v b="$loss" 'BEGIN { exit !(b > 0 && (a - b) ^ 2 <= (0.01 * a) ^ 2) }'
        check "says no more: $(cat "$dir/err")" [ ! -s "$dir/err" ]
        check "another number" [ "$plain" != "$loss" ]
        run generate "$dir/$out" --recipe $recipe --prompt "line 7" --max-tokens 8 --temperature 0
        check "$out under $recipe generates: $(cat "$dir/err")" [ "$status" = 0 -a -s "$dir/out" ]
    done
done
check "codes of a base, multiplied as they are" [ "$(loss_of "$dir/bf16" --qlora fp8)" != "$(loss_of "$dir/bf16" --qlora fp8 --recipe fp8-hybrid)" ]
refused "another recipe" 2 "there is no recipe fp9; expected one of bf16, fp8-hybrid, nvfp4" -- eval "$dir/bf16" --text "$dir/text.txt" --recipe fp9

train skipped 30 recipe=fp8-hybrid skip_quant_first_layers=1 skip_quant_last_layers=100
same bf16 skipped model.safetensors

# --- recomputation changes no bit
train again 30 recipe=fp8-hybrid recompute_block=true
same fp8 again model.safetensors checkpoint-30/optimizer.safetensors
train nvfp4-again 30 recipe=nvfp4 recompute_block=true
same nvfp4 nvfp4-again model.safetensors checkpoint-30/optimizer.safetensors

# --- nor do kills, in full training and with adapters
for what in "fp8 recipe=fp8_hybrid fp8_amax_history=4 lora=false" "fp8-lora recipe=fp8_hybrid fp8_amax_history=4 lora=true" \
    "fp8-tiles-lora recipe=fp8_hybrid lora=true qlora=fp8 fusion=none" "nvfp4 recipe=nvfp4 lora=false" "nvfp4-lora recipe=nvfp4 lora=true"; do
    name=${what%% *}
    keys="model_dtype=bf16 save_steps=3 max_steps=20 ${what#* }"
    file=$([[ $name == *lora ]] && echo adapter_model.safetensors || echo model.safetensors)
    # shellcheck disable=SC2086
    run pt "$dir/run.yaml" $keys output_dir="$dir/whole-$name"
    check "$name ends well: $(tail -1 "$dir/err")" [ "$status" = 0 ]
    kills=0
    while :; do
        # shellcheck disable=SC2086
        "$SUROGATE" pt "$dir/run.yaml" $keys output_dir="$dir/killed-$name" > /dev/null 2> "$dir/err" &
        pid=$!
        if [ $kills -lt 6 ]; then
            sleep "$(awk "BEGIN { printf \"%.3f\", 0.03 + $RANDOM / 32768 * 0.3 }")"
            kill -9 $pid 2> /dev/null
            kills=$((kills + 1))
        fi
        wait $pid 2> /dev/null
        status=$?
        [ $status = 137 ] || break
    done
    check "$name: it ends well after $kills kills: $(tail -1 "$dir/err")" [ $status = 0 ]
    same "whole-$name" "killed-$name" $file checkpoint-20/optimizer.safetensors
    check "$name: the same log" cmp <(without_times "$dir/whole-$name/metrics.jsonl") <(without_times "$dir/killed-$name/metrics.jsonl")
done

# --- scales of other tensors aren't loaded
train fp8 31 recipe=fp8-hybrid fusion=none
says "has FP8 scales of other tensors, or of another fp8_amax_history; this run's are measured anew"
train fp8 32 recipe=fp8-hybrid fusion=none fp8_amax_history=9
says "this run's are measured anew"
train fp8 33
says "its FP8 scales are left out: this run has no FP8 products"
train fp8 34 recipe=fp8-hybrid
says "has no FP8 scales; this run's are measured anew"
train bf16 34
near bf16 fp8 step 0.005

# --- adapters over frozen weights in FP8: loading makes the codes
train lora-bf16 30 lora=true lora_rank=4
train lora-fp8 30 lora=true lora_rank=4 recipe=fp8-hybrid
near lora-bf16 lora-fp8 step 0.005
near lora-bf16 lora-fp8 eval 0.005

weights() { "$SUROGATE" plan "$dir/run.yaml" --json model_dtype=bf16 lora=true "$@" 2> "$dir/err" | sed -E 's/.*"weights": ([0-9]+).*/\1/'; }
bf16=$(weights) fp8=$(weights recipe=fp8-hybrid) forward=$(weights matmul_dtype=e4m3)
check "frozen weights are kept in codes alone, in both layouts: $fp8 bytes, $bf16 in bf16" [ $((fp8 - bf16)) -lt 4096 -a "$fp8" -ge "$bf16" ]
check "beside them where the backward pass reads bf16: $forward bytes" [ "$forward" -gt $((bf16 + 8192)) ]

# --- adapters over a base in FP8 tiles, whose codes are multiplied directly: packed (only down and o) or not
train tiles-bf16 30 lora=true lora_rank=4 qlora=fp8
for fusion in all none; do
    keys="lora=true lora_rank=4 qlora=fp8 recipe=fp8-hybrid fusion=$fusion"
    # shellcheck disable=SC2086
    train tiles-$fusion 30 $keys
    near lora-bf16 tiles-$fusion step 0.005
    near tiles-bf16 tiles-$fusion step 0.005
    near tiles-bf16 tiles-$fusion eval 0.005
    check "$fusion: other products" [ "$(cmp "$dir/tiles-bf16/adapter_model.safetensors" "$dir/tiles-$fusion/adapter_model.safetensors" 2>&1)" != "" ]
    # shellcheck disable=SC2086
    train tiles-$fusion-again 30 $keys recompute_block=true threads=1
    same tiles-$fusion tiles-$fusion-again adapter_model.safetensors checkpoint-30/optimizer.safetensors
done
keys="model_dtype=bf16 lora=true qlora=fp8 recipe=fp8-hybrid fusion=none"
# shellcheck disable=SC2086
run plan "$dir/run.yaml" $keys
check "plan: $(cat "$dir/out")" grep -qE "^base .* in place of [0-9.]+ KiB; [0-9.]+ KiB beside them for products in their own format" "$dir/out"
# shellcheck disable=SC2086
run explain "$dir/run.yaml" $keys
check "explain: their codes are read" [ "$(grep -c "block_linear(.*\.codes\.turned" "$dir/out")" -gt 0 -a "$(grep -c fp8_tiles_dequantise "$dir/out")" = 0 ]
# shellcheck disable=SC2086
run explain "$dir/run.yaml" $keys --gpu l40s
check "explain: another GPU makes matrices: $(cat "$dir/err")" [ "$(grep -c block_linear "$dir/out")" = 0 -a "$(grep -c fp8_tiles_dequantise "$dir/out")" -gt 0 ]

# --- what is printed, and what is refused
run plan "$dir/run.yaml" model_dtype=bf16 recipe=fp8-hybrid
check "plan: $(cat "$dir/out")" grep -qE '^fp8 +[0-9]+ tensors with scales; codes of weights [0-9.]+ KiB, scales and their history' "$dir/out"
run plan "$dir/run.yaml" --json model_dtype=bf16 recipe=fp8-hybrid
check "plan --json" grep -qE '"fp8": \{"tensors": [0-9]+, "code_bytes": [1-9][0-9]*, "scale_bytes": [1-9][0-9]*\}' "$dir/out"
run plan "$dir/run.yaml" model_dtype=bf16 recipe=nvfp4
check "plan of nvfp4: $(cat "$dir/out")" grep -qE '^fp4 +[1-9][0-9]* weights in codes: [0-9.]+ KiB' "$dir/out"
run plan "$dir/run.yaml" --json model_dtype=bf16 recipe=nvfp4
check "plan --json of nvfp4" grep -qE '"fp4": \{"weights": [1-9][0-9]*, "code_bytes": [1-9][0-9]*\}' "$dir/out"
# y, dx and dw of 8 weights; 48 elements, over which two products sum, aren't a multiple of 32
for gpu in b200 rtx5090; do
    run explain "$dir/run.yaml" --gpu $gpu model_dtype=bf16 recipe=nvfp4
    check "explain --gpu $gpu: $(grep 'FP4 products' "$dir/out" "$dir/err")" \
        grep -qF "FP4 products: $(grep -c ' = fp4_linear(' "$dir/out") by their codes (cublaslt, for fp4_backend: cutlass and cudnn alike), 2 emulated" "$dir/out"
    check "its products: $(grep -c ' = fp4_linear(' "$dir/out")" [ "$(grep -c ' = fp4_linear(' "$dir/out")" = 22 ]
done
run explain "$dir/run.yaml" --gpu h200 model_dtype=bf16 recipe=nvfp4
check "explain --gpu h200: $(grep 'FP4 products' "$dir/out")" grep -qx "FP4 products: 24 emulated in model_dtype" "$dir/out"
for gpu in b200 h200; do
    run plan "$dir/run.yaml" --gpu $gpu --json model_dtype=bf16 recipe=nvfp4 lora=true
    codes=$(grep -oE '"code_bytes": [0-9]+' "$dir/out" | cut -d' ' -f2)
    run explain "$dir/run.yaml" --gpu $gpu model_dtype=bf16 recipe=nvfp4 lora=true
    check "a frozen base on $gpu: codes of $codes bytes" [ "$codes" -gt 0 -a "$(grep -c "two_d=true" "$dir/out")" = 0 ]
done
run explain "$dir/run.yaml" model_dtype=bf16 recipe=fp8-hybrid
check "explain: $(grep -c scaled_linear "$dir/out") products" grep -qE 'e4m3.* = fp8_quantise' "$dir/out"
run explain "$dir/run.yaml" --program calibrate model_dtype=bf16 recipe=fp8-hybrid
check "explain --program calibrate" [ "$(grep -c fp8_quantise "$dir/out")" -gt 0 -a "$(grep -c scaled_linear "$dir/out")" = 0 ]
for lora in false true; do
    run bench "$dir/run.yaml" --steps 1 --json model_dtype=bf16 recipe=fp8-hybrid lora=$lora
    check "bench, lora $lora: $(cat "$dir/out" "$dir/err")" grep -qE '"loss": ?[1-9]' "$dir/out"
done
# --- bf16 products in an fp32 model: other numbers, but hardly different
for keys in "" matmul_dtype=bf16; do
    # shellcheck disable=SC2086
    run pt "$dir/run.yaml" model_dtype=fp32 output_dir="$dir/fp32-$keys" max_steps=30 $keys
    check "fp32 with $keys: $(tail -1 "$dir/err")" [ "$status" = 0 ]
done
near fp32- fp32-matmul_dtype=bf16 step 0.002
near fp32- fp32-matmul_dtype=bf16 eval 0.002
check "another model" [ "$(cmp "$dir/fp32-/model.safetensors" "$dir/fp32-matmul_dtype=bf16/model.safetensors" 2>&1)" != "" ]
run pt "$dir/run.yaml" model_dtype=fp32 output_dir="$dir/fp32-again" max_steps=30 matmul_dtype=bf16 recompute_block=true threads=1
same fp32-matmul_dtype=bf16 fp32-again model.safetensors checkpoint-30/optimizer.safetensors

refused "e4m3 gradients" 2 "expected one of fp32, bf16, e5m2" -- plan "$dir/run.yaml" gradient_dtype=e4m3
refused "a GPU without FP8 units" 2 "NVIDIA A100-SXM4-80GB has no FP8 units" "set recipe: bf16" -- \
    plan "$dir/run.yaml" recipe=fp8-hybrid model_dtype=bf16 --gpu a100
run plan "$dir/run.yaml" recipe=fp8-hybrid model_dtype=bf16 lora=true qlora=nf4 --gpu a100
check "nor needs them where no product is in FP8: $(cat "$dir/err")" [ "$status" = 0 ]
says "no effect without qlora: none or fp8"
refused "a recipe that isn't there" 2 "expected one of bf16, fp8-hybrid, nvfp4" -- plan "$dir/run.yaml" recipe=int8
refused "tokens of no whole blocks" 2 "a micro-batch has 31 tokens" "expected a multiple of 16" -- \
    plan "$dir/run.yaml" recipe=nvfp4 model_dtype=bf16 sequence_len=31 per_device_train_batch_size=1
run plan "$dir/run.yaml" recipe=fp8-hybrid model_dtype=bf16 gradient_dtype=bf16
check "what the recipe overrides: $(cat "$dir/err")" grep -qF "gradient_dtype: no effect without recipe: bf16" "$dir/err"

# --- a recipe that finds no layer says so
"$SUROGATE" new --arch qwen3-tiny --random --tokenizer "$dir/tokenizer" "$dir/odd" hidden_size=40 intermediate_size=24 vocab_size=300 \
    head_dim=10 max_position_embeddings=128 2> /dev/null
for keys in "recipe=fp8-hybrid skip_quant_first_layers=2" "recipe=nvfp4 skip_quant_last_layers=2" "recipe=nvfp4 model=$dir/odd" \
    "lora=true qlora=nf4 matmul_dtype=e4m3" "lora=true qlora=nf4 gradient_dtype=e5m2" "lora=true qlora=nf4 matmul_dtype=fp32"; do
    # shellcheck disable=SC2086
    run plan "$dir/run.yaml" model_dtype=bf16 $keys
    says "warning: all products stay in bf16"
done
run plan "$dir/run.yaml" model_dtype=bf16 recipe=fp8-hybrid lora=true qlora=fp8
check "products of FP8 tiles are some: $(cat "$dir/err")" [ "$status" = 0 -a ! -s "$dir/err" ]
run plan "$dir/run.yaml" model_dtype=bf16 recipe=fp8-hybrid model="$dir/odd"
check "FP8 takes dims of all kinds" [ "$status" = 0 -a ! -s "$dir/err" ]
finish
