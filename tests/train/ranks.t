#!/bin/bash
# Several ranks on the CPU: 1, 2 and 4 ranks make the same run, resumed with other numbers of ranks and after kills. One rank that fails
# ends all. Files that ranks write together are checked, and damage is reported as for one rank.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
RANDOM=${SEED:-7}
make_text_run "max_steps: 40" "save_steps: 4" "per_device_train_batch_size: 1" "validation_split_ratio: 0.1" "eval_steps: 8" \
    "eval_max_batches: 6" "generate_samples: 1" "sample_max_tokens: 4" "device: cpu" "threads: 2" "learning_rate: 1e-3" "dataset_cache_dir: $dir/cache" "logging_steps: 10"

# go RANKS OUT ARGS...: runs 4 sequences per step.
go() {
    local ranks=$1 out=$2
    shift 2
    run pt "$dir/run.yaml" output_dir="$out" gpus="$ranks" gradient_accumulation_steps=$((4 / ranks)) "$@"
}
# The contents of a log: integers, then losses and norms.
counts() { sed -nE 's/.*"log":"(step|eval)".*"step":([0-9]+),.*"(step|eval)_tokens":([0-9]+),"(step|eval)_trained":([0-9]+),.*/\1 \2 \4 \6/p' "$1/metrics.jsonl"; }
numbers() { grep -v '"log":"sample"' "$1/metrics.jsonl" | grep -oE '"(loss|norm)":[0-9.e+-]+' | cut -d: -f2; }
same_run() {
    cmp <(counts "$1") <(counts "$2") || return 1
    paste <(numbers "$1") <(numbers "$2") | awk '{ d = $1 - $2; if (d < 0) d = -d; if (!(d <= 1e-5 * $1)) { print $0; bad = 1 } n++ } END { exit bad || n != 85 }'
}

# --- the same numbers
for ranks in 1 2 4; do
    go $ranks "$dir/$ranks"
    check "$ranks ranks: exit $status, $(tail -1 "$dir/err")" [ "$status" = 0 ]
    check "$ranks ranks: the run of one" same_run "$dir/1" "$dir/$ranks"
    samples=$(grep -c '"log":"sample"' "$dir/$ranks/metrics.jsonl")
    check "$ranks ranks: $samples samples" [ "$samples" = 5 ]
done
go 4 "$dir/again"
check "twice the same bits" cmp "$dir/4/model.safetensors" "$dir/again/model.safetensors"
check "and the same log" cmp <(without_times "$dir/4/metrics.jsonl") <(without_times "$dir/again/metrics.jsonl")
check "the log has a pair for each rank" grep -qE '"ranks":\[(\[[0-9.]+,[0-9.]+\],){3}\[[0-9.]+,[0-9.]+\]\]' "$dir/4/metrics.jsonl"
check "the screen says how long they wait: $(grep "^step 40" "$dir/err")" grep -qE "^step 40/40 .* 4 ranks, [0-9]+% waiting" "$dir/err"
check "the report has a row for each rank" grep -qE '"ranks":\[(\[[0-9.]+,[0-9.e-]+,[0-9.e-]+\],){3}\[[0-9.]+,[0-9.e-]+,[0-9.e-]+\]\]' "$dir/4/report.html"
check "that of one rank has none" grep -q '"ranks":\[\]' "$dir/1/report.html"
check "files have the size of one rank's" [ "$(stat -c %s "$dir"/1/checkpoint-40/*.safetensors | tr '\n' ' ')" = "$(stat -c %s "$dir"/4/checkpoint-40/*.safetensors | tr '\n' ' ')" ]
run pt "$dir/run.yaml" output_dir="$dir/4" gpus=2 gradient_accumulation_steps=2
check "a finished run is finished for any number of ranks: $(tail -1 "$dir/err")" grep -q "it is finished" "$dir/err"
run pt "$dir/run.yaml" output_dir="$dir/4" gpus=2 gradient_accumulation_steps=1
check "fewer rows a step are another run: $(tail -1 "$dir/err")" \
    grep -q 'there "gradient_accumulation_steps: 4", here "gradient_accumulation_steps: 2", each that of all ranks: gpus times the key' "$dir/err"

