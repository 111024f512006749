#!/bin/bash
# A run that continues training an adapter: settings of the adapter's folder win over the run file, the optimizer is new, kills change no
# byte, and a resumed run notices another adapter. Layers selected by patterns, and what is saved of them.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh

make_tiny max_position_embeddings=128
cat > "$dir/run.yaml" << END
model: $dir/model
datasets: [{path: $dir/text.txt}]
sequence_len: 32
per_device_train_batch_size: 2
gradient_accumulation_steps: 2
max_steps: 4
learning_rate: 1e-2
lora_dropout: 0.1
save_steps: 4
device: cpu
END

run pt "$dir/run.yaml" output_dir="$dir/first" lora=true lora_rank=6 lora_use_rslora=true 'lora_target_modules=.*(q_proj|mlp.*)' \
    'lora_rank_pattern={up_proj: 3}' 'lora_alpha_pattern={"layers.0.mlp.down_proj": 5.5}' 'lora_exclude_modules=[gate_proj]'
check "layers by pattern: $(tail -1 "$dir/err")" [ "$status" = 0 ]
refused "a name given twice" 2 "lora_rank_pattern: up_proj is given twice" -- \
    plan "$dir/run.yaml" lora=true 'lora_rank_pattern={up_proj: 3, up_proj: 4}'
for line in '"r": 6' '"rank_pattern": {"up_proj": *3}' '"alpha_pattern": {"layers.0.mlp.down_proj": *5.5}' \
    '"model.layers.1.mlp.up_proj"' '"use_rslora": true'; do
    check "saved: $line" grep -q "$line" "$dir/first/adapter_config.json"
done

# ---- going on ----

run plan "$dir/run.yaml" adapter="$dir/first"
check "plan says it" grep -q "adapter      goes on from $dir/first, rank 6" "$dir/out"
go_on=(pt "$dir/run.yaml" adapter="$dir/first" lora_rank=4 max_steps=12)
run "${go_on[@]}" output_dir="$dir/whole"
check "a run from it: $(tail -1 "$dir/err")" [ "$status" = 0 ]
check "whose own rank has no effect" grep -q "lora_rank: no effect when adapter is set" "$dir/err"
check "the log says so" grep -q "going on from the adapter $dir/first, of rank 6, with a new optimizer, from step 0" "$dir/err"
check "nothing is rounded" sh -c "! grep -q 'rounded to lora_dtype' '$dir/err'"
check "the settings are the adapter's" cmp "$dir/first/adapter_config.json" "$dir/whole/adapter_config.json"
check "run.json too" grep -q 'lora_rank: 6.n.*lora_rank_pattern: {up_proj: 3}' "$dir/whole/run.json"
first_loss() { grep -m1 -o '"loss":[0-9.]\{6\}' "$1/metrics.jsonl"; }

check "and only that: $(cat "$dir/err")" [ "$(grep -c "no effect when adapter" "$dir/err")" = 1 ]
run plan "$dir/run.yaml" adapter="$dir/first" lora_use_rslora=false lora_use_dora=false 'lora_rank_pattern={}'
check "a key that turns off what it has is named: $(cat "$dir/err")" \
    grep -q "lora_use_rslora: false: no effect when adapter is set: $dir/first says true" "$dir/err"
check "a mapping without items, too" grep -qF "lora_rank_pattern: {}: no effect when adapter is set: $dir/first says {up_proj: 3}" "$dir/err"
check "one that says the same isn't" [ "$(grep -c "no effect when adapter" "$dir/err")" = 2 ]

run pt "$dir/run.yaml" adapter="$dir/first" lora_dtype=bf16 max_steps=1 output_dir="$dir/narrow"
check "the log says that fp32 weights are rounded: $(tail -1 "$dir/err")" \
    grep -q "the adapter $dir/first: its fp32 weights are rounded to lora_dtype: bf16" "$dir/err"

kills=0
while [ $kills -lt 3 ]; do
    "$SUROGATE" "${go_on[@]}" output_dir="$dir/killed" 2> /dev/null &
    pid=$!
    while kill -0 $pid 2> /dev/null && [ ! -d "$dir/killed/checkpoint-$((kills * 4 + 4))" ]; do sleep 0.01; done
    kill -9 $pid 2> /dev/null
    wait $pid 2> /dev/null
    kills=$((kills + 1))
