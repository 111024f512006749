#!/bin/bash
# metrics.jsonl on a disk that fails for a while, and cut files; a tokenizer without EOS gives a warning.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
make_text_run "dataset_cache_dir: $dir/cache" "max_steps: 24" "save_steps: 8" "save_total_limit: 3"
run pt "$dir/run.yaml" output_dir="$dir/whole"
check "the whole run ends well: $(tail -1 "$dir/err")" [ "$status" = 0 ]

# --- calls 12 to 14 fail, which write the lines of steps 10 to 12
if cc -shared -fPIC -D_GNU_SOURCE -o "$dir/fail_io.so" tests/train/fail_io.c -ldl 2> "$dir/err"; then
    for how in EIO ENOSPC short; do
        out=$dir/$how
        FAIL_UNDER=$out/metrics.jsonl FAIL_AT=12 FAIL_FOR=3 FAIL_AS=$how FAIL_COUNT=$dir/count LD_PRELOAD=$dir/fail_io.so \
            run pt "$dir/run.yaml" output_dir="$out"
        check "$how: the run ends well: $(tail -1 "$dir/err")" [ "$status" = 0 ]
        read -r calls _ < "$dir/count"
        check "$how: there were calls: $calls" [ "$calls" -gt 24 ]
        check "$how: no line is lost" cmp <(without_times "$dir/whole/metrics.jsonl") <(without_times "$out/metrics.jsonl")
        said=1
        [ $how = short ] && said=0
        check "$how: it is said once: $(grep warning "$dir/err")" [ "$(grep -c "warning: cannot write $out/metrics.jsonl" "$dir/err")" = $said ]
    done
    out=$dir/broken
    FAIL_UNDER=$out/model.safetensors FAIL_AT=1 FAIL_FOR=1000 FAIL_AS=EIO LD_PRELOAD=$dir/fail_io.so run pt "$dir/run.yaml" output_dir="$out"
    check "a broken disk at the end: exit $status" [ "$status" = 6 ]
    check "room isn't what it needs: $(tail -1 "$dir/err")" [ "$(grep -c "Input/output error. Put that right; then the same command goes on" "$dir/err")" = 1 ]
    FAIL_UNDER=$out/model.safetensors FAIL_AT=1 FAIL_FOR=1000 FAIL_AS=ENOSPC LD_PRELOAD=$dir/fail_io.so run pt "$dir/run.yaml" output_dir="$out"
    check "a full one: exit $status, $(tail -1 "$dir/err")" [ "$status" = 6 -a "$(grep -c "Make room; then the same command goes on" "$dir/err")" = 1 ]
    FAIL_UNDER=$dir/full FAIL_AT=20 FAIL_FOR=1000 FAIL_AS=ENOSPC LD_PRELOAD=$dir/fail_io.so \
        run pt "$dir/run.yaml" output_dir="$out" dataset_cache_dir="$dir/full"
    check "a full one while tokenizing: exit $status, $(tail -1 "$dir/err")" [ "$status" = 3 -a \
        "$(grep -c "cannot .* $dir/full/.*: No space left on device. Make room; then the same command goes on where it stopped" "$dir/err")" = 1 ]
    # --- a save doesn't read the log: it makes one more call, which syncs the log
    calls_of() {
        FAIL_UNDER=$dir/calls/metrics.jsonl FAIL_COUNT=$dir/count LD_PRELOAD=$dir/fail_io.so run pt "$dir/run.yaml" output_dir="$dir/calls" "$@"
        check "$*: it ends well: $(tail -1 "$dir/err")" [ "$status" = 0 ]
        read -r calls _ < "$dir/count"
        rm -r "$dir/calls"
    }
    calls_of save_steps=24
    few=$calls
    calls_of save_steps=1
    check "23 saves more: $few calls, $calls calls" [ "$calls" = $((few + 23)) ]
else
    skip "no compiler for fail_io.c: $(head -1 "$dir/err")"
fi

# --- epochs end at their number, even if the last step is partial
run pt "$dir/run.yaml" output_dir="$dir/epoch" max_steps=-1 num_epochs=2 sequence_len=128 per_device_train_batch_size=64 gradient_accumulation_steps=4
check "2 epochs: $(tail -1 "$dir/err")" [ "$status" = 0 ]
check "the last step's: $(tail -1 "$dir/epoch/metrics.jsonl")" grep -q '"epoch":2,' <(tail -1 "$dir/epoch/metrics.jsonl")

