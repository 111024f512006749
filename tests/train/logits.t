#!/bin/bash
# whole_logits: one program for one row, with one document or several; plan counts its memory. A command that trains warns that it reads no
# logits.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
make_tiny
cd "$dir" || exit 1
seq 400 | sed 's/^/The number is /' > text.txt
printf '%s\n' "model: model" "datasets: [{path: text.txt, type: text}]" "sequence_len: 32" "max_steps: 1" "device: cpu" \
    "per_device_train_batch_size: 3" "sample_packing: false" "output_dir: trained" > run.yaml
run plan run.yaml
check "none without the key" sh -c "! grep -q '^ *logits' out"
run plan run.yaml whole_logits=true
check "plan has them: $(tail -1 err)" grep -q '^ *logits ' out
run ir run.yaml --after bind --program micro_first
check "rows of training are dense: $(tail -1 err)" sh -c "grep -q 'tokens: i32\[3,32\]' out && grep -q dense=true out"
run ir run.yaml --after bind --program logits
check "logits are of one row, which may have several documents: $(tail -1 err)" \
    sh -c "grep -q '^output logits' out && grep -q 'tokens: i32\[1,32\]' out && ! grep -q dense=true out"
run pt run.yaml whole_logits=true
check "it trains: $(tail -1 err)" [ "$status" = 0 ]
check "and says so" grep -q "warning: whole_logits has no effect here" err
finish