done
run "${go_on[@]}" output_dir="$dir/killed"
check "killed and started again: $(tail -1 "$dir/err")" [ "$status" = 0 ]
for file in adapter_model.safetensors checkpoint-12/optimizer.safetensors; do
    check "the same bytes: $file" cmp "$dir/whole/$file" "$dir/killed/$file"
done

run "${go_on[@]}" output_dir="$dir/ranks" gpus=2 gradient_accumulation_steps=1
check "two ranks: $(tail -1 "$dir/err")" [ "$status" = 0 ]
check "the first loss is the same" [ "$(first_loss "$dir/ranks")" = "$(first_loss "$dir/whole")" ]

# The adapter that the run continues is one of its inputs.
run "${go_on[@]}" output_dir="$dir/part" max_steps=4
sed 's/"lora_dropout": 0.1/"lora_dropout": 0.2/' "$dir/first/adapter_config.json" > "$dir/changed"
cp -r "$dir/first" "$dir/copy"
run "${go_on[@]}" output_dir="$dir/part" adapter="$dir/copy"
check "of other settings: exit $status" [ "$status" = 2 ]
cp "$dir/changed" "$dir/first/adapter_config.json"
refused "an adapter that was changed" 2 "the files of the adapter that it goes on from were changed since" -- "${go_on[@]}" output_dir="$dir/part" max_steps=4
cp "$dir/copy/adapter_config.json" "$dir/first/adapter_config.json"
refused "its own folder" 2 "output_dir is the adapter's own folder" -- "${go_on[@]}" output_dir="$dir/first"
refused "a checkpoint in it" 2 "lies in output_dir $dir/first" -- "${go_on[@]}" output_dir="$dir/first" adapter="$dir/first/checkpoint-4"
refused "no folder" 2 "adapter: there is no folder $dir/none; expected the folder of a LoRA adapter, or the word lora or qlora" -- \
    "${go_on[@]}" adapter="$dir/none"

# ---- over a quantised base ----

run pt "$dir/run.yaml" output_dir="$dir/q" adapter=qlora load_in_4bit=true
check "qlora: $(tail -1 "$dir/err")" [ "$status" = 0 ]
run pt "$dir/run.yaml" output_dir="$dir/q2" lora_model_dir="$dir/q"
check "a run from it: $(tail -1 "$dir/err")" [ "$status" = 0 ]
check "has the base's format" grep -q "qlora: nf4, as $dir/q was trained" "$dir/err"
check "and says so" cmp "$dir/q/base_format.json" "$dir/q2/base_format.json"
run pt "$dir/run.yaml" output_dir="$dir/q3" adapter="$dir/q" qlora=fp8
check "another format is warned of" grep -q "qlora: fp8: the adapter $dir/q was trained over weights in nf4" "$dir/err"

# ---- with modules trained whole ----

run pt "$dir/run.yaml" output_dir="$dir/w" lora=true 'lora_modules_to_save=[embed_tokens, norm]' max_steps=2
check "whole modules: $(tail -1 "$dir/err")" [ "$status" = 0 ]
run pt "$dir/run.yaml" output_dir="$dir/w2" adapter="$dir/w" max_steps=1 learning_rate=0
check "a run from them: $(tail -1 "$dir/err")" [ "$status" = 0 ]
check "that learns nothing keeps them" cmp "$dir/w/adapter_model.safetensors" "$dir/w2/adapter_model.safetensors"

# ---- beginning with a part of the base ----

begin=(pt "$dir/run.yaml" lora=true lora_rank=4 lora_init=pissa max_steps=12)
run "${begin[@]}" output_dir="$dir/pissa" merge_adapter=true
check "pissa: $(tail -1 "$dir/err")" [ "$status" = 0 ]
check "what is saved has twice the rank" grep -q '"r": 8' "$dir/pissa/adapter_config.json"
check "and the same scale" grep -q '"lora_alpha": 64' "$dir/pissa/adapter_config.json"
kills=0
while [ $kills -lt 3 ]; do
    "$SUROGATE" "${begin[@]}" output_dir="$dir/pissa-killed" 2> /dev/null &
    pid=$!
    while kill -0 $pid 2> /dev/null && [ ! -d "$dir/pissa-killed/checkpoint-$((kills * 4 + 4))" ]; do sleep 0.01; done
    kill -9 $pid 2> /dev/null
    wait $pid 2> /dev/null
    kills=$((kills + 1))
