#!/bin/bash
# The stamp of the GPU tests covers all files that the plugin is compiled from, including headers of other folders. Needs no GPU: a tree of
# three files stands for the sources, compiled as in CMake's ninja files.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
if ! command -v ninja > /dev/null || ! command -v cc > /dev/null; then
    skip "no ninja or compiler here"
    finish
fi
mkdir -p "$dir/tools" "$dir/tests/cuda" "$dir/src/device/cuda" "$dir/src/ops/rows" "$dir/src/base" "$dir/build"
cp tools/cuda-stamp "$dir/tools/"
cd "$dir" || exit 1
echo '#include "base/b.h"' > src/device/cuda/a.c
echo '#include "base/c.def"' > src/base/b.h
echo 'enum { C };' > src/base/c.def
touch src/base/other.h src/device/cuda/plugin.c
cat > build/build.ninja << 'END'
rule cc
  command = cc -I../src -MD -MF $out.d -c $in -o $out
  deps = gcc
  depfile = $out.d
build CMakeFiles/surogate_cuda.dir/src/device/cuda/a.c.o: cc ../src/device/cuda/a.c
END
tells() { # NAME FILE: compare says that only this file differs
    tools/cuda-stamp compare "${3:-build}" > out
    check "$1: $(cat out)" grep -qx "$2" out
    check "$1: that alone: $(cat out)" [ "$(grep -c '^src/' out)" = 1 ]
}
silent() {
    tools/cuda-stamp compare "${2:-build}" > out
    check "$1: $(cat out)" [ ! -s out ]
}
check "no plugin, no stamp" [ "$(tools/cuda-stamp write 2>&1 | grep -c 'there is no CUDA plugin in build')" = 1 ]
ninja -C build > /dev/null
tools/cuda-stamp write > out
check "the stamp's first line is shown: $(cat out)" grep -qE '^[0-9a-f]{16} .* 20[0-9]{2}-' out
silent "nothing changed"
silent "nor without a plugin" none
echo '/* changed */' >> src/base/other.h
silent "a header that isn't included"
for file in src/device/cuda/a.c src/base/b.h src/base/c.def; do
    cp "$file" kept
    echo '/* changed */' >> "$file"
    tells "a changed file" "$file"
    tells "a changed file, without a plugin" "$file" none
    cp kept "$file"
done
silent "changed back"
touch src/ops/rows/new.cu
tells "a new source" src/ops/rows/new.cu
rm src/ops/rows/new.cu
mv src/base/c.def kept
tells "a removed header" src/base/c.def none
mv kept src/base/c.def
echo 'd0d0d0d0d0d0d0d0 NVIDIA H100 2026-01-01' > tests/cuda/stamp
tools/cuda-stamp compare > out
check "a stamp without files says that all differ" [ "$(grep -c '^src/' out)" = 3 ]
finish
