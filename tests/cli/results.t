#!/bin/bash
# What scripts rely on: results only on stdout, in a fixed layout.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
make_text_run "output_dir: $dir/out" "max_steps: 3"
python=$(command -v python3 || true)
head -c 700 "$dir/text.txt" > "$dir/short.txt"

run encode "$dir/model" --text "$dir/short.txt" --json
check "encode prints {\"ids\":[...]}" grep -qE '^\{"ids":\[[0-9,]+\]\}$' "$dir/out"
ids=$(sed 's/.*\[//; s/\].*//; s/,/ /g' "$dir/out")
run encode "$dir/model" --text "$dir/short.txt"
check "encode without --json prints the same ids" [ "$(cat "$dir/out")" = "$ids" ]

run eval "$dir/model" --text "$dir/short.txt" --json
if [ -n "$python" ]; then
    check "eval: one loss for every id after the first, and their mean" "$python" -c "
import json, sys
r = json.load(open('$dir/out'))
assert list(r) == ['ids', 'losses', 'mean'] and len(r['losses']) == len(r['ids']) - 1 > 200
assert abs(sum(r['losses']) / len(r['losses']) - r['mean']) < 1e-6
assert r['ids'] == [int(i) for i in '$ids'.split()]"
fi
cp "$dir/out" "$dir/eval1"
run eval "$dir/model" --text "$dir/short.txt" --json --threads 1
check "eval: the same for one thread" cmp "$dir/eval1" "$dir/out"

run generate "$dir/model" --prompt "line 1 says" --max-tokens 40 --temperature 0 --ignore-eos
check "generate ends well and prints something" [ "$status" = 0 -a -s "$dir/out" ]
cp "$dir/out" "$dir/text1"
run generate "$dir/model" --prompt "line 1 says" --max-tokens 40 --temperature 0 --ignore-eos --threads 1
check "generate: the same again" cmp "$dir/text1" "$dir/out"
check "generate: the prompt isn't printed" [ "$(grep -c 'line 1 says' "$dir/text1")" = 0 ]
run generate "$dir/model" --prompt "line" --max-tokens 20 --temperature 1 --seed 5
cp "$dir/out" "$dir/text1"
run generate "$dir/model" --prompt "line" --max-tokens 20 --temperature 1 --seed 5
check "generate: a seed decides the choices" cmp "$dir/text1" "$dir/out"
run generate "$dir/model" --prompt "line" --max-tokens 20 --temperature 1 --seed 6
check "generate: another seed, another text" [ "$(cat "$dir/text1")" != "$(cat "$dir/out")" ]

run plan "$dir/run.yaml" --json
check "plan ends well" [ "$status" = 0 ]
[ -n "$python" ] && check "plan: regions sum up" "$python" -c "
import json
p = json.load(open('$dir/out'))
assert sum(p['regions'].values()) == p['total_bytes'] and p['fits'] is True and p['checkpoint_bytes'] > 0"
run plan --config "$dir/run.yaml" per_device_train_batch_size=8 --gpu h200
check "plan for a GPU that isn't here" grep -q "H200" "$dir/out"
run explain "$dir/run.yaml" device=cpu
check "explain: no limit where none is known" [ "$(awk 'NR > 1 && NF > 5 && $2 != "-"' "$dir/out" | grep -c '^ *[0-9]')" = 0 ]
check "explain: nor in sum" [ "$(grep -c 'at the limit' "$dir/out")" = 0 ]
run explain "$dir/run.yaml" --gpu h200
check "explain: a limit for a GPU" grep -q "at the limit [0-9.]* ms" "$dir/out"
run ir "$dir/run.yaml" --after bind
check "ir prints a graph" grep -q '^graph "micro_first"' "$dir/out"
run ir "$dir/run.yaml" --program optimizer
check "ir prints the optimizer" grep -q "adamw" "$dir/out"

