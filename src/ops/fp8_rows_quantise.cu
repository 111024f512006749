/* fp8_rows_quantise on CUDA: 16 threads take 128 numbers of a row, 8 each, which stay in registers between the search for the largest
 * magnitude and the coding; a thread block 16 rows at a time. x is read once. */
#include "device/cuda/fp8.cuh"
#include "ops/fp8_tiles.h"

enum { OUT_CODES, OUT_SCALE };
enum { ACROSS = FP8_TILE / 8, THREADS = 256, STEP = THREADS / ACROSS /* rows */, TURNS = 4, ROWS = STEP * TURNS };

/* The largest of the 16 threads that share a block of numbers. */
static __device__ __forceinline__ uint32_t row_most(uint32_t most)
{
#pragma unroll
    for (int apart = ACROSS / 2; apart; apart /= 2) most = max(most, __shfl_xor_sync(0xFFFFFFFFu, most, apart));
    return most;
}

static __device__ __forceinline__ void store_codes(uint8_t *codes, const uint32_t *words, bool wide, int64_t count)
{
    if (wide && count > 0) {
        *(uint2 *)codes = make_uint2(words[0], words[1]);
        return;
    }
#pragma unroll
    for (int k = 0; k < 8; k++)
        if (k < count) codes[k] = (uint8_t)(words[k / 4] >> (8 * (k % 4)));
}

/* codes, scales NULL: not wanted. wide: rows begin at multiples of 16 bytes, of codes of 8. */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    fp8_rows(const T *x, uint8_t *codes, float *scales, int64_t rows, int64_t cols, int64_t across, bool wide)
{
    int64_t  row = blockIdx.x / across * ROWS + threadIdx.x / ACROSS, block = blockIdx.x % across;
    int64_t  col = block * FP8_TILE + threadIdx.x % ACROSS * 8;
    Eight<T> eight[TURNS];
#pragma unroll
    for (int t = 0; t < TURNS; t++)
        if (row + t * STEP < rows) eight[t].load(x + (row + t * STEP) * cols + col, wide, cols - col);
#pragma unroll
    for (int t = 0; t < TURNS; t++) {
        float    v[8];
        uint32_t most = 0, words[2];
#pragma unroll
        for (int k = 0; k < 8; k++) {
            v[k] = eight[t].get(k);
            most = max(most, small_bits(v[k]) & 0x7FFFFFFFu);
        }
        float scale = fp8_row_scale(row_most(most)), inverse = 1 / scale;
        if (row + t * STEP >= rows) continue;
        if (scales && threadIdx.x % ACROSS == 0) scales[block * rows + row + t * STEP] = scale;
#pragma unroll
        for (int k = 0; k < 8; k++) v[k] *= inverse;
        words[0] = fp8_encode4(v, DT_E4M3);
        words[1] = fp8_encode4(v + 4, DT_E4M3);
        if (codes) store_codes(codes + (row + t * STEP) * cols + col, words, wide, cols - col);
    }
}

static Status fp8_rows_quantise_run(const KernelArgs *args)
{
    const TensorView *x = &args->in[0];
    uint8_t          *codes = (uint8_t *)args->out[OUT_CODES].data;
    int64_t           rows = type_rows(&x->type), cols = type_cols(&x->type), across = cuda_div_up(cols, FP8_TILE);
    int64_t           blocks = cuda_div_up(rows, ROWS) * across;
    bool              wide = cols % 8 == 0 && is_aligned16(x->data) && (uintptr_t)codes % 8 == 0;
    FAIL_IF(blocks > INT32_MAX, ERR_UNSUPPORTED, "fp8_rows_quantise is for at most %lld elements", (long long)INT32_MAX * ROWS * FP8_TILE);
    if (!blocks) return OK;
    CUDA_FLOAT(x->type.dtype, T, {
        fp8_rows<T><<<(unsigned)blocks, THREADS, 0, cuda_stream(args)>>>((const T *)x->data, codes, (float *)args->out[OUT_SCALE].data,
                                                                         rows, cols, across, wide);
    });
    return CUDA_LAUNCHED();
}

CUDA_KERNELS(fp8_rows_quantise, {.dtypes = DT_SET_FLOAT,
                                 .run = fp8_rows_quantise_run,
                                 .name = "rows",
                                 .except = {{.out = 1u << OUT_CODES, .dtypes = DT_SET(DT_E4M3)}}})
