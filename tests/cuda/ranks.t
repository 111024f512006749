#!/bin/bash
# Two GPUs that exchange data by copies or by NCCL give the numbers of one GPU in fp32. A failure on one GPU ends or skips the step on both,
# within the limits, and leaves a whole checkpoint. Ranks may be processes, also started by mpirun.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
gpus=$(nvidia-smi -L 2> /dev/null | wc -l)
[ -n "${CUDA_VISIBLE_DEVICES+set}" ] && gpus=$(echo "$CUDA_VISIBLE_DEVICES" | tr ',' '\n' | grep -c .)
if [ "$gpus" -lt 2 ]; then
    skip "fewer than two GPUs"
    finish
fi
export SUROGATE_SECRET="a secret of these tests" NCCL_NVLS_ENABLE=0
make_tiny head_dim=128 max_position_embeddings=4096
cat > "$dir/run.yaml" << END
model: $dir/model
datasets: [{path: $dir/text.txt}]
sequence_len: 64
per_device_train_batch_size: 2
gradient_accumulation_steps: 1
model_dtype: fp32
device: cuda
learning_rate: 1e-3
lr_scheduler_type: constant
warmup_steps: 0
comm_timeout: 4
dataset_cache_dir: $dir/cache
END
copies="memcpy_all_gather=true memcpy_send_recv=true"
nccl="memcpy_all_gather=false memcpy_send_recv=false"
losses() { grep '"log":"step"' "$1/metrics.jsonl" | sed -nE 's/.*"loss":([0-9.e+-]+).*/\1/p'; }
# The 20 losses of both runs differ by at most 1e-5 of the first run's losses. Prints the largest difference.
same_losses() {
    paste <(losses "$1") <(losses "$2") |
        awk '{ d = ($1 - $2) / $1; if (d < 0) d = -d; if (d > most) most = d } END { print "most: " most; exit !(NR == 20 && most <= 1e-5) }'
}

# --- the same numbers
equal() {
    local name=$1
    shift
    "$SUROGATE" pt "$dir/run.yaml" output_dir="$dir/$name" max_steps=20 save_steps=0 "$@" > /dev/null 2> "$dir/err-$name"
    check "$name: exit $?, $(tail -1 "$dir/err-$name")" [ -s "$dir/$name/model.safetensors" ]
}
equal one gradient_accumulation_steps=2
for level in 1 2 3; do
    # shellcheck disable=SC2086
    equal copies-$level gpus=2 zero_level=$level $copies
    # shellcheck disable=SC2086
    equal nccl-$level gpus=2 zero_level=$level $nccl
    for way in copies nccl; do
        most=$(same_losses "$dir/one" "$dir/$way-$level")
        check "zero_level $level by $way: $most" [ $? = 0 ]
    done
done
if command -v mpirun > /dev/null; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
    timeout 60 mpirun -n 2 "$SUROGATE" pt "$dir/run.yaml" output_dir="$dir/mpi" max_steps=20 save_steps=0 > "$dir/out" 2>&1
    check "mpirun: exit $?, $(tail -3 "$dir/out")" [ -s "$dir/mpi/model.safetensors" ]
    check "has the losses of two threads" [ -n "$(losses "$dir/mpi")" -a "$(losses "$dir/mpi")" = "$(losses "$dir/nccl-1")" ]
    check "and their weights" cmp -s "$dir/mpi/model.safetensors" "$dir/nccl-1/model.safetensors"
else
    skip "no mpirun"
fi

# --- failing together: each case in its own folder, all at the same time
fail_step=
if cc -O1 -shared -fPIC -fno-builtin -o "$dir/fail_step.so" tests/cuda/fail_step.c 2> /dev/null; then
    fail_step=$dir/fail_step.so
