#!/bin/bash
# Every command gives the same over a quantised folder as over the decoded values in fp32.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
if ! command -v python3 > /dev/null; then
    skip "no python3"
    finish
fi
make_text_run "max_steps: 3" "dataset_cache_dir: $dir/cache" "lora_rank: 2" "lora: true"
# same NAME ARGS...: the program prints the same for FORMAT_codes and FORMAT_numbers; MODEL in the arguments stands for these folders.
same() {
    local name=$1
    shift
    run "${@//MODEL/$dir/${format}_numbers}"
    [ "$status" = 0 ] || fail "$format, $name: $(cat "$dir/err")"
    mv "$dir/out" "$dir/want"
    run "${@//MODEL/$dir/${format}_codes}"
    check "$format, $name: $(cat "$dir/err")" [ "$status" = 0 ]
    check "$format, $name: as over numbers" cmp "$dir/want" "$dir/out"
}
# equal_tensors FILE FILE: the same tensors, in any order.
equal_tensors() {
    python3 - "$@" << 'END'
import json, struct, sys
def tensors(path):
    data = open(path, "rb").read()
    size = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:size])
    return {n: (i["dtype"], i["shape"], data[size:][slice(*i["data_offsets"])]) for n, i in header.items() if n != "__metadata__"}
sys.exit(tensors(sys.argv[1]) != tensors(sys.argv[2]))
END
}
for format in nf4 fp8 nvfp4; do
    python3 tests/model/quantise.py "$dir/model" $format "$dir/${format}_codes" "$dir/${format}_numbers"
    same eval eval MODEL --text "$dir/text.txt"
    check "$format: the format is named: $(cat "$dir/err")" grep -qiE "${format}_codes: 14 of 24 tensors are $format .*they stay as they are" "$dir/err"
    run inspect "$dir/${format}_codes"
    check "$format: inspect names it: $(cat "$dir/out" "$dir/err")" grep -qiE "^stored +$format \(.*\): 14 tensors of [0-9]+ numbers, [48]\.[0-9]+ bits each" "$dir/out"
    check "$format: and the others" grep -qE "^stored +numbers: 10 tensors of [0-9]+ numbers, 32.000 bits each" "$dir/out"
    same generate generate MODEL --prompt "line 7" --max-tokens 20
    for of in codes numbers; do
        run pt "$dir/run.yaml" model="$dir/${format}_$of" output_dir="$dir/${format}_out_$of"
        check "$format: trains: $(cat "$dir/err")" [ "$status" = 0 ]
        run merge "$dir/${format}_$of" "$dir/${format}_out_$of" "$dir/${format}_merged_$of"
        check "$format: merges: $(cat "$dir/err")" [ "$status" = 0 ]
        cp "$dir/out" "$dir/difference_$of"
    done
    same "an adapter" eval MODEL --adapter "$dir/${format}_out_codes" --text "$dir/text.txt" --qlora none
    same "in another format" eval MODEL --text "$dir/text.txt" --quantization int8
    check "$format: which is said: $(cat "$dir/err")" grep -qiE "tensors are $format .*they are quantised again to int8" "$dir/err"
    same "an adapter" eval MODEL --adapter "$dir/${format}_out_codes" --text "$dir/text.txt" --qlora none
    check "$format: --qlora none: $(cat "$dir/err")" grep -q "they are dequantised to fp32" "$dir/err"
    run eval "$dir/${format}_codes" --adapter "$dir/${format}_out_codes" --text "$dir/text.txt"
    check "$format: the adapter's base stays: $(cat "$dir/err")" grep -q "they stay as they are" "$dir/err"
    check "$format: and computes the same" cmp "$dir/want" "$dir/out"
    check "$format: adapters are equal" cmp "$dir/${format}_out_codes/adapter_model.safetensors" "$dir/${format}_out_numbers/adapter_model.safetensors"
    check "$format: merged models are equal" equal_tensors "$dir/${format}_merged_codes/model.safetensors" "$dir/${format}_merged_numbers/model.safetensors"
    check "$format: the merged one isn't quantised" [ "$(grep -c quantization "$dir/${format}_merged_codes/config.json")" = 0 ]
    check "$format: and computes the same" cmp "$dir/difference_codes" "$dir/difference_numbers"
    run merge "$dir/${format}_codes" "$dir/${format}_out_codes" "$dir/${format}_kept" --quantised
    check "$format: merges in its format: $(cat "$dir/err")" [ "$status" = 0 ]
    check "$format: it is named" grep -q quantization_config "$dir/${format}_kept/config.json"
    check "$format: and says how far off it is: $(cat "$dir/out")" awk '/^largest logit difference/ { exit !($4 > 0 && $4 < 0.2 * substr($7, 1, length($7) - 1)) }' "$dir/out"
    run eval "$dir/${format}_kept" --text "$dir/text.txt"
    check "$format: what is merged stays quantised: $(cat "$dir/err")" grep -qiE "_kept: 14 of 24 tensors are $format .*they stay as they are" "$dir/err"
    check "$format: and is as good" awk '/^loss/ { if (NR == FNR) a = $2; else d = a - $2 } END { exit !(d < 0.05 && d > -0.05) }' "$dir/want" "$dir/out"
