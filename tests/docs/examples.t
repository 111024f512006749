#!/bin/bash
# Everything in examples/ runs: run files of small models for two steps, those of large models as a plan for the GPU that they name.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
export PYTHONPATH=$root/python PYTHONDONTWRITEBYTECODE=1 HF_HUB_OFFLINE=1
cp -r examples "$dir/examples"
cd "$dir" || exit 1

mkdir -p quickstart/text/train quickstart/text/heldout texts
seq -f 'The number is %g.' 400 | tee quickstart/text/train/a.txt quickstart/text/heldout/a.txt train.txt val.txt > texts/a.txt
for name in quickstart/questions-train quickstart/questions-heldout; do
    seq 60 | awk '{ print "{\"question\": \"What is " $1 "?\", \"answer\": \"It is a number.\"}" }' > $name.jsonl
done
echo '{"messages": [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "I."}]}' > chats.jsonl
"$SUROGATE" tokenizer train --vocab-size 280 --out tokenizer train.txt 2> /dev/null
"$root/tools/quickstart-config" "$SUROGATE" quickstart/config --tokenizer tokenizer 2> /dev/null

# trains COMMAND FILE [KEY=VALUE...]: runs two steps.
trains() {
    run "$@" max_steps=2 warmup_steps=0 cooldown_steps=0 generate_samples=0 device=cpu
    check "$2: $(tail -3 err)" [ "$status" = 0 ]
}
# plans FILE: the plan fits the GPU that the file's second line names. The model has that size, without weights.
plans() {
    local arch flags
    case $1 in
    *0.6b*) arch=qwen3-0.6b ;;
    *lora-8b*) arch=llama-3.1-8b ;;
    *) arch=qwen3-8b ;;
    esac
    flags=$(sed -n '2s/^# Plan: //p' "$1")
    [ -d "$arch" ] || "$SUROGATE" new --arch "$arch" "$arch" 2> /dev/null
    # shellcheck disable=SC2086
    run plan "$1" model="$arch" $flags
    check "$1 fits $flags: $(tail -3 err)" [ "$status" = 0 -a "$flags" ]
}

# The first part of the quickstart comes before the second.
for file in $(find examples -type f | LC_ALL=C sort -r); do
    case $file in
    examples/quickstart.yaml) trains pt "$file" ;;
    examples/quickstart-sft.yaml) trains sft "$file" ;;
    examples/shakespeare/train.yaml) trains pt "$file" ;;
    examples/runs/*.yaml) plans "$file" ;;
    examples/dsl/*.py)
        if command -v python3 > /dev/null; then
            check "$file" python3 -m surogate.dsl build "$file" -o model.json
        else
            skip "$file: python3 isn't installed"
        fi
        ;;
    examples/chat_template.jinja)
        cp "$file" tokenizer/
        echo '[{"role": "user", "content": "Who?"}]' > messages.json
        run render tokenizer --messages messages.json --add-generation-prompt
        check "$file" grep -q Who out
        ;;
    examples/pass/* | examples/shakespeare/*.json) ;; # tests/passes/guide.t builds the pass; train.yaml reads the folder
    examples/decoder/*.py) ;;                         # tests/python/decoder.t runs it
    *) fail "$file: nothing runs it; add it to tests/docs/examples.t" ;;
    esac
done
finish
