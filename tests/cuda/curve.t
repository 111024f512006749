#!/bin/bash
# bf16 on the GPU against fp32 there, and fp32 there against fp32 on the CPU, over 1,000 steps on real text (this project's own): the mean
# loss of the last 50 steps.
# fp32 differs by less than 0.01 % on the first two seeds. Two are enough, as it is the same arithmetic in another order.
# bf16 follows another trajectory for each seed: on an H200 the seeds ended from 0.01 % below to 0.62 % above, so one seed says little about
# rounding. A bias would move all seeds the same way. So the mean over five seeds must stay within 0.5 %, and each seed within 2 %: beyond
# that a run would have gone wrong. The loss falls by a nat and more.
# Comparing after 200 steps would say less: the loss still falls by 0.2 % per step there, and rounding shifts a curve by a few steps.
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
max_steps: 1000
learning_rate: 5e-4
warmup_steps: 20
END
# mean FROM TO FILE: the mean loss of these steps.
mean() { grep '"log":"step"' "$3" | sed -E 's/.*"loss":([-0-9.e+]+).*/\1/' | awk -v a="$1" -v b="$2" 'NR >= a && NR <= b { s += $1; n++ } END { print s / n }'; }
# off LOSS REFERENCE: the difference in percent.
off() { awk "BEGIN { printf \"%+.4f\", 100 * ($1 / $2 - 1) }"; }
# within PERCENT DIFFERENCE WHAT
within() {
    echo "$3: $2 %"
    check "$3: $2 % of at most $1 %" awk "BEGIN { exit !($2 < $1 && $2 > -$1) }"
}
# train NAME KEYS
train() {
    run pt "$dir/run.yaml" seed=$seed output_dir="$dir/$1$seed" "${@:2}"
    check "seed $seed, $1: $(tail -1 "$dir/err")" [ "$status" = 0 ]
}
all=0
num=0
for seed in ${SEEDS:-1 2 3 4 5}; do
    train fp32 device=cuda model_dtype=fp32
    train bf16 device=cuda model_dtype=bf16
    fp32=$(mean 951 1000 "$dir/fp32$seed/metrics.jsonl")
    begin=$(mean 1 5 "$dir/bf16$seed/metrics.jsonl")
    end=$(mean 951 1000 "$dir/bf16$seed/metrics.jsonl")
    if [ "$num" -lt 2 ]; then
        train cpu device=cpu model_dtype=fp32
        within 0.01 "$(off "$fp32" "$(mean 951 1000 "$dir/cpu$seed/metrics.jsonl")")" "seed $seed: fp32 on the GPU against the CPU"
    fi
    difference=$(off "$end" "$fp32")
    within 2 "$difference" "seed $seed: bf16 against fp32"
    check "seed $seed: the loss falls from $begin to $end" awk "BEGIN { exit !($begin - $end >= 1) }"
    all=$(awk "BEGIN { print $all + $difference }")
    num=$((num + 1))
done
within 0.5 "$(awk "BEGIN { printf \"%+.4f\", $all / $num }")" "the mean of $num seeds: bf16 against fp32"
finish
