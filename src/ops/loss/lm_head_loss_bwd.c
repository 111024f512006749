/* lm_head_loss_bwd: computes losses and hits again, with dx and dw, in one pass over chunks of rows (code in lm_head_loss.c). */
#include "ops/loss/lm_head.h"
#include "ops/loss/lm_head_chunks.h"

enum { IN_DLOSSES, IN_X, IN_W, IN_LABELS, IN_ACC };
enum { OUT_LOSSES, OUT_DX, OUT_DW, OUT_HITS };

static const AttrDef lm_head_loss_bwd_attrs[] = {ATTR_DTYPE(LmHeadBwdAttrs, dw_dtype),      ATTR_INT(LmHeadBwdAttrs, chunks, 0),
                                                 ATTR_FLOAT(LmHeadBwdAttrs, softcap, 0),    ATTR_BOOL(LmHeadBwdAttrs, hits, false),
                                                 ATTR_BOOL(LmHeadBwdAttrs, sum_f32, false), {0}};

/* dlosses (...) f32, x (...,C), w (V,C), labels i32 (...), [acc dw] -> losses (...) f32, dx of x's type, dw in x's dtype unless attribute
 * dw_dtype says another, [hits (...) f32]. */
static Status lm_head_loss_bwd_infer(Node *node)
{
    TRY(infer_float(node, IN_X, "x", 2));
    const TensorType *x = &node->in[IN_X]->type;
    TensorType        losses = type_without_last(x, DT_F32);
    TRY(infer_like(node, IN_DLOSSES, "dlosses", DT_SET_F32, &losses));
    TRY(infer_input(node, IN_W, "w", DT_SET_FLOAT, DIMS(-1, type_cols(x))));
    TRY(infer_labels(node, IN_LABELS, x));
    TensorType dw = type_as(&node->in[IN_W]->type, x->dtype);
    TRY(infer_dw(node, IN_ACC, "acc", ((const LmHeadBwdAttrs *)node->attrs)->dw_dtype, &dw));
    node->out[OUT_LOSSES]->type = losses;
    node->out[OUT_DX]->type = *x;
    node->out[OUT_DW]->type = dw;
    if (((const LmHeadBwdAttrs *)node->attrs)->hits) node->out[OUT_HITS]->type = losses;
    return OK;
}

static OpCost lm_head_loss_bwd_cost(const Node *node)
{
    int    products = 1 + (node->out[OUT_DX] != NULL) + (node->out[OUT_DW] != NULL);
    OpCost cost = cost_streaming(node, 2.0 * products * (double)type_numel(&node->in[IN_X]->type) * (double)node->in[IN_W]->type.dim[0]);
    cost.matrix_unit = true;
    return cost;
}

static size_t lm_head_loss_bwd_gpu_workspace(const Node *node, int sm)
{
    (void)sm;
    const LmHeadBwdAttrs *attrs = node->attrs;
    const TensorType     *x = &node->in[IN_X]->type, *w = &node->in[IN_W]->type;
    const Value          *dw = node->out[OUT_DW];
    bool                  apart = dw && lm_head_sums_apart(x, w->dim[0], dw->type.dtype, attrs);
    return lm_head_gpu_workspace(x, w->dim[0], dw != NULL, attrs->chunks) + (apart ? (size_t)dtype_bytes(DT_F32, type_numel(w)) : 0);
}

/* Whether dlogits are rounded to bf16: not if dw is wanted in fp32. */
static bool narrow(const TensorType *x, const TensorType *w, const LmHeadBwdAttrs *attrs)
{
    return x->dtype == DT_BF16 && w->dtype == DT_BF16 && attrs->dw_dtype != DTYPE_TO_ATTR(DT_F32);
}

static size_t lm_head_loss_bwd_workspace(const Node *node, int num_workers)
{
    const TensorType *x = &node->in[IN_X]->type, *w = &node->in[IN_W]->type;
    LmHead            head = {.rows = type_rows(x), .channels = type_cols(x), .vocab = w->dim[0], .x.type = *x, .w.type = *w};
    head.narrow = narrow(x, w, node->attrs);
    /* data is only compared with NULL */
    if (node->out[OUT_DX]) head.dx = (TensorView){&head, node->out[OUT_DX]->type};
    if (node->out[OUT_DW]) head.dw = (TensorView){&head, node->out[OUT_DW]->type};
    return lm_head_workspace(&head, num_workers);
}

