#!/bin/bash
# The best evaluation's checkpoint is kept, a run that stops improving ends, and output_dir holds the model that was asked for. A run that
# is killed at any moment around a new best leaves the same bytes. How often a run saves and evaluates.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
kills=${KILLS:-30}
RANDOM=42

make_tiny max_position_embeddings=128
head -60 "$dir/text.txt" > "$dir/few.txt"
tail -100 "$dir/text.txt" > "$dir/valid.txt"
cat > "$dir/run.yaml" << END
model: $dir/model
datasets: [{path: $dir/few.txt}]
validation_datasets: [{path: $dir/valid.txt}]
dataset_cache_dir: $dir/cache
sequence_len: 32
per_device_train_batch_size: 2
gradient_accumulation_steps: 2
max_steps: 60
learning_rate: 1e-2
eval_steps: 4
eval_max_batches: 4
model_dtype: bf16
END
go() { # NAME KEY=VALUE...: trains into $dir/NAME
    run pt "$dir/run.yaml" output_dir="$dir/$1" "${@:2}"
}
checkpoints() { (cd "$dir/$1" && ls -d checkpoint-* | sort -V | tr '\n' ' '); }
last_step() { grep '"log":"step"' "$dir/$1/metrics.jsonl" | tail -1 | sed -E 's/.*"step":([0-9]+).*/\1/'; }
# judged FILE PATIENCE: prints "BEST END MARKED", computed from the log's losses. BEST: the step of the lowest loss until END. END: the
# evaluation at which the patience runs out (0: none). MARKED: the steps that were the best when they were evaluated.
judged() {
    sed -nE 's/.*"log":"eval".*"step":([0-9]+).*"loss":([0-9.]+).*/\1 \2/p' "$1" | awk -v patience="$2" '
        !n++ || $2 < low { low = $2; best = $1; since = 0; marked = marked "," $1; next }
        ++since == patience && !end { end = $1; at = best }
        END { print end ? at : best, end + 0, marked }'
}

# --- which one is the best
go whole save_best=true
check "a run with save_best: $(tail -1 "$dir/err")" [ "$status" = 0 ]
read -r best _ marked <<< "$(judged "$dir/whole/metrics.jsonl" 0)"
check "the lowest loss isn't the last: $best" [ "$best" -gt 4 -a "$best" -lt 60 ]
check "metrics.jsonl marks them" [ "$(sed -nE 's/.*"log":"eval".*"step":([0-9]+).*"best":true.*/,\1/p' "$dir/whole/metrics.jsonl" | tr -d '\n')" = "$marked" ]
check "the best is kept beside the last: $(checkpoints whole)" [ "$(checkpoints whole)" = "checkpoint-$best checkpoint-60 " ]
check "what output_dir holds is said: $(tail -3 "$dir/err")" grep -qF "$dir/whole: the weights of step 60, the last; those of the best evaluation are in $dir/whole/checkpoint-$best" "$dir/err"
check "and it holds that" cmp "$dir/whole/model.safetensors" "$dir/whole/checkpoint-60/model.safetensors"
check "trainer_state.json names it" grep -qF "\"best_model_checkpoint\": \"$dir/whole/checkpoint-$best\"" "$dir/whole/trainer_state.json"
check "report.html names it" grep -qF "\"kept_best\":$best" "$dir/whole/report.html"
check "a step's line names the newest checkpoint" grep -qE "^step 60/60 .*  checkpoint-$best  " "$dir/err"
go limit save_best=true save_steps=5 save_total_limit=1
check "save_total_limit: 1 and the best: $(checkpoints limit)" [ "$(checkpoints limit)" = "checkpoint-$best checkpoint-60 " ]
go all save_best=true save_steps=20 save_total_limit=0
check "save_total_limit: 0 keeps all: $(checkpoints all)" [ "$(checkpoints all)" = "checkpoint-0 $(echo "$marked,20,40,60" | tr , '\n' | sed '/^$/d' | sort -nu | sed 's/^/checkpoint-/' | tr '\n' ' ')" ]
go plain
check "without keys nothing more is kept: $(checkpoints plain)" [ "$(checkpoints plain)" = "checkpoint-60 " ]
check "nor said: $(tail -3 "$dir/err")" grep -qx "model   $dir/plain" "$dir/err"
check "and the result is the same" cmp "$dir/plain/model.safetensors" "$dir/whole/model.safetensors"

