#!/bin/bash
# surogate report: several runs on one page, with the data of each run's metrics.jsonl and run.json.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
make_text_run "dataset_cache_dir: $dir/cache" "max_steps: 6" "validation_split_ratio: 0.2" "eval_steps: 2"
for rate in 1e-3 2e-3; do
    run pt "$dir/run.yaml" output_dir="$dir/$rate/out" learning_rate=$rate
    check "a run: $(tail -1 "$dir/err")" [ "$status" = 0 ]
done
cp -r "$dir/1e-3/out" "$dir/torn"
sed -i 's/"finished": true/"finished": false/' "$dir/torn/run.json"
printf '{"log":"step","st' >> "$dir/torn/metrics.jsonl"
page=$dir/page.html
run report "$dir/1e-3/out" "$dir/2e-3/out/" "$dir/torn" --out "$page"
check "a page of three: $(cat "$dir/err")" [ "$status" = 0 -a -s "$page" ]
check "nothing else is said: $(cat "$dir/err")" [ "$(cat "$dir/err")" = "wrote $page" ]
python3 - "$page" "$dir" <<'PY' > "$dir/said" 2>&1
import json, re, sys
page, folder = open(sys.argv[1]).read(), sys.argv[2]
runs = json.loads(re.search(r"const D = (\{.*\});\n", page).group(1))["runs"]
paths = [folder + "/1e-3/out", folder + "/2e-3/out", folder + "/torn"]
assert [run["name"] for run in runs] == [folder + "/1e-3/out", folder + "/2e-3/out", "torn"], [run["name"] for run in runs]
assert [run["finished"] for run in runs] == [True, True, False]
for run, path in zip(runs, paths):
    lines = [json.loads(line) for line in open(path + "/metrics.jsonl") if line.endswith("\n")]
    steps = [line for line in lines if line["log"] == "step"]
    assert [s[:2] for s in run["steps"]] == [[s["step"], s["loss"]] for s in steps] and len(steps) == 6
    assert [s[3] for s in run["steps"]] == [s["lr"] for s in steps]
    assert run["evals"] == [[e["step"], e["loss"]] for e in lines if e["log"] == "eval"] and len(run["evals"]) == 3
assert "learning_rate: 0.001\n" in runs[0]["settings"] and "learning_rate: 0.002\n" in runs[1]["settings"]
assert "http" not in re.sub(r"const D = .*", "", page), "it asks for something elsewhere"
PY
check "its data: $(cat "$dir/said")" [ ! -s "$dir/said" ]
run pt "$dir/run.yaml" output_dir="$dir/more" learning_rate=1e-3 datasets.0.weight=0.5 datasets.1.path="$dir/text.txt"
run report "$dir/1e-3/out" "$dir/more" --out "$page"
browser=$(command -v chromium chromium-browser google-chrome | head -1)
if [ -n "$browser" ]; then
    timeout 60 "$browser" --headless --no-sandbox --disable-gpu --user-data-dir="$dir/browser" --dump-dom "file://$page" 2> /dev/null |
        grep -o '<h2>Settings that differ.*' | sed 's/<tr>/\n<tr>/g; s/<[^>]*>/ /g; s/  */ /g' | grep '^ datasets' > "$dir/shown"
    check "a row for each data set that differs: $(cat "$dir/shown")" [ "$(cat "$dir/shown")" = " datasets.0 $dir/text.txt weight: 1.0 $dir/text.txt weight: 0.5 
 datasets.1 – $dir/text.txt " ]
else
    skip "no Chromium here, which shows the page"
fi
run report "$dir/1e-3/out" --out "$page"
check "a page is written anew, of one run too" [ "$status" = 0 ]
check "that one" [ "$(grep -c 'torn' "$page")" = 0 ]
printf '%s\n' '{"log":"step","step":1,"loss":null}' 'rubbish' > "$dir/torn/metrics.jsonl"
run report "$dir/torn" --out "$page"
check "a bad line is counted: $(cat "$dir/err")" grep -q "torn/metrics.jsonl: 1 lines that can't be read" "$dir/err"
echo mine > "$dir/mine.html"
refused "another file" 2 "mine.html is there already and is no page of this command" -- report "$dir/torn" --out "$dir/mine.html"
check "it stays" [ "$(cat "$dir/mine.html")" = mine ]
refused "no runs" 2 "no runs are named" -- report
refused "no run" 2 "$dir/model/metrics.jsonl: No such file or directory; expected the output_dir of a run" -- report "$dir/model" --out "$page"
: > "$dir/torn/metrics.jsonl"
refused "an empty log" 2 "no line of a step" -- report "$dir/torn" --out "$page"
mapfile -t many < <(yes "$dir/1e-3/out" | head -33)
refused "too many" 2 "33 runs; at most 32" -- report "${many[@]}" --out "$page"
finish