run explain "$dir/run.yaml" --gpu h200
check "explain: a line a launch, their limit in all" grep -qE '^micro_first: [0-9]+ launches, .* at the limit [0-9.]+ ms, expected [0-9.]+ ms \(rates measured on this GPU\)$' "$dir/out"
check "explain: what a layer is made of" grep -qE '^layer [0-9]+: [0-9]+ launches: .*linear x [0-9]+, .*swiglu' "$dir/out"
check "explain: each launch once" [ "$(grep -cE '^ *[0-9]+ +[0-9.]+ +[0-9.]+ +[0-9.]+ ' "$dir/out")" = "$(sed -n 's/^micro_first: \([0-9]*\) launches.*/\1/p' "$dir/out")" ]
run new --arch qwen3-0.6b "$dir/large"
printf '%s\n' "model: $dir/large" 'model_dtype: bf16' > "$dir/large.yaml"
# chunks_for GPU: in how many chunks four such GPUs gather the weights.
chunks_for() {
    run explain "$dir/large.yaml" gpus=4 --gpu "$1"
    sed -nE 's/^bucket 0: 1136.[0-9]+ MiB of bf16 cross in ([0-9]+) chunks of at most 296.75 MiB$/\1/p' "$dir/out"
}
slow=$(chunks_for rtx4090)
fast=$(chunks_for h200)
check "explain: the links' speed" grep -qE '^links: [0-9]+ GB/s and [0-9]+ us a collective: half of that speed from [0-9.]+ MiB on, nine tenths from [0-9.]+ MiB$' "$dir/out"
check "explain: chunks of about a sixteenth where links are fast, smaller ones where small ones cross as well: $fast, $slow" \
    [ "${fast:-0}" -ge 10 -a "${fast:-99}" -le 16 -a "${slow:-0}" -gt 32 ]
run explain "$dir/large.yaml" --gpu h200
check "explain: nothing of it with one rank" [ "$(grep -cE '^(bucket|links)' "$dir/out")" = 0 ]
run explain "$dir/run.yaml" --measure --program optimizer device=cpu
check "explain --measure: a time for each" grep -qE 'adamw' "$dir/out"
run explain "$dir/run.yaml" --measure --program decode device=cpu
check "explain --measure: what a step doesn't run" [ "$status" = 2 ]
run bench ops "$dir/run.yaml" device=cpu --steps 2 --json
[ -n "$python" ] && check "bench ops: one object, the ops' times sum up" "$python" -c "
import json
b = json.load(open('$dir/out'))
assert b['tokens_per_second'] > 0 and abs(sum(o['ms'] for o in b['ops']) - b['ops_ms']) < 0.01 * len(b['ops'])
assert {'linear', 'adamw'} <= {o['op'] for o in b['ops']}"
run bench decoder --device cpu --vocab 300 --dim 32 --batch 3 --strategy top_p --batches 4 --json
[ -n "$python" ] && check "bench decoder: one object" "$python" -c "
import json, sys
b = json.load(open(sys.argv[1]))
assert 0 < b['min_us'] <= b['mean_us'] <= b['max_us'] and b['moved'] == 303 * 32 * 4 < b['bytes']" "$dir/out"
for words in "--dtype fp8" "--hidden int8" "--strategy beam" "--batch 0" "--batches 0" "--vocab 0" "extra"; do
    # shellcheck disable=SC2086
    run bench decoder --device cpu --vocab 300 --dim 32 $words
    check "bench decoder $words is refused" [ $status = 2 ]
