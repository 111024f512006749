#!/bin/bash
# surogate serve: every route with curl, errors that name the field, streams, served texts equal to those of generate, access, a full queue,
# clients that disconnect, signals.
cd "$(dirname "$0")/../.." || exit 1
. tests/chat.sh
python=$(command -v python3 || true)
[ -n "$python" ] || { skip "python3 isn't here"; finish; }
command -v curl > /dev/null || { skip "curl isn't here"; finish; }
make_chat max_position_embeddings=512
model=$dir/model
# The vocabulary has exactly the tokenizer's size: score reports probabilities over all rows of the head, texts only over ids that can be
# chosen.
size=$("$python" -c 'import json, sys; t = json.load(open(sys.argv[1])); print(1 + max(list(t["model"]["vocab"].values()) + [a["id"] for a in t["added_tokens"]]))' "$dir/tokenizer/tokenizer.json")
rm -r "$model"
"$SUROGATE" new --arch qwen3-tiny --random --tokenizer "$dir/tokenizer" "$model" hidden_size=32 intermediate_size=48 vocab_size="$size" \
    head_dim=8 max_position_embeddings=512 2> /dev/null
cp "$dir/tokenizer/chat_template.jinja" "$model/"
for name in tuned same; do
    rate=0.05
    [ $name = same ] && rate=0
    "$SUROGATE" sft model="$model" output_dir="$dir/$name" datasets.0.path="$dir/chats.jsonl" sequence_len=64 max_steps=3 lora=true \
        lora_rank=4 learning_rate=$rate warmup_steps=0 device=cpu model_dtype=fp32 > "$dir/log" 2>&1 || cat "$dir/log"
done
pid=
trap '[ -n "$pid" ] && kill -9 $pid 2> /dev/null; rm -rf "$dir"' EXIT

