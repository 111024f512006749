#!/bin/bash
# surogate generate with a file of prompts: the samples and their order; resuming with the same bits after kills and failed writes; other
# settings, bad lines; --messages, --logprobs, biases and penalties.
cd "$(dirname "$0")/../.." || exit 1
. tests/chat.sh
kills_wanted=${KILLS:-20}
RANDOM=7
python=$(command -v python3 || true)
[ -n "$python" ] || { skip "python3 isn't here"; finish; }
make_chat
model=$dir/model
awk 'BEGIN { for (i = 0; i < 60; i++) {
    if (i % 7 == 3) print ""
    else if (i % 5 == 1) print "{\"messages\": [{\"role\": \"user\", \"content\": \"What is " i " plus 1?\"}], \"id\": " i "}"
    else print "{\"prompt\": \"It is " i "\", \"id\": \"row " i "\"}" } }' > "$dir/prompts.jsonl"
flags=(--prompts "$dir/prompts.jsonl" --n 3 --max-tokens 12 --logprobs 2 --seed 5 --rows 4)

cat > "$dir/look.py" << 'END_PYTHON'
import json, sys

read = lambda path: [json.loads(line) for line in open(path)]

def whole(out, prompts, num):
    """A line for each row and sample, in order, with what belongs to it."""
    lines = open(prompts).read().split("\n")
    want = [(i, k, json.loads(line)["id"]) for i, line in enumerate(lines) if line for k in range(int(num))]
    rows = read(out)
    assert [(row["index"], row["sample"], row["id"]) for row in rows] == want
    for row in rows:
        assert row["stop_reason"] in ("eos", "length") and len(row["ids"]) == len(row["logprobs"]) <= 12
        assert [one["id"] for one in row["logprobs"]] == row["ids"] and isinstance(row["text"], str)
        for one in row["logprobs"]:
            top = [best["logprob"] for best in one["top"]]
            assert len(top) == 2 and top[0] >= top[1] and one["logprob"] <= top[0] + 1e-6 <= 1e-6
    assert len({tuple(row["ids"]) for row in rows}) > len(rows) // 2

def bad(out, where):
    """Bad rows say why, the others are there."""
    rows = read(out)
    assert [(row["index"], row.get("sample")) for row in rows] == [(0, 0), (0, 1), (1, None), (2, 0), (2, 1), (3, None)]
    assert rows[2]["error"].startswith(where + ":2") and rows[5]["error"].startswith(where + ":4") and rows[5]["id"] == 9
    assert "id" not in rows[2]

def few(whole, out, long):
    """Row `long` is whole, the others are cut after three tokens."""
    for row, cut in zip(read(whole), read(out), strict=True):
        most = 12 if row["index"] == int(long) else 3
        assert cut["ids"] == row["ids"][:most] and cut["stop_reason"] == (row["stop_reason"] if len(row["ids"]) < most else "length")

def without(out, id):
    assert not any(int(id) in row["ids"] for row in read(out))

def only(out, id):
    assert all(set(row["ids"]) == {int(id)} for row in read(out))

globals()[sys.argv[1]](*sys.argv[2:])
END_PYTHON
look() {
    local name=$1
    shift
    if $python "$dir/look.py" "$@" 2> "$dir/err"; then pass; else fail "$name: $(tail -1 "$dir/err")"; fi
}

