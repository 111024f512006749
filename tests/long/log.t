#!/bin/bash
# A run's numbers in Weights & Biases (offline) and MLflow (SQLite), read back from the files of these packages. LOG_PYTHON: an interpreter
# that has both.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
python=${LOG_PYTHON:-python3}
if ! "$python" -c "import wandb, mlflow" 2> /dev/null; then
    skip "no wandb and mlflow here"
    finish
fi
make_text_run "max_steps: 12" "validation_split_ratio: 0.2" "eval_steps: 5"
run pt "$dir/run.yaml" output_dir="$dir/trained"
check "a run: $(tail -1 "$dir/err")" [ "$status" = 0 ]
export PYTHONPATH=$root/python WANDB_MODE=offline WANDB_SILENT=true MLFLOW_TRACKING_URI=sqlite:///$dir/mlflow.db
check "wandb" "$python" -m surogate.log wandb "$dir/trained"
check "mlflow" "$python" -m surogate.log mlflow "$dir/trained"
cat > "$dir/read.py" <<'PY'
import glob, json, struct, sys

import mlflow
from wandb.proto.wandb_internal_pb2 import Record

folder = sys.argv[1]
lines = [json.loads(line) for line in open(folder + "/metrics.jsonl")]
want = {("train/loss", line["step"]): line["loss"] for line in lines if line["log"] == "step"}
want |= {("eval/loss", line["step"]): line["loss"] for line in lines if line["log"] == "eval"}


def records(path):
    """Of a .wandb file: behind 7 bytes blocks of 32 KiB, in which a record has a checksum, a length, and whether it goes on."""
    data, place, whole = open(path, "rb").read(), 7, b""
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # the whole record, or its last part
            yield whole
            whole = b""


got = {}
for data in records(glob.glob(folder + "/wandb/offline-run-*/*.wandb")[0]):
    record = Record()
    record.ParseFromString(data)
    items = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
    got |= {(tag, items["_step"]): items[tag] for tag in ("train/loss", "eval/loss") if tag in items}
assert got == want, (got, want)
client = mlflow.MlflowClient()
run = client.search_runs([client.get_experiment_by_name("surogate").experiment_id])[0]
got = {(tag, m.step): m.value for tag in ("train/loss", "eval/loss") for m in client.get_metric_history(run.info.run_id, tag)}
assert got == want, (got, want)
assert run.info.status == "FINISHED" and run.data.params["learning_rate"]
PY
check "both have each loss at its step: $("$python" "$dir/read.py" "$dir/trained" 2>&1 | tail -3)" "$python" "$dir/read.py" "$dir/trained"
finish
