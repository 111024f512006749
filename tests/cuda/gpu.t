#!/bin/bash
# Whole runs on a GPU: too little memory, a GPU that fails during a run, packed documents in bf16.
cd "$(dirname "$0")/../.." || exit 1
. tests/chat.sh
if ! nvidia-smi -L > /dev/null 2>&1; then
    skip "no GPU"
    finish
fi
make_tiny head_dim=128 max_position_embeddings=4096
cat > "$dir/run.yaml" << END
model: $dir/model
datasets: [{path: $dir/text.txt}]
sequence_len: 64
per_device_train_batch_size: 2
gradient_accumulation_steps: 1
max_steps: 1000000
model_dtype: bf16
device: cuda
save_steps: 20
save_total_limit: 2
END
field() { grep '"log":"step"' "$2" | sed -E "s/.*\"$1\":([-0-9.e+]+).*/\1/"; }

# --- too little memory: reported before anything is loaded or written
refused "a plan beyond the GPU's memory" 3 "the plan takes" "per_device_train_batch_size" "what fits:" "activations" -- \
    pt "$dir/run.yaml" per_device_train_batch_size=65536 sequence_len=4096 output_dir="$dir/big"
check "and nothing was written" [ ! -e "$dir/big" ]

# --- the GPU fails
if cc -shared -fPIC -o "$dir/break_gpu.so" tests/cuda/break_gpu.c -ldl -lpthread 2> /dev/null; then
    LD_PRELOAD=$dir/break_gpu.so BREAK_AFTER=6 run pt "$dir/run.yaml" output_dir="$dir/broken"
    check "a broken GPU ends the run with 1 ($status)" [ "$status" = 1 ]
    check "with one error: $(cat "$dir/err")" [ "$(grep -c '^error: ' "$dir/err")" = 1 ]
    check "that says where checkpoints are" grep -q "checkpoint" "$dir/err"
    last=$(ls -d "$dir"/broken/checkpoint-* | sed 's/.*-//' | sort -n | tail -1)
    run pt "$dir/run.yaml" output_dir="$dir/broken" max_steps=$((last + 5)) resume_from_checkpoint=true
    check "the same command goes on from step $last: $(tail -2 "$dir/err")" [ "$status" = 0 ]
    check "from the newest checkpoint" grep -q "going on from .*checkpoint-$last, step $last" "$dir/err"
else
    skip "no C compiler to break a GPU with"
fi

# --- a step over the same rows, packed and one document per row; lengths are lognormal with median 300
awk 'BEGIN {
    srand(3)
    for (row = 0; row < 96; row++) {
        words = int(exp(log(60) + sqrt(-2 * log(1 - rand())) * cos(6.283185 * rand())))
        text = ""
        for (i = 0; i < words && i < 700; i++) text = text " " int(1000 * rand())
        print "{\"question\": \"Which numbers come in row " row "?\", \"answer\": \"They are" text ".\"}"
    }
}' > "$dir/rows.jsonl"
one_step() {
    local name=$1
    shift
    run sft "$dir/run.yaml" datasets.0.path="$dir/rows.jsonl" sequence_len=4096 save_steps=0 max_steps=-1 num_epochs=3 \
        learning_rate=1e-3 warmup_steps=0 output_dir="$dir/$name" "$@"
    [ "$(field loss "$dir/$name/metrics.jsonl" | wc -l)" = 3 ] || fail "$name: three steps expected: $(tail -3 "$dir/err")"
}
near() { awk -v a="$1" -v b="$2" -v bar="$3" 'BEGIN { d = a - b; exit !((d < 0 ? -d : d) <= bar * (b < 0 ? -b : b) && a != "") }'; }
rows=$("$SUROGATE" inspect "$dir/rows.jsonl" --model "$dir/model" sequence_len=4096 --rows 0 2> /dev/null |
    sed -n 's/^packing *\([0-9]*\) sequences of 4096.*/\1/p')
