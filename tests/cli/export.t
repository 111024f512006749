#!/bin/bash
# surogate export: files whose every byte was checked with gguf's reader and llama.cpp (tests/oracle/make_gguf.py, check_gguf.py). Also
# models that the format can't express, adapters, and files written whole or not at all.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
families=tests/fixtures/families

# export_as NAME ARGS...: exports to $dir/NAME.gguf.
export_as() {
    local name=$1
    shift
    run export "$@" --to gguf --out "$dir/$name.gguf"
    check "$name: $(cat "$dir/err")" [ "$status" = 0 -a -s "$dir/$name.gguf" ]
}
# holds NAME TEXT...: the file contains these bytes.
holds() {
    local name=$1 text
    shift
    for text in "$@"; do check "$name holds $text" grep -qaF -e "$text" "$dir/$name.gguf"; done
}
bytes() { stat -c %s "$dir/$1.gguf"; }
# fitted FAMILY EXPRESSION: copies the family's fixture, with a setting changed by the sed expression.
fitted() {
    mkdir -p "$dir/fitted"
    cp -r "$families/$1" "$dir/fitted"
    sed -i "$2" "$dir/fitted/$1/config.json"
}

# --- every family
fitted gemma2 's/"query_pre_attn_scalar": 12/"query_pre_attn_scalar": 8/'
fitted gemma3 's/"query_pre_attn_scalar": 12/"query_pre_attn_scalar": 8/'
while read -r hash family; do
    folder=$families/$family
    [ -d "$dir/fitted/$family" ] && folder=$dir/fitted/$family
    export_as "$family" "$folder" --type f32
    check "$family: the bytes of the committed hash" [ "$(sha256sum < "$dir/$family.gguf" | cut -d' ' -f1)" = "$hash" ]
done < tests/fixtures/gguf_families.txt
# --- imported, and exported again to the same bytes
while read -r hash family; do
    run import "$dir/$family.gguf" "$dir/back/$family" --dtype fp32
    check "import $family: $(cat "$dir/err")" [ "$status" = 0 ]
    export_as "$family-again" "$dir/back/$family" --type f32
    check "$family: the file of what was imported is the same" cmp "$dir/$family.gguf" "$dir/$family-again.gguf"
done < tests/fixtures/gguf_families.txt
check "families with a hash" [ "$(wc -l < tests/fixtures/gguf_families.txt)" -ge 15 ]

# --- models that the format can't express
refused "gemma2's scalar" 2 "query_pre_attn_scalar 12: llama.cpp takes 8" -- export $families/gemma2 --to gguf --type f32 --out "$dir/no.gguf"
refused "yarn" 2 "truncate: false of yarn can't be said" -- export $families/qwen3_yarn --to gguf --type f32 --out "$dir/no.gguf"
fitted qwen3_yarn 's/"truncate": false/"truncate": true/'
refused "yarn's ends" 2 "beta_fast 4, beta_slow 0.5 of yarn: llama.cpp takes 32 and 1" -- \
    export "$dir/fitted/qwen3_yarn" --to gguf --type f32 --out "$dir/no.gguf"
refused "smollm3's layers" 2 "no_rope_layers: layer 1 is without rotary positions" -- \
    export $families/smollm3 --to gguf --type f32 --out "$dir/no.gguf"
fitted llama ''
cp models/llama.json "$dir/fitted/llama/surogate_ir.json"
refused "an IR of one's own" 2 "can only say what the shipped family of that name computes" -- \
    export "$dir/fitted/llama" --to gguf --type f32 --out "$dir/no.gguf"
sed -i 's/LlamaForCausalLM/OtherForCausalLM/' "$dir/fitted/llama/surogate_ir.json" "$dir/fitted/llama/config.json"
refused "an architecture of one's own" 2 "OtherForCausalLM isn't exported to GGUF; families that are: LlamaForCausalLM" -- \
    export "$dir/fitted/llama" --to gguf --type f32 --out "$dir/no.gguf"
fitted gpt2 's/"activation_function": "gelu_new"/"activation_function": "gelu"/'
refused "gpt2's gelu" 2 "activation_function gelu: llama.cpp computes gpt2 with gelu_new" -- \
    export "$dir/fitted/gpt2" --to gguf --type f32 --out "$dir/no.gguf"
