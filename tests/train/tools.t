#!/bin/bash
# A folder's template for tools: training uses it for rows that have tools, as render does, and saves it.
cd "$(dirname "$0")/../.." || exit 1
. tests/chat.sh
make_chat
mkdir "$dir/model/additional_chat_templates"
cat > "$dir/model/additional_chat_templates/tool_use.jinja" << 'END'
{% for message in messages %}
<|im_start|>{{ message.role }} of {{ tools[0].function.name }}
{{ message.content }}<|im_end|>
{% endfor %}
{% if add_generation_prompt %}
<|im_start|>assistant of {{ tools[0].function.name }}
{% endif %}
END
tools='[{"type": "function", "function": {"name": "calc", "parameters": {}}}]'
messages='[{"role": "user", "content": "What is 1 plus 1?"}, {"role": "assistant", "content": "It is 2."}]'
echo "$tools" > "$dir/tools.json"
echo "$messages" > "$dir/messages.json"
printf '{"messages": %s}\n{"messages": %s, "tools": %s}\n' "$messages" "$messages" "$tools" > "$dir/rows.jsonl"

run render "$dir/model" --messages "$dir/messages.json" --tools "$dir/tools.json"
cp "$dir/out" "$dir/rendered"
run inspect "$dir/rows.jsonl" --model "$dir/model" sequence_len=128
check "rows are shown" [ "$status" = 0 ]
sed '1,/^── row 1/d;/^ids/,$d' "$dir/out" | sed '/^$/d' > "$dir/shown"
check "a row with tools is laid out as render does it: $(cat "$dir/shown")" [ "$(sed 's/\[\[//;s/\]\]//' "$dir/shown")" = "$(cat "$dir/rendered")" ]
check "its answer is trained" grep -qF '[[It is 2.<|im_end|>]]' "$dir/shown"
check "a row without is laid out by the other" [ "$(grep -c 'of calc' "$dir/out")" = 2 ]

cat > "$dir/run.yaml" << END
model: $dir/model
datasets: [{path: $dir/rows.jsonl}]
sequence_len: 128
max_steps: 2
save_steps: 1
END
run sft "$dir/run.yaml" output_dir="$dir/whole"
check "it trains: $(tail -1 "$dir/err")" [ "$status" = 0 ]
check "the model keeps both" diff -r "$dir/model/additional_chat_templates" "$dir/whole/additional_chat_templates"
check "so does a checkpoint" diff -r "$dir/model/additional_chat_templates" "$dir/whole/checkpoint-1/additional_chat_templates"
check "its checksum is kept" grep -q '"additional_chat_templates/tool_use.jinja"' "$dir/whole/checkpoint-1/manifest.json"
run sft "$dir/run.yaml" output_dir="$dir/whole" max_steps=3 resume_from_checkpoint=true
check "it goes on: $(tail -1 "$dir/err")" [ "$status" = 0 ]

# --- a template in the run file lays out all rows, and only that template is saved
run sft "$dir/run.yaml" output_dir="$dir/own" chat_template=chatml lora=true
check "it trains an adapter: $(tail -1 "$dir/err")" [ "$status" = 0 ]
check "its folder has that template" grep -q 'im_start' "$dir/own/chat_template.jinja"
check "and no other" [ ! -e "$dir/own/additional_chat_templates" ]
run merge "$dir/model" "$dir/own" "$dir/merged"
check "it merges: $(tail -1 "$dir/err")" [ "$status" = 0 ]
check "the adapter's template counts" cmp "$dir/own/chat_template.jinja" "$dir/merged/chat_template.jinja"
check "alone" [ ! -e "$dir/merged/additional_chat_templates" ]
run sft "$dir/run.yaml" output_dir="$dir/adapter" lora=true
run merge "$dir/model" "$dir/adapter" "$dir/merged-both"
check "an adapter trained with both merges with both" diff -r "$dir/model/additional_chat_templates" "$dir/merged-both/additional_chat_templates"
finish
