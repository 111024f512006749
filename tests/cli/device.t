#!/bin/bash
# A machine without a GPU isn't mentioned, except that a run says once which device it trains on.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
if ldconfig -p 2> /dev/null | grep -q 'libcuda\.so\.1'; then
    skip "there is an NVIDIA driver here"
    finish
fi
make_text_run "output_dir: $dir/made" "max_steps: 2"
head -c 200 "$dir/text.txt" > "$dir/short.txt"
said() { grep -c "running on the CPU" "$dir/err"; }
run pt "$dir/run.yaml"
check "a run says it once: $(cat "$dir/err")" [ "$(said)" = 1 ]
run pt "$dir/run.yaml" output_dir="$dir/cpu" device=cpu
check "not where the CPU was asked for" [ "$(said)" = 0 ]
for command in "generate $dir/made --prompt line --max-tokens 3" "eval $dir/made --text $dir/short.txt" "plan $dir/run.yaml" \
    "explain $dir/run.yaml" "bench $dir/run.yaml --steps 1"; do
    # shellcheck disable=SC2086
    run $command
    check "${command%% *} ends well" [ "$status" = 0 ]
    check "${command%% *} doesn't say it: $(cat "$dir/err")" [ "$(said)" = 0 ]
done
refused "a GPU that was asked for" 2 "device cuda" -- eval "$dir/made" --text "$dir/short.txt" --device cuda
for flags in "" --no-speed; do
    # shellcheck disable=SC2086
    run doctor $flags
    check "doctor $flags has nothing to check: $(cat "$dir/err")" [ "$status/$(cat "$dir/err")" = 0/ ]
    check "and says so" grep -q "^there is no NVIDIA driver here (libcuda.so.1) and no GPU to check: runs use the CPU$" "$dir/out"
done
refused "a GPU that is to be checked" 2 "device cuda" -- doctor --gpu 0
refused "an op of a GPU" 2 "device cuda" -- doctor --op rms_norm
finish