done
run bench text tests/fixtures/families/qwen3 --device cpu --rows 1,4 --prompt 5 --tokens 3 --adapters 2 --json
[ -n "$python" ] && check "bench text: a line for each number of rows, with adapters" "$python" -c "
import json
lines = [json.loads(line) for line in open('$dir/out')]
assert [line['rows'] for line in lines] == [1, 4] and all(line['step_ms'] > 0 for line in lines), lines"
run bench text tests/fixtures/families/qwen3 --device cpu --rows 2 --prompt 40 --context 100 --prefill --ops --json
[ -n "$python" ] && check "bench text: prompts beside the forward pass" "$python" -c "
import json
row = json.load(open('$dir/out'))
assert row['rows'] == 2 and row['prompt'] == 40 and row['prefill_ms'] > 0 and row['forward_ms'] > 0 and row['ops']"
run bench text tests/fixtures/families/qwen3 --device cpu --context 1000
check "bench text: more room than the model has positions" [ $status = 2 ]
run bench text tests/fixtures/families/qwen3 --device cpu --adapters 65
check "bench text: too many adapters" [ $status = 2 ]
run bench "$dir/run.yaml" device=cpu --steps 2
check "bench: for people" grep -qE '^speed +[0-9]+ tokens/s' "$dir/out"
run bench "$dir/run.yaml" device=cpu --steps 2 --json gpus=2
[ -n "$python" ] && check "bench of two ranks: the loss falls" "$python" -c "
import json
d = json.load(open('$dir/out'))
assert d['gpus'] == 2 and d['loss'] < d['first_loss'], d
assert d['comm_ms'] > 0 and d['exposed_ms'] == d['comm_ms'], d"

run pt "$dir/run.yaml" --output_dir="$dir/a" max_steps=2
check "pt takes overrides, prints nothing on stdout" [ "$status" = 0 -a ! -s "$dir/out" ]
check "pt: a line a step" [ "$(grep -c '"log":"step"' "$dir/a/metrics.jsonl")" = 2 ]
check "pt: report and state" [ -s "$dir/a/report.html" -a -s "$dir/a/trainer_state.json" -a -s "$dir/a/config.json" ]
run eval "$dir/model" --text "$dir/short.txt" --json
cp "$dir/out" "$dir/plain.json"
gzip -k "$dir/short.txt"
run eval "$dir/model" --text "$dir/short.txt.gz" --json
check "eval reads a compressed text" cmp "$dir/plain.json" "$dir/out"
run tokenizer train --vocab-size 300 --out "$dir/learnt" "$dir/text.txt"
gzip -k "$dir/text.txt"
names=$(seq -s, -f '<|r%g|>' 100)
run tokenizer train --vocab-size 500 --out "$dir/special" --special-tokens "$names" --eos-token '<|end|>' "$dir/text.txt"
check "all special tokens are there: $(cat "$dir/err")" [ "$(grep -o '"special":true' "$dir/special/tokenizer.json" | wc -l)" = 101 ]
run tokenizer train --vocab-size 300 --out "$dir/unpacked" "$dir/text.txt.gz"
check "a tokenizer learns from what is packed: $(cat "$dir/err")" cmp "$dir/learnt/tokenizer.json" "$dir/unpacked/tokenizer.json"
printf 'PAR1 rows PAR1' > "$dir/rows.parquet"
printf 'a\0b' > "$dir/nul.txt"
for command in "eval $dir/model --text" "tokenizer train --vocab-size 300 --out $dir/none"; do
    refused "${command%% *} of parquet" 2 "rows.parquet: a parquet file, expected text" -- $command "$dir/rows.parquet"
    refused "${command%% *} of NUL bytes" 2 "nul.txt: a NUL byte at offset 1" -- $command "$dir/nul.txt"