done
run "${begin[@]}" output_dir="$dir/pissa-killed"
for file in adapter_model.safetensors checkpoint-12/optimizer.safetensors; do
    check "killed and started again: the same bytes: $file" cmp "$dir/pissa/$file" "$dir/pissa-killed/$file"
done
run "${begin[@]}" output_dir="$dir/pissa-ranks" gpus=2 gradient_accumulation_steps=1 zero_level=3
check "two ranks: $(tail -1 "$dir/err")" [ "$status" = 0 ]
run "${begin[@]}" output_dir="$dir/pissa-narrow" lora_dtype=bf16
check "in bf16: $(tail -1 "$dir/err")" [ "$status" = 0 ]
run "${begin[@]}" output_dir="$dir/pissa-narrow" lora_dtype=bf16 max_steps=16 resume_from_checkpoint=true
check "and from its checkpoint on: $(tail -1 "$dir/err")" [ "$status" = 0 ]
refused "a checkpoint that began otherwise" 5 "lora_init" -- "${begin[@]}" output_dir="$dir/first" max_steps=13 resume_from_checkpoint=true \
    lora_rank=6
refused "over a quantised base" 2 "lora_init: with qlora the saved adapter" -- "${begin[@]}" qlora=nf4 output_dir="$dir/no"
refused "too high a rank" 2 "too few for rank 40" -- "${begin[@]}" lora_rank=40 output_dir="$dir/no"
refused "an embedding" 2 "lora_init: the weight of lm_head is the embedding" -- "${begin[@]}" 'lora_target_modules=[q_proj, lm_head]' \
    output_dir="$dir/no"

# ---- several, with weights ----

run merge "$dir/model" "$dir/first=0.25" "$dir/whole=0.75" "$dir/merged"
check "merged with weights: $(tail -1 "$dir/err")" [ "$status" = 0 ]
check "as base and adapters compute: $(cat "$dir/out")" awk '$4 > 1e-5 { exit 1 }' "$dir/out"
check "nothing else is left in the folder" [ ! -e "$dir/merged/.adapter.partial" -a ! -e "$dir/merged/adapter_config.json" ]
run merge "$dir/model" "$dir/first=1" "$dir/once"
run merge "$dir/model" "$dir/first" "$dir/plain"
check "a weight of 1" cmp "$dir/once/model.safetensors" "$dir/plain/model.safetensors"
run merge "$dir/model" "$dir/first=0.5" "$dir/first=0.5" "$dir/halves"
check "two halves: $(tail -1 "$dir/err")" [ "$status" = 0 ]
refused "no weights" 2 "several adapters need weights" -- merge "$dir/model" "$dir/first" "$dir/whole" "$dir/none"
refused "no number" 2 "expected ADAPTER_DIR=WEIGHT, a number but 0" -- merge "$dir/model" "$dir/first=half" "$dir/none"
refused "whole modules" 2 "holds more than pairs of linear layers" -- merge "$dir/model" "$dir/first=0.5" "$dir/w=0.5" "$dir/none"
refused "two words" 2 "usage: surogate merge BASE_DIR ADAPTER_DIR[=WEIGHT] ... OUT_DIR" -- merge "$dir/model" "$dir/first"
check "nothing was made" [ ! -e "$dir/none" ]

# ---- texts of one adapter aren't those of another ----

echo '{"prompt": "a"}' > "$dir/prompts.jsonl"
texts=(generate "$dir/first" --prompts "$dir/prompts.jsonl" --max-tokens 4 --device cpu --out "$dir/texts")
run "${texts[@]}"
check "texts: $(tail -1 "$dir/err")" [ "$status" = 0 ]
sed -i 's/"lora_alpha": 32/"lora_alpha": 33/' "$dir/first/adapter_config.json"
refused "another alpha is another adapter" 2 "adapter_hash was" -- "${texts[@]}"
finish