done

run inspect tests/fixtures/quantised/nf4_double
check "double quantisation is named: $(cat "$dir/out")" grep -q "NF4 (bitsandbytes), double quantisation: 6 tensors" "$dir/out"
check "nothing is said of decoding unasked" [ "$(grep -c decoding "$dir/out")" = 0 ]
run inspect tests/fixtures/quantised/nf4_double --gpu h200 --context 100
check "rows that decode at once: $(cat "$dir/out" "$dir/err")" grep -q "^decoding   4096 rows or more of 100 tokens fit (KV cache .* of 139.40 GiB)$" "$dir/out"
run inspect tests/fixtures/quantised/nf4_double --context 257
check "a context beyond the model's: $(cat "$dir/err")" grep -q -e "--context 257: expected 1 to 256" "$dir/err"
run inspect "$dir/text.txt" --gpu h200
check "no model: $(cat "$dir/err")" grep -q "need a model's folder" "$dir/err"

# --- a format other than the folder's
run pt "$dir/run.yaml" model="$dir/nf4_codes" output_dir="$dir/plain" qlora=none
check "qlora: none: $(cat "$dir/err")" grep -q "tensors are NF4 (bitsandbytes); they are dequantised to fp32" "$dir/err"
check "and trains the same" cmp "$dir/plain/adapter_model.safetensors" "$dir/nf4_out_numbers/adapter_model.safetensors"
run pt "$dir/run.yaml" model="$dir/nf4_codes" output_dir="$dir/asked" qlora=nf4
check "its format, asked for: $(cat "$dir/err")" grep -q "they stay as they are" "$dir/err"
run pt "$dir/run.yaml" model="$dir/fp8_codes" output_dir="$dir/again" qlora=nf4
check "another format: $(cat "$dir/err")" grep -q "tensors are FP8 (128x128); they are quantised again to nf4" "$dir/err"
run pt "$dir/run.yaml" model="$dir/fp8_numbers" output_dir="$dir/once" qlora=nf4
check "as from numbers" cmp "$dir/again/adapter_model.safetensors" "$dir/once/adapter_model.safetensors"
run pt "$dir/run.yaml" model="$dir/nf4_codes" output_dir="$dir/full" lora=false
check "full training: $(cat "$dir/err")" grep -q "they are dequantised to fp32" "$dir/err"
check "it saves numbers" [ "$(grep -c quantization "$dir/full/config.json")" = 0 ]

# --- products with the folder's own FP8 codes equal products with codes made from its values
run pt "$dir/run.yaml" model="$dir/fp8_codes" model_dtype=bf16 recipe=fp8-hybrid fusion=none output_dir="$dir/blocks_read"
check "products by codes: $(cat "$dir/err")" grep -q "they stay as they are" "$dir/err"
run pt "$dir/run.yaml" qlora=fp8 model_dtype=bf16 recipe=fp8-hybrid fusion=none output_dir="$dir/blocks_made"
check "as by codes that we make: $(tail -1 "$dir/err")" cmp "$dir/blocks_read/adapter_model.safetensors" "$dir/blocks_made/adapter_model.safetensors"
run pt "$dir/run.yaml" qlora=fp8 model_dtype=bf16 output_dir="$dir/blocks_none"
check "which aren't those of matrices" [ "$(cmp "$dir/blocks_read/adapter_model.safetensors" "$dir/blocks_none/adapter_model.safetensors" 2>&1)" != "" ]

