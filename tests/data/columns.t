#!/bin/bash
# Columns and keys of datasets as public tools write them: none is ignored silently, and all spellings give the same.
cd "$(dirname "$0")/../.." || exit 1
. tests/chat.sh
make_chat
python=$(command -v python3 || true)

if [ -n "$python" ]; then
    "$python" tests/oracle/dataset_columns.py "$SUROGATE" > "$dir/columns" 2>&1
    status=$?
    if [ "$status" = 0 ]; then pass; else fail "columns: $(tail -n 20 "$dir/columns")"; fi
fi

# a run's log names an unread column, also when the rows come from the cache
sed 's/^{/{"id": 5, "source": "here", /' "$dir/chats.jsonl" > "$dir/named.jsonl"
cat > "$dir/run.yaml" << END
model: $dir/model
output_dir: $dir/run
sequence_len: 128
datasets:
  - path: $dir/named.jsonl
    split: test[:50%]
END
for when in made cached; do
    run tokenize "$dir/run.yaml"
    check "fields that aren't used are named: $when" grep -q "named.jsonl: fields of its rows that nothing is made of: id, source$" "$dir/err"
done
check "half of the rows are taken" grep -q "150 documents" "$dir/err"
check "a file has no split of another name" grep -q 'named.jsonl: no split "test": the path is one file' "$dir/err"

# keys for rows of another type are named, even if the type was detected from the rows, and only once
seq 1 40 | sed 's/.*/{"text": "row &"}/' > "$dir/texts.jsonl"
idle() { # TEXT expected, keys of the data set
    printf 'model: %s\noutput_dir: %s\nsequence_len: 128\ndatasets:\n  - path: %s\n' "$dir/model" "$dir/idle" "$1" > "$dir/idle.yaml"
    printf '    %s\n' "${@:3}" >> "$dir/idle.yaml"
    run tokenize "$dir/idle.yaml"
    check "$2" test "$(grep -c 'no effect' "$dir/err")" = 1
    check "$2" grep -q "$2" "$dir/err"
}
idle "$dir/texts.jsonl" 'no effect on its rows, which are of type text: system_prompt, prompt_format$' 'system_prompt: You are' \
    'prompt_format: "{instruction}{output}"' 'train_on: all'
idle "$dir/texts.jsonl" 'no effect on its rows, which are of type text' 'message_property_mappings: {role: from}'
idle "$dir/texts.jsonl" 'no effect on its rows, which are of type text: train_on$' 'type: text' 'train_on: assistant'
idle "$dir/chats.jsonl" 'no effect on its rows, which are of type conversation: prompt_format$' 'prompt_format: "{instruction}{output}"' \
    'system_prompt: You are'
idle "$dir/texts.jsonl" 'system_prompt: no effect without' 'type: text' 'system_prompt: You are'
finish
