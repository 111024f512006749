#!/bin/bash
# With latent attention, the output says in which form keys and values are cached, and how large the cache is.
cd "$(dirname "$0")/../.." || exit 1
. tests/shell.sh
model=tests/fixtures/architectures/deepseek_v3

# told FLAGS: the lines of `inspect` about decoding.
told() { "$SUROGATE" inspect $model --context 64 "$@" | grep -E '^(decoding|latent) '; }

told > "$dir/here"
check "a CPU keeps latents: $(cat "$dir/here")" grep -q '^latent     2 layers keep latents in the KV cache: 16 numbers of a token, in place of 36$' "$dir/here"
check "of 4096 rows, 16 MiB" grep -q 'KV cache 16.00 MiB' "$dir/here"
told --kv fp8 > "$dir/codes"
check "half of that in FP8" grep -q 'KV cache 8.00 MiB' "$dir/codes"
told --gpu h200 > "$dir/gpu"
check "so does a GPU: $(cat "$dir/gpu")" grep -q '^latent     2 layers keep latents in the KV cache: 16 numbers' "$dir/gpu"
check "of 4096 rows, 16 MiB" grep -q 'KV cache 16.00 MiB' "$dir/gpu"
told --quantization int8 > "$dir/few"
check "a model in few bits keeps keys and values: $(cat "$dir/few")" grep -q 'the weights that make them are kept in few bits$' "$dir/few"

"$SUROGATE" inspect tests/fixtures/families/qwen3 --context 64 > "$dir/other"
check "other attention has no such line" [ "$(grep -c "^latent" "$dir/other")" = 0 ]

printf '%s\n' "model: $model" "output_dir: $dir/out" "device: cpu" > "$dir/run.yaml"
"$SUROGATE" explain "$dir/run.yaml" --program decode > "$dir/explained" 2> "$dir/err"
check "explain says it: $(cat "$dir/err")" grep -q '^latent: 2 layers keep latents' "$dir/explained"
finish