# --- the log is cut in the middle of step 5's line, after checkpoint-16 was saved
out=$dir/cut
cp -r "$dir/whole" "$out"
rm -r "$out/checkpoint-24"
sed -i 's/"finished": true/"finished": false/' "$out/run.json"
head -c $(($(head -4 "$dir/whole/metrics.jsonl" | wc -c) + 30)) "$dir/whole/metrics.jsonl" > "$out/metrics.jsonl"
run pt "$dir/run.yaml" output_dir="$out"
check "a cut log: the run goes on: $(tail -1 "$dir/err")" [ "$status" = 0 ]
check "the gap is said: $(cat "$dir/err")" grep -q "warning: $out/metrics.jsonl was cut .* steps 5 to 16 are lost" "$dir/err"
check "and stands in the log" cmp <(sed -nE 5p "$out/metrics.jsonl" | without_times /dev/stdin) <(echo '{"log":"gap","from":5,"step":16}')
check "after the lines before it" cmp <(head -4 "$dir/whole/metrics.jsonl") <(head -4 "$out/metrics.jsonl")
check "one line a step after it" [ "$(wc -l < "$out/metrics.jsonl")" = 13 ]
check "up to the last step" cmp <(tail -8 "$dir/whole/metrics.jsonl" | without_times /dev/stdin) <(tail -8 "$out/metrics.jsonl" | without_times /dev/stdin)
# killed before the next checkpoint, with a log that has more or fewer lines than the checkpoint says: the log never gets a second gap
for lines in 5 9 12; do
    rm -r "$out/checkpoint-24"
    sed -i 's/"finished": true/"finished": false/' "$out/run.json"
    cp "$out/metrics.jsonl" "$dir/before"
    head -$lines "$dir/before" > "$out/metrics.jsonl"
    [ $lines = 12 ] && seq -f '{"log":"step","time":0,"step":%.0f}' 21 60 >> "$out/metrics.jsonl"
    run pt "$dir/run.yaml" output_dir="$out"
    check "$lines lines: once more: $(tail -1 "$dir/err")" [ "$status" = 0 ]
    check "$lines lines: the same log" cmp <(without_times "$dir/before") <(without_times "$out/metrics.jsonl")
done
check "the report is written" grep -q '"step":24' <(cat "$out/report.html")

# --- changed lines of a log, and lines that are written again, are reported
changed() { # NAME SED TEXT: resumes from step 16 with the whole log after this change
    rm -rf "$out"
    cp -r "$dir/whole" "$out"
    rm -r "$out/checkpoint-24"
    sed -i 's/"finished": true/"finished": false/' "$out/run.json"
    sed -i "$2" "$out/metrics.jsonl"
    cp "$out/metrics.jsonl" "$dir/before"
    run pt "$dir/run.yaml" output_dir="$out"
    check "$1: it goes on: $(tail -1 "$dir/err")" [ "$status" = 0 ]
    check "$1: $3 in $(cat "$dir/err")" grep -qF "$3" "$dir/err"
    check "$1: the lines up to there stay" cmp <(head -16 "$dir/before") <(head -16 "$out/metrics.jsonl")
}
changed "as it was" "" "$out/metrics.jsonl: the lines from step 17 up to 24 are cut off, for this run goes on from step 16"
check "as it was: nothing else is said of it" [ "$(grep -c "changed\|damaged" "$dir/err")" = 0 ]
changed "another loss" '5s/"loss":./"loss":9/' "warning: $out/metrics.jsonl was changed after $out/checkpoint-16 was saved"
changed "two damaged lines" '5s/"/x/g; 7s/^./\x00/' "warning: $out/metrics.jsonl was changed or damaged: 2 of its lines can't be read, line 5 first"

# --- a tokenizer without EOS
endless() { grep -c "warning: the tokenizer of $dir/model has no EOS: documents end without one, and the model won't learn to stop" "$dir/err"; }
run pt "$dir/run.yaml" output_dir="$dir/eos" max_steps=1
check "one with EOS isn't warned of" [ "$status/$(endless)" = 0/0 ]
rm -f "$dir/model/generation_config.json"
sed -i 's/"eos_token": .*,/"eos_token": null,/' "$dir/model/tokenizer_config.json"
run pt "$dir/run.yaml" output_dir="$dir/no_eos" max_steps=1
check "one without is: $(cat "$dir/err")" [ "$status/$(endless)" = 0/1 ]
finish
