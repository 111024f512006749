#!/bin/bash
# bf16 on the GPU against fp32 on the CPU over 200 steps on real text (this project's own), three seeds: the mean loss of the last 50 steps
# differs by less than 0.5 %, and falls by a nat and more.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
if ! nvidia-smi -L > /dev/null 2>&1; then
    skip "no GPU"
    finish
fi
mkdir "$dir/text"
cat README.md docs/*.md src/*/*.[ch] > "$dir/text/text.txt"
"$SUROGATE" tokenizer train --vocab-size 300 --out "$dir/tokenizer" "$dir/text" 2> /dev/null
"$SUROGATE" new --arch qwen3-tiny --random --tokenizer "$dir/tokenizer" "$dir/model" hidden_size=128 intermediate_size=384 \
    num_hidden_layers=4 num_attention_heads=4 num_key_value_heads=2 head_dim=64 max_position_embeddings=512 2> /dev/null
cat > "$dir/run.yaml" << END
model: $dir/model
from_scratch: true
datasets: [{path: $dir/text, type: text}]
sequence_len: 256
per_device_train_batch_size: 32
gradient_accumulation_steps: 1
max_steps: 200
learning_rate: 5e-4
warmup_steps: 20
END
# mean FROM TO FILE: the mean loss of these steps.
mean() { grep '"log":"step"' "$3" | sed -E 's/.*"loss":([-0-9.e+]+).*/\1/' | awk -v a="$1" -v b="$2" 'NR >= a && NR <= b { s += $1; n++ } END { print s / n }'; }
for seed in ${SEEDS:-1 2 3}; do
    run pt "$dir/run.yaml" seed=$seed device=cpu model_dtype=fp32 output_dir="$dir/cpu$seed"
    check "seed $seed on the CPU: $(tail -1 "$dir/err")" [ "$status" = 0 ]
    run pt "$dir/run.yaml" seed=$seed device=cuda model_dtype=bf16 output_dir="$dir/gpu$seed"
    check "seed $seed on the GPU: $(tail -1 "$dir/err")" [ "$status" = 0 ]
    begin=$(mean 1 5 "$dir/gpu$seed/metrics.jsonl")
    a=$(mean 151 200 "$dir/gpu$seed/metrics.jsonl")
    b=$(mean 151 200 "$dir/cpu$seed/metrics.jsonl")
    echo "seed $seed: from $begin to $a on the GPU, $b on the CPU: $(awk "BEGIN { printf \"%+.3f %%\", 100 * ($a / $b - 1) }")"
    check "seed $seed: $a is near $b" awk "BEGIN { d = $a / $b - 1; exit !(d < 0.005 && d > -0.005) }"
    check "seed $seed: the loss falls from $begin to $a" awk "BEGIN { exit !($begin - $a >= 1) }"
done
finish
