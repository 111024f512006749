#!/bin/bash
# A model that isn't built in: its IR from the key ir, from the model folder, from SUROGATE_MODELS.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
export PYTHONPATH=$root/python PYTHONDONTWRITEBYTECODE=1
command -v python3 > /dev/null || { skip "python3 isn't installed" && finish; }

tiny=$root/examples/dsl/tiny.py
cd "$dir" || exit 1
python3 -m surogate.dsl build "$tiny" -o tiny.json || fail "the example doesn't build"
echo before > whole.json
(ulimit -f 1 && python3 -m surogate.dsl build "$tiny" -o whole.json) 2> /dev/null && fail "a file of more than the limit was written"
check "a file that can't be written whole stays" [ "$(cat whole.json)" = before ]
check "and nothing beside it" [ ! -e .whole.json.partial ]
python3 -m surogate.dsl build "$tiny" -o /dev/stdout | cmp -s - tiny.json || fail "-o /dev/stdout"
cp "$tiny" tiny.py
seq 1 2000 | sed 's/^/The number is /' > text.txt
"$SUROGATE" tokenizer train --vocab-size 300 --out model text.txt > /dev/null 2>&1
echo '{"architectures": ["TinyForCausalLM"], "vocab_size": 320, "n_embd": 32, "n_layer": 3}' > model/config.json
cat > run.yaml << END
model: model
from_scratch: true
datasets: [{path: text.txt, type: text}]
sequence_len: 32
max_steps: 4
logging_steps: 1
device: cpu
model_dtype: fp32
output_dir: trained
ir: tiny.json
END

run pt run.yaml
check "a run with ir: $(tail -3 err)" [ "$status" = 0 ]
hash=$(sha256sum tiny.json | cut -d' ' -f1)
check "the IR is announced with its hash" grep -q "tiny.json says what TinyForCausalLM computes .*SHA-256 $hash" err
check "the trained model has its IR" cmp -s tiny.json trained/surogate_ir.json
run eval trained --text text.txt --json
check "a folder with surogate_ir.json: $(tail -3 err)" [ "$status" = 0 ]
run generate trained --prompt "The number" --max-tokens 3 --temperature 0
check "a model without attention writes, too: $(tail -3 err)" [ "$status" = 0 ]
cp -r trained bare && rm bare/surogate_ir.json
refused "no IR" 2 "architecture TinyForCausalLM isn't supported" "docs/new_model.md" -- eval bare --text text.txt
mkdir models && cp tiny.json models
SUROGATE_MODELS=models run eval bare --text text.txt --json
check "SUROGATE_MODELS: $(tail -3 err)" [ "$status" = 0 ]
cp tiny.json models/again.json
SUROGATE_MODELS=models refused "two of one architecture" 2 "are both of TinyForCausalLM; remove one" -- eval bare --text text.txt
SUROGATE_MODELS=nowhere refused "no such folder" 2 "SUROGATE_MODELS" "nowhere" -- eval bare --text text.txt
# A loss made of general ops trains, in both dtypes.
python3 -m surogate.dsl build "$root/tests/dsl/general.py" -o general.json || fail "general ops don't build"
cp -r model general && echo '{"architectures": ["GeneralForCausalLM"], "vocab_size": 320, "n_embd": 32, "n_layer": 1}' > general/config.json
for dtype in fp32 bf16; do
    run pt run.yaml model=general ir=general.json output_dir=general-$dtype model_dtype=$dtype max_steps=8 learning_rate=1e-2
    check "general ops in $dtype: $(tail -3 err)" [ "$status" = 0 ]
    check "their loss falls in $dtype" awk -F'[:,]' '/"loss"/ { for (k = 1; k < NF; k++) if ($k ~ /"loss"/) { if (!n++) first = $(k + 1); last = $(k + 1) } } END { exit !(n > 1 && last + 0 < first + 0) }' general-$dtype/metrics.jsonl
    # Without chains of element-wise ops no bit differs.
    run pt run.yaml model=general ir=general.json output_dir=apart-$dtype model_dtype=$dtype max_steps=8 learning_rate=1e-2 fusion=residual_norm
    check "apart in $dtype: $(tail -3 err)" [ "$status" = 0 ]
    check "chains change no bit in $dtype" cmp general-$dtype/model.safetensors apart-$dtype/model.safetensors
    run explain run.yaml model=general ir=general.json model_dtype=$dtype
    check "explain shows chains in $dtype, and what isn't joined" sh -c "grep -q '^element-wise: [0-9]* ops in [1-9][0-9]* chains' out && grep -q \"isn't joined with\" out"
