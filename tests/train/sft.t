#!/bin/bash
# Fine-tuning: loss only on the answers, the same for any layout of rows; resuming; LoRA; several datasets.
cd "$(dirname "$0")/../.." || exit 1
. tests/chat.sh
make_chat
cat > "$dir/run.yaml" << END
model: $dir/model
datasets: [{path: $dir/chats.jsonl}]
sequence_len: 128
per_device_train_batch_size: 4
gradient_accumulation_steps: 1
max_steps: 150
learning_rate: 5e-3
model_dtype: fp32
save_steps: 50
END
rows() { sed -nE 's/^pa(ck|dd)ing *([0-9]+ sequences of [0-9]+).*/\2/p' "$1"; } # from the output of inspect
# field NAME FILE: the values of a number in a log's steps.
field() { grep '"log":"step"' "$2" | sed -E "s/.*\"$1\":([-0-9.e+]+).*/\1/"; }
near() { awk -v a="$1" -v b="$2" -v bar="$3" 'BEGIN { d = a - b; exit !((d < 0 ? -d : d) <= bar * (b < 0 ? -b : b) && a != "") }'; }

run sft "$dir/run.yaml" output_dir="$dir/whole"
check "a run ends well: $(tail -1 "$dir/err")" [ "$status" = 0 ]
check "the trained share is told: $(cat "$dir/err")" grep -qE 'tokens \([0-9.]+% of them trained\), [0-9]+ sequences of 128 \([0-9.]+% filled\)' "$dir/err"
first=$(field loss "$dir/whole/metrics.jsonl" | head -1)
last=$(field loss "$dir/whole/metrics.jsonl" | tail -1)
check "the loss falls from $first to $last" awk -v a="$first" -v b="$last" 'BEGIN { exit !(b < 0.4 * a) }'
check "the template is saved" cmp "$dir/model/chat_template.jinja" "$dir/whole/chat_template.jinja"
run generate "$dir/whole" --chat --prompt "What is 2 plus 4?" --temperature 0 --max-tokens 30
check "it answers and stops: $(cat "$dir/out")" grep -qE '^It is [0-9]+\.$' "$dir/out"
run generate "$dir/tokenizer/../whole" --chat --prompt "" --max-tokens 3
check "an empty question is one too" [ "$status" = 0 ]

# --- what generate reads: ask FLAGS...
ask() { run generate "$dir/whole" --chat --prompt "What is 2 plus 4?" --temperature 0 --max-tokens 30 "$@"; }
ask
cp "$dir/out" "$dir/answer"
ask --stop nothing --stop " is"
check "--stop: $(cat "$dir/out")" [ "$(cat "$dir/out")" = "It" ]
ask --stop "is 99"
check "the beginning of a stop text isn't kept back for good" cmp "$dir/answer" "$dir/out"
ask --json
check "--json: $(cat "$dir/out")" grep -qE '^\{"text": "It is [0-9]+\.", "tokens": [0-9]+, "stop_reason": "eos"\}$' "$dir/out"
ask --json --stop " is"
check "--json at a stop text: $(cat "$dir/out")" grep -qE '^\{"text": "It", "tokens": [0-9]+, "stop_reason": "stop"\}$' "$dir/out"
ask --json --ignore-eos --stop '<|im_end|>'
check "a special token as a stop text: $(cat "$dir/out")" grep -qE '"It is [0-9]+\.", .*"stop"' "$dir/out"
ask --json --max-tokens 2
check "--json at the end of --max-tokens" grep -q '"tokens": 2, "stop_reason": "length"' "$dir/out"
printf 'What is 2 plus 4?' | "$SUROGATE" generate "$dir/whole" --chat --prompt-file - --temperature 0 --max-tokens 30 > "$dir/out" 2> "$dir/err"
check "--prompt-file -: $(cat "$dir/err")" cmp "$dir/answer" "$dir/out"
cp -r "$dir/whole" "$dir/told-so"
printf '%s' '{{ raise_exception("told " ~ messages[0].role ~ " " ~ messages[0].content ~ " " ~ (n + 1)) }}' > "$dir/told-so/chat_template.jinja"
refused "--system and --var reach the template" 2 "told system be short 3" -- generate "$dir/told-so" --chat --system "be short" --var n=2 --prompt a
refused "--system without --chat" 2 "need --chat" -- generate "$dir/whole" --system x --prompt a
refused "--stop without a text" 2 '--stop ""' -- generate "$dir/whole" --prompt a --stop ""

