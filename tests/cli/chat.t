#!/bin/bash
# surogate chat, from a pipe and on a terminal: several turns, /system, /save, /regenerate, Ctrl+C (ends an answer), Ctrl+D (ends the
# program), a full context.
cd "$(dirname "$0")/../.." || exit 1
. tests/chat.sh
python=$(command -v python3 || true)
[ -n "$python" ] || { skip "python3 isn't here"; finish; }
export TERM=xterm
unset COLUMNS NO_COLOR
make_chat max_position_embeddings=16384
model=$dir/model
few=(--max-tokens 6 --ignore-eos)

# piped LINES ARGS...: chat with these lines from a pipe.
piped() {
    local lines=$1
    shift
    status=0
    printf '%s' "$lines" | "$SUROGATE" chat "$model" "$@" > "$dir/out" 2> "$dir/err" || status=$?
}
# typed ARGS...: chat on a terminal. Standard input says what is typed, a line of JSON each: ["pattern to wait for", "keys"].
typed() {
    cat > "$dir/keys"
    status=0
    timeout 120 "$python" tests/terminal.py 200 "$dir/raw" --type "$dir/keys" "$SUROGATE" chat "$model" "$@" > "$dir/screen" 2> "$dir/err" || status=$?
}
# roles FILE: the roles of its messages, and the contents of user and system messages.
roles() {
    "$python" -c 'import json, sys
print(" ".join(m["role"][0] + ("" if m["role"] == "assistant" else ":" + m["content"]) for m in json.load(open(sys.argv[1]))))' "$1"
}
answer() { "$python" -c 'import json, sys; print(json.dumps([m["content"] for m in json.load(open(sys.argv[1])) if m["role"] == "assistant"][int(sys.argv[2])]))' "$1" "$2"; }

