#!/bin/bash
# In its output_dir a run may touch only its own files, and nothing that another program left there.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
make_text_run "dataset_cache_dir: $dir/cache" "max_steps: 12" "save_steps: 4"
contents() { (cd "$1" && find . -type f ! -name .lock -exec sha256sum {} + | sort -k 2); }
# untouched NAME FOLDER ARGS...: refused with status 2, naming the folder; no file in it has changed.
untouched() {
    local name=$1 folder=$2 before
    shift 2
    before=$(contents "$folder")
    refused "$name" 2 "output_dir $folder holds" "Name another output_dir" -- pt "$dir/run.yaml" output_dir="$folder" "$@"
    check "$name: nothing was touched" [ "$(contents "$folder")" = "$before" ]
}

# --- folders of other programs
mkdir -p "$dir/other/checkpoint-500" "$dir/other/checkpoint-1000"
for folder in "$dir/other" "$dir/other/checkpoint-500" "$dir/other/checkpoint-1000"; do
    cp "$dir/model/model.safetensors" "$dir/model/config.json" "$folder"
    echo state > "$folder/optimizer.pt"
done
untouched "another program's run" "$dir/other"
untouched "another program's run, anew" "$dir/other" resume_from_checkpoint=false
untouched "another program's run, on" "$dir/other" resume_from_checkpoint=true
cp -r "$dir/model" "$dir/copy"
untouched "a model" "$dir/copy"
for name in adapter_config.json adapter_model.bin config.json metrics.jsonl checkpoint-7/model.safetensors; do
    rm -rf "$dir/one"
    mkdir -p "$(dirname "$dir/one/$name")"
    echo "{}" > "$dir/one/$name"
    untouched "$name alone" "$dir/one"
done
mkdir "$dir/notes"
echo "mine" > "$dir/notes/notes.txt"
run pt "$dir/run.yaml" output_dir="$dir/notes"
check "a folder with something else is fine: $(tail -1 "$dir/err")" [ "$status" = 0 ]
check "and that stays" [ "$(cat "$dir/notes/notes.txt")" = mine ]

# --- checkpoints that aren't ours, and damaged ones of ours, in one of our folders
out=$dir/ours
run pt "$dir/run.yaml" output_dir="$out"
check "a run ends well" [ "$status" = 0 ]
cp -r "$out" "$dir/whole"
mkdir "$out/checkpoint-5" "$out/checkpoint-500" "$out/.checkpoint-mine"
echo theirs > "$out/checkpoint-5/model.bin"
echo theirs > "$out/checkpoint-500/model.bin"
echo theirs > "$out/.checkpoint-mine/file"
rm "$out/checkpoint-12/manifest.json" "$out/run.json"
before=$(contents "$out/checkpoint-12")
run pt "$dir/run.yaml" output_dir="$out" save_steps=1 save_total_limit=2
check "it goes on: $(tail -1 "$dir/err")" [ "$status" = 0 ]
check "from the newest whole one" grep -q "going on from $out/checkpoint-8" "$dir/err"
check "others are named: $(cat "$dir/err")" grep -q "skipping $out/checkpoint-500" "$dir/err"
check "others stay" [ "$(cat "$out"/checkpoint-5/model.bin "$out"/checkpoint-500/model.bin "$out/.checkpoint-mine/file" | grep -c theirs)" = 3 ]
check "the damaged one is kept under another name" [ "$(contents "$out/checkpoint-12.aside")" = "$before" ]
check "that is said" grep -q "checkpoint-12.aside" "$dir/err"
check "only ours count for keeping: $(ls "$out")" [ -e "$out/checkpoint-11/manifest.json" -a -e "$out/checkpoint-12/manifest.json" -a \
    ! -e "$out/checkpoint-10" -a ! -e "$out/checkpoint-8" -a ! -e "$out/checkpoint-4" ]
check "the result is the same" cmp "$out/model.safetensors" "$dir/whole/model.safetensors"
rm "$out/checkpoint-12/manifest.json"
run pt "$dir/run.yaml" output_dir="$out" resume_from_checkpoint=false max_steps=2 save_steps=0
check "anew: $(tail -1 "$dir/err")" [ "$status" = 0 ]
check "ours go" [ ! -e "$out/checkpoint-11" ]
check "the others stay: $(ls "$out")" [ -e "$out/checkpoint-5/model.bin" -a -e "$out/checkpoint-500/model.bin" -a -e "$out/checkpoint-12.aside" ]
check "the damaged one too" [ -e "$out/checkpoint-12/optimizer.safetensors" ]
check "which is said: $(cat "$dir/err")" grep -q "checkpoint-12 stays" "$dir/err"

