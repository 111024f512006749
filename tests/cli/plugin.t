#!/bin/bash
# Which CUDA plugin is opened: the one for the driver's CUDA version, otherwise the one that exists. Driver and plugins are stand-ins.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
CC=${CC:-cc}
command -v "$CC" > /dev/null || {
    skip "no compiler here"
    finish
}
mkdir "$dir/bin" "$dir/driver"
cp "$SUROGATE" "$dir/bin/surogate"
export LD_LIBRARY_PATH=$dir/driver
unset SUROGATE_CUDA_PLUGIN

driver() { # VERSION: CUDA version of the driver; "": no driver
    rm -f "$dir/driver/libcuda.so.1"
    [ -z "$1" ] || echo "int cuDriverGetVersion(int *out) { *out = $1; return 0; }" | "$CC" -shared -fPIC -x c -o "$dir/driver/libcuda.so.1" -
}
plugins() { # FILE...: the plugins that exist
    rm -f "$dir"/bin/*.so
    for file; do echo "int nothing;" | "$CC" -shared -fPIC -x c -o "$dir/bin/$file" -; done
}
opens() { # NAME FILE: the program opens plugin FILE
    "$dir/bin/surogate" doctor --gpu 0 > "$dir/out" 2> "$dir/err"
    if grep -qF "/bin/$2 lacks surogate_cuda_create" "$dir/err"; then pass; else fail "$1: $(cat "$dir/err")"; fi
}

plugins libsurogate_cuda.so libsurogate_cuda12.so
driver 13000
opens "a driver of CUDA 13" libsurogate_cuda.so
driver 12080
opens "a driver of CUDA 12" libsurogate_cuda12.so
driver 14000
opens "a later driver" libsurogate_cuda.so
driver ""
opens "no driver" libsurogate_cuda.so
plugins libsurogate_cuda12.so
driver 13000
opens "CUDA 12's serves a driver of CUDA 13" libsurogate_cuda12.so
plugins libsurogate_cuda.so
driver 12090
opens "CUDA 13's says what it lacks on a driver of CUDA 12" libsurogate_cuda.so
for folder in lib lib64 lib/x86_64-linux-gnu; do
    plugins libsurogate_cuda.so
    mkdir -p "$dir/$folder"
    mv "$dir/bin/libsurogate_cuda.so" "$dir/$folder/"
    opens "beside the program's folder, in $folder" "../$folder/libsurogate_cuda.so"
    rm -r "${dir:?}/${folder%%/*}"
done
plugins
"$dir/bin/surogate" doctor --gpu 0 > "$dir/out" 2> "$dir/err"
check "both are looked for" grep -q "no plugin (looked for .*libsurogate_cuda12.so, .*libsurogate_cuda.so" "$dir/err"

# gpu MAJOR MINOR NAME: a driver with one GPU. MAJOR "": the GPU doesn't report its compute capability.
gpu() {
    "$CC" -shared -fPIC -x c -o "$dir/driver/libcuda.so.1" - << EOC
#include <stdio.h>
int cuDriverGetVersion(int *out) { *out = 12080; return 0; }
int cuInit(unsigned flags) { return (int)flags; }
int cuDeviceGet(int *out, int index) { *out = 7; return index; }
int cuDeviceGetName(char *out, int size, int gpu) { return gpu != 7 || snprintf(out, size, "$3") < 0; }
int cuDeviceGetAttribute(int *out, int attribute, int gpu) { *out = attribute == 75 ? ${1:-0} : $2; return gpu != 7 || ${1:-0} == 0; }
EOC
}
# told NAME TEXT COMMAND...: stderr has the text.
told() {
    local name=$1 text=$2
    shift 2
    "$dir/bin/surogate" "$@" > "$dir/out" 2> "$dir/err"
    if grep -qF -e "$text" "$dir/err"; then pass; else fail "$name: $(cat "$dir/err")"; fi
}
plugins
gpu 7 5 "Tesla T4"
old="GPU 0, Tesla T4, has compute capability 7.5; at least 8.0 is needed"
told "a GPU that is too old, before a plugin is looked for" "$old" doctor --gpu 0
told "doctor without a word" "$old" doctor
make_text_run "output_dir: $dir/made" "max_steps: 1"
told "a run that wants it" "$old" pt "$dir/run.yaml" device=cuda
check "it trains nothing" test ! -e "$dir/made/model.safetensors"
told "a run of any device says why it takes the CPU" "running on the CPU: device cuda: $old" pt "$dir/run.yaml" device=auto
check "and trains there" test -e "$dir/made/model.safetensors"
gpu 8 0 "NVIDIA A100"
told "one that will do lacks the plugin only" "there is no plugin" doctor --gpu 0
gpu "" 0 "unknown"
told "one that doesn't tell is left to the plugin" "there is no plugin" doctor --gpu 0
driver 13000
echo broken > "$dir/bin/libsurogate_cuda12.so"
"$dir/bin/surogate" doctor --gpu 0 > "$dir/out" 2> "$dir/err"
check "one that can't be opened is named" grep -q "cannot open the plugin: .*libsurogate_cuda12.so" "$dir/err"
finish
