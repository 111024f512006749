/* lm_head_loss_bwd on CUDA: computes losses and hits again, with dx and dw, in one pass over chunks of rows. */
#include "ops/loss/lm_head.cuh"

enum { IN_DLOSSES, IN_X, IN_W, IN_LABELS, IN_ACC };
enum { OUT_LOSSES, OUT_DX, OUT_DW, OUT_HITS };

static LmHead head_of_args(const KernelArgs *args)
{
    LmHead h = {};
    h.x = args->in[IN_X], h.w = args->in[IN_W];
    h.labels = (const int32_t *)args->in[IN_LABELS].data;
    h.dlosses = (const float *)args->in[IN_DLOSSES].data;
    h.losses = (float *)args->out[OUT_LOSSES].data;
    h.hits = (float *)args->out[OUT_HITS].data;
    h.dx = args->out[OUT_DX], h.dw = args->out[OUT_DW];
    h.accumulate = args->accumulate >> OUT_DW & 1;
    h.chunks = ((const LmHeadBwdAttrs *)args->attrs)->chunks;
    h.softcap = (float)((const LmHeadBwdAttrs *)args->attrs)->softcap;
    h.sums_apart = h.dw.data && lm_head_sums_apart(&h.x.type, h.w.type.dim[0], h.dw.type.dtype, (const LmHeadBwdAttrs *)args->attrs);
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

CUDA_KERNELS(lm_head_loss_bwd,
             {.dtypes = DT_SET_FLOAT, .run = run, .name = "chunks", .workspace = cuda_planned_workspace, .prepare = prepare})
