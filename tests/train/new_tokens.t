#!/bin/bash
# Tokens that the tokenizer lacks are added; embedding and head grow; the run trains them and resumes after an interruption; with LoRA they
# are trained whole. tests/oracle/check_new_tokens.py compares with transformers and PEFT.
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
# ids FOLDER TEXT: the text's ids
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
refused "another order under a checkpoint that is named" 2 "new_tokens" "id $old is the token <|think|> in $dir/from and <tool> in this run" -- \
    sft "$dir/run.yaml" output_dir="$dir/other" resume_from_checkpoint="$dir/from" new_special_tokens='<tool>' new_tokens='<|think|>'
run plan "$dir/run.yaml" device=cpu
check "plan: $(tail -2 "$dir/err")" [ "$status" = 0 ]
cp "$dir/out" "$dir/plan"
HF_HOME=$dir/none run plan "$dir/run.yaml" device=cpu
check "a plan makes no copy: $(ls -d "$dir/none" 2> /dev/null)" [ "$status" = 0 -a ! -e "$dir/none" ]
check "and is that of the model with the tokens: $(diff "$dir/plan" "$dir/out")" cmp -s "$dir/plan" "$dir/out"
sed "s|^model:.*|model: $dir/whole|; /^new_/d" "$dir/run.yaml" > "$dir/grown.yaml"
run plan "$dir/grown.yaml" device=cpu
check "the same as the plan of a model that has them: $(diff "$dir/plan" "$dir/out" | head -4)" cmp -s "$dir/plan" "$dir/out"
HF_HOME=$dir/none run inspect "$dir/rows.jsonl" --model "$dir/model" --json --rows 1 "new_tokens=[<tool>]" "new_special_tokens=['<|think|>']"
check "inspect makes no copy: $(tail -1 "$dir/err")" [ "$status" = 0 -a ! -e "$dir/none" ]
check "and has the tokens: $(cat "$dir/out")" grep -qE ",$old,.*,$((old + 1))," "$dir/out"
HF_HOME=$dir/none run tokenize "$dir/run.yaml" output_dir="$dir/tokens"
check "tokenize makes no copy: $(tail -1 "$dir/err")" [ "$status" = 0 -a ! -e "$dir/none" ]
run sft "$dir/run.yaml" output_dir="$dir/tokens" max_steps=1
check "and a run takes its shards: $(cat "$dir/err")" grep -q "tokens (cached)" "$dir/err"
for verb in explain ir bench; do
    HF_HOME=$dir/none run $verb "$dir/run.yaml" device=cpu
    check "$verb makes no copy: $(tail -1 "$dir/err")" [ "$status" = 0 -a ! -e "$dir/none" ]
