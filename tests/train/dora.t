#!/bin/bash
# DoRA from a run file to a merged model: it begins as the base, over plain and quantised bases. Resumed, recomputed or divided among ranks,
# it is the same run; merged, it is the same model. What its adapter can't do is refused by name.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh

make_tiny max_position_embeddings=128
head -200 "$dir/text.txt" > "$dir/valid.txt"
cat > "$dir/run.yaml" << END
model: $dir/model
datasets: [{path: $dir/text.txt}]
sequence_len: 32
per_device_train_batch_size: 2
gradient_accumulation_steps: 2
max_steps: 6
learning_rate: 1e-2
lora: true
lora_rank: 4
lora_use_dora: true
save_steps: 2
save_total_limit: 0
model_dtype: fp32
device: cpu
END

# train NAME KEY=VALUE...: trains into $dir/NAME.
train() {
    local name=$1
    shift
    run pt "$dir/run.yaml" output_dir="$dir/$name" "$@"
    check "$name: a run: $(tail -1 "$dir/err")" [ "$status" = 0 ]
}
loss() {
    run eval "$@" --text "$dir/valid.txt" --context 32 --json --device cpu
    [ "$status" = 0 ] || cat "$dir/err"
    sed -E 's/.*"mean":([0-9.e+-]+).*/\1/' "$dir/out"
}
near() { awk "BEGIN { d = $1 - $2; exit !(d < 0 ? -d <= $3 : d <= $3) }"; }
first_loss() { sed -nE 's/.*"log":"step".*"loss":([0-9.e+-]+).*/\1/p' "$1/metrics.jsonl" | head -1; }
last_loss() { sed -nE 's/.*"log":"step".*"loss":([0-9.e+-]+).*/\1/p' "$1/metrics.jsonl" | tail -1; }
same_adapter() { cmp "$dir/$1/adapter_model.safetensors" "$dir/$2/adapter_model.safetensors"; }

# --- the same run in other ways
train whole
train plain lora_use_dora=false
check "it begins as the base" near "$(first_loss "$dir/whole")" "$(first_loss "$dir/plain")" 2e-6
check "and goes another way than LoRA" [ "$(last_loss "$dir/whole")" != "$(last_loss "$dir/plain")" ]
check "PEFT's setting" grep -q '"use_dora": true' "$dir/whole/adapter_config.json"
cp -r "$dir/whole/checkpoint-4" "$dir/from"
train again resume_from_checkpoint="$dir/from"
check "resumed, to the same bytes" same_adapter whole again
train recomputed recompute_block=true
check "recomputed, to the same bytes" same_adapter whole recomputed
train micro per_device_train_batch_size=4 gradient_accumulation_steps=1
check "in one micro-step: the same loss" near "$(last_loss "$dir/micro")" "$(last_loss "$dir/whole")" 1e-4
for level in 1 3; do
    train ranks$level gpus=2 gradient_accumulation_steps=1 zero_level=$level
    check "two ranks, zero_level $level: the same loss" near "$(last_loss "$dir/ranks$level")" "$(last_loss "$dir/whole")" 1e-4
done

# --- the adapter
adapted=$(loss "$dir/whole")
run merge "$dir/model" "$dir/whole" "$dir/merged"
check "merge: $(tail -1 "$dir/err")" [ "$status" = 0 ]
check "merged it is the same model" near "$adapted" "$(loss "$dir/merged")" 1e-5
check "another than the base" [ "$adapted" != "$(loss "$dir/model")" ]
run generate "$dir/model" --adapter "$dir/whole" --prompt "line" --max-tokens 20 --temperature 0 --ignore-eos
check "generate: $(tail -1 "$dir/err")" [ "$status" = 0 -a -s "$dir/out" ]
cp "$dir/out" "$dir/text1"
run generate "$dir/merged" --prompt "line" --max-tokens 20 --temperature 0 --ignore-eos
check "the merged model writes the same" cmp "$dir/text1" "$dir/out"
train further adapter="$dir/whole" lora_use_dora=false max_steps=2
check "gone on from: DoRA stays" grep -q '"use_dora": true' "$dir/further/adapter_config.json"
check "gone on from: the run file's own word is named: $(cat "$dir/err")" \
    grep -q "lora_use_dora: false: no effect when adapter is set: $dir/whole says true" "$dir/err"
check "gone on from: where it was" near "$(first_loss "$dir/further")" "$(last_loss "$dir/whole")" 0.5

# --- with other settings
train chosen 'lora_target_modules=[q_proj,up_proj,lm_head]' 'lora_rank_pattern={up_proj: 2}' lora_use_rslora=true \
    'lora_modules_to_save=[embed_tokens]' merge_adapter=true lora_dtype=bf16 model_dtype=bf16 lora_dropout=0.1
