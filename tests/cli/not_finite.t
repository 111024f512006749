#!/bin/bash
# Models that give NaN: no command takes NaN for a result. Also the number of bytes that bits per byte are divided by.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
make_text_run "max_steps: 1"
head -c 300 "$dir/text.txt" > "$dir/short.txt"
mkdir "$dir/texts"
cp "$dir/short.txt" "$dir/texts/a.txt"
head -c 500 "$dir/text.txt" | tail -c 200 > "$dir/texts/b.txt"

# with_last HEX: makes $dir/odd, the model with the last bytes of its weights (of the last norm) replaced.
with_last() {
    local file=$dir/odd/model.safetensors bytes=$((${#1} / 2))
    rm -rf "$dir/odd"
    cp -r "$dir/model" "$dir/odd"
    # shellcheck disable=SC2059
    printf "$(sed 's/../\\x&/g' <<< "$1")" | dd of="$file" bs=1 seek=$(($(stat -c %s "$file") - bytes)) conv=notrunc status=none
}
is_json() {
    ! command -v python3 > /dev/null ||
        python3 -c 'import json, sys; json.load(open(sys.argv[1]), parse_constant=lambda word: sys.exit(word))' "$1" 2> /dev/null
}

run eval "$dir/model" --text "$dir/short.txt" --json
check "a sound model: exit $status" [ "$status" = 0 ]
check "a sound model has no problem" [ "$(grep -c problem "$dir/out")" = 0 ]
with_last "$(printf "ffff7f7f%.0s" {1..32})" # each is the largest f32: products with it aren't finite
for text in "$dir/short.txt" "$dir/texts"; do
    run eval "$dir/odd" --text "$text" --json
    check "eval of NaN: exit $status" [ "$status" = 4 ]
    check "eval of NaN says where: $(cat "$dir/err")" grep -qE "error: .*/(short|a).txt: the loss of token [0-9]+ is -?(nan|inf): the model gives no finite numbers" "$dir/err"
    check "eval of NaN: JSON: $(cut -c 1-200 "$dir/out")" is_json "$dir/out"
    check "eval of NaN: a word" grep -q '"mean":null,.*"problem":"not finite"}\|"mean":null,"problem":"not finite"}' "$dir/out"
done
run eval "$dir/odd" --text "$dir/short.txt"
check "eval of NaN without --json: exit $status" [ "$status" = 4 ]
for options in "--temperature 0" "--temperature 1" "--temperature 0.5 --top-p 0.9 --json"; do
    # shellcheck disable=SC2086
    refused "generate of NaN, $options" 4 "the model gives" "so that none can be chosen" -- generate "$dir/odd" --prompt "line 1" --max-tokens 3 $options
done

# Bits per byte: nats of all tokens except the first, divided by the bytes of these tokens.
first=$("$SUROGATE" encode "$dir/model" --text "$dir/short.txt" | awk '{ print $1 }')
for len in 1 2 3 4 5 6 7 8; do # bytes of the first token: the longest beginning that encodes to this one id
    head -c "$len" "$dir/short.txt" > "$dir/begin.txt"
    [ "$("$SUROGATE" encode "$dir/model" --text "$dir/begin.txt" | tr -d ' \n')" = "$first" ] && bytes=$len
done
run eval "$dir/model" --text "$dir/short.txt"
nats=$(awk '/^loss/ { print $2 }' "$dir/out") tokens=$(awk '/^tokens/ { print $2 }' "$dir/out")
want=$(awk "BEGIN { printf \"%.2f\", $nats * $tokens / log(2) / (300 - $bytes) }")
check "bits per byte are $want: $(cat "$dir/out")" grep -q "^bits per byte   $want" "$dir/out"
check "the bytes are those with a loss: $(cat "$dir/out")" grep -q "^bytes  *$((300 - bytes))$" "$dir/out"
run eval "$dir/model" --text "$dir/texts" --json
check "of each text: $(cat "$dir/out")" grep -qE "\"bytes\":(49[0-8]|48[0-9])," "$dir/out"
finish
