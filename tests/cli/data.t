#!/bin/bash
# render, encode, inspect and tokenize: their output, and their messages for bad input.
cd "$(dirname "$0")/../.." || exit 1
. tests/chat.sh
make_chat
model=$dir/model

# says NAME: the last run ended well, and its stdout equals stdin byte for byte.
says() {
    if [ "$status" = 0 ] && cmp -s - "$dir/out"; then pass; else fail "$1: exit $status: $(head -c 300 "$dir/out" "$dir/err")"; fi
}
# prints NAME TEXT...: the last run ended well, and its stdout contains each text.
prints() {
    local name=$1 text
    shift
    for text; do
        if [ "$status" != 0 ] || ! grep -qF -e "$text" "$dir/out"; then
            fail "$name: exit $status, expected \"$text\" in: $(head -c 600 "$dir/out" "$dir/err")"
            return
        fi
    done
    pass
}

# --- render
echo '[{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello\n"}]' > "$dir/m.json"
run render "$model" --messages "$dir/m.json"
says "a conversation" << 'END'
<|im_start|>user
hi<|im_end|>
<|im_start|>assistant
hello
<|im_end|>
END
echo '{"messages": [{"role": "user", "content": "hi"}]}' > "$dir/object.json"
run render "$model" --messages "$dir/object.json" --add-generation-prompt
says "an object with messages, and the generation prompt" << 'END'
<|im_start|>user
hi<|im_end|>
<|im_start|>assistant
END
mkdir "$dir/only"
echo -n '{{ bos_token }}{{ tools | length }} {{ tools[0].function.name }} {{ flag is true }} {{ name }} {{ n + 1 }}' > "$dir/only/chat_template.jinja"
echo '{"bos_token": {"content": "<s>"}}' > "$dir/only/tokenizer_config.json"
echo '[{"type": "function", "function": {"name": "look"}}]' > "$dir/tools.json"
run render "$dir/only" --messages "$dir/m.json" --tools "$dir/tools.json" --var flag=true --var name=Ada --var n=2
printf '<s>1 look True Ada 3' | says "tools, variables, special tokens of a folder without a tokenizer"
echo '{"chat_template": [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]}' > "$dir/named.json"
mkdir "$dir/named" && mv "$dir/named.json" "$dir/named/tokenizer_config.json"
run render "$dir/named" --messages "$dir/m.json" --tools "$dir/tools.json"
printf 'tools' | says "the template for tools is taken by itself"
run render "$dir/named" --messages "$dir/m.json" --tools "$dir/tools.json" --template default
printf 'plain' | says "a template by its name"
refused "no such template" 2 "named 'rag'" -- render "$dir/named" --messages "$dir/m.json" --template rag
mkdir "$dir/none" && echo '{}' > "$dir/none/tokenizer_config.json"
refused "a folder without a template" 2 "has no chat template" chat_template.jinja -- render "$dir/none" --messages "$dir/m.json"
refused "no such folder" 2 "$dir/absent" -- render "$dir/absent" --messages "$dir/m.json"
refused "no messages" 2 "--messages FILE is missing" -- render "$model"
refused "a flag's near miss" 2 "did you mean --messages" -- render "$model" --mesages "$dir/m.json"
printf '[{"role": "user",\n "content": }]' > "$dir/bad.json"
refused "messages that aren't JSON" 2 "bad.json:2:" -- render "$model" --messages "$dir/bad.json"
echo '"hi"' > "$dir/text.json"
refused "messages that are no list" 2 "text.json" "expected a list of messages" string -- render "$model" --messages "$dir/text.json"
refused "a variable without a value" 2 "--var flag" NAME=VALUE -- render "$model" --messages "$dir/m.json" --var flag
mkdir "$dir/raise" && printf 'a\n{%% if true %%}\n{{ raise_exception("roles must alternate") }}{%% endif %%}' > "$dir/raise/chat_template.jinja"
refused "what the template raises" 2 "chat_template.jinja:3" "roles must alternate" -- render "$dir/raise" --messages "$dir/m.json"
printf 'a\n{%% frobnicate %%}' > "$dir/raise/chat_template.jinja"
refused "what we don't support" 2 "chat_template.jinja:2" frobnicate -- render "$dir/raise" --messages "$dir/m.json"