# --- all checkpoints are damaged: none is removed until the user asks for it
cp -r "$dir/whole" "$dir/damaged"
out=$dir/damaged
sed -i 's/"finished": true/"finished": false/' "$out/run.json"
printf x >> "$out/checkpoint-8/model.safetensors"
printf x >> "$out/checkpoint-12/optimizer.safetensors"
before=$(contents "$out")
for resume in auto true; do
    refused "all damaged, $resume" 5 "checkpoint-12/optimizer.safetensors has" "name another output_dir" "resume_from_checkpoint: false" \
        "The model in $out/checkpoint-12 is whole" -- pt "$dir/run.yaml" output_dir="$out" resume_from_checkpoint=$resume
    check "all damaged, $resume: nothing was touched" [ "$(contents "$out")" = "$before" ]
done
printf x >> "$out/checkpoint-12/model.safetensors"
refused "all weights damaged" 5 "None of them has a whole model" -- pt "$dir/run.yaml" output_dir="$out"
run pt "$dir/run.yaml" output_dir="$out" resume_from_checkpoint=false
check "all damaged, anew: $(tail -1 "$dir/err")" [ "$status" = 0 ]
check "gives the same" cmp "$out/model.safetensors" "$dir/whole/model.safetensors"
check "the damaged ones keep their bytes: $(ls "$out")" [ "$(find "$out" -name 'checkpoint-*.aside' | wc -l)" = 2 ]

# --- starting anew as a run of another kind
out=$dir/kinds
run pt "$dir/run.yaml" output_dir="$out" lora=true lora_rank=2 merge_adapter=true
check "LoRA ends well: $(tail -1 "$dir/err")" [ "$status" = 0 -a -e "$out/adapter_model.safetensors" -a -e "$out/merged/model.safetensors" ]
before=$(contents "$out")
refused "anew with a model that doesn't fit" 3 "too little disk" -- pt "$dir/run.yaml" output_dir="$out" resume_from_checkpoint=false \
    max_steps=100000000 save_steps=1 save_total_limit=0
check "nothing of the run before is lost" [ "$(contents "$out")" = "$before" ]
refused "from a model in output_dir" 2 "merged lies in output_dir" -- pt "$dir/run.yaml" output_dir="$out" model="$out/merged" \
    resume_from_checkpoint=false
refused "with a tokenizer from output_dir" 2 "output_dir is" -- pt "$dir/run.yaml" output_dir="$out" tokenizer="$out" resume_from_checkpoint=false
check "nothing is lost there" [ "$(contents "$out")" = "$before" ]
run pt "$dir/run.yaml" output_dir="$out" resume_from_checkpoint=false
check "all parameters anew: $(tail -1 "$dir/err")" [ "$status" = 0 ]
check "no adapter beside the model: $(ls "$out")" [ -e "$out/model.safetensors" -a ! -e "$out/adapter_model.safetensors" -a \
    ! -e "$out/adapter_config.json" -a ! -e "$out/merged" ]
check "the model is that of a fresh folder" cmp "$out/model.safetensors" "$dir/whole/model.safetensors"
run pt "$dir/run.yaml" output_dir="$out" resume_from_checkpoint=false lora=true lora_rank=2
check "LoRA anew: $(tail -1 "$dir/err")" [ "$status" = 0 ]
check "no model beside the adapter: $(ls "$out")" [ -e "$out/adapter_model.safetensors" -a ! -e "$out/model.safetensors" -a ! -e "$out/config.json" ]

