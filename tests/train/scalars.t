#!/bin/bash
# Numbers that log_scalars asks for: in metrics.jsonl by name, the same with 1 and 2 ranks; absent if not asked for.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
make_text_run "max_steps: 3" "per_device_train_batch_size: 1" "device: cpu" "threads: 2" "learning_rate: 1e-3" "dataset_cache_dir: $dir/cache"

scalars() { grep -oE '"scalars":\{[^}]*\}' "$1/metrics.jsonl"; }

for ranks in 1 2; do
    run pt "$dir/run.yaml" output_dir="$dir/$ranks" gpus=$ranks gradient_accumulation_steps=$((4 / ranks)) log_scalars=accuracy,loss_spread
    check "$ranks ranks: exit $status, $(tail -1 "$dir/err")" [ "$status" = 0 ]
    check "$ranks ranks: a line a step" [ "$(scalars "$dir/$ranks" | grep -c "accuracy.*loss_spread")" = 3 ]
done
check "the same with two ranks" cmp <(scalars "$dir/1") <(scalars "$dir/2")

run pt "$dir/run.yaml" output_dir="$dir/none" gradient_accumulation_steps=4
check "none asked for" [ -z "$(scalars "$dir/none")" ]

run pt "$dir/run.yaml" output_dir="$dir/unknown" log_scalars=accurac
check "unknown: exit $status" [ "$status" = 2 ]
check "unknown: $(cat "$dir/err")" grep -q "log_scalars: .* no number named accurac; expected some of accuracy" "$dir/err"
finish
