/* add_identity on CUDA: packs of 8 elements, with at most one of them on the diagonal. Memory-bound. */
#include "ops/rows.cuh"

enum { THREADS = 256, WIDTH = 8 };

/* Grid: pieces of a row x rows. */
template <typename T>
static __global__ void __launch_bounds__(THREADS) add_identity_rows(const T *x, T *y, int64_t n, float a, float b, bool whole)
{
    int64_t col = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * WIDTH;
    float   v[WIDTH];
    if (col >= n) return;
    for (int64_t row = blockIdx.y; row < n; row += gridDim.y) {
        if (!whole) {
            for (int64_t c = col; c < col + WIDTH && c < n; c++)
                y[row * n + c] = from_float<T>(b * to_float(x[row * n + c]) + (row == c ? a : 0));
            continue;
        }
        load_n<WIDTH>(x + row * n + col, v);
#pragma unroll
        for (int k = 0; k < WIDTH; k++) v[k] = b * v[k] + (row == col + k ? a : 0);
        store_n<WIDTH>(y + row * n + col, v);
    }
}

static Status add_identity_run(const KernelArgs *args)
{
    const AddIdentityAttrs *attrs = (const AddIdentityAttrs *)args->attrs;
    const TensorView       *x = &args->in[0], *y = &args->out[0];
    int64_t                 n = x->type.dim[0];
    bool                    whole = n % WIDTH == 0 && is_aligned16(x->data) && is_aligned16(y->data);
    dim3                    grid((unsigned)cuda_div_up(n, THREADS * WIDTH), (unsigned)(n < 65535 ? n : 65535));
    CUDA_FLOAT(x->type.dtype, T,
               add_identity_rows<T>
               <<<grid, THREADS, 0, cuda_stream(args)>>>((const T *)x->data, (T *)y->data, n, (float)attrs->a, (float)attrs->b, whole));
    return CUDA_LAUNCHED();
}

CUDA_KERNELS(add_identity, {.dtypes = DT_SET_FLOAT, .run = add_identity_run, .name = "rows"})
