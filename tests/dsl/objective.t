#!/bin/bash
# The key objective: in JSON or Python, over any model; a teacher's outputs; chunks of rows; errors.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
export PYTHONPATH=$root/python PYTHONDONTWRITEBYTECODE=1
command -v python3 > /dev/null || { skip "python3 isn't installed" && finish; }
cp models/objectives/sft.json "$dir/" && cp examples/dsl/tiny.py "$dir/"
cd "$dir" || exit 1

cat > mix.py << 'END'
from typing import Any
from surogate.dsl import Module, forward, graph, objective

@objective
class Mix(Module):
    @forward
    def forward(self, logits: Any, teacher_logits: Any, labels: Any, hyper: Any) -> dict[str, Any]:
        with graph() as g:
            both = g.add(logits, g.scale(teacher_logits, by=0.5))
            return {"loss": g.loss_sum(g.cross_entropy(both, labels), hyper)}
END
sed 's/, teacher_logits: Any//; s/g.add(logits, .*/g.scale(logits, by=2)/' mix.py > double.py
for name in mix double; do
    python3 -m surogate.dsl build $name.py -o $name.json || fail "$name.py doesn't build"
done
seq 1 6000 | awk '{ print "line " $1 " says " ($1 * 7919 % 1000) }' > text.txt
"$SUROGATE" tokenizer train --vocab-size 300 --out tokenizer text.txt > /dev/null 2>&1
sizes=(intermediate_size=64 num_attention_heads=2 num_key_value_heads=1 vocab_size=300 max_position_embeddings=128)
"$SUROGATE" new --arch qwen3-tiny --random --tokenizer tokenizer own hidden_size=32 head_dim=16 "${sizes[@]}" > out 2>&1 || cat out
"$SUROGATE" new --arch llama-tiny --random --seed 7 --tokenizer tokenizer teacher hidden_size=48 "${sizes[@]}" > out 2>&1 || cat out
"$SUROGATE" new --arch llama-tiny --random --tokenizer tokenizer other hidden_size=48 "${sizes[@]}" vocab_size=400 > out 2>&1 || cat out
cat > run.yaml << 'END'
model: own
datasets: [{path: text.txt, type: text}]
validation_split_ratio: 0.05
sequence_len: 128
per_device_train_batch_size: 16
gradient_accumulation_steps: 2
max_steps: 4
learning_rate: 1e-3
logging_steps: 1
device: cpu
model_dtype: fp32
END
numbers() { sed -nE 's/.*"step":([0-9]+).*"norm":([-0-9.e+]+).*"loss":([-0-9.e+]+).*/\1 \3 \2/p; s/.*"log":"eval".*"loss":([-0-9.e+]+).*/eval \1/p' "$1/metrics.jsonl"; }
train() { # OUT KEYS...: trains, and must end well
    local out=$1
    shift
    run pt run.yaml output_dir="$out" "$@"
    check "$out: $*: $(tail -2 err)" [ "$status" = 0 ]
}
same() { check "$1 and $2 train alike: $(numbers "$1") $(numbers "$2")" [ "$(numbers "$1")" = "$(numbers "$2")" ] && check "$1, $2: weights" cmp -s "$1/model.safetensors" "$2/model.safetensors"; }
near() { # A B: losses and norms within 1e-5
    check "$1 is near $2: $(numbers "$1") $(numbers "$2")" awk 'NR == FNR { want[FNR] = $0; next }
        { split(want[FNR], w); for (k = 2; k <= NF; k++) { d = $k / w[k] - 1; if (d < 0) d = -d; if (d > 1e-5) exit 1 } n++ } END { exit n < 5 }' <(numbers "$2") <(numbers "$1")
}

# --- the shipped objective by name is the default; what is announced
train plain
train named objective=sft.json
same plain named
check "the objective is announced with its hash" grep -q "sft.json says what is trained .*SHA-256 $(sha256sum sft.json | cut -d' ' -f1)" err

# --- another objective: evaluations still report cross entropy
train double objective=double.json
train python objective=double.py
same double python
check "another loss" [ "$(numbers double | head -1)" != "$(numbers plain | head -1)" ]
run eval double --text text.txt --json
check "the trained model is a plain one: $(tail -1 err)" [ "$status" = 0 ]
check "it has no IR of its own" [ ! -e double/surogate_ir.json ]

# --- further numbers that the objective reports
sed 's/"loss": g/"extra": g.scale(g.loss_sum(g.cross_entropy(logits, labels, name="c"), hyper, name="x"), by=2, name="twice"), &/' double.py > tells.py
train tells objective=tells.py
same tells double
check "by name in the log: $(tail -1 tells/metrics.jsonl)" [ "$(grep -cE '"scalars":\{"extra":1[0-9.]+\}' tells/metrics.jsonl)" = 4 ]