done
rm "$dir"/*.gz
cp "$dir/short.txt" "$dir/rows.jsonl"
run eval "$dir/model" --text "$dir/rows.jsonl"
check "eval of rows: a warning" grep -q "^warning: .*rows.jsonl is read as plain text" "$dir/err"
run eval "$dir/a" --text "$dir/short.txt"
check "the trained folder evaluates" grep -q "bits per byte" "$dir/out"

grep -v sequence_len "$dir/run.yaml" > "$dir/default.yaml"
run plan "$dir/default.yaml"
check "the default sequence_len is the model's where that is less" [ "$status" = 0 ]
for threads in 1 64 128; do run pt "$dir/run.yaml" output_dir="$dir/t$threads" threads=$threads; done
check "as many threads as there may be" cmp "$dir/t1/model.safetensors" "$dir/t128/model.safetensors"
check "64 threads" cmp "$dir/t1/model.safetensors" "$dir/t64/model.safetensors"

run pt "$dir/run.yaml" output_dir="$dir/lora" lora=true lora_rank=4 learning_rate=0.02 max_steps=5
check "LoRA trains" [ "$status" = 0 -a -s "$dir/lora/adapter_model.safetensors" ]
refused "merge of what is no adapter" 2 "a holds no adapter" -- merge "$dir/model" "$dir/a" "$dir/none"
refused "merge of an adapter that isn't there" 2 "nonesuch: there is no such folder" -- merge "$dir/model" "$dir/nonesuch" "$dir/none"
run merge "$dir/model" "$dir/lora" "$dir/merged"
difference=$(sed -n 's/^largest logit difference \([^ ]*\).*/\1/p' "$dir/out")
check "merge: logit difference $difference" awk "BEGIN { exit !(\"$difference\" != \"\" && $difference < 1e-5) }"
run eval "$dir/merged" --text "$dir/short.txt"
cp "$dir/out" "$dir/merged.txt"
# --- a merge that is refused leaves no model, and one that was killed can be run again
cp -r "$dir/lora" "$dir/ranked"
sed -i 's/"r": 4/"r": 8/' "$dir/ranked/adapter_config.json"
refused "merge of another rank than the tensors have" 2 "the rank of" "is 8; its tensors" -- merge "$dir/model" "$dir/ranked" "$dir/none"
rm "$dir/ranked/adapter_model.safetensors"
refused "merge of an adapter without tensors" 2 "ranked holds no" -- merge "$dir/model" "$dir/ranked" "$dir/none"
files=$(ls -A "$dir/ranked")
refused "merge into an adapter's folder" 2 "ranked holds an adapter; name a new folder" -- merge "$dir/model" "$dir/lora" "$dir/ranked"
check "nothing is written into it" [ "$(ls -A "$dir/ranked")" = "$files" ]
refused "merge into a model's folder" 2 "merged already holds a model" -- merge "$dir/model" "$dir/lora" "$dir/merged"
check "nothing stays of a refusal: $(ls -dA "$dir"/none "$dir"/.none* 2> /dev/null)" [ ! -e "$dir/none" -a ! -e "$dir/.none.partial" ]
mkdir -p "$dir/.again.partial" && cp "$dir/merged/model.safetensors" "$dir/merged/config.json" "$dir/.again.partial" # as a killed process leaves it
run merge "$dir/model" "$dir/lora" "$dir/again"
check "a merge that was cut is run again: $(cat "$dir/err")" cmp "$dir/merged/model.safetensors" "$dir/again/model.safetensors"
check "nothing hidden stays" [ ! -e "$dir/.again.partial" ]
if command -v python3 > /dev/null; then
    # huge ADAPTER: multiplies its last tensor by 1e38, so that logits aren't finite
    cp -r "$dir/lora" "$dir/huge"
    python3 - "$dir/huge/adapter_model.safetensors" << 'END'
