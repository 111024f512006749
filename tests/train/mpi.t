#!/bin/bash
# Ranks that mpirun starts give the run of one rank, although the run file says nothing of ranks. Skipped without mpirun.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
command -v mpirun > /dev/null || {
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
}
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export ASAN_OPTIONS=detect_leaks=0 # MPI leaks memory
make_text_run "max_steps: 6" "per_device_train_batch_size: 1" "gradient_accumulation_steps: 2" "device: cpu" "threads: 2" "dataset_cache_dir: $dir/cache"
losses() { sed -nE 's/.*"loss":([0-9.e+-]+).*/\1/p' "$1/metrics.jsonl"; }

run pt "$dir/run.yaml" output_dir="$dir/one" gpus=2 gradient_accumulation_steps=1
timeout 100 mpirun -n 2 "$SUROGATE" pt "$dir/run.yaml" output_dir="$dir/two" gradient_accumulation_steps=1 > "$dir/out" 2>&1
check "two processes of mpirun: exit $?, $(tail -3 "$dir/out")" [ -s "$dir/two/model.safetensors" ]
check "have the losses of two threads" [ -n "$(losses "$dir/one")" -a "$(losses "$dir/one")" = "$(losses "$dir/two")" ]
check "and their weights" cmp -s "$dir/one/model.safetensors" "$dir/two/model.safetensors"
timeout 100 mpirun -n 2 "$SUROGATE" pt "$dir/run.yaml" output_dir="$dir/no" gpus=2 > "$dir/out" 2>&1
check "gpus under mpirun is refused: $(cat "$dir/out")" grep -q "start mpirun -n 2 without gpus" "$dir/out"
timeout 100 mpirun -n 1 "$SUROGATE" pt "$dir/run.yaml" output_dir="$dir/alone" > "$dir/out" 2>&1
check "one process of mpirun: exit $?, $(tail -3 "$dir/out")" [ -s "$dir/alone/model.safetensors" ]
finish
