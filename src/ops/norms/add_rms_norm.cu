/* add_rms_norm on CUDA: a block has a row. The norm is of s as it is stored, so rms_norm(s, w) gives the same bits. */
#include "ops/norms/rms_norm.cuh"

enum { IN_A, IN_B, IN_W, IN_SCALE };
enum { OUT_S, OUT_Y, OUT_RSTD, OUT_CODES, OUT_MORE };

static Status add_rms_norm_run(const KernelArgs *args)
{
    return run_rms_norm<true>(args, &args->in[IN_A], &args->in[IN_B], &args->in[IN_W], &args->out[OUT_S], &args->out[OUT_Y],
                              (float *)args->out[OUT_RSTD].data, OUT_CODES, IN_SCALE);
}

CUDA_KERNELS(add_rms_norm, {.dtypes = DT_SET_DECODE,
                            .run = add_rms_norm_run,
                            .name = "rows",
                            .except = {{.out = 1u << OUT_CODES | 1u << OUT_MORE, .dtypes = DT_SET_FP8 | DT_SET_F32}}})