# --- the arguments of tool calls: objects or JSON text, as the template takes them, the same as in training
said() { printf '[{"role": "user", "content": "q"}, {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": %s}}]}]' "$1"; }
said '{"x": 1}' > "$dir/object.json"
said '"{\"x\": 1}"' > "$dir/text.json"
said '"no JSON"' > "$dir/broken.json"
cp -r "$model" "$dir/calls"
calls() { printf '{%% for m in messages %%}{{ m.role }} {{ m.content }}{%% for c in m.tool_calls or [] %%}%s{%% endfor %%};{%% endfor %%}' "$1" > "$dir/calls/chat_template.jinja"; }
for kind in object text; do
    for form in '{{ c.function.arguments.x }}' '{{ c.function.arguments | tojson }}' '{{ "=" + c.function.arguments }}'; do
        calls "$form"
        case $form in *.x*) want=1 ;; *tojson*) want='{"x": 1}' ;; *) want='={"x": 1}' ;; esac
        run render "$dir/calls" --messages "$dir/$kind.json"
        printf 'user q;assistant %s;' "$want" | says "$kind, $form"
        printf '{"messages": %s}\n' "$(cat "$dir/$kind.json")" > "$dir/calls.jsonl"
        run inspect "$dir/calls.jsonl" --model "$dir/calls" --rows 1
        prints "training: $kind, $form" "$want"
    done
done
calls '{{ c.function.arguments }}'
run render "$dir/calls" --messages "$dir/broken.json"
printf 'user q;assistant no JSON;' | says "a text that isn't JSON"
calls '{{ c.function.arguments.none.y }}'
refused "arguments that the template refuses in both forms" 2 "chat_template.jinja:1" -- render "$dir/calls" --messages "$dir/text.json"

# --- encode
printf 'What is 3?' > "$dir/t.txt"
run encode "$model" --text "$dir/t.txt" --json
cp "$dir/out" "$dir/plain"
prints "ids" '{"ids":['
cp -r "$dir/tokenizer" "$dir/bos"
sed -i 's/"add_bos_token": false/"add_bos_token": true/; s/"bos_token": null/"bos_token": "<|endoftext|>"/' "$dir/bos/tokenizer_config.json"
run encode "$dir/bos" --text "$dir/t.txt" --json
sed 's/\[/[0,/' "$dir/plain" | says "BOS where the tokenizer adds it"
run encode "$dir/bos" --text "$dir/t.txt" --json --no-special
says "no BOS with --no-special" < "$dir/plain"
refused "no text" 2 "--text FILE is missing" -- encode "$model"
refused "no such text" 2 "$dir/absent.txt" -- encode "$model" --text "$dir/absent.txt"

