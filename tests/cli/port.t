#!/bin/bash
# Run files of other tools are translated: each file of tests/cli/port gives the text beside it (.run), or is refused with the message
# beside it (.err). Translated files can be planned and trained. UPDATE=1 writes these texts.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
export HF_HOME=$dir/cache # models with new tokens are made in this folder
make_tiny max_position_embeddings=128
export HF_HUB_OFFLINE=1
cases=tests/cli/port
run pt model="$dir/model" datasets.0.path="$dir/text.txt" sequence_len=32 max_steps=1 lora=true device=cpu output_dir="$dir/adapter"
check "an adapter: $(tail -1 "$dir/err")" [ "$status" = 0 ]

# compared NAME FILE: FILE equals the text beside the case.
compared() {
    [ "${UPDATE:-}" ] && cp "$2" "$cases/$1"
    check "$1: $(diff "$cases/$1" "$2" 2>&1 | head -5)" cmp -s "$cases/$1" "$2"
}

count=0
for file in "$cases"/*.yaml "$cases"/*.yml "$cases"/*.json; do
    name=$(basename "$file")
    count=$((count + 1))
    run port "$file"
    if [ "${name#refused-}" != "$name" ]; then
        check "$name is refused: exit $status" [ "$status" = 2 ]
        check "$name: nothing on stdout" [ ! -s "$dir/out" ]
        compared "$name.err" "$dir/err"
        continue
    fi
    check "$name: exit $status: $(cat "$dir/err")" [ "$status" = 0 ]
    compared "$name.run" "$dir/out"
    changed=$(sed -n '/the result may change/,/^$/s/^#   /warning: /p' "$dir/out")
    check "$name: stderr says what may change the result" [ "$(sed "s|^warning: $file: |warning: |" "$dir/err")" = "$changed" ]
    cp "$dir/out" "$dir/ported.yaml"
    overrides=("model=$dir/model" device=cpu sequence_len=64)
    grep -q '^adapter:' "$dir/ported.yaml" && overrides+=("adapter=$dir/adapter")
    grep -q '^tokenizer:' "$dir/ported.yaml" && overrides+=("tokenizer=$dir/tokenizer")
    [ "$name" = llamafactory-no-registry.yaml ] && overrides+=("datasets.0.path=$cases/registry/counting.json")
    run plan "$dir/ported.yaml" "${overrides[@]}" chat_template=chatml
    check "$name: planned: exit $status: $(cat "$dir/err")" [ "$status" = 0 ]
done
check "at least 30 files" [ "$count" -ge 30 ]

# A translated file trains: rows in the layouts of a dataset registry, which is found beside the file.
mkdir "$dir/work"
cp -r "$cases/registry" "$dir/work/"
cp "$cases/llamafactory-lora.yaml" "$dir/work/"
cp examples/chat_template.jinja "$dir/model/"
run port "$dir/work/llamafactory-lora.yaml" --out "$dir/work/run.yaml"
check "ported to a file" [ "$status" = 0 -a -s "$dir/work/run.yaml" -a ! -s "$dir/out" ]
check "the file's place is said" grep -q "wrote $dir/work/run.yaml" "$dir/err"
run sft "$dir/work/run.yaml" model="$dir/model" output_dir="$dir/trained" sequence_len=64 max_steps=2 device=cpu
check "two steps of it: $(cat "$dir/err")" [ "$status" = 0 -a -s "$dir/trained/adapter_model.safetensors" ]
run port "$dir/work/llamafactory-lora.yaml" --dataset-dir "$dir/work/registry"
check "--dataset-dir" grep -q "path: $dir/work/registry/counting.json" "$dir/out"

# No file is overwritten, and bad input is refused.
refused "a file that is there" 2 "run.yaml is there already" -- port "$cases/axolotl.json" --out "$dir/work/run.yaml"
refused "a folder that is not there" 2 "cannot create $dir/none/run.yaml: " -- port "$cases/axolotl.json" --out "$dir/none/run.yaml"
refused "no file" 2 "none.yaml" -- port "$dir/none.yaml"
refused "no words" 2 "usage: surogate port" -- port
echo '- a' > "$dir/list.yaml"
refused "a list" 2 "expected lines of" -- port "$dir/list.yaml"
printf 'learning_rate: 1e-4\nseed: 3\n' > "$dir/any.yaml"
refused "whose file it is" 2 "say --from axolotl, llamafactory, llamafactory-v1 or trl" -- port "$dir/any.yaml"
refused "another tool" 2 "there is no tool unsloth" "axolotl" -- port "$dir/any.yaml" --from unsloth
refused "no model" 2 "no model is named: base_model" -- port "$dir/any.yaml" --from axolotl
printf 'model_name_or_path: a/b\ndataset: x\n' > "$dir/broken.yaml"
mkdir -p "$dir/data"
echo '{"x": ' > "$dir/data/dataset_info.json"
refused "a broken registry" 2 "dataset_info.json:" -- port "$dir/broken.yaml" --from llamafactory
printf 'base_model: a/b\nlora_r: 8\nadapter: lora\ndatasets: [{type: alpaca}, 3, [4]]\n' > "$dir/paths.yaml"
refused "datasets without a path" 2 "a dataset without path" -- port "$dir/paths.yaml"
printf 'base_model: "a\\nb: c"\ndatasets: [{path: "x # y\\n- z", type: alpaca}]\nlearning_rate: 1e-4\n' > "$dir/signs.yaml"
run port "$dir/signs.yaml"
check "signs in values stay in their value" grep -qF 'model: "a\nb: c"' "$dir/out"

printf 'base_model: a\nadapter: lora\nlora_target_modules: ["q: x", "\x27"]\ndatasets: [{path: x, type: alpaca}]\n' > "$dir/signs.yaml"
run port "$dir/signs.yaml"
check "signs in names of layers: $(cat "$dir/err")" [ "$status" = 0 ]

# A warm-up that is longer than the run.
printf '%s\n' "base_model: $dir/model" "datasets: [{path: $cases/registry/talks.json, type: chat_template}]" "learning_rate: 1e-3" \
    "max_steps: 2" "warmup_steps: 8" "output_dir: $dir/warm" > "$dir/warm.yaml"
run port "$dir/warm.yaml"
check "a long warm-up" grep -q "^learning_rate: 0.00025 .*as far as it comes in 2 of 8 steps" "$dir/out"
cp "$dir/out" "$dir/warm-ported.yaml"
run sft "$dir/warm-ported.yaml" device=cpu sequence_len=64 on_long_sample=truncate
check "a long warm-up trains: $(cat "$dir/err")" [ "$status" = 0 ]

# A file of another tool given to plan or sft: a refused one names `port`, one that runs prints the differences.
for command in plan sft pt; do
    refused "$command: a foreign file" 2 "looks like a run file of Axolotl (base_model)" "surogate port $cases/axolotl-alpaca-lora.yaml" -- \
        "$command" "$cases/axolotl-alpaca-lora.yaml"
done
refused "plan: LLaMA-Factory's" 2 "looks like a run file of LLaMA-Factory" -- plan "$cases/llamafactory-lora.yaml"
refused "plan: TRL's" 2 "looks like a run file of TRL" -- plan "$cases/trl-sft.yaml"
printf 'model: x\nlora_rnak: 3\n' > "$dir/ours.yaml"
refused "plan: ours" 2 "did you mean lora_rank" -- plan "$dir/ours.yaml"
check "plan: ours isn't called another tool's" [ "$(grep -c 'looks like' "$dir/err")" = 0 ]
printf '%s\n' "base_model: $dir/model" "datasets: [{path: $dir/text.txt}]" "micro_batch_size: 1" "lora_r: 8" "adapter: lora" > "$dir/runs.yaml"
run plan "$dir/runs.yaml" sequence_len=64
check "a foreign file that runs" [ "$status" = 0 ]
check "what differs is one line: $(cat "$dir/err")" [ "$(grep -c 'has keys of Axolotl' "$dir/err")" = 1 ]
for text in "weight_decay 0.1 (there 0.0)" "lora_alpha 32.0 (there 8.0)" "sample_packing true (there false)" "surogate port $dir/runs.yaml"; do
    check "what differs: $text in $(cat "$dir/err")" grep -qF "$text" "$dir/err"
done
check "what is given doesn't differ" [ "$(grep -c 'sequence_len\|per_device' <(grep 'has keys' "$dir/err"))" = 0 ]
printf '%s\n' "base_model: $dir/model" "datasets: [{path: $cases/registry/counting.json, type: alpaca}]" > "$dir/runs.yaml"
run plan "$dir/runs.yaml" sequence_len=64
check "Alpaca's text: $(cat "$dir/err")" grep -qF "prompt_format, of instructions, is the chat template's (there that of type)" "$dir/err"
printf '%s\n' "model_name_or_path: $dir/model" "datasets: [{path: $dir/text.txt}]" "finetuning_type: lora" "lora_rank: 4" > "$dir/runs.yaml"
run plan "$dir/runs.yaml" sequence_len=64
check "LoRA has no master weights" [ "$(grep -c master_dtype "$dir/err")" = 0 ]
check "twice the rank" grep -qF "lora_alpha 32.0 (there 8.0)" "$dir/err"
printf '%s\n' "model: $dir/model" "datasets: [{path: $dir/text.txt}]" "lora: true" > "$dir/runs.yaml"
run plan "$dir/runs.yaml" sequence_len=64
check "ours says nothing of tools: $(cat "$dir/err")" [ "$(grep -c 'has keys' "$dir/err")" = 0 ]
finish
