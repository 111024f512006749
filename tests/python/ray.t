#!/bin/bash
# A run on a Ray cluster of three nodes, all on this machine, has the losses of one process with three ranks, whatever is killed. RAY_PYTHON: a
# Python with Ray; default: from the folder that tools/install-deps ray makes. KILLS: number of raylets that are killed.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
RAY_PYTHON=${RAY_PYTHON:-$(dirname "$SUROGATE")/ray-venv/bin/python}
SUROGATE_LIBRARY=$(dirname "$SUROGATE")/libsurogate.so
export SUROGATE_LIBRARY PYTHONPATH=$root/python PYTHONDONTWRITEBYTECODE=1 RAY_USAGE_STATS_ENABLED=0
make_text_run "max_steps: 60" "save_steps: 5" "per_device_train_batch_size: 4" "gradient_accumulation_steps: 2" "device: cpu" "threads: 1" \
    "learning_rate: 1e-3" "dataset_cache_dir: $dir/cache"
sed -i "s/^sequence_len: .*/sequence_len: 128/" "$dir/run.yaml"

# --- parts that need no Ray
printf '%s\n' "model: $dir/model" "distributed: {ray_address: auto, num_nodes: 2, gpus_per_node: 1}" > "$dir/ray.yaml"
SUROGATE_PYTHON=$dir/absent refused "no Python" 2 "cannot start $dir/absent" "pip install surogate[ray]" -- sft "$dir/ray.yaml"
refused "world_size" 2 "world_size: 2 on Ray" -- sft "$dir/ray.yaml" world_size=2
refused "no such key" 2 "unknown key distributed.nodes; it takes ray_address, num_nodes, " -- sft "$dir/run.yaml" distributed.nodes=2
refused "no mapping" 2 "distributed: expected a mapping" -- sft "$dir/run.yaml" distributed=2
run pt "$dir/run.yaml" output_dir="$dir/alone" max_steps=1 num_nodes=2 max_restarts=3 worker_output_dir="$dir/own" rendezvous=a:1
check "keys of Ray without it are told: $(cat "$dir/err")" \
    [ "$(grep -c "^warning: .*: \(num_nodes\|max_restarts\|worker_output_dir\): no effect without ray_address or --ray: only" "$dir/err")" = 3 ]
check "a meeting of one is told" grep -q "rendezvous: no effect without world_size: this process trains alone" "$dir/err"
run pt "$dir/run.yaml" output_dir="$dir/alone" max_steps=1 num_nodes=2 ray_address= world_size=1 resume_from_checkpoint=false rendezvous=a:1
check "but not to the nodes of a Ray run: $(cat "$dir/err")" [ "$(grep -c "no effect" "$dir/err")" = 0 ]
for python in /usr/bin/python3 python3; do
    "$python" -c 'import ray' 2> /dev/null && continue
    SUROGATE_PYTHON=$python refused "no Ray" 2 "$python -m surogate.ray" "has no Ray: pip install surogate[ray]" -- sft "$dir/ray.yaml"
    break
done

status=0
python3 > "$dir/out" 2>&1 << 'END' || status=$?
from surogate.ray import Worker

worker = Worker()
worker.start(["sh", "-c", "for i in 1 2 3; do echo line $i; done; exit 7"], "/", "secret", "/dev/full")
status = None
while status is None:
    lines, status = worker.read(1)
    print(*lines, sep="", end="")
print("status", status)
END
check "a full disk of the copy: $(cat "$dir/out")" [ "$(grep -c "^line [123]$" "$dir/out")" = 3 -a "$(tail -1 "$dir/out")" = "status 7" ]
check "is told once" [ "$(grep -c "^warning: the log in /dev/full ends here, the run goes on: .*No space left" "$dir/out")" = 1 ]

# Messages of a restart after a loss, if checkpoints of an earlier branch are beside the one that the run resumed from.
status=0
python3 > "$dir/out" 2>&1 - "$dir/branches" << 'END' || status=$?
import dataclasses
import os
import sys
from pathlib import Path

from surogate.ray import Saved, Settings


def save(step, text):
    folder = out / f"checkpoint-{step}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "new").write_text(text)
    os.replace(folder / "new", folder / "manifest.json")


out = Path(sys.argv[1])
texts = {field.name: str(out) for field in dataclasses.fields(Settings)}
save(30, "old")
save(40, "old")
for resume in (str(out / "checkpoint-30"), "false"):
    saved = Saved(Settings(**texts | {"resume": resume}))
    assert saved.again() == [], saved.again()
    assert saved.command() == "the same command goes on"
    save(40, "new")
    assert saved.again() == ["resume_from_checkpoint=auto"]
    assert saved.command() == "the same command with resume_from_checkpoint=auto goes on"
for resume in ("auto", "true"):
    saved = Saved(Settings(**texts | {"resume": resume}))
    save(50, "new")
    assert saved.again() == []
END
check "what a restart goes on from: $(tail -1 "$dir/out")" [ "$status" = 0 ]