# --- a turn ends with a token that isn't the tokenizer's EOS, as in base models tuned for chat
cp -r "$dir/model" "$dir/base"
sed -i 's/<|im_end|>/<|endoftext|>/' "$dir/base/tokenizer_config.json"
sed -i 's/"eos_token_id": [0-9]*/"eos_token_id": 0/' "$dir/base/config.json" "$dir/base/generation_config.json"
for kind in full lora; do
    lora="lora=false"
    [ $kind = lora ] && lora="lora=true lora_rank=16 learning_rate=1e-2"
    # shellcheck disable=SC2086
    run sft "$dir/run.yaml" model="$dir/base" output_dir="$dir/turns-$kind" $lora
    check "$kind: the token that ends turns is told: $(grep turns "$dir/err")" grep -qF "turns end with <|im_end|>" "$dir/err"
    run generate "$dir/turns-$kind" --chat --prompt "What is 2 plus 4?" --temperature 0 --max-tokens 60 --json
    check "$kind: and ends them when serving: $(cat "$dir/out")" grep -q '"stop_reason": "eos"' "$dir/out"
done
check "both ends are in generation_config.json" grep -qE '"eos_token_id": \[' "$dir/turns-full/generation_config.json"
(cd / && run generate "$dir/turns-lora" --prompt x --max-tokens 1; exit "$status")
check "an adapter finds its base from any folder: $(cat "$dir/err")" [ $? = 0 ]

# --- the loss of a step over the same rows: packed, one per row, and in other batches
head -41 "$dir/chats.jsonl" > "$dir/some.jsonl"
echo '{"messages": [{"role": "user", "content": "nothing to learn here"}]}' >> "$dir/some.jsonl"
one_step() {
    local name=$1
    shift
    run sft "$dir/run.yaml" datasets.0.path="$dir/some.jsonl" output_dir="$dir/$name" max_steps=-1 num_epochs=1 "$@"
    [ "$(field loss "$dir/$name/metrics.jsonl" | wc -l)" = 1 ] || fail "$name: one step expected: $(tail -3 "$dir/err")"
    grep -q "1 rows without a trained token were left out" "$dir/err" || fail "$name: the row without an answer isn't told"
}
one_step packed per_device_train_batch_size=4 gradient_accumulation_steps=20
one_step singles per_device_train_batch_size=1 gradient_accumulation_steps=41 sample_packing=false
one_step padded per_device_train_batch_size=7 gradient_accumulation_steps=6 sample_packing=false
one_step longer per_device_train_batch_size=2 gradient_accumulation_steps=25 sequence_len=256
for other in packed padded longer; do
    for what in loss norm; do
        a=$(field $what "$dir/$other/metrics.jsonl")
        b=$(field $what "$dir/singles/metrics.jsonl")
        check "$what of $other rows, $a, is that of single ones, $b" near "$a" "$b" 1e-6
    done
done

# --- interrupted: saves so that it can be resumed, exits with 75, and then gives the same bytes
"$SUROGATE" sft "$dir/run.yaml" output_dir="$dir/cut" > /dev/null 2> "$dir/err" &
pid=$!
until [ -s "$dir/cut/metrics.jsonl" ] || ! kill -0 $pid 2> /dev/null; do :; done
kill -TERM $pid 2> /dev/null
wait $pid
check "SIGTERM ends with 75" [ $? = 75 ]
run sft "$dir/run.yaml" output_dir="$dir/cut"
check "the same command goes on" grep -q "going on from" "$dir/err"
check "equal weights" cmp "$dir/whole/model.safetensors" "$dir/cut/model.safetensors"
check "an equal log" cmp <(without_times "$dir/whole/metrics.jsonl") <(without_times "$dir/cut/metrics.jsonl")

# --- LoRA, two datasets with weight and samples, a validation split, samples that are answers
echo '{"question": "who are you?", "answer": "a test"}' > "$dir/qa.jsonl"
run sft "$dir/run.yaml" output_dir="$dir/lora" lora=true lora_rank=4 merge_adapter=true max_steps=10 validation_split_ratio=0.1 generate_samples=1 \
    'sample_prompts=["What is 1 plus 7?"]' 'datasets=[{path: '"$dir"'/chats.jsonl, samples: 100}, {path: '"$dir"'/qa.jsonl, weight: 3}]'
