#!/bin/bash
# LoRA on the output head, which may share the embedding's weight: trained, interrupted and resumed, merged, used for generation.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
seq 1 40 | awk '{ print "{\"instruction\": \"line " $1 "\", \"output\": \"says " ($1 * 7 % 10) " and goes on\"}" }' > "$dir/rows.jsonl"

# value FILE: the mean loss that `eval --json` printed.
value() { sed 's/.*"mean"://; s/}//' "$1"; }

# A copy of the folder with other names of symbols, tensors and keys of config.json, given by its own IR.
rename_all() {
    local edit='s/"V"/"Words"/g; s/"tied"/"shared"/g; s/"shared": "shared"/"tied": "shared"/
        s/max_positions/farthest/g; s/tie_word_embeddings/one_table/g; s/vocab_size/num_words/g; s/lm_head/answer/g; s/model.embed_tokens/words/g'
    sed "$edit" models/qwen3.json > "$dir/model/surogate_ir.json"
    sed -i "$edit" "$dir/model/config.json"
    python3 -c "import json, struct, sys
path = sys.argv[1]
file = open(path, 'rb').read()
end = 8 + struct.unpack('<Q', file[:8])[0]
head = file[8:end].replace(b'model.embed_tokens', b'words').replace(b'lm_head', b'answer')
open(path, 'wb').write(file[:8] + head.ljust(end - 8) + file[end:])" "$dir/model/model.safetensors"
}

for tied in true false renamed; do
    head=lm_head key=tie_word_embeddings
    make_tiny max_position_embeddings=128 tie_word_embeddings="${tied/renamed/true}"
    if [ $tied = renamed ]; then
        command -v python3 > /dev/null || { skip "renamed: python3 isn't installed" && continue; }
        rename_all
        head=answer key=one_table
    fi
    cp examples/chat_template.jinja "$dir/model/"
    head -c 600 "$dir/text.txt" > "$dir/short.txt"
    printf '%s\n' "model: $dir/model" "datasets: [{path: $dir/rows.jsonl}]" "sequence_len: 64" "model_dtype: fp32" "lora: true" "lora_rank: 4" \
        "lora_target_modules: [$head]" "learning_rate: 0.05" "max_steps: 6" "save_steps: 2" "save_total_limit: 0" \
        "merge_adapter: true" > "$dir/run.yaml"
    run sft "$dir/run.yaml" output_dir="$dir/whole"
    check "tied $tied: sft: $(tail -3 "$dir/err")" [ "$status" = 0 ]
    mkdir "$dir/again"
    cp -r "$dir/whole/checkpoint-4" "$dir/from"
    run sft "$dir/run.yaml" output_dir="$dir/again" resume_from_checkpoint="$dir/from"
    check "tied $tied: resumed, to the same adapter" cmp "$dir/whole/adapter_model.safetensors" "$dir/again/adapter_model.safetensors"
    run merge "$dir/model" "$dir/whole" "$dir/merged"
    check "tied $tied: merge: $(tail -3 "$dir/err")" [ "$status" = 0 ]
    check "tied $tied: the run's merged model is the same" cmp "$dir/merged/model.safetensors" "$dir/whole/merged/model.safetensors"
    check "tied $tied: its head is its own" grep -q "\"$key\": false" "$dir/merged/config.json"
    run eval "$dir/model" --text "$dir/short.txt" --json
    cp "$dir/out" "$dir/base"
    run eval "$dir/model" --adapter "$dir/whole" --text "$dir/short.txt" --json
    cp "$dir/out" "$dir/adapted"
    run eval "$dir/merged" --text "$dir/short.txt" --json
    check "tied $tied: merged and adapted give the same loss, another than the base's" \
        awk -v a="$(value "$dir/adapted")" -v m="$(value "$dir/out")" -v b="$(value "$dir/base")" \
        'BEGIN { d = a - m; e = a - b; exit !(d * d < 1e-10 && e * e > 1e-4) }'
    run generate "$dir/model" --adapter "$dir/whole" --prompt "line" --max-tokens 20 --temperature 0 --ignore-eos
    check "tied $tied: generate --adapter: $(tail -3 "$dir/err")" [ "$status" = 0 -a -s "$dir/out" ]
    cp "$dir/out" "$dir/text1"
    run generate "$dir/merged" --prompt "line" --max-tokens 20 --temperature 0 --ignore-eos
    check "tied $tied: the merged model writes the same" cmp "$dir/text1" "$dir/out"
    run sft "$dir/run.yaml" output_dir="$dir/both" max_steps=1 lora_target_modules=all-linear,$head
    check "tied $tied: all-linear beside it is written as names" [ "$(grep -c "\"$head\"\|\"q_proj\"\|all-linear" "$dir/both/adapter_config.json")" = 2 ]
    rm -rf "$dir/both" "$dir/model" "$dir/tokenizer" "$dir/whole" "$dir/again" "$dir/from" "$dir/merged"
done
finish
