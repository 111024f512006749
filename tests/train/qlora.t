#!/bin/bash
# QLoRA from a run file to a merged model: the base is kept in its format, the adapter records the format, and eval, generate and merge read
# it from there. Kills, recomputation and threads change no byte.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh

make_tiny max_position_embeddings=128
head -200 "$dir/text.txt" > "$dir/valid.txt"
cat > "$dir/run.yaml" << END
model: $dir/model
datasets: [{path: $dir/text.txt}]
sequence_len: 32
per_device_train_batch_size: 2
gradient_accumulation_steps: 2
max_steps: 12
learning_rate: 1e-2
adapter: qlora
load_in_4bit: true
lora_dropout: 0.1
recompute_block: true
save_steps: 4
END

loss() {
    run eval "$@" --text "$dir/valid.txt" --context 32 --json --device cpu
    [ "$status" = 0 ] || cat "$dir/err"
    sed -E 's/.*"mean":([0-9.e+-]+).*/\1/' "$dir/out"
}
near() { awk "BEGIN { d = $1 - $2; exit !(d < 0 ? -d <= $3 : d <= $3) }"; }

differ() { cmp -s "$@" && return 1 || return 0; }

# ---- runs ----

for format in nf4 fp8 nvfp4; do
    run pt "$dir/run.yaml" output_dir="$dir/$format" qlora=$format merge_adapter=true
    check "$format: a run: $(tail -1 "$dir/err")" [ "$status" = 0 ]
    check "$format: the adapter says so" grep -q "\"format\": \"$format\"" "$dir/$format/base_format.json"
    check "$format: so does its checkpoint" cmp -s "$dir/$format/base_format.json" "$dir/$format/checkpoint-12/base_format.json"
    adapted=$(loss "$dir/$format")
    check "$format: eval takes it from the adapter" [ "$adapted" = "$(loss "$dir/model" --adapter "$dir/$format" --qlora $format)" ]
    check "$format: another base is another model" [ "$adapted" != "$(loss "$dir/model" --adapter "$dir/$format" --qlora none)" ]
    check "$format: merged while it trained" near "$adapted" "$(loss "$dir/$format/merged")" 2e-3
    run merge "$dir/model" "$dir/$format" "$dir/$format-merged"
    check "$format: merge says how far off it is" grep -q "largest logit difference" "$dir/out"
    check "$format: hardly" near "$(sed -n 's/largest logit difference \([^ ]*\) .*/\1/p' "$dir/out")" 0 0.02
    check "$format: the same tensors" cmp -s "$dir/$format/merged/model.safetensors" "$dir/$format-merged/model.safetensors"
    run merge "$dir/model" "$dir/$format" "$dir/$format-plain" --qlora none
    check "$format: over the plain base it is another model" test "$status" = 0
    check "$format: with other bytes" differ "$dir/$format-plain/model.safetensors" "$dir/$format-merged/model.safetensors"
done
run generate "$dir/nf4" --prompt "line 1" --max-tokens 8 --temperature 0 --device cpu
cp "$dir/out" "$dir/quantised"
run generate "$dir/nf4/merged" --prompt "line 1" --max-tokens 8 --temperature 0 --device cpu
check "generate over the quantised base" cmp -s "$dir/out" "$dir/quantised"
check "the losses of a base and its formats are near" near "$(loss "$dir/model")" "$(loss "$dir/model" --qlora nf4)" 0.1
check "and differ" [ "$(loss "$dir/model")" != "$(loss "$dir/model" --qlora nf4)" ]

# ---- the same bytes ----

same_as_whole() {
    cmp "$dir/nf4/adapter_model.safetensors" "$1/adapter_model.safetensors" &&
        cmp "$dir/nf4/checkpoint-12/optimizer.safetensors" "$1/checkpoint-12/optimizer.safetensors"
}
run pt "$dir/run.yaml" output_dir="$dir/other" threads=1 recompute_block=false
check "one thread, nothing recomputed: the same bytes" same_as_whole "$dir/other"
run pt "$dir/run.yaml" output_dir="$dir/third" threads=3 recompute_block=false recompute_ffn=true
check "three threads, some recomputed: the same bytes" same_as_whole "$dir/third"
kills=0
while [ $kills -lt 3 ]; do
    "$SUROGATE" pt "$dir/run.yaml" output_dir="$dir/killed" max_steps=12 2> /dev/null &
    pid=$!
    while kill -0 $pid 2> /dev/null && [ ! -d "$dir/killed/checkpoint-$((kills * 4 + 4))" ]; do sleep 0.01; done
    kill -9 $pid 2> /dev/null
    wait $pid 2> /dev/null
    kills=$((kills + 1))
done
run pt "$dir/run.yaml" output_dir="$dir/killed"
check "killed and started again: the same bytes" same_as_whole "$dir/killed"
refused "a resumed run keeps its format" 2 "qlora" -- pt "$dir/run.yaml" output_dir="$dir/nf4" qlora=fp8 max_steps=14
for other in fp8 none; do
    refused "nor does resuming with other settings: $other" 2 "nf4/checkpoint-12 was trained over a base with qlora: nf4, here it is $other. Set qlora: nf4" -- \
        pt "$dir/run.yaml" output_dir="$dir/nf4" qlora=$other max_steps=14 resume_from_checkpoint=true
