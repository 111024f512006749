# For tests that drive the program: source this file, call the checks, end with `finish`. $SUROGATE is the program under test. Each test has
# its own folder $dir, which is removed at the end.
# shellcheck shell=bash
set -u
SUROGATE=${SUROGATE:-$(pwd)/build/surogate}
root=$(pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
num_passed=0
num_failed=0
num_skipped=0
export root

pass() { num_passed=$((num_passed + 1)); }
fail() {
    num_failed=$((num_failed + 1))
    echo "FAILED: $*"
}
skip() {
    num_skipped=$((num_skipped + 1))
    echo "skipped: $*"
}
finish() {
    echo "$num_passed passed, $num_failed failed, $num_skipped skipped"
    exit $((num_failed > 0))
}

# run ARGS...: runs the program; $dir/out is its stdout, $dir/err its stderr, $status its exit status.
run() {
    status=0
    "$SUROGATE" "$@" > "$dir/out" 2> "$dir/err" || status=$?
}

# check NAME COMMAND...: passes if the command succeeds.
check() {
    local name=$1
    shift
    if "$@"; then pass; else fail "$name"; fi
}

# refused NAME STATUS TEXT... -- ARGS...: the program ends with the status, all texts are on stderr, nothing on stdout. If it wrongly starts
# to serve or train, it is stopped after $REFUSED_SECONDS (60).
refused() {
    local name=$1 want=$2 text texts=()
    shift 2
    while [ "$1" != -- ]; do
        texts+=("$1")
        shift
    done
    shift
    status=0
    timeout --foreground -k 5 "${REFUSED_SECONDS:-60}" "$SUROGATE" "$@" > "$dir/out" 2> "$dir/err" || status=$?
    if [ "$status" != "$want" ]; then
        fail "$name: exit $status, expected $want; stderr: $(cat "$dir/err")"
        return
    fi
    for text in "${texts[@]}"; do
        if ! grep -qF -e "$text" "$dir/err"; then
            fail "$name: expected \"$text\" in: $(cat "$dir/err")"
            return
        fi
    done
    if [ -s "$dir/out" ]; then
        fail "$name: something on stdout"
        return
    fi
    pass
}

# $PYTHON: as set by the caller, otherwise an interpreter of Python 3.10 or later with NumPy; fails if there is none.
find_python() {
    local python fits='import sys, numpy; sys.exit(sys.version_info < (3, 10))'
    for python in ${PYTHON:-python3 /usr/bin/python3}; do
        "$python" -c "$fits" 2> /dev/null && PYTHON=$python && return
    done
    PYTHON=${PYTHON:-python3}
    return 1
}

# run_python FILE: runs a Python test of the library; its last line has counts like those of `finish`.
run_python() {
    SUROGATE_LIBRARY=$(dirname "$SUROGATE")/libsurogate.so
    export SUROGATE SUROGATE_LIBRARY PYTHONPATH=$root/python PYTHONDONTWRITEBYTECODE=1
    local passed failed
    if ! find_python; then
        skip "no Python 3.10 with NumPy here"
    elif [ ! -e "$SUROGATE_LIBRARY" ]; then
        skip "this build has no libsurogate.so"
    else
        "$PYTHON" "$1" > "$dir/log" 2>&1
        read -r passed _ failed _ <<< "$(tail -1 "$dir/log")"
        [[ $passed$failed =~ ^[0-9]+$ ]] || passed=0 failed=1
        [ "$failed" = 0 ] || cat "$dir/log"
        num_passed=$((num_passed + passed))
        num_failed=$((num_failed + failed))
    fi
}

# without_times FILE: prints a log without its timing fields.
without_times() { sed -E 's/"(time|duration_ms|tokens_per_second)":[0-9.]+,//g; s/,"ranks":\[[][0-9.,]+\]//g' "$1"; }

# Makes a tiny model folder with its own tokenizer, and a text: $dir/model, $dir/text.txt.
make_tiny() {
    seq 1 4000 | awk '{ print "line " $1 " says " ($1 * 7919 % 1000) " and " ($1 % 7 ? "goes on" : "stops.") }' > "$dir/text.txt"
    "$SUROGATE" tokenizer train --vocab-size 300 --out "$dir/tokenizer" "$dir/text.txt" 2> /dev/null
    "$SUROGATE" new --arch qwen3-tiny --random --tokenizer "$dir/tokenizer" "$dir/model" hidden_size=32 intermediate_size=48 \
        vocab_size=300 head_dim=8 "$@" 2> /dev/null
}

# make_text_run LINE...: as make_tiny, with 128 positions, and $dir/run.yaml, which trains the model on the text; LINEs are added to it.
make_text_run() {
    make_tiny max_position_embeddings=128
    printf '%s\n' "model: $dir/model" "datasets: [{path: $dir/text.txt}]" "sequence_len: 32" "model_dtype: fp32" "$@" > "$dir/run.yaml"
}