# --- a whole run
run generate "$model" "${flags[@]}" --out "$dir/whole/out.jsonl"
whole=$dir/whole/out.jsonl
check "it ends well: $(cat "$dir/err")" [ "$status" = 0 -a ! -s "$dir/out" ]
check "it is told: $(cat "$dir/err")" grep -qE 'out.jsonl: [0-9]+ lines of [0-9]+ prompts, [0-9]+ tokens' "$dir/err"
look "the lines" whole "$whole" "$dir/prompts.jsonl" 3
check "nothing else is left" [ "$(ls "$dir/whole")" = "$(printf 'out.jsonl\nout.jsonl.settings.json')" ]
run generate "$model" "${flags[@]}" --out "$dir/one.jsonl" --threads 1
check "threads change nothing" cmp "$whole" "$dir/one.jsonl"
cp "$whole" "$dir/copy.jsonl"
run generate "$model" "${flags[@]}" --out "$whole"
check "complete already: $(cat "$dir/err")" grep -qF "out.jsonl is complete already" "$dir/err"
check "and nothing changes" cmp "$whole" "$dir/copy.jsonl"
run generate "$model" --prompts - --n 3 --max-tokens 12 --logprobs 2 --seed 5 --rows 4 --out "$whole" < "$dir/prompts.jsonl"
check "the same prompts from standard input: $(cat "$dir/err")" grep -qF "complete already" "$dir/err"

export TERM=xterm
unset COLUMNS NO_COLOR
"$python" tests/terminal.py 80 "$dir/raw" "$SUROGATE" generate "$model" "${flags[@]}" --n 40 --out "$dir/shown.jsonl" > "$dir/screen"
check "progress on a terminal: $(cat "$dir/screen")" grep -qaE $'\r\033\\[K[0-9]+/2040 lines  [0-9]+ at once  [0-9]+ tok/s' "$dir/raw"
check "it leaves one line" [ "$(grep -c . "$dir/screen")" = 1 ]

# --- a sample depends only on its row and number
head -30 "$dir/prompts.jsonl" > "$dir/fewer.jsonl"
run generate "$model" --prompts "$dir/fewer.jsonl" --n 2 --max-tokens 12 --logprobs 2 --seed 5 --rows 4 --out "$dir/fewer.out"
check "of fewer rows and samples" cmp "$dir/fewer.out" <(grep -v '"sample":2,' "$whole" | grep -E '^\{"index":[12]?[0-9],')
run generate "$model" "${flags[@]}" --out "$dir/seed.jsonl" --seed 6
check "another seed, other texts" [ "$status" = 0 -a "$(cmp -s "$whole" "$dir/seed.jsonl"; echo $?)" = 1 ]

# --- killed anywhere
longer=(--prompts "$dir/prompts.jsonl" --n 4 --max-tokens 60 --ignore-eos --rows 4)
start=$EPOCHREALTIME
run generate "$model" "${longer[@]}" --out "$dir/long.jsonl"
milliseconds=$(awk "BEGIN { print int(1000 * ($EPOCHREALTIME - $start)) }")
run generate "$model" "${longer[@]}" --out "$dir/preempted.jsonl" --pages 4
check "texts are preempted: $(cat "$dir/err")" grep -qE '^[0-9]+ times a text was preempted for want of pages' "$dir/err"
check "and are the same" cmp "$dir/long.jsonl" "$dir/preempted.jsonl"
kills=0
torn=0
failed_before=$num_failed
while [ "$kills" -lt "$kills_wanted" ] && [ "$num_failed" = "$failed_before" ]; do
    rm -f "$dir"/killed.jsonl*
    while :; do
        "$SUROGATE" generate "$model" "${longer[@]}" --out "$dir/killed.jsonl" > /dev/null 2> "$dir/err" &
        pid=$!
        if [ "$kills" -lt "$kills_wanted" ]; then
            sleep "$(awk "BEGIN { printf \"%.4f\", $RANDOM / 32768 * $milliseconds * 0.4 / 1000 }")"
            kill -9 $pid 2> /dev/null && kills=$((kills + 1))
        fi
        wait $pid 2> /dev/null
        status=$?
        [ "$status" = 137 ] || break
        [ ! -e "$dir/killed.jsonl" ] || cmp -s "$dir/long.jsonl" "$dir/killed.jsonl" || fail "it has its name before it is complete"
        # A kill within a write leaves half a line.
        [ $((kills % 3)) = 0 ] && [ -s "$dir/killed.jsonl.part" ] && printf '{"index":5,"sam' >> "$dir/killed.jsonl.part" && torn=$((torn + 1))
    done
    check "after $kills kills, exit $status: $(tail -1 "$dir/err")" cmp "$dir/long.jsonl" "$dir/killed.jsonl"
