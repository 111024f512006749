/* int8_quantise on CUDA: a thread block takes a row, and reads it twice: to find its largest magnitude, and to encode it. */
#include "device/cuda/vec.cuh"
#include "ops/lowbit/block_most.cuh"
#include "ops/lowbit/int8.h"

enum { OUT_CODES, OUT_SCALE };
enum { THREADS = 256 };

/* codes, scales NULL: not wanted. */
template <typename T>
static __global__ void __launch_bounds__(THREADS) int8_rows(const T *x, int8_t *codes, float *scales, int64_t rows, int64_t cols)
{
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        const T *from = x + row * cols;
        uint32_t most = 0;
        for (int64_t i = threadIdx.x; i < cols; i += THREADS) most = max(most, small_magnitude(to_float(from[i])));
        float scale = int8_scale(block_most<THREADS>(most));
        if (scales && threadIdx.x == 0) scales[row] = scale;
        for (int64_t i = threadIdx.x; i < cols && codes; i += THREADS) codes[row * cols + i] = int8_code(to_float(from[i]), scale);
    }
}

static Status int8_quantise_run(const KernelArgs *args)
{
    const TensorView *x = &args->in[0];
    int64_t           rows = x->type.dim[0], cols = x->type.dim[1];
    CUDA_FLOAT(x->type.dtype, T, {
        int8_rows<T><<<cuda_grid(rows, 1), THREADS, 0, cuda_stream(args)>>>((const T *)x->data, (int8_t *)args->out[OUT_CODES].data,
                                                                            (float *)args->out[OUT_SCALE].data, rows, cols);
    });
    return CUDA_LAUNCHED();
}

CUDA_KERNELS(int8_quantise, {.dtypes = DT_SET_FLOAT,
                             .run = int8_quantise_run,
                             .name = "rows",
                             .except = {{.out = 1u << OUT_CODES, .dtypes = DT_SET(DT_I8)}}})
