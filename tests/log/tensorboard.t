#!/bin/bash
# Event files of report_to: tensorboard, read as TensorBoard does: the numbers of metrics.jsonl, each step once. Also for runs that were
# killed, resumed or started anew, and on a disk that fails for a while.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
python=$(command -v python3 || true)
[ -n "$python" ] || { skip "python3 isn't here"; finish; }
make_text_run "dataset_cache_dir: $dir/cache" "max_steps: 24" "save_steps: 8" "save_total_limit: 3" "threads: 1" "log_scalars: accuracy" \
    "validation_datasets: [{path: $dir/valid.txt}]" "eval_steps: 6" "eval_max_batches: 1" "report_to: tensorboard"
head -100 "$dir/text.txt" > "$dir/valid.txt"

cat > "$dir/events.py" << 'END'
"""events.py OUTPUT: whether the event files of OUTPUT/runs tell what OUTPUT/metrics.jsonl does; says how many files and torn bytes there are."""
import json, math, os, struct, sys, time

def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF

def masked(data):
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)

def varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        shift += 7
        at += 1
        if data[at - 1] < 128:
            return value, at

def fields(data):
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            value, at = varint(data, at)
        elif key & 7 == 2:
            size, at = varint(data, at)
            value, at = data[at : at + size], at + size
            assert len(value) == size
        else:
            layout = {1: "<d", 5: "<f"}[key & 7]
            (value,), at = struct.unpack_from(layout, data, at), at + struct.calcsize(layout)
        yield key >> 3, value

def records(data):
    at = 0
    while len(data) >= at + 12:
        head = data[at : at + 8]
        assert data[at + 8 : at + 12] == masked(head), "length's checksum"
        end = at + 12 + struct.unpack("<Q", head)[0]
        if len(data) < end + 4:
            break
        assert data[end : end + 4] == masked(data[at + 12 : end]), "data's checksum"
        yield dict(fields(data[at + 12 : end]))
        at = end + 4
    global torn
    torn += len(data) - at

assert crc32c(b"123456789") == 0xE3069283
out, torn, told = sys.argv[1], 0, []
names = sorted(os.listdir(out + "/runs"))
for name in names:
    parts = name.split(".")
    assert parts[:3] == ["events", "out", "tfevents"] and len(parts[3]) == 10 and parts[-1] == "0", name
    for index, event in enumerate(records(open(out + "/runs/" + name, "rb").read())):
        step = event.get(2, 0)
        assert 0 <= time.time() - event[1] < 600
        if index == 0:
            assert event[3] == b"brain.Event:2" and step == 0
        elif index == 1:
            assert list(fields(event[7])) == [(1, 1)]
            told = [(s, tag, value) for s, tag, value in told if s < step]
        else:
            for _, value in fields(event[5]):
                value = dict(value for value in fields(value))
                told.append((step, value[1].decode(), value[2]))

wanted = []
for line in open(out + "/metrics.jsonl"):
    line = json.loads(line)
    if line["log"] == "eval":
        wanted.append((line["step"], "eval/loss", line["loss"]))
    if line["log"] == "step":
        numbers = {"loss": line["loss"], "learning_rate": line["lr"], "grad_norm": line["norm"], "epoch": line["epoch"],
                   "tokens_per_second": line["tokens_per_second"]}
        numbers.update(("scalars/" + name, value) for name, value in line.get("scalars", {}).items())
        wanted += [(line["step"], "train/" + name, value) for name, value in numbers.items()]

def is_same(got, want):
    if want[2] is None:
        return got[:2] == want[:2] and not math.isfinite(got[2])
    close = 1e-3 if want[1].endswith("per_second") else 2e-7  # one decimal is written; others are f32
    return got[:2] == want[:2] and abs(got[2] - want[2]) <= close * abs(want[2])

assert len(told) == len(wanted) > 0, "%d numbers, metrics.jsonl has %d" % (len(told), len(wanted))
for got, want in zip(told, wanted):
    assert is_same(got, want), "%s, metrics.jsonl has %s" % (got, want)
print(len(names), "files,", "torn" if torn else "whole")
END
tells() { # NAME OUTPUT TEXT: the events agree with metrics.jsonl
    local said
    said=$("$python" "$dir/events.py" "$2" 2>&1)
    check "$1: the events are as in metrics.jsonl, $3: $(tail -1 <<< "$said")" [ "$said" = "$3" ]
}
goes_on() { # OUTPUT: as if the run had been killed after checkpoint-16
    rm -r "$1/checkpoint-24"
    sed -i 's/"finished": true/"finished": false/' "$1/run.json"
}

