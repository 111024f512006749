/* add_rms_norm on CUDA: a block a row. The norm is of s as it is stored, so that rms_norm of s gives the same bits. */
#include "ops/rms_norm.cuh"

enum { OUT_S, OUT_Y, OUT_RSTD, OUT_CODES };

static Status add_rms_norm_run(const KernelArgs *args)
{
    return run_rms_norm<true>(args, &args->in[0], &args->in[1], &args->in[2], &args->out[OUT_S], &args->out[OUT_Y],
                              (float *)args->out[OUT_RSTD].data, OUT_CODES);
}

CUDA_KERNELS(add_rms_norm, {.dtypes = DT_SET_FLOAT,
                            .run = add_rms_norm_run,
                            .name = "rows",
                            .except = {{.out = 1u << OUT_CODES, .dtypes = DT_SET(DT_E4M3)}}})
