/* lm_head_loss_bwd: losses again, with dx and dw, in one pass over chunks of rows. */
#include "ops/lm_head.cuh"

enum { IN_DLOSSES, IN_X, IN_W, IN_LABELS, IN_ACC };
enum { OUT_LOSSES, OUT_DX, OUT_DW };

static LmHead head_of_types(const TensorType *x, const TensorType *w)
{
    LmHead h = {};
    h.rows = type_rows(x), h.channels = type_cols(x), h.vocab = w->dim[0];
    h.x_dtype = x->dtype, h.w_dtype = w->dtype;
    return h;
}

static LmHead head_of_args(const KernelArgs *args)
{
    LmHead h = head_of_types(&args->in[IN_X].type, &args->in[IN_W].type);
    h.x = args->in[IN_X].data, h.w = args->in[IN_W].data;
    h.labels = (const int32_t *)args->in[IN_LABELS].data;
    h.dlosses = (const float *)args->in[IN_DLOSSES].data;
    h.losses = (float *)args->out[OUT_LOSSES].data;
    h.dx = args->out[OUT_DX].data, h.dw = args->out[OUT_DW].data;
    h.dx_dtype = args->out[OUT_DX].type.dtype, h.dw_dtype = args->out[OUT_DW].type.dtype;
    h.accumulate = args->accumulate >> OUT_DW & 1;
    return h;
}

static size_t workspace(const Node *node, CudaDevice *)
{
    LmHead h = head_of_types(&node->in[IN_X]->type, &node->in[IN_W]->type);
    return lm_head_workspace(&h);
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
             {.dtypes = DT_SET_FLOAT, .run = run, .name = "chunks", .workspace = workspace, .prepare = prepare})
