#!/bin/bash
# Ranks that are processes give the run of one rank. A signal to any rank makes all ranks save. A rank that dies, stops or differs ends all
# ranks, and each says why.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
export SUROGATE_SECRET="a secret of these tests"
port=$((10000 + $$ * 7 % 20000)) # below the ports that systems assign
make_text_run "max_steps: 20" "save_steps: 4" "per_device_train_batch_size: 1" "gradient_accumulation_steps: 2" "validation_split_ratio: 0.1" \
    "eval_steps: 8" "device: cpu" "threads: 2" "dataset_cache_dir: $dir/cache" "eval_max_batches: 4"

# start OUT ARGS...: starts the ranks. Rank 1 also gets the arguments after "--", runs the program $program_of_1 and starts in the folder
# $folder_of_1, if these are set.
start() {
    local out=$1 own=() more=() rank program=$SUROGATE folder=.
    shift
    port=$((port + 1))
    while [ $# -gt 0 ] && [ "$1" != -- ]; do
        own+=("$1")
        shift
    done
    [ $# -gt 0 ] && shift && more=("$@")
    for rank in 0 1; do
        [ $rank = 0 ] || own+=("${more[@]}")
        [ $rank = 0 ] || program=${program_of_1:-$SUROGATE} folder=${folder_of_1:-.}
        cd "$folder" || exit
        "$program" pt "$dir/run.yaml" output_dir="$out" gradient_accumulation_steps=1 world_size=2 rank=$rank rendezvous=127.0.0.1:$port \
            comm_timeout=5 "${own[@]}" > /dev/null 2> "$dir/err$rank" &
        pid[rank]=$!
        cd "$root" || exit
    done
}
await() {
    for rank in 0 1; do
        ended[rank]=0
        wait "${pid[$rank]}" 2> /dev/null || ended[rank]=$?
    done
}
until_steps() {
    for _ in $(seq 3000); do
        [ -e "$1/checkpoint-4" ] && return
        sleep 0.01
    done
}

run pt "$dir/run.yaml" output_dir="$dir/one"
start "$dir/two"
await
check "two processes: exit ${ended[*]}, $(tail -1 "$dir/err0") $(tail -1 "$dir/err1")" [ "${ended[*]}" = "0 0" ]
losses() { sed -nE 's/.*"loss":([0-9.e+-]+).*/\1/p' "$1/metrics.jsonl"; }
check "the run of one" awk '{ getline one < ARGV[2]; d = $1 - one; if (d < 0) d = -d; if (!(d <= 1e-5 * one)) exit bad = 1 } FNR == 23 { exit } END { exit bad || FNR != 23 }' \
    <(losses "$dir/two") <(losses "$dir/one")
check "rank 1 says nothing: $(cat "$dir/err1")" [ ! -s "$dir/err1" ]

run pt "$dir/run.yaml" output_dir="$dir/threads" gpus=4 gradient_accumulation_steps=1
start "$dir/both" gpus=2
await
check "two processes of two ranks: exit ${ended[*]}, $(tail -1 "$dir/err0") $(tail -1 "$dir/err1")" [ "${ended[*]}" = "0 0" ]
check "the losses of four threads" [ -n "$(losses "$dir/both")" -a "$(losses "$dir/both")" = "$(losses "$dir/threads")" ]
check "and their weights" cmp "$dir/both/model.safetensors" "$dir/threads/model.safetensors"
start "$dir/unequal" -- gpus=2
await
check "gpus that differ: exit ${ended[*]}, $(tail -1 "$dir/err0") $(tail -1 "$dir/err1")" [ "${ended[*]}" = "2 2" ]

for rank in 0 1; do
    start "$dir/signal$rank" max_steps=100000
    until_steps "$dir/signal$rank"
    kill -TERM "${pid[$rank]}"
    target=$rank
    await
    check "SIGTERM to rank $target: exit ${ended[*]}, $(tail -1 "$dir/err0") $(tail -1 "$dir/err1")" [ "${ended[*]}" = "75 75" ]
done

start "$dir/killed" max_steps=100000
until_steps "$dir/killed"
kill -9 "${pid[1]}"
await
check "rank 1 is killed: exit ${ended[*]}" [ "${ended[0]}" != 0 -a "${ended[0]}" -lt 128 -a "${ended[1]}" = 137 ]
check "rank 0 names it: $(tail -1 "$dir/err0")" grep -qE "error: .*rank 1: " "$dir/err0"
start "$dir/killed" max_steps=100000
sleep 0.1
until_steps "$dir/killed"
kill -9 "${pid[0]}"
await
check "rank 0 is killed: exit ${ended[*]}, rank 1 says: $(tail -1 "$dir/err1")" grep -q "error: rank 0: " "$dir/err1"

start "$dir/killed" max_steps=100000
sleep 0.5
kill -STOP "${pid[1]}"
wait "${pid[0]}"
check "rank 1 is stopped: rank 0 names it: $(tail -1 "$dir/err0")" grep -qE "error: .*rank 1: " "$dir/err0"
kill -9 "${pid[1]}"
await
run pt "$dir/run.yaml" output_dir="$dir/killed" resume_from_checkpoint=true max_steps=4
check "the newest checkpoint is whole: $(tail -1 "$dir/err")" grep -qE "checkpoint-[0-9]+ is of step|going on from" "$dir/err"

start "$dir/differ" -- learning_rate=3e-3
await
check "other settings: exit ${ended[*]}" [ "${ended[*]}" = "2 2" ]
check "are told by both: $(cat "$dir/err0" "$dir/err1")" [ "$(cat "$dir/err0" "$dir/err1" | grep -c 'error: rank 1: it has other settings than rank 0 (there "learning_rate: [0-9.e-]*", here "learning_rate: 0.003")')" = 2 ]
start "$dir/differ" -- eval_steps=5
await
check "a setting that changes no weight: exit ${ended[*]}" [ "${ended[*]}" = "2 2" ]
cp "$SUROGATE" "$dir/surogate"
echo >> "$dir/surogate"
program_of_1=$dir/surogate start "$dir/differ"
await
check "another program: exit ${ended[*]}" [ "${ended[*]}" = "2 2" ]
check "is told by both: $(cat "$dir/err0" "$dir/err1")" [ "$(cat "$dir/err0" "$dir/err1" | grep -c "rank 1 runs something else than rank 0")" = 2 ]
mkdir "$dir/elsewhere"
cd "$dir" || exit
root=$dir folder_of_1=$dir/elsewhere start output
cd "$root" || exit
await
check "another folder: exit ${ended[*]}" [ "${ended[*]}" = "2 2" ]
check "is told by both: $(cat "$dir/err0" "$dir/err1")" [ "$(cat "$dir/err0" "$dir/err1" | grep -c "error: rank 1: output_dir output is another folder here than for rank 0")" = 2 ]
SUROGATE_SECRET="" start "$dir/differ"
await
check "no secret: exit ${ended[*]}, $(tail -1 "$dir/err0")" [ "${ended[*]}" = "2 2" ]
secret=$SUROGATE_SECRET
unset SUROGATE_SECRET
refused "no secret at all" 2 "export SUROGATE_SECRET" "key rendezvous_secret" -- pt "$dir/run.yaml" output_dir="$dir/bad" world_size=2
export SUROGATE_SECRET=$secret
refused "no such rank" 2 "rank 2 of world_size 2" -- pt "$dir/run.yaml" output_dir="$dir/bad" world_size=2 rank=2
refused "a rank of one" 2 "rank 1 of world_size 1" -- pt "$dir/run.yaml" output_dir="$dir/bad" rank=1
refused "no port" 2 "expected host:port" -- pt "$dir/run.yaml" output_dir="$dir/bad" world_size=2 rendezvous=127.0.0.1:80x
refused "no place" 2 "expected host:port" -- pt "$dir/run.yaml" output_dir="$dir/bad" world_size=2 rendezvous=here
finish