fi
port=$((10000 + $$ * 7 % 20000))
seconds_since() { awk "BEGIN { printf \"%.1f\", $(date +%s.%N) - $1 }"; }
least() { awk "BEGIN { exit !($1 <= $2) }"; }
has_checkpoint() {
    for _ in $(seq 6000); do
        ls -d "$1"/checkpoint-* > /dev/null 2>&1 && return 0
        sleep 0.01
    done
    return 1
}
# Each case, in threads or processes, writes a line per check to its folder: "ok" or "FAILED: why".
say() {
    local name=$1
    shift
    if "$@"; then echo ok; else echo "FAILED: $name"; fi >> "$out/said"
}
# threads WAY, processes PORT: start a run of two ranks; $pid has its processes.
threads() {
    # shellcheck disable=SC2086
    "$SUROGATE" pt "$dir/run.yaml" output_dir="$out/run" max_steps=1000000 save_steps=50 save_total_limit=2 gpus=2 ${!1} > /dev/null 2> "$out/err0" &
    pid=($!)
}
processes() {
    local rank
    for rank in 0 1; do
        "$SUROGATE" pt "$dir/run.yaml" output_dir="$out/run" max_steps=1000000 save_steps=50 save_total_limit=2 world_size=2 rank=$rank \
            rendezvous=127.0.0.1:"$1" > /dev/null 2> "$out/err$rank" &
        pid[rank]=$!
    done
}
await() {
    local i
    ended=()
    for i in "${!pid[@]}"; do
        wait "${pid[$i]}" 2> /dev/null
        ended[i]=$?
    done
}
words() { tail -qn 1 "$out"/err?; }
goes_on() {
    local last
    last=$(ls -d "$out"/run/checkpoint-* | sed 's/.*-//' | sort -n | tail -1)
    "$SUROGATE" pt "$dir/run.yaml" output_dir="$out/run" max_steps=$((last + 3)) gpus=2 resume_from_checkpoint=true > /dev/null 2> "$out/err"
    say "$1: the newest checkpoint, of step $last, is whole: $(tail -2 "$out/err")" grep -q "going on from .*checkpoint-" "$out/err"
}
kill_one() {
    processes "$1"
    say "it saves: $(words)" has_checkpoint "$out/run"
    local since
    since=$(date +%s.%N)
    kill -9 "${pid[$2]}"
    await
    say "killed rank $2: the other ends after $(seconds_since "$since") s" least "$(seconds_since "$since")" 10
    say "killed rank $2: exit ${ended[*]}, $(words)" grep -qE "error: .*rank $2: " "$out/err$((1 - $2))"
    goes_on "killed rank $2"
}
stop_one() {
    processes "$1"
    say "it saves: $(words)" has_checkpoint "$out/run"
    local since
    since=$(date +%s.%N)
    kill -STOP "${pid[1]}"
    wait "${pid[0]}"
    say "stopped rank 1: the other ends after $(seconds_since "$since") s" least "$(seconds_since "$since")" 10
    say "stopped rank 1: $(words)" grep -qE "error: .*rank 1: " "$out/err0"
    kill -9 "${pid[1]}"
    await
    goes_on "stopped rank 1"
}
end_one() { # SIGTERM
    processes "$1"
    say "it saves: $(words)" has_checkpoint "$out/run"
    kill -TERM "${pid[1]}"
    await
    say "SIGTERM to rank 1: exit ${ended[*]}, $(words)" [ "${ended[*]}" = "75 75" ]
    goes_on "SIGTERM to rank 1"
}
end_threads() {
    threads "$2"
    say "it saves: $(words)" has_checkpoint "$out/run"
    kill -TERM "${pid[0]}"
    await
    say "SIGTERM, $2: exit ${ended[*]}, $(words)" [ "${ended[*]}" = 75 ]
    goes_on "SIGTERM, $2"
}
hang_thread() {
    LD_PRELOAD=$fail_step FAIL_RATE=1e-3 FAIL_AS=hang FAIL_AT=401 threads "$2"
    say "it saves: $(words)" has_checkpoint "$out/run"
    local since
    since=$(date +%s.%N)
    await
    say "a thread that hangs, $2: ends after $(seconds_since "$since") s" least "$(seconds_since "$since")" 25
    say "a thread that hangs, $2: exit ${ended[*]}, $(words)" grep -qE "rank [01]: no progress" "$out/err0"
    goes_on "a thread that hangs, $2"
}
hang_bench() {
    local since
    since=$(date +%s.%N)
    # shellcheck disable=SC2086
    LD_PRELOAD=$fail_step FAIL_RATE=1e-5 FAIL_AS=hang FAIL_AT=401 "$SUROGATE" bench "$dir/run.yaml" --steps 100000 gpus=2 ${!2} > /dev/null 2> "$out/err0"
    say "bench with a thread that hangs, $2: exit $?, $(words)" grep -qE "rank [01]: no progress" "$out/err0"
    say "bench with a thread that hangs, $2: ends after $(seconds_since "$since") s" least "$(seconds_since "$since")" 60
}
nan_thread() {
    # shellcheck disable=SC2086
    LD_PRELOAD=$fail_step FAIL_RATE=1e-3 FAIL_AS=nan FAIL_AT=21 "$SUROGATE" pt "$dir/run.yaml" output_dir="$out/run" max_steps=20 save_steps=0 \
        gpus=2 ${!2} > /dev/null 2> "$out/err0"
    say "NaN on a rank, $2: exit $?, $(words)" [ -s "$out/run/model.safetensors" ]
    say "NaN on a rank, $2: one step of 20 is left out" [ "$(grep -c '"skipped":true' "$out/run/metrics.jsonl")" = 1 ]
}
failures=("kill_one 0" "kill_one 1" "stop_one" "end_one" "end_threads copies" "end_threads nccl")
[ -n "$fail_step" ] && failures+=("hang_thread copies" "hang_thread nccl" "hang_bench copies" "nan_thread copies" "nan_thread nccl")
[ -n "$fail_step" ] || skip "no C compiler to make a step fail with"
for failure in "${failures[@]}"; do
    port=$((port + 1))
    read -r what which <<< "$failure"
    out=$dir/$what-$which
    mkdir "$out"
    # shellcheck disable=SC2086
    $what $port $which &
done
wait
for failure in "${failures[@]}"; do
    read -r what which <<< "$failure"
    [ -s "$dir/$what-$which/said" ] || fail "$failure: said nothing"
    while read -r line; do
        if [ "$line" = ok ]; then pass; else fail "$failure: ${line#FAILED: }"; fi
    done < "$dir/$what-$which/said"
done
finish
