#!/bin/bash
# Embedding and head trained whole beside LoRA, over a plain and a quantised base: interrupted and resumed, merged, exported, used for
# generation. What such an adapter can't do is refused by name.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
seq 1 40 | awk '{ print "{\"instruction\": \"line " $1 "\", \"output\": \"says " ($1 * 7 % 10) " and goes on\"}" }' > "$dir/rows.jsonl"

# value FILE: the mean loss that `eval --json` printed.
value() { sed 's/.*"mean"://; s/}//' "$1"; }

# train NAME KEY=VALUE...: trains into $dir/NAME.
train() {
    local name=$1
    shift
    run sft "$dir/run.yaml" output_dir="$dir/$name" "$@"
    check "$name: sft: $(tail -3 "$dir/err")" [ "$status" = 0 ]
}

# cases TIED MODULES TIE DTYPE QLORA
while read -r tied modules tie dtype qlora; do
    what="tied $tied, $modules, tying $tie, $dtype over $qlora"
    make_tiny max_position_embeddings=128 tie_word_embeddings="$tied"
    cp examples/chat_template.jinja "$dir/model/"
    head -c 600 "$dir/text.txt" > "$dir/short.txt"
    printf '%s\n' "model: $dir/model" "datasets: [{path: $dir/rows.jsonl}]" "sequence_len: 64" "model_dtype: $dtype" "adapter: lora" \
        "lora_rank: 4" "lora_modules_to_save: [$modules]" "lora_ensure_weight_tying: $tie" "qlora: $qlora" "learning_rate: 0.01" \
        "max_steps: 6" "save_steps: 2" "save_total_limit: 0" "merge_adapter: true" > "$dir/run.yaml"
    train whole
    cp -r "$dir/whole/checkpoint-4" "$dir/from"
    train again resume_from_checkpoint="$dir/from"
    check "$what: resumed, to the same adapter" cmp "$dir/whole/adapter_model.safetensors" "$dir/again/adapter_model.safetensors"
    train without lora_modules_to_save=[] lora_ensure_weight_tying=false
    check "$what: the file holds more than pairs" [ "$(stat -c %s "$dir/whole/adapter_model.safetensors")" -gt \
        $(($(stat -c %s "$dir/without/adapter_model.safetensors") + 4000)) ]
    run merge "$dir/model" "$dir/whole" "$dir/merged"
    check "$what: merge: $(tail -3 "$dir/err")" [ "$status" = 0 ]
    check "$what: the run's merged model is the same" cmp "$dir/merged/model.safetensors" "$dir/whole/merged/model.safetensors"
    untied=$([ "$tied $tie" = "true true" ] && echo true || echo false)
    check "$what: whether its head is its own" grep -q "\"tie_word_embeddings\": $untied" "$dir/merged/config.json"
    run eval "$dir/model" --text "$dir/short.txt" --json
    cp "$dir/out" "$dir/base"
    run eval "$dir/model" --adapter "$dir/whole" --text "$dir/short.txt" --json
    cp "$dir/out" "$dir/adapted"
    run eval "$dir/merged" --text "$dir/short.txt" --json
    check "$what: merged and adapted give the same loss, another than the base's" \
        awk -v a="$(value "$dir/adapted")" -v m="$(value "$dir/out")" -v b="$(value "$dir/base")" \
        'BEGIN { d = a - m; e = a - b; exit !(d * d < 1e-6 && e * e > 1e-4) }'
    if [ "$dtype" = fp32 ]; then
        run generate "$dir/model" --adapter "$dir/whole" --prompt "line" --max-tokens 20 --temperature 0 --ignore-eos
        check "$what: generate --adapter: $(tail -3 "$dir/err")" [ "$status" = 0 -a -s "$dir/out" ]
        cp "$dir/out" "$dir/text1"
        run generate "$dir/merged" --prompt "line" --max-tokens 20 --temperature 0 --ignore-eos
        check "$what: the merged model writes the same" cmp "$dir/text1" "$dir/out"
    fi
    rm -rf "$dir/model" "$dir/tokenizer" "$dir/again" "$dir/from" "$dir/merged" "$dir/without" "$dir/kept"
    mv "$dir/whole" "$dir/kept"
done << 'END'
false embed_tokens,lm_head false fp32 none
false lm_head,norm false bf16 nf4
true embed_tokens false fp32 none
true lm_head false fp32 none
true embed_tokens,lm_head true bf16 none
END

