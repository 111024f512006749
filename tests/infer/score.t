#!/bin/bash
# surogate score: ln p of every token, equal to those of `eval` and `generate`; independent of other rows; bad rows are named with their
# place.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
python=$(command -v python3 || true)
[ -n "$python" ] || { skip "python3 isn't here"; finish; }
make_text_run "max_steps: 8" "learning_rate: 1e-3" "per_device_train_batch_size: 4" "lora: true" "lora_rank: 4" "generate_samples: 0"
run pt "$dir/run.yaml" output_dir="$dir/full" lora=false
run pt "$dir/run.yaml" output_dir="$dir/adapter" model="$dir/full"
check "an adapter: $(tail -1 "$dir/err")" [ "$status" = 0 ]
model=$dir/full

cat > "$dir/look.py" << 'END_PYTHON'
import json, math, sys

read = lambda path: [json.loads(line) for line in open(path)]

def eval(scores, found):
    """One row has the numbers that eval found for its text, and their sum."""
    (row,), found = read(scores), json.load(open(found))
    assert row["ids"] == found["ids"] and row["logprobs"][0] is None, row
    assert [-x for x in row["logprobs"][1:]] == found["losses"]
    assert row["tokens"] == len(found["losses"]) and "prompt_tokens" not in row
    assert abs(row["sum"] + found["mean"] * row["tokens"]) < 1e-6 * abs(row["sum"])

def candidates(out, prompt, vocab):
    """A row for each token that may come after the prompt."""
    ids = read(prompt)[0]["ids"]
    with open(out, "w") as f:
        for token in range(int(vocab)): print(json.dumps({"ids": ids + [token]}), file=f)

def generated(scores, encoder):
    """Their probabilities sum up to 1, and the likeliest is the token that generate chose."""
    last = [row["logprobs"][-1] for row in read(scores)]
    assert abs(sum(map(math.exp, last)) - 1) < 1e-5, sum(map(math.exp, last))
    assert last.index(max(last)) == read(encoder)[0]["ids"][len(read(scores)[0]["ids"]) - 1]

def top(scores, plain, every):
    """With all tokens as the likeliest ones: their probabilities sum up to 1, and the row's own token has its number. Fewer: the first of these."""
    for row, without, first in zip(read(scores), read(plain), read(every), strict=True):
        assert row["ids"] == without["ids"] and row["logprobs"] == without["logprobs"]
        assert row["top_ids"][0] is None and row["top_logprobs"][0] is None and len(row["top_ids"]) == len(row["ids"])
        for id, p, ids, logprobs, all_ids in list(zip(row["ids"], row["logprobs"], row["top_ids"], row["top_logprobs"], first["top_ids"], strict=True))[1:]:
            assert logprobs == sorted(logprobs, reverse=True) and len(set(ids)) == len(ids) and all_ids[: len(ids)] == ids
            if len(ids) < len(all_ids): continue
            assert abs(sum(map(math.exp, logprobs)) - 1) < 1e-4 and abs(logprobs[ids.index(id)] - p) < 1e-5, (id, p)

def parts(scores, whole):
    """Of a prompt and its completion the completion's numbers are summed; all are those of the ids alone."""
    row, of_ids = read(scores)[0], read(whole)[0]
    assert row["logprobs"] == of_ids["logprobs"] and row["ids"] == of_ids["ids"]
    assert 0 < row["prompt_tokens"] and row["tokens"] == len(row["ids"]) - row["prompt_tokens"]
    assert abs(row["sum"] - sum(row["logprobs"][row["prompt_tokens"]:])) < 1e-5
    assert of_ids["tokens"] == len(of_ids["ids"]) - 1

def trained(scores):
    """Sums are those of trained tokens; labels and prompt_tokens are kept."""
    plain, prompt, labels, mask, none, all = read(scores)
    p = plain["logprobs"]
    assert "labels" not in plain and "prompt_tokens" not in plain and plain["tokens"] == 3
    assert prompt["prompt_tokens"] == 2 and prompt["tokens"] == 2 and abs(prompt["sum"] - p[2] - p[3]) < 1e-5
    assert labels["labels"] == [-100, 6, -100, 8] and labels["tokens"] == 2 and abs(labels["sum"] - p[1] - p[3]) < 1e-5
    assert mask == labels and none["labels"] == [-100] * 4 and none["tokens"] == 0 == none["sum"] and all["tokens"] == 0