import struct, sys
data = open(sys.argv[1], "rb").read()
size = 8 + struct.unpack("<Q", data[:8])[0]
open(sys.argv[1], "wb").write(data[:size] + struct.pack("<f", 1e38) * ((len(data) - size) // 4))
END
    sed -i 's/"lora_alpha": [0-9.]*/"lora_alpha": 1e-36/' "$dir/huge/adapter_config.json"
    refused "a merge whose logits are no numbers" 2 "which is no finite number" -- merge "$dir/model" "$dir/huge" "$dir/none"
    python3 - "$dir/huge/adapter_model.safetensors" << 'END'
import struct, sys
data = open(sys.argv[1], "rb").read()
size = 8 + struct.unpack("<Q", data[:8])[0]
open(sys.argv[1], "wb").write(data[:size] + struct.pack("<f", 1e18) * ((len(data) - size) // 4))
END
    refused "logits that are no numbers" 2 "compute a logit of" -- merge "$dir/model" "$dir/huge" "$dir/none"
    check "no model is left" [ ! -e "$dir/none" -a ! -e "$dir/.none.partial" ]
else
    skip "merge: no python3"
fi
# --- new and tokenizer train
mkdir "$dir/.newborn.partial" && cp "$dir/model/config.json" "$dir/.newborn.partial"
run new --arch qwen3-tiny --random "$dir/newborn" vocab_size=300
check "new after a kill: $(cat "$dir/err")" [ "$status" = 0 -a -s "$dir/newborn/model.safetensors" -a ! -e "$dir/.newborn.partial" ]
refused "new with a wrong setting" 2 "$dir/none/config.json: hidden_size" -- new --arch qwen3-tiny --random "$dir/none" hidden_size=0
check "new: nothing stays of a refusal" [ ! -e "$dir/none" -a ! -e "$dir/.none.partial" ]
mkdir "$dir/.words.partial" && cp "$dir/learnt/tokenizer.json" "$dir/.words.partial"
run tokenizer train --vocab-size 300 --out "$dir/words" "$dir/text.txt"
check "tokenizer train after a kill: $(cat "$dir/err")" cmp "$dir/learnt/tokenizer.json" "$dir/words/tokenizer.json"
check "nothing hidden stays of it" [ ! -e "$dir/.words.partial" ]
cp -r "$dir/model" "$dir/other"
run eval "$dir/other" --adapter "$dir/lora" --text "$dir/short.txt"
check "an adapter of another base is noticed" grep -q "lora was trained on .*model, not on .*other" "$dir/err"
refused "generate: --top-k below 0" 2 "--top-k -3: expected at least 0" -- generate "$dir/model" --prompt x --top-k -3
run eval "$dir/lora" --text "$dir/short.txt"
check "an adapter folder evaluates as the merged model does" cmp "$dir/merged.txt" "$dir/out"
run eval "$dir/model" --text "$dir/short.txt"
check "and not as the base does" [ "$(cat "$dir/merged.txt")" != "$(cat "$dir/out")" ]

run version
check "version" grep -qE "^surogate [0-9].*, built with (gcc|clang) [0-9]" "$dir/out"
run help keys lora_r
check "help keys: one, by another tool's name" grep -q "^lora_rank (integer, default 16)" "$dir/out"
run help keys
check "help keys: all" [ "$(grep -c '^  [a-z_]* ' "$dir/out")" -gt 80 ]
run help keys --markdown
check "help keys --markdown is the reference" cmp "$dir/out" docs/reference/config.md
run help plan
check "help of a command" grep -q "^surogate plan run.yaml" "$dir/out"
run new --help
check "new says that keys of config.json may follow" grep -q "^surogate new --arch NAME DIR \[key=value" "$dir/out"
run explain --help
cp "$dir/out" "$dir/explain_help"
run plan "$dir/run.yaml" gpus=2 gradient_accumulation_steps=2
programs=$(sed -nE 's/^  ([a-z_]+) +[0-9]+ +[0-9.]+ +.*B  .*/\1/p' "$dir/out")
check "plan shows programs of ranks: $programs" grep -qw gather <<< "$programs"
for program in $programs; do
    check "explain --help names $program" grep -qw "$program" "$dir/explain_help"
done
run new --arch qwen3-tiny --tokenizer "$dir/tokenizer" "$dir/fresh"
check "new takes vocabulary and special ids from the tokenizer" grep -q '"vocab_size": 278' "$dir/fresh/config.json"
run --help
check "help names every command" [ "$(grep -cE '^  surogate ' "$dir/out")" -ge 11 ]

shared=${SUROGATE_TEST_SHARED:-../shared}/data/models/stories260K
if [ -d "$shared" ] && [ -n "$python" ]; then
    for text in 1 3; do
        run eval "$shared/hf" --text "$shared/text_$text.txt" --json
        check "stories260K: losses of text_$text" "$python" -c "
import json
got, want = json.load(open('$dir/out')), json.load(open('$shared/text_$text.losses.json'))
n = len(want['ids'])
assert got['ids'][:n] == want['ids']
worst = max(abs(a - b) for a, b in zip(got['losses'], want['token_losses']))
assert worst < 1e-4, worst"
    done
    run generate "$shared/hf" --prompt "" --max-tokens 256 --temperature 0
    check "stories260K: 256 greedy tokens" cmp "$dir/out" "$shared/greedy_256.txt"
else
    skip "stories260K isn't here"
fi
finish