static LmHead lm_head_loss_bwd_bound(const KernelArgs *args)
{
    const TensorType *x = &args->in[IN_X].type, *w = &args->in[IN_W].type;
    return (LmHead){.rows = type_rows(x),
                    .channels = type_cols(x),
                    .vocab = w->dim[0],
                    .x = args->in[IN_X],
                    .w = args->in[IN_W],
                    .labels = args->in[IN_LABELS].data,
                    .dlosses = args->in[IN_DLOSSES].data,
                    .losses = args->out[OUT_LOSSES].data,
                    .hits = args->out[OUT_HITS].data,
                    .dx = args->out[OUT_DX],
                    .dw = args->out[OUT_DW],
                    .accumulate = args->accumulate >> OUT_DW & 1,
                    .softcap = (float)((const LmHeadBwdAttrs *)args->attrs)->softcap,
                    .narrow = narrow(x, w, args->attrs)};
}

static Status lm_head_loss_bwd_chunks(const KernelArgs *args)
{
    LmHead head = lm_head_loss_bwd_bound(args);
    lm_head_run(&head, args->pool, args->workspace);
    return OK;
}

static Status lm_head_loss_bwd_reference(const KernelArgs *args)
{
    LmHead head = lm_head_loss_bwd_bound(args);
    lm_head_reference(&head, args->workspace);
    return OK;
}

const OpDef op_lm_head_loss_bwd = {
    .id = OP_LM_HEAD_LOSS_BWD,
    .name = "lm_head_loss_bwd",
    .synopsis = "losses, dx = dlogits w, dw = dlogits^T x; dlogits = dloss (softmax(x w^T) - one_hot(label)), times the slope of "
                "softcap; hits as in cross_entropy",
    .num_in = 5,
    .num_out = 4,
    .min_in = 4,
    .alias = {{.out = OUT_DW, .in = IN_ACC, .accumulate = true}},
    .num_alias = 1,
    .attrs_size = sizeof(LmHeadBwdAttrs),
    .attrs = lm_head_loss_bwd_attrs,
    .infer = lm_head_loss_bwd_infer,
    .flags = OP_BY_LABEL,
    .cost = lm_head_loss_bwd_cost,
    .workspace = lm_head_loss_bwd_workspace,
    .gpu_workspace = lm_head_loss_bwd_gpu_workspace,
    .cpu = {{DT_SET_FLOAT, lm_head_loss_bwd_chunks, "chunks"}, {DT_SET_FLOAT, lm_head_loss_bwd_reference, "reference"}},
    .holds = {[IN_LABELS] = HOLDS_LABELS},
    .samples = "[2,3], [2,3,5], [7,5], i32[2,3] below=7, [7,5]\n"
               "[2,40], [2,40,12], [1100,12], i32[2,40] below=1100\n"
               "[2,40], [2,40,12], [60,12], i32[2,40] below=60 {dw_dtype=f32}\n"
               "[2,40], [2,40,12], [1100,12], i32[2,40] below=1100 {softcap=1.5}\n"
               "[2,40], [2,40,12], [12,12], i32[2,40] below=12 {dw_dtype=f32, hits=true}\n",
    .large = "[2,200], [2,200,32], [4000,32], i32[2,200] below=4000, [4000,32]\n"
             "[2,200], [2,200,32], [4000,32], i32[2,200] below=4000 {dw_dtype=f32}\n"
             "[2,200], [2,200,32], [4000,32], i32[2,200] below=4000 {softcap=1.5}\n"
             "[2,1100], [2,1100,32], [60,32], i32[2,1100] below=60, [60,32] {chunks=2}\n"
             "[2,1100], [2,1100,32], [60,32], i32[2,1100] below=60, [60,32] {chunks=2, sum_f32=true}\n"
             "[2,1100], [2,1100,32], [60,32], i32[2,1100] below=60 {chunks=2, sum_f32=true}\n",
};