done
# Python runs only if the command line names the .py file.
sed 's/tiny.json/tiny.py/' run.yaml > python.yaml
refused "Python isn't run" 2 "python.yaml:10:5: tiny.py is Python" "--allow-python" "python3 -m surogate.dsl build tiny.py" -- plan python.yaml
for arguments in "run.yaml ir=tiny.py" "python.yaml --allow-python"; do
    # shellcheck disable=SC2086
    run plan $arguments
    check "$arguments: $(tail -2 err)" [ "$status" = 0 ]
    check "$arguments: what is run, and the hash of what it prints" grep -q "runs python3 -m surogate.dsl build tiny.py" err
    check "$arguments: the same IR" grep -q "tiny.py made an IR of .* bytes, SHA-256 $hash" err
done
PYTHONPATH=nowhere run plan run.yaml ir=tiny.py
check "the package of the build is found: $(tail -2 err)" [ "$status" = 0 ]
mkdir -p elsewhere surogate && sed 's/^@block/from beside import STEP\n&/; s/"4 . C"/f"{STEP} * C"/g' tiny.py > elsewhere/apart.py && echo 'STEP = 4' > elsewhere/beside.py
run plan run.yaml ir=elsewhere/apart.py
check "a module beside the file: $(tail -2 err)" [ "$status" = 0 ]
echo 'raise SystemExit("the current folder is imported")' > surogate/__init__.py
if python3 -c "import sys; sys.exit(sys.version_info < (3, 11))"; then
    run plan run.yaml ir=tiny.py
    check "the current folder isn't imported: $(tail -2 err)" [ "$status" = 0 ]
else
    skip "Python 3.10 always imports from the current folder"
fi
rm -r surogate
SUROGATE_PYTHON=no-python refused "no interpreter" 2 "can't run no-python" "SUROGATE_PYTHON" -- plan run.yaml ir=tiny.py
sed 's/g.gelu/g.gellu/' tiny.py > wrong.py
refused "a wrong model" 2 "wrong.py:33: unknown op gellu" "ended with status 1" -- plan run.yaml ir=wrong.py
sed '50i\            g.rope_table(len="P", head_dim="C / 5", name="r")' tiny.py > wrong.py
refused "what the engine finds wrong" 2 "wrong.py:50 (the IR of wrong.py:" "6.4 isn't a whole number: C / 5" -- plan run.yaml ir=wrong.py
sed 's/name="losses")/hits=True, name="losses")/' tiny.py > hits.py
run pt run.yaml ir=hits.py max_steps=1 output_dir=hits
check "losses with hits: $(tail -2 err)" [ "$status" = 0 ]
sed 's/Linear("V", "C")/Linear("V + 1", "C")/' tiny.py > wide.py
refused "logits of another width" 2 "wide.py:47: Tiny: logits is (B, T, V + 1), expected (B, T, V)" -- plan run.yaml ir=wide.py
python3 -m surogate.dsl build --plain tiny.py | sed 's/"lm_head.weight", "shape": \["V"/"lm_head.weight", "shape": ["V + 1"/' > wide.json
refused "the same in an IR" 2 "wide.json:" "output logits is f32[1,32,321], expected [1,32,320]: the rows, their tokens and the vocabulary V" -- \
    plan run.yaml ir=wide.json per_device_train_batch_size=1