globals()[sys.argv[1]](*sys.argv[2:])
END_PYTHON
look() {
    local name=$1
    shift
    if $python "$dir/look.py" "$@" 2> "$dir/err"; then pass; else fail "$name: $(tail -1 "$dir/err")"; fi
}
# rows LINE...: writes them into $dir/rows.jsonl
rows() { printf '%s\n' "$@" > "$dir/rows.jsonl"; }
score() {
    local out=$1
    shift
    run score "$@"
    check "score $*: $(cat "$dir/err")" [ "$status" = 0 ]
    mv "$dir/out" "$dir/$out"
}

# --- equal to eval, also with adapters and quantised bases
head -c 150 "$dir/text.txt" > "$dir/few.txt"
$python -c 'import json, sys; print(json.dumps({"text": open(sys.argv[1]).read()}))' "$dir/few.txt" > "$dir/few.jsonl"
for flags in "" "--adapter $dir/adapter" "--adapter $dir/adapter --qlora nf4" "--quantization int8" "--quantization fp8"; do
    # shellcheck disable=SC2086
    score few.out "$model" "$dir/few.jsonl" --json $flags
    # shellcheck disable=SC2086
    run eval "$model" --text "$dir/few.txt" --json $flags
    look "eval $flags" eval "$dir/few.out" "$dir/out"
    cat "$dir/few.out" >> "$dir/all.out"
done
check "an adapter changes them, and so do formats" test "$(sort -u "$dir/all.out" | wc -l)" = 5
score by_itself.out "$dir/adapter" "$dir/few.jsonl" --json
check "an adapter's folder alone" cmp "$dir/by_itself.out" <(score again.out "$model" "$dir/few.jsonl" --json --adapter "$dir/adapter"; cat "$dir/again.out")

# --- equal to generate
rows '{"text": "line 12 says"}'
score prompt.out "$model" "$dir/rows.jsonl" --json
$python "$dir/look.py" candidates "$dir/candidates.jsonl" "$dir/prompt.out" 300
score candidates.out "$model" "$dir/candidates.jsonl" --json
run generate "$model" --prompt "line 12 says" --max-tokens 4 --temperature 0
$python -c 'import json, sys; print(json.dumps({"text": "line 12 says" + open(sys.argv[1]).read().rstrip("\n")}))' "$dir/out" > "$dir/rows.jsonl"
score continued.out "$model" "$dir/rows.jsonl" --json
look "generate" generated "$dir/candidates.out" "$dir/continued.out"

# --- keys and values in FP8
run generate "$model" --prompt "line 12 says" --max-tokens 20 --temperature 0 --kv fp8
check "generate --kv fp8: $(cat "$dir/err")" [ "$status" = 0 ]
mv "$dir/out" "$dir/fp8"
printf '{"prompt": "%s"}\n' "line 3" "line 12 says" "line 9" > "$dir/kv.jsonl"
run generate "$model" --prompts "$dir/kv.jsonl" --out "$dir/kv.out" --max-tokens 20 --temperature 0 --kv fp8
check "a text is the same beside others" $python -c 'import json, sys; sys.exit(json.loads(open(sys.argv[1]).readlines()[1])["text"] != open(sys.argv[2]).read().rstrip("\n"))' "$dir/kv.out" "$dir/fp8"
refused "another file of texts" 2 "kv was \"fp8\" and is not given" -- generate "$model" --prompts "$dir/kv.jsonl" --out "$dir/kv.out" --max-tokens 20 --temperature 0
refused "another word of --kv" 2 "kv int8: expected fp8, or auto for the model's dtype" -- generate "$model" --prompt a --kv int8
refused "a CPU" 2 "split_k: sums are made in parts on GPUs of compute capability 9.0" -- generate "$model" --prompt a --split-k --device cpu
run inspect "$model" --gpu h200 --kv fp8
check "inspect for a GPU: $(cat "$dir/err")" [ "$status" = 0 ]
run inspect "$model" --context 32
cp "$dir/out" "$dir/inspected"
run inspect "$model" --context 32 --kv fp8
check "inspect: it takes a quarter of fp32" $python -c '
import re, sys
unit = dict(KiB=1, MiB=1024, GiB=1024 ** 2)
a, b = (float(n) * unit[u] for n, u in (re.search(r"KV cache ([0-9.]+) (.iB)", open(path).read()).groups() for path in sys.argv[1:]))
sys.exit(abs(a / b - 4) > 0.01)' "$dir/inspected" "$dir/out"