# --- a model with its own losses: the objective's losses replace them
python3 -m surogate.dsl build tiny.py -o tiny.json
mkdir tiny && cp tokenizer/* tiny/ && echo '{"architectures": ["TinyForCausalLM"], "vocab_size": 300, "n_embd": 32, "n_layer": 2}' > tiny/config.json
tiny=(model=tiny ir=tiny.json from_scratch=true)
train tiny-own "${tiny[@]}"
train tiny-sft "${tiny[@]}" objective=sft.json
same tiny-own tiny-sft
train tiny-double "${tiny[@]}" objective=double.json
check "its own loss is dropped" [ "$(numbers tiny-own | head -1)" != "$(numbers tiny-double | head -1)" ]

# --- a teacher: of another family and width; frozen, not saved, resumed
train taught objective=mix.json teacher_model=teacher
check "the teacher isn't saved" sh -c '! grep -aq teacher taught/model.safetensors && [ "$(grep -ao "\"[a-z_.0-9]*.weight\"" taught/model.safetensors | sort)" = "$(grep -ao "\"[a-z_.0-9]*.weight\"" plain/model.safetensors | sort)" ]'
train half objective=mix.json teacher_model=teacher max_steps=2 lr_scheduler_type=constant save_steps=2
train half objective=mix.json teacher_model=teacher lr_scheduler_type=constant resume_from_checkpoint=true
train whole objective=mix.json teacher_model=teacher lr_scheduler_type=constant
check "a resumed run ends equal" cmp half/model.safetensors whole/model.safetensors
for keys in "lora=true lora_rank=4" "gpus=2 gradient_accumulation_steps=1 zero_level=3" recompute_block=true "offload_weights=true recompute_block=true" fusion=none "from_scratch=true"; do
    # shellcheck disable=SC2086
    train "keys-${keys%%=*}" objective=mix.json teacher_model=teacher $keys
done
near keys-gpus taught
train samples objective=mix.json teacher_model=teacher eval_steps=2 generate_samples=2
same_steps() { check "$1 and $2: steps" [ "$(numbers "$1" | grep -v eval)" = "$(numbers "$2" | grep -v eval)" ]; }
same_steps samples taught
check "texts of the model: $(tail -1 samples/metrics.jsonl)" grep -q '"log":"sample"' samples/metrics.jsonl
near keys-recompute_block taught
near keys-offload_weights taught
near keys-fusion taught
check "an adapter has no weight of the teacher" sh -c '! grep -aq teacher keys-lora/adapter_model.safetensors'

run plan run.yaml objective=mix.json teacher_model=teacher memory=auto --gpu h200
check "memory: auto knows the teacher: $(tail -1 err)" [ "$status" = 0 ]

# --- chunks of rows: the same numbers in less memory
train chunks objective=mix.json teacher_model=teacher head_chunks=2
near chunks taught
run ir run.yaml objective=mix.json teacher_model=teacher head_chunks=2 --after recompute
check "no logits of all rows" sh -c '! grep -q "\[16,128,300\]" out'
check "two chunks, made again for the backward pass" [ "$(grep -c '^logits.rows.*linear' out)" = 4 ]
train chunks-again objective=mix.json teacher_model=teacher head_chunks=2 recompute_block=true
near chunks-again taught
train chunks-norm objective=mix.json teacher_model=teacher head_chunks=2 recompute_rmsnorm=true
near chunks-norm taught
train chunks-lora objective=mix.json teacher_model=teacher head_chunks=2 lora=true lora_rank=4
near chunks-lora keys-lora

# --- errors
refused "a teacher that nobody reads" 2 "teacher_model" "only an objective reads a teacher" -- plan run.yaml teacher_model=teacher
refused "a teacher that the objective doesn't read" 2 "sft.json reads nothing of the teacher model" "remove teacher_model" -- plan run.yaml objective=sft.json teacher_model=teacher
refused "no teacher" 2 "mix.json:" "no value is named teacher.logits here" "teacher_model names" -- plan run.yaml objective=mix.json
refused "another vocabulary" 2 "mix.py:9: add" "[16,128,400]" -- plan run.yaml objective=mix.json teacher_model=other
refused "a model in place of an objective" 2 "tiny.json is a model; expected an objective" -- plan run.yaml objective=tiny.json
refused "an objective in place of a model" 2 "sft.json is an objective" "under objective" -- plan run.yaml ir=sft.json
sed '$a objective: double.py' run.yaml > python.yaml
refused "Python isn't run" 2 "double.py is Python" "objective=double.py" "set objective: objective.json" -- plan python.yaml
refused "no such file" 2 "nowhere.json" -- plan run.yaml objective=nowhere.json
sed 's/"logits"/"logit"/' double.json > wrong.json
refused "no such output" 2 "wrong.json:5" "no value is named logit here" "outputs of the model: hidden, logits" -- plan run.yaml objective=wrong.json
sed 's/"is": "loss_sum"/"is": "scale"/' double.json > wrong.json
refused "no number" 2 "output loss is f32[16,128,300], expected f32[1]" -- plan run.yaml objective=wrong.json
run pt run.yaml output_dir=goes-on objective=double.json max_steps=2 save_steps=1
cp sft.json double.json
refused "another objective under its name" 2 "the objective, or the config.json" -- pt run.yaml output_dir=goes-on objective=double.json max_steps=2 save_steps=1
finish