# --- the best at the end
go loaded load_best_model_at_end=true
check "load_best_model_at_end: $(tail -1 "$dir/err")" [ "$status" = 0 ]
check "output_dir holds the best" cmp "$dir/loaded/model.safetensors" "$dir/whole/checkpoint-$best/model.safetensors"
check "its checkpoint is kept" cmp "$dir/loaded/checkpoint-$best/model.safetensors" "$dir/whole/checkpoint-$best/model.safetensors"
check "the last state too" cmp "$dir/loaded/checkpoint-60/optimizer.safetensors" "$dir/whole/checkpoint-60/optimizer.safetensors"
check "it is said" grep -qF "the weights of step $best, the best evaluation; those of the last step are in $dir/loaded/checkpoint-60" "$dir/err"
for settings in "lora=true lora_rank=2 lora_dtype=bf16 merge_adapter=true" "lora=true lora_rank=2" "master_dtype=fp32" "gpus=2 zero_level=3 gradient_accumulation_steps=1"; do
    read -ra keys <<< "$settings"
    rm -rf "$dir/other"
    go other load_best_model_at_end=true device=cpu "${keys[@]}"
    read -r other _ <<< "$(judged "$dir/other/metrics.jsonl" 0)"
    file=model.safetensors
    [[ $settings == lora* ]] && file=adapter_model.safetensors
    check "$settings: the best: $(tail -1 "$dir/err")" cmp "$dir/other/$file" "$dir/other/checkpoint-$other/$file"
    [ "$other" = 60 ] || check "$settings: not the last" [ "$(cmp "$dir/other/$file" "$dir/other/checkpoint-60/$file" | wc -l)" = 1 ]
    if [[ $settings == *merge* ]]; then
        run merge "$dir/model" "$dir/other/checkpoint-$other" "$dir/merged"
        check "$settings: what is merged is the best: $(tail -1 "$dir/err")" cmp "$dir/merged/model.safetensors" "$dir/other/merged/model.safetensors"
    fi
done

# --- a run that doesn't improve
for patience in 1 2 3; do
    read -r at end _ <<< "$(judged "$dir/whole/metrics.jsonl" $patience)"
    rm -rf "$dir/early"
    go early early_stopping_patience=$patience load_best_model_at_end=true
    check "patience $patience: exit $status: $(tail -1 "$dir/err")" [ "$status" = 0 ]
    check "patience $patience: it ends at step $(last_step early), expected $end" [ "$(last_step early)" = "$([ "$end" = 0 ] && echo 60 || echo "$end")" ]
    [ "$end" = 0 ] || [ "$end" = 60 ] && continue # the run ends there anyway
    check "patience $patience: it says so: $(grep patience "$dir/err")" grep -qF \
        "$patience evaluations in a row weren't better; the best is that of step $at; the run ends at step $end of 60" "$dir/err"
    check "patience $patience: the best of those" cmp "$dir/early/model.safetensors" "$dir/early/checkpoint-$at/model.safetensors"
    check "patience $patience: finished" grep -q '"finished": true' "$dir/early/run.json"
    go early early_stopping_patience=$patience load_best_model_at_end=true
    check "patience $patience: it is left alone: $(tail -1 "$dir/err")" [ "$status" = 0 -a "$(grep -c "is finished" "$dir/err")" = 1 ]