# --- a prompt and its completion
rows '{"prompt": "line 3", "completion": " says 757", "id": 7}'
score parts.out "$model" "$dir/rows.jsonl" --json
sed -E 's/^(\{"ids":\[[^]]*\]).*/\1}/' "$dir/parts.out" > "$dir/ids.jsonl"
score ids.out "$model" "$dir/ids.jsonl" --json
look "prompt and completion" parts "$dir/parts.out" "$dir/ids.out"

# --- ids with marks of trained tokens, as in data sets; the output can be read again and gives the same
rows '{"ids": [5, 6, 7, 8]}' '{"ids": [5, 6, 7, 8], "prompt_tokens": 2}' '{"ids": [5, 6, 7, 8], "labels": [-100, 6, -100, 8]}' \
    '{"ids": [5, 6, 7, 8], "mask": [0, 1, 0, 1]}' '{"ids": [5, 6, 7, 8], "completion_mask": [1, 1, 1, 1], "assistant_masks": [0, 0, 0, 0]}' \
    '{"ids": [5, 6], "prompt_tokens": 2}'
score given.out "$model" "$dir/rows.jsonl" --json
look "what is trained" trained "$dir/given.out"
score again.out "$model" "$dir/given.out" --json
check "what is trained, again" cmp "$dir/given.out" "$dir/again.out"

# --- a row's numbers don't depend on other rows: alone, among others, in another order
awk '{ n = 1 + NR * 37 % 29; text = ""; for (i = 0; i < n; i++) text = text " " (NR * 31 + i * i) % 997; print "{\"text\": \"line" text "\"}" }' \
    <(seq 150) > "$dir/many.jsonl"
for flags in "" "--recipe fp8-hybrid"; do
    # shellcheck disable=SC2086
    score many.out "$model" "$dir/many.jsonl" --json $flags
    for line in 1 2 77 150; do
        sed -n ${line}p "$dir/many.jsonl" > "$dir/rows.jsonl"
        # shellcheck disable=SC2086
        score one.out "$model" "$dir/rows.jsonl" --json $flags
        check "row $line alone $flags" cmp "$dir/one.out" <(sed -n ${line}p "$dir/many.out")
    done
done
score many.out "$model" "$dir/many.jsonl" --json
tac "$dir/many.jsonl" > "$dir/rows.jsonl"
score turned.out "$model" "$dir/rows.jsonl" --json --threads 1
check "in another order" cmp <(tac "$dir/turned.out") "$dir/many.out"
"$SUROGATE" score "$model" - --json < "$dir/many.jsonl" > "$dir/piped.out" 2> "$dir/err"
check "from standard input: $(cat "$dir/err")" cmp "$dir/piped.out" "$dir/many.out"

# --- a model with fewer positions than the shortest program
"$SUROGATE" new --arch qwen3-tiny --random --tokenizer "$dir/tokenizer" "$dir/small" hidden_size=32 intermediate_size=48 vocab_size=300 head_dim=8 \
    max_position_embeddings=2 2> /dev/null
seq 700 | awk '{ print "{\"ids\": [" $1 % 300 ", " $1 * 7 % 300 "]}" }' > "$dir/rows.jsonl"
score small.out "$dir/small" "$dir/rows.jsonl" --json
check "each row" [ "$(grep -c '"tokens":1,' "$dir/small.out")" = 700 ]
check "the same row" [ "$(sed -n 5p "$dir/small.out")" = "$(sed -n 605p "$dir/small.out")" ]

# --- a table; the shortest rows; empty lines
rows '' '{"ids": [3]}' '  ' '{"ids": [3, 4]}'
score table.out "$model" "$dir/rows.jsonl"
check "lines of the table" [ "$(awk '{ print $1, $2 }' "$dir/table.out" | tail -n +2 | tr '\n' ,)" = "2 0,4 1,all 1," ]
score short.out "$model" "$dir/rows.jsonl" --json
check "one token" [ "$(head -1 "$dir/short.out")" = '{"ids":[3],"logprobs":[null],"tokens":0,"sum":0}' ]

# --- conversations: the ids and labels that training makes, and the numbers of these
cp -r "$model" "$dir/talks"
printf '{%% for m in messages %%}<{{ m.role }}>{{ m.content }}{%% endfor %%}' > "$dir/talks/chat_template.jinja"
printf '{"role": "%s", "content": "%s"}, {"role": "%s", "content": "%s"}' user "line 3" assistant " says 757" > "$dir/talk"
rows "{\"messages\": [$(cat "$dir/talk")]}"
score talk.out "$dir/talks" "$dir/rows.jsonl" --json
"$SUROGATE" inspect "$dir/rows.jsonl" --model "$dir/talks" --json > "$dir/inspected"
$python -c 'import json, sys; row = json.load(open(sys.argv[1])); print(json.dumps({"ids": row["ids"], "mask": row["mask"]}))' "$dir/inspected" > "$dir/rows.jsonl"
score masked.out "$dir/talks" "$dir/rows.jsonl" --json
check "a conversation has the numbers of its ids and mask" cmp "$dir/talk.out" "$dir/masked.out"
rows "{\"messages\": [$(cat "$dir/talk")]}"
refused "a model without a template" 2 "rows.jsonl:1" "has no chat template (chat_template.jinja)" -- score "$model" "$dir/rows.jsonl"