check "96 rows are packed into fewer: $rows" [ "${rows:-96}" -lt 48 ]
for kind in full lora; do
    lora=
    [ $kind = lora ] && lora="lora=true lora_rank=8"
    # shellcheck disable=SC2086
    one_step packed-$kind per_device_train_batch_size=1 gradient_accumulation_steps="$rows" $lora
    # shellcheck disable=SC2086
    one_step single-$kind per_device_train_batch_size=2 gradient_accumulation_steps=48 sample_packing=false $lora
    for step in 1 2 3; do
        a=$(field loss "$dir/packed-$kind/metrics.jsonl" | sed -n ${step}p)
        b=$(field loss "$dir/single-$kind/metrics.jsonl" | sed -n ${step}p)
        echo "$kind, step $step: packed $a, single $b"
        check "$kind, step $step: packed $a is single $b" near "$a" "$b" 1e-3
    done
done

# --- two GPUs, by copies and by NCCL
two_gpus() {
    local name=$1
    shift
    run pt "$dir/run.yaml" output_dir="$dir/$name" gpus=2 max_steps=20 save_steps=0 learning_rate=1e-3 "$@"
    check "$name: exit $status, $(tail -1 "$dir/err")" [ "$status" = 0 ]
}
gpus=$(nvidia-smi -L | wc -l)
[ -n "${CUDA_VISIBLE_DEVICES+set}" ] && gpus=$(echo "$CUDA_VISIBLE_DEVICES" | tr ',' '\n' | grep -c .)
if [ "$gpus" -ge 2 ]; then
    two_gpus one gpus=1 gradient_accumulation_steps=2
    two_gpus two
    two_gpus again
    check "twice the same bits" cmp "$dir/two/model.safetensors" "$dir/again/model.safetensors"
    for level in 1 2 3; do
        two_gpus copies-$level zero_level=$level memcpy_all_gather=true use_all_to_all_reduce=true
        two_gpus nccl-$level zero_level=$level memcpy_all_gather=false use_all_to_all_reduce=false
        two_gpus mixed-$level zero_level=$level memcpy_all_gather=false use_all_to_all_reduce=true
        for way in copies nccl mixed; do
            last=$(field loss "$dir/$way-$level/metrics.jsonl" | tail -1)
            want=$(field loss "$dir/one/metrics.jsonl" | tail -1)
            check "zero_level $level, $way: $last is $want" near "$last" "$want" 2e-2
        done
    done
    # matrices large enough to be divided
    "$SUROGATE" new --arch qwen3-tiny --random --tokenizer "$dir/model" "$dir/large" hidden_size=512 intermediate_size=2048 head_dim=128 2> /dev/null
    for kind in optimizer=normuon recipe=fp8-hybrid; do
        two_gpus "$kind" model="$dir/large" gpus=1 gradient_accumulation_steps=2 $kind
        want=$(field loss "$dir/$kind/metrics.jsonl" | tail -1)
        for way in true false; do
            both="memcpy_all_gather=$way use_all_to_all_reduce=$way"
            for level in 2 3; do
                # shellcheck disable=SC2086
                two_gpus "$kind-$way-$level" model="$dir/large" zero_level=$level $kind $both
                # shellcheck disable=SC2086
                two_gpus "$kind-$way-$level-host" model="$dir/large" zero_level=$level $kind $both offload_grads=true
                last=$(field loss "$dir/$kind-$way-$level/metrics.jsonl" | tail -1)
                check "$kind, zero_level $level, copies $way: $last is $want" near "$last" "$want" 2e-2
                check "$kind, zero_level $level, copies $way: gradients on the host leave the bits" \
                    cmp "$dir/$kind-$way-$level/model.safetensors" "$dir/$kind-$way-$level-host/model.safetensors"
            done
        done
    done
else
    skip "fewer than two GPUs"
fi
finish
