# A case of a pass is one file: a graph's text with the command that reads it in a comment, then the expected output or error. Source this
# after shell.sh.
# shellcheck shell=bash

# case_input FILE: the part of the file before the expected output.
case_input() { sed -E '/^# (prints|fails)$/,$d' "$1"; }

# replay_case FILE: runs it and compares; with $update set it writes the output into the file. $dir/out is what was printed.
replay_case() {
    local file=$1 words status=0
    words=$(sed -n 's/^# surogate //p' "$file" | head -1)
    # shellcheck disable=SC2086
    case_input "$file" | "$SUROGATE" $words > "$dir/out" 2> "$dir/err" || status=$?
    {
        case_input "$file"
        if [ $status = 0 ]; then echo "# prints"; else echo "# fails"; fi
        cat "$dir/out" "$dir/err"
    } > "$dir/case"
    if [ $status != 0 ] && [ $status != 2 ]; then
        fail "$file: exit $status: $(cat "$dir/err")"
    elif cmp -s "$file" "$dir/case"; then
        pass
    elif [ -n "${update:-}" ]; then
        cp "$dir/case" "$file"
        pass
    else
        diff "$file" "$dir/case"
        fail "$file: something else (--update writes it)"
    fi
}
