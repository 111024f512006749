#!/bin/bash
# Signals and full disks: the run saves so that it can be resumed, and exits with 75. A failed save keeps the checkpoint before. The results
# stay the same.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
make_text_run "dataset_cache_dir: $dir/cache" "max_steps: 400" "logging_steps: 100"
same_results() {
    cmp "$dir/whole/model.safetensors" "$1/model.safetensors" &&
        cmp "$dir/whole/checkpoint-400/optimizer.safetensors" "$1/checkpoint-400/optimizer.safetensors" &&
        cmp <(without_times "$dir/whole/metrics.jsonl") <(without_times "$1/metrics.jsonl")
}
# Starts a run in the background and waits until it has made some steps.
start_run() {
    "$SUROGATE" pt "$dir/run.yaml" output_dir="$1" > "$dir/out" 2> "$dir/err" &
    pid=$!
    for _ in $(seq 1000); do
        [ -s "$1/metrics.jsonl" ] && break
        sleep 0.01
    done
}

run pt "$dir/run.yaml" output_dir="$dir/whole"
check "the whole run ends well" [ "$status" = 0 ]
grep -oE '^step [0-9]+|[0-9,]+ tok/s' "$dir/err" | tr -d ',' | awk '$1 == "step" { s = $2; next } { print s, $1 }' > "$dir/screen"
while read -r step speed; do
    logged=$(sed -n "${step}s/.*\"tokens_per_second\":\([0-9.]*\).*/\1/p" "$dir/whole/metrics.jsonl")
    check "step $step: $speed tok/s on screen, $logged in the log" awk -v a="$speed" -v b="$logged" 'BEGIN { exit !(a - b <= 1 && b - a <= 1) }'
done < "$dir/screen"
check "lines were compared" [ "$(wc -l < "$dir/screen")" = 4 ]

for signal in INT TERM USR1; do
    out=$dir/$signal
    start_run "$out"
    kill -$signal $pid
    status=0
    wait $pid || status=$?
    check "SIG$signal: exit $status, expected 75" [ "$status" = 75 ]
    check "SIG$signal: says how to go on" grep -q "same command" "$dir/err"
    check "SIG$signal: it is no error" [ "$(grep -c "error:" "$dir/err")" = 0 ]
    check "SIG$signal: a checkpoint is there" compgen -G "$out/checkpoint-*/manifest.json" > /dev/null
    run pt "$dir/run.yaml" output_dir="$out"
    check "SIG$signal: it goes on" [ "$status" = 0 ]
    check "SIG$signal: the results are the same" same_results "$out"
done

# --- if the same command would start anew, the command that resumes is printed
for resume in false "$dir/INT/checkpoint-400"; do
    out="$dir/it's anew"
    rm -rf "$out"
    cp -r "$dir/whole" "$out"
    command="pt $dir/run.yaml 'output_dir=$(sed "s/'/'\\\\''/" <<< "$out")' resume_from_checkpoint=$resume"
    : > "$dir/err"
    "$SUROGATE" pt "$dir/run.yaml" output_dir="$out" resume_from_checkpoint="$resume" max_steps=800 > "$dir/out" 2> "$dir/err" &
    pid=$!
    until grep -q '^step ' "$dir/err" || ! kill -0 $pid 2> /dev/null; do sleep 0.01; done
    kill -INT $pid
    status=0
    wait $pid || status=$?
    check "from $resume: exit $status, expected 75" [ "$status" = 75 ]
    check "from $resume: the command is printed: $(tail -1 "$dir/err")" grep -qF "to go on: surogate $command max_steps=800 resume_from_checkpoint=auto" "$dir/err"
    step=$(sed -nE 's/^interrupted after step ([0-9]+) of.*/\1/p' "$dir/err")
    status=0
    (eval "$(sed -nE "s|^to go on: surogate|\"$SUROGATE\"|p" "$dir/err")") > "$dir/out" 2> "$dir/err2" || status=$?
    check "from $resume: it ends well: $(tail -1 "$dir/err2")" [ "$status" = 0 ]
    check "from $resume: and goes on: $(head -5 "$dir/err2")" grep -qF "going on from $out/checkpoint-$step, step $step of 800" "$dir/err2"
done

