#!/bin/bash
# The optimizer's states in checkpoints, read by an independent reader: under their parameters' names, in their shapes. Runs resume from
# them with another fusion, batch, order of adapters or storage of moments. A damaged tensor is named.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
python=$(command -v python3 || true)
[ -n "$python" ] || { skip "python3 isn't here"; finish; }
make_text_run "per_device_train_batch_size: 2" "gradient_accumulation_steps: 2" "learning_rate: 1e-3" "lr_scheduler_type: constant" \
    "dataset_cache_dir: $dir/cache" "resume_from_checkpoint: true"

cat > "$dir/read.py" << 'END'
import json, struct, sys

def tensors(path):
    data = open(path, "rb").read()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    return {name: (h["dtype"], h["shape"], data[8 + size + h["data_offsets"][0]:8 + size + h["data_offsets"][1]]) for name, h in header.items()}

def values(tensor):
    dtype, _, raw = tensor
    if dtype == "F32": return struct.unpack("<%df" % (len(raw) // 4), raw)
    return struct.unpack("<%df" % (len(raw) // 2), b"".join(b"\0\0" + raw[i:i + 2] for i in range(0, len(raw), 2)))

def states(folder, model, *wanted):
    """Every tensor of the model's file has these states (name:dtype) in its shape, and nothing else is there. 8bit: codes and a scale for each 256
    of the tensors with 4096 elements, F32 of the others. normuon: a momentum and a second moment for each row, of matrices in blocks."""
    weights, found = tensors(folder + "/" + model), tensors(folder + "/optimizer.safetensors")
    def take(name, dtype, shape):
        have = found.pop(name)
        assert have[:2] == (dtype, shape), (name, have[:2], dtype, shape)
        assert dtype == "U8" or any(values(have)) or "embed" in name, name
    for name, (_, shape, raw) in weights.items():
        numel = shape[0] * (shape + [1])[1]
        for state in wanted:
            state, dtype = state.split(":")
            if dtype == "normuon" and ".layers." in name and len(shape) == 2:
                if state == "m": take(name + ".momentum", "F32", shape)
                else: take(name + ".row_v", "F32", shape[:1])
            elif dtype == "8bit" and numel >= 4096:
                take(name + "." + state, "U8", shape)
                take(name + "." + state + ".scale", "F32", [(numel + 255) // 256])
            else: take(name + "." + state, dtype.replace("8bit", "F32").replace("normuon", "F32"), shape)
    assert not found, sorted(found)

def kept(saved, copies):
    """The weights of one folder are the wider copies of another."""
    weights, found = tensors(saved + "/model.safetensors"), tensors(copies + "/optimizer.safetensors")
    for name, tensor in weights.items(): assert tensor == found[name + ".master"], name

def curve(a, b, most):
    """Two logs have the same steps, and the same losses to so much of them."""
    read = lambda path: [x for x in map(json.loads, open(path)) if "loss" in x]
    a, b = read(a + "/metrics.jsonl"), read(b + "/metrics.jsonl")
    assert [x["step"] for x in a] == [x["step"] for x in b] and len(a) >= 12, (len(a), len(b))
    for x, y in zip(a, b): assert abs(x["loss"] - y["loss"]) <= float(most) * abs(x["loss"]), (x["step"], x["loss"], y["loss"])

def flip(path, name):
    data = bytearray(open(path, "rb").read())
    size = struct.unpack("<Q", data[:8])[0]
    data[8 + size + json.loads(data[8:8 + size])[name]["data_offsets"][0] + 2] ^= 1
    open(path, "wb").write(data)

globals()[sys.argv[1]](*sys.argv[2:])
END
reads() {
    local name=$1
    shift
    if $python "$dir/read.py" "$@" 2> "$dir/err"; then pass; else fail "$name: $(tail -1 "$dir/err")"; fi
}
# train OUT STEPS KEYS...: trains, or resumes the run in OUT.
train() {
    local out=$dir/$1 steps=$2 resume=true
    shift 2
    [ -e "$out" ] || resume=auto
    run pt "$dir/run.yaml" output_dir="$out" max_steps="$steps" resume_from_checkpoint=$resume "$@"
    check "$out to step $steps with $*: $(tail -1 "$dir/err")" [ "$status" = 0 ]
}
says() { check "it says \"$1\": $(cat "$dir/err")" grep -qF -e "$1" "$dir/err"; }

# --- every state is stored under its parameter's name; another fusion and another batch in between don't change the curve
train whole 12
reads "m and v of each tensor of the model" states "$dir/whole/checkpoint-12" model.safetensors m:F32 v:F32
train parts 4
train parts 8 fusion=none
reads "unfused: the same names" states "$dir/parts/checkpoint-8" model.safetensors m:F32 v:F32
train parts 12 per_device_train_batch_size=1 gradient_accumulation_steps=4
reads "fused, unfused, fused: one curve" curve "$dir/whole" "$dir/parts" 1e-6

# --- adapters in another order, under the names of their file
train lora 6 lora=true lora_rank=4 "lora_target_modules=[q_proj, v_proj, down_proj]"
reads "m and v of each tensor of the adapter" states "$dir/lora/checkpoint-6" adapter_model.safetensors m:F32 v:F32
train lora 12 lora=true lora_rank=4 "lora_target_modules=[down_proj, v_proj, q_proj]" fusion=none
train lora-whole 12 lora=true lora_rank=4 "lora_target_modules=[q_proj, v_proj, down_proj]"
reads "adapters in another order: one curve" curve "$dir/lora-whole" "$dir/lora" 1e-6
refused "adapters of other layers" 2 "checkpoint-12" "target_modules" -- pt "$dir/run.yaml" output_dir="$dir/lora" max_steps=14 lora=true \
    lora_rank=4 "lora_target_modules=[q_proj, down_proj]"
refused "adapters of another rank" 2 "has shape [4," "the adapter's rank and the model give" -- pt "$dir/run.yaml" output_dir="$dir/lora" \
    max_steps=14 lora=true lora_rank=8 "lora_target_modules=[down_proj, v_proj, q_proj]"

# --- moments in another format, weights with a wider copy and without one
train narrow 12 model_dtype=bf16
train dtypes 4 model_dtype=bf16
train dtypes 5 model_dtype=bf16 moment_dtype=bf16
says "moments were stored as float32, this run keeps them as bfloat16: converted"
reads "bf16 moments" states "$dir/dtypes/checkpoint-5" model.safetensors m:BF16 v:BF16
train dtypes 6 model_dtype=bf16 master_dtype=fp32
says "moments were stored as bfloat16, this run keeps them as float32: converted"
says "no wider copy of the weights"
reads "fp32 moments and copies" states "$dir/dtypes/checkpoint-6" model.safetensors m:F32 v:F32 master:F32
train dtypes 12 model_dtype=bf16
says "wider copy of the weights is left out"
reads "one curve, but for rounding" curve "$dir/narrow" "$dir/dtypes" 2e-3

train copies 4 model_dtype=bf16 master_dtype=fp32
cp -r "$dir/copies/checkpoint-4" "$dir/copies.4"
train copies 5 model_dtype=fp32 learning_rate=0 weight_decay=0
says "this run's weights begin as its wider copy of them"
reads "the wider copies are the weights" kept "$dir/copies/checkpoint-5" "$dir/copies.4"

# --- moments of 8 bits and back
train bytes 4
train bytes 5 optimizer=adamw_bnb_8bit
says "moments were stored as float32, this run keeps them as codes of 8 bits: converted"
reads "codes and scales" states "$dir/bytes/checkpoint-5" model.safetensors m:8bit v:8bit
train bytes 8 optimizer=adamw_8bit fusion=none
check "codes go on as they are: $(cat "$dir/err")" [ "$(grep -c converted "$dir/err")" = 0 ]
train bytes 12
says "moments were stored as codes of 8 bits, this run keeps them as float32: converted"
reads "one curve, but for 8 bits" curve "$dir/whole" "$dir/bytes" 2e-3

# --- NorMuon, packed and unpacked
train muon 4 optimizer=normuon
reads "states of matrices and of the others" states "$dir/muon/checkpoint-4" model.safetensors m:normuon v:normuon
train muon 8 optimizer=normuon fusion=none
train muon 12 optimizer=normuon
train muon-whole 12 optimizer=normuon
reads "NorMuon, packed or not: one curve" curve "$dir/muon-whole" "$dir/muon" 1e-5
refused "another optimizer's states" 5 "of optimizer normuon, this run's is adamw" "Set optimizer: normuon" "begin a new run: model: " -- \
    pt "$dir/run.yaml" output_dir="$dir/muon" max_steps=14

# --- a resumed run ends with the same bytes, with each optimizer
for optimizer in adamw_8bit normuon; do
    train "$optimizer" 8 model_dtype=bf16 optimizer=$optimizer
    train "$optimizer-two" 5 model_dtype=bf16 optimizer=$optimizer
    train "$optimizer-two" 8 model_dtype=bf16 optimizer=$optimizer
    for file in model.safetensors checkpoint-8/optimizer.safetensors; do
        check "$optimizer: $file" cmp "$dir/$optimizer/$file" "$dir/$optimizer-two/$file"
    done
done

# --- a damaged tensor is named
$python "$dir/read.py" flip "$dir/whole/checkpoint-12/optimizer.safetensors" model.layers.0.mlp.down_proj.weight.v
refused "a damaged tensor" 5 "in tensor model.layers.0.mlp.down_proj.weight.v" "start anew" -- pt "$dir/run.yaml" output_dir="$dir/whole" max_steps=14
finish
