#!/bin/bash
# What `make quickstart` builds: the program, and the CUDA plugin if there are a GPU and nvcc. Also what make passes on to CMake.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
mkdir "$dir/bin"
cat > "$dir/bin/cmake" << 'END'
#!/bin/sh
case "$*" in
*"--target help") cat "$TARGETS" ;;
*--build*) echo "$*" ;;
esac
END
chmod +x "$dir/bin/cmake"
printf '%s\n' "all: phony" "surogate: phony" > "$dir/plain"
printf '%s\n' "libsurogate_cuda.so: CUDA_SHARED_LIBRARY_LINKER" "surogate: phony" "surogate_cuda: phony" > "$dir/nvcc"
# targets TARGETS GPU: prints what is built.
targets() { TARGETS=$dir/$1 PATH=$dir/bin:$PATH make -s quickstart-build BUILD="$dir/build" GPU="$2" 2>&1 | sed -n 's/.*--target //p'; }
check "a GPU and nvcc: $(targets nvcc /dev/null)" [ "$(targets nvcc /dev/null)" = "surogate surogate_cuda" ]
check "a GPU without nvcc" [ "$(targets plain /dev/null)" = surogate ]
check "nvcc without a GPU" [ "$(targets nvcc "$dir/no-gpu")" = surogate ]
flags() { make -n configure BUILD="$dir/build" "$@" | grep '^cmake'; }
check "CMAKE_FLAGS reach CMake" grep -q -- '-DCUDA=0 -DUSE_MPI=OFF -DOTHER=1 ' <(flags CUDA=0 CMAKE_FLAGS='-DUSE_MPI=OFF -DOTHER=1')
check "which says what it doesn't know of them" [ "$(flags CMAKE_FLAGS=-DOTHER=1 | grep -c no-warn-unused)" = 0 ]
check "and nothing without them" [ "$(flags | grep -c no-warn-unused)" = 1 ]
finish
