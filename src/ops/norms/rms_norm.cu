/* rms_norm on CUDA: a block has a row. Reads x twice (once from cache), writes y and its codes. Sums are fp32, in a fixed order. */
#include "ops/norms/rms_norm.cuh"

enum { IN_X, IN_W, IN_SCALE };
enum { OUT_Y, OUT_RSTD, OUT_CODES, OUT_MORE };

static Status rms_norm_run(const KernelArgs *args)
{
    const TensorView none = {};
    return run_rms_norm<false>(args, &args->in[IN_X], &none, &args->in[IN_W], &none, &args->out[OUT_Y], (float *)args->out[OUT_RSTD].data,
                               OUT_CODES, IN_SCALE);
}

CUDA_KERNELS(rms_norm, {.dtypes = DT_SET_DECODE,
                        .run = rms_norm_run,
                        .name = "rows",
                        .except = {{.out = 1u << OUT_CODES | 1u << OUT_MORE, .dtypes = DT_SET_FP8 | DT_SET_F32}}})
