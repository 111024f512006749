/* lm_head_loss on CUDA: losses of x w^T, by chunks of rows. */
#include "ops/loss/lm_head.cuh"

static LmHead head_of_args(const KernelArgs *args)
{
    LmHead h = {};
    h.x = args->in[0], h.w = args->in[1];
    h.labels = (const int32_t *)args->in[2].data;
    h.losses = (float *)args->out[0].data;
    h.hits = (float *)args->out[1].data;
    h.chunks = ((const LmHeadAttrs *)args->attrs)->chunks;
    h.softcap = (float)((const LmHeadAttrs *)args->attrs)->softcap;
    return h;
}

static Status prepare(const KernelArgs *args)
{
    LmHead h = head_of_args(args);
    return lm_head_chunks(&h, args, false);
}

static Status run(const KernelArgs *args)
{
    LmHead h = head_of_args(args);
    return lm_head_chunks(&h, args, true);
}

CUDA_KERNELS(lm_head_loss, {.dtypes = DT_SET_DECODE, .run = run, .name = "chunks", .workspace = cuda_planned_workspace, .prepare = prepare})
