#!/bin/bash
# Tokens read and trained tokens in all outputs of a run; how near its steps come to the limit; whether it overfits.
cd "$(dirname "$0")/../.." || exit 1
. tests/chat.sh
python=$(command -v python3 || true)
[ -n "$python" ] || { skip "python3 isn't here"; finish; }
make_chat
cat > "$dir/run.yaml" << END
model: $dir/model
datasets: [{path: $dir/chats.jsonl}]
validation_split_ratio: 0.1
sequence_len: 128
per_device_train_batch_size: 8
gradient_accumulation_steps: 2
num_epochs: 2
eval_steps: 5
logging_steps: 1
learning_rate: 5e-3
model_dtype: fp32
END
# counts OUTPUT: metrics.jsonl, trainer_state.json, report.html and the screen agree with each other and with the data.
counts() {
    "$python" - "$1" "$dir/err" << 'END'
import json, re, sys
out, screen = sys.argv[1], open(sys.argv[2]).read()
log = [json.loads(line) for line in open(out + "/metrics.jsonl")]
steps, evals = [l for l in log if l["log"] == "step"], [l for l in log if l["log"] == "eval"]
state = json.load(open(out + "/trainer_state.json"))
rates = [[float(n.replace(",", "")) for n in line] for line in re.findall(r"([\d,]+) tok/s  ([\d,]+) trained/s", screen)]
read = trained = 0
assert len(rates) == len(steps) > 5
for step, rate in zip(steps, rates):
    read, trained = read + step["step_tokens"], trained + step["step_trained"]
    seconds = step["duration_ms"] / 1e3
    assert 0 < step["step_trained"] < step["step_tokens"] <= 16 * 128
    assert (step["total_tokens"], step["total_trained"]) == (read, trained)
    near = lambda a, b: abs(a - b) <= 1 + 0.001 * b
    assert near(step["tokens_per_second"], step["step_tokens"] / seconds) and near(rate[0], step["tokens_per_second"])
    assert near(rate[1], step["step_trained"] / seconds)
tokens, share = re.search(r"training on \d+ documents, (\d+) tokens \(([\d.]+)% of them trained\)", screen).groups()
assert read == 2 * int(tokens), (read, tokens)
assert abs(100 * trained / read - float(share)) < 0.1
assert state["num_input_tokens_seen"] == read
assert abs(state["log_history"][-1]["train_tokens_per_second"] * state["log_history"][-1]["train_runtime"] - read) < 1e-6 * read
for e, entry in zip(evals, [h for h in state["log_history"] if "eval_loss" in h]):
    assert 0 < e["eval_trained"] < e["eval_tokens"]
    assert abs(entry["eval_tokens_per_second"] * entry["eval_runtime"] - e["eval_tokens"]) < 1e-6 * e["eval_tokens"]
report = json.loads(re.search(r"const D = (\{.*\});\n", open(out + "/report.html").read()).group(1))
assert report["steps"][-1][6:] == [read, trained] and 0 < report["of_limit"] <= 1
limits = [int(n) for n in re.findall(r"(\d+)% of limit", screen)]
assert len(limits) == len(steps) and max(limits) <= 100, limits
END
}
run sft "$dir/run.yaml" output_dir="$dir/packed"
check "packed: $(tail -1 "$dir/err")" [ "$status" = 0 ]
check "packed: counts" counts "$dir/packed"
run sft "$dir/run.yaml" output_dir="$dir/padded" sample_packing=false
check "padded: counts" counts "$dir/padded"
run sft "$dir/run.yaml" output_dir="$dir/short" sample_packing=false datasets.0.samples=20 num_epochs=6
check "a last step filled with padding: counts $(tail -3 "$dir/err")" [ "$status" = 0 ]
run bench "$dir/run.yaml" device=cpu --steps 1
check "bench says what it counts: $(cat "$dir/out")" grep -qE '^speed +[0-9]+ tokens/s \(read, all of them trained\)' "$dir/out"

# --- a checkpoint with only one of the counts
run sft "$dir/run.yaml" output_dir="$dir/old" num_epochs=1
sed -i 's/"finished": true/"finished": false/' "$dir/old/run.json"
sed -i '/total_trained/d' "$dir"/old/checkpoint-*/run_state.json
"$python" - "$dir"/old/checkpoint-* << 'END'
import json, os, sys
name = sys.argv[1] + "/manifest.json"
manifest = json.load(open(name))
for file in manifest["files"]:
    if file["name"] == "run_state.json": manifest["files"].remove(file); break
json.dump(manifest, open(name, "w"))
END
run sft "$dir/run.yaml" output_dir="$dir/old" resume_from_checkpoint=true
check "a checkpoint with one count goes on: $(cat "$dir/err")" grep -q "going on from .*checkpoint-" "$dir/err"

# --- overfitting: few rows, many times
head -12 "$dir/chats.jsonl" > "$dir/few.jsonl"
run sft "$dir/run.yaml" output_dir="$dir/heart" datasets.0.path="$dir/few.jsonl" validation_datasets.0.path="$dir/chats.jsonl" \
    validation_split_ratio=0 per_device_train_batch_size=2 gradient_accumulation_steps=1 max_steps=120 eval_steps=20 \
    eval_max_batches=4 logging_steps=40 learning_rate=1e-2
cp "$dir/err" "$dir/said"
best=$(grep '"log":"eval"' "$dir/heart/metrics.jsonl" | sed -E 's/.*"step":([0-9]+).*"loss":([0-9.]+).*/\2 \1/' | sort -n | head -1 | cut -d ' ' -f 2)
check "evaluations name the best: $(cat "$dir/said")" grep -qE "^eval at step 120 .*overfitting: best [0-9.]+ at step $best" "$dir/said"
check "so does the end" grep -qE "^evaluation loss [0-9.]+; the best was [0-9.]+ at step $best\$" "$dir/said"
check "overfitting is a warning" grep -qE "^warning: the model overfits: since step $best the training loss fell from [0-9.]+ to [0-9.]+" "$dir/said"
check "the report has both" grep -qE "\"best_eval\":\{\"step\":$best,\"loss\":[0-9.]+\},\"overfits\":true" "$dir/heart/report.html"
check "trainer_state.json has the best" grep -qE "\"best_global_step\": $best," "$dir/heart/trainer_state.json"
run sft "$dir/run.yaml" output_dir="$dir/fine"
check "a run that learns isn't said to overfit: $(grep -E '^eval|overfit' "$dir/err")" [ "$(grep -c overfit "$dir/err")" = 0 ]
check "its last evaluation is the best" grep -qE '^evaluation loss [0-9.]+, the best$' "$dir/err"
finish
