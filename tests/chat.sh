# For tests of conversations: a tiny model with a ChatML template in $dir/model, and chats.jsonl of questions and answers.
# shellcheck shell=bash
. tests/shell.sh

# make_chat [key=value ...]: keys of config.json.
make_chat() {
    seq 1 300 | awk '{
        printf "{\"messages\": [{\"role\": \"user\", \"content\": \"What is %d plus %d?\"}, ", $1, $1 * 7 % 10
        printf "{\"role\": \"assistant\", \"content\": \"It is %d.\"}", $1 + $1 * 7 % 10
        if ($1 % 3 == 0) printf ", {\"role\": \"user\", \"content\": \"Sure?\"}, {\"role\": \"assistant\", \"content\": \"Yes, %d it is.\"}", $1 + $1 * 7 % 10
        print "]}" }' > "$dir/chats.jsonl"
    "$SUROGATE" tokenizer train --vocab-size 320 --special-tokens '<|endoftext|>,<|im_start|>,<|im_end|>' --eos-token '<|im_end|>' \
        --out "$dir/tokenizer" "$dir/chats.jsonl" 2> /dev/null
    cat > "$dir/tokenizer/chat_template.jinja" << 'END'
{% for message in messages %}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}
{% if add_generation_prompt %}
<|im_start|>assistant
{% endif %}
END
    "$SUROGATE" new --arch qwen3-tiny --random --tokenizer "$dir/tokenizer" "$dir/model" hidden_size=32 intermediate_size=48 \
        vocab_size=320 head_dim=8 max_position_embeddings=256 "$@" 2> /dev/null
    cp "$dir/tokenizer/chat_template.jinja" "$dir/model/"
}