check "LoRA on two datasets: $(tail -1 "$dir/err")" [ "$status" = 0 ]
cp "$dir/err" "$dir/told"
run generate "$dir/lora" --chat --prompt "What is 1 plus 7?" --max-tokens 8 --temperature 0
cp "$dir/out" "$dir/answer"
run generate "$dir/lora/merged" --chat --prompt "What is 1 plus 7?" --max-tokens 8 --temperature 0
check "merge_adapter: the merged model says what the adapter says" cmp "$dir/out" "$dir/answer"
check "an adapter is written" [ -s "$dir/lora/adapter_model.safetensors" ]
check "rows taken are told: $(cat "$dir/told")" grep -q "100 documents" "$dir/told"
check "what qa.jsonl was taken for is told" grep -q "instruction (question -> answer)" "$dir/told"
check "evaluated" grep -q '"log":"eval"' "$dir/lora/metrics.jsonl"
check "sampled" grep -q '"prompt":"What is 1 plus 7?"' "$dir/lora/metrics.jsonl"
run generate "$dir/lora" --chat --prompt "who are you?" --max-tokens 5 --temperature 0
check "an adapter folder is asked" [ "$status" = 0 ]

# --- a template that prints today's date: rows that are made again on another day are the rows of the day when the run began
printf '%s' '{{ "On " ~ strftime_now("%d %B %Y") }}{% for m in messages %} {{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}' > "$dir/dated.jinja"
mkdir "$dir/dated"
echo '{"finished": false, "settings_hash": "0000000000000001", "settings": "", "began": 1000000000}' > "$dir/dated/run.json"
dated() { TZ=UTC run "$@" "$dir/run.yaml" output_dir="$dir/dated" max_steps=2 save_steps=1 chat_template="$dir/dated.jinja"; }
dated sft
check "a run that began in 2001: $(tail -1 "$dir/err")" grep -q '"began": 1000000000' "$dir/dated/run.json"
sha256sum "$dir/dated/data"/*/*.tokens > "$dir/sums"
dated tokenize --debug
check "its date: $(cat "$dir/out")" grep -q "On 09 September 2001" "$dir/out"
rm -r "$dir/dated/data"
sed -i 's/"finished": true/"finished": false/' "$dir/dated/run.json"
dated sft
check "it goes on with rows made again: $(tail -1 "$dir/err")" grep -q "going on from" "$dir/err"
check "which are the same" sha256sum --quiet -c "$dir/sums"
cat > "$dir/more.jsonl" <<< '{"messages": [{"role": "user", "content": "and now?"}, {"role": "assistant", "content": "it is late"}]}'
dated tokenize dataset_cache_dir="$dir/cache" validation_datasets="[{path: $dir/more.jsonl}]"
(cd "$dir/cache" && sha256sum */*.tokens) > "$dir/sums"
rm -r "$dir/cache"
dated tokenize dataset_cache_dir="$dir/cache"
rm -r "$dir/dated"
dated sft dataset_cache_dir="$dir/cache" validation_datasets="[{path: $dir/more.jsonl}]"
check "what another run has of one of two datasets is used: $(cat "$dir/err")" grep -q "(cached)" "$dir/err"
check "and gives the other its date" [ "$(cd "$dir/cache" && sha256sum */*.tokens)" = "$(cat "$dir/sums")" ]
rm -r "$dir/dated"
dated sft
check "a folder's first run begins now" [ "$(sed -nE 's/.*"began": ([0-9]+).*/\1/p' "$dir/dated/run.json")" -gt 1700000000 ]

# --- runs that start together and share a cache
for trial in 1 2 3; do
    rm -rf "$dir/cache" "$dir"/together-*
    pids=()
    for i in 1 2 3; do
        "$SUROGATE" sft "$dir/run.yaml" output_dir="$dir/together-$i" dataset_cache_dir="$dir/cache" max_steps=1 chat_template="$dir/dated.jinja" \
            > "$dir/together-$i.log" 2>&1 &
        pids+=($!)
    done
    ended=()
    for pid in "${pids[@]}"; do
        wait "$pid"
        ended+=($?)
    done
    check "three runs, trial $trial: $(cat "$dir"/together-*.log)" [ "${ended[*]}" = "0 0 0" ]
    check "one dataset of theirs" [ "$(find "$dir/cache" -name dataset.json | wc -l)" = 1 ]
done