run ir "$dir/run.yaml" gpus=2 model_dtype=bf16 master_dtype=fp32 --program micro_only
check "one program is made without the optimizer's: exit $status, $(tail -1 "$dir/err")" [ "$status" = 0 ]

# --- kills, and another number of ranks after each
elastic() {
    local out=$dir/elastic kills=0 turn=0 order=(4 2 1 4) pid
    rm -rf "$out"
    while :; do
        local ranks=${order[$((turn % 4))]}
        "$SUROGATE" pt "$dir/run.yaml" output_dir="$out" gpus="$ranks" gradient_accumulation_steps=$((4 / ranks)) > /dev/null 2> "$dir/err" &
        pid=$!
        if [ $kills -lt 3 ]; then
            sleep 0.$((RANDOM % 3))$((RANDOM % 10))
            kill -9 $pid 2> /dev/null && kills=$((kills + 1))
        fi
        status=0
        wait $pid 2> /dev/null || status=$?
        [ "$status" = 137 ] || break
        turn=$((turn + 1))
    done
    total_kills=$((total_kills + kills))
}
total_kills=0
for _ in $(seq "$(((${KILLS:-9} + 2) / 3))"); do
    elastic
    check "elastic: exit $status, $(tail -1 "$dir/err")" [ "$status" = 0 ]
    check "elastic: the run of one rank" same_run "$dir/1" "$dir/elastic"
done
echo "$total_kills kills"

# --- gradients and weights divided too, with matrices large enough for it
"$SUROGATE" new --arch qwen3-tiny --random --tokenizer "$dir/tokenizer" "$dir/large" hidden_size=128 intermediate_size=1024 vocab_size=300 \
    head_dim=32 max_position_embeddings=128 2> /dev/null
losses() { sed -nE 's/.*"log":"step".*"loss":([0-9.e+-]+).*/\1/p' "$1/metrics.jsonl"; }
settings="model=$dir/large max_steps=6 save_steps=2 eval_steps=0 generate_samples=0 save_total_limit=0"
for kind in "" "lora=true lora_dropout=0.1" "optimizer=normuon" "optimizer=adamw_8bit"; do
    # shellcheck disable=SC2086
    go 1 "$dir/level" $settings $kind resume_from_checkpoint=false
    losses "$dir/level" > "$dir/level.losses"
    for level in 1 2 3; do
        rm -rf "$dir/levels"
        # shellcheck disable=SC2086
        go 4 "$dir/levels" $settings $kind zero_level=$level
        check "ZeRO-$level, $kind: exit $status, $(tail -1 "$dir/err")" [ "$status" = 0 ]
        rm -rf "$dir"/levels/checkpoint-[46] "$dir/levels/run.json"
        # shellcheck disable=SC2086
        go 2 "$dir/levels" $settings $kind zero_level=$level
        check "ZeRO-$level, $kind: goes on with 2 ranks: exit $status, $(tail -1 "$dir/err")" grep -q "going on from .*checkpoint-2, step 2 of 6" "$dir/err"
        check "ZeRO-$level, $kind: the losses of one rank" awk '{ getline one < ARGV[2]; d = $1 - one; if (d < 0) d = -d; if (!(d <= 1e-5 * one)) exit bad = 1 } FNR == 6 { exit } END { exit bad || FNR != 6 }' \
            <(losses "$dir/levels") "$dir/level.losses"
    done
done

# --- 8-bit moments of packed weights whose parts begin within a block, on any number of ranks, resumed with another number
"$SUROGATE" new --arch llama-tiny --random --tokenizer "$dir/tokenizer" "$dir/odd" hidden_size=60 intermediate_size=92 vocab_size=300 \
    head_dim=10 num_attention_heads=6 num_key_value_heads=2 num_hidden_layers=3 2> /dev/null
