#!/bin/bash
# Inputs declared by an objective, read from columns of data sets: trained, evaluated, interrupted, on two ranks, and refused.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
make_tiny max_position_embeddings=128

# Token weights: each label's loss is multiplied by the label's number. The second objective reads eight numbers per token.
cat > "$dir/weights.json" << 'END'
{"surogate_ir": 1, "objective": "Weights", "inputs": [{"name": "weight", "dtype": "f32", "target": true}], "graph": [
 {"op": "cross_entropy", "in": ["logits", "labels"], "out": "losses"},
 {"op": "mul", "in": ["losses", "weight"], "out": "weighted"},
 {"op": "loss_sum", "in": ["weighted", "hyper"], "out": "loss"},
 {"output": "loss", "is": "loss"}, {"output": "losses", "is": "losses"}]}
END
cat > "$dir/kind.json" << 'END'
{"surogate_ir": 1, "objective": "Kind", "inputs": [{"name": "kind", "dtype": "i32", "pad": -100}], "graph": [
 {"op": "cross_entropy", "in": ["logits", "kind"], "out": "losses"},
 {"op": "loss_sum", "in": ["losses", "hyper"], "out": "loss"},
 {"output": "loss", "is": "loss"}, {"output": "losses", "is": "losses"}]}
END
seq 1 60 | awk '{
    n = 3 + $1 * 7 % 30; ids = w = ""
    for (i = 0; i < n; i++) { ids = ids (i ? "," : "") ($1 * 31 + i * 7) % 270; w = w (i ? "," ($1 + i) % 5 / 4 : "null") }
    printf "{\"ids\": [%s], \"w\": [%s], \"one\": %s, \"prompt_tokens\": 2}\n", ids, w, $1 % 4 / 2 }' > "$dir/data.jsonl"
cat > "$dir/run.yaml" << END
model: $dir/model
objective: $dir/weights.json
datasets: [{path: $dir/data.jsonl, inputs: {weight: w}}]
validation_split_ratio: 0.2
eval_steps: 2
sequence_len: 32
model_dtype: fp32
device: cpu
threads: 2
per_device_train_batch_size: 2
gradient_accumulation_steps: 2
max_steps: 6
save_steps: 2
learning_rate: 1e-3
dataset_cache_dir: $dir/cache
END
losses() { grep -oE '"loss":[^,}]*' "$1/metrics.jsonl"; }

run sft "$dir/run.yaml" output_dir="$dir/whole"
check "trains: exit $status, $(tail -1 "$dir/err")" [ "$status" = 0 ]
check "tells the format" grep -q "tokens (ids), 60 documents" "$dir/err"

# A number for a whole row counts for each of its tokens; weights of 1 give the plain loss.
sed 's/"one": [0-9.]*/"one": 1/' "$dir/data.jsonl" > "$dir/ones.jsonl"
run sft "$dir/run.yaml" output_dir="$dir/ones" "datasets=[{path: $dir/ones.jsonl, inputs: {weight: one}}]"
run sft "$dir/run.yaml" output_dir="$dir/plain" objective= "datasets=[{path: $dir/ones.jsonl}]"
check "plain losses: exit $status" [ "$status" = 0 ]
check "weights of 1: the same losses" cmp <(losses "$dir/ones") <(losses "$dir/plain")
check "other weights: other losses" [ "$(losses "$dir/whole")" != "$(losses "$dir/plain")" ]

# Two ranks with half the micro-steps.
run sft "$dir/run.yaml" output_dir="$dir/two" gpus=2 gradient_accumulation_steps=1
check "two ranks: exit $status" [ "$status" = 0 ]
check "two ranks: the same losses but for rounding" [ "$(losses "$dir/whole" | cut -d: -f2 | cut -c1-6)" = "$(losses "$dir/two" | cut -d: -f2 | cut -c1-6)" ]

# Killed after the first checkpoint, then resumed to the end.
long=(max_steps=300 save_steps=100 eval_steps=100)
run sft "$dir/run.yaml" output_dir="$dir/long" "${long[@]}"
check "a longer run: exit $status" [ "$status" = 0 ]
"$SUROGATE" sft "$dir/run.yaml" output_dir="$dir/killed" "${long[@]}" > /dev/null 2>&1 &
pid=$!
until [ -e "$dir/killed/checkpoint-100" ] || ! kill -0 $pid 2> /dev/null; do sleep 0.01; done
kill -9 $pid 2> /dev/null
wait $pid 2> /dev/null
run sft "$dir/run.yaml" output_dir="$dir/killed" "${long[@]}"
check "goes on: exit $status, $(tail -1 "$dir/err")" [ "$status" = 0 ]
check "the same weights" cmp "$dir/long/model.safetensors" "$dir/killed/model.safetensors"
check "the same log" cmp <(without_times "$dir/long/metrics.jsonl") <(without_times "$dir/killed/metrics.jsonl")

