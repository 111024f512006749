#!/bin/bash
# Tokens that the tokenizer lacks: it gets them, embedding and head grow, the run trains them and goes on after an interruption; with LoRA
# they are trained whole. tests/oracle/check_new_tokens.py compares with transformers and PEFT.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
export HF_HOME=$dir/cache
seq 1 40 | awk '{ print "{\"instruction\": \"line " $1 "\", \"output\": \"<|think|>says " ($1 * 7 % 10) "<tool>\"}" }' > "$dir/rows.jsonl"

# go NAME KEY=VALUE...: trains into $dir/NAME.
go() {
    local name=$1
    shift
    run sft "$dir/run.yaml" output_dir="$dir/$name" "$@"
    check "$name: sft: $(tail -3 "$dir/err")" [ "$status" = 0 ]
}
# ids FOLDER TEXT
ids() { printf %s "$2" | "$SUROGATE" encode "$1" --text - 2> "$dir/err"; }
rows() { sed -n 's/^ *"vocab_size": *\([0-9]*\).*/\1/p' "$1/config.json"; }

make_tiny max_position_embeddings=128
old=$(($(grep -oE '": *[0-9]+' "$dir/tokenizer/tokenizer.json" | grep -oE '[0-9]+' | sort -n | tail -1) + 1))
cp -r "$dir/model" "$dir/roomy"
rm -r "$dir/model"
"$SUROGATE" new --arch qwen3-tiny --random --tokenizer "$dir/tokenizer" "$dir/model" hidden_size=32 intermediate_size=48 head_dim=8 \
    max_position_embeddings=128 vocab_size="$old" 2> "$dir/err" || fail "new: $(cat "$dir/err")"
cp examples/chat_template.jinja "$dir/model/"
cp examples/chat_template.jinja "$dir/roomy/"
printf '%s\n' "model: $dir/model" "datasets: [{path: $dir/rows.jsonl}]" "sequence_len: 64" "model_dtype: fp32" "learning_rate: 0.01" \
    "max_steps: 4" "save_steps: 2" "save_total_limit: 0" "new_tokens: [<tool>]" "new_special_tokens: ['<|think|>']" > "$dir/run.yaml"
go whole
check "it says what grew: $(grep "new tokens" "$dir/err")" grep -q "2 new tokens; $old rows of embedding and head become $((old + 2))" "$dir/err"
check "config.json says so" [ "$(rows "$dir/whole")" = $((old + 2)) ]
check "the base stays as it was" [ "$(rows "$dir/model")" = "$old" ]
check "one id each: $(ids "$dir/whole" '<|think|><tool>')" [ "$(ids "$dir/whole" '<|think|><tool>' | grep -oE '[0-9]+' | tail -2 | tr '\n' ' ')" = "$old $((old + 1)) " ]
cp -r "$dir/whole/checkpoint-2" "$dir/from"
go again resume_from_checkpoint="$dir/from"
check "the model is made once" [ "$(grep -c "new tokens" "$dir/err")" = 0 ]
check "resumed, to the same weights" cmp "$dir/whole/model.safetensors" "$dir/again/model.safetensors"
refused "other tokens are another run" 2 "new_tokens" -- sft "$dir/run.yaml" output_dir="$dir/again" new_tokens='<other>'
run plan "$dir/run.yaml" device=cpu
check "plan: $(tail -2 "$dir/err")" [ "$status" = 0 ]
run generate "$dir/whole" --prompt "line" --max-tokens 5 --temperature 0
check "generate: $(tail -2 "$dir/err")" [ "$status" = 0 ]

# --- rows
go padded pad_vocab_multiple=64
check "rows are a multiple" [ $(($(rows "$dir/padded") % 64)) = 0 -a "$(rows "$dir/padded")" -gt "$old" ]
go known new_tokens=[] new_special_tokens='<|endoftext|>'
check "what is there already is left alone: $(grep "new tokens" "$dir/err")" [ "$(rows "$dir/known")" = "$old" -a "$(grep -c "new tokens" "$dir/err")" = 0 ]
go taken model="$dir/roomy"
check "rows that are there are taken: $(grep "new tokens" "$dir/err")" [ "$(rows "$dir/taken")" = 300 -a "$(grep -c "embedding has rows" "$dir/err")" = 1 ]
go scratch from_scratch=true
check "from scratch" [ "$(rows "$dir/scratch")" = $((old + 2)) ]

# --- adapters
refused "rows that LoRA leaves frozen" 2 "set lora_modules_to_save: [embed_tokens, lm_head]" -- sft "$dir/run.yaml" output_dir="$dir/no" lora=true
go adapter lora=true lora_rank=4 lora_modules_to_save=embed_tokens,lm_head merge_adapter=true qlora=nf4
run eval "$dir/adapter" --text "$dir/rows.jsonl" --json
check "an adapter finds its base: $(tail -2 "$dir/err")" [ "$status" = 0 ]
check "merged, it has all rows" [ "$(rows "$dir/adapter/merged")" = $((old + 2)) ]

go rows lora=true lora_rank=4 trainable_token_indices="$old,$((old + 1))"
check "an adapter with rows of the new tokens" grep -q "\"trainable_token_indices\": \[$old, $((old + 1))\]" "$dir/rows/adapter_config.json"

refused "rows of other tokens" 2 "are of other tokens than this run trains" -- \
    sft "$dir/run.yaml" output_dir="$dir/rows" lora=true lora_rank=4 trainable_token_indices="$((old + 1)),$old" resume_from_checkpoint=true \
    max_steps=99
refused "an adapter whose tokens have other ids" 2 "name new_tokens in its order" -- \
    sft "$dir/run.yaml" output_dir="$dir/no" adapter="$dir/rows" new_tokens='<other>,<tool>,<think>' new_special_tokens=[]
go plain lora=true lora_rank=4 new_tokens=[] new_special_tokens='<|endoftext|>'
check "a token that is there is no new one: $(tail -2 "$dir/err")" [ -e "$dir/plain/adapter_config.json" ]

# --- what isn't done
refused "an empty token" 2 "new_tokens, new_special_tokens: a token has no text" -- sft "$dir/run.yaml" output_dir="$dir/no" "new_tokens=[\"\"]"
refused "another folder's tokenizer" 2 "expected the model's own" -- sft "$dir/run.yaml" output_dir="$dir/no" tokenizer="$dir/tokenizer"
finish
