#!/bin/bash
# When runs of other tools evaluate and save. port_cadence.tsv holds the steps at which transformers' Trainer does
# (tests/oracle/make_cadence.py): the translated file does so at the same steps. Then keys that only Axolotl has, and keys that are refused.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh

# value KEY: its value in the translated file; empty if it isn't set.
value() { sed -n "s/^$1: *\([^ ]*\).*/\1/p" "$dir/out"; }

# steps_of KEY PER_EPOCH: the steps before the 40th at which these keys evaluate or save, with 10 steps per epoch.
steps_of() {
    local every times
    every=$(value "$1")
    times=$(value "$2")
    [ "${every:-0}" != 0 ] || [ "${times:-0}" = 0 ] || every=$(((10 + times - 1) / times))
    [ "${every:-0}" != 0 ] || { echo -; return; }
    local list
    list=$(seq -s ' ' "$every" "$every" 39)
    echo "${list:--}"
}

# ported TOOL KEYS: translates a file of that tool with the keys, one line of YAML.
ported() {
    printf '%s\n' "{$2}" > "$dir/keys.yaml"
    run port --from "$1" "$dir/keys.yaml"
}

factory="model_name_or_path: a, do_train: true, dataset: x, val_size: 0.1"
count=0
while IFS=$'\t' read -r keys evals saves; do
    ported llamafactory "$factory, $keys"
    check "$keys: $(cat "$dir/err")" [ "$status" = 0 ]
    ours="$(steps_of eval_steps evals_per_epoch)"
    check "$keys: evaluations at $evals, ours: $ours" [ "$evals" = "$ours" ]
    ours="$(steps_of save_steps saves_per_epoch)"
    [ "$(value save_best)" = true ] && ours=best
    [[ $keys = *save_s* ]] && check "$keys: saves at $saves, ours: $ours" [ "$saves" = "$ours" ]
    count=$((count + 1))
done < tests/cli/port_cadence.tsv
check "all rows: $count" [ "$count" -ge 150 ]

# said NAME TOOL KEYS -- PATTERN...: the translated file has a line for each extended expression, and none for an expression that begins
# with !.
said() {
    local name=$1 pattern
    ported "$2" "$3"
    check "$name: $(cat "$dir/err")" [ "$status" = 0 ]
    shift 4
    for pattern in "$@"; do
        if [ "${pattern#!}" != "$pattern" ]; then
            check "$name: no line $pattern" [ "$(grep -cE -e "${pattern#!}" "$dir/out")" = 0 ]
        else
            check "$name: a line $pattern in $(grep -E 'eval|save|best' "$dir/out")" grep -qE -e "$pattern" "$dir/out"
        fi
    done
}

trl="model_name_or_path: a, dataset_name: x, dataset_test_split: test"
axolotl="base_model: a, datasets: [{path: x, type: alpaca}], val_set_size: 0.1, num_epochs: 2"
said "TRL's log lines" trl "$trl, eval_strategy: steps" -- "^eval_steps: 10 .*TRL's default"
said "no data to evaluate" llamafactory "model_name_or_path: a, do_train: true, dataset: x, eval_strategy: steps" -- "!^eval_steps"
said "patience by log lines" llamafactory "$factory, eval_strategy: steps, logging_steps: 20, early_stopping_steps: 3" -- \
    "^eval_steps: 20 .*line 1: logging_steps, as there is no eval_steps" "^early_stopping_patience: 3"
said "an old name" llamafactory "$factory, evaluation_strategy: epoch, eval_steps: 3" -- "^evals_per_epoch: 1" "!^eval_steps" \
    "^#   line 1: eval_steps: no effect there, as evaluation_strategy is epoch"
said "no strategy" llamafactory "$factory, eval_steps: 3" -- "!^eval_steps" "^#   line 1: eval_steps: no effect there, as eval_strategy is no"
said "the first evaluations" trl "$trl, eval_strategy: epoch, eval_delay: 2" -- "!may change" "eval_delay: evaluations begin with"
said "the first ones of patience" llamafactory "$factory, eval_strategy: epoch, eval_delay: 2, early_stopping_steps: 1" -- "may change" \
    "eval_delay: evaluations begin with"
said "fewer saves than evaluations" llamafactory \
    "$factory, eval_strategy: steps, eval_steps: 50, save_steps: 100, load_best_model_at_end: true" -- "fewer are"
said "as many" llamafactory "$factory, eval_strategy: steps, eval_steps: 50, save_steps: 50, load_best_model_at_end: true" -- "!fewer are"
said "lines of an epoch" trl "$trl, logging_strategy: epoch" -- "logging_strategy: a line every logging_steps"

said "Axolotl, a number before best" axolotl "$axolotl, save_strategy: best, saves_per_epoch: 2" -- "^saves_per_epoch: 2" "!^save_best" \
    "save_strategy: saves_per_epoch goes before it" "may change"
said "Axolotl, steps before best" axolotl "$axolotl, save_strategy: best, save_steps: 20" -- "^save_steps: 20" "!^save_best" \
    "save_strategy: save_steps goes before it"
said "Axolotl, best alone" axolotl "$axolotl, save_strategy: best, evals_per_epoch: 2" -- "^save_best: true" "!^save_steps" "!^saves_per_epoch"
said "Axolotl, steps without a number" axolotl "$axolotl, save_strategy: steps" -- "^save_steps: 500"
said "Axolotl, 0 is no number" axolotl "$axolotl, saves_per_epoch: 0, evals_per_epoch: 0, save_total_limit: 0" -- \
    "^saves_per_epoch: 1 .*default" "!^evals_per_epoch" "^save_total_limit: 4"
said "Axolotl, no" axolotl "$axolotl, save_strategy: 'no'" -- "^save_steps: 0"
said "Axolotl, a truth value" axolotl "$axolotl, save_strategy: no" -- "^save_steps: 0"
said "Axolotl, parts of max_steps" axolotl "$axolotl, saves_per_epoch: 1, evals_per_epoch: 2, max_steps: 100" -- \
    "^save_steps: 50 .*of max_steps" "^eval_steps: 25 .*of max_steps"
said "Axolotl, evaluations with log lines" axolotl "$axolotl, eval_strategy: steps, max_steps: 1000" -- "^eval_steps: 5 .*logging_steps"
said "Axolotl, log lines of unknown steps" axolotl "$axolotl, eval_strategy: steps" -- "!^eval_steps" "eval_strategy: as often as log lines"
said "Axolotl, an epoch" axolotl "$axolotl, eval_strategy: epoch" -- "^evals_per_epoch: 1"
said "Axolotl, both numbers" axolotl "$axolotl, eval_steps: 5, evals_per_epoch: 2" -- "^eval_steps: 5" "!^evals_per" \
    "evals_per_epoch: eval_steps goes before it"

for tool in axolotl llamafactory trl; do
    case $tool in axolotl) base=$axolotl ;; trl) base=$trl ;; *) base=$factory ;; esac
    for word in "save_strategy: bogus" "eval_strategy: bogus" "eval_strategy: best" "evaluation_strategy: bogus" "logging_strategy: best" \
        "save_strategy: true" "save_strategy: [steps]" "save_strategy: [steps], save_steps: 5" "eval_strategy: {a: 1}, eval_steps: 5" "save_steps: x" "eval_steps: x" "logging_steps: x"; do
        ported $tool "$base, $word"
        check "$tool: $word is refused: $status" [ "$status" = 2 ]
        check "$tool: $word: what is expected: $(cat "$dir/err")" grep -qE "${word%%:*}: expected (no, steps(, best)? or epoch|a number)" "$dir/err"
    done
done
finish