check "chosen: merged" near "$(loss "$dir/chosen")" "$(loss "$dir/chosen/merged")" 2e-3
train dropped lora_dropout=0.3
check "dropout: another run" [ "$(last_loss "$dir/dropped")" != "$(last_loss "$dir/whole")" ]
for format in nf4 fp8 nvfp4; do
    train $format qlora=$format model_dtype=bf16 merge_adapter=true
    train $format-plain qlora=$format model_dtype=bf16 lora_use_dora=false
    check "$format: it begins as the base is kept" near "$(first_loss "$dir/$format")" "$(first_loss "$dir/$format-plain")" 2e-3
    check "$format: merged" near "$(loss "$dir/$format")" "$(loss "$dir/$format/merged")" 3e-3
done

# --- an adapter of another model
"$SUROGATE" new --arch qwen3-tiny --random --tokenizer "$dir/tokenizer" "$dir/wide" hidden_size=32 intermediate_size=64 vocab_size=300 \
    head_dim=8 max_position_embeddings=128 2> "$dir/err" || fail "new: $(cat "$dir/err")"
for command in "plan $dir/run.yaml" "pt $dir/run.yaml output_dir=$dir/no"; do
    read -ra words <<< "$command"
    refused "${words[0]}: a model of another size" 2 "adapter: $dir/whole/adapter_model.safetensors: tensor base_model.model.model.layers.0.mlp." \
        "the model has [" "is this the model that was adapted?" -- "${words[@]}" adapter="$dir/whole" model="$dir/wide"
done

cp -r "$dir/whole" "$dir/bent"
LC_ALL=C sed -E 's/"format":"pt"/"format":"p"/; s/(0.self_attn.q_proj.lora_magnitude_vector":\{"dtype":"F32","shape":)\[32\]/\1[4,8]/' \
    "$dir/whole/adapter_model.safetensors" > "$dir/bent/adapter_model.safetensors"
refused "lengths of another shape: plan" 2 "0.self_attn.q_proj.lora_magnitude_vector has shape [4,8], the model has [32]" -- \
    plan "$dir/run.yaml" adapter="$dir/bent"

# --- what can't be done
run merge "$dir/model" "$dir/whole=0.5" "$dir/plain=0.5" "$dir/sum"
check "weighted: $(cat "$dir/err")" grep -q "is an adapter of DoRA (use_dora), whose rows are divided by their norms" "$dir/err"
printf '%s\n' '{"prompt": "line", "adapter": "a"}' > "$dir/prompts.jsonl"
run generate "$dir/model" --adapter "a=$dir/whole" --prompts "$dir/prompts.jsonl" --out "$dir/texts.jsonl"
check "by row: $(cat "$dir/err")" grep -q "is an adapter of DoRA (use_dora), which rows can't choose; give it alone" "$dir/err"
run export "$dir/model" --adapter "$dir/whole" --adapter-only --to gguf --type f16 --out "$dir/a.gguf"
check "gguf alone: $(cat "$dir/err")" grep -q "is an adapter of DoRA (use_dora): a GGUF adapter can't say that" "$dir/err"
for recipe in fp8-hybrid nvfp4; do
    refused "$recipe" 2 "lora_use_dora beside recipe: $recipe" -- pt "$dir/run.yaml" output_dir="$dir/no" model_dtype=bf16 recipe=$recipe
done
for recipe in fp8-hybrid nvfp4; do
    for command in "eval $dir/model --text $dir/valid.txt" "generate $dir/model --prompt line" "chat $dir/model" \
        "score $dir/model $dir/valid.txt"; do
        read -ra words <<< "$command"
        refused "$recipe: ${words[0]}" 2 "recipe $recipe with $dir/whole, an adapter of DoRA (use_dora)" "or merge the adapter" -- \
            "${words[@]}" --adapter "$dir/whole" --recipe $recipe
    done
done
refused "serve" 2 "recipe nvfp4 with $dir/whole, an adapter of DoRA (use_dora)" -- serve "$dir/whole" --port 0 --recipe nvfp4
refused "matmul_dtype" 2 "lora_use_dora beside matmul_dtype: e4m3" "leave matmul_dtype out" -- \
    pt "$dir/run.yaml" output_dir="$dir/no" model_dtype=bf16 matmul_dtype=e4m3
refused "pissa" 2 "lora_init: pissa beside lora_use_dora" -- pt "$dir/run.yaml" output_dir="$dir/no" lora_init=pissa
sed 's/"use_dora": true/"use_dora": false/' "$dir/whole/adapter_config.json" > "$dir/config"
cp "$dir/config" "$dir/whole/adapter_config.json"
refused "a setting that the tensors contradict" 2 "is of DoRA, and adapter_config.json doesn't say use_dora: true" -- eval "$dir/whole" --text "$dir/valid.txt"
finish