# --- a run from its start to its end
out=$dir/whole
run pt "$dir/run.yaml" output_dir="$out"
check "it ends well and says where: $(tail -1 "$dir/err")" [ "$status/$(grep -c "^events  $out/runs" "$dir/err")" = 0/1 ]
tells "whole" "$out" "1 files, whole"
check "six tags a step, with a scalar" grep -qa "train/scalars/accuracy" "$out"/runs/*
run pt "$dir/run.yaml" output_dir="$out"
check "a finished run makes no file" [ "$status/$(ls "$out/runs" | wc -l)" = 0/1 ]

# --- without the key, with nothing, with another tool's name
run pt "$dir/run.yaml" output_dir="$dir/none" report_to=none max_steps=1
check "none: no folder" [ "$status" = 0 -a ! -e "$dir/none/runs" ]
check "metrics.jsonl is there" [ -s "$dir/none/metrics.jsonl" ]
refused "another name" 2 "report_to: expected one of none, tensorboard, found \"wandb\"" -- pt "$dir/run.yaml" output_dir="$dir/never" report_to=tensorboard,wandb
mkdir "$dir/blocked"
touch "$dir/blocked/runs"
refused "a file in the folder's place" 2 "cannot make the folder $dir/blocked/runs: $dir/blocked/runs is a file" -- pt "$dir/run.yaml" output_dir="$dir/blocked"

# --- resumed: steps after the checkpoint are dropped, in the file and for readers; a file that was started in the same second sorts last
goes_on "$out"
run pt "$dir/run.yaml" output_dir="$out"
tells "goes on" "$out" "2 files, whole"
goes_on "$out"
file=$(ls "$out/runs" | tail -1)
truncate -s -5 "$out/runs/$file"
mv "$out/runs/$file" "$out/runs/events.out.tfevents.$(($(date +%s) + 1000)).zzz.9.0"
run pt "$dir/run.yaml" output_dir="$out"
tells "behind a torn record of a clock ahead" "$out" "3 files, torn"
run pt "$dir/run.yaml" output_dir="$out" resume_from_checkpoint=false max_steps=7
tells "starts anew" "$out" "4 files, torn"

mv "$out/runs" "$dir/set_aside"
touch "$out/runs"
refused "starts anew, but a file is in the way" 2 "$out/runs is a file" -- pt "$dir/run.yaml" output_dir="$out" resume_from_checkpoint=false max_steps=7
check "nothing was removed" [ -s "$out/model.safetensors" -a -d "$out/checkpoint-7" ]

# --- several ranks, one file
run pt "$dir/run.yaml" output_dir="$dir/ranks" gpus=2 device=cpu gradient_accumulation_steps=2 max_steps=8
check "2 ranks: $(tail -1 "$dir/err")" [ "$status" = 0 ]
tells "2 ranks" "$dir/ranks" "1 files, whole"

if ! cc -shared -fPIC -D_GNU_SOURCE -o "$dir/fail_io.so" tests/train/fail_io.c -ldl 2> "$dir/err"; then
    skip "no compiler for fail_io.c: $(head -1 "$dir/err")"
    finish
fi

# --- a step that isn't finite
FAIL_COUNT=$dir/count LD_PRELOAD=$dir/fail_io.so run pt "$dir/run.yaml" output_dir="$dir/counted"
read -r _ logs < "$dir/count"
FAIL_AT=$((logs / 2)) FAIL_AS=nan LD_PRELOAD=$dir/fail_io.so run pt "$dir/run.yaml" output_dir="$dir/nan" on_divergence=skip
check "NaN is null in metrics.jsonl" grep -q '"loss":null' "$dir/nan/metrics.jsonl"
tells "NaN" "$dir/nan" "1 files, whole"

# --- killed in the middle of a step, at two thirds
out=$dir/killed
FAIL_AT=$((logs * 2 / 3)) FAIL_AS=hang LD_PRELOAD=$dir/fail_io.so "$SUROGATE" pt "$dir/run.yaml" output_dir="$out" 2> "$dir/err" &
pid=$!
for _ in $(seq 600); do
    size=$(stat -c %s "$out/metrics.jsonl" 2> /dev/null)
    sleep 0.3
    [ -d "$out/checkpoint-8" ] && [ "$size" = "$(stat -c %s "$out/metrics.jsonl")" ] && break
done
kill -9 $pid
wait $pid 2> /dev/null
check "it was killed before its end" [ ! -e "$out/model.safetensors" -a -d "$out/checkpoint-8" ]
tells "killed" "$out" "1 files, whole"
run pt "$dir/run.yaml" output_dir="$out"
check "it goes on: $(tail -1 "$dir/err")" [ "$status" = 0 ]
tells "goes on" "$out" "2 files, whole"

# --- a disk that fails for a while, and one that stays full
for how in EIO ENOSPC short; do
    out=$dir/$how
    FAIL_UNDER=$out/runs/ FAIL_CALLS=pwrite FAIL_AT=12 FAIL_FOR=3 FAIL_AS=$how LD_PRELOAD=$dir/fail_io.so run pt "$dir/run.yaml" output_dir="$out"
    check "$how: the run ends well: $(tail -1 "$dir/err")" [ "$status" = 0 ]
    tells "$how" "$out" "1 files, whole"
    said=1
    [ $how = short ] && said=0
    check "$how: it is said once: $(grep warning "$dir/err")" [ "$(grep -c "warning: cannot write $out/runs/events.*; its events are kept" "$dir/err")" = $said ]
done
out=$dir/full
FAIL_UNDER=$out/runs/ FAIL_CALLS=pwrite FAIL_AT=12 FAIL_FOR=1000 FAIL_AS=ENOSPC LD_PRELOAD=$dir/fail_io.so run pt "$dir/run.yaml" output_dir="$out"
check "it stays full: the run ends well: $(tail -1 "$dir/err")" [ "$status" = 0 -a -s "$out/model.safetensors" ]
check "what is lost is said: $(grep warning "$dir/err")" [ "$(grep -c "warning: cannot write $out/runs/events.*; its last events are lost" "$dir/err")" = 1 ]
head -10 "$out/metrics.jsonl" > "$dir/head" && mv "$dir/head" "$out/metrics.jsonl"
tells "the events before it" "$out" "1 files, whole"
finish