# --- inspect: ids are those of the rendered text, the mask covers the answers with their stop tokens
run inspect "$dir/chats.jsonl" --model "$model" --json
check "a line for every row" [ "$(wc -l < "$dir/out")" = 300 ]
sed -n 3p "$dir/out" > "$dir/row"
sed -n 3p "$dir/chats.jsonl" > "$dir/chat.json"
run render "$model" --messages "$dir/chat.json"
cp "$dir/out" "$dir/rendered.txt"
run encode "$model" --text "$dir/rendered.txt" --json
check "trained ids are served ids" [ "$(sed -E 's/.*"ids": \[([^]]*)\].*/\1/' "$dir/row")" = "$(sed -E 's/.*\[(.*)\].*/\1/' "$dir/out")" ]
# trained ROW: the trained ids and their number.
trained() {
    local ids mask
    IFS=, read -ra ids <<< "$(sed -E 's/.*"ids": \[([^]]*)\].*/\1/' "$1")"
    IFS=, read -ra mask <<< "$(sed -E 's/.*"mask": \[([^]]*)\].*/\1/' "$1")"
    [ ${#ids[@]} = ${#mask[@]} ] || echo "lengths differ"
    for i in "${!ids[@]}"; do [ "${mask[$i]}" = 1 ] && echo -n "${ids[$i]} "; done
}
answers=
for answer in 'It is 4.<|im_end|>' 'Yes, 4 it is.<|im_end|>'; do
    printf '%s' "$answer" > "$dir/answer.txt"
    answers+="$("$SUROGATE" encode "$model" --text "$dir/answer.txt") "
done
check "the answers are trained: $(trained "$dir/row") | $answers" [ "$(trained "$dir/row")" = "$answers" ]
run inspect "$dir/chats.jsonl" --model "$model" --json --rows 3 train_on=last_turn
sed -n 3p "$dir/out" > "$dir/row"
printf 'Yes, 4 it is.<|im_end|>' > "$dir/answer.txt"
check "train_on=last_turn" [ "$(trained "$dir/row")" = "$("$SUROGATE" encode "$model" --text "$dir/answer.txt") " ]
run inspect "$dir/chats.jsonl" --model "$model" --json --rows 1 train_on=all
check "train_on=all, but the first token" [ "$(grep -c '"mask": \[0[,1]*,1\]' "$dir/out")" = 1 ]
printf 'A text of some words.\n' > "$dir/words.txt"
run inspect "$dir/words.txt" --model "$model" --json
check "a text, but its first token" [ "$(grep -c '"mask": \[0[,1]*,1\]' "$dir/out")" = 1 ]
run inspect "$dir/chats.jsonl" --model "$model" --rows 1 sequence_len=64
prints "the view for people" "[[It is 8.<|im_end|>]]" "format     conversation (messages: messages[].role/content)" "rows       300" "of which" \
    "sequences of 64" "% filled" "lengths, in tokens"
run inspect "$dir/chats.jsonl" --model "$model" --json
cp "$dir/out" "$dir/own"
cp -r "$model" "$dir/bare"
rm -f "$dir/bare/chat_template.jinja"
sed -i '/"chat_template"/d' "$dir/bare/tokenizer_config.json"
sed '1s/{/{"score": NaN, "more": [-Infinity], /' "$dir/chats.jsonl" > "$dir/nan.jsonl"
run inspect "$dir/nan.jsonl" --model "$model" --json --rows 1
cp "$dir/out" "$dir/nan.out"
run inspect "$dir/chats.jsonl" --model "$model" --json --rows 1
check "NaN in a field that isn't used" cmp "$dir/out" "$dir/nan.out"
printf '%s\n' "model: $model" "datasets: [{path: $dir/chats.jsonl}]" "sequence_len: 64" > "$dir/file.yaml"
touch "$dir/file"
refused "an output_dir that is a file" 2 "cannot make the folder $dir/file/data" "$dir/file is a file" -- tokenize "$dir/file.yaml" output_dir="$dir/file"
refused "no chat template" 2 "set chat_template: chatml" -- inspect "$dir/chats.jsonl" --model "$dir/bare"
run inspect "$dir/chats.jsonl" --model "$dir/bare" --json chat_template=chatml
check "the built-in ChatML: the ids and masks of the model's own" cmp "$dir/own" "$dir/out"
echo '{"question": "why?", "answer": "because"}' > "$dir/qa.jsonl"
run inspect "$dir/qa.jsonl" --model "$model"
prints "questions and answers" "instruction (question -> answer)" "[[because<|im_end|>]]"
run inspect "$dir/qa.jsonl" --model "$dir/none/../bos" prompt_format='Q: {instruction} A:'
prints "a prompt format" "Q: why? A:[[because<|im_end|>]]"

# --- bad rows
{ head -2 "$dir/chats.jsonl"; echo '{"messages": [{"role": "user" "content": "x"}]}'; seq 1 7 | sed 's/.*/{"messages": []}/'; tail -2 "$dir/chats.jsonl"; } > "$dir/bad.jsonl"
for command in "inspect $dir/bad.jsonl --model $model --rows 0" "tokenize model=$model datasets.0.path=$dir/bad.jsonl output_dir=$dir/t0"; do
    refused "a bad row stops: ${command%% *}" 2 "bad.jsonl:3:" -- $command
done
refused "and says how to go on without it" 2 "on_bad_row: skip" -- tokenize model="$model" datasets.0.path="$dir/bad.jsonl" output_dir="$dir/t0"
run inspect "$dir/bad.jsonl" --model "$model" --json on_bad_row=skip
check "bad rows are skipped" [ "$status$(wc -l < "$dir/out")" = 04 ]
check "five are shown: $(cat "$dir/err")" [ "$(grep -c 'bad.jsonl:[0-9]*:' "$dir/err")" = 5 ]
check "and counted" grep -q "8 bad rows" "$dir/err"
run tokenize model="$model" datasets.0.path="$dir/bad.jsonl" output_dir="$dir/t1" datasets.0.on_bad_row=skip
check "tokenize counts skipped rows: $(cat "$dir/err")" grep -q "8 bad rows were skipped" "$dir/err"
check "and shows five" [ "$(grep -c 'bad.jsonl:[0-9]*:' "$dir/err")" = 5 ]
echo '{"messages": [{"role": "user", "content": "x"}]}' > "$dir/untrained.jsonl"
mkdir "$dir/no_template"
for file in "$model"/*; do case $file in *chat_template*) ;; *) cp "$file" "$dir/no_template" ;; esac; done
for skip in "" datasets.0.on_bad_row=skip; do
    # shellcheck disable=SC2086
    refused "a model without a template, $skip" 2 "conversations need a chat template" -- tokenize model="$dir/no_template" \
        datasets.0.path="$dir/chats.jsonl" output_dir="$dir/t3" $skip
    check "which is no row's fault: $(cat "$dir/err")" [ "$(grep -c on_bad_row "$dir/err")" = 0 ]
done
refused "nothing to train on" 2 "untrained.jsonl" "nothing to train on" -- tokenize model="$model" datasets.0.path="$dir/untrained.jsonl" output_dir="$dir/t2"
echo '{"messages": "hello"}' > "$dir/wrong.jsonl"
refused "a field of the wrong kind" 2 "wrong.jsonl:1" "list of messages" -- inspect "$dir/wrong.jsonl" --model "$model" type=conversation
refused "another type" 2 "chats.jsonl:1" "text_field" -- inspect "$dir/chats.jsonl" --model "$model" type=text
refused "a key's near miss" 2 "did you mean type" -- inspect "$dir/chats.jsonl" --model "$model" tpye=text
refused "a value out of its set" 2 "conversation" -- inspect "$dir/chats.jsonl" --model "$model" type=chatty
refused "a near miss in a mapping" 2 "unknown key rolle" "did you mean role" -- inspect "$dir/chats.jsonl" --model "$model" message_property_mappings='{rolle: from}'
refused "a placeholder's near miss" 2 "qa.jsonl:1" "{instrction} is none of" -- inspect "$dir/qa.jsonl" --model "$model" prompt_format='Q: {instrction}'
sed 's/{% for message in messages %}/&{% if message.role in ["user", "assistant"] %}/; s/{% endfor %}/{% endif %}&/' "$dir/tokenizer/chat_template.jinja" > "$dir/two.jinja"
turns='{"role": "user", "content": "why?"}, {"role": "assistant", "content": "because"}'
echo "{\"messages\": [{\"role\": \"critic\", \"content\": \"be brief\"}, $turns]}" > "$dir/critic.jsonl"
refused "a role of which the template prints nothing" 2 "critic.jsonl:1" "nothing of the role \"critic\"" -- inspect "$dir/critic.jsonl" --model "$model" chat_template="$dir/two.jinja"
{ echo "{\"messages\": [$turns]}"; echo "{\"messages\": [$turns, {\"role\": \"tool\", \"content\": \"result\"}]}"; } > "$dir/unprinted.jsonl"
run inspect "$dir/unprinted.jsonl" --model "$model" chat_template="$dir/two.jinja"
prints "contents that aren't printed" "unprinted  1 messages have a content that the chat template doesn't print" "unprinted.jsonl:2"
run tokenize model="$model" datasets.0.path="$dir/unprinted.jsonl" output_dir="$dir/t3" chat_template="$dir/two.jinja"
check "are warned of: $(cat "$dir/err")" grep -q "1 messages have a content that.*the first: .*unprinted.jsonl:2" "$dir/err"
run tokenize model="$model" datasets.0.path="$dir/unprinted.jsonl" output_dir="$dir/t3" chat_template="$dir/two.jinja"
check "out of the cache too: $(cat "$dir/err")" grep -q "the first: .*unprinted.jsonl:2" "$dir/err"
refused "no such dataset" 2 "$dir/absent.jsonl" -- inspect "$dir/absent.jsonl" --model "$model"
refused "no model" 2 "usage: surogate inspect" -- inspect "$dir/chats.jsonl"
: > "$dir/empty.jsonl"
refused "an empty dataset" 2 "empty.jsonl" "empty" -- inspect "$dir/empty.jsonl" --model "$model"
printf '  \n ' > "$dir/blank.txt"
refused "a dataset of blanks" 2 "blank.txt" "empty" -- inspect "$dir/blank.txt" --model "$model"
cp "$dir/t.txt" "$dir/t.xlsx"
for command in "inspect $dir/t.xlsx --model $model" "tokenize model=$model datasets.0.path=$dir/t.xlsx output_dir=$dir/t0"; do
    refused "an unknown ending: ${command%% *}" 2 "t.xlsx" ".parquet" "type: text" -- $command
done
run inspect "$dir/t.xlsx" --model "$model" type=text
check "any ending with type: text" [ "$status" = 0 ]
for name in '[v2] x.jsonl' '{a,b}.jsonl'; do
    head -2 "$dir/chats.jsonl" > "$dir/$name"
    (cd "$dir" && "$SUROGATE" inspect "$name" --model "$model" --rows 0) > "$dir/out" 2> "$dir/err"
    check "a file named $name: $(cat "$dir/err")" grep -q "^rows       2" "$dir/out"
done
refused "weights as text" 2 "model.safetensors" "NUL byte at offset" -- inspect "$model/model.safetensors" --model "$model" type=text
refused "a field that isn't there" 2 "chats.jsonl:1" "messages_field" conv -- inspect "$dir/chats.jsonl" --model "$model" messages_field=conv
printf 'a,b\n1,"x\n' > "$dir/open.csv"
refused "an open quote in CSV" 2 "open.csv" -- inspect "$dir/open.csv" --model "$model"
printf 'PAR1junkPAR1' > "$dir/junk.parquet"
refused "a damaged parquet" 2 "junk.parquet" -- inspect "$dir/junk.parquet" --model "$model"

mkdir "$dir/plainmodel" && cp "$dir/tokenizer/"*.json "$dir/plainmodel/"
mkdir -p "$dir/named/zephyr"
printf '{%% for m in messages %%}OWN {{ m.content }}{%% endfor %%}' > "$dir/named/llama3"
for name in llama3 zephyr; do
    (cd "$dir/named" && "$SUROGATE" inspect "$dir/chats.jsonl" --model "$(realpath "$model")" chat_template=$name > "$dir/$name" 2>&1)
done
check "a file named as a built-in template comes first: $(head -3 "$dir/llama3")" grep -q "OWN " "$dir/llama3"
check "a folder doesn't: $(head -3 "$dir/zephyr")" grep -q "<|user|>" "$dir/zephyr"
refused "no such template file" 2 "chat_template: expected a Jinja text, the path of one, or a built-in one: chatml, llama3, " chatmll -- inspect "$dir/chats.jsonl" --model "$model" chat_template=chatmll
printf '%s' '{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}' \
    > "$dir/other.jinja"
run inspect "$dir/chats.jsonl" --model "$dir/plainmodel" --rows 1 chat_template="$dir/other.jinja"
prints "a template of the run" "<user>What is 1 plus 7?<|im_end|><assistant>[[It is 8.<|im_end|>]]"
refused "conversations without a template" 2 "chat template" chat_template -- inspect "$dir/chats.jsonl" --model "$dir/plainmodel"

# --- turns that teach nothing
{
    echo '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": null, "tool_calls": [{"type": "function", "function": {"name": "look", "arguments": {}}}]}]}'
    echo '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "ok", "tool_calls": [{"type": "function", "function": {"name": "look", "arguments": {}}}]}]}'
    echo '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": null}, {"role": "user", "content": "b"}, {"role": "assistant", "content": " "}]}'
    echo '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "", "train": false}, {"role": "user", "content": "b"}, {"role": "assistant", "content": ""}]}'
    head -1 "$dir/chats.jsonl"
} > "$dir/calls.jsonl"
for again in 1 2; do
    run tokenize model="$model" datasets.0.path="$dir/calls.jsonl" output_dir="$dir/t4"
    check "calls that aren't printed, $again: $(cat "$dir/err")" grep -q "2 trained turns have tool calls that the chat template doesn't print" "$dir/err"
    check "answers without content, $again" grep -q "3 trained turns have neither content nor tool calls" "$dir/err"
done
run inspect "$dir/calls.jsonl" --model "$model" --rows 0
prints "inspect counts them" "no calls   2 trained turns" "empty      3 trained turns"
printf '%s' '{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ m.tool_calls | tojson if m.tool_calls }}{{ eos_token }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}' \
    > "$dir/calls.jinja"
run inspect "$dir/calls.jsonl" --model "$model" --rows 0 chat_template="$dir/calls.jinja"
check "calls that are printed" [ "$(grep -c 'no calls' "$dir/out")" = 0 ]

# --- tokenize --debug
run tokenize model="$model" datasets.0.path="$dir/chats.jsonl" output_dir="$dir/t3" sequence_len=64 --debug
prints "tokenize --debug" "[[It is 8.<|im_end|>]]" "packing" "lengths, in tokens"
run tokenize model="$model" datasets.0.path="$dir/chats.jsonl" output_dir="$dir/t3" sequence_len=64
check "the second time it is cached" grep -q "(cached)" "$dir/err"

# --- against the published ids and masks of torchtune's Qwen 2 tokenizer, which trains the header of an answer too
tiny=../shared/data/tokenizers/torchtune-tiny
if [ -d "$tiny" ]; then
    mkdir "$dir/tiny"
    cp "$tiny/tiny_bpe_tokenizer.json" "$dir/tiny/tokenizer.json"
    echo '{"eos_token": "<|im_end|>"}' > "$dir/tiny/tokenizer_config.json"
    template='{% for m in messages %}{% set open = "<|im_start|>" + m.role + "\n" + m.content %}{% if m.role == "assistant" %}'
    template+='{% generation %}{{ open }}{{ "<|im_end|>" if END }}{% endgeneration %}{{ "\n" if not loop.last }}'
    template+='{% else %}{{ open }}<|im_end|>{{ "\n" }}{% endif %}{% endfor %}'
    for case in 1 2; do
        end=true
        [ $case = 2 ] && end='not loop.last'
        printf '%s' "${template/END/$end}" > "$dir/tiny/chat_template.jinja"
        run inspect "$tiny/qwen2_messages.json" --model "$dir/tiny" --json
        tr -d ' \n' < "$tiny/qwen2_messages.json" | grep -oE '"expected_tokens":\[[^]]*\]' | sed -n "${case}s/.*\[\(.*\)\]/\1/p" > "$dir/ids"
        tr -d ' \n' < "$tiny/qwen2_messages.json" | grep -oE '"expected_mask":\[[^]]*\]' | sed -n "${case}s/.*\[\(.*\)\]/\1/p" |
            sed 's/true/0/g; s/false/1/g' > "$dir/mask"
        sed -n "${case}s/.*\"ids\": \[\([^]]*\)\].*/\1/p" "$dir/out" | cmp -s - "$dir/ids" && pass || fail "published ids, case $case"
        sed -n "${case}s/.*\"mask\": \[\([^]]*\)\].*/\1/p" "$dir/out" | cmp -s - "$dir/mask" && pass || fail "published mask, case $case"
    done
else
    skip "published masks: no ../shared"
fi
finish