# serve ARGS...: starts a server of the model on a free port; sets $url and $pid.
serve() {
    rm -f "$dir/address"
    "$SUROGATE" serve "$model" --port 0 --device cpu --threads 1 --dtype fp32 "$@" > "$dir/address" 2> "$dir/said" &
    pid=$!
    for _ in $(seq 1200); do
        [ -s "$dir/address" ] && break
        kill -0 $pid 2> /dev/null || break
        sleep 0.05
    done
    url=$(cat "$dir/address")
    [ -n "$url" ] || fail "it doesn't serve: $(cat "$dir/said")"
}
# ended: waits up to two minutes for the server to end, then kills it; sets $status.
ended() {
    status=1
    [ -n "$pid" ] || return # without a pid, `wait` would wait for all jobs
    status=0
    timeout 120 tail --pid=$pid -f /dev/null || kill -9 $pid
    wait $pid || status=$?
    pid=
}
# ask PATH [JSON] [CURL ARGS...]: $dir/out is the answer's body, $code its status.
ask() {
    local path=$1 body=${2-}
    shift $(($# > 1 ? 2 : 1))
    code=$(curl -s -m 60 -o "$dir/out" -D "$dir/head" -w '%{http_code}' ${body:+-H 'Content-Type: application/json' --data-binary "$body"} "$@" "$url$path")
}
# of EXPRESSION: prints the value of a Python expression over `a`, the JSON body of the answer.
of() { "$python" -c 'import json, sys; a = json.load(open(sys.argv[1])); print(eval(sys.argv[2]))' "$dir/out" "$1"; }
# wrong NAME STATUS PARAM TEXT PATH JSON: refused with this status, naming the field.
wrong() {
    ask "$5" "$6"
    local got
    got=$(of '" ".join([str(a["error"]["param"]), a["error"]["type"], a["error"]["message"]])')
    check "$1: $code $got" [ "$code" = "$2" -a "${got%% *}" = "$3" ]
    check "$1 says why: $got" grep -qF -e "$4" <<< "$got"
}
# joined: for the stream in $dir/out prints the content of each choice, the finish reasons, and whether [DONE] is last.
joined() {
    "$python" - "$dir/out" << 'END'
import json, sys
texts, reasons, done, usage = {}, {}, False, None
for line in open(sys.argv[1], encoding="utf-8"):
    if not line.startswith("data: "):
        assert line == "\n", line
        continue
    assert not done
    done = line == "data: [DONE]\n"
    if done: continue
    part = json.loads(line[6:])
    usage = part.get("usage") or usage
    for c in part["choices"]:
        text = c["text"] if "text" in c else c["delta"].get("content") or ""
        texts[c["index"]] = texts.get(c["index"], "") + text
        reasons[c["index"]] = c["finish_reason"]
print(json.dumps([[texts[i] for i in sorted(texts)], [reasons[i] for i in sorted(reasons)], done, usage]))
END
}
serve --adapter tuned="$dir/tuned" --adapter "$dir/same"
check "what fits is said: $(cat "$dir/said")" grep -qF "16 texts at once, of up to 512 tokens with their prompts; the cache holds 8192 tokens" "$dir/said"
check "an adapter that changes nothing is said" grep -qF "adapter same changes nothing" "$dir/said"
check "one that changes something isn't" [ "$(grep -c "changes nothing" "$dir/said")" = 1 ]

# --- routes
ask /health
check "health: $code" [ "$code" = 200 -a "$(of 'a["status"]')" = ok ]
ask /v1/models
check "models" [ "$(of '[(m["id"], m["parent"]) for m in a["data"]]')" = "[('model', None), ('tuned', 'model'), ('same', 'model')]" ]
ask /v1/models/tuned
check "a model" [ "$code" = 200 -a "$(of 'a["id"]')" = tuned ]
ask /v1/models/none
check "an unknown model: $(cat "$dir/out")" [ "$code" = 404 -a "$(of 'a["error"]["code"]')" = model_not_found ]
ask /tokenize '{"prompt": "What is 7?"}'
tokens=$(of 'a["tokens"]')
printf 'What is 7?' > "$dir/text"
run encode "$model" --text "$dir/text"
check "tokenize: $tokens $(cat "$dir/out")" [ "$(echo "$tokens" | tr -d '[],')" = "$(tr -s '\n' ' ' < "$dir/out" | sed 's/ $//')" ]
ask /detokenize "{\"tokens\": $tokens}"
check "detokenize" [ "$(of 'a["prompt"]')" = "What is 7?" ]
ask /detokenize "{\"model\": \"tuned\", \"tokens\": $tokens}"
check "detokenize of a model's name: $code" [ "$code" = 200 ]
wrong "detokenize of no model" 404 model "there is no model gone" /detokenize '{"model": "gone", "tokens": [1]}'
wrong "an unknown field of detokenize" 400 token "did you mean tokens?" /detokenize '{"token": [1]}'
wrong "an unknown field beside tokens" 400 skip_special_tokens "there is no such field here" /detokenize '{"tokens": [1], "skip_special_tokens": true}'
ask /tokenize '{"messages": [{"role": "user", "content": "x"}]}'
check "tokenize messages" [ "$(of 'a["count"]')" -gt 3 ]
for path in embeddings responses; do
    ask /v1/$path '{}'
    check "$path is refused by name: $(cat "$dir/out")" [ "$code" = 404 -a -n "$(of 'a["error"]["message"]')" ]
done
ask /nowhere
check "no such path" [ "$code" = 404 ]
ask /v1/completions
check "GET where POST is expected: $code" [ "$code" = 405 ]
check "Allow" grep -qi '^allow: POST' "$dir/head"
ask /v1/completions '{}' -H 'Content-Type: text/plain'
code=$(curl -s -o "$dir/out" -w '%{http_code}' -d '{}' "$url/v1/completions")
check "not JSON's type: $code" [ "$code" = 415 ]

# --- what is served is what generate makes
# same NAME ADAPTER TEXT: greedy, to the bit.
same() {
    local adapter=()
    [ -n "$2" ] && adapter=(--adapter "$dir/$2")
    run generate "$model" --prompt "$3" --temperature 0 --max-tokens 12 --json --logprobs 2 --device cpu --threads 1 --dtype fp32 "${adapter[@]}"
    cp "$dir/out" "$dir/generated"
    ask /v1/completions "{\"model\": \"${2:-model}\", \"prompt\": \"$3\", \"temperature\": 0, \"max_tokens\": 12, \"logprobs\": 2}"
    check "$1: $(cat "$dir/generated" "$dir/out")" "$python" - "$dir/generated" "$dir/out" << 'END'
import json, sys
generated, served = (json.load(open(name)) for name in sys.argv[1:])
choice = served["choices"][0]
assert choice["text"] == generated["text"]
reason = {"eos": "stop", "length": "length"}[generated["stop_reason"]]
assert choice["finish_reason"] == reason
count = len(generated["logprobs"])
assert choice["logprobs"]["token_logprobs"][:count] == [t["logprob"] for t in generated["logprobs"]]
for top, tokens in zip(generated["logprobs"], choice["logprobs"]["top_logprobs"]):
    assert {t["logprob"] for t in top["top"]} <= set(tokens.values())
END
}
same "the base" "" "What is 7"
same "an adapter" tuned "What is 7"
same "one that changes nothing" same "It"
printf '%s\n' '{"prompt": "What is"}' > "$dir/rows"
run generate "$model" --prompts "$dir/rows" --out "$dir/samples" --n 3 --seed 5 --temperature 0.8 --max-tokens 9 --device cpu --threads 1 --dtype fp32
ask /v1/completions '{"model": "model", "prompt": "What is", "n": 3, "seed": 5, "temperature": 0.8, "max_tokens": 9}'
check "samples of a seed are those of generate --seed" [ "$(of '[c["text"] for c in a["choices"]]')" = "$("$python" -c 'import json, sys; print([json.loads(l)["text"] for l in open(sys.argv[1])])' "$dir/samples")" ]
ask /v1/completions '{"model": "model", "prompt": "What is", "n": 3, "temperature": 1.5, "max_tokens": 9}'
first=$(of '[c["text"] for c in a["choices"]]')
ask /v1/completions '{"model": "model", "prompt": "What is", "n": 3, "temperature": 1.5, "max_tokens": 9}'
check "without a seed texts differ" [ "$first" != "$(of '[c["text"] for c in a["choices"]]')" ]
messages='[{"role": "user", "content": "What is 1?"}]'
echo "$messages" > "$dir/messages"
run generate "$model" --messages "$dir/messages" --temperature 0 --max-tokens 9 --json --device cpu --threads 1 --dtype fp32
wanted=$("$python" -c 'import json, sys; print(json.load(open(sys.argv[1]))["text"])' "$dir/out")
ask /v1/chat/completions "{\"model\": \"model\", \"messages\": $messages, \"temperature\": 0, \"max_tokens\": 9}"
check "a chat is generate --messages: $(cat "$dir/out")" [ "$(of 'a["choices"][0]["message"]["content"]')" = "$wanted" ]
ask /v1/chat/completions '{"model": "model", "messages": [{"role": "user", "content": [{"type": "text", "text": "What "}, {"type": "text", "text": "is 1?"}]}], "temperature": 0, "max_completion_tokens": 9}'
check "content in parts" [ "$(of 'a["choices"][0]["message"]["content"]')" = "$wanted" ]
check "usage" [ "$(of 'a["usage"]["total_tokens"] - a["usage"]["prompt_tokens"] - a["usage"]["completion_tokens"]')" = 0 ]
run score "$model" <(echo '{"text": "What is 7 plus 4?"}') --json --device cpu --threads 1 --dtype fp32
cp "$dir/out" "$dir/scored"
ask /v1/completions '{"model": "model", "prompt": "What is 7 plus 4?", "max_tokens": 0, "echo": true, "logprobs": 1}'
check "an echoed prompt has the numbers of score: $(cat "$dir/out")" "$python" - "$dir/scored" "$dir/out" << 'END'
import json, sys
scored, served = (json.load(open(name)) for name in sys.argv[1:])
got = served["choices"][0]["logprobs"]
assert got["token_logprobs"][0] is None and scored["logprobs"][0] is None and len(got["tokens"]) == len(scored["ids"])
assert max(abs(a - b) for a, b in zip(got["token_logprobs"][1:], scored["logprobs"][1:])) < 1e-5
assert "".join(got["tokens"]) == "What is 7 plus 4?" == served["choices"][0]["text"]
assert [served["choices"][0]["text"][o:][: len(t)] for o, t in zip(got["text_offset"], got["tokens"])] == got["tokens"]
END
ask /v1/completions '{"model": "model", "prompt": ["What", "It is"], "max_tokens": 3, "echo": true, "n": 2}'
check "several prompts, echoed" [ "$(of '[c["index"] for c in a["choices"]]')" = "[0, 1, 2, 3]" -a "$(of '[c["text"][:2] for c in a["choices"]]')" = "['Wh', 'Wh', 'It', 'It']" ]
ask /v1/completions "{\"model\": \"model\", \"prompt\": [$tokens, $tokens], \"max_tokens\": 3, \"temperature\": 0}"
check "ids" [ "$(of 'a["usage"]["prompt_tokens"]')" = "$(($(of 'len(a["choices"])') * $(echo "$tokens" | wc -w)))" ]
ask /v1/completions "{\"model\": \"model\", \"prompt\": $tokens, \"max_tokens\": 0, \"echo\": true}"
check "ids, echoed alone: $(cat "$dir/out")" [ "$(of 'a["choices"][0]["text"]')" = "What is 7?" ]
ask /v1/chat/completions "{\"model\": \"model\", \"messages\": $messages, \"temperature\": 0, \"max_tokens\": 3, \"logprobs\": true, \"top_logprobs\": 2}"
check "a chat's logprobs: $(cat "$dir/out")" [ "$(of '[(bytes(t["bytes"]).decode(errors="replace") == t["token"], len(t["top_logprobs"]), t["logprob"] == t["top_logprobs"][0]["logprob"]) for t in a["choices"][0]["logprobs"]["content"]]')" = "[(True, 2, True), (True, 2, True), (True, 2, True)]" ]

ask /v1/completions '{"model": "model", "prompt": [[5], [5, 6]], "max_tokens": 0, "echo": true, "logprobs": 1}'
check "a prompt of one token beside others, echoed: $(cat "$dir/out")" [ "$(of '[(len(c["logprobs"]["token_logprobs"]), c["finish_reason"]) for c in a["choices"]]')" = "[(1, 'length'), (2, 'length')]" ]
whole=$(of 'json.dumps([[c["text"] for c in a["choices"]], [c["finish_reason"] for c in a["choices"]], True, None])')
ask /v1/completions '{"model": "model", "prompt": [[5], [5, 6]], "max_tokens": 0, "echo": true, "logprobs": 1, "stream": true}'
check "and streamed: $(joined) / $whole" [ "$(joined)" = "$whole" ]

# --- streams
for route in completions chat/completions; do
    prompt="\"messages\": $messages"
    [ $route = completions ] && prompt='"prompt": ["What is", "It"]'
    for more in '"max_tokens": 14' '"max_tokens": 14, "stop": [" i", "s i", "7"]' '"max_tokens": 5, "logprobs": 1'; do
        [ $route != completions ] && more=${more//'"logprobs": 1'/'"logprobs": true'}
        body="{\"model\": \"model\", $prompt, \"n\": 2, \"seed\": 3, \"temperature\": 0.7, $more"
        ask /v1/$route "$body}"
        whole=$(of 'json.dumps([[c["text"] if "text" in c else c["message"]["content"] for c in a["choices"]], [c["finish_reason"] for c in a["choices"]], True, a["usage"]])')
        ask /v1/$route "$body, \"stream\": true, \"stream_options\": {\"include_usage\": true}}"
        got=$(joined)
        check "a stream of $route, $more: $got / $whole" [ "$got" = "$whole" ]
        check "its type" grep -qi '^content-type: text/event-stream' "$dir/head"
    done
done

# --- JSON
for streams in false true; do
    ask /v1/chat/completions "{\"model\": \"model\", \"messages\": $messages, \"n\": 40, \"temperature\": 1.5, \"max_tokens\": 200, \"response_format\": {\"type\": \"json_object\"}, \"stream\": $streams}"
    [ $streams = true ] && joined > "$dir/whole"
    check "JSON objects, stream $streams: $code $(head -c 300 "$dir/out")" "$python" - "$dir/out" "$dir/whole" $streams << 'END'
import json, sys
if sys.argv[3] == "true":
    texts, reasons = json.load(open(sys.argv[2]))[:2]
else:
    choices = json.load(open(sys.argv[1]))["choices"]
    texts, reasons = [c["message"]["content"] for c in choices], [c["finish_reason"] for c in choices]
assert len(texts) == 40 and "stop" in reasons
assert all(isinstance(json.loads(text), dict) for text, reason in zip(texts, reasons) if reason == "stop")
END
done
ask / '' -H 'Accept: text/html'
check "the page" [ "$code" = 200 -a "$(grep -c '</html>' "$dir/out")" = 1 ]
check "its policy" grep -qi "^content-security-policy: default-src 'none'" "$dir/head"

# --- errors
text='"model": "model", "prompt": "It"'
chat="\"model\": \"model\", \"messages\": $messages"
wrong "no JSON" 400 None "the body:1:" /v1/completions '{"model"'
wrong "a list" 400 None "expected a JSON object" /v1/completions '[]'
wrong "no model" 400 model "it is missing" /v1/completions '{"prompt": "x"}'
wrong "an unknown model" 404 model "expected one of model, tuned, same" /v1/completions '{"model": "gpt-4", "prompt": "x"}'
wrong "no prompt" 400 prompt "it is missing" /v1/completions '{"model": "model"}'
wrong "a number as prompt" 400 prompt "expected a text" /v1/completions '{"model": "model", "prompt": 3}'
wrong "an id beyond" 400 prompt "99999" /v1/completions '{"model": "model", "prompt": [1, 99999]}'
wrong "an empty prompt" 400 prompt "expected at least one token" /v1/completions '{"model": "model", "prompt": ""}'
wrong "a long prompt" 400 prompt "the context 512" /v1/completions "{\"model\": \"model\", \"prompt\": \"$(seq -s' ' 600)\"}"
check "its code" [ "$(of 'a["error"]["code"]')" = context_length_exceeded ]
wrong "a typing error" 400 temprature "did you mean temperature?" /v1/completions "{$text, \"temprature\": 0}"
wrong "another route's field" 400 echo "no such field" /v1/chat/completions "{$chat, \"echo\": true}"
wrong "temperature" 400 temperature "from 0 to 2" /v1/completions "{$text, \"temperature\": 3}"
wrong "a text as number" 400 top_p "expected a number" /v1/completions "{$text, \"top_p\": \"1\"}"
wrong "n" 400 n "from 1 to 128" /v1/completions "{$text, \"n\": 0}"
wrong "a real n" 400 n "whole number" /v1/completions "{$text, \"n\": 1.5}"
wrong "max_tokens" 400 max_tokens "at most 512" /v1/completions "{$text, \"max_tokens\": 100000}"
wrong "no token" 400 max_tokens "at least 1" /v1/completions "{$text, \"max_tokens\": 0}"
wrong "best_of" 400 best_of "isn't honoured" /v1/completions "{$text, \"best_of\": 2}"
wrong "suffix" 400 suffix "isn't honoured" /v1/completions "{$text, \"suffix\": \"x\"}"
wrong "stop" 400 stop "empty" /v1/completions "{$text, \"stop\": [\"a\", \"\"]}"
wrong "a bias" 400 logit_bias "no token id" /v1/completions "{$text, \"logit_bias\": {\"x\": 1}}"
wrong "a bias beyond" 400 logit_bias "99999" /v1/completions "{$text, \"logit_bias\": {\"99999\": 1}}"
wrong "usage without a stream" 400 stream_options "needs" /v1/completions "{$text, \"stream_options\": {\"include_usage\": true}}"
wrong "top without logprobs" 400 top_logprobs "needs" /v1/chat/completions "{$chat, \"top_logprobs\": 2}"
wrong "a schema" 400 response_format "schema" /v1/chat/completions "{$chat, \"response_format\": {\"type\": \"json_schema\"}}"
wrong "a forced call without tools" 400 tool_choice "there are no tools" /v1/chat/completions "{$chat, \"tool_choice\": \"required\"}"
one_tool='"tools": [{"type": "function", "function": {"name": "f"}}]'
wrong "a forced call of a template without calls" 400 tool_choice "a call can't be forced" /v1/chat/completions "{$chat, $one_tool, \"tool_choice\": \"required\"}"
wrong "a tool that isn't there" 400 tool_choice "no function g among" /v1/chat/completions "{$chat, $one_tool, \"tool_choice\": {\"type\": \"function\", \"function\": {\"name\": \"g\"}}}"
wrong "no tool_choice" 400 tool_choice "expected \"auto\"" /v1/chat/completions "{$chat, $one_tool, \"tool_choice\": {\"type\": \"function\"}}"
wrong "one call" 400 parallel_tool_calls "unless tool_choice forces one" /v1/chat/completions "{$chat, $one_tool, \"parallel_tool_calls\": false}"
wrong "tools that aren't printed" 400 tools "prints no tools" /v1/chat/completions "{$chat, \"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]}"
wrong "messages among the template's variables" 400 chat_template_kwargs "it has messages" /v1/chat/completions "{$chat, \"chat_template_kwargs\": {\"messages\": []}}"
wrong "no messages" 400 messages "empty list" /v1/chat/completions '{"model": "model", "messages": []}'
wrong "an image" 400 messages "image_url" /v1/chat/completions '{"model": "model", "messages": [{"role": "user", "content": [{"type": "image_url"}]}]}'
wrong "many numbers" 400 logprobs "at most 1048576" /v1/completions "{$text, \"n\": 128, \"max_tokens\": 500, \"logprobs\": 20}"
wrong "tokenize: an unknown model" 404 model "expected one of" /tokenize '{"model": "gpt-4", "prompt": "x"}'
wrong "tokenize: an unknown field" 400 promt "did you mean prompt?" /tokenize '{"promt": "x"}'
wrong "tokenize: tools that aren't printed" 400 tools "prints no tools" /tokenize "{$chat, \"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]}"
wrong "echo and penalties" 400 echo "penalties" /v1/completions "{$text, \"echo\": true, \"logprobs\": 1, \"presence_penalty\": 1}"
wrong "too many texts" 400 None "at most 1040" /v1/completions "{\"model\": \"model\", \"prompt\": [$(printf '"a",%.0s' {1..20})\"a\"], \"n\": 100}"
ask /v1/chat/completions "{$chat, \"max_tokens\": 1, \"user\": \"me\", \"metadata\": {}, \"store\": false, \"service_tier\": \"auto\", \"parallel_tool_calls\": true, \"response_format\": {\"type\": \"text\"}, \"tools\": [], \"tool_choice\": \"auto\", \"n\": null, \"functions\": null}"
check "fields that change nothing: $(cat "$dir/out")" [ "$code" = 200 ]

# --- who may ask
ask /v1/models '' -H 'Host: evil.example'
check "another Host: $code $(cat "$dir/out")" [ "$code" = 403 ]
for host in localhost 127.0.0.1:1234 '[::1]:9'; do
    ask /v1/models '' -H "Host: $host"
    check "Host $host: $code" [ "$code" = 200 ]
done
ask /v1/models '' -H 'Origin: http://evil.example'
check "a page of elsewhere: $code" [ "$code" = 403 ]
ask /v1/models '' -H "Origin: $url"
check "the server's own page: $code" [ "$code" = 200 ]
ask /metrics
check "metrics: $(cat "$dir/out")" grep -qF 'surogate_requests_total{path="/v1/models",status="403"} 2' "$dir/out"
ask '/none' '' -X BREW
check "no HTTP: $code" [ "$code" = 501 ]
ask /metrics
check "what is refused before it is a request is counted: $(cat "$dir/out")" grep -qF 'surogate_requests_total{path="other",status="501"} 1' "$dir/out"
check "and logged: $(tail -3 "$dir/said")" grep -qE '^refused, 501: .' "$dir/said"
check "no request's text in the log" [ "$(grep -c 'What' "$dir/said")" = 0 ]
check "a line for each: $(tail -3 "$dir/said")" grep -qE '^POST /v1/completions 200, [0-9]+ tokens, [0-9]+ ms$' "$dir/said"

# --- SIGTERM: requests that have begun end, new ones are refused
long="{$text, \"max_tokens\": 400, \"ignore_eos\": true, \"stream\": true, \"n\": 16}"
curl -sN -m 60 -H 'Content-Type: application/json' -d "$long" "$url/v1/completions" > "$dir/stream" &
client=$!
for _ in $(seq 600); do
    [ -s "$dir/stream" ] && break
    sleep 0.02
done
kill -TERM $pid
for _ in $(seq 100); do
    grep -q finishing "$dir/said" && break
    sleep 0.02
done
ask /health
check "what comes is refused: $code" [ "$code" = 503 -o "$code" = 000 ]
wait $client
check "what was begun ends" [ "$(tail -2 "$dir/stream" | head -1)" = "data: [DONE]" -a "$(grep -c '"finish_reason":"length"' "$dir/stream")" = 16 ]
ended
check "SIGTERM ends it with 0: $status $(tail -3 "$dir/said")" [ "$status" = 0 ]

# --- keys, a full queue, a client that goes, a second signal
printf 'first-key\n\n  second-key \n' > "$dir/keys"
ln -s model "$dir/linked"
ln -s tuned "$dir/by-name"
model=$dir/linked/
text='"model": "linked", "prompt": "It"'
serve --adapter "$dir/by-name/" --adapter "$dir/same/." --api-key-file "$dir/keys" --places 1 --max-queue 0 --log-requests --allow-host chat.example --max-tokens 450
for key in none wrong first-ke first-keyy; do
    ask /v1/models '' -H "Authorization: Bearer $key"
    check "key $key: $code" [ "$code" = 401 ]
done
for key in first-key second-key; do
    ask /v1/models '' -H "Authorization: Bearer $key"
    check "key $key: $code" [ "$code" = 200 ]
done
ask /health
check "health needs none: $code" [ "$code" = 200 ]
ask /health '' -H 'Host: chat.example:443'
check "--allow-host: $code" [ "$code" = 200 ]
ask /v1/models '' -H 'Authorization: Bearer first-key'
check "a link has its own name, and so has the folder behind a dot: $(cat "$dir/out")" [ "$(of '[m["id"] for m in a["data"]]')" = "['linked', 'by-name', 'same']" ]
auth=(-H 'Authorization: Bearer first-key')
ask /v1/completions "{$text, \"max_tokens\": 451}" "${auth[@]}"
check "--max-tokens: $(cat "$dir/out")" [ "$code" = 400 -a "$(of 'a["error"]["param"]')" = max_tokens ]
curl -sN -m 60 -H 'Content-Type: application/json' "${auth[@]}" -d "{$text, \"max_tokens\": 450, \"ignore_eos\": true, \"stream\": true, \"logit_bias\": {\"40\": 100}}" "$url/v1/completions" > "$dir/stream" &
client=$!
for _ in $(seq 600); do
    [ -s "$dir/stream" ] && break
    sleep 0.01
done
ask /v1/completions "{$text, \"max_tokens\": 2}" "${auth[@]}"
full=$code
kill $client 2> /dev/null
wait $client 2> /dev/null
for _ in $(seq 100); do
    ask /v1/completions "{$text, \"max_tokens\": 2}" "${auth[@]}"
    [ "$code" = 200 ] && break
    sleep 0.02
done
check "the queue was full, or the text was done: $full" [ "$full" = 429 -o "$full" = 200 ]
check "a place is free again: $code" [ "$code" = 200 ]
ask /metrics '' "${auth[@]}"
check "no text is left" grep -qF 'surogate_texts_running 0' "$dir/out"
check "--log-requests: $(cat "$dir/said")" grep -qE 'prompt: It$' "$dir/said"
ask /v1/completions '{"model": "linked", "prompt": "It\nis\r\u001b", "max_tokens": 0, "echo": true}' "${auth[@]}"
check "a logged text is one line: $(cat "$dir/said")" grep -qF 'prompt: It\nis\r\x1b' "$dir/said"
curl -sN -m 60 -H 'Content-Type: application/json' "${auth[@]}" -d "{$text, \"max_tokens\": 450, \"ignore_eos\": true, \"stream\": true}" "$url/v1/completions" > "$dir/stream" &
client=$!
kill -STOP $pid # so that both signals reach it while it serves
kill -TERM $pid
kill -INT $pid
kill -CONT $pid
ended
check "a second signal ends it at once, or the answers were done: $status" [ "$status" = 130 -o "$status" = 143 -o "$status" = 0 ]
wait $client 2> /dev/null

# --- what can't be served
serve
refused "a port that is taken" 1 "$(echo "$url" | grep -o '[0-9]*$')" -- serve "$model" --port "$(echo "$url" | grep -o '[0-9]*$')" --device cpu
kill $pid
ended
refused "no such host" 2 "nowhere.invalid" -- serve "$model" --host nowhere.invalid --port 0 --device cpu
refused "a long context" 2 "--context 513" -- serve "$model" --context 513 --port 0 --device cpu
refused "few pages" 2 "--pages 3: one text of 512 tokens needs 16" -- serve "$model" --pages 3 --port 0 --device cpu
echo > "$dir/keys"
refused "no keys" 2 "has no keys" -- serve "$model" --api-key-file "$dir/keys" --port 0 --device cpu
printf 'one\r\n\ntwo words\n' > "$dir/keys"
refused "a key with a blank" 2 "keys:3: " "blank" -- serve "$model" --api-key-file "$dir/keys" --port 0 --device cpu
check "which isn't told: $(cat "$dir/err")" [ "$(grep -c words "$dir/err")" = 0 ]
printf 'one\n  # mine\n' > "$dir/keys"
refused "a comment among keys" 2 "keys:2: " "#" -- serve "$model" --api-key-file "$dir/keys" --port 0 --device cpu
printf '\xef\xbb\xbfone\n' > "$dir/keys"
refused "a byte order mark before keys" 2 "keys:1: a byte order mark" -- serve "$model" --api-key-file "$dir/keys" --port 0 --device cpu
refused "a port beyond" 2 "--port 70000" -- serve "$model" --port 70000
refused "two of a name" 2 "both called model" -- serve "$dir/model" --adapter model="$dir/tuned" --port 0 --device cpu
refused "no adapter" 2 "nowhere" -- serve "$model" --adapter x="$dir/nowhere" --port 0 --device cpu

# --- a model whose template prints tools and calls, as Hermes' does: forced calls
cp -r "$model" "$dir/calling"
cat > "$dir/calling/chat_template.jinja" << 'END'
{% for t in tools or [] %}{{ t.function.name }} {% endfor %}
{% for m in messages %}
<|im_start|>{{ m.role }}
{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}
{% if add_generation_prompt %}
<|im_start|>assistant
{% endif %}
END
model=$dir/calling
serve
tools='"tools": [{"type": "function", "function": {"name": "look"}}, {"type": "function", "function": {"name": "look_up"}}, {"type": "function", "function": {"name": "add"}}]'
talk='"model": "calling", "messages": [{"role": "user", "content": "What is 7?"}], "seed": 5, '$tools
calls() { of '[(c["finish_reason"], c["message"]["content"], [(t["function"]["name"], type(json.loads(t["function"]["arguments"]))) for t in c["message"].get("tool_calls", [])]) for c in a["choices"] if c["finish_reason"] != "length"]'; }
ask /v1/chat/completions "{$talk, \"tool_choice\": \"required\", \"parallel_tool_calls\": false, \"n\": 16, \"temperature\": 1.5, \"max_tokens\": 300}"
calls > "$dir/called"
check "each answer is one call: $(cat "$dir/called")" "$python" - "$dir/called" << 'END'
import sys
calls = eval(open(sys.argv[1]).read().replace("<class 'dict'>", "dict"))
names = {call[2][0][0] for call in calls}
assert len(calls) > 8 and all(call[:2] == ("tool_calls", None) and len(call[2]) == 1 and call[2][0][1] is dict for call in calls)
assert names <= {"look", "look_up", "add"} and len(names) > 1, names
END
named='"tool_choice": {"type": "function", "function": {"name": "look_up"}}'
ask /v1/chat/completions "{$talk, $named, \"n\": 8, \"max_tokens\": 300}"
check "the function that is named is called: $(calls)" [ "$(calls)" = "$(calls | sed "s/'look'/''/g; s/'add'/''/g")" -a -n "$(calls | grep look_up)" ]
ask /v1/chat/completions "{$talk, $named, \"max_tokens\": 3}"
check "a call that is cut: $(cat "$dir/out")" [ "$(of 'a["choices"][0]["finish_reason"] + " " + a["choices"][0]["message"]["tool_calls"][0]["function"]["name"]')" = "length look_up" ]
ask /v1/chat/completions "{$talk, \"tool_choice\": \"required\", \"max_tokens\": 1}"
check "one that is cut before its name is none: $(cat "$dir/out")" [ "$(of '(a["choices"][0]["finish_reason"], a["choices"][0]["message"]["content"], "tool_calls" in a["choices"][0]["message"])')" = "('length', '', False)" ]
ask /v1/chat/completions "{$talk, $named, \"max_tokens\": 300}"
of 'a["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]' > "$dir/whole"
ask /v1/chat/completions "{$talk, $named, \"max_tokens\": 300, \"stream\": true}"
"$python" - "$dir/out" > "$dir/streamed" << 'END'
import json, sys
deltas = [json.loads(line[6:])["choices"][0]["delta"] for line in open(sys.argv[1], encoding="utf-8") if line.startswith("data: {")]
print("".join(call["function"]["arguments"] for delta in deltas for call in delta.get("tool_calls", [])))
assert not any(delta.get("content") for delta in deltas)
END
check "streamed, the same: $(diff "$dir/whole" "$dir/streamed")" cmp "$dir/whole" "$dir/streamed"
wrong "a call and JSON" 400 tool_choice "response_format asks" /v1/chat/completions "{$talk, $named, \"response_format\": {\"type\": \"json_object\"}}"
kill -TERM $pid
ended
check "it ends: $status" [ "$status" = 0 ]
finish
