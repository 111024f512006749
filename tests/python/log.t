#!/bin/bash
# python -m surogate.log: each number of metrics.jsonl reaches Weights & Biases and MLflow once, at its step. This test uses fakes;
# tests/long/log.t uses the packages.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
if ! find_python; then
    skip "no Python 3.10 here"
    finish
fi
mkdir -p "$dir/fakes" "$dir/run"
cat > "$dir/fakes/wandb.py" <<'PY'
import json, os

def write(**what):
    with open(os.environ["SAID"], "a") as file:
        file.write(json.dumps(what) + "\n")

class Run:
    def log(self, numbers, step):
        if step == int(os.environ.get("FAIL_AT", 0)):
            raise ConnectionError("gone")
        write(step=step, numbers={key: value for key, value in numbers.items() if key != "time"})

    def finish(self):
        write(finished=True)

def init(**given):
    write(init=given)
    return Run()
PY
cat > "$dir/fakes/mlflow.py" <<'PY'
import json, os
from types import SimpleNamespace as Record

from wandb import write

entities = Record(
    Metric=lambda key, value, timestamp, step: Record(key=key, value=value, timestamp=timestamp, step=step),
    Param=lambda key, value: (key, value),
)

class MlflowClient:
    def get_experiment_by_name(self, name):
        return None

    def create_experiment(self, name):
        write(experiment=name)
        return "7"

    def create_run(self, where, run_name):
        write(run=run_name, where=where)
        return Record(info=Record(run_id="r1"))

    def log_batch(self, run_id, metrics=(), params=()):
        assert run_id == "r1" and len(metrics) <= 1000 and len(params) <= 100
        if params:
            write(params=dict(params))
        for m in metrics:
            write(step=m.step, numbers={m.key: m.value}, at=m.timestamp)

    def update_run(self, run_id, status):
        write(status=status)

    def set_terminated(self, run_id, status):
        write(status=status)
PY
cat > "$dir/lines.py" <<'PY'
import json, sys
first, last, begin = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
for step in range(first, last + 1):
    print(json.dumps({"log": "step", "time": begin + step, "step": step, "epoch": step / 10, "loss": None if step == 3 else 2 / step, "lr": 1e-3,
                      "norm": 0.5, "tokens_per_second": 100.5, "total_tokens": 64 * step, "scalars": {"accuracy": step / 100}}))
    if step % 5 == 0:
        print(json.dumps({"log": "eval", "time": begin + step, "step": step, "loss": 1 / step}))
print(json.dumps({"log": "sample", "step": last, "text": "a"}))
PY
finished() { printf '{"finished": %s, "settings": "model: base\\ndatasets:\\n  - path: a.txt\\n    type: text\\nlearning_rate: 0.001\\n"}\n' "$1" > "$dir/run/run.json"; }
sends() { status=0; SAID=$dir/said PYTHONPATH=$root/python:$dir/fakes "$PYTHON" -m surogate.log "$@" > "$dir/out" 2> "$dir/err" || status=$?; }
# expect NAME PYTHON: checks an expression over `said`, the list of calls of the fakes.
expect() {
    check "$1: $(tail -3 "$dir/said" 2> /dev/null)" "$PYTHON" -c '
import json, sys
said = [json.loads(line) for line in open(sys.argv[1])]
sent = {(s["step"], key): value for s in said if "step" in s for key, value in s["numbers"].items()}
count = sum(len(s["numbers"]) for s in said if "step" in s)
sys.exit(not eval(f"({sys.argv[2]})"))' "$dir/said" "$2"
    : > "$dir/said"
}
finished false
"$PYTHON" "$dir/lines.py" 1 12 1000 > "$dir/run/metrics.jsonl"
printf '{"log":"step","st' >> "$dir/run/metrics.jsonl"
sends wandb "$dir/run" --project tests
check "it ends well: $(cat "$dir/err")" [ "$status" = 0 ]
check "it says how many" grep -q "sent 14 lines of $dir/run/metrics.jsonl to wandb" "$dir/out"
expect "each number once, a null left out" \
    'count == len(sent) == 12 * 7 - 1 + 2 and sent[4, "train/loss"] == 0.5 and sent[5, "eval/loss"] == 0.2 and (3, "train/loss") not in sent
     and sent[12, "train/scalars/accuracy"] == 0.12 and sent[2, "train/learning_rate"] == 1e-3 and sent[12, "train/total_tokens"] == 768'
