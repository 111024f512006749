#!/bin/bash
# If a default makes a run short, the log says so before the run begins: which default, and the key to set.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
make_tiny max_position_embeddings=512
cp examples/chat_template.jinja "$dir/model/"
seq 24 | sed 's/.*/{"question": "What is &?", "answer": "It is &."}/' > "$dir/rows.jsonl"
seq 400 | sed 's/.*/{"question": "What is &?", "answer": "It is &."}/' > "$dir/many.jsonl"
printf '%s\n' "model: $dir/model" "datasets: [{path: $dir/rows.jsonl}]" "sequence_len: 256" "num_epochs: 1" "model_dtype: fp32" \
    "resume_from_checkpoint: false" "output_dir: $dir/trained" > "$dir/run.yaml"

# said NAME COUNT TEXT... -- ARGS...: the run ends well; COUNT lines about a default, with all texts, come before its first step.
said() {
    local name=$1 count=$2 texts=()
    shift 2
    while [ "$1" != -- ]; do
        texts+=("$1")
        shift
    done
    shift
    run sft "$dir/run.yaml" device=cpu "$@"
    check "$name: exit $status: $(cat "$dir/err")" [ "$status" = 0 ]
    sed '/^step/,$d' "$dir/err" | grep 'unless set' > "$dir/lines"
    check "$name: $count lines in $(cat "$dir/err")" [ "$(wc -l < "$dir/lines")" = "$count" ]
    for text in "${texts[@]}"; do check "$name: \"$text\" in $(cat "$dir/lines")" grep -qF "$text" "$dir/lines"; done
}
said "packing" 1 "warning: 1 step: sample_packing, true unless set, puts 24 documents into" "a step takes 8" -- num_epochs=1
said "packing under one batch, whatever max_steps says" 1 "2 steps: sample_packing" -- max_steps=2
said "packing that is asked for: accumulation" 1 "1 step: gradient_accumulation_steps, 4 unless set, makes a step of 8 sequences" -- \
    sample_packing=true
said "without packing: accumulation" 1 "3 steps: gradient_accumulation_steps" "there are 24" -- sample_packing=false
said "accumulation is given: the micro-batch" 1 "12 steps: per_device_train_batch_size, 2 unless set" -- \
    sample_packing=false gradient_accumulation_steps=1
said "all is given" 0 -- sample_packing=false gradient_accumulation_steps=1 per_device_train_batch_size=4
said "few steps that are asked for" 0 -- sample_packing=false max_steps=2
said "many steps" 0 -- sample_packing=false gradient_accumulation_steps=1 datasets.0.path="$dir/many.jsonl" num_epochs=0.2
check "the report keeps it" grep -q "gradient_accumulation_steps, 4 unless set" <(run sft "$dir/run.yaml" device=cpu sample_packing=false && cat "$dir/trained/report.html")
finish