done
check "kills were sent, and some tore a line: $kills, $torn" [ "$kills" -ge "$kills_wanted" -a "$torn" -gt 0 ]

# --- interrupted
"$SUROGATE" generate "$model" "${longer[@]}" --out "$dir/stopped.jsonl" > /dev/null 2> "$dir/err" &
pid=$!
for _ in $(seq 500); do
    [ -s "$dir/stopped.jsonl.part" ] && break
    sleep 0.01
done
kill -TERM $pid
status=0
wait $pid || status=$?
check "SIGTERM, exit $status: $(cat "$dir/err")" [ "$status" = 75 ]
check "it says how to go on: $(cat "$dir/err")" grep -qE '^interrupted after [0-9]+ of [0-9]+ lines; the same command goes on from .*stopped.jsonl.part$' "$dir/err"
run generate "$model" "${longer[@]}" --out "$dir/stopped.jsonl"
check "it goes on: $(cat "$dir/err")" grep -qE 'stopped.jsonl.part: goes on after [1-9][0-9]* of [0-9]+ lines' "$dir/err"
check "and ends as without" cmp "$dir/long.jsonl" "$dir/stopped.jsonl"

# --- the file was changed: lines from the change on are made again
head -c 3000 "$whole" | sed '3s/"sample":2/"sample":4/' > "$dir/odd.jsonl.part"
cp "$whole.settings.json" "$dir/odd.jsonl.settings.json"
run generate "$model" "${flags[@]}" --out "$dir/odd.jsonl"
check "a line that isn't in its place: $(cat "$dir/err")" grep -qF "goes on after 2 of" "$dir/err"
check "a line that isn't in its place, made again" cmp "$whole" "$dir/odd.jsonl"

