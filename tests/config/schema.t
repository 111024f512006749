#!/bin/bash
# The JSON Schema of run files: files that the program accepts are valid, files that it refuses aren't.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
find_python || {
    skip "no Python 3.10 here"
    finish
}
run help schema
check "it is printed: $(cat "$dir/err")" [ "$status" = 0 ]
mv "$dir/out" "$dir/schema.json"
check "help keys --schema is the same" cmp <("$SUROGATE" help keys --schema) "$dir/schema.json"
valid() { "$PYTHON" tests/config/schema.py "$dir/schema.json" "$@" > "$dir/problems" 2>&1; }
check "defaults and words: $(valid || cat "$dir/problems")" valid
for file in examples/*.yaml examples/*/*.yaml tests/cli/port/*.run; do
    check "$file: $(valid "$file" || cat "$dir/problems")" valid "$file"
done

# agree OK|BAD LINE...: the schema and the program agree on a file with these lines.
agree() {
    local want=$1 said=BAD
    shift
    printf '%s\n' "model: $dir/none" "datasets:" "  - path: $dir/none.txt" "$@" > "$dir/run.yaml"
    if valid "$dir/run.yaml"; then said=OK; fi
    check "the schema: $*: expected $want, found $said: $(cat "$dir/problems")" [ "$said" = "$want" ]
    run plan "$dir/run.yaml"
    said=BAD # a file that is accepted fails only at the model, which doesn't exist
    if grep -q -F -e "$dir/none: no such file" "$dir/err"; then said=OK; fi
    check "the program: $*: expected $want: $(cat "$dir/err")" [ "$said" = "$want" ]
}
agree OK "lora: true" "lora_rank: 8" "learning_rate: 2e-4"
agree OK "lora: yes" "memory_limit: 8GB" "run_name: 5" "max_steps: null"
agree OK "memcpy_all_gather: true" "use_all_to_all_reduce: auto"
agree OK "lora_target_modules: [q_proj, v_proj]" "fusion: none"
agree OK "report_to: tensorboard"
agree OK "report_to: [tensorboard]"
agree BAD "report_to: [wandbb]"
agree OK "lora_r: 8" "train_on_inputs: false" "load_in_4bit: true" "quantization_bit: 4" "lora: true"
agree OK "gradient_checkpointing: unsloth" "flash_attention: true" "dataloader_num_workers: 4"
agree OK "push_to_hub: false"
agree BAD "push_to_hub: true"
agree BAD "lora_rnak: 8"
agree BAD "lora_rank: 0"
agree BAD "lora_rank: 1.5"
agree BAD "lora_r: 0"
agree BAD "lora_alpha: 0"
agree BAD "lr_scheduler_type: linaer"
agree BAD "lora: maybe"
agree BAD "load_in_4bit: 7"
agree BAD "validation_datasets:" "  - type: text"
agree BAD "validation_datasets:" "  - path: $dir/none.txt" "    typo: text"
finish