done
read -r _ end _ <<< "$(judged "$dir/whole/metrics.jsonl" 1)"
rm -rf "$dir/early"
go early early_stopping_patience=1
check "without the best: $(tail -3 "$dir/err")" grep -qF "the weights of step $end, the last; the best evaluation was that of step $((end - 4)) (save_best keeps it)" "$dir/err"
refused "another patience is another run" 2 "early_stopping_patience: 1" "resume_from_checkpoint: true" -- pt "$dir/run.yaml" output_dir="$dir/early" early_stopping_patience=2
go early early_stopping_patience=0 resume_from_checkpoint=true
check "true goes on to the end" [ "$(last_step early)" = 60 ]
check "as if it had never ended" cmp "$dir/early/model.safetensors" "$dir/plain/model.safetensors"
go threshold early_stopping_patience=1 early_stopping_threshold=100
check "no gain is above the threshold: step $(last_step threshold)" [ "$(last_step threshold)" = 8 ]
check "it says by how much: $(grep patience "$dir/err")" grep -qF "1 evaluations in a row weren't better by more than 100; the best is" "$dir/err"
go threshold2 early_stopping_patience=1 early_stopping_threshold=10 metric_for_best_model=perplexity
want=$(sed -nE 's/.*"log":"eval".*"step":([0-9]+).*"loss":([0-9.]+).*/\1 \2/p' "$dir/whole/metrics.jsonl" | awk 'NR > 1 && exp(low) - exp($2) <= 10 { print $1; exit } NR == 1 || $2 < low { low = $2 }')
check "the threshold is one of perplexity: step $(last_step threshold2)" [ "$(last_step threshold2)" = "$want" ]
for gpus in 1 2; do
    go "ranks$gpus" early_stopping_patience=2 load_best_model_at_end=true device=cpu gpus=$gpus gradient_accumulation_steps=$((2 / gpus)) model_dtype=fp32
    read -r at end _ <<< "$(judged "$dir/ranks$gpus/metrics.jsonl" 2)"
    check "$gpus ranks end together: $(tail -1 "$dir/err")" [ "$status" = 0 -a "$(last_step "ranks$gpus")" = "$([ "$end" = 0 ] && echo 60 || echo "$end")" ]
    check "$gpus ranks: the best" cmp "$dir/ranks$gpus/model.safetensors" "$dir/ranks$gpus/checkpoint-$at/model.safetensors"
done

# --- killed
keys=(save_best=true load_best_model_at_end=true early_stopping_patience=3 eval_steps=3 save_steps=7 save_total_limit=1 max_steps=48 learning_rate=4e-2
    lr_scheduler_type=constant)
contents() { # all files that the run leaves, without times
    (
        cd "$dir/$1" || exit
        find . -type f ! -name metrics.jsonl ! -name report.html ! -name trainer_state.json ! -name manifest.json ! -name run.json ! -name run_state.json \
            -exec sha256sum {} + | sort -k 2
        without_times metrics.jsonl
        grep -h 'best\|"step"\|pending' checkpoint-*/run_state.json
        grep -h best_ trainer_state.json | sed 's|/[a-z]*/checkpoint-|/checkpoint-|'
        grep -c '"finished": true' run.json
    )
}
go undisturbed "${keys[@]}"
check "undisturbed: $(tail -1 "$dir/err")" [ "$status" = 0 ]
contents undisturbed > "$dir/expected"
check "it has a best that isn't the last, and ends early: $(checkpoints undisturbed)" [ "$(checkpoints undisturbed | wc -w)" = 2 -a "$(last_step undisturbed)" -lt 48 ]
same() {
    contents killed > "$dir/found"
    check "$1: $(tail -1 "$dir/err"); $(diff "$dir/expected" "$dir/found" | head -5)" cmp -s "$dir/expected" "$dir/found"
}
for signal in TERM KILL; do
    rm -rf "$dir/killed"
    interrupts=0
    while :; do
        "$SUROGATE" pt "$dir/run.yaml" output_dir="$dir/killed" "${keys[@]}" > /dev/null 2> "$dir/err" &
        pid=$!
        sleep "0.$(printf '%03d' $((RANDOM % 250 + 50)))"
        [ $interrupts -lt 12 ] && kill -$signal $pid 2> /dev/null && interrupts=$((interrupts + 1))
        status=0
        { wait $pid; } 2> /dev/null || status=$?
        [ "$status" = 75 -o "$status" = 137 -o "$status" = 143 ] || break
    done
    check "SIG$signal: it ends well: exit $status" [ "$status" = 0 ]
    same "after $interrupts SIG$signal"
