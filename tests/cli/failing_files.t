#!/bin/bash
# A file that can't be checked doesn't count as absent: if any one stat, access, opendir or readdir fails, a command either ends with an
# error that names the cause, or its results are unchanged. Signals end no command. Anything that isn't a regular file is refused without
# waiting for it.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
if ! cc -shared -fPIC -D_GNU_SOURCE -o "$dir/fail_io.so" tests/train/fail_io.c -ldl 2> "$dir/err"; then
    skip "no compiler for fail_io.c: $(head -1 "$dir/err")"
    finish
fi
make_text_run "max_steps: 2" "lora: true" "lora_rank: 2" "threads: 1"
cp examples/chat_template.jinja "$dir/model/"
mkdir -p "$dir/model/additional_chat_templates" "$dir/data"
cp examples/chat_template.jinja "$dir/model/additional_chat_templates/tool_use.jinja"
echo '{"eos_token_id": 7}' > "$dir/model/generation_config.json"
head -300 "$dir/text.txt" > "$dir/data/train.txt"
echo '[{"role": "user", "content": "line 1"}]' > "$dir/messages.json"
printf '%s\n' '{"prompt": "line 1"}' '{"messages": [{"role": "user", "content": "line 1"}]}' > "$dir/prompts.jsonl"
export FAIL_UNDER=$dir

# The results of a command: its standard output, and a training's log and weights.
results() {
    cat "$dir/out"
    [ ! -f "$dir/output/texts.jsonl" ] || cat "$dir/output/texts.jsonl"
    [ ! -f "$dir/output/metrics.jsonl" ] || without_times "$dir/output/metrics.jsonl"
    [ ! -f "$dir/output/metrics.jsonl" ] || (cd "$dir/output" && sha256sum adapter_model.safetensors tokenizer_config.json tokenizer.json)
}
# go ARGS...: removes the results of earlier runs, then runs.
go() {
    LD_PRELOAD='' rm -rf "$dir/output"
    (ulimit -t 20 && run "$@" && exit "$status")
    status=$?
}
# each CALLS ERROR TEXT ARGS...: each one of the calls fails in turn. Either the command reports it, or nothing changes.
each() {
    local calls=$1 as=$2 text=$3 at count wrong=0
    shift 3
    go "$@"
    check "$*: exit $status: $(cat "$dir/err")" [ "$status" = 0 ]
    results > "$dir/want"
    FAIL_CALLS=$calls FAIL_COUNT=$dir/count LD_PRELOAD=$dir/fail_io.so go "$@"
    read -r count _ < "$dir/count"
    check "$1: $calls are made" [ "$count" -gt 0 ]
    for at in $(seq "$count"); do
        FAIL_CALLS=$calls FAIL_AT=$at FAIL_AS=$as LD_PRELOAD=$dir/fail_io.so go "$@"
        if [ "$status" = 0 ]; then
            results | cmp -s - "$dir/want" && continue
            fail "$1, $as at $at of $count: exit 0 and other results: $(results | diff - "$dir/want" | head -4); $(cat "$dir/err")"
        elif ! grep -q "^error: .*$dir.*: $text" "$dir/err" || [ "$status" -ge 128 ]; then
            fail "$1, $as at $at of $count: exit $status: $(tail -2 "$dir/err")"
        else
            continue
        fi
        wrong=$((wrong + 1))
        [ "$wrong" -lt 3 ] || return
    done
    pass
}
looks="stat lstat access opendir readdir"
each "$looks" EIO "Input/output error" pt "$dir/run.yaml" output_dir="$dir/output" datasets.0.path="$dir/data"
each "$looks" EIO "Input/output error" render "$dir/model" --messages "$dir/messages.json" --tools "$dir/messages.json"
each "$looks" EACCES "Permission denied" render "$dir/model" --messages "$dir/messages.json"
each "$looks" EIO "Input/output error" eval "$dir/model" --text "$dir/data/train.txt" --json
each "$looks" EACCES "Permission denied" generate "$dir/model" --prompt "line 1" --max-tokens 3 --temperature 0
each "$looks" EIO "Input/output error" generate "$dir/model" --prompts "$dir/prompts.jsonl" --out "$dir/output/texts.jsonl" --max-tokens 3
each "$looks" EIO "Input/output error" inspect "$dir/model"

# Signals: an interrupted open, fsync or close isn't a failure.
undisturbed() {
    local at count
    go "$@"
    results > "$dir/want"
    FAIL_CALLS="open fsync close" FAIL_COUNT=$dir/count LD_PRELOAD=$dir/fail_io.so go "$@"
    read -r count _ < "$dir/count"
    for at in $(seq 1 "$((count / 25 + 1))" "$count"); do
        FAIL_CALLS="open fsync close" FAIL_AT=$at FAIL_AS=EINTR LD_PRELOAD=$dir/fail_io.so go "$@"
        [ "$status" = 0 ] && results | cmp -s - "$dir/want" && continue
        fail "$1, EINTR at $at of $count: exit $status: $(tail -2 "$dir/err")"
        return
    done
    pass
}
undisturbed pt "$dir/run.yaml" output_dir="$dir/output"
undisturbed eval "$dir/model" --text "$dir/data/train.txt" --json

# Exit status 3 if host memory runs out: for the token ids of a decoder's 5 cache pages (4 and page 0), and for a text's losses.
FAIL_BYTES=$((5 * 32 * 4)) LD_PRELOAD=$dir/fail_io.so refused "no memory for pages" 3 "out of host memory (640 bytes" -- \
    chat "$dir/model" --context 128 < /dev/null
ids=$("$SUROGATE" encode "$dir/model" --text "$dir/data/train.txt" | wc -w)
FAIL_BYTES=$((4 * ids)) LD_PRELOAD=$dir/fail_io.so refused "no memory for losses" 3 "out of host memory ($((4 * ids)) bytes" -- \
    eval "$dir/model" --text "$dir/data/train.txt"

# Each file of a model's folder is replaced, among others by a pipe without a writer, an endless device and a folder.
socket() { python3 -c 'import socket, sys; socket.socket(socket.AF_UNIX).bind(sys.argv[1])' "$1" 2> /dev/null; }
link() { ln -s /dev/zero "$1"; }
for name in config.json generation_config.json tokenizer.json tokenizer_config.json chat_template.jinja model.safetensors \
    additional_chat_templates/tool_use.jinja surogate_ir.json hf_quant_config.json adapter_config.json; do
    makers=(mkfifo)
    [ "$name" != config.json ] || makers=(mkfifo link mkdir socket)
    for make in "${makers[@]}"; do
        rm -rf "$dir/odd"
        cp -r "$dir/model" "$dir/odd"
        [ "$name" != adapter_config.json ] || rm "$dir/odd/config.json"
        rm -f "$dir/odd/$name"
        $make "$dir/odd/$name" || continue
        command=(generate "$dir/odd" --prompt "line 1" --max-tokens 1)
        case $name in *.jinja) command=(render "$dir/odd" --messages "$dir/messages.json" --tools "$dir/messages.json") ;; esac
        [ "$name" != chat_template.jinja ] || rm "$dir/odd/additional_chat_templates/tool_use.jinja"
        status=0
        timeout 20 "$SUROGATE" "${command[@]}" > "$dir/out" 2> "$dir/err" || status=$?
        check "$make as $name: exit $status: $(cat "$dir/err")" [ "$status" = 2 ]
        check "$make as $name: what it is: $(cat "$dir/err")" grep -qE "$name is a (pipe|device|folder|socket), expected a file" "$dir/err"
    done
done
finish
