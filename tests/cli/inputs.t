#!/bin/bash
# Arguments of commands: keys without effect, words of other tools, standard input, missing inputs.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
make_text_run "output_dir: $dir/trained" "max_steps: 1"
export HF_HUB_OFFLINE=1

# warned NAME [TEXT...] -- ARGS...: exit status 0, all texts on stderr.
warned() {
    local name=$1 text texts=()
    shift
    while [ "$1" != -- ]; do
        texts+=("$1")
        shift
    done
    shift
    run "$@"
    check "$name: exit $status: $(cat "$dir/err")" [ "$status" = 0 ]
    for text in "${texts[@]}"; do
        check "$name: expected \"$text\" in: $(cat "$dir/err")" grep -qF -e "$text" "$dir/err"
    done
}

warned "LoRA's keys without lora" "warning: " "lora_rank, merge_adapter: no effect without lora: true" -- \
    pt "$dir/run.yaml" lora_rank=4 merge_adapter=true
warned "samples without evaluations" "generate_samples: no effect without validation_datasets or validation_split_ratio" -- \
    plan "$dir/run.yaml" generate_samples=2 --json
check "their programs aren't planned" [ "$(grep -c '"decode"' "$dir/out")" = 0 ]
warned "help keys: another tool's" -- help keys load_in_8bit
check "help keys: what to do instead" grep -q "for a base in 8 bits set qlora: fp8" "$dir/out"
warned "help keys: a dataset's" -- help keys datasets.path
refused "help keys: a typo" 2 "did you mean lora_rank?" -- help keys lora_rnak

# Missing inputs: plan says so, without asking the network.
refused "plan: no such dataset" 2 "none.jsonl: no such file or folder" -- plan "$dir/run.yaml" datasets.0.path="$dir/none.jsonl"
refused "plan: no such template" 2 "chat_template" "none.jinja" -- plan "$dir/run.yaml" chat_template="$dir/none.jinja"
echo '{% for' > "$dir/broken.jinja"
refused "plan: a broken template" 2 "broken.jinja" -- plan "$dir/run.yaml" chat_template="$dir/broken.jinja"
refused "plan: no such tokenizer" 2 "none: no such file or folder" -- plan "$dir/run.yaml" tokenizer="$dir/none"
cd "$dir" || exit 1
HF_HUB_OFFLINE=0 HF_ENDPOINT=http://127.0.0.1:9 refused "plan: a missing folder beside others" 2 "model/none: no such file or folder" "ORG/NAME@main" -- \
    plan "$dir/run.yaml" model=model/none
warned "plan: data of the hub isn't pulled" -- plan "$dir/run.yaml" datasets.0.path=some/data
cd "$root" || exit 1

# Standard input.
head -c 300 "$dir/text.txt" > "$dir/short.txt"
run encode "$dir/model" --text "$dir/short.txt"
cp "$dir/out" "$dir/want"
check "encode: -" cmp "$dir/want" <("$SUROGATE" encode "$dir/model" --text - < "$dir/short.txt")
run eval "$dir/model" --text "$dir/short.txt" --json
cp "$dir/out" "$dir/want"
check "eval: -" cmp "$dir/want" <("$SUROGATE" eval "$dir/model" --text - --json < "$dir/short.txt" 2> /dev/null)
check "eval: - of a pipe" cmp "$dir/want" <(cat "$dir/short.txt" | "$SUROGATE" eval "$dir/model" --text - --json 2> /dev/null)
check "eval: - of a compressed one" cmp "$dir/want" <(gzip -c "$dir/short.txt" | "$SUROGATE" eval "$dir/model" --text - --json 2> /dev/null)
cp examples/chat_template.jinja "$dir/model/"
echo '[{"role": "user", "content": "line 1"}]' > "$dir/messages.json"
run render "$dir/model" --messages "$dir/messages.json"
cp "$dir/out" "$dir/want"
check "render: -" cmp "$dir/want" <("$SUROGATE" render "$dir/model" --messages - < "$dir/messages.json")

refused "generate --chat without a question" 2 "--chat needs a question" -- generate "$dir/model" --chat
finish