# --- inputs of a run that were changed under the same name
cp -r "$dir/model" "$dir/base"
cp "$dir/text.txt" "$dir/data.txt"
flip() { # flips a byte 100 bytes before the file's end; size and time stay
    cp -p "$1" "$dir/was"
    tail -c 100 "$1" | head -c 1 | tr '\000-\377' '\001-\377\000' | dd of="$1" bs=1 seek=$(($(stat -c %s "$1") - 100)) conv=notrunc 2> /dev/null
    touch -r "$dir/was" "$1"
}
on_base() { run pt "$dir/run.yaml" model="$dir/base" datasets.0.path="$dir/data.txt" lora=true lora_rank=2 output_dir="$dir/tuned" "$@"; }
on_base
check "LoRA on a base: $(tail -1 "$dir/err")" [ "$status" = 0 ]
cp -r "$dir/tuned" "$dir/finished"
rm -r "$dir/tuned/checkpoint-12"
sed -i 's/"finished": true/"finished": false/' "$dir/tuned/run.json"
cp -r "$dir/tuned" "$dir/unfinished"
# again FOLDER: starts the run of FOLDER again
again() {
    rm -rf "$dir/tuned"
    cp -r "$1" "$dir/tuned"
    shift
    on_base "$@"
}
again "$dir/finished"
check "a finished run, nothing changed: $(tail -1 "$dir/err")" [ "$status" = 0 -a "$(grep -c "finished" "$dir/err")" = 1 ]
again "$dir/unfinished"
check "an unfinished run, nothing changed: $(tail -1 "$dir/err")" [ "$status" = 0 ]
check "gives the same" cmp "$dir/tuned/adapter_model.safetensors" "$dir/finished/adapter_model.safetensors"
for what in base/model.safetensors:weights base/tokenizer.json:tokenizer data.txt:datasets; do
    file=$dir/${what%:*}
    cp -p "$file" "$dir/kept"
    case $what in
    *.json:*) echo >> "$file" ;;
    *) flip "$file" ;;
    esac
    for state in finished unfinished; do
        again "$dir/$state"
        check "$state, other ${what#*:}: exit $status, $(tail -1 "$dir/err")" [ "$status" = 2 ]
        check "$state, other ${what#*:}: that is said: $(tail -1 "$dir/err")" grep -q "${what#*:}.* changed since" "$dir/err"
        again "$dir/$state" resume_from_checkpoint=true max_steps=14
        # an adapter belongs to the weights that it was trained on; data and tokenizer may change
        want=0
        [ ${what#*:} = weights ] && want=2
        check "$state, other ${what#*:}: resume_from_checkpoint: true, exit $status: $(tail -1 "$dir/err")" [ "$status" = $want ]
        [ $want = 0 ] || check "$state, other ${what#*:}: why is said: $(tail -1 "$dir/err")" grep -q "trained on other weights than $dir/base" "$dir/err"
    done
    cp -p "$dir/kept" "$file"
done

# a checkpoint of all parameters no longer needs its base; a checkpoint of adapters in another folder does
cp -p "$dir/base/model.safetensors" "$dir/kept"
on_base lora=false output_dir="$dir/full"
again "$dir/finished" resume_from_checkpoint=false
flip "$dir/base/model.safetensors"
on_base lora=false output_dir="$dir/full" resume_from_checkpoint=true max_steps=14
check "all parameters, other weights: $(tail -1 "$dir/err")" [ "$status" = 0 ]
on_base output_dir="$dir/elsewhere" resume_from_checkpoint="$dir/tuned/checkpoint-12" max_steps=14
check "an adapter of another folder, other weights: exit $status, $(tail -1 "$dir/err")" [ "$status" = 2 -a ! -e "$dir/elsewhere" ]
cp -p "$dir/kept" "$dir/base/model.safetensors"
on_base output_dir="$dir/elsewhere" resume_from_checkpoint="$dir/tuned/checkpoint-12" max_steps=14
check "with its own weights: $(tail -1 "$dir/err")" [ "$status" = 0 ]

# --- run.json is damaged: handled like a missing one if there is a checkpoint
out=$dir/torn
cp -r "$dir/whole" "$out"
rm -r "$out/checkpoint-12" "$out/model.safetensors"
head -c 100 "$dir/whole/run.json" > "$out/run.json"
refused "a damaged run.json, other settings" 2 "was made with other settings" -- pt "$dir/run.yaml" output_dir="$out" learning_rate=5e-4
run pt "$dir/run.yaml" output_dir="$out"
check "a damaged run.json: $(tail -1 "$dir/err")" [ "$status" = 0 ]
check "is said: $(cat "$dir/err")" grep -q "warning: $out/run.json.*damaged.* goes on as $out/checkpoint-8 says" "$dir/err"
check "gives the same" cmp "$out/model.safetensors" "$dir/whole/model.safetensors"
rm -r "$out"/checkpoint-*
echo '{"finished": true}' > "$out/run.json"
before=$(contents "$out")
refused "a damaged run.json and no checkpoint" 2 "$out/run.json" "holds no checkpoint" "resume_from_checkpoint: false" -- pt "$dir/run.yaml" output_dir="$out"
check "nothing of it is touched" [ "$(contents "$out")" = "$before" ]

# --- resuming at the last step
sed 's/"finished": true/"finished": false/' "$dir/whole/run.json" > "$dir/run.json"
cp -r "$dir/whole" "$dir/last"
cp "$dir/run.json" "$dir/last/run.json"
run pt "$dir/run.yaml" output_dir="$dir/last"
check "at the last step: $(tail -5 "$dir/err")" [ "$status" = 0 -a "$(grep -c "^done: 12 steps" "$dir/err")" = 1 -a "$(grep -c nan "$dir/err")" = 0 ]
refused "a checkpoint that isn't there" 5 "no folder $dir/nothere" -- pt "$dir/run.yaml" output_dir="$dir/last" resume_from_checkpoint="$dir/nothere"

# --- run.json is missing: the checkpoint has the settings
out=$dir/lost
cp -r "$dir/whole" "$out"
rm "$out/run.json"
refused "other settings without run.json" 2 "$out/checkpoint-12 was made with other settings" -- pt "$dir/run.yaml" output_dir="$out" learning_rate=5e-4
run pt "$dir/run.yaml" output_dir="$out"
check "the same settings without run.json: $(tail -1 "$dir/err")" [ "$status" = 0 ]
rm "$out/run.json"
run pt "$dir/run.yaml" output_dir="$out" resume_from_checkpoint=true max_steps=14 learning_rate=5e-4
check "resume_from_checkpoint: true takes other settings: $(tail -1 "$dir/err")" [ "$status" = 0 ]

# --- checkpoints of adapters and of all parameters; one dataset more
checkpoint() { find "$dir/$1" -maxdepth 1 -name 'checkpoint-*' | tail -1; }
refused "an adapter from a checkpoint of all parameters" 2 "$(checkpoint whole) is of a run with lora: false, here it is true. Set lora: false" -- \
    pt "$dir/run.yaml" output_dir="$dir/kind" lora=true resume_from_checkpoint="$(checkpoint whole)"
refused "all parameters from an adapter's" 2 "$(checkpoint finished) is of a run with lora: true, here it is false. Set lora: true" -- \
    pt "$dir/run.yaml" output_dir="$dir/kind" resume_from_checkpoint="$(checkpoint finished)"
cp "$dir/text.txt" "$dir/more.txt"
refused "a dataset more" 2 "(datasets: there nothing, here \"- path: $dir/more.txt\")" -- pt "$dir/run.yaml" output_dir="$dir/whole" datasets.1.path="$dir/more.txt"
refused "another rate" 2 '(there "learning_rate: 0.0002", here "learning_rate: 0.002")' -- pt "$dir/run.yaml" output_dir="$dir/whole" learning_rate=2e-3

# --- the same files under another spelling of their paths
ln -s model "$dir/linked"
mkdir "$dir/inner"
spelled() { # FOLDER MODEL DATA: starts the run with these paths
    (cd "$1" && exec "$SUROGATE" pt "$dir/run.yaml" output_dir="$dir/spelled" model="$2" datasets.0.path="$3") > "$dir/out" 2> "$dir/err"
    status=$?
}
spelled "$dir" model text.txt
check "relative paths: $(tail -1 "$dir/err")" [ "$status" = 0 ]
cp -r "$dir/spelled" "$dir/begun"
for how in "$dir ./model ./text.txt" "$dir model/ $dir/text.txt" "$dir linked text.txt" "$dir $dir/inner/../model $dir//text.txt" \
    "$dir/inner ../model ../text.txt" "$dir/inner $dir/linked/ ../text.txt"; do
    rm -rf "$dir/spelled"
    cp -r "$dir/begun" "$dir/spelled"
    # shellcheck disable=SC2086
    spelled $how
    check "finished, $how: exit $status, $(tail -1 "$dir/err")" [ "$status" = 0 -a "$(grep -c "finished" "$dir/err")" = 1 ]
    rm -r "$dir/spelled/checkpoint-12"
    sed -i 's/"finished": true/"finished": false/' "$dir/spelled/run.json"
    # shellcheck disable=SC2086
    spelled $how
    check "unfinished, $how: exit $status, $(tail -1 "$dir/err")" [ "$status" = 0 ]
    check "$how: goes on" grep -q "going on from $dir/spelled/checkpoint-8" "$dir/err"
    check "$how: gives the same" cmp "$dir/spelled/model.safetensors" "$dir/begun/model.safetensors"
done
cp -r "$dir/model" "$dir/inner/model"
cp "$dir/text.txt" "$dir/inner"
spelled "$dir/inner" ./model text.txt
check "another folder of that name: exit $status, $(tail -1 "$dir/err")" [ "$status" = 2 -a "$(grep -c 'model: "\?./model' "$dir/err")" = 1 ]

# --- an output_dir with a path so long that its files can't be named
long=$dir/$(printf '%0200d/' {1..25} | cut -c1-$((4065 - ${#dir})))
refused "a path of ${#long} characters" 2 "output_dir has ${#long} characters" "at most" -- pt "$dir/run.yaml" output_dir="$long"
run pt "$dir/run.yaml" output_dir="${long:0:4040}"
check "one of 4040: $(tail -1 "$dir/err" | cut -c1-200)" [ "$status" = 0 ]

# --- merge_adapter after the run
again "$dir/finished" merge_adapter=true
check "a finished run is merged: $(tail -1 "$dir/err")" [ "$status" = 0 -a -e "$dir/tuned/merged/model.safetensors" ]
check "that is said" grep -q "was merged into its base: $dir/tuned/merged" "$dir/err"
rm -rf "$dir/tuned"
on_base merge_adapter=true
check "as during the run" cmp "$dir/tuned/merged/model.safetensors" <("$SUROGATE" merge "$dir/base" "$dir/finished" "$dir/by_hand" > "$dir/null" 2>&1; cat "$dir/by_hand/model.safetensors")
touch -d "2001-01-01" "$dir/tuned/merged/model.safetensors"
on_base merge_adapter=true
check "once" [ "$(stat -c %Y "$dir/tuned/merged/model.safetensors")" = "$(date -d 2001-01-01 +%s)" ]
mkdir "$dir/tuned/.merged.partial" && rm -r "$dir/tuned/merged"
on_base merge_adapter=true
check "a merge that was cut is done again: $(ls -A "$dir/tuned")" [ -e "$dir/tuned/merged/config.json" -a ! -e "$dir/tuned/.merged.partial" ]
on_base resume_from_checkpoint=true max_steps=14
check "no merged model of an older adapter stays: $(tail -1 "$dir/err")" [ "$status" = 0 -a ! -e "$dir/tuned/merged" ]

# --- the base's folder disappears during the run: what is saved is whole nevertheless
cp -r "$dir/model" "$dir/mounted"
cp "$dir/model/tokenizer.json" "$dir/mounted/vocab.json"
echo "{}" > "$dir/mounted/generation_config.json"
for lora in false true; do
    out=$dir/unmounted-$lora
    (cd "$dir" && exec "$SUROGATE" pt run.yaml model=mounted output_dir="$out" max_steps=300 lora=$lora validation_split_ratio=0.1 \
        generate_samples=1) 2> "$dir/err" &
    pid=$!
    until [ -s "$out/metrics.jsonl" ] || ! kill -0 $pid 2> /dev/null; do sleep 0.01; done
    kill -STOP $pid
    mv "$dir/mounted" "$dir/gone"
    kill -CONT $pid
    status=0
    wait $pid || status=$?
    mv "$dir/gone" "$dir/mounted"
    check "lora=$lora, without its base's folder: exit $status, $(tail -1 "$dir/err")" [ "$status" = 0 ]
    check "lora=$lora: samples are made" grep -q '"log":"sample"' "$out/metrics.jsonl"
    for folder in "$out" "$out/checkpoint-300"; do
        for file in tokenizer.json tokenizer_config.json generation_config.json vocab.json; do
            check "lora=$lora: $folder has $file" cmp "$dir/mounted/$file" "$folder/$file"
        done
    done
done
check "the adapter's base is a full path" grep -qF "\"base_model_name_or_path\": \"$(realpath "$dir/mounted")\"" "$out/adapter_config.json"
finish
