/* pick: reads from each row the element in the column that an id names (for example a label's log-probability), or K elements by K ids. The
 * result is f32: 0 where an id is IGNORE_INDEX, NaN where it is no column. pick_bwd: dx is dy in that column, else 0; if several ids name
 * one column, their dy are added. label_mask: 1 where a label isn't IGNORE_INDEX, else 0. */
#include "ops/rows/reduce.h"

#include "ops/infer.h"

static const AttrDef pick_bwd_attrs[] = {ATTR_INT(PickBwdAttrs, dim, -1),
                                         ATTR_INT(PickBwdAttrs, size, 1),
                                         ATTR_DTYPE(PickBwdAttrs, dtype),
                                         ATTR_BOOL(PickBwdAttrs, inserted, false),
                                         {0}};

/* x (...,V), ids i32 (...) or (...,K) -> y f32 with the dims of ids. */
static Status pick_infer(Node *node)
{
    TRY(infer_float(node, 0, "x", 2));
    const TensorType *x = &node->in[0]->type;
    TensorType        ids = type_without_last(x, DT_I32);
    if (node->in[1]->type.ndim == x->ndim) {
        ids = type_as(x, DT_I32);
        ids.dim[x->ndim - 1] = type_cols(&node->in[1]->type);
    }
    TRY(infer_like(node, 1, "ids", DT_SET(DT_I32), &ids));
    node->out[0]->type = type_as(&ids, DT_F32);
    return OK;
}

static int pick_bwd_dim(const Node *node)
{
    const PickBwdAttrs *attrs = node->attrs;
    return dim_of(attrs->dim, node->in[0]->type.ndim + attrs->inserted);
}

/* dy (...), ids i32 (...) -> dx, whose dim `dim` has size `size`. `inserted`: this dim is new; else it replaces dim `dim` of dy. */
static Status pick_bwd_infer(Node *node)
{
    const PickBwdAttrs *attrs = node->attrs;
    TRY(infer_float(node, 0, "dy", 1));
    TRY(infer_like(node, 1, "ids", DT_SET(DT_I32), &node->in[0]->type));
    TensorType dx = node->in[0]->type;
    int        ndim = dx.ndim + attrs->inserted, dim = dim_of(attrs->dim, ndim);
    FAIL_IF(ndim > TENSOR_MAX_DIMS || dim < 0 || dim >= ndim || attrs->size < 1, ERR_INVALID,
            "attributes dim %lld and size %lld don't fit %d dims", (long long)attrs->dim, (long long)attrs->size, ndim);
    for (int d = dx.ndim; attrs->inserted && d > dim; d--) dx.dim[d] = dx.dim[d - 1];
    dx.ndim = (uint8_t)ndim;
    dx.dim[dim] = attrs->size;
    dx.dtype = attrs->dtype ? ATTR_TO_DTYPE(attrs->dtype) : dx.dtype;
    FAIL_IF(!(DT_SET(dx.dtype) & DT_SET_FLOAT), ERR_INVALID, "attribute dtype is %s, expected f32 or bf16", dtype_info(dx.dtype)->name);
    node->out[0]->type = dx;
    return OK;
}

static Status label_mask_infer(Node *node)
{
    TRY(infer_like(node, 0, "labels", DT_SET(DT_I32), &node->in[0]->type));
    node->out[0]->type = type_as(&node->in[0]->type, DT_F32);
    return OK;
}

static Status pick_backward(GradBuilder *grad, const Node *node)
{
    const TensorType *x = &node->in[0]->type;
    PickBwdAttrs attrs = {.dim = -1, .size = type_cols(x), .dtype = DTYPE_TO_ATTR(x->dtype), .inserted = node->in[1]->type.ndim < x->ndim};
    Value       *in[] = {grad_of(grad, node->out[0]), node->in[1]}, *dx;
    TRY(grad_emit(grad, OP_PICK_BWD, &attrs, in, 2, ~0u, &dx));
    return grad_add(grad, node->in[0], dx);
}

/* Only one element of x is read for each element of y. */
static OpCost pick_cost(const Node *node)
{
    double count = (double)type_numel(&node->out[0]->type);
    return (OpCost){.flops = count, .bytes = 12 * count};
}

static OpCost pick_bwd_cost(const Node *node)
{
    return cost_streaming(node, (double)type_numel(&node->out[0]->type));
}

static OpCost label_mask_cost(const Node *node)
{
    return cost_streaming(node, (double)type_numel(&node->out[0]->type));
}