# --- writes that fail
if cc -shared -fPIC -D_GNU_SOURCE -o "$dir/fail_io.so" tests/train/fail_io.c -ldl 2> /dev/null; then
    mkdir "$dir/failing"
    failing() { FAIL_UNDER=$dir/failing FAIL_CALLS="write fsync open rename ftruncate" LD_PRELOAD=$dir/fail_io.so run generate "$model" "${flags[@]}" --out "$dir/failing/out"; }
    FAIL_COUNT=$dir/count failing
    read -r count _ < "$dir/count"
    check "calls are made: $count" [ "$count" -gt 5 ]
    for as in EIO ENOSPC short; do
        for at in 1 2 3 4 5 $((count / 2)) $((count - 2)) $((count - 1)) "$count"; do
            rm -f "$dir"/failing/*
            FAIL_AT=$at FAIL_AS=$as failing
            [ "$status" = 0 ] || check "$as at $at of $count is said: $(cat "$dir/err")" grep -q "^error: .*$dir/failing" "$dir/err"
            run generate "$model" "${flags[@]}" --out "$dir/failing/out"
            check "after $as at $at of $count: $(cat "$dir/err")" cmp "$whole" "$dir/failing/out"
        done
    done
else
    skip "no compiler for fail_io.c"
fi

# --- other settings, other prompts
for other in "--seed 6|seed was 5 and is 6" "--n 2|n was 3 and is 2" "--top-k 3|top_k was 0 and is 3" "--temperature 0.5|temperature was 0.8 and is 0.5" \
    "--stop x|stop was [] and is [\"x\"]" "--ban 3|logit_bias was [] and is [[3, null]]" "--prompts $dir/fewer.jsonl|prompts_hash was"; do
    # shellcheck disable=SC2086
    refused "${other%|*}" 2 "${other#*|}" "$whole was made with other settings" "another --out" -- generate "$model" "${flags[@]}" --out "$whole" ${other%|*}
done
check "it is as it was" cmp "$whole" "$dir/copy.jsonl"
head -5 "$whole" > "$dir/part.jsonl.part"
cp "$whole.settings.json" "$dir/part.jsonl.settings.json"
refused "of what was begun" 2 "part.jsonl.part was begun with other settings: seed was 5 and is 6" "same settings to go on" -- \
    generate "$model" "${flags[@]}" --out "$dir/part.jsonl" --seed 6
"$SUROGATE" new --arch qwen3-tiny --random --seed 3 --tokenizer "$dir/tokenizer" "$dir/other" hidden_size=32 intermediate_size=48 \
    vocab_size=320 head_dim=8 max_position_embeddings=256 2> /dev/null
cp "$dir/tokenizer/chat_template.jinja" "$dir/other/"
refused "another model" 2 "model_hash was" -- generate "$dir/other" "${flags[@]}" --out "$whole"
for seed in 1 2; do
    "$SUROGATE" sft model="$model" datasets.0.path="$dir/chats.jsonl" sequence_len=128 max_steps=2 lora=true lora_rank=2 seed=$seed device=cpu \
        output_dir="$dir/adapter$seed" 2> /dev/null
done
run generate "$model" "${flags[@]}" --adapter "$dir/adapter1" --out "$dir/adapter.jsonl"
check "with an adapter, exit $status: $(cat "$dir/err")" [ "$status" = 0 ]
refused "another adapter" 2 "adapter_hash was \"" -- generate "$model" "${flags[@]}" --adapter "$dir/adapter2" --out "$dir/adapter.jsonl"
refused "no adapter" 2 "adapter_hash was \"" "and is not given" -- generate "$model" "${flags[@]}" --out "$dir/adapter.jsonl"
cp -r "$dir/adapter1" "$dir/moved"
run generate "$model" "${flags[@]}" --adapter "$dir/moved" --out "$dir/adapter.jsonl"
check "a copy of it: $(cat "$dir/err")" grep -qF "complete already" "$dir/err"

# --- rows with adapters of their own
awk '/./ { sub(/^\{/, NR % 3 == 1 ? "{\"adapter\": \"one\", " : NR % 3 == 2 ? "{\"adapter\": null, " : "{\"adapter\": \"two\", ") } { print }' \
    "$dir/prompts.jsonl" > "$dir/mixed.jsonl"
both=(--adapter "one=$dir/adapter1" --adapter "two=$dir/adapter2")
run generate "$model" "${flags[@]}" --adapter "$dir/adapter2" --out "$dir/adapter2.jsonl"
run generate "$model" "${flags[@]}" --prompts "$dir/mixed.jsonl" "${both[@]}" --rows 7 --pages 9 --out "$dir/mixed.out"
check "rows choose, exit $status: $(cat "$dir/err")" [ "$status" = 0 ]
for k in 0 1 2; do
    set -- "$dir/adapter.jsonl" "$whole" "$dir/adapter2.jsonl"
    shift $k
    awk -v k=$k 'match($0, /[0-9]+/) && substr($0, RSTART, RLENGTH) % 3 == k' "$1"
done | sort -t: -s -k2n > "$dir/chosen.jsonl"
check "each as with its adapter alone" cmp "$dir/chosen.jsonl" "$dir/mixed.out"
check "adapters change texts" [ "$(cmp -s "$whole" "$dir/chosen.jsonl"; echo $?)" = 1 ]
refused "other adapters" 2 "adapters was [\"one\"" -- generate "$model" "${flags[@]}" --prompts "$dir/mixed.jsonl" --adapter "one=$dir/adapter2" \
    --adapter "two=$dir/adapter2" --rows 7 --out "$dir/mixed.out"
refused "an unknown adapter" 2 "mixed.jsonl:3: there is no adapter two; expected one of one" -- generate "$model" "${flags[@]}" --prompts "$dir/mixed.jsonl" \
    --adapter "one=$dir/adapter1" --out "$dir/x"
refused "no adapter by name" 2 "mixed.jsonl:1: there is no adapter one: none was given by name (--adapter NAME=DIR)" -- \
    generate "$model" "${flags[@]}" --prompts "$dir/mixed.jsonl" --adapter "$dir/adapter1" --out "$dir/x"
echo '{"prompt": "a", "adapter": 3}' > "$dir/number.jsonl"
refused "a name that is none" 2 "number.jsonl:1: adapter is integer; expected a name, or null" -- generate "$model" --prompts "$dir/number.jsonl" "${both[@]}" \
    --out "$dir/x"
refused "several without names" 2 "several adapters need names" -- generate "$model" "${flags[@]}" --adapter "$dir/adapter1" --adapter "$dir/adapter2" --out "$dir/x"
refused "a name for one prompt" 2 "give the folder alone for one text" -- generate "$model" --prompt a --adapter "one=$dir/adapter1"
refused "a folder that isn't there" 2 "adapter one: nowhere: there is no such folder" -- generate "$model" "${flags[@]}" --adapter one=nowhere --out "$dir/x"
cp -r "$dir/adapter1" "$dir/equals=sign"
(cd "$dir" && "$SUROGATE" generate model "${flags[@]}" --adapter equals=sign --out equals.jsonl) 2> "$dir/err"
check "a folder whose name has an equals sign: $(cat "$dir/err")" cmp "$dir/adapter.jsonl" "$dir/equals.jsonl"
cp -r "$dir/adapter1" "$dir/saved"
sed -i '/modules_to_save/d; 1s/{/{"modules_to_save": ["lm_head"],/' "$dir/saved/adapter_config.json"
refused "weights of its own" 2 "adapter s: " 'modules_to_save: there is no tensor of lm_head' -- generate "$model" "${flags[@]}" --adapter "s=$dir/saved" --out "$dir/x"
cp "$whole" "$dir/foreign.jsonl"
refused "a file of someone else" 2 "foreign.jsonl is there already" "choose another --out" -- generate "$model" "${flags[@]}" --out "$dir/foreign.jsonl"
refused "no name" 2 "the name of the file to write is empty" -- generate "$model" "${flags[@]}" --out ""
refused "a folder" 2 "is a folder; expected the name of a file" -- generate "$model" "${flags[@]}" --out "$dir"

# --- rows with their own max_tokens get the beginnings of the same texts
sed 's/^{/{"max_tokens": 3, /; 5s/: 3,/: 12,/' "$dir/prompts.jsonl" > "$dir/few.jsonl"
run generate "$model" "${flags[@]}" --prompts "$dir/few.jsonl" --max-tokens 1 --out "$dir/few.out"
check "$(tail -1 "$dir/err")" [ "$status" = 0 ]
look "max_tokens of a row" few "$whole" "$dir/few.out" 4

# --- memory doesn't grow with the number of prompts, except by the size of the file itself
peak() { # N prompts; prints the peak memory in KiB
    seq 0 $(($1 - 1)) | awk '{ print "{\"ids\": [" $1 % 50 + 1 ", 7], \"max_tokens\": " 1 + $1 % 5 "}" }' > "$dir/many.jsonl"
    "$SUROGATE" generate "$model" --prompts "$dir/many.jsonl" --ignore-eos --device cpu --out "$dir/many$1.out" > /dev/null 2>&1 &
    local pid=$! most=0 now
    while now=$(awk '/VmHWM/ { print $2 }' /proc/$pid/status 2> /dev/null) && [ -n "$now" ]; do
        most=$now
        sleep 0.02
    done
    wait $pid
    echo "$most"
}
few=$(for _ in 1 2 3; do peak 1000; done | sort -n | tail -1) many=$(peak 10000) # a busy machine may miss the peak of a short run
check "all of 10,000 prompts" [ "$(wc -l < "$dir/many10000.out")" = 10000 ]
check "10,000 prompts take $many KiB, 1,000 take $few" [ "$few" -gt 0 -a "$many" -lt $((few + 2048)) ]

# --- a folder without a tokenizer takes ids
mkdir "$dir/bare"
cp "$model/config.json" "$model"/model*.safetensors "$dir/bare"
printf '%s\n' '{"ids": [1, 2, 3]}' '{"ids": [4], "max_tokens": 2}' > "$dir/ids.jsonl"
run generate "$dir/bare" --prompts "$dir/ids.jsonl" --max-tokens 3 --ignore-eos --out "$dir/bare.out"
check "without a tokenizer: $(tail -1 "$dir/err")" [ "$status" = 0 -a "$(grep -c '"text":null' "$dir/bare.out")" = 2 ]
run generate "$dir/bare" --prompts "$dir/ids.jsonl" --max-tokens 3 --ignore-eos --out "$dir/bare.out"
check "it is complete" grep -qF "is complete already" "$dir/err"

# --- two sets of rotary factors: the longest text decides for all, and the output says so
printf '%s\n' '{"ids": [4, 5], "max_tokens": 2}' '{"ids": [4, 5], "max_tokens": 20}' > "$dir/factors.jsonl"
for lines in 1 2; do
    head -$lines "$dir/factors.jsonl" > "$dir/factors$lines.jsonl"
    run generate tests/fixtures/families/phi3_long --prompts "$dir/factors$lines.jsonl" --ignore-eos --device cpu --out "$dir/factors$lines.out"
    check "factors of $lines lines: $(cat "$dir/err")" \
        [ "$(grep -c "all texts have the long factors of longrope, as the longest may have 22 tokens, and the original context is 6" "$dir/err")" = $((lines - 1)) ]
done

# --- bad lines
printf '%s\n' '{"prompt": "It"}' '{"promt": "is"}' '{"prompt": "is"}' "{\"id\": 9, \"prompt\": \"$(seq -s' ' 300)\"}" > "$dir/bad.jsonl"
refused "a bad line" 2 "bad.jsonl:2: the row has none of prompt, messages and ids; expected {\"prompt\": TEXT}" -- generate "$model" --prompts "$dir/bad.jsonl" --out "$dir/bad.out"
check "nothing was begun" [ ! -e "$dir/bad.out.part" ]
run generate "$model" --prompts "$dir/bad.jsonl" --out "$dir/bad.out" --n 2 --max-tokens 3 --skip-bad
check "--skip-bad, exit $status: $(cat "$dir/err")" grep -qF "2 of these lines have an error in place of a text" "$dir/err"
look "--skip-bad" bad "$dir/bad.out" "$dir/bad.jsonl"
sed -i 2d "$dir/bad.jsonl"
refused "a long prompt" 2 "bad.jsonl:3: the prompt has " "the model was made for 256; shorten it, or leave it out" -- generate "$model" --prompts "$dir/bad.jsonl" --out "$dir/bad2.out"
echo > "$dir/empty.jsonl"
refused "no rows" 2 "empty.jsonl has no rows" -- generate "$model" --prompts "$dir/empty.jsonl" --out "$dir/empty.out"
refused "no prompts file" 2 "none.jsonl" "No such file" -- generate "$model" --prompts "$dir/none.jsonl" --out "$dir/empty.out"

# --- questions, and conversations
echo '{"prompt": "What is 3 plus 1?"}' > "$dir/question.jsonl"
echo '[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 3 plus 1?"}]' > "$dir/messages.json"
echo "{\"messages\": $(cat "$dir/messages.json")}" | tee "$dir/object.json" > "$dir/messages.jsonl"
greedy=(--temperature 0 --max-tokens 8)
run generate "$model" --chat --system "Be brief." --prompt "What is 3 plus 1?" "${greedy[@]}" --json
cp "$dir/out" "$dir/asked"
for file in messages.json object.json; do
    run generate "$model" --messages "$dir/$file" "${greedy[@]}" --json
    check "--messages $file: $(cat "$dir/err")" cmp "$dir/asked" "$dir/out"
done
run generate "$model" --prompts "$dir/question.jsonl" --chat --system "Be brief." "${greedy[@]}" --out "$dir/question.out"
run generate "$model" --prompts "$dir/messages.jsonl" "${greedy[@]}" --out "$dir/messages.out"
check "--chat of a file" cmp "$dir/question.out" "$dir/messages.out"
texts() { $python -c 'import json, sys; print([json.loads(line)["text"] for line in open(sys.argv[1])])' "$1"; }
check "the same text as of one prompt" [ "$(texts "$dir/asked")" = "$(texts "$dir/question.out")" ]
echo '{"role": "user"}' > "$dir/no.json"
refused "--messages of no list" 2 "no.json: the object has no field messages" -- generate "$model" --messages "$dir/no.json"

# --- which tokens are chosen
run generate "$model" --prompts "$dir/fewer.jsonl" --max-tokens 20 --logit-bias 40=1000 --ignore-eos --out "$dir/bias.out"
look "--logit-bias" only "$dir/bias.out" 40
run generate "$model" --prompts "$dir/fewer.jsonl" --max-tokens 20 --temperature 0 --ignore-eos --out "$dir/greedy.out"
likely=$($python -c 'import json, sys; print(json.loads(open(sys.argv[1]).readline())["ids"][0])' "$dir/greedy.out")
run generate "$model" --prompts "$dir/fewer.jsonl" --max-tokens 20 --temperature 0 --ignore-eos --ban "$likely" --out "$dir/ban.out"
look "--ban" without "$dir/ban.out" "$likely"
run generate "$model" --prompt "It is" --json --logprobs 0 --max-tokens 2 --ignore-eos
check "--logprobs 0: $(cat "$dir/out")" grep -qE '"tokens": 2, .*"logprobs": \[\{"id":[0-9]+,"logprob":-[0-9.]+\},\{"id":[0-9]+,"logprob":-[0-9.]+\}\]\}$' "$dir/out"
for penalties in "--repetition-penalty 1.3" "--presence-penalty 0.5 --frequency-penalty -0.5" "--min-p 0.1"; do
    # shellcheck disable=SC2086
    run generate "$model" --prompt "It is" --max-tokens 8 $penalties
    check "$penalties: $(cat "$dir/err")" [ "$status" = 0 ]
done

# --- flags that can't be combined
no() { refused "$*" 2 "$says" -- generate "$model" --prompt a "$@"; }
says="--repetition-penalty 0: expected a number above 0" no --repetition-penalty 0
says="--presence-penalty 2.5: expected -2 to 2" no --presence-penalty 2.5
says="--frequency-penalty -3: expected -2 to 2" no --frequency-penalty -3
says="--presence-penalty nan: expected -2 to 2" no --presence-penalty nan
says="--min-p 1.5: expected 0 to 1" no --min-p 1.5
says="--logit-bias 3: expected ID=V" no --logit-bias 3
says="--logit-bias x=1: expected ID=V" no --logit-bias x=1
says="--logit-bias 3=much: expected ID=V" no --logit-bias 3=much
says="--logit-bias 320: the model has no such token; expected an id from 0 to " no --logit-bias 320=1
says="--ban -1: expected a token's id" no --ban -1
says="--ban 999: the model has no such token" no --ban 999
says="name token 3 twice" no --ban 3 --logit-bias 3=1
says="--logprobs 21: expected 0 to 20" no --json --logprobs 21
says="--logprobs needs --json" no --logprobs 2
says="need --prompts FILE" no --n 2
says="need --prompts FILE" no --out "$dir/x"
says="exclude each other" no --messages "$dir/messages.json"
says="exclude each other" no --prompts "$dir/question.jsonl" --out "$dir/x"
says="nope: there is no such folder" no --adapter nope
refused "--prompts without --out" 2 "--prompts needs --out FILE" -- generate "$model" --prompts "$dir/question.jsonl"
refused "--n 0" 2 "--n 0: expected at least 1" -- generate "$model" --prompts "$dir/question.jsonl" --out "$dir/x" --n 0
refused "--pages" 2 "prompts.jsonl:2: a prompt of " -- generate "$model" "${longer[@]}" --out "$dir/x" --pages 2
check "of how many: $(cat "$dir/err")" grep -qF 'and up to 60 more need 3 pages of the cache; 2 were given (--pages)' "$dir/err"
refused "--rows" 2 "--rows -1: expected 1 to 4096" -- generate "$model" --prompts "$dir/question.jsonl" --out "$dir/x" --rows -1
finish
