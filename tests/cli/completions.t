#!/bin/bash
# The completion scripts: each installed shell reads its own; bash and fish are asked for their completions.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh

for shell in bash zsh fish; do
    run help completions $shell
    check "$shell: $(cat "$dir/err")" [ "$status" = 0 ]
    mv "$dir/out" "$dir/surogate.$shell"
done
refused "a shell that isn't known" 2 "expected one of bash, zsh, fish" -- help completions tcsh
refused "no shell" 2 "usage: surogate help" -- help completions

cd "$dir" || exit 1
mkdir folder
touch run.yaml folder/lora.jsonl
# shellcheck disable=SC1091
. ./surogate.bash
complete -p surogate > complete.txt
check "bash has it" grep -q -F -e '-F _surogate surogate' complete.txt

# offers WORDS...: prints, on one line, what the completion function offers for the last of the words
offers() {
    # shellcheck disable=SC2034
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
    _surogate 2> /dev/null
    echo "${COMPREPLY[*]}"
}
# offered EXPECTED WORDS...
offered() {
    local expected=$1 got
    shift
    got=$(offers "$@")
    check "$*: expected \"$expected\", found \"${got:0:200}\"" [ "$got" = "$expected" ]
}
offered "tokenize tokenizer" surogate tok
offered "--program" surogate explain --p
offered "lora_alpha lora_alpha_pattern" surogate help keys lora lora_al
offered "lora_rank= lora_rank_pattern=" surogate sft run.yaml lora_ra
offered "lora_rank= lora_rank_pattern=" surogate sft lora_ra
offered "" surogate sft r # may be the beginning of a file's name
offered "" surogate sft ""
offered "true false" surogate sft run.yaml lora =
offered "tensorboard" surogate sft run.yaml report_to = t # an item of a list of words
offered "linear" surogate sft run.yaml lr_scheduler_type = li
offered "lr_scheduler_type=linear" surogate sft run.yaml lr_scheduler_type=li
offered "" surogate sft run.yaml model = "" # a path: completed by the shell
offered "" surogate generate folder lo
offered "" surogate export folder --out --t # --out takes a value, so --t isn't a flag
offered "type=conversation" surogate inspect rows.jsonl type=conv
offered "train_on=" surogate inspect rows.jsonl train_o
offered "" surogate new folder lora_ra # keys of config.json
offered "ops text decoder" surogate bench ""
offered "train" surogate tokenizer ""
offered "zsh" surogate help completions z
offered "generate" surogate help gen
offered "" surogate nothing --a

# Every verb, flag, key and value is completed.
"$SUROGATE" help > verbs.txt
sed -n 's/^  surogate \([a-z]*\).*/\1/p' verbs.txt > names.txt
check "every verb" [ "$(offers surogate "")" = "$(tr '\n' ' ' < names.txt | sed 's/ $//')" ]
while read -r verb; do
    flags=" $(offers surogate "$verb" --) "
    for flag in $("$SUROGATE" help "$verb" | sed -n 's/^  \(--[a-z-]*\).*/\1/p'); do
        check "$verb $flag" [ "${flags/ $flag /}" != "$flags" ]
    done
done < names.txt
keys=" $(offers surogate sft run.yaml "") "
for key in $("$SUROGATE" help keys | sed '/^Keys of a dataset$/,$d; s/^  \([a-z_0-9][a-z_0-9]*\) .*/\1/; t; d'); do
    check "the key $key" [ "${keys/ $key= /}" != "$keys" ]
done
check "every value" [ "$(offers surogate sft run.yaml recipe =)" = "bf16 fp8-hybrid nvfp4" ]

if command -v zsh > /dev/null; then
    check "zsh reads its script" zsh -n surogate.zsh
else
    skip "no zsh here"
fi
if command -v fish > /dev/null; then
    check "fish reads its script" fish -n surogate.fish
    export HOME=$dir XDG_CONFIG_HOME=$dir XDG_DATA_HOME=$dir
    # fish_offered EXPECTED LINE
    fish_offered() {
        local got
        # shellcheck disable=SC2016
        got=$(fish -c 'source surogate.fish; complete -C "$argv[1]"' "$2" 2>&1 | cut -f1 | tr '\n' ' ')
        check "fish, $2: expected \"$1\", found \"$got\"" [ "$got" = "$1 " ]
    }
    fish_offered "tokenize tokenizer" "surogate tok"
    fish_offered "lora_rank= lora_rank_pattern=" "surogate sft run.yaml lora_ra"
    fish_offered "recipe= recipe=bf16 recipe=fp8-hybrid recipe=nvfp4" "surogate sft run.yaml recipe="
    fish_offered "--program" "surogate explain --prog"
    fish_offered "train_on= train_on=all train_on=assistant train_on=last_turn" "surogate inspect rows.jsonl train_o"
else
    skip "no fish here"
fi
finish