static Status pick_cpu(const KernelArgs *args)
{
    const TensorView *x = &args->in[0];
    const int32_t    *ids = args->in[1].data;
    int64_t           cols = type_cols(&x->type), count = type_numel(&args->in[1].type), each = count / type_rows(&x->type);
    for (int64_t i = 0; i < count; i++) {
        bool  known = ids[i] >= 0 && ids[i] < cols;
        float none = ids[i] == IGNORE_INDEX ? 0 : NAN;
        ((float *)args->out[0].data)[i] = known ? vec_get(x->data, x->type.dtype, i / each * cols + ids[i]) : none;
    }
    return OK;
}

/* A task is one index of all dims before `dim`. */
static void pick_bwd_task(void *context, int64_t task, int worker)
{
    const KernelArgs   *args = context;
    const TensorView   *dx = &args->out[0];
    const PickBwdAttrs *attrs = args->attrs;
    const int32_t      *ids = args->in[1].data;
    Lines               lines = lines_around(&dx->type, dim_of(attrs->dim, dx->type.ndim));
    int64_t             all = lines.count * lines.inner, each = type_numel(&args->in[1].type) / (lines.outer * lines.inner);
    (void)worker;
    memset(vec_at_mut(dx->data, dx->type.dtype, task * all), 0, (size_t)dtype_bytes(dx->type.dtype, all));
    for (int64_t k = 0; k < each * lines.inner; k++) {
        int64_t at = task * each * lines.inner + k, to = task * all + ids[at] * lines.inner + k % lines.inner;
        if (ids[at] < 0 || ids[at] >= lines.count) continue;
        float sum = vec_get(dx->data, dx->type.dtype, to) + vec_get(args->in[0].data, args->in[0].type.dtype, at);
        vec_set(dx->data, dx->type.dtype, to, sum);
    }
}

static Status pick_bwd_cpu(const KernelArgs *args)
{
    const TensorType *dx = &args->out[0].type;
    int               dim = dim_of(((const PickBwdAttrs *)args->attrs)->dim, dx->ndim);
    pool_run(args->pool, lines_around(dx, dim).outer, pick_bwd_task, (void *)args);
    return OK;
}

static Status label_mask_cpu(const KernelArgs *args)
{
    for (int64_t i = 0; i < type_numel(&args->out[0].type); i++)
        ((float *)args->out[0].data)[i] = ((const int32_t *)args->in[0].data)[i] == IGNORE_INDEX ? 0 : 1;
    return OK;
}

const OpDef op_pick = {
    .id = OP_PICK,
    .name = "pick",
    .synopsis = "y[n] = x[n, ids[n]], 0 where ids = -100",
    .num_in = 2,
    .num_out = 1,
    .min_in = 2,
    .by_row = 1u << 0 | 1u << 1,
    .infer = pick_infer,
    .backward = pick_backward,
    .cost = pick_cost,
    .cpu = {{DT_SET_DECODE, pick_cpu, "reference"}},
    .holds = {[1] = HOLDS_LABELS},
    .samples = "[5,7], i32[5] below=7\n"
               "[2,30,1300], i32[2,30] below=1300\n"
               "[2,5,7], i32[2,5,9] below=7\n",
    .large = "[70,32000], i32[70] below=32000\n",
};

const OpDef op_pick_bwd = {
    .id = OP_PICK_BWD,
    .name = "pick_bwd",
    .synopsis = "dx = dy at ids along a dim, else 0",
    .num_in = 2,
    .num_out = 1,
    .min_in = 2,
    .by_row = 1u << 0 | 1u << 1,
    .row_dims = pick_bwd_dim,
    .attrs_size = sizeof(PickBwdAttrs),
    .attrs = pick_bwd_attrs,
    .infer = pick_bwd_infer,
    .cost = pick_bwd_cost,
    .cpu = {{DT_SET_FLOAT, pick_bwd_cpu, "reference"}},
    .holds = {[1] = HOLDS_LABELS},
    .samples = "[2,30], i32[2,30] below=1300 {size=1300, inserted=true}\n"
               "[3,1,37], i32[3,1,37] below=6 {dim=1, size=6}\n"
               "[3,4,37], i32[3,4,37] below=6 {dim=1, size=6}\n",
};

const OpDef op_label_mask = {
    .id = OP_LABEL_MASK,
    .name = "label_mask",
    .synopsis = "y = 0 where labels = -100, else 1",
    .num_in = 1,
    .num_out = 1,
    .min_in = 1,
    .by_row = 1u << 0,
    .by_element = true,
    .infer = label_mask_infer,
    .cost = label_mask_cost,
    .cpu = {{DT_SET_FLOAT, label_mask_cpu, "reference"}},
    .holds = {[0] = HOLDS_LABELS},
    .samples = "i32[5,70] below=9\n",
};