# --- or with codes under one scale per tensor, if the run asks for it
keys="model_dtype=bf16 recipe=fp8-hybrid fusion=none qlora=none"
# shellcheck disable=SC2086
run pt "$dir/run.yaml" model="$dir/fp8_codes" $keys output_dir="$dir/tensor_read"
check "the error is printed: $(cat "$dir/err")" grep -qE "fp8_codes: 14 matrices are quantised again, to FP8 with one scale a tensor; the largest relative error is (0.0[0-9]+|[1-9].*e-0[2-9]) \(blocks" "$dir/err"
# shellcheck disable=SC2086
run pt "$dir/run.yaml" model="$dir/fp8_numbers" $keys output_dir="$dir/tensor_made"
check "as from numbers" cmp "$dir/tensor_read/adapter_model.safetensors" "$dir/tensor_made/adapter_model.safetensors"
check "of which no error is known: $(cat "$dir/err")" [ "$(grep -c "quantised again" "$dir/err")" = 0 ]
# shellcheck disable=SC2086
run explain "$dir/run.yaml" model="$dir/fp8_codes" $keys
check "explain: scaled_linear" [ "$(grep -c scaled_linear "$dir/out")" -gt 0 -a "$(grep -cE "block_linear|fp8_tiles" "$dir/out")" = 0 ]

# --- only ModelOpt's own file
cp -r "$dir/nvfp4_numbers" "$dir/modelopt"
cp "$dir/nvfp4_codes/model.safetensors" "$dir/modelopt"
echo '{"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "group_size": 16}}' > "$dir/modelopt/hf_quant_config.json"
run eval "$dir/modelopt" --text "$dir/text.txt"
check "hf_quant_config.json: $(cat "$dir/err")" grep -q "modelopt: 14 of 24 tensors are NVFP4" "$dir/err"
mv "$dir/out" "$dir/want"
run eval "$dir/nvfp4_numbers" --text "$dir/text.txt"
check "hf_quant_config.json: as over numbers" cmp "$dir/want" "$dir/out"
rm "$dir/modelopt/hf_quant_config.json"
refused "codes that nothing tells of" 2 "28 tensors that this model doesn't have" -- eval "$dir/modelopt" --text "$dir/text.txt"

refused "a format of numbers" 2 "nf4_numbers isn't quantised" "leave out --quantised" -- merge "$dir/nf4_numbers" "$dir/nf4_out_codes" "$dir/bad_merged" --quantised
check "and nothing is written" [ ! -e "$dir/bad_merged" ]
run merge "$dir/fp8_codes" "$dir/nf4_out_codes" "$dir/other_merged"
check "another base is warned of once: $(cat "$dir/err")" [ "$(grep -c "was trained on" "$dir/err")" = 1 ]

# bad METHOD SETTINGS TEXT: a folder quantised like this is refused by each command, and nothing is written.
bad() {
    cp -r "$dir/nf4_codes" "$dir/bad_$1"
    sed -i "s/\"quant_method\": \"bitsandbytes\",//; s/\"load_in_4bit\": true,//; s/\"quantization_config\": {/&$2,/" "$dir/bad_$1/config.json"
    refused "$1, eval" 2 "bad_$1/config.json: the model is quantised" "$3" "read are bitsandbytes" -- eval "$dir/bad_$1" --text "$dir/text.txt"
    refused "$1, generate" 2 "$3" -- generate "$dir/bad_$1" --prompt a
    refused "$1, merge" 2 "$3" -- merge "$dir/bad_$1" "$dir/nf4_out_codes" "$dir/bad_merged"
    refused "$1, plan" 2 "$3" -- plan "$dir/run.yaml" model="$dir/bad_$1"
    refused "$1, pt" 2 "$3" -- pt "$dir/run.yaml" model="$dir/bad_$1" output_dir="$dir/bad_out"
    check "$1: nothing is written" [ ! -e "$dir/bad_out" -a ! -e "$dir/bad_merged" ]
}
bad gptq '"quant_method": "gptq"' "quant_method gptq"
bad int8 '"quant_method": "bitsandbytes", "load_in_8bit": true' "8 bits"
finish