# Dropout: each node draws its own mask unless its site is given; programs that don't train drop nothing.
sed 's/labels: Any, hyper: Any/labels: Any, hyper: Any, doc_id: Any, positions: Any, step: Any/; s/self.blocks(x)/self.blocks(x, doc_id, positions, step)/
s/def forward(self, x: Tensor."B", "T", "C".)/def forward(self, x: Tensor["B", "T", "C"], doc_id: Any, positions: Any, step: Any)/
s/return g.add(x, self.down(\(.*\)), name="sum")/h = g.dropout(self.down(\1), doc_id, positions, step, p=0.5, name="own")\n            return g.add(x, g.dropout(h, doc_id, positions, step, p=0.5, site=0, name="said"), name="sum")/' tiny.py > dropped.py
run ir run.yaml --after bind ir=dropped.py
check "sites of three layers: $(tail -1 err)" [ "$(grep -o ' = dropout(.*site=[-0-9]*' out | grep -o 'site=.*' | sort -u | wc -l)" = 4 ]
check "a site that is said" [ "$(grep -c 'said: .* = dropout(.*site=0}' out)" = 3 ]
run ir run.yaml --after bind --program eval ir=dropped.py
check "nothing is dropped where nothing is trained: $(tail -1 err)" sh -c "grep -q cross_entropy out && ! grep -q dropout out"
printf '#!/bin/sh\nkill -9 $$\n' > killed
printf '#!/bin/sh\nhead -c 20000000 /dev/zero\n' > endless
printf '#!/bin/sh\necho no\n' > talk
chmod +x killed endless talk
SUROGATE_PYTHON=./killed refused "one that is killed" 2 "ended with signal 9" -- plan run.yaml ir=tiny.py
SUROGATE_PYTHON=./endless refused "one that prints too much" 2 "at most 16777216 are read" -- plan run.yaml ir=tiny.py
SUROGATE_PYTHON=./talk refused "one that prints no JSON" 2 "tiny.py:1:1" -- plan run.yaml ir=tiny.py
refused "another architecture" 2 "of LlamaForCausalLM, but" -- plan run.yaml "ir=$root/models/llama.json"
cp tiny.py trained/surogate_ir.py
run eval trained --text text.txt --json
check "no Python of a model folder is run" [ "$status" = 0 ]
head -c 17000000 /dev/zero > large.json
refused "a large file" 2 "large.json" -- plan run.yaml ir=large.json
sed 's/"op": "gelu"/"op": "gellu"/' tiny.json > unknown.json
refused "an unknown op" 2 "unknown.json:" "unknown op gellu" -- plan run.yaml ir=unknown.json
# Errors of the engine name the line of the Python file.
line=$(grep -n 'self.down(g.gelu' tiny.py | cut -d: -f1)
sed 's/"op": "add", "in": \["x", "blocks.{i}.down"\]/"op": "add", "in": ["x", "blocks.{i}.up"]/' tiny.json > shape.json
refused "a shape that doesn't fit" 2 "tiny.py:$line: blocks.0.sum = add(" "expected" -- plan run.yaml ir=shape.json
sed 's/g.gelu(h, name="act")/g.reshape(g.reshape(h, "B", "T", "4 * C \/ 3", 3, name="a"), "B", "T", "4 * C", name="b")/' tiny.py > odd.py
python3 -m surogate.dsl build odd.py -o odd.json || fail "odd.py doesn't build"
refused "a dim that isn't whole" 2 "odd.py:$line (odd.json:" "42.6667 isn't a whole number" -- plan run.yaml ir=odd.json
sed "s/\"source\": \"tiny.py:$line\"/\"source\": \"\\\\u001b[2J\"/" tiny.json > escape.json
refused "a line that isn't one" 2 "escape.json:" "source: expected FILE:LINE" -- plan run.yaml ir=escape.json
python3 -m surogate.dsl build --plain tiny.py -o plain.json
check "a plain one has none" [ "$(grep -c '"source"' tiny.json plain.json | paste -sd' ')" = "tiny.json:$(grep -c '"op"\|"param"\|"repeat"\|"output"' tiny.json) plain.json:0" ]
# Hints change which values are recomputed (nodes of the plan that are clones), but no bit of the training.
trained_with() {
    sed "$1" tiny.py > hints.py
    sed -i 's/import Array,/import Array, save,/' hints.py
    python3 -m surogate.dsl build hints.py -o hints.json || fail "$1 doesn't build"
    rm -rf trained
    run pt run.yaml ir=hints.json "${@:2}"
    sha256sum trained/model.safetensors 2> err | cut -d' ' -f1
    "$SUROGATE" ir run.yaml ir=hints.json "${@:2}" --after recompute 2> /dev/null | grep -c ' clone' > clones
}
plain=$(trained_with '')
check "a model without hints: $plain, $(cat clones) clones" [ "${#plain} $(cat clones)" = "64 0" ]
for case in "15|recompute_block|" "5|recompute_block|/class Block/,/class Tiny/s/@forward/@save(\"up\", \"normed\")\n    @forward/" "3|model|s/name=\"act\"/name=\"act\", save=False/"; do
    IFS='|' read -r clones flag edit <<< "$case"
    arguments=()
    [ "$flag" = recompute_block ] && arguments=(recompute_block=true)
    check "$case: the same bits" [ "$(trained_with "$edit" "${arguments[@]}")" = "$plain" ]
    check "$case: $(cat clones) clones" [ "$(cat clones)" = "$clones" ]