odd() { # RANKS OUT STEPS ARGS...: trains $dir/odd-OUT up to step STEPS
    local ranks=$1 out=$dir/odd-$2 steps=$3
    shift 3
    run pt "$dir/run.yaml" model="$dir/odd" output_dir="$out" gpus="$ranks" per_device_train_batch_size=$((12 / ranks)) max_steps="$steps" \
        gradient_accumulation_steps=1 optimizer=adamw_8bit lr_scheduler_type=constant save_steps=0 eval_steps=0 "$@"
    check "8 bits, $ranks ranks, $*: exit $status, $(tail -1 "$dir/err")" [ "$status" = 0 ]
    check "8 bits, $ranks ranks, $*: the run of one" awk '{ d = $1 - $2; if (d < 0) d = -d; if (!(d <= 1e-5 * $1)) bad = 1; n++ }
        END { exit bad || n < 12 }' <(paste <(numbers "$dir/odd-1" | head -12) <(numbers "$out" | head -12))
}
odd 1 1 8
for ranks in 2 3 4 6; do odd $ranks $ranks 8; done
odd 3 zero 8 zero_level=3
odd 3 host 8 offload_optimizer=true
odd 4 on 6 save_steps=2
odd 2 on 8 resume_from_checkpoint=true

# --- damage is named
cp -r "$dir/4" "$dir/damaged"
checkpoint=$dir/damaged/checkpoint-40
printf 'x' | dd of="$checkpoint/optimizer.safetensors" bs=1 seek=$(($(stat -c %s "$checkpoint/optimizer.safetensors") - 5)) conv=notrunc 2> /dev/null
go 2 "$dir/damaged" resume_from_checkpoint="$checkpoint" max_steps=44
check "damage: exit $status" [ "$status" = 5 ]
check "damage is found, with the tensor: $(tail -1 "$dir/err")" grep -q "optimizer.safetensors was changed or damaged in bytes 0 to 16777216" "$dir/err"

# --- signals
"$SUROGATE" pt "$dir/run.yaml" output_dir="$dir/signal" gpus=4 gradient_accumulation_steps=1 max_steps=4000 > /dev/null 2> "$dir/err" &
pid=$!
for _ in $(seq 1000); do
    [ -s "$dir/signal/metrics.jsonl" ] && break
    sleep 0.01
done
kill -TERM $pid
status=0
wait $pid || status=$?
check "SIGTERM: exit $status, $(tail -1 "$dir/err")" [ "$status" = 75 ]
check "and a checkpoint of all" compgen -G "$dir/signal/checkpoint-*/manifest.json" > /dev/null
go 2 "$dir/signal" max_steps=4000 resume_from_checkpoint=auto save_steps=0 learning_rate=1e-2
check "another setting is another run for any number of ranks" [ "$status" = 2 ]

# --- divergence ends all ranks in the same way
go 4 "$dir/diverged" learning_rate=1000 weight_decay=0.9 max_grad_norm=0 max_steps=400 eval_steps=0 save_steps=0
check "divergence: exit $status, $(tail -1 "$dir/err")" [ "$status" = 4 ]
check "is told once" [ "$(grep -c "wasn't finite in 3 steps" "$dir/err")" = 1 ]

# --- bad input
refused "too many" 2 "gpus" "expected 1 to 64" -- pt "$dir/run.yaml" output_dir="$dir/bad" gpus=65
refused "two words for one thing" 2 "use_all_to_all_reduce: true with memcpy_send_recv: false" -- \
    pt "$dir/run.yaml" output_dir="$dir/bad" gpus=2 memcpy_send_recv=false use_all_to_all_reduce=true
refused "no model" 2 "absent" -- pt "$dir/run.yaml" output_dir="$dir/bad" gpus=4 model="$dir/absent"
check "is told once, of no rank" [ "$(grep -c . "$dir/err")" = 1 -a "$(grep -c "rank" "$dir/err")" = 0 ]
check "and nothing was made" [ ! -e "$dir/bad" ]
if ! [ -e /dev/nvidia0 ]; then
    refused "no GPU" 2 "gpus: 2" -- pt "$dir/run.yaml" output_dir="$dir/bad" gpus=2 device=cuda
fi
finish
