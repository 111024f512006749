#!/bin/bash
# Messages of a run and of other commands about a model folder whose weights or settings aren't used unchanged.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
make_text_run "max_steps: 2" "dataset_cache_dir: $dir/cache"
sed -i /model_dtype/d "$dir/run.yaml"
# says NAME TEXT: the text is on stderr once, and in the report.
says() {
    check "$1: $(cat "$dir/err")" [ "$status" = 0 -a "$(grep -cF -e "$2" "$dir/err")" = 1 ]
    check "$1: in the report" grep -qF -e "$2" "$dir/out_$1/report.html"
}
train() {
    local name=$1
    shift
    run pt "$dir/run.yaml" output_dir="$dir/out_$name" "$@"
}

# --- dtypes
num=$(grep -ao '"dtype"' "$dir/model/model.safetensors" | wc -l)
train fp32
says fp32 "$dir/model: $num of $num tensors are fp32; they are rounded to bf16 (model_dtype: fp32 keeps more)"
train kept model_dtype=fp32
check "no word where nothing is converted" [ "$status" = 0 -a "$(grep -c 'tensors are' "$dir/err")" = 0 ]
train masters master_dtype=fp32
check "nor where masters are what is stored" [ "$status" = 0 -a "$(grep -c 'tensors are' "$dir/err")" = 0 ]
train narrow model_dtype=fp32 master_dtype=bf16
says narrow "$dir/model: $num of $num tensors are fp32; they are rounded to bf16 (master_dtype: fp32 keeps more)"
train scratch from_scratch=true
check "nor where nothing is read" [ "$status" = 0 -a "$(grep -c 'tensors are' "$dir/err")" = 0 ]
if command -v python3 > /dev/null; then
    # half OUT VALUE: makes the model in fp16, with the first value of its last tensor replaced
    half() {
        cp -r "$dir/model" "$dir/$1"
        sed -i 's/float32/float16/' "$dir/$1/config.json"
        python3 - "$dir/$1/model.safetensors" "$2" << 'END'
import json, struct, sys
path, value = sys.argv[1], float(sys.argv[2])
data = open(path, "rb").read()
size = struct.unpack("<Q", data[:8])[0]
header, body = json.loads(data[8:8 + size]), data[8 + size:]
for info in header.values():
    if "dtype" in info:
        info["dtype"] = "F16"
        info["data_offsets"] = [o // 2 for o in info["data_offsets"]]
values = list(struct.unpack("<%df" % (len(body) // 4), body))
values[-1] = value
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
open(path, "wb").write(struct.pack("<Q", len(text)) + text + struct.pack("<%de" % len(values), *values))
END
    }
    half half 65504
    train half model="$dir/half"
    says half "$dir/half: $num of $num tensors are fp16; they are rounded to bf16 (model_dtype: fp32 keeps more)"
    train half_kept model="$dir/half" model_dtype=fp32
    says half_kept "$dir/half: $num of $num tensors are fp16; they are stored as fp32, which keeps every value"
    run eval "$dir/half" --text "$dir/text.txt"
    check "eval: $(cat "$dir/err")" grep -q "$num of $num tensors are fp16; they are rounded to bf16$" "$dir/err"
    half lost inf
    refused "an infinity in fp16" 2 "holds an infinity at" "F16 ends at 65504" -- eval "$dir/lost" --text "$dir/text.txt"

    # --- unaligned tensors, as in openai-community/gpt2's own file and in MLX's files
    cp -r "$dir/model" "$dir/shifted"
    python3 - "$dir/shifted/model.safetensors" << 'END'
import struct, sys
data = open(sys.argv[1], "rb").read()
size = struct.unpack("<Q", data[:8])[0]
header = data[8:8 + size].rstrip()
header += b" " * ((1 - len(header)) % 8)
open(sys.argv[1], "wb").write(struct.pack("<Q", len(header)) + header + data[8 + size:])
END
    train shifted model="$dir/shifted" model_dtype=fp32
    check "unaligned: $(cat "$dir/err")" cmp "$dir/out_kept/model.safetensors" "$dir/out_shifted/model.safetensors"
    head -c -5 "$dir/shifted/model.safetensors" > "$dir/half/model.safetensors"
    refused "cut short" 2 "the file is cut short; download or copy it again" -- eval "$dir/half" --text "$dir/text.txt"
    (cat "$dir/shifted/model.safetensors" && echo more) > "$dir/half/model.safetensors"
    refused "too long" 2 "the last 5 bytes belong to no tensor: the file is longer than its header says" -- eval "$dir/half" --text "$dir/text.txt"
else
    skip "fp16, unaligned tensors: no python3"
fi

# --- attention_dropout
cp -r "$dir/model" "$dir/dropping"
sed -i -E 's/"attention_dropout": 0(\.0)?/"attention_dropout": 0.25/' "$dir/dropping/config.json"
train dropping model="$dir/dropping"
says dropping "warning: $dir/dropping/config.json: attention_dropout 0.25 of config.json is ignored"
run eval "$dir/dropping" --text "$dir/text.txt"
check "an evaluation drops nothing anyway" [ "$(grep -c attention_dropout "$dir/err")" = 0 ]

# --- a head that config.json says is tied, but isn't
rm -rf "$dir/model"
make_tiny max_position_embeddings=128 tie_word_embeddings=false
sed 's/"tie_word_embeddings": false/"tie_word_embeddings": true/' "$dir/model/config.json" > "$dir/config.json"
cp -r "$dir/model" "$dir/headed" && cp "$dir/config.json" "$dir/headed"
told="warning: $dir/headed: config.json says tie_word_embeddings: true, but lm_head.weight is stored and differs from the embedding"
train headed model="$dir/headed"
says headed "$told"
train untied
check "it trains as an untied model does" cmp "$dir/out_untied/model.safetensors" "$dir/out_headed/model.safetensors"
check "and is saved as one" grep -q '"tie_word_embeddings": false' "$dir/out_headed/config.json"
train adapted model="$dir/headed" lora=true lora_rank=2 merge_adapter=true
says adapted "$told"
check "merged as one" grep -q '"tie_word_embeddings": false' "$dir/out_adapted/merged/config.json"
for model in headed model; do
    run generate "$dir/$model" --prompt line --max-tokens 20 --temperature 0
    cp "$dir/out" "$dir/$model.text"
    cp "$dir/err" "$dir/$model.err"
done
check "the same text: $(cat "$dir/headed.text")" cmp "$dir/headed.text" "$dir/model.text"
check "generate says it: $(cat "$dir/headed.err")" grep -qF -e "$told" "$dir/headed.err"
run plan "$dir/run.yaml" model="$dir/headed"
check "plan: $(cat "$dir/err")" [ "$status" = 0 -a "$(grep parameters "$dir/out")" = "$("$SUROGATE" plan "$dir/run.yaml" 2> "$dir/null" | grep parameters)" ]
finish