done
if cc -shared -fPIC -D_GNU_SOURCE -o "$dir/fail_io.so" tests/train/fail_io.c -ldl 2> "$dir/err"; then
    rm -rf "$dir/killed"
    FAIL_UNDER=$dir/killed FAIL_COUNT=$dir/count LD_PRELOAD=$dir/fail_io.so go killed "${keys[@]}"
    read -r calls _ < "$dir/count"
    same "with calls counted"
    killed=0
    for i in $(seq "$kills"); do # kills at file calls throughout the run, and again at a file call of the next start
        rm -rf "$dir/killed"
        for at in $((calls * i / (kills + 1) + 1)) $((RANDOM % calls + 1)); do
            { FAIL_UNDER=$dir/killed FAIL_AT=$at FAIL_AS=kill LD_PRELOAD=$dir/fail_io.so go killed "${keys[@]}"; } 2> /dev/null
            [ "$status" != 137 ] || killed=$((killed + 1))
        done
        go killed "${keys[@]}"
        same "killed at call $((calls * i / (kills + 1) + 1)) of $calls, then $at"
    done
    check "it was killed, $killed times" [ "$killed" -ge "$kills" ]
else
    skip "no compiler for fail_io.c: $(head -1 "$dir/err")"
fi

# --- files that no longer exist
cp -r "$dir/whole" "$dir/cut"
rm -rf "$dir/cut/checkpoint-$best" "$dir/cut/run.json"
go cut save_best=true resume_from_checkpoint=true max_steps=60
check "a best that was removed is said: $(cat "$dir/err")" grep -qF "has no checkpoint of the best evaluation so far, of step $best: the best is looked for from here on" "$dir/err"
go short max_steps=12
go short save_best=true early_stopping_patience=2 resume_from_checkpoint=true max_steps=20
check "a best that wasn't kept: patience begins anew: $(tail -3 "$dir/err")" [ "$(last_step short)" -gt 12 ]
rm -rf "$dir/damaged"
cp -r "$dir/loaded" "$dir/damaged"
rm "$dir/damaged/model.safetensors"
sed -i 's/"finished": true/"finished": false/' "$dir/damaged/run.json"
printf 'x' | dd of="$dir/damaged/checkpoint-$best/model.safetensors" bs=1 seek=5000 conv=notrunc 2> /dev/null
refused "a best that was damaged" 6 "load_best_model_at_end" "checkpoint-$best/model.safetensors was changed or damaged" -- pt "$dir/run.yaml" output_dir="$dir/damaged" load_best_model_at_end=true
check "the last weights aren't taken for it" [ ! -e "$dir/damaged/model.safetensors" ]

# --- keys without effect, reported before anything is done
printf 'save_best: true\nload_best_model_at_end: true\nearly_stopping_patience: 2\n' > "$dir/more"
grep -v '^valid\|^eval' "$dir/run.yaml" | cat - "$dir/more" > "$dir/none.yaml"
run plan "$dir/none.yaml"
check "without evaluations: $(cat "$dir/err")" grep -qF "save_best, load_best_model_at_end, early_stopping_patience: no effect without validation_datasets or validation_split_ratio" "$dir/err"
grep -v '^eval_steps' "$dir/run.yaml" | cat - "$dir/more" > "$dir/none.yaml"
run plan "$dir/none.yaml"
check "with one at the end alone: $(cat "$dir/err")" grep -qF "early_stopping_patience: no effect without eval_steps or evals_per_epoch" "$dir/err"