"$PYTHON" "$dir/lines.py" 1 12 1000 > "$dir/run/metrics.jsonl"
sends wandb "$dir/run" --project tests
expect "nothing twice, in the same run" 'not sent and said[0]["init"]["project"] == "tests" and said[0]["init"]["name"] == "run"
    and said[0]["init"]["config"] == {"model": "base", "datasets": "- path: a.txt type: text", "learning_rate": "0.001"}'
"$PYTHON" "$dir/lines.py" 13 15 1000 >> "$dir/run/metrics.jsonl"
FAIL_AT=14 sends wandb "$dir/run"
expect "a break keeps what was sent" '{step for step, _ in sent} == {13}'
first=$("$PYTHON" -c 'import json, sys; print(json.load(open(sys.argv[1]))["wandb"]["id"])' "$dir/run/sent.json")
sends wandb "$dir/run"
expect "the rest comes with the next call" "{step for step, _ in sent} == {14, 15} and (15, 'eval/loss') in sent and said[0]['init']['id'] == '$first'"
"$PYTHON" "$dir/lines.py" 1 2 5000 > "$dir/run/metrics.jsonl"
sends wandb "$dir/run"
expect "a run that starts anew is another one there" "{step for step, _ in sent} == {1, 2} and said[0]['init']['id'] != '$first'"

finished true
"$PYTHON" "$dir/lines.py" 1 200 1000 > "$dir/run/metrics.jsonl"
sends mlflow "$dir/run" --name mine
check "mlflow: $(cat "$dir/err")" [ "$status" = 0 ]
expect "mlflow" 'count == len(sent) == 200 * 7 - 1 + 40 and said[0] == {"experiment": "surogate"} and said[1]["run"] == "mine"
    and said[2]["params"]["learning_rate"] == "0.001" and said[-1] == {"status": "FINISHED"} and said[3]["at"] == 1001000'

# --- during a run
finished false
"$PYTHON" "$dir/lines.py" 1 3 9000 > "$dir/run/metrics.jsonl"
sends wandb "$dir/run" --follow &
follower=$!
sleep 1
"$PYTHON" "$dir/lines.py" 4 6 9000 >> "$dir/run/metrics.jsonl"
finished true
check "it ends with the run" wait $follower
expect "what came meanwhile is there" '{step for step, _ in sent} == {1, 2, 3, 4, 5, 6} and said[-1] == {"finished": True}'

finished false
"$PYTHON" "$dir/lines.py" 1 4 12000 > "$dir/run/metrics.jsonl"
SAID=$dir/said PYTHONPATH=$root/python:$dir/fakes "$PYTHON" -m surogate.log mlflow "$dir/run" --follow > /dev/null 2> "$dir/err" &
follower=$!
for _ in {1..100}; do
    grep -q '"step": 4' "$dir/said" 2> /dev/null && break
    sleep 0.1
done
kill -9 $follower
wait $follower 2> /dev/null
expect "mlflow has them during the run, though few" '{step for step, _ in sent} == {1, 2, 3, 4} and not any(s.get("status") for s in said)'
"$PYTHON" "$dir/lines.py" 5 5 12000 >> "$dir/run/metrics.jsonl"
SAID=$dir/said PYTHONPATH=$root/python:$dir/fakes "$PYTHON" -m surogate.log mlflow "$dir/run" --follow > /dev/null 2> "$dir/err" &
follower=$!
for _ in {1..100}; do
    grep -q '"step": 5' "$dir/said" 2> /dev/null && break
    sleep 0.1
done
sleep 0.2
kill -TERM $follower
wait $follower
check "SIGTERM ends it" [ $? = 143 ]
sends mlflow "$dir/run"
expect "killed, it sends nothing twice, to the same run" '{step for step, _ in sent} == {5} and len([s for s in said if "run" in s]) == 0
    and count == len(sent) == 8'
printf '{' > "$dir/run/sent.json"
sends mlflow "$dir/run"
check "a torn sent.json: $(cat "$dir/err")" grep -q "sent.json: .* remove it, and all is sent anew" "$dir/err"
rm "$dir/run/sent.json"

rm "$dir/fakes/mlflow.py"
sends mlflow "$dir/run"
check "no package: $(cat "$dir/err")" [ "$status" = 2 -a "$(cat "$dir/err")" = "error: the package mlflow isn't installed; pip install mlflow" ]
sends wandb "$dir/fakes"
check "no run: $(cat "$dir/err")" [ "$status" = 2 ]
check "it names the folder" grep -q "fakes: no metrics.jsonl in this folder; expected the output_dir of a run" "$dir/err"
finish
