/* int8_dequantise on CUDA. */
#include "ops/lowbit/int8.cuh"

enum { IN_CODES, IN_SCALE };

static Status int8_dequantise_run(const KernelArgs *args)
{
    const TensorView *w = &args->out[0];
    return int8_decode((const int8_t *)args->in[IN_CODES].data, (const float *)args->in[IN_SCALE].data, w->data, w->type.dtype,
                       w->type.dim[0], w->type.dim[1], cuda_stream(args));
}

CUDA_KERNELS(int8_dequantise, {.dtypes = DT_SET_FLOAT,
                               .run = int8_dequantise_run,
                               .name = "packs",
                               .except = {{.in = 1u << IN_CODES, .dtypes = DT_SET(DT_I8)}, {.in = 1u << IN_SCALE, .dtypes = DT_SET_F32}}})
