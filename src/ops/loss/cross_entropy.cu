/* cross_entropy on CUDA: losses, lse and hits of rows of logits. */
#include "device/cuda/vec_f16.cuh"
#include "ops/loss/cross_entropy.cuh"

static Status cross_entropy_run(const KernelArgs *args)
{
    const TensorView *logits = &args->in[0];
    CUDA_FLOAT_ANY(logits->type.dtype, T,
                   launch_loss_rows<T>((T *)logits->data, (const int32_t *)args->in[1].data, NULL, type_rows(&logits->type),
                                       type_cols(&logits->type), (float *)args->out[0].data, (float *)args->out[1].data,
                                       (float *)args->out[2].data, 0, cuda_stream(args)));
    return CUDA_LAUNCHED();
}

CUDA_KERNELS(cross_entropy, {.dtypes = DT_SET_DECODE, .run = cross_entropy_run, .name = "rows"})
