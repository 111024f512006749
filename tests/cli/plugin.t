#!/bin/bash
# Which CUDA plugin is opened: that of the driver's generation, else the one that is there. Driver and plugins are stand-ins.
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

driver() { # VERSION: what the driver knows; "": there is none
    rm -f "$dir/driver/libcuda.so.1"
    [ -z "$1" ] || echo "int cuDriverGetVersion(int *out) { *out = $1; return 0; }" | "$CC" -shared -fPIC -x c -o "$dir/driver/libcuda.so.1" -
}
plugins() { # FILE...: those that are there
    rm -f "$dir"/bin/*.so
    for file; do echo "int nothing;" | "$CC" -shared -fPIC -x c -o "$dir/bin/$file" -; done
}
opens() { # NAME FILE
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
echo broken > "$dir/bin/libsurogate_cuda12.so"
"$dir/bin/surogate" doctor --gpu 0 > "$dir/out" 2> "$dir/err"
check "one that can't be opened is named" grep -q "cannot open the plugin: .*libsurogate_cuda12.so" "$dir/err"
finish
