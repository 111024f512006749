#!/bin/bash
# surogate demo: its files are enough for the commands that it prints, and the model learns the rows.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
cd "$dir" || exit 1
run demo first
check "it ends well" [ "$status" = 0 ]
sed -n 's/^  surogate //p' err > next
check "it names four commands: $(cat next)" [ "$(wc -l < next)" = 4 ]
mkdir second
(cd second && "$SUROGATE" demo . 2> /dev/null) || fail "into the folder that one is in"
check "twice the same" diff -r first second
refused "where it has been" 2 "first/tokenizer is there already; name another folder" -- demo first
refused "without a folder" 2 "surogate demo DIR" -- demo
cd first || exit 1
while read -r line; do
    eval "run $line"
    check "$line: $(cat "$dir/err")" [ "$status" = 0 ]
done < ../next
for number in 31 32; do
    run generate out --chat --prompt "What is $number?" --temperature 0
    check "it knows $number" grep -qF "$( ((number % 2)) && echo "An odd" || echo "An even") number." "$dir/out"
done
run pt pt.yaml
check "pre-training too" [ "$status" = 0 ]
check "whose model predicts the text" grep -q '^bits per byte' <("$SUROGATE" eval out-pt --text text.txt)
finish
