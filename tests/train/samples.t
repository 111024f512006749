#!/bin/bash
# Samples during training: without a prompt they continue held-out rows, and they stop where the served model stops.
cd "$(dirname "$0")/../.." || exit 1
. tests/chat.sh
make_tiny max_position_embeddings=128
mv "$dir/model" "$dir/text-model"
mv "$dir/tokenizer" "$dir/text-tokenizer"
make_chat
cat > "$dir/run.yaml" << END
sequence_len: 64
per_device_train_batch_size: 4
gradient_accumulation_steps: 1
learning_rate: 5e-3
model_dtype: fp32
validation_split_ratio: 0.1
generate_samples: 3
sample_max_tokens: 40
sample_temperature: 0
END
# of NAME OUTPUT: the field NAME of the log's samples, one per line.
of() { grep '"log":"sample"' "$2/metrics.jsonl" | sed -E "s/.*\"$1\":\"(([^\"\\]|\\\\.)*)\".*/\1/"; }
all_are() { [ -s "$2" ] && ! grep -vqE -e "$1" "$2"; }

# --- a text model without BOS: EOS is no start, because nothing follows EOS in training
run pt "$dir/run.yaml" model="$dir/text-model" datasets.0.path="$dir/text.txt" output_dir="$dir/text" max_steps=60
check "a text: $(tail -1 "$dir/err")" [ "$status" = 0 ]
of prompt "$dir/text" > "$dir/prompts"
check "three prompts: $(cat "$dir/prompts")" [ "$(sort -u "$dir/prompts" | wc -l)" = 3 ]
text=$(cat "$dir/text.txt")
in_text() { [[ $text == *"$1"* ]]; }
while read -r prompt; do
    check "\"$prompt\" is in the text" in_text "$(printf "%b" "$prompt")"
done < "$dir/prompts"
of text "$dir/text" > "$dir/texts"
check "what is written could stand there: $(cat "$dir/texts")" all_are '^([a-z0-9 .]|\\n)+$' "$dir/texts"
run pt "$dir/run.yaml" model="$dir/text-model" datasets.0.path="$dir/text.txt" output_dir="$dir/given" max_steps=1 'sample_prompts=["", "line 1"]'
check "an empty prompt is none: $(of prompt "$dir/given")" [ "$(of prompt "$dir/given")" = "$(head -1 "$dir/prompts"; echo "line 1"; tail -1 "$dir/prompts")" ]
refused "generate has no held-out rows" 2 "the prompt is empty and the tokenizer adds no BOS: give a --prompt" -- generate "$dir/text" --prompt ""

# --- conversations: questions of held-out rows; turns end with a token that isn't the tokenizer's EOS
sed -i 's/<|im_end|>/<|endoftext|>/' "$dir/model/tokenizer_config.json"
sed -i 's/"eos_token_id": [0-9]*/"eos_token_id": 0/' "$dir/model/config.json" "$dir/model/generation_config.json"
run sft "$dir/run.yaml" model="$dir/model" datasets.0.path="$dir/chats.jsonl" output_dir="$dir/chat" max_steps=150
check "conversations: $(tail -1 "$dir/err")" [ "$status" = 0 ]
of prompt "$dir/chat" > "$dir/prompts"
check "up to the first answer: $(cat "$dir/prompts")" all_are '^<\|im_start\|>user\\nWhat is [0-9]+ plus [0-9]\?<\|im_end\|>\\n<\|im_start\|>assistant\\n$' "$dir/prompts"
of text "$dir/chat" > "$dir/texts"
check "answers: $(cat "$dir/texts")" all_are '^It is [0-9]+\.$' "$dir/texts"
grep Sure "$dir/chats.jsonl" > "$dir/longer.jsonl"
run sft "$dir/run.yaml" model="$dir/model" datasets.0.path="$dir/longer.jsonl" output_dir="$dir/all" max_steps=150 train_on=all 'sample_prompts=["What is 3 plus 1?"]'
of text "$dir/all" > "$dir/texts"
check "a turn's end is an end where the model knows how to go on: $(cat "$dir/texts")" all_are '^It is [0-9]+\.$' "$dir/texts"
run pt "$dir/run.yaml" model="$dir/model" datasets.0.path="$dir/longer.jsonl" output_dir="$dir/pt" max_steps=150 train_on=all 'sample_prompts=["What is 3 plus 1?"]'
check "turns, not the verb, make a prompt a question: $(of text "$dir/pt")" [ "$(of text "$dir/pt")" = "$(cat "$dir/texts")" ]
finish