# The first row with numbers determines how many numbers a token has; a data set without numbers has only padding.
cat > "$dir/several.json" << 'END'
{"surogate_ir": 1, "objective": "Several", "inputs": [{"name": "w", "dtype": "f32", "size": 2}], "graph": [
 {"op": "cross_entropy", "in": ["logits", "labels"], "out": "losses"},
 {"op": "sum", "in": ["w"], "out": "sums"},
 {"op": "reshape", "in": ["sums"], "out": "sum", "attrs": {"ndim": 2, "d0": "B", "d1": "T"}},
 {"op": "mul", "in": ["losses", "sum"], "out": "weighted"},
 {"op": "loss_sum", "in": ["weighted", "hyper"], "out": "loss"},
 {"output": "loss", "is": "loss"}, {"output": "losses", "is": "losses"}]}
END
several() { # NAME ROWS...: a run on these rows ends well
    local name=$1
    shift
    printf '%s\n' "$@" > "$dir/several.jsonl"
    run sft "$dir/run.yaml" output_dir="$dir/several" objective="$dir/several.json" "datasets=[{path: $dir/several.jsonl, inputs: {w: w}}]" validation_split_ratio=0
    check "$name: exit $status, $(tail -1 "$dir/err")" [ "$status" = 0 ]
}
several "nulls in the first row" '{"ids": [1, 2], "w": [null, null]}' '{"ids": [1, 2], "w": [null, [1, 2]]}' '{"ids": [3, 4], "w": [[1, 2], null]}'

# Masks become labels.
masks() { # NAME FIELDS: a run on a row with these fields ends well
    printf '%s\n' "{\"ids\": [1, 2, 3], $2}" '{"input_ids": [4, 5], "ids": [4, 5]}' > "$dir/masks.jsonl"
    run sft "$dir/run.yaml" output_dir="$dir/masks-$1" objective= "datasets=[{path: $dir/masks.jsonl}]" validation_split_ratio=0
    check "$1: exit $status, $(tail -1 "$dir/err")" [ "$status" = 0 ]
}
masks labels '"labels": [1, -100, 3]'
masks mask '"mask": [1, 0, 1]'
masks trl '"completion_mask": [0, 1, 1], "assistant_masks": [1, 0, 1]'
for kind in mask trl; do check "a mask: $kind" cmp <(losses "$dir/masks-labels") <(losses "$dir/masks-$kind"); done

# Cells of .csv and .tsv files hold ids, labels and numbers as JSON text.
cells() { # SEPARATOR: prints a table
    local s=$1 q='"'
    [ "$s" = , ] || q=''
    printf '%s\n' "input_ids${s}labels${s}w${s}prompt_tokens" "${q}[1, 2, 3]${q}${s}${q}[1, -100, 3]${q}${s}${q}[1, null, 2]${q}${s}1" \
        "${q}[4, 5]${q}${s}${s}0.5${s}"
}
printf '%s\n' '{"input_ids": [1, 2, 3], "labels": [1, -100, 3], "w": [1, null, 2], "prompt_tokens": 1}' '{"input_ids": [4, 5], "w": 0.5}' > "$dir/cells.jsonl"
cells , > "$dir/cells.csv"
cells $'\t' > "$dir/cells.tsv"
for kind in jsonl csv tsv; do
    run sft "$dir/run.yaml" output_dir="$dir/cells-$kind" "datasets=[{path: $dir/cells.$kind, inputs: {weight: w}}]" validation_split_ratio=0
    check ".$kind: exit $status, $(tail -1 "$dir/err")" [ "$status" = 0 ]
    check ".$kind: as .jsonl" cmp <(losses "$dir/cells-jsonl") <(losses "$dir/cells-$kind")
done

# Inputs that are refused before anything is trained.
R=("$dir/run.yaml" output_dir="$dir/no")
refused "an input that no data set gives" 2 "data.jsonl doesn't give the input weight, which" "write inputs: {weight: FIELD}" -- \
    sft "${R[@]}" "datasets=[{path: $dir/data.jsonl}]"
refused "the same of plan" 2 "doesn't give the input weight" -- plan "${R[@]}" "datasets=[{path: $dir/data.jsonl}]"
refused "the same of a validation set" 2 "data.jsonl doesn't give the input kind" -- \
    sft "${R[@]}" objective="$dir/kind.json" "datasets=[{path: $dir/ones.jsonl, inputs: {kind: one}}]" validation_split_ratio=0 "validation_datasets=[{path: $dir/data.jsonl}]"
