/* fp8_tiles_quantise on CUDA: a thread block takes a tile, a thread 8 elements side by side in each of 8 rows. The tile stays in registers
 * between the search for the largest magnitude and the encoding. x is read once. */
#include "device/cuda/vec.cuh"
#include "ops/lowbit/block_most.cuh"
#include "ops/lowbit/fp8_tiles.h"

enum { OUT_CODES, OUT_SCALE };
enum { ACROSS = FP8_TILE / 8, THREADS = 256, STEP = THREADS / ACROSS /* rows at a time */, TURNS = FP8_TILE / STEP };

static __device__ __forceinline__ void store_codes(uint8_t *codes, const uint8_t *in, bool wide, int64_t count)
{
    if (wide && count > 0) {
        *(uint2 *)codes = *(const uint2 *)in;
        return;
    }
#pragma unroll
    for (int k = 0; k < 8; k++)
        if (k < count) codes[k] = in[k];
}

/* codes, scales NULL: not wanted. wide: rows are aligned to 16 bytes, rows of codes to 8. */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    fp8_tiles(const T *x, uint8_t *codes, float *scales, int64_t rows, int64_t cols, int64_t across, int64_t tiles, bool wide)
{
    for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        int64_t  row = tile / across * FP8_TILE + threadIdx.x / ACROSS, col = tile % across * FP8_TILE + threadIdx.x % ACROSS * 8;
        Eight<T> eight[TURNS];
        uint32_t most = 0;
#pragma unroll
        for (int t = 0; t < TURNS; t++)
            if (row + t * STEP < rows) eight[t].load(x + (row + t * STEP) * cols + col, wide, cols - col);
#pragma unroll
        for (int t = 0; t < TURNS; t++)
#pragma unroll
            for (int k = 0; k < 8; k++) most = max(most, small_magnitude(eight[t].get(k)));
        float scale = fp8_tile_scale(block_most<THREADS>(most));
        if (scales && threadIdx.x == 0) scales[tile] = scale;
#pragma unroll
        for (int t = 0; t < TURNS; t++) {
            __align__(8) uint8_t code[8];
            if (!codes || row + t * STEP >= rows) break;
#pragma unroll
            for (int k = 0; k < 8; k++) code[k] = (uint8_t)fp8_tile_code(eight[t].get(k), scale);
            store_codes(codes + (row + t * STEP) * cols + col, code, wide, cols - col);
        }
    }
}

static Status fp8_tiles_quantise_run(const KernelArgs *args)
{
    const TensorView *x = &args->in[0];
    uint8_t          *codes = (uint8_t *)args->out[OUT_CODES].data;
    int64_t           rows = x->type.dim[0], cols = x->type.dim[1], across = cuda_div_up(cols, FP8_TILE);
    int64_t           tiles = cuda_div_up(rows, FP8_TILE) * across;
    bool              wide = cols % 8 == 0 && is_aligned16(x->data) && (uintptr_t)codes % 8 == 0;
    CUDA_FLOAT(x->type.dtype, T, {
        fp8_tiles<T><<<cuda_grid(tiles, 1), THREADS, 0, cuda_stream(args)>>>((const T *)x->data, codes, (float *)args->out[OUT_SCALE].data,
                                                                             rows, cols, across, tiles, wide);
    });
    return CUDA_LAUNCHED();
}

CUDA_KERNELS(fp8_tiles_quantise, {.dtypes = DT_SET_FLOAT,
                                  .run = fp8_tiles_quantise_run,
                                  .name = "tiles",
                                  .except = {{.out = 1u << OUT_CODES, .dtypes = DT_SET(DT_E4M3)}}})
