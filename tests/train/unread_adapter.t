#!/bin/bash
# Adapters of layers that only training computes with (examples/dsl/mtp.py: a module that predicts the token after the next): generating
# ignores them; merging and further training use them.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
export PYTHONPATH=$root/python PYTHONDONTWRITEBYTECODE=1
command -v python3 > /dev/null || { skip "python3 isn't installed" && finish; }
cp examples/dsl/mtp.py "$dir/"
cd "$dir" || exit 1

make_tiny
python3 -m surogate.dsl build mtp.py -o mtp.json || fail "mtp.py doesn't build"
mkdir own && cp tokenizer/* own/
cat > own/config.json << 'END_CONFIG'
{"architectures": ["LlamaMTPForCausalLM"], "model_type": "llama", "vocab_size": 300, "hidden_size": 32, "intermediate_size": 48,
 "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64, "rms_norm_eps": 1e-6,
 "rope_theta": 10000, "tie_word_embeddings": true, "num_nextn_predict_layers": 1}
END_CONFIG
cat > run.yaml << 'END_RUN'
datasets: [{path: text.txt}]
sequence_len: 16
per_device_train_batch_size: 2
max_steps: 3
learning_rate: 1e-2
model_dtype: fp32
device: cpu
END_RUN
run pt run.yaml model=own ir=mtp.json from_scratch=true output_dir=base
check "a base: $(tail -1 err)" [ "$status" = 0 ]
run pt run.yaml model=base lora=true lora_rank=2 output_dir=adapter
check "an adapter: $(tail -1 err)" [ "$status" = 0 -a "$(grep -ac 'mtp.eh_proj.lora_A' adapter/adapter_model.safetensors)" = 1 ]

# ---- generating ----

run generate base --adapter adapter --prompt line --max-tokens 8 --device cpu
check "generate: $(tail -1 err)" [ "$status" = 0 ]
cp out alone
echo '{"prompt": "line", "adapter": "a", "max_tokens": 8}' > prompts.jsonl
run generate base --adapter a=adapter --prompts prompts.jsonl --out rows.jsonl --device cpu
check "rows that choose it: $(tail -1 err)" [ "$status" = 0 ]
check "say the same" python3 -c "import json; assert json.load(open('rows.jsonl'))['text'] == open('alone').read().rstrip('\n')"

# ---- merging, training on ----

run merge base adapter merged
check "merge: $(tail -1 err)" [ "$status" = 0 ]
cat > changed.py << 'END_PYTHON'
import json, struct, sys

def tensors(path):
    data = open(path, "rb").read()
    size = struct.unpack("<Q", data[:8])[0]
    return {n: data[8 + size + t["data_offsets"][0] : 8 + size + t["data_offsets"][1]] for n, t in json.loads(data[8 : 8 + size]).items() if n != "__metadata__"}

base, merged = (tensors(f"{folder}/model.safetensors") for folder in ("base", "merged"))
same = [n for n in base if "proj" in n and base[n] == merged[n]]
sys.exit(f"the same as in the base: {same}" if same or not any(n.startswith("mtp.") for n in base) else 0)
END_PYTHON
check "all of its layers are merged" python3 changed.py
run pt run.yaml model=base adapter=adapter output_dir=further
check "a run goes on from it: $(tail -1 err)" [ "$status" = 0 ]

# ---- what no program has ----

cp -r adapter foreign
sed -i 's/eh_proj/xx_proj/g' foreign/adapter_*
refused "a layer of another model" 2 "mtp.xx_proj is no linear layer of base" -- generate base --adapter foreign --prompt line
finish