fitted gpt2 's/"scale_attn_by_inverse_layer_idx": false/"scale_attn_by_inverse_layer_idx": true/'
refused "gpt2's scores by layer" 2 "llama.cpp scales scores of gpt2 alike in all layers" -- \
    export "$dir/fitted/gpt2" --to gguf --type f32 --out "$dir/no.gguf"
refused "no such type" 2 "expected one of f32, f16, bf16, q8_0, q4_0, q4_K_M, q6_K" -- \
    export $families/llama --to gguf --type q5 --out "$dir/no.gguf"
refused "no type" 2 "--type is missing" -- export $families/llama --to gguf --out "$dir/no.gguf"
refused "no such format" 2 "--to onnx: expected gguf" -- export $families/llama --to onnx --type f32
refused "no adapter" 2 "name the adapter with --adapter DIR" -- export $families/llama --to gguf --type f32 --adapter-only
check "nothing was written" [ ! -e "$dir/no.gguf" -a ! -e "$dir/no.gguf.partial" ]

# --- types and the tokenizer
make_tiny hidden_size=256 intermediate_size=256 num_hidden_layers=4
for type in f32 f16 bf16 q8_0 q6_K q4_K_M q4_0; do export_as $type "$dir/model" --type $type; done
check "sizes: $(bytes f32) $(bytes f16) $(bytes q8_0) $(bytes q6_K) $(bytes q4_K_M) $(bytes q4_0)" \
    [ "$(bytes f32)" -gt "$(bytes f16)" -a "$(bytes f16)" -gt "$(bytes q8_0)" -a "$(bytes q8_0)" -gt "$(bytes q6_K)" -a \
    "$(bytes q6_K)" -gt "$(bytes q4_K_M)" -a "$(bytes q4_K_M)" -gt "$(bytes q4_0)" ]