# --- the run's template is saved with the model
printf '%s' '{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}' > "$dir/other.jinja"
run sft "$dir/run.yaml" output_dir="$dir/other" max_steps=1 lora=true merge_adapter=true chat_template="$dir/other.jinja"
check "it is saved: $(tail -1 "$dir/err")" cmp "$dir/other.jinja" "$dir/other/chat_template.jinja"
check "and in the merged model" cmp "$dir/other.jinja" "$dir/other/merged/chat_template.jinja"
run merge "$dir/model" "$dir/other" "$dir/other-merged"
check "merge takes the adapter's template: $(tail -1 "$dir/err")" cmp "$dir/other.jinja" "$dir/other-merged/chat_template.jinja"
run merge "$dir/base" "$dir/turns-lora" "$dir/turns-merged"
check "with its own base nothing is warned of" [ "$(grep -c warning "$dir/err")" = 0 ]
run merge "$dir/model" "$dir/turns-lora" "$dir/turns-elsewhere"
check "another base is warned of" grep -q "warning: $dir/turns-lora was trained on $dir/base, not on $dir/model" "$dir/err"
check "and its stop tokens" cmp "$dir/turns-lora/generation_config.json" "$dir/turns-merged/generation_config.json"
cp -r "$dir/other" "$dir/inner"
rm "$dir/inner/chat_template.jinja"
sed -i 's/^{/{"chat_template": "{{ messages[0].content }}",/' "$dir/inner/tokenizer_config.json"
run merge "$dir/model" "$dir/inner" "$dir/inner-merged"
check "a template inside the adapter's tokenizer_config.json isn't hidden by the base's" [ ! -e "$dir/inner-merged/chat_template.jinja" ]

# --- long samples
for choice in truncate drop split; do
    run sft "$dir/run.yaml" output_dir="$dir/$choice" max_steps=1 sequence_len=40 on_long_sample=$choice
    check "on_long_sample: $choice is told: $(cat "$dir/err")" grep -qE 'samples longer than sequence_len were (cut|split)' "$dir/err"
    cp "$dir/err" "$dir/told"
    run inspect "$dir/chats.jsonl" --model "$dir/model" --rows 0 sequence_len=40 on_long_sample=$choice
    check "inspect counts the same: $(grep packing "$dir/out")" grep -qF "$(rows "$dir/out")" "$dir/told"
done
for keys in "sample_packing=false" "sequence_len=33 sample_packing=false" ""; do
    for data in chats.jsonl text.jsonl; do
        [ $data = chats.jsonl ] || awk '{ printf "{\"text\": \"%s\"}\n", substr("Rows of some text, one longer than the other, here and there. And on.", 1, NR % 67 + 1) }' "$dir/chats.jsonl" > "$dir/text.jsonl"
        run sft model="$dir/model" datasets.0.path="$dir/$data" output_dir="$dir/counted-$data$keys" max_steps=1 model_dtype=fp32 $keys
        cp "$dir/err" "$dir/told"
        run inspect "$dir/$data" --model "$dir/model" --rows 0 $keys
        check "inspect of $data counts as the run does, $keys: $(rows "$dir/out") $(cat "$dir/told")" grep -qF "$(rows "$dir/out") " "$dir/told"
    done
done
run sft "$dir/run.yaml" output_dir="$dir/weighed" max_steps=2 datasets.0.weight=0.5 sequence_len=40 on_long_sample=drop datasets.1.path="$dir/text.jsonl"
check "weights count, and what is left out doesn't: $(cat "$dir/err")" grep -qE 'training on ([0-9]+) documents.*, by weight [0-9]+ of them an epoch: 2 steps of 4$' "$dir/err"
check "the report says what the data is" grep -q 'conversation (messages.*were cut and [1-9][0-9]* left out' "$dir/weighed/report.html"
refused "on_long_sample: error" 2 "longer than sequence_len 40" "truncate, split or drop" -- sft "$dir/run.yaml" output_dir="$dir/error" max_steps=1 sequence_len=40 on_long_sample=error
refused "no validation rows" 2 "no validation data left" "Raise validation_split_ratio" -- sft "$dir/run.yaml" output_dir="$dir/none" max_steps=1 \
    datasets.0.samples=1 validation_split_ratio=0.01
tail -1 "$dir/some.jsonl" > "$dir/tail.jsonl"
refused "all rows untrained" 2 "nothing to train on" -- sft "$dir/run.yaml" output_dir="$dir/none" datasets.0.path="$dir/tail.jsonl"
echo '{% for m in messages %}{{ m.contents }}{% endfor %}' > "$dir/prints_none.jinja"
refused "a template that prints nothing" 2 "nothing to train on" "; the chat template doesn't print the content of $dir/some.jsonl:1" -- \
    sft "$dir/run.yaml" output_dir="$dir/none" datasets.0.path="$dir/some.jsonl" chat_template="$dir/prints_none.jinja"
finish
