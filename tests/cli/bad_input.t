#!/bin/bash
# Bad input: one clear message (what, where, what to do), the right exit status, nothing on stdout, no file changed.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
make_tiny max_position_embeddings=128
python=$(command -v python3 || true)

cat > "$dir/run.yaml" << END
model: $dir/model
output_dir: $dir/new/out
datasets: [{path: $dir/text.txt}]
sequence_len: 32
max_steps: 4
model_dtype: fp32
END

# The command is refused, and the output folder wasn't made.
untouched() {
    refused "$@"
    if [ -e "$dir/new" ]; then
        fail "$1: it left something: $(find "$dir/new" | head -3 | tr '\n' ' ')"
        rm -rf "$dir/new"
    fi
}
# with NAME TEXT: a run file like run.yaml, with lines added.
with() { { cat "$dir/run.yaml"; printf '%b\n' "$2"; } > "$dir/$1.yaml"; }
# model_with NAME: a copy of the tiny model.
model_with() { cp -r "$dir/model" "$dir/$1"; }

with typo 'learning_rat: 1'
untouched "unknown key" 2 "typo.yaml:7:1" "learning_rat" "learning_rate" -- pt "$dir/typo.yaml"
with many 'learning_rat: 1\nlora_rank: many\nsequence_le: 3\nweight_decay: -1'
untouched "all problems at once" 2 "many.yaml:7:1" "many.yaml:8:" "many.yaml:9:" "many.yaml:10:" -- pt "$dir/many.yaml"
with type 'warmup_steps: soon'
untouched "wrong type" 2 "type.yaml:7:" "warmup_steps" "soon" -- pt "$dir/type.yaml"
with range 'learning_rate: -1'
untouched "out of range" 2 "range.yaml:7:" "learning_rate" -- pt "$dir/range.yaml"
with syntax 'lora: [1'
untouched "broken YAML" 2 "syntax.yaml:" -- pt "$dir/syntax.yaml"
untouched "unknown key on the command line" 2 "max_step" "max_steps" -- pt "$dir/run.yaml" max_step=3
untouched "missing run file" 2 "nothere.yaml" -- pt "$dir/nothere.yaml"
sed "s|$dir/model|$dir/nomodel|" "$dir/run.yaml" > "$dir/nomodel.yaml"
untouched "missing model of a run file" 2 "nomodel.yaml:1:8: $dir/nomodel" -- pt "$dir/nomodel.yaml"
sed "s|text.txt|nodata.txt|" "$dir/run.yaml" > "$dir/nodata.yaml"
untouched "missing dataset of a run file" 2 "nodata.yaml:3:19: $dir/nodata.txt" -- pt "$dir/nodata.yaml"
sed "s|sequence_len: 32|sequence_len: 129|" "$dir/run.yaml" > "$dir/length.yaml"
untouched "sequence_len of a run file" 2 "length.yaml:4:15: sequence_len is 129" -- pt "$dir/length.yaml"
with fusion 'fusion: [foo]'
untouched "fusion of a run file" 2 "fusion.yaml:7:9: fusion: there is none named foo; expected all, none, " -- pt "$dir/fusion.yaml"
with tokenizer "tokenizer: $dir/nothere"
untouched "tokenizer of a run file" 2 "tokenizer.yaml:7:12: $dir/nothere" -- pt "$dir/tokenizer.yaml"
with template 'chat_template: lama3'
untouched "an unknown chat template" 2 "template.yaml:7:16: chat_template: expected a Jinja text, the path of one, or a built-in one: chatml, llama3, " -- pt "$dir/template.yaml"
untouched "missing model" 2 "$dir/nomodel" -- pt "$dir/run.yaml" model="$dir/nomodel"
untouched "model without config" 2 "config.json" -- pt "$dir/run.yaml" model="$dir/tokenizer"
untouched "no model said" 2 "a run needs the key model: put \"model: ...\"" -- pt output_dir="$dir/new"
untouched "no datasets" 2 "training needs the key datasets: put" -- pt "$dir/run.yaml" 'datasets=[]'
refused "more checkpoints than a disk holds" 3 "too little disk in $dir/far" -- pt "$dir/run.yaml" output_dir="$dir/far" \
    max_steps=1000000000000 save_steps=1 save_total_limit=0