done

# Weights saved under other names and transposed, loaded again, trained further and merged: the numbers are the same.
sed 's/^@hf_config/@hf_export({"embed": transpose("words"), "lm_head.weight": "answer"})\n@hf_export.indexed("blocks", "layers.{i}")\n&/
    s/import Array,/import Array, hf_export, transpose,/' tiny.py > export.py
python3 -m surogate.dsl build export.py -o export.json || fail "export.py doesn't build"
for ir in tiny export; do
    run pt run.yaml ir=$ir.json output_dir=$ir save_steps=2
    check "$ir: $(tail -2 err)" [ "$status" = 0 ]
    run pt run.yaml ir=$ir.json output_dir=$ir.on resume_from_checkpoint=$ir/checkpoint-2
    check "$ir: resumed, to the same weights: $(tail -2 err)" cmp $ir/model.safetensors $ir.on/model.safetensors
    run eval $ir --text text.txt --json
    grep -o '"mean":[^,}]*' out > $ir.loss
    sed 's/from_scratch: true/lora: true/' run.yaml > lora.yaml
    run pt lora.yaml model=$ir ir=$ir.json output_dir=$ir.lora merge_adapter=true lora_target_modules=up,down,lm_head
    check "$ir: an adapter, merged: $(tail -2 err)" [ "$status" = 0 ]
    run eval $ir.lora/merged --text text.txt --json
    grep -o '"mean":[^,}]*' out >> $ir.loss
