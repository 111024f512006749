#!/bin/bash
# Columns and keys of datasets as public tools write them: none of them is silently left out, and all spellings give the same.
cd "$(dirname "$0")/../.." || exit 1
. tests/chat.sh
make_chat
python=$(command -v python3 || true)

if [ -n "$python" ]; then
    "$python" tests/oracle/dataset_columns.py "$SUROGATE" > "$dir/columns" 2>&1
    status=$?
    if [ "$status" = 0 ]; then pass; else fail "columns: $(tail -n 20 "$dir/columns")"; fi
fi

# the log of a run says it, and that of one whose rows are in the cache
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
check "a file has no split of another name" grep -q 'a file has no split "test"' "$dir/err"
finish