# --- bad rows
bad() {
    local says=$1
    shift
    rows '{"text": "a"}' "$@"
    refused "$*" 2 "rows.jsonl:2" "$says" -- score "$model" "$dir/rows.jsonl"
}
bad "none of the fields that are scored; expected {\"text\": ...}" '{"txt": 1}'
bad "none of the fields that are scored" '[1, 2]'
bad "none of the fields that are scored" '{"completion": "b"}'
bad "says several things" '{"text": "a", "ids": [1]}'
bad "says several things" '{"text": "a", "messages": []}'
bad "text is integer; expected a text" '{"text": 1}'
bad "ids[1] is no token id; expected a whole number from 0 to 299" '{"ids": [1, 300]}'
bad "ids[0] is no token id" '{"ids": [1.5]}'
bad "ids has no token; expected at least one" '{"ids": []}'
bad "prompt_tokens\": expected how many of the 2 ids" '{"ids": [1, 2], "prompt_tokens": 3}'
bad "labels[1] is 3, the id there 2; expected that id, or -100" '{"ids": [1, 2], "labels": [1, 3]}'
bad "field \"mask\": item 1 is no 1, for a token that is trained, nor 0" '{"ids": [1, 2], "mask": [1, 2]}'
bad "field \"completion_mask\": expected a list of 2 numbers" '{"ids": [1, 2], "completion_mask": [1]}'
bad "the text has no token" '{"text": ""}'
bad "the completion has no token" '{"prompt": "a", "completion": ""}'
bad ":2:16: " '{"text": "open"'
bad "the row has 129 tokens; expected at most 128" "{\"ids\": [$(seq -s, 129)]}"
rows '{"ids": [1, 2, 3]}'
refused "--context" 2 "rows.jsonl:1: the row has 3 tokens; expected at most 2" -- score "$model" "$dir/rows.jsonl" --context 2
refused "a long --context" 2 "made for 128 positions" -- score "$model" "$dir/rows.jsonl" --context 129
rows ''
refused "no rows" 2 "rows.jsonl has no rows" -- score "$model" "$dir/rows.jsonl"
refused "no file" 2 "usage: surogate score MODEL_DIR FILE.jsonl" -- score "$model"

# The likeliest tokens at each position.
printf '%s\n' '{"ids": [5, 6, 7, 8]}' '{"prompt": "line 1", "completion": " says so"}' '{"ids": [9]}' '{"text": "line 7 says 433 and stops."}' > "$dir/some.jsonl"
vocab=$("$python" -c 'import json, sys; print(json.load(open(sys.argv[1]))["vocab_size"])' "$model/config.json")
run score "$model" "$dir/some.jsonl" --json
cp "$dir/out" "$dir/plain.out"
for top in 1 8 "$vocab"; do
    run score "$model" "$dir/some.jsonl" --logprobs "$top" --out "$dir/top$top"
    check "--logprobs $top: exit $status, $(tail -1 "$dir/err")" [ "$status" = 0 ]
    check "--out prints nothing" [ ! -s "$dir/out" ]
done
for top in 1 8 "$vocab"; do check "--logprobs $top" "$python" "$dir/look.py" top "$dir/top$top" "$dir/plain.out" "$dir/top$vocab"; done
refused "--out in no folder" 2 "cannot create $dir/none/out" -- score "$model" "$dir/some.jsonl" --dtype bf16 --out "$dir/none/out"
check "which is said before the model is loaded: $(cat "$dir/err")" [ "$(grep -c "rounded to" "$dir/err")" = 0 ]
refused "--logprobs alone" 2 "--logprobs needs --json or --out" -- score "$model" "$dir/some.jsonl" --logprobs 3
refused "more than there are" 2 "likeliest tokens; expected 0 to $vocab" -- score "$model" "$dir/some.jsonl" --json --logprobs $((vocab + 1))
refused "less than none" 2 "--logprobs -1" -- score "$model" "$dir/some.jsonl" --json --logprobs -1
finish