"$RAY_PYTHON" -c 'import ray' 2> /dev/null || {
    skip "no Python with Ray here: tools/install-deps ray installs it"
    finish
}
export SUROGATE_PYTHON=$RAY_PYTHON
# A wrong address: a port where no server listens, and one whose server isn't Ray.
none_left() { ! pgrep -f "[s]urogate.ray --settings.*$dir/run.yaml" > /dev/null; }
python3 -c 'import socket, time
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
time.sleep(600)' > "$dir/port" &
mute=$!
refused "nothing listens" 2 "ray_address 127.0.0.1:1: " "refused" "ray start --head" -- pt "$dir/run.yaml" ray_address=127.0.0.1:1
refused "no Ray listens" 2 "no Ray answers there within" "ray start --head" -- pt "$dir/run.yaml" "ray_address=127.0.0.1:$(cat "$dir/port")"
kill "$mute"
wait "$mute" 2> /dev/null
check "nothing is left running" none_left

losses() { sed -nE 's/.*"log":"step".*"loss":([0-9.e+-]+).*/\1/p' "$1/metrics.jsonl"; }
same_losses() {
    paste <(losses "$1") <(losses "$2") | awk '{ d = $1 - $2; if (d < 0) d = -d; if (!(d <= 1e-5 * $1)) { print; bad = 1 } } END { exit bad || NR != 60 }'
}
# cluster KIND...: the exit status and the output.
cluster() {
    status=0
    timeout "${RAY_TIMEOUT:-500}" "$RAY_PYTHON" python/tests/ray_cluster.py "$@" > "$dir/out" 2> "$dir/err" || status=$?
}

run pt "$dir/run.yaml" output_dir="$dir/one" gpus=3
check "one process: exit $status" [ "$status" = 0 ]
# block KIND: the document's first block of that kind, changed to fit this machine.
block() { awk -v begin="\`\`\`$1" '$0 == begin { on = 1; next } /^```/ { if (on) exit } on' docs/multi_node.md | sed "s,/local/run,$dir/own,; s/gpus_per_node: 8/gpus_per_node: 1/"; }
block yaml | cat "$dir/run.yaml" - > "$dir/documented.yaml"
cluster whole "$SUROGATE" pt "$dir/documented.yaml" output_dir="$dir/three"
check "three nodes: exit $status, $(tail -3 "$dir/err")" [ "$status" = 0 ]
check "the losses of one process" same_losses "$dir/one" "$dir/three"
check "what each prints is kept" [ -s "$dir/own/node-0.log" -a -e "$dir/own/node-1.log" -a -e "$dir/own/node-2.log" ]

mkdir "$dir/full"
for node in 0 1; do ln -s /dev/full "$dir/full/node-$node.log"; done
cluster whole "$SUROGATE" pt "$dir/run.yaml" output_dir="$dir/two" num_nodes=2 worker_output_dir="$dir/full" gradient_accumulation_steps=3
check "full disks of two nodes: exit $status, $(tail -3 "$dir/err")" [ "$status" = 0 ]
check "are told once" [ "$(grep -c "node-0.log ends here, the run goes on" "$dir/err")" = 1 ]
check "and change no loss" same_losses "$dir/one" "$dir/two"

mkdir "$dir/python"
cat "$dir/run.yaml" - <<< "output_dir: out" > "$dir/python/run.yaml"
cluster whole env -C "$dir/python" "$RAY_PYTHON" -c "$(block python)"
check "from Python: exit $status, $(tail -3 "$dir/err")" [ "$status" = 0 ]
check "its losses" same_losses "$dir/one" "$dir/python/out"

cluster stop "$RAY_PYTHON" -m surogate.ray pt "$dir/run.yaml" output_dir="$dir/stopped" max_steps=10000 num_nodes=2
check "SIGTERM: exit $status, $(tail -1 "$dir/err")" [ "$status" = 75 ]
check "and a checkpoint" compgen -G "$dir/stopped/checkpoint-*/manifest.json" > /dev/null

cluster whole "$SUROGATE" pt "$dir/run.yaml" output_dir="$dir/bad" num_nodes=2 datasets="$dir/absent.txt"
check "a failure of the run itself: exit $status, $(tail -3 "$dir/err")" [ "$status" = 2 ]
check "isn't tried again" [ "$(grep -c "absent.txt" "$dir/err")" -ge 1 -a "$(grep -c "going on with" "$dir/err")" = 0 ]

cluster kill "${KILLS:-2}" "${SEED:-7}" "$dir/killed" "$SUROGATE" pt "$dir/run.yaml" num_nodes=3 max_restarts=100
check "kills: exit $status, $(tail -3 "$dir/err")" [ "$status" = 0 ]
check "the run went on: $(grep -m1 "was lost" "$dir/err")" [ "$(grep -c "going on with" "$dir/err")" -ge 1 ]
read -r kills runs < <(sed -nE 's/^(.*) kills in (.*) runs$/\1 \2/p' "$dir/out")
echo "${kills:-no} kills in ${runs:-no} runs"
check "enough kills" [ "${kills:-0}" -ge "${KILLS:-2}" ]
for turn in $(seq "${runs:-1}"); do
    check "run $turn of those killed: the losses of one process" same_losses "$dir/one" "$dir/killed/$turn"
done
finish