refused "no such column" 2 'inputs is "nothing", which the row doesn' "it has ids (array)" -- sft "${R[@]}" "datasets=[{path: $dir/data.jsonl, inputs: {weight: nothing}}]"
refused "fractions for whole numbers" 2 "input kind are 0 to 1.5, with fractions" -- \
    sft "${R[@]}" objective="$dir/kind.json" "datasets=[{path: $dir/data.jsonl, inputs: {kind: one}}]"
sed 's/"one": [0-9.]*/"one": 300/' "$dir/data.jsonl" > "$dir/large.jsonl"
refused "an id beyond the vocabulary" 2 "inputs: kind has numbers from 300 to 300; expected 0 to 299, or -100" -- \
    sft "${R[@]}" objective="$dir/kind.json" "datasets=[{path: $dir/large.jsonl, inputs: {kind: one}}]"
wrong() { # NAME ROW TEXT: a bad row after good ones
    { head -2 "$dir/data.jsonl" && echo "$2"; } > "$dir/wrong.jsonl"
    refused "$1" 2 "wrong.jsonl:3: $3" -- sft "${R[@]}" "datasets=[{path: $dir/wrong.jsonl, inputs: {weight: w}}]" validation_split_ratio=0
}
wrong "a shorter list" '{"ids": [1, 2, 3], "w": [1, 2]}' 'field "w" has numbers for 2 tokens, the row has 3'
wrong "no number" '{"ids": [1, 2, 3], "w": [1, 2, "x"]}' 'field "w" has string; expected a number'
wrong "several a token" '{"ids": [1, 2], "w": [[1, 2], [3, 4]]}' 'field "w" has 2 numbers for a token; expected 1'
wrong "beyond fp32" '{"ids": [1, 2], "w": [1, 1e99]}' 'field "w" has 1e+99; expected a number that fp32 holds'
wrong "a NaN" '{"ids": [1, 2], "w": [1, NaN]}' 'field "w" has nan; expected a number that fp32 holds'
wrong "an infinity for a token" '{"ids": [1, 2], "w": [[1], -Infinity]}' 'field "w" has -inf; expected a number that fp32 holds'
wrong "a NaN of a row's own" '{"ids": [1, 2], "w": NaN}' 'field "w" has nan; expected a number that fp32 holds'
wrong "beyond a double" '{"ids": [1, 2], "w": [1, 1e999]}' 'field "w" has inf; expected a number that fp32 holds'
wrong "a missing column" '{"ids": [1, 2]}' 'field "w" is missing; expected numbers for the input weight'
wrong "an unknown id" '{"ids": [1, 300], "w": 1}' 'id 1 is 300; expected a token of the tokenizer, 0 to 277'
wrong "shifted labels" '{"ids": [1, 2, 3], "labels": [2, 3, -100], "w": 1}' 'label 0 is 2, the id there 1; expected that id, or -100'

# A column that nothing reads is reported; texts have columns too.
run plan "${R[@]}" "datasets=[{path: $dir/data.jsonl, inputs: {weight: w, other: one}}]"
check "said: $(cat "$dir/err")" grep -q "warning: .*inputs: nothing reads other" "$dir/err"
sed 's/"inputs": \[/&{"name": "idle", "dtype": "f32"}, /' "$dir/weights.json" > "$dir/idle.json"
run plan "${R[@]}" objective="$dir/idle.json" "datasets=[{path: $dir/data.jsonl, inputs: {weight: w, idle: one}}]"
check "declared alone: $(cat "$dir/err")" grep -q "inputs: nothing reads idle: .*idle.json declares it, but no output is computed of it" "$dir/err"
sed 's/"pad": -100/"pad": -1/' "$dir/kind.json" > "$dir/pads.json"
refused "padding of an objective's" 2 "pads.json: inputs: kind is padded with -1; cross_entropy expects 0 to 299, or -100" -- \
    plan "${R[@]}" objective="$dir/pads.json" "datasets=[{path: $dir/ones.jsonl, inputs: {kind: one}}]"
sed 's/{"output": "losses"/{"output": "loss", "is": "loss"}, &/' "$dir/kind.json" > "$dir/twice.json"
refused "two outputs of a name" 2 "twice.json:4: second output named loss: the model's outputs count too" -- plan "${R[@]}" objective="$dir/twice.json"
printf '{"text": "line %s says so", "w": 0.5}\n' 1 2 3 4 5 6 7 8 > "$dir/texts.jsonl"
run sft "${R[@]}" "datasets=[{path: $dir/texts.jsonl, inputs: {weight: w}}]" validation_split_ratio=0
check "texts: $(tail -1 "$dir/err")" [ "$status" = 0 ]
finish
