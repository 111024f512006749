# shellcheck shell=bash
export LC_ALL=C # for sorted lists
# collect TREE FOLDER: writes into FOLDER lists of the names that $SUROGATE and the package of TREE have. The current folder holds run.yaml
# and a log.
collect() {
    local tree=$1 out=$2 keys
    "$SUROGATE" help keys --schema | "$PYTHON" "$names" keys > "$out/keys.txt"
    # shellcheck disable=SC2046
    "$SUROGATE" help keys $(sed -nE 's/^OPTION\(run, [A-Z]+, (\w+),.*/\1/p; s/^OPTION\(dataset, [A-Z]+, (\w+),.*/datasets.\1/p' \
        "$tree/src/config/options.def") | "$PYTHON" "$names" others > "$out/others.txt"
    "$SUROGATE" plan run.yaml --json --gpu h200 2> plan.err | "$PYTHON" "$names" plan > "$out/plan.txt"
    "$PYTHON" "$names" metrics < whole/metrics.jsonl > "$out/metrics.txt"
    local library
    library=$(dirname "$SUROGATE")/libsurogate.so
    [ ! -e "$library" ] || PYTHONPATH=$tree/python SUROGATE_LIBRARY=$library "$PYTHON" "$names" python > "$out/python.txt"
    "$SUROGATE" help explain | tr -s '\n ' ' ' | grep -oE ' --program [^)]*' | sed -E 's/.*NAME +//; s/ \(.*//; s/or of ranks//' | tr -s ', ' '\n' | sort > "$out/programs.txt"
}
