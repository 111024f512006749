#!/bin/bash
# The model card: its contents; it names no path of this machine; a README.md of somebody else stays.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
make_text_run "dataset_cache_dir: $dir/cache" "max_steps: 6" "validation_split_ratio: 0.2" "eval_steps: 2" "learning_rate: 2e-3"
card=$dir/made/README.md
has() { check "$1: $2 in $(cat "$card" 2> /dev/null)" grep -qF -e "$2" "$card"; }
lacks() { check "$1: no $2" [ "$(grep -cF -e "$2" "$card")" = 0 ]; }

# --- a model and a dataset of the hub are named as on the hub
export HF_HOME=$dir/hub HF_HUB_OFFLINE=1
unset HF_HUB_CACHE
for kind in models datasets; do
    mkdir -p "$dir/hub/hub/$kind--acme--tiny/snapshots/abc" "$dir/hub/hub/$kind--acme--tiny/refs"
    printf abc > "$dir/hub/hub/$kind--acme--tiny/refs/main"
done
cp "$dir/model"/* "$dir/hub/hub/models--acme--tiny/snapshots/abc/"
cp "$dir/text.txt" "$dir/hub/hub/datasets--acme--tiny/snapshots/abc/train.txt"
run pt "$dir/run.yaml" model=acme/tiny datasets.0.path=acme/tiny output_dir="$dir/made" from_scratch=false lora=true lora_rank=4
check "a run: $(tail -1 "$dir/err")" [ "$status" = 0 ]
check "it begins with metadata" [ "$(head -1 "$card")" = --- ]
check "which end" [ "$(sed -n '2,20p' "$card" | grep -c '^---$')" = 1 ]
for line in "# tiny, a LoRA adapter" "library_name: peft" "base_model: acme/tiny" "base_model_relation: adapter" "- acme/tiny" "pipeline_tag: text-generation" "- lora" \
    "| base model | acme/tiny (" "| training data | acme/tiny |" "| steps | 6 |" "| these weights | of step 6 |" "learning_rate: 0.002" "lora_rank: 4"; do
    has "an adapter" "$line"
done
run pt "$dir/run.yaml" model="$dir/hub/hub/models--acme--tiny/snapshots/abc" output_dir="$dir/path" from_scratch=false lora=true lora_rank=4
check "a run of the folder in the cache: $(tail -1 "$dir/err")" [ "$status" = 0 ]
check "it is called as on the hub" [ "$(grep -c -e "^base_model: acme/tiny$" -e "^# tiny, a LoRA adapter$" "$dir/path/README.md")" = 2 ]
run pt "$dir/run.yaml" output_dir="$dir/maps" from_scratch=false lora=true lora_rank=4 "lora_rank_pattern={q_proj: 2}" "lora_alpha_pattern={q_proj: 8}"
check "settings that are maps are told: $(grep pattern "$dir/maps/README.md")" [ "$(grep -cxF -e "lora_rank_pattern: {q_proj: 2}" -e "lora_alpha_pattern: {q_proj: 8}" "$dir/maps/README.md")" = 2 ]
loss=$(grep '"log":"step"' "$dir/made/metrics.jsonl" | tail -1 | sed 's/.*"loss":\([0-9.]*\).*/\1/')
has "the last loss" "| training loss | $(printf %.4f "$loss"), at step 6 |"
loss=$(grep '"log":"eval"' "$dir/made/metrics.jsonl" | tail -1 | sed 's/.*"loss":\([0-9.]*\).*/\1/')
has "the last evaluation" "| evaluation loss | $(printf %.4f "$loss"), at step 6 |"
lacks "a setting that changes no result" "eval_steps"
cp "$card" "$dir/first"

# --- folders and files: their last names
rm -rf "$dir/made"
run pt "$dir/run.yaml" output_dir="$dir/made" run_name="a name"
check "a run: $(tail -1 "$dir/err")" [ "$status" = 0 ]
for line in "library_name: transformers" "# a name" "| training data | text.txt |"; do has "a model" "$line"; done
has "a title" "# a name"
lacks "a folder isn't the hub's" "base_model:"
lacks "nor is a file" "datasets:"
lacks "no path" "$dir"
lacks "no path, of this program" "$root"

# --- whose README.md it is
run pt "$dir/run.yaml" output_dir="$dir/made" resume_from_checkpoint=false max_steps=4
has "an earlier card is written anew" "| steps | 4 |"
echo "Mine." >> "$card"
cp "$card" "$dir/mine"
run pt "$dir/run.yaml" output_dir="$dir/made" resume_from_checkpoint=false
check "an edited card stays" cmp "$card" "$dir/mine"
check "and that is said: $(cat "$dir/err")" grep -q "made/README.md stays as it is: it is no model card of this program, or was edited" "$dir/err"
rm -rf "$dir/made"
mkdir "$dir/made"
echo "# Notes" > "$card"
run pt "$dir/run.yaml" output_dir="$dir/made"
check "another README.md stays: $(tail -1 "$dir/err")" [ "$status" = 0 -a "$(cat "$card")" = "# Notes" ]
rm "$card"
mkdir "$card"
run pt "$dir/run.yaml" output_dir="$dir/made" resume_from_checkpoint=false
check "a folder of that name is no failure: $(tail -1 "$dir/err")" [ "$status" = 0 -a -d "$card" ]
rmdir "$card"
cp "$dir/first" "$card"
run pt "$dir/run.yaml" output_dir="$dir/made" resume_from_checkpoint=false max_steps=0 datasets.0.path="$dir/none.txt"
check "a run that is refused removes nothing" cmp "$card" "$dir/first"
finish