check "bf16 is as large as f16" [ "$(bytes bf16)" = "$(bytes f16)" ]
export_as again "$dir/model" --type Q4_k_m
check "the same bytes again" cmp "$dir/q4_K_M.gguf" "$dir/again.gguf"
holds q8_0 tokenizer.ggml.model gpt2 tokenizer.ggml.pre qwen2 tokenizer.ggml.merges tokenizer.ggml.eos_token_id qwen3.rope.freq_base
(cd "$dir" && "$SUROGATE" export model --to gguf --type q8_0 2> err)
check "a name of its own" cmp "$dir/model-q8_0.gguf" "$dir/q8_0.gguf"
"$SUROGATE" new --arch qwen3-tiny --random "$dir/short" vocab_size=200 2> "$dir/null"
cp "$dir"/tokenizer/* "$dir/short"
refused "more tokens than rows" 2 "the tokenizer has ids up to" "says vocab_size 200" -- export "$dir/short" --to gguf --type f32 --out "$dir/no.gguf"
cp -r "$dir/model" "$dir/words"
sed -i 's/{1,3}/{1,4}/; s/|\\\\p{N}|/|\\\\p{N}{1,4}|/' "$dir/words/tokenizer.json"
refused "words cut otherwise" 2 "GGUF has no name for this rule of words" -- export "$dir/words" --to gguf --type f32 --out "$dir/no.gguf"
printf '{{ messages[0].content }}' > "$dir/model/chat_template.jinja"
export_as talks "$dir/model" --type f32
holds talks tokenizer.chat_template '{{ messages[0].content }}'
rm "$dir/model/chat_template.jinja"

# --- adapters
for family in llama gpt2; do
    export_as "$family-alone" "$families/$family" --type f32 --adapter "$families/$family/adapter" --adapter-only
    holds "$family-alone" adapter.lora.alpha lora_a lora_b
    "$SUROGATE" merge "$families/$family" "$families/$family/adapter" "$dir/$family-merged/$family" > "$dir/null" 2>&1
    export_as "$family-merged" "$dir/$family-merged/$family" --type f32
    export_as "$family-both" "$families/$family" --type f32 --adapter "$families/$family/adapter"
    check "$family: what is said names the user's folder: $(cat "$dir/err")" \
        [ "$(grep -c "^warning: $families/$family/tokenizer.json isn't there" "$dir/err")" = 1 -a "$(grep -c partial "$dir/err")" = 0 ]
    check "$family: merged on the way" cmp "$dir/$family-merged.gguf" "$dir/$family-both.gguf"
    check "$family: nothing is left beside it" [ "$(find "$dir" -name "$family-both*" | wc -l)" = 1 ]
done
refused "few bits for an adapter" 2 "an adapter alone is written as f32, f16, bf16 or q8_0" -- \
    export $families/llama --to gguf --type q4_0 --adapter $families/llama/adapter --adapter-only --out "$dir/no.gguf"

# --- names
cp -r "$dir/model" "$dir/my-Phi-3"
export_as named "$dir/my-Phi-3" --type q8_0
check "a name that llama.cpp would look tokens of Phi-3 up for isn't written" [ "$(grep -ac my-Phi-3 "$dir/named.gguf")" = 0 ]

# --- import
printf 'line 12 says 8 and goes on' > "$dir/short.txt"
for type in f32 q8_0 q4_K_M; do
    run import "$dir/$type.gguf" "$dir/from/model" --dtype fp32
    check "import $type: $(cat "$dir/err")" [ "$status" = 0 ]
    export_as "$type-again" "$dir/from/model" --type f32
    run eval "$dir/from/model" --text "$dir/short.txt" --json
    check "eval of $type: $(cat "$dir/err")" [ "$status" = 0 ]
    cp "$dir/out" "$dir/$type.eval"
    cmp -s <("$SUROGATE" encode "$dir/model" --text "$dir/text.txt") <("$SUROGATE" encode "$dir/from/model" --text "$dir/text.txt")
    check "the same tokens" [ $? = 0 ]
    rm -r "$dir/from"
done
run eval "$dir/model" --text "$dir/short.txt" --json
check "the same loss of fp32: $(cat "$dir/out" "$dir/f32.eval")" cmp "$dir/out" "$dir/f32.eval"
check "fp32 comes back as it was" cmp "$dir/f32.gguf" "$dir/f32-again.gguf"
run import "$dir/q8_0.gguf" "$dir/halved"
check "bf16 unless asked otherwise: $(cat "$dir/err")" grep -q '"torch_dtype": "bfloat16"' "$dir/halved/config.json"
run generate "$dir/halved" --prompt line --max-tokens 4 --temperature 0
check "generate: $(cat "$dir/err")" [ "$status" = 0 ]
head -c 3000 "$dir/f32.gguf" > "$dir/cut.gguf"
refused "cut short" 2 "the file ends within" -- import "$dir/cut.gguf" "$dir/none"
head -c -5000 "$dir/f32.gguf" > "$dir/cut.gguf"
refused "cut short behind its head" 2 "its data isn't in the file" -- import "$dir/cut.gguf" "$dir/none"
refused "no GGUF file" 2 "is no GGUF file" -- import "$dir/model/config.json" "$dir/none"
refused "not there" 2 "there is no such file" -- import "$dir/nothing.gguf" "$dir/none"
refused "a folder that is one" 2 "already holds a model" -- import "$dir/f32.gguf" "$dir/model"
refused "no such dtype" 2 "expected bf16 or fp32" -- import "$dir/f32.gguf" "$dir/none" --dtype int8
sed 's/qwen3/qwen9/g' "$dir/f32.gguf" > "$dir/other.gguf"
refused "a family that isn't read" 2 "general.architecture qwen9 isn't read" -- import "$dir/other.gguf" "$dir/none"
sed 's/blk.1.ffn_up/blk.1.ffn_xx/' "$dir/f32.gguf" > "$dir/other.gguf"
refused "a tensor that isn't there" 2 "tensor blk.1.ffn_up.weight is missing" -- import "$dir/other.gguf" "$dir/none"
sed 's/tokenizer.ggml.pre/tokenizer.ggml.prx/' "$dir/f32.gguf" > "$dir/other.gguf"
refused "words whose rule isn't said" 2 'the rule of words "missing" isn'"'"'t known' -- import "$dir/other.gguf" "$dir/none"
refused "an adapter" 2 "general.type is adapter" -- import "$dir/llama-alone.gguf" "$dir/none"
check "no folder is left" [ ! -e "$dir/none" ]

# --- a GGUF file where a model's folder is expected
export HF_HUB_CACHE=$dir/cache
run import "$dir/q8_0.gguf" "$dir/bf16"
run eval "$dir/bf16" --text "$dir/short.txt" --json
cp "$dir/out" "$dir/bf16.eval"
run eval "$dir/q8_0.gguf" --text "$dir/short.txt" --json
check "eval FILE.gguf: $(cat "$dir/err")" cmp "$dir/out" "$dir/bf16.eval"
check "it says where it unpacks" grep -qF "q8_0.gguf: unpacking into $dir/cache/gguf--" "$dir/err"
run generate "$dir/q8_0.gguf" --prompt line --max-tokens 4 --temperature 0
cp "$dir/out" "$dir/text.out"
run encode "$dir/q8_0.gguf" --text "$dir/short.txt"
cp "$dir/out" "$dir/gguf.ids"
run encode "$dir/model" --text "$dir/short.txt"
check "encode FILE.gguf" cmp "$dir/out" "$dir/gguf.ids"
run generate "$dir/q8_0.gguf" --prompt line --max-tokens 4 --temperature 0
check "the second time nothing is unpacked: $(cat "$dir/err")" [ "$status" = 0 -a "$(grep -c unpacking "$dir/err")" = 0 ]
run generate "$dir/bf16" --prompt line --max-tokens 4 --temperature 0
check "the same text" cmp "$dir/out" "$dir/text.out"
printf '%s\n' "model: $dir/q8_0.gguf" "datasets: [{path: $dir/text.txt}]" "sequence_len: 32" "max_steps: 2" "lora: true" "qlora: nf4" \
    "lora_rank: 2" "output_dir: $dir/tuned" > "$dir/run.yaml"
run pt "$dir/run.yaml"
check "QLoRA over FILE.gguf: $(tail -3 "$dir/err")" [ "$status" = 0 -a -s "$dir/tuned/adapter_model.safetensors" ]
check "the adapter names the file" grep -qF "\"base_model_name_or_path\": \"$dir/q8_0.gguf\"" "$dir/tuned/adapter_config.json"
run eval "$dir/tuned" --text "$dir/short.txt"
check "the adapter finds its base: $(cat "$dir/err")" [ "$status" = 0 -a "$(grep -c warning "$dir/err")" = 0 ]
cp "$dir/f32.gguf" "$dir/q8_0.gguf"
run eval "$dir/q8_0.gguf" --text "$dir/short.txt" --json
check "another file of the name is unpacked anew" grep -q unpacking "$dir/err"
run import "$dir/f32.gguf" "$dir/whole"
check "the vocabulary has every id, also of special tokens, as readers count them" grep -qE '"<\|endoftext\|>": 0,' "$dir/whole/tokenizer.json"
for i in 1 2 3; do "$SUROGATE" eval "$dir/f32.gguf" --text "$dir/short.txt" --json > "$dir/out$i" 2> "$dir/null" & done
wait
check "three at once" [ -s "$dir/out1" -a "$(cat "$dir/out1")" = "$(cat "$dir/out2")" -a "$(cat "$dir/out1")" = "$(cat "$dir/out3")" ]
refused "cut short as the model" 2 "its data isn't in the file" -- eval "$dir/cut.gguf" --text "$dir/short.txt"
check "nothing of it stays" [ -z "$(find "$dir/cache" -name '*cut.gguf' -o -name '.*cut.gguf*')" ]

# --- a value that a type can't hold
if command -v python3 > /dev/null; then
    cp -r "$families/llama" "$dir/large"
    python3 - "$dir/large/model.safetensors" << 'END'
import struct, sys
data = bytearray(open(sys.argv[1], "rb").read())
for at in range(8 + struct.unpack("<Q", data[:8])[0], len(data) - 4, 400):
    data[at : at + 4] = struct.pack("<f", 1e6)
open(sys.argv[1], "wb").write(data)
END
    export_as large "$dir/large" --type bf16
    refused "beyond fp16" 2 "holds 1e+06, which" "take --type bf16 or f32" -- export "$dir/large" --to gguf --type q8_0 --out "$dir/no.gguf"
    check "nothing is left of it" [ ! -e "$dir/no.gguf" -a ! -e "$dir/no.gguf.partial" ]
else
    skip "a value beyond fp16: no python3"
fi
finish