# --- only rows of tokens
for tied in true false; do
    what="rows of tokens, tied $tied"
    make_tiny max_position_embeddings=128 tie_word_embeddings=$tied
    cp examples/chat_template.jinja "$dir/model/"
    modules=$([ $tied = true ] || echo embed_tokens,lm_head)
    printf '%s\n' "model: $dir/model" "datasets: [{path: $dir/rows.jsonl}]" "sequence_len: 64" "model_dtype: fp32" "lora: true" \
        "lora_rank: 4" "trainable_token_indices: [20, 5, 33]" "trainable_token_modules: [$modules]" "learning_rate: 0.05" "max_steps: 6" \
        "save_steps: 2" "save_total_limit: 0" "merge_adapter: true" > "$dir/run.yaml"
    train tokens
    cp -r "$dir/tokens/checkpoint-4" "$dir/from"
    train again resume_from_checkpoint="$dir/from"
    check "$what: resumed, to the same adapter" cmp "$dir/tokens/adapter_model.safetensors" "$dir/again/adapter_model.safetensors"
    train further adapter="$dir/tokens" max_steps=2
    check "$what: gone on from: $(grep trainable "$dir/further/adapter_config.json")" [ "$(grep trainable "$dir/further/adapter_config.json")" = \
        "$(grep trainable "$dir/tokens/adapter_config.json")" ]
    run eval "$dir/model" --adapter "$dir/tokens" --text "$dir/short.txt" --json
    check "$what: eval: $(tail -2 "$dir/err")" [ "$status" = 0 ]
    cp "$dir/out" "$dir/adapted"
    run eval "$dir/tokens/merged" --text "$dir/short.txt" --json
    check "$what: merged and adapted give the same loss" \
        awk -v a="$(value "$dir/adapted")" -v m="$(value "$dir/out")" 'BEGIN { d = a - m; exit !(d * d < 1e-10) }'
    if [ $tied = true ]; then
        train both "trainable_token_modules=[embed_tokens, lm_head]"
        check "$what: named twice, the same weights" cmp "$dir/tokens/adapter_model.safetensors" "$dir/both/adapter_model.safetensors"
        train both-further adapter="$dir/both" max_steps=2
        check "$what: named twice, gone on from" \
            cmp "$dir/further/adapter_model.safetensors" "$dir/both-further/adapter_model.safetensors"
        run eval "$dir/model" --adapter "$dir/both" --text "$dir/short.txt" --json
        check "$what: named twice, eval" [ "$(value "$dir/adapted")" = "$(value "$dir/out")" ]
        rm -r "$dir/both" "$dir/both-further"
        refused "$what: the head's name alone" 2 '"lm_head" is the embedding in this model; name that, with the same ids: model.embed_tokens' -- \
            sft "$dir/run.yaml" output_dir="$dir/no" trainable_token_modules=lm_head
    fi
    train parts lora_modules_to_save=embed_tokens trainable_token_modules=lm_head trainable_token_indices=7 max_steps=2
    run eval "$dir/model" --adapter "$dir/parts" --text "$dir/short.txt" --json
    cp "$dir/out" "$dir/adapted"
    run eval "$dir/parts/merged" --text "$dir/short.txt" --json
    check "$what: the embedding whole and rows of the head, merged and adapted" \
        awk -v a="$(value "$dir/adapted")" -v m="$(value "$dir/out")" 'BEGIN { d = a - m; exit !(d * d < 1e-10) }'
    rm -r "$dir/parts"
    refused "$what: an id that the model lacks" 2 "trainable_token_indices: 300; " -- \
        sft "$dir/run.yaml" output_dir="$dir/no" trainable_token_indices=300
    refused "$what: rows of what is trained whole" 2 "is trained whole (lora_modules_to_save)" -- \
        sft "$dir/run.yaml" output_dir="$dir/no" lora_modules_to_save=embed_tokens
    [ $tied = false ] || refused "$what: and the head whole" 2 "of a model in which both are one matrix" -- \
        sft "$dir/run.yaml" output_dir="$dir/no" lora_modules_to_save=lm_head
    refused "$what: twice" 2 "trainable_token_indices: 4 stands there twice" -- sft "$dir/run.yaml" output_dir="$dir/no" trainable_token_indices=4,4
    refused "$what: rows can't choose them" 2 "rows of tokens (trainable_token_indices), which rows can't choose" -- \
        generate "$dir/model" --prompts "$dir/rows.jsonl" --adapter "s=$dir/tokens" --out "$dir/x"
    refused "$what: a GGUF adapter can't say them" 2 "a GGUF adapter can't say that; export the merged model" -- \
        export "$dir/model" --to gguf --type f32 --adapter "$dir/tokens" --adapter-only --out "$dir/no.gguf"
    rm -rf "$dir/model" "$dir/tokenizer" "$dir/again" "$dir/from" "$dir/tokens" "$dir/further"
done

make_tiny max_position_embeddings=128
cp examples/chat_template.jinja "$dir/model/"
refused "rows can't choose such an adapter" 2 "trained whole (modules_to_save), which rows can't choose" -- \
    generate "$dir/model" --prompts "$dir/rows.jsonl" --adapter "s=$dir/kept" --out "$dir/x"
refused "a GGUF adapter can't say it" 2 "a GGUF adapter can't say that; export the merged model" -- \
    export "$dir/model" --to gguf --type f32 --adapter "$dir/kept" --adapter-only --out "$dir/no.gguf"
sed -i '/trainable_token/d' "$dir/run.yaml"
refused "no such module" 2 "lora_modules_to_save: \"wte\" is no embedding, head or norm of this model; it has embed_tokens, lm_head" -- \
    sft "$dir/run.yaml" output_dir="$dir/no" lora_modules_to_save=wte
refused "a linear layer" 2 "lora_modules_to_save: \"model.layers.0.mlp.up_proj.weight\" is" "expected embeddings, heads or norms" -- \
    sft "$dir/run.yaml" output_dir="$dir/no" lora_modules_to_save=up_proj
refused "adapted and trained whole" 2 "is trained whole (lora_modules_to_save), and lora_target_modules names it" -- \
    sft "$dir/run.yaml" output_dir="$dir/no" lora_modules_to_save=lm_head lora_target_modules=lm_head
finish