done
refused "nor a checkpoint's folder" 2 "qlora: nf4, here it is nvfp4" -- \
    pt "$dir/run.yaml" output_dir="$dir/none" qlora=nvfp4 max_steps=14 resume_from_checkpoint="$dir/nf4/checkpoint-12"
check "nothing was made of it" [ ! -e "$dir/none" ]

# ---- plan, explain ----

run plan "$dir/run.yaml" recipe=fp8-hybrid
check "a recipe has no say in what is made at use" grep -q "warning: .*recipe: no effect without qlora: none or fp8" "$dir/err"
run plan "$dir/run.yaml" recipe=fp8-hybrid qlora=fp8
check "but in products of codes: $(cat "$dir/err")" [ "$(grep -c "no effect" "$dir/err")" = 0 ]

run plan "$dir/run.yaml" --json
quantised=$(sed -E 's/.*"weights": ([0-9]+).*/\1/' "$dir/out")
run plan "$dir/run.yaml" qlora=none --json
check "plan: fewer bytes of weights" [ "$quantised" -lt "$(sed -E 's/.*"weights": ([0-9]+).*/\1/' "$dir/out")" ]
run plan "$dir/run.yaml"
check "plan: what is kept, and what is made of it" grep -qE "base +[0-9]+ matrices in nf4: .* in place of .*; at most .* are made again at a time" "$dir/out"
run explain "$dir/run.yaml"
check "explain: made right before its use" grep -q "activations+.*mlp.down.weight: bf16\[32,48\] = nf4_dequantise(.*mlp.down.weight.codes, .*at_use" "$dir/out"
run explain "$dir/run.yaml" --program load
check "explain: quantised as it arrives" grep -q "weights+.*home=.*mlp.down.weight.codes.*nf4_quantise(arriving" "$dir/out"

# The figures stated for an 8B model: fp32 adapters and moments, a batch of one sequence of 2,048 tokens, recomputed blocks.
"$SUROGATE" new --arch qwen3-8b "$dir/8b" 2> /dev/null
cat > "$dir/8b.yaml" << END
model: $dir/8b
datasets: [{path: $dir/text.txt}]
lora: true
lora_rank: 16
qlora: nf4
sequence_len: 2048
per_device_train_batch_size: 1
recompute_block: true
END
planned() {
    run plan "$dir/8b.yaml" --gpu h200 --json "$@"
    sed -E 's/.*"total_bytes": ([0-9]+).*/\1/' "$dir/out"
}
check "8B in NF4: at most 7.8 GiB" [ "$(planned)" -le $((78 * 1024 * 1024 * 1024 / 10)) ]
check "with moments of 8 bits: at most 7.4 GiB" [ "$(planned optimizer=adamw_8bit)" -le $((74 * 1024 * 1024 * 1024 / 10)) ]

run plan "$dir/8b.yaml" --gpu h200 qlora= memory_limit=9GB
check "what would fit: $(tail -n 2 "$dir/err")" grep -q "about 7.* GiB: qlora=nf4" "$dir/err"

# ---- what is refused, with nothing touched ----

refused "without LoRA" 2 "run.yaml" "qlora: it is for a frozen base under adapters; write lora: true" -- \
    pt "$dir/run.yaml" output_dir="$dir/none" lora=false
refused "a format that isn't there" 2 "qlora: expected one of none, nf4, fp8, nvfp4" -- pt "$dir/run.yaml" output_dir="$dir/none" qlora=int8
check "nothing was made" [ ! -e "$dir/none" ]
refused "another word of --qlora" 2 "there is no format nf5 that weights are quantised to; expected none, nf4, " -- \
    eval "$dir/model" --text "$dir/valid.txt" --qlora nf5
run eval "$dir/model" --text "$dir/valid.txt" --quantization int8 --recipe fp8-hybrid
check "a recipe beside a format: $(cat "$dir/err")" grep -q "all products stay in f32" "$dir/err"
refused "two formats" 2 "--quantization int8 and --qlora nf4 name two formats of the same matrices; give one" -- \
    eval "$dir/model" --text "$dir/valid.txt" --qlora nf4 --quantization int8
echo '{"format": "nf3"}' > "$dir/nf4/base_format.json"
refused "a damaged record" 2 "nf4/base_format.json: there is no format nf3" -- eval "$dir/nf4" --text "$dir/valid.txt"
echo '{}' > "$dir/nf4/base_format.json"
refused "an empty record" 2 "expected a word under \"format\"" -- merge "$dir/model" "$dir/nf4" "$dir/refused"
check "nothing was merged" [ ! -e "$dir/refused" ]
"$SUROGATE" new --arch qwen3-tiny --tokenizer "$dir/tokenizer" "$dir/odd" hidden_size=24 vocab_size=300 head_dim=8 --random 2> /dev/null
refused "rows that NVFP4 can't have" 2 "can't be kept in nvfp4, set qlora or --quantization to another format" "a multiple of 16" -- pt "$dir/run.yaml" model="$dir/odd" output_dir="$dir/none" qlora=nvfp4
check "nothing was made of it" [ ! -e "$dir/none/adapter_model.safetensors" ]
finish
