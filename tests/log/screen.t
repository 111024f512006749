#!/bin/bash
# A run on a terminal: no line is longer than the terminal is wide, logged steps stay, colours appear only where wanted.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
python=$(command -v python3 || true)
[ -n "$python" ] || { skip "python3 isn't here"; finish; }
export TERM=xterm
unset COLUMNS NO_COLOR
make_text_run "dataset_cache_dir: $dir/cache" "max_steps: 30" "logging_steps: 5" "validation_split_ratio: 0.05" "eval_steps: 10" \
    "eval_max_batches: 2"

# on COLUMNS ARGS...: runs the program on a terminal of that width; $dir/screen has the final screen, $dir/raw the bytes.
on() {
    status=0
    "$python" tests/terminal.py "$1" "$dir/raw" "$SUROGATE" "${@:2}" > "$dir/screen" || status=$?
}
# settled: the screen has each line of a step or evaluation once, whole, and nothing else remains between them.
settled() {
    [ "$(grep -oE '^step [0-9]+' "$dir/screen" | grep -oE '[0-9]+' | tr '\n' ' ')" = "5 10 15 20 25 30 " ] &&
        [ "$(grep -cE '^eval at step (10|20|30)  loss' "$dir/screen")" = 3 ] &&
        ! grep -E '^>' "$dir/screen" | grep -qE 'tok/s|ETA|loss|norm'
}
for columns in 60 80 200; do
    on $columns pt "$dir/run.yaml" output_dir="$dir/c$columns"
    check "$columns columns: it ends well" [ "$status" = 0 ]
    check "$columns columns: logged steps stay, none wraps: $(cat "$dir/screen")" settled
    check "$columns columns: steps are shown in between" [ "$(grep -aoE $'\r\033\[Kstep [0-9]+/' "$dir/raw" | wc -l)" -ge 24 ]
    check "$columns columns: the time left" grep -qE '^step 5/30  loss [0-9.]+ .*ETA' "$dir/screen"
done
check "200 columns: everything" grep -qE '^step 5/30  loss .*  norm .*  lr .* tok/s .*ETA' "$dir/screen"
check "80 columns: the rate too" grep -qE "tok/s" <(on 80 pt "$dir/run.yaml" output_dir="$dir/r80"; cat "$dir/screen")
COLUMNS=60 on 200 pt "$dir/run.yaml" output_dir="$dir/less"
check "COLUMNS narrows it: $(cat "$dir/screen")" [ "$(grep -E '^step' "$dir/screen" | awk 'length > 59' | wc -l)" = 0 ]

# --- colours
has_colour() { grep -qaF $'\033[1;31merror: \033[0m' "$dir/raw"; }
plain() { ! grep -qaE $'\033\\[[0-9;]*m' "$dir/raw"; }
on 80 pt "$dir/none.yaml"
check "an error is red on a terminal: $(cat -v "$dir/raw")" has_colour
NO_COLOR=1 on 80 pt "$dir/none.yaml"
check "not with NO_COLOR" plain
TERM=dumb on 80 pt "$dir/none.yaml"
check "nor where TERM is dumb" plain
run pt "$dir/none.yaml"
check "nor in a file" [ "$(grep -c $'\033' "$dir/err")" = 0 ]
NO_COLOR=1 on 80 pt "$dir/run.yaml" output_dir="$dir/grey"
check "NO_COLOR keeps the status line" settled
check "and has no colours" plain
on 80 pt "$dir/run.yaml" output_dir="$dir/diverges" learning_rate=1000 weight_decay=0.9 max_grad_norm=0
check "a warning is yellow: $(cat "$dir/screen")" grep -qaF $'\033[33mwarning: \033[0mstep' "$dir/raw"
check "and stands on a line of its own" [ "$(grep -E 'warning|error' "$dir/screen" | grep -vcE '^(warning|error): ')" = 0 ]

# --- control characters of files, hubs and models
evil=$'\033]0;owned\a\033[2J\302\2331mX\r' # sets the title, clears the screen, colours
harmless() { # none of those characters reached the terminal
    ! grep -qaF -e $'\033]' -e $'\033[2J' -e $'\a' -e $'\302\233' -e $'X\r says' "$dir/raw"
}
shown() { grep -qaF '\x1b]0;owned\x07\x1b[2J\u009b1mX' "$dir/raw"; }
mkdir "$dir/$evil"
on 200 pt "$dir/$evil/none.yaml"
check "a file's name: $(cat -v "$dir/raw")" harmless
check "a file's name is shown" shown
printf 'model: base\n"%s": 3\n' 'max\e]0;owned\a\e[2J\u009b1mX\r' > "$dir/evil.yaml"
on 200 plan "$dir/evil.yaml"
check "a key of a run file: $(cat -v "$dir/raw")" harmless
check "a key of a run file is shown" shown
"$python" - "$dir/evil.jsonl" "$evil" << 'END'
import json, sys
with open(sys.argv[1], "w") as file:
    file.write(json.dumps({"text": f"line {sys.argv[2]} says"}) + "\n")
END
for colour in "" 1; do
    NO_COLOR=$colour on 200 inspect "$dir/evil.jsonl" --model "$dir/model" type=text
    check "inspected tokens, NO_COLOR=$colour: $(cat -v "$dir/raw")" harmless
    check "inspected tokens are shown, NO_COLOR=$colour" shown
done
"$SUROGATE" inspect "$dir/evil.jsonl" --model "$dir/model" type=text > "$dir/piped" 2> /dev/null
check "a pipe gets every byte" grep -qaF "$evil" "$dir/piped"
echo "{{ messages[0].content }}" > "$dir/model/chat_template.jinja"
"$python" -c 'import json, sys; print(json.dumps([{"role": "user", "content": sys.argv[1]}]))' "$evil" > "$dir/evil.json"
on 200 render "$dir/model" --messages "$dir/evil.json"
check "a rendered text: $(cat -v "$dir/raw")" harmless
check "a rendered text is shown" shown
check "a pipe gets the rendered bytes" cmp <("$SUROGATE" render "$dir/model" --messages "$dir/evil.json") <(printf %s "$evil")
# A model that writes ESC ] and BEL again and again: its tokens are single bytes, and it is trained on these texts.
yes $'\033]0;t\a' | head -4000 | tr -d '\n' > "$dir/bells.txt"
run pt "$dir/run.yaml" datasets.0.path="$dir/bells.txt" output_dir="$dir/bells" max_steps=60 learning_rate=5e-3 validation_split_ratio=0 lora=false
on 200 generate "$dir/bells" --prompt $'\033]0;t\a' --max-tokens 40 --temperature 0
check "what a model writes: $(cat -v "$dir/raw")" harmless
check "what a model writes is shown: $(cat -v "$dir/raw")" grep -qaF '\x1b]0;t\x07\x1b]0;t\x07' "$dir/raw"
check "a pipe gets what the model writes" grep -qaF $'\033]0;t\a' <("$SUROGATE" generate "$dir/bells" --prompt $'\033]0;t\a' --max-tokens 40 --temperature 0)
finish