untouched "warm-up and cooldown longer than the run" 2 "the whole run has 4" -- pt "$dir/run.yaml" lr_scheduler_type=wsd \
    warmup_steps=9223372036854775807 cooldown_steps=9223372036854775807
run pt "$dir/run.yaml" save_steps=9223372036854775807 output_dir="$dir/far"
check "a checkpoint after more steps than there are: exit $status, $(tail -1 "$dir/err")" [ "$status" = 0 ]
untouched "missing dataset" 2 "$dir/nodata.txt" -- pt "$dir/run.yaml" datasets.0.path="$dir/nodata.txt"
: > "$dir/empty.txt"
untouched "empty dataset" 2 "empty.txt" -- pt "$dir/run.yaml" datasets.0.path="$dir/empty.txt"
untouched "sequence longer than the model's" 2 "sequence_len" "129" "128" -- pt "$dir/run.yaml" sequence_len=129
untouched "unknown fusion" 2 "residual_nor" "residual_norm" -- pt "$dir/run.yaml" 'fusion=[residual_nor]'
untouched "unknown LoRA target" 2 "qq_proj" "q_proj" -- pt "$dir/run.yaml" lora=true lora_rank=2 'lora_target_modules=[qq_proj]'
untouched "warm-up longer than the run" 2 "warm-up" "warmup_steps" -- pt "$dir/run.yaml" warmup_steps=9

model_with small
sed -i 's/"vocab_size": 300/"vocab_size": 260/' "$dir/small/config.json"
untouched "vocabulary larger than the embedding" 2 "260" "vocab_size" -- pt "$dir/run.yaml" model="$dir/small" from_scratch=true
model_with other
sed -i 's/Qwen3ForCausalLM/MambaForCausalLM/' "$dir/other/config.json"
untouched "unsupported architecture" 2 "config.json" "MambaForCausalLM" "Qwen3ForCausalLM" "examples/dsl" -- pt "$dir/run.yaml" model="$dir/other"
model_with rope
sed -i 's/"rope_scaling": null/"rope_scaling": {"rope_type": "twisted", "factor": 4.0}/' "$dir/rope/config.json"
untouched "unknown rope type" 2 "config.json" "rope_type" "twisted" -- pt "$dir/run.yaml" model="$dir/rope"
model_with bias
sed -i 's/"attention_bias": false/"attention_bias": true/' "$dir/bias/config.json"
untouched "a setting that isn't supported" 2 "config.json" "attention_bias" -- pt "$dir/run.yaml" model="$dir/bias"
model_with bias
sed -i 's/"attention_bias": false/"attention_bias": true/' "$dir/bias/config.json"
untouched "attention bias" 2 "config.json" "attention_bias" -- pt "$dir/run.yaml" model="$dir/bias"
model_with json
echo '{"a": }' > "$dir/json/config.json"
untouched "broken config.json" 2 "config.json:1:7" -- pt "$dir/run.yaml" model="$dir/json"
model_with noweights
rm "$dir/noweights/model.safetensors"
untouched "no weights" 2 "model.safetensors" "from_scratch" -- pt "$dir/run.yaml" model="$dir/noweights"
refused "no weights to ask" 2 "noweights has no weights" -- generate "$dir/noweights" --prompt a
check "which can't be made up there" [ "$(grep -c from_scratch "$dir/err")" = 0 ]
cp -r "$dir/noweights" "$dir/pickled" && echo PK > "$dir/pickled/pytorch_model.bin"
untouched "weights as a pickle" 2 "pickled has its weights as pytorch_model.bin only" "save_pretrained" "from_scratch" -- pt "$dir/run.yaml" model="$dir/pickled"
refused "a pickle to ask" 2 "pickled has its weights as pytorch_model.bin only" "save_pretrained" -- generate "$dir/pickled" --prompt a
mv "$dir/pickled/pytorch_model.bin" "$dir/pickled/pytorch_model-00001-of-00002.bin" && echo '{}' > "$dir/pickled/pytorch_model.bin.index.json"
untouched "weights as several pickles" 2 "pytorch_model.bin only" -- pt "$dir/run.yaml" model="$dir/pickled"
mkdir "$dir/pickled_adapter" && echo PK > "$dir/pickled_adapter/adapter_model.bin"
echo '{"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}' > "$dir/pickled_adapter/adapter_config.json"
refused "an adapter as a pickle" 2 "pickled_adapter has its weights as adapter_model.bin only" "PEFT" -- generate "$dir/model" --adapter "$dir/pickled_adapter" --prompt a
model_with wordless
rm "$dir/wordless/tokenizer.json"
untouched "no tokenizer" 2 "wordless: no tokenizer.json in this folder" "(key tokenizer)" -- pt "$dir/run.yaml" model="$dir/wordless"
touch "$dir/wordless/tokenizer.model"
untouched "a tokenizer of another kind" 2 "has its tokenizer as tokenizer.model only" "save_pretrained" -- pt "$dir/run.yaml" model="$dir/wordless"
for file in config.json tokenizer.json model.safetensors; do
    rm -rf "$dir/lfs"
    model_with lfs
    printf 'version https://git-lfs.github.com/spec/v1\noid sha256:%064d\nsize 123456\n' 7 > "$dir/lfs/$file"
    untouched "git-LFS pointer for $file" 2 "lfs/$file is a git-LFS pointer" "git lfs pull" -- pt "$dir/run.yaml" model="$dir/lfs"
    refused "generate with it, $file" 2 "lfs/$file is a git-LFS pointer" -- generate "$dir/lfs" --prompt a