# --- times per epoch: 24 sequences are 6 steps
steps_of() { sed -nE 's/.*"log":"eval".*"step":([0-9]+).*/\1/p' "$dir/$1/metrics.jsonl" | tr '\n' ' '; }
go epochs max_steps=-1 num_epochs=2 eval_steps=0 evals_per_epoch=4 saves_per_epoch=2 save_total_limit=0
check "it is said: $(grep every "$dir/err")" [ "$(grep -cE '^(evals_per_epoch: 4: an evaluation every 2|saves_per_epoch: 2: a checkpoint every 3) steps$' "$dir/err")" = 2 ]
check "evaluations: $(steps_of epochs)" [ "$(steps_of epochs)" = "2 4 6 8 10 12 " ]
check "checkpoints: $(checkpoints epochs)" [ "$(checkpoints epochs)" = "checkpoint-0 checkpoint-3 checkpoint-6 checkpoint-9 checkpoint-12 " ]
go strategies max_steps=8 eval_steps=0 eval_strategy=epoch save_strategy=epoch save_total_limit=0
check "save_strategy: epoch: $(checkpoints strategies)" [ "$(checkpoints strategies)" = "checkpoint-0 checkpoint-6 checkpoint-8 " ]
check "eval_strategy: epoch: $(steps_of strategies)" [ "$(steps_of strategies)" = "6 8 " ]
run plan "$dir/run.yaml" save_steps=4 saves_per_epoch=2
check "save_steps goes before saves_per_epoch: $(cat "$dir/err")" grep -q "saves_per_epoch: no effect when save_steps is set" "$dir/err"

# --- by time
go timed save_minutes=0.00001
check "by time: $(tail -1 "$dir/err")" [ "$status" = 0 -a "$(grep -cE '  checkpoint-[0-9]+  ' "$dir/err")" -ge 10 ]
check "one of them is kept: $(checkpoints timed)" [ "$(checkpoints timed)" = "checkpoint-60 " ]
check "the result is the same" cmp "$dir/timed/model.safetensors" "$dir/plain/model.safetensors"
check "so is the state" cmp "$dir/timed/checkpoint-60/optimizer.safetensors" "$dir/plain/checkpoint-60/optimizer.safetensors"
check "and the log" cmp <(without_times "$dir/timed/metrics.jsonl") <(without_times "$dir/plain/metrics.jsonl")
go timed2 save_minutes=0.00001 gpus=2 gradient_accumulation_steps=1 device=cpu
check "ranks save by rank 0's clock: $(tail -1 "$dir/err")" [ "$status" = 0 -a "$(grep -cE '  checkpoint-[0-9]+  ' "$dir/err")" -ge 10 ]
go untimed save_minutes=0
check "save_minutes: 0 saves at the end" [ "$(grep -c '  checkpoint-' "$dir/err")" = 0 ]
go minutes save_minutes=0.00001 save_steps=0
check "save_steps: 0 with save_minutes saves by time" [ "$(grep -cE '  checkpoint-[0-9]+  ' "$dir/err")" -ge 10 ]
go unlimited save_total_limit=0
check "where all would stay none is kept, and it is said" grep -q "no checkpoint is kept before the end: save_total_limit: 0" "$dir/err"
mkdir "$dir/disk"
if mount -t tmpfs -o size=64K tmpfs "$dir/disk" 2> /dev/null; then
    trap 'umount "$dir/disk"; rm -rf "$dir"' EXIT
    run pt "$dir/run.yaml" output_dir="$dir/disk/out" # too small for one checkpoint
    check "a disk for none: exit $status" [ "$status" = 3 ]
    need=$(sed -nE 's/.* takes? ([0-9.]+) MiB.*/\1/p' "$dir/err")
    one=$(sed -nE 's/.* checkpoints of ([0-9.]+) MiB.*/\1/p' "$dir/err")
    mount -o remount,size="$(awk "BEGIN { print int(($need - $one / 2) * 1024) }")K" "$dir/disk"
    run pt "$dir/run.yaml" output_dir="$dir/disk/out"
    check "a disk for one: exit $status: $(tail -2 "$dir/err")" [ "$status" = 0 ]
    check "it is said" grep -q "no checkpoint is kept before the end: .* has room for one" "$dir/err"
    check "the result is the same" cmp "$dir/disk/out/model.safetensors" "$dir/plain/model.safetensors"
    rm -rf "$dir/disk/out"
    run pt "$dir/run.yaml" output_dir="$dir/disk/out" save_steps=0
    check "what was asked for is refused as ever: exit $status" [ "$status" = 3 ]
else
    skip "no tmpfs can be mounted"
fi
finish
