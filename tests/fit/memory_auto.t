#!/bin/bash
# A run with memory: auto trains with the settings that it chose: they differ from the defaults, need less memory and give the same losses.
# It resumes under another choice, and a finished run is left alone.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
make_text_run "memory: auto" "max_steps: 4" "save_steps: 2" "per_device_train_batch_size: 2" "gradient_accumulation_steps: 4"

# losses FOLDER: the losses of its steps, to five digits.
losses() { sed -nE 's/.*"loss":([0-9]+\.[0-9]{4}).*/\1/p' "$dir/$1/metrics.jsonl"; }
# The log's line about the chosen settings.
chosen() { sed -n 's/^  chosen *//p' "$dir/err"; }

run pt "$dir/run.yaml" output_dir="$dir/wide"
check "a run chooses ($status): $(cat "$dir/err")" [ "$status" = 0 ]
check "the largest micro-batch: $(chosen)" grep -qE '^8 x 1 ' <(chosen)
run pt "$dir/run.yaml" output_dir="$dir/wide"
check "it is finished ($status): $(cat "$dir/err")" [ "$status" = 0 ]

run plan "$dir/run.yaml" --json memory=manual per_device_train_batch_size=2 recompute_block=true
limit=$(sed -nE 's/.*"total_bytes": ([0-9]+).*/\1/p' "$dir/out" | head -1)
run pt "$dir/run.yaml" output_dir="$dir/narrow" memory_limit="${limit}B"
check "it chooses less ($status): $(cat "$dir/err")" [ "$status" = 0 ]
check "not the largest micro-batch: $(chosen)" grep -qE '^[124] x [248] ' <(chosen)
check "the losses are the same: $(losses wide) and $(losses narrow)" [ "$(losses wide)" = "$(losses narrow)" ]
check "there are four" [ "$(losses wide | wc -l)" = 4 ]

rm -rf "$dir/wide/checkpoint-4"
run pt "$dir/run.yaml" output_dir="$dir/wide" memory_limit="${limit}B" resume_from_checkpoint="$dir/wide/checkpoint-2"
check "another choice goes on ($status): $(cat "$dir/err")" [ "$status" = 0 ]
check "with its losses" [ "$(losses wide)" = "$(losses narrow)" ]
run pt "$dir/run.yaml" output_dir="$dir/ranks" gpus=2 gradient_accumulation_steps=2 device=cpu
check "two ranks choose ($status): $(cat "$dir/err")" [ "$status" = 0 ]
check "once for both: $(chosen)" [ "$(chosen | grep -cE '^4 x 1 ')" = 1 ]
check "with the same losses: $(losses ranks)" [ "$(losses ranks)" = "$(losses wide)" ]

# number KEY: its value in the last plan.
number() { sed -nE "s/.*\"$1\": ([0-9.e+-]+).*/\1/p" "$dir/out"; }
run plan "$dir/run.yaml" --json memory=manual --gpu h200
one=$(number tokens_per_second)
run plan "$dir/run.yaml" --json memory=manual --gpu h200 --gpus 4
check "tokens/s of all ranks: $(number tokens_per_second), $one of one" awk "BEGIN { exit !($(number tokens_per_second) > $one) }"
check "their number" [ "$(number ranks)" = 4 ]
run plan "$dir/run.yaml" --gpu h200 --gpus 4
beside='^  beside it      543\.00 MiB   estimated, for context and libraries'
check "what NCCL takes isn't known: $(grep beside "$dir/out")" grep -qE "$beside but NCCL's buffers, of what is left to them\$" "$dir/out"
check "each rank chooses what it divides: $(head -2 "$dir/out")" grep -qE '^an optimizer step: .* of 4 ranks' "$dir/out"
run plan "$dir/run.yaml" --gpu h200
check "context and libraries are estimated: $(grep beside "$dir/out")" grep -qE "$beside, of what is left to them\$" "$dir/out"
check "the reserve is named" grep -qE '^  in all .* of .*; 1\.00 GiB is left to driver and libraries$' "$dir/out"
run plan "$dir/run.yaml" --gpu 4090 --gpus 4
check "times of a GPU that wasn't measured are bounds" [ "$(grep -c expected "$dir/out")/$(grep -c 'an optimizer step: at least .* ms, at most' "$dir/out")" = 0/1 ]
check "no program takes less than its limit" awk '/ ms / && $1 ~ /^(micro|optimizer)/ { if ($(NF - 3) > $(NF - 1)) exit 1 }' "$dir/out"
run plan "$dir/run.yaml" --json memory=manual --gpu h200
check "for scripts too" [ "$(number estimated_context_bytes)" = 569376768 ]
run plan "$dir/run.yaml" device=cpu
check "a CPU has no context: $(tail -1 "$dir/err")" [ "$status/$(grep -c beside "$dir/out")" = 0/0 ]
refused "a number of GPUs that isn't one" 2 "gpus" "expected an integer" -- plan "$dir/run.yaml" --gpu h200 --gpus few
refused "what can't fit" 3 "memory_limit" "no settings make it fit" -- pt "$dir/run.yaml" output_dir="$dir/none" memory_limit=1KiB
finish