done
mkdir "$dir/small"
cp "$dir/model"/*.json "$dir/model"/*.jinja "$dir/small/"
head -c 4000 "$dir/model/model.safetensors" > "$dir/small/model.safetensors"
HF_HOME=$dir/none refused "a plan reads what is there of weights" 2 "safetensors" -- plan "$dir/run.yaml" model="$dir/small" device=cpu
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

# told LINE: what the last run, and a plan with its settings, report about rows that aren't trained.
told() {
    check "$name: $(grep "stay as they begin" "$dir/err")" grep -qF "warning: rows of new tokens stay as they begin, the mean of the old rows; $1" "$dir/err"
    run plan "$dir/run.yaml" device=cpu "${keys[@]}"
    check "$name: plan: $(cat "$dir/err")" grep -qF "warning: rows of new tokens stay as they begin, the mean of the old rows; $1" "$dir/err"
}
# frozen NAME LINE KEY=VALUE...: trains with LoRA and expects LINE.
frozen() {
    local name=$1 line=$2 keys=(lora=true lora_rank=4 "${@:3}")
    rm -rf "$dir/frozen"
    go frozen "${keys[@]}"
    told "$line"
}
cp -r "$dir/model" "$dir/untied"
rm -r "$dir/untied"
"$SUROGATE" new --arch llama-tiny --random --tokenizer "$dir/tokenizer" "$dir/untied" hidden_size=32 intermediate_size=48 \
    max_position_embeddings=128 vocab_size="$old" tie_word_embeddings=false 2> "$dir/err" || fail "new: $(cat "$dir/err")"
cp examples/chat_template.jinja "$dir/untied/"
frozen "an id that is left out" "$((old + 1)) (<tool>) in model.embed_tokens: add the ids to trainable_token_indices to train them" trainable_token_indices="$old"
frozen "the head of an untied model" "$old (<|think|>), $((old + 1)) (<tool>) in lm_head: name lm_head in trainable_token_modules to train them" \
    model="$dir/untied" trainable_token_indices="$old,$((old + 1))"
frozen "an id, and the head" "$((old + 1)) (<tool>) in model.embed_tokens: add the ids to trainable_token_indices to train them; $old (<|think|>), $((old + 1)) (<tool>) in lm_head" \
    model="$dir/untied" trainable_token_indices="$old"
frozen "the head beside a whole embedding" "$old (<|think|>), $((old + 1)) (<tool>) in lm_head: name lm_head in lora_modules_to_save to train them" \
    model="$dir/untied" lora_modules_to_save=embed_tokens
frozen "the head that was the embedding" "$old (<|think|>), $((old + 1)) (<tool>) in lm_head: name lm_head in lora_modules_to_save to train them" lora_modules_to_save=embed_tokens
for keys in lora_modules_to_save=embed_tokens,lm_head "lora_modules_to_save=embed_tokens lora_ensure_weight_tying=true" \
    trainable_token_indices="$old,$((old + 1))" "model=$dir/untied trainable_token_indices=$old,$((old + 1)) trainable_token_modules=embed_tokens,lm_head" \
    "model=$dir/untied lora_modules_to_save=embed_tokens lora_target_modules=q_proj,lm_head"; do
    read -ra words <<< "$keys"
    run plan "$dir/run.yaml" device=cpu lora=true lora_rank=4 "${words[@]}"
    check "$keys: all are trained: $(cat "$dir/err")" [ "$status" = 0 -a "$(grep -c "stay as they begin" "$dir/err")" = 0 ]
done

go rows lora=true lora_rank=4 trainable_token_indices="$old,$((old + 1))"
check "an adapter with rows of the new tokens" grep -q "\"trainable_token_indices\": \[$old, $((old + 1))\]" "$dir/rows/adapter_config.json"

refused "rows of other tokens" 2 "are of other tokens than this run trains" -- \
    sft "$dir/run.yaml" output_dir="$dir/rows" lora=true lora_rank=4 trainable_token_indices="$((old + 1)),$old" resume_from_checkpoint=true \
    max_steps=99
refused "rows of new tokens over the base without them: plan" 2 "trainable_token_indices has $old, and model.embed_tokens of the base has rows 0 to $((old - 1)): name the tokens under new_tokens" -- \
    plan "$dir/run.yaml" device=cpu adapter="$dir/rows" new_tokens=[] new_special_tokens=[]
refused "an adapter whose tokens have other ids" 2 "name new_tokens in its order" -- \
    sft "$dir/run.yaml" output_dir="$dir/no" adapter="$dir/rows" new_tokens='<other>,<tool>,<think>' new_special_tokens=[]
for command in "plan $dir/run.yaml device=cpu" "sft $dir/run.yaml output_dir=$dir/no"; do
    read -ra words <<< "$command"
    refused "${words[0]}: rows of new tokens over the base without them" 2 "has shape [$((old + 2)),32], the model has [$old,32]" \
        "name them under new_tokens as the run did that trained it" -- "${words[@]}" adapter="$dir/adapter" new_tokens=[] new_special_tokens=[]
done
run plan "$dir/run.yaml" device=cpu adapter="$dir/adapter"
check "with them it is planned: $(tail -2 "$dir/err")" [ "$status" = 0 ]
go plain lora=true lora_rank=4 new_tokens=[] new_special_tokens='<|endoftext|>'
check "a token that is there is no new one: $(tail -2 "$dir/err")" [ -e "$dir/plain/adapter_config.json" ]

# --- an emptied cache
rm -rf "$dir/cache"
refused "the base of an adapter is gone" 2 "/grown--" "It was a copy of a model with new tokens" "Start that run again" -- generate "$dir/adapter" --prompt "line" --max-tokens 2
go adapter lora=true lora_rank=4 lora_modules_to_save=embed_tokens,lm_head merge_adapter=true qlora=nf4
check "the finished run makes it again, and says where: $(cat "$dir/err")" [ "$(grep -c "written into $dir/cache/hub/grown--" "$dir/err")" = 1 ]
run generate "$dir/adapter" --prompt "line" --max-tokens 2
check "and the adapter finds it: $(tail -1 "$dir/err")" [ "$status" = 0 ]

# --- a model of a GGUF file
run export "$dir/untied" --to gguf --type f32 --out "$dir/untied.gguf"
check "export: $(tail -1 "$dir/err")" [ "$status" = 0 ]
for command in "plan $dir/run.yaml device=cpu model=$dir/untied.gguf" "inspect $dir/rows.jsonl --model $dir/untied.gguf --rows 1 --json"; do
    read -ra words <<< "$command"
    HF_HOME=$dir/other run "${words[@]}"
    check "${words[0]} unpacks the file, and says where: $(tail -2 "$dir/err")" [ "$status" = 0 -a "$(grep -c "$dir/other/hub/gguf--" "$dir/err")" = 1 ]
    rm -rf "$dir/other"
done
run import "$dir/untied.gguf" "$dir/unpacked"
go gguf model="$dir/untied.gguf" chat_template=chatml
check "it gets the same ids: $(ids "$dir/gguf" '<|think|><tool>')" [ "$(ids "$dir/gguf" '<|think|><tool>' | grep -oE '[0-9]+' | tail -2 | tr '\n' ' ')" = "$old $((old + 1)) " ]
go unpacked model="$dir/unpacked" output_dir="$dir/of-folder" chat_template=chatml
check "as an imported folder does" [ "$(rows "$dir/of-folder")" = $((old + 2)) ]
rm -rf "$dir/cache"
refused "an unpacked file is gone" 2 "/gguf--" "It was a GGUF file" -- generate "$dir/cache/hub/gguf--0123456789abcdef--untied.gguf" --prompt "line"

# --- refused cases
refused "an empty token" 2 "new_tokens, new_special_tokens: a token has no text" -- sft "$dir/run.yaml" output_dir="$dir/no" "new_tokens=[\"\"]"
refused "another folder's tokenizer" 2 "expected the model's own" -- sft "$dir/run.yaml" output_dir="$dir/no" tokenizer="$dir/tokenizer"
finish