# --- from a pipe
piped $'What is 1?\n\nWhat is 2?\n/save '"$dir/two.json"$'\n/system Be brief.\n//three\n/save '"$dir/three.json" "${few[@]}"
check "it ends with its input, exit $status: $(cat "$dir/err")" [ "$status" = 0 ]
check "roles: $(roles "$dir/two.json")" [ "$(roles "$dir/two.json")" = "u:What is 1? a u:What is 2? a" ]
check "/system: $(roles "$dir/three.json")" [ "$(roles "$dir/three.json")" = "s:Be brief. u:What is 1? a u:What is 2? a u:/three a" ]
check "answers alone on stdout" cmp "$dir/out" <("$python" -c 'import json, sys
for m in json.load(open(sys.argv[1])):
    if m["role"] == "assistant": sys.stdout.buffer.write(m["content"].encode() + b"\n")' "$dir/three.json")
check "the turns stay" [ "$(answer "$dir/two.json" 1)" = "$(answer "$dir/three.json" 1)" ]
cp "$dir/out" "$dir/first"
piped $'What is 1?\n\nWhat is 2?\n/save '"$dir/two.json"$'\n/system Be brief.\n//three\n/save '"$dir/three.json" "${few[@]}"
check "the same again" cmp "$dir/first" "$dir/out"
piped $'What is 1?\n' "${few[@]}" --temperature 0
head -c -1 "$dir/out" > "$dir/first"
run generate "$model" --chat --prompt "What is 1?" "${few[@]}" --temperature 0
check "a first answer is that of generate --chat" cmp "$dir/first" "$dir/out"
piped "$(printf '%s\n' 'What is 1?' 'What is 2?' '/system Be brief.' '//three' "/save $dir/greedy.json")" "${few[@]}" --temperature 0
"$python" -c 'import json, sys; json.dump(json.load(open(sys.argv[1]))[:-1], open(sys.argv[2], "w"))' "$dir/greedy.json" "$dir/asked.json"
run generate "$model" --messages "$dir/asked.json" "${few[@]}" --temperature 0 --json
check "a later answer is that of generate --messages" grep -qF "{\"text\": $("$python" -c 'import json, sys; print(json.dumps(json.load(open(sys.argv[1]))[-1]["content"], ensure_ascii=False))' "$dir/greedy.json")," "$dir/out"
piped $'one\n/save '"$dir/a.json"$'\n/regenerate\n/save '"$dir/b.json"$'\n/quit\ntwo\n' "${few[@]}"
check "/regenerate: one turn, another answer" [ "$(roles "$dir/b.json")" = "u:one a" -a "$(answer "$dir/a.json" 0)" != "$(answer "$dir/b.json" 0)" ]
check "/quit ends: $(cat "$dir/err")" [ "$status" = 0 -a "$(grep -c . "$dir/out")" -lt 20 ]
piped $'one\n/regenrate\ntwo\n' "${few[@]}"
check "a wrong command from a pipe ends it, exit $status" [ "$status" = 2 ]
check "and is named: $(cat "$dir/err")" grep -qF "there is no command /regenrate, did you mean /regenerate?" "$dir/err"
printf 'What is 1?\r\n/save %s\r\n' "$dir/crlf.json" | "$SUROGATE" chat "$model" "${few[@]}" > "$dir/out" 2> "$dir/err"
check "lines of Windows: $(cat "$dir/err")" [ "$(roles "$dir/crlf.json")" = "u:What is 1? a" ]
printf 'a\0b\n/save %s\n' "$dir/nul.json" | "$SUROGATE" chat "$model" "${few[@]}" > "$dir/out" 2> "$dir/err"
check "a NUL ends no question: $(roles "$dir/nul.json")" [ "$(roles "$dir/nul.json")" = "u:a$(printf '\xef\xbf\xbd')b a" ]
piped '' "${few[@]}"
check "no line at all" [ "$status" = 0 -a ! -s "$dir/out" ]

# --- a full context
long=$(seq -s' ' 40)
lines=$(for i in 1 2 3 4 5 6; do echo "$i $long"; done; echo "/save $dir/dropped.json")
piped "$lines" "${few[@]}" --context 400
check "refused, exit $status: $(cat "$dir/err")" [ "$status" = 2 ]
check "it says what to do: $(cat "$dir/err")" grep -qE 'the conversation has [0-9]+ tokens, and the context 400: .*/clear, or start with --drop-oldest or a larger --context' "$dir/err"
piped "$lines" "${few[@]}" --context 400 --drop-oldest
check "--drop-oldest, exit $status: $(cat "$dir/err")" grep -qE "the context is full: the oldest ([0-9]+ turns are|1 turn is) forgotten" "$dir/err"
check "the last turn is there: $(roles "$dir/dropped.json")" grep -qE "^u:[2-6] .*u:6 1 2 3 .* a$" <(roles "$dir/dropped.json")
typed "${few[@]}" --context 400 --drop-oldest << END
["> ", "one\\n"]
["one.*> ", "$long $long $long $long\\n"]
["no turn is forgotten.*> ", "/save $dir/kept.json\\n"]
["messages are in .*> ", "\\u0004"]
END
check "a question that never fits forgets nothing, exit $status: $(cat "$dir/err" "$dir/screen")" [ "$(roles "$dir/kept.json")" = "u:one a" ]
size=$("$python" -c 'import json, sys; t = json.load(open(sys.argv[1])); print(max([*t["model"]["vocab"].values(), *(a["id"] for a in t["added_tokens"])]))' "$model/tokenizer.json")
# shellcheck disable=SC2046
typed $(seq -f '--ban %.0f' 0 "$size") << END
["> ", "one\\n"]
["forbids all tokens.*> ", "/save $dir/forbidden.json\\n"]
["messages are in .*> ", "\\u0004"]
END
check "an answer that can't be doesn't end it, exit $status: $(tail -n 3 "$dir/screen")" [ "$status" = 0 -a "$(roles "$dir/forbidden.json")" = "" ]
typed "${few[@]}" --context 8192 << END
["> ", "$(printf 'a%.0s' $(seq 5000))\\n"]
["passes on 4095 bytes of a line at most.*> ", "\\u0004"]
END
check "a line that the terminal cuts, exit $status: $(tail -n 3 "$dir/screen")" [ "$status" = 0 ]
refused "a long --context" 2 "made for 16384 positions" -- chat "$model" --context 20000
cp -r "$model" "$dir/plain"
rm "$dir/plain/chat_template.jinja"
refused "no template" 2 "has no chat template" -- chat "$dir/plain"
refused "a penalty" 2 "--presence-penalty 3: expected -2 to 2" -- chat "$model" --presence-penalty 3

# --- on a terminal
typed "${few[@]}" --system "Be kind." << END
["> ", "What is 1?\\n"]
["What is 1.*> ", "/save $dir/t1.json\\n"]
["messages are in .*> ", "/regenerate\\n"]
["regenerate.*> ", "/save $dir/t2.json\\n"]
["messages are in .*> ", "/system Be bold.\\n"]
["replaced.*> ", "/unknown\\n"]
["there is no command.*> ", "/help\\n"]
["/quit .*> ", "and 2?\\n"]
["and 2.*> ", "/save $dir/t3.json\\n"]
["messages are in .*> ", "\\u0004"]
END
check "Ctrl+D ends with 0, exit $status: $(cat "$dir/err" "$dir/screen")" [ "$status" = 0 ]
check "one turn: $(roles "$dir/t1.json")" [ "$(roles "$dir/t1.json")" = "s:Be kind. u:What is 1? a" ]
check "/regenerate: $(roles "$dir/t2.json")" [ "$(roles "$dir/t2.json")" = "s:Be kind. u:What is 1? a" -a "$(answer "$dir/t1.json" 0)" != "$(answer "$dir/t2.json" 0)" ]
check "/system: $(roles "$dir/t3.json")" [ "$(roles "$dir/t3.json")" = "s:Be bold. u:What is 1? a u:and 2? a" -a "$(answer "$dir/t2.json" 0)" = "$(answer "$dir/t3.json" 0)" ]
check "a wrong command doesn't end it" grep -qF "there is no command /unknown" "$dir/screen"
check "/help: $(cat "$dir/screen")" grep -qF "/save FILE" "$dir/screen"

# An answer that would take minutes; every token of it is one letter.
typed --max-tokens 16000 --context 16384 --ignore-eos --logit-bias 40=1000 << END
["> ", "\\u0003"]
["Ctrl.D or /quit ends.*> ", "What is 1?\\n"]
["(.)\\\\1\\\\1\\\\1\\\\1\\\\1", "\\u0003"]
["stopped; the answer stays.*> ", "/save $dir/stopped.json\\n"]
["messages are in .*> ", "/regenerate\\n"]
["(.)\\\\1\\\\1\\\\1\\\\1\\\\1", "\\u0003"]
["stopped; the answer stays.*> ", "/save $dir/again.json\\n"]
["messages are in .*> ", "half a line\\u0003"]
["> ", "/quit\\n"]
END
check "Ctrl+C ends answers and not the program, exit $status: $(cat "$dir/err"; tail -3 "$dir/screen")" [ "$status" = 0 ]
length=$("$python" -c 'import json, sys; print(len(json.load(open(sys.argv[1]))[1]["content"]))' "$dir/stopped.json")
check "what was there stays: $length" [ "$length" -ge 6 -a "$length" -lt 16000 ]
check "again: $(roles "$dir/again.json")" [ "$(roles "$dir/again.json")" = "u:What is 1? a" ]
finish
