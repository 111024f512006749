/* gather_row on CUDA: a block has a batch row. An index outside the row gives NaN. */
#include "device/cuda/vec_f16.cuh"
#include "ops/rows.cuh"

static __global__ void gather_row_elements(TensorView x, const int32_t *index, TensorView y, int64_t len, int64_t cols)
{
    int32_t i = index[blockIdx.x];
    bool    inside = i >= 0 && i < len;
    for (int64_t c = threadIdx.x; c < cols; c += blockDim.x)
        any_set(y.data, y.type.dtype, blockIdx.x * cols + c,
                inside ? any_get(x.data, x.type.dtype, (blockIdx.x * len + i) * cols + c) : NAN);
}

static Status gather_row_run(const KernelArgs *args)
{
    const TensorView *x = &args->in[0];
    gather_row_elements<<<(unsigned)x->type.dim[0], 256, 0, cuda_stream(args)>>>(*x, (const int32_t *)args->in[1].data, args->out[0],
                                                                                 x->type.dim[1], x->type.dim[2]);
    return CUDA_LAUNCHED();
}

CUDA_KERNELS(gather_row, {.dtypes = DT_SET_DECODE, .run = gather_row_run, .name = "rows"})
