#!/bin/bash
# Errors of the engine for a model in Python name the file's line, the instance, what was found and what is expected (tests/dsl/refused.py).
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
export PYTHONPATH=$root/python PYTHONDONTWRITEBYTECODE=1
command -v python3 > /dev/null || { skip "python3 isn't installed" && finish; }

cd "$dir" || exit 1
python3 -m surogate.dsl build "$root/tests/dsl/heads.py" -o written.json || fail "the right program doesn't build"
seq 1 200 | sed 's/^/The number is /' > text.txt
"$SUROGATE" tokenizer train --vocab-size 300 --out model text.txt > /dev/null 2>&1
cat > model/config.json << 'END'
{"architectures": ["HeadsForCausalLM"], "vocab_size": 320, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
 "num_attention_heads": 4, "num_key_value_heads": 2, "layer_types": ["far", "near", "near"]}
END
cat > run.yaml << 'END'
model: model
from_scratch: true
datasets: [{path: text.txt, type: text}]
sequence_len: 32
max_steps: 1
device: cpu
model_dtype: fp32
output_dir: trained
ir: written.json
END
run pt run.yaml
check "the right program trains: $(tail -2 err)" [ "$status" = 0 ]
sed '/from_scratch/d; s/^model: model/model: trained/; $a lora: true' run.yaml > lora.yaml
cd "$root" || exit 1
SUROGATE=$(realpath "$SUROGATE") python3 tests/dsl/refused.py "$dir" > "$dir/refused" || cat "$dir/refused"
read -r good _ bad _ < <(tail -1 "$dir/refused")
num_passed=$((num_passed + ${good:-0}))
num_failed=$((num_failed + ${bad:-1}))
finish