done
check "the same losses: $(cat export.loss)" cmp tiny.loss export.loss
check "two losses" [ "$(sort -u export.loss | wc -l)" = 2 ]
names_of() { python3 -c "import json, struct, sys
file = open(sys.argv[1], 'rb')
head = json.loads(file.read(struct.unpack('<Q', file.read(8))[0]))
print(*sorted(n + str(head[n]['shape']) for n in head if n != '__metadata__' and not n.startswith(('layers.1', 'layers.2'))))" "$1"; }
names=$(names_of export/model.safetensors)
check "names and shapes: $names" [ "$names" = "answer[320, 32] layers.0.down.weight[32, 128] layers.0.norm[32] layers.0.up.weight[128, 32] words[32, 320]" ]

# A loss of two terms with the same logits: the loss of the next token, plus a quarter of the loss with the token itself as label.
sed 's/return {"logits"/again = g.loss_sum(g.cross_entropy(logits, tokens, name="again"), hyper, name="again.sum")\n            &/
    s/"loss": g.loss_sum(losses, hyper, name="loss")/"loss": g.add(g.loss_sum(losses, hyper, name="loss"), g.scale(again, by=0.25), name="both")/' tiny.py > terms.py
python3 -m surogate.dsl build terms.py -o terms.json || fail "terms.py doesn't build"
for ir in tiny terms; do
    run pt run.yaml ir=$ir.json output_dir=$ir.once max_steps=1 learning_rate=0
    check "$ir: $(tail -2 err)" [ "$status" = 0 ]
    grep -o '"loss":[^,}]*' $ir.once/metrics.jsonl | head -1 > $ir.loss
done
check "ln 320 and a quarter of it more: $(cat tiny.loss terms.loss)" awk -F: '{ loss[NR] = $2 } END { d = loss[2] / loss[1] - 1.25; exit !(d * d < 1e-5) }' tiny.loss terms.loss

# The model has inputs of its own, which this data set doesn't provide.
python3 -m surogate.dsl build "$root/tests/dsl/inputs.py" -o inputs.json || fail "tests/dsl/inputs.py doesn't build"
echo '{"architectures": ["InputsForCausalLM"], "vocab_size": 320, "n_embd": 32, "num_kinds": 3}' > model/config.json
refused "a run of them" 2 "doesn't give the input kind" "inputs: {kind: FIELD}" -- pt run.yaml ir=inputs.json output_dir=own
while IFS='|' read -r edit text; do
    sed "$edit" inputs.json > wrong.json
    cmp -s inputs.json wrong.json && fail "$edit changes nothing"
    refused "$edit" 2 "wrong.json" "$text" -- plan run.yaml ir=wrong.json
done << 'END'
s/"name": "kind"/"name": "a b"/|inputs: number 1 has no name
s/"name": "kind"/"name": "tokens"/|inputs: tokens is there already
s/"name": "kind"/"name": "row"/|inputs: row is there already
s/"name": "volume"/"name": "kind"/|inputs: kind is there already
s/"name": "kind", "dtype": "i32"/"name": "kind", "dtype": "i64"/|inputs: kind: expected the dtype i32 or f32
s/"name": "kind", "dtype": "i32"/"name": "kind", "dtype": "i32", "pad": 1e9/|inputs: kind: pad
s/"name": "kind", "dtype": "i32"/"name": "kind", "dtype": "i32", "pad": -100/|kind is padded with -100; embedding expects 0 to 2
s/"name": "volume", "dtype": "f32"/"name": "volume", "dtype": "f32", "pad": 1/|inputs: volume: pad
s/"inputs": \[/"inputs": 3, "notes": [/|inputs: expected an array
END
# Layers of two kinds, as listed in the config: each has the weights that it reads, biases exist if the config says so, and a frozen weight
# stays unchanged.
python3 -m surogate.dsl build "$root/tests/dsl/kinds.py" -o kinds.json || fail "tests/dsl/kinds.py doesn't build"
for biased in true false; do
    kinds=null
    [ $biased = true ] && kinds='["b", "b", "a"]'
    rm -rf trained
    echo '{"architectures": ["KindsForCausalLM"], "vocab_size": 320, "n_embd": 32, "n_layer": 3, "kinds": '$kinds', "use_bias": '$biased'}' > model/config.json
    run pt run.yaml ir=kinds.json
    names=$(python3 -c "import json, struct
file = open('trained/model.safetensors', 'rb').read()
end = 8 + struct.unpack('<Q', file[:8])[0]
head = json.loads(file[8:end])
ones = {name for name in head if name != '__metadata__' and set(struct.iter_unpack('<f', file[end:][slice(*head[name]['data_offsets'])])) == {(1.0,)}}
print(*sorted(name + '=1' * (name in ones) for name in set(head) - {'__metadata__'}))")
    want="h.0.a.weight h.0.c.weight h.0.norm=1 h.1.b.weight h.1.c.weight h.1.norm=1 h.2.a.weight h.2.c.weight h.2.norm=1 wte"
    [ $biased = true ] && want="h.0.b.bias h.0.b.weight h.0.c.bias h.0.c.weight h.0.norm=1 h.1.b.bias h.1.b.weight h.1.c.bias h.1.c.weight h.1.norm=1 h.2.a.bias h.2.a.weight h.2.c.bias h.2.c.weight h.2.norm=1 wte"
    check "use_bias $biased: $names" [ "$names" = "$want" ]
done
echo '{"architectures": ["KindsForCausalLM"], "vocab_size": 320, "n_embd": 32, "n_layer": 3, "kinds": ["a", "b"]}' > model/config.json
refused "a list of another length" 2 "config.json: kinds: 2 entries; expected 3, as n_layer is 3" -- plan run.yaml ir=kinds.json
finish
