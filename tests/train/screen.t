#!/bin/bash
# What a person sees of a run on a terminal: no line runs over the edge, logged steps stay, colours only where they are wanted.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
python=$(command -v python3 || true)
[ -n "$python" ] || { skip "python3 isn't here"; finish; }
export TERM=xterm
unset COLUMNS NO_COLOR
make_text_run "dataset_cache_dir: $dir/cache" "max_steps: 30" "logging_steps: 5" "validation_split_ratio: 0.05" "eval_steps: 10" \
    "eval_max_batches: 2"

# on COLUMNS ARGS...: the program on such a terminal; what stands there at the end is in $dir/screen, its bytes in $dir/raw.
on() {
    status=0
    "$python" tests/terminal.py "$1" "$dir/raw" "$SUROGATE" "${@:2}" > "$dir/screen" || status=$?
}
# settled: the lines of steps and evaluations stand there once each, whole, and nothing is left of those in between.
settled() {
    [ "$(grep -oE '^step [0-9]+' "$dir/screen" | grep -oE '[0-9]+' | tr '\n' ' ')" = "5 10 15 20 25 30 " ] &&
        [ "$(grep -cE '^eval at step (10|20|30)  loss' "$dir/screen")" = 3 ] &&
        ! grep -E '^>' "$dir/screen" | grep -qE 'tok/s|ETA|loss|norm'
}
for columns in 60 80 200; do
    on $columns pt "$dir/run.yaml" output_dir="$dir/c$columns"
    check "$columns columns: it ends well" [ "$status" = 0 ]
    check "$columns columns: logged steps stay, none wraps: $(cat "$dir/screen")" settled
    check "$columns columns: steps are shown in between" [ "$(grep -aoE $'\r\033\[Kstep [0-9]+/' "$dir/raw" | wc -l)" -ge 24 ]
    check "$columns columns: the time left" grep -qE '^step 5/30  loss [0-9.]+ .*ETA' "$dir/screen"
done
check "200 columns: everything" grep -qE '^step 5/30  loss .*  norm .*  lr .* tok/s .*ETA' "$dir/screen"
check "80 columns: the rate too" grep -qE "tok/s" <(on 80 pt "$dir/run.yaml" output_dir="$dir/r80"; cat "$dir/screen")
COLUMNS=60 on 200 pt "$dir/run.yaml" output_dir="$dir/less"
check "COLUMNS narrows it: $(cat "$dir/screen")" [ "$(grep -E '^step' "$dir/screen" | awk 'length > 59' | wc -l)" = 0 ]

# --- colours
has_colour() { grep -qaF $'\033[1;31merror: \033[0m' "$dir/raw"; }
plain() { ! grep -qaE $'\033\\[[0-9;]*m' "$dir/raw"; }
on 80 pt "$dir/none.yaml"
check "an error is red on a terminal: $(cat -v "$dir/raw")" has_colour
NO_COLOR=1 on 80 pt "$dir/none.yaml"
check "not with NO_COLOR" plain
TERM=dumb on 80 pt "$dir/none.yaml"
check "nor where TERM is dumb" plain
run pt "$dir/none.yaml"
check "nor in a file" [ "$(grep -c $'\033' "$dir/err")" = 0 ]
NO_COLOR=1 on 80 pt "$dir/run.yaml" output_dir="$dir/grey"
check "NO_COLOR keeps the status line" settled
check "and has no colours" plain
on 80 pt "$dir/run.yaml" output_dir="$dir/diverges" learning_rate=1000 weight_decay=0.9 max_grad_norm=0
check "a warning is yellow: $(cat "$dir/screen")" grep -qaF $'\033[33mwarning: \033[0mstep' "$dir/raw"
check "and stands on a line of its own" [ "$(grep -E 'warning|error' "$dir/screen" | grep -vcE '^(warning|error): ')" = 0 ]
finish