# --- a run that returned to an earlier checkpoint is interrupted: the printed command resumes from there, not from later checkpoints of the
# old branch
run pt "$dir/run.yaml" output_dir="$dir/long" save_steps=100 save_total_limit=0
check "a run with checkpoints ends well: $(tail -1 "$dir/err")" [ "$status" = 0 ]
before=$(cd "$dir/long" && cat checkpoint-300/* checkpoint-400/* | sha256sum)
# back WHERE FROM: returns from the run's end to checkpoint FROM, in the same folder or another one, and is interrupted
back() {
    local out=$dir/back-$1 from=$dir/long
    rm -rf "$out"
    cp -r "$dir/long" "$out"
    [ "$1" = outside ] || from=$out
    : > "$dir/err"
    "$SUROGATE" pt "$dir/run.yaml" output_dir="$out" resume_from_checkpoint="$from/checkpoint-200" learning_rate=1e-4 > "$dir/out" 2> "$dir/err" &
    pid=$!
    until grep -q '^step ' "$dir/err" || ! kill -0 $pid 2> /dev/null; do sleep 0.01; done
    kill -INT $pid
    status=0
    wait $pid || status=$?
    step=$(sed -nE 's/^interrupted after step ([0-9]+) of.*/\1/p' "$dir/err")
    check "back, $1: exit $status at step $step" [ "$status" = 75 -a -n "$step" ]
    check "back, $1: the later ones keep their bytes: $(ls "$out")" [ "$(cd "$out" && cat checkpoint-300.aside/* checkpoint-400.aside/* | sha256sum)" = "$before" ]
    check "back, $1: that is said: $(cat "$dir/err")" grep -qF "$out/checkpoint-400 isn't of this run, which went on from step 200; it is now $out/checkpoint-400.aside" "$dir/err"
    status=0
    (eval "$(sed -nE "s|^to go on: surogate|\"$SUROGATE\"|p" "$dir/err")") > "$dir/out" 2> "$dir/err2" || status=$?
    check "back, $1: goes on, exit $status: $(head -5 "$dir/err2")" grep -qF "going on from $out/checkpoint-$step, step $step of 400" "$dir/err2"
}
back inside
back outside
run pt "$dir/run.yaml" output_dir="$dir/straight" resume_from_checkpoint="$dir/long/checkpoint-200" learning_rate=1e-4
check "the weights are those of an uninterrupted run" cmp "$dir/straight/model.safetensors" "$dir/back-inside/model.safetensors"
check "outside too" cmp "$dir/straight/model.safetensors" "$dir/back-outside/model.safetensors"

# --- before there is anything to save; the program is reading the pipe
mkfifo "$dir/pipe"
"$SUROGATE" generate "$dir/model" --prompt-file "$dir/pipe" > "$dir/out" 2> "$dir/err" &
pid=$!
exec 9> "$dir/pipe"
kill -INT $pid
status=0
wait $pid || status=$?
exec 9>&-
check "SIGINT elsewhere: exit $status, expected 130" [ "$status" = 130 ]
check "and it is said: $(cat "$dir/err")" grep -qx "interrupted" "$dir/err"

run pt "$dir/run.yaml" output_dir="$dir/diverged" learning_rate=1000 weight_decay=0.9 max_grad_norm=0
check "divergence: exit $status, expected 4" [ "$status" = 4 ]
check "NaN has no sign: $(tail -3 "$dir/err")" [ "$(grep -c nan "$dir/err")" != 0 -a "$(grep -ce -nan "$dir/err")" = 0 ]

# --- two runs into one folder
start_run "$dir/shared"
kill -STOP $pid
cp "$dir/err" "$dir/first"
refused "a second run into the folder" 2 "$dir/shared" "process $pid" -- pt "$dir/run.yaml" output_dir="$dir/shared"
kill -9 $pid
{ wait $pid; } 2> /dev/null
run pt "$dir/run.yaml" output_dir="$dir/shared"
check "after a kill it is free: $(tail -1 "$dir/err")" [ "$status" = 0 ]
check "the results are the same" same_results "$dir/shared"
check "no lock is left" [ ! -e "$dir/shared/.lock" ]

run pt "$dir/run.yaml" output_dir="$dir/whole"
check "a finished run is done: exit 0" [ "$status" = 0 ]
check "and says so" grep -q "finished" "$dir/err"

# A disk fills up during training: the save fails, the run continues, and the last save decides the exit status.
if mkdir "$dir/disk" && mount -t tmpfs -o size=4M tmpfs "$dir/disk" 2> /dev/null; then
    start_run "$dir/disk/out"
    head -c 8000000 /dev/zero > "$dir/disk/filler" 2> /dev/null
    status=0
    wait $pid || status=$?
    check "full disk: exit $status, expected 6" [ "$status" = 6 ]
    rm "$dir/disk/filler"
    run pt "$dir/run.yaml" output_dir="$dir/disk/out"
    check "with room again the same command ends well" [ "$status" = 0 ]
    check "with the same weights" cmp "$dir/whole/model.safetensors" "$dir/disk/out/model.safetensors"
    umount "$dir/disk"
else
    skip "full disk: no tmpfs can be mounted"
fi
finish