done
rm -rf "$dir/lfs"
model_with lfs
printf 'version https://git-lfs.github.com/spec/v1\noid sha256:%064d\nsize 123456\n' 7 > "$dir/lfs/tokenizer.model"
run pt "$dir/run.yaml" model="$dir/lfs" output_dir="$dir/copied" max_steps=1
check "a pointer that nothing reads is copied: $(tail -1 "$dir/err")" cmp "$dir/lfs/tokenizer.model" "$dir/copied/tokenizer.model"
mkdir "$dir/adapter" && echo '{}' > "$dir/adapter/adapter_config.json"
untouched "an adapter as the model" 2 "is a LoRA adapter" "surogate merge" -- pt "$dir/run.yaml" model="$dir/adapter"
model_with cut
truncate -s -100 "$dir/cut/model.safetensors"
untouched "weights that were cut" 2 "cut/model.safetensors" -- pt "$dir/run.yaml" model="$dir/cut"
model_with wider
sed -i 's/"hidden_size": 32/"hidden_size": 64/' "$dir/wider/config.json"
untouched "config.json of another size" 2 "wider/model.safetensors" "shape" -- pt "$dir/run.yaml" model="$dir/wider"
refused "plan with it" 2 "wider/model.safetensors" "shape" -- plan "$dir/run.yaml" model="$dir/wider"
untouched "no epochs" 2 "num_epochs" -- pt "$dir/run.yaml" max_steps=-1 num_epochs=0
check "said before the data is read" [ "$(grep -c documents "$dir/err")" = 0 ]
run pt "$dir/run.yaml" output_dir="$dir/four"
check "a run of four steps" [ "$status" = 0 ]
untouched "a checkpoint beyond the end" 2 "checkpoint-4 is of step 4" "max_steps" -- pt "$dir/run.yaml" max_steps=2 resume_from_checkpoint="$dir/four/checkpoint-4"
check "said before the data is read" [ "$(grep -c documents "$dir/err")" = 0 ]
refused "short safetensors" 2 "cut/model.safetensors" -- eval "$dir/cut" --text "$dir/text.txt"
if [ -n "$python" ]; then
    # Header and data changed by hand: overlapping tensors, NaN, another shape, a missing and an unexpected tensor.
    damage() {
        model_with "$1"
        "$python" - "$dir/$1/model.safetensors" "$1" << 'END'
import json, struct, sys
path, what = sys.argv[1:]
data = open(path, "rb").read()
size = struct.unpack("<Q", data[:8])[0]
header, body = json.loads(data[8:8 + size]), bytearray(data[8 + size:])
names = [n for n in header if n != "__metadata__"]
norm = "model.norm.weight"
begin = header[norm]["data_offsets"][0]
if what == "overlap":
    header[norm]["data_offsets"] = [o - 4 if begin else o + 4 for o in header[norm]["data_offsets"]]
if what == "nan":
    body[begin + 8:begin + 12] = struct.pack("<f", float("nan"))
if what == "shape":
    header[norm]["shape"] = [4, header[norm]["shape"][0] // 4]
if what == "missing":
    header["model.nrm.weight"] = header.pop(norm)
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
open(path, "wb").write(struct.pack("<Q", len(text)) + text + body)
END
    }
    for what in overlap nan shape missing; do damage $what; done
    refused "overlapping tensors" 2 "overlap/model.safetensors" -- eval "$dir/overlap" --text "$dir/text.txt"
    untouched "NaN in a tensor of a run's model" 2 "nan/model.safetensors" "model.norm.weight" -- pt "$dir/run.yaml" model="$dir/nan"
    refused "NaN in a tensor" 2 "nan/model.safetensors" "model.norm.weight" -- eval "$dir/nan" --text "$dir/text.txt"
    refused "another shape" 2 "model.norm.weight" "shape" -- eval "$dir/shape" --text "$dir/text.txt"
    refused "missing and unexpected tensor" 2 "model.nrm.weight" -- eval "$dir/missing" --text "$dir/text.txt"
    for what in overlap:overlap/model.safetensors shape:model.norm.weight missing:model.nrm.weight; do
        untouched "weights before the data: ${what%:*}" 2 "${what#*:}" -- pt "$dir/run.yaml" model="$dir/${what%:*}"
        check "${what%:*}: nothing was tokenized" [ "$(grep -c documents "$dir/err")" = 0 ]
        refused "plan: ${what%:*}" 2 "${what#*:}" -- plan "$dir/run.yaml" model="$dir/${what%:*}"
    done
else
    skip "damaged safetensors: no python3"
fi

: > "$dir/file"
untouched "output_dir under a file" 2 "output_dir" "$dir/file" -- pt "$dir/run.yaml" output_dir="$dir/file/out"
if [ "$(id -u)" != 0 ]; then
    mkdir "$dir/locked" && chmod 500 "$dir/locked"
    untouched "unwritable output_dir" 2 "output_dir" -- pt "$dir/run.yaml" output_dir="$dir/locked/out"
else
    skip "unwritable output_dir: root writes everywhere"
fi
if [ -d /sys/kernel ] && ! mkdir /sys/surogate-test 2> /dev/null; then
    refused "new into a folder that can't be made" 2 "/sys/surogate-test" -- new --arch qwen3-tiny /sys/surogate-test
    refused "tokenizer train into one" 2 "/sys/surogate-test" -- tokenizer train --vocab-size 300 --out /sys/surogate-test "$dir/text.txt"
    refused "which comes before reading" 2 "/sys/surogate-test" -- tokenizer train --vocab-size 300 --out /sys/surogate-test "$dir/nowhere.txt"
else
    skip "unwritable folder: /sys is written to"
fi
untouched "too little memory" 3 "memory_limit" "activations" "no settings make it fit" -- pt "$dir/run.yaml" memory_limit=64KiB
untouched "memory for some settings" 3 "what fits:" "per_device_train_batch_size=1 gradient_accumulation_steps=64" "recompute_block=true" \
    -- pt "$dir/run.yaml" per_device_train_batch_size=64 gradient_accumulation_steps=1 memory_limit=8MiB
with memory 'memory_limit: 64KiB'
untouched "too little memory by a run file" 3 "memory.yaml:7:15: the plan takes" -- pt "$dir/memory.yaml"
untouched "a key as a flag" 2 "surogate pt has no flag --max-steps; write max_steps=5" -- pt "$dir/run.yaml" --max-steps 5
untouched "a flag that is no key" 2 "has no flag --fast" -- pt "$dir/run.yaml" --fast

if mkdir "$dir/disk" && mount -t tmpfs -o size=1M tmpfs "$dir/disk" 2> /dev/null; then
    refused "too little disk" 3 "disk" "save_total_limit" -- pt "$dir/run.yaml" output_dir="$dir/disk/out" dataset_cache_dir="$dir/cache" save_steps=1
    check "no step was made" [ ! -e "$dir/disk/out/metrics.jsonl" ]
    umount "$dir/disk"
else
    skip "too little disk: no tmpfs can be mounted"
fi

refused "unknown command" 2 "evall" "did you mean eval?" -- evall
refused "unknown flag" 2 "--txt" "--text" -- eval "$dir/model" --txt "$dir/text.txt"
refused "flag without value" 2 "--text" -- eval "$dir/model" --text
for command in "generate $dir/model --prompt a" "eval $dir/model --text $dir/text.txt"; do
    for threads in 4294967297 -1 2000; do
        refused "$threads threads: ${command%% *}" 2 "--threads $threads" "1 to 1024" -- $command --threads $threads
    done
done
refused "a GPU beyond int" 2 "--gpu 4294967296" -- doctor --gpu 4294967296
for tokens in 4294967297 9223372036854775807; do
    run generate "$dir/model" --prompt a --max-tokens $tokens --ignore-eos --temperature 0
    check "$tokens tokens go on until the context is full: exit $status, $(cat "$dir/err")" [ "$status" = 0 ]
    check "that is said" grep -q "the model's context is full" "$dir/err"
done
refused "a word where a number is needed" 2 "--max-tokens" "few" -- generate "$dir/model" --prompt a --max-tokens few
refused "a text where a file is wanted" 2 "--text takes a file" -- encode "$dir/model" --text "Hello world"
refused "missing text" 2 "$dir/no.txt" -- eval "$dir/model" --text "$dir/no.txt"
refused "unknown size" 2 "qwen3-tinny" "qwen3-tiny" -- new --arch qwen3-tinny "$dir/n"
refused "new over a model" 2 "$dir/model" -- new --arch qwen3-tiny "$dir/model"
refused "new with a setting the family hasn't" 2 "num_experts" -- new --arch qwen3-tiny "$dir/n" num_experts=4
check "nothing was left" [ ! -e "$dir/n" ]
refused "a tokenizer over another" 2 "$dir/model/tokenizer.json" "--force" -- tokenizer train --vocab-size 300 --out "$dir/model" "$dir/text.txt"
echo "some words" > "$dir/words.txt"
run tokenizer train --vocab-size 5000 --out "$dir/few" "$dir/words.txt"
check "few tokens: $(cat "$dir/err")" grep -qE "warning: [0-9]+ tokens were learnt of the 5000 asked for" "$dir/err"
run tokenizer train --vocab-size 260 --out "$dir/few" --force "$dir/words.txt"
check "--force: $(cat "$dir/err")" [ "$status" = 0 ]
check "as many as asked" [ "$(grep -c asked "$dir/err")" = 0 ]
refused "unknown pass" 2 "fus" "fuse" -- ir "$dir/run.yaml" --after fus
printf 'graph "g"\ninput x: f32[4]\ny: f32[4] = add(x, z)\n' > "$dir/broken.ir"
refused "broken text of a graph" 2 "broken.ir:3:20: unknown value z" -- ir "$dir/broken.ir" --pass clean
printf '# option recompute=blok\ngraph "g"\n' > "$dir/option.ir"
refused "a text's option" 2 "option.ir:1:10: option recompute: there is no part blok, did you mean block?" -- ir "$dir/option.ir" --pass clean
printf '\n# option recompute\ngraph "g"\n' > "$dir/option.ir"
refused "an option without a value" 2 "option.ir:2:10: expected # option NAME=VALUE" -- ir "$dir/option.ir" --pass clean
printf '# option lora_rank=1.5\ngraph "g"\n' > "$dir/option.ir"
refused "an option out of range" 2 "option.ir:1:10: option lora_rank: expected a whole number" -- ir "$dir/option.ir" --pass clean
refused "unknown pass over a text" 2 "there is no pass cleam, did you mean clean?" -- ir "$dir/option.ir" --pass cleam
printf 'graph "g"\ninput x: f32[4]\n' > "$dir/plain.ir"
refused "a pass that needs a model" 2 "pass bind" "--after bind" -- ir "$dir/plain.ir" --pass bind
refused "no text" 2 "nothere.ir" -- ir "$dir/nothere.ir" --pass clean
refused "a text and a run file" 2 "--pass goes without --after" -- ir "$dir/broken.ir" --pass clean --after fuse
refused "two texts" 2 "--pass reads the text of one graph" -- ir "$dir/broken.ir" "$dir/option.ir" --pass clean
refused "unknown GPU" 2 "h2000" -- plan "$dir/run.yaml" --gpu h2000
refused "the output is the model's own folder" 2 "the model's own folder" -- pt "$dir/run.yaml" output_dir="$dir/model"
refused "new: an unknown key" 2 "did you mean hidden_size" -- new --arch qwen3-tiny "$dir/new" hidden_sizes=3
refused "help: an unknown key" 2 "surogate help keys" -- help keys nothing
finish
