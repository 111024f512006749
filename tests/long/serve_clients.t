#!/bin/bash
# surogate serve over a tiny model, with the clients of OpenAI and lm-eval; and every family against transformers and PEFT. PYTHON: an
# interpreter that has these packages; parts whose package is missing are skipped.
cd "$(dirname "$0")/../.." || exit 1
. tests/chat.sh
python=${PYTHON:-python3}
command -v "$python" > /dev/null || { skip "python3 isn't here"; finish; }
make_chat max_position_embeddings=512
size=$("$python" -c 'import json, sys; t = json.load(open(sys.argv[1])); print(1 + max(list(t["model"]["vocab"].values()) + [a["id"] for a in t["added_tokens"]]))' "$dir/tokenizer/tokenizer.json")
rm -r "$dir/model"
"$SUROGATE" new --arch qwen3-tiny --random --tokenizer "$dir/tokenizer" "$dir/model" hidden_size=32 intermediate_size=48 vocab_size="$size" \
    head_dim=8 max_position_embeddings=512 2> /dev/null
cp "$dir/tokenizer/chat_template.jinja" "$dir/model/"
"$SUROGATE" serve "$dir/model" --port 0 --device cpu --dtype fp32 > "$dir/address" 2> "$dir/said" &
pid=$!
trap 'kill $pid 2> /dev/null; rm -rf "$dir"' EXIT
for _ in $(seq 600); do
    [ -s "$dir/address" ] && break
    sleep 0.1
done
url=$(cat "$dir/address")

# checks MODULES ARGS...: runs a check of tests/oracle/check_serve.py if the modules are installed.
checks() {
    local modules=$1
    shift
    if ! "$python" -c "import $modules" 2> /dev/null; then
        skip "$1: $modules aren't here"
        return
    fi
    check "$1: $(tail -5 "$dir/log" 2> /dev/null)" "$python" tests/oracle/check_serve.py "$@" > "$dir/log" 2>&1
    tail -1 "$dir/log"
}
checks openai openai "$url"
checks lm_eval,transformers lm-eval "$url" "$dir/tokenizer" "$SUROGATE" "$dir/model"
checks torch,transformers,peft families "$SUROGATE"
finish
