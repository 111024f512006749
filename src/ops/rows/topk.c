/* topk: the k largest elements of each row, the largest first, and their columns. Of equal elements the first comes first; a NaN is larger
 * than any number, as in PyTorch. The gradient goes to the chosen elements. topk_bwd: dx is dy at ids, else 0. */
#include "ops/infer.h"

static const AttrDef topk_attrs[] = {ATTR_INT(TopkAttrs, k, 1), {0}};
static const AttrDef topk_bwd_attrs[] = {ATTR_INT(TopkAttrs, size, 1), ATTR_DTYPE(TopkAttrs, dtype), {0}};

/* x (...,V) -> y (...,k) of x's dtype, ids i32 (...,k). */
static Status topk_infer(Node *node)
{
    int64_t k = ((const TopkAttrs *)node->attrs)->k;
    char    text[64];
    TRY(infer_float(node, 0, "x", 1));
    TensorType y = node->in[0]->type;
    FAIL_IF(k < 1 || k > type_cols(&y), ERR_INVALID, "attribute k is %lld, expected 1 to %lld, as x is %s", (long long)k,
            (long long)type_cols(&y), type_text(&y, text));
    FAIL_IF(type_cols(&y) > INT32_MAX, ERR_UNSUPPORTED, "more than 2^31 - 1 numbers in a row");
    y.dim[y.ndim - 1] = k;
    node->out[0]->type = y;
    node->out[1]->type = type_as(&y, DT_I32);
    return OK;
}

/* dy (...,k), ids i32 (...,k) -> dx (...,size). */
static Status topk_bwd_infer(Node *node)
{
    const TopkAttrs *attrs = node->attrs;
    TRY(infer_float(node, 0, "dy", 1));
    TRY(infer_like(node, 1, "ids", DT_SET(DT_I32), &node->in[0]->type));
    TensorType dx = node->in[0]->type;
    FAIL_IF(attrs->size < type_cols(&dx), ERR_INVALID, "attribute size is %lld, expected %lld or more, the numbers of a row of dy",
            (long long)attrs->size, (long long)type_cols(&dx));
    dx.dim[dx.ndim - 1] = attrs->size;
    dx.dtype = attrs->dtype ? ATTR_TO_DTYPE(attrs->dtype) : dx.dtype;
    FAIL_IF(!(DT_SET(dx.dtype) & DT_SET_FLOAT), ERR_INVALID, "attribute dtype is %s, expected f32 or bf16", dtype_info(dx.dtype)->name);
    node->out[0]->type = dx;
    return OK;
}

static Status topk_backward(GradBuilder *grad, const Node *node)
{
    const TensorType *x = &node->in[0]->type;
    TopkAttrs         attrs = {.size = type_cols(x), .dtype = DTYPE_TO_ATTR(x->dtype)};
    Value            *in[] = {grad_of(grad, node->out[0]), node->out[1]}, *dx;
    TRY(grad_emit(grad, OP_TOPK_BWD, &attrs, in, 2, ~0u, &dx));
    return grad_add(grad, node->in[0], dx);
}

static OpCost topk_cost(const Node *node)
{
    return cost_streaming(node, (double)type_numel(&node->in[0]->type));
}

static OpCost topk_bwd_cost(const Node *node)
{
    return cost_streaming(node, 0);
}

static bool is_larger(float a, float b)
{
    return a > b || (isnan(a) && !isnan(b));
}

/* Goes over a row and inserts each column into the best k so far, after columns with an equal element. */
static void topk_row(const TensorView *x, int64_t at, int64_t cols, int32_t *best, int64_t k)
{
    int64_t found = 0;
    for (int64_t c = 0; c < cols; c++) {
        float   value = vec_get(x->data, x->type.dtype, at + c);
        int64_t place = found;
        while (place && is_larger(value, vec_get(x->data, x->type.dtype, at + best[place - 1]))) place--;
        if (place == k) continue;
        if (found < k) found++;
        memmove(best + place + 1, best + place, (size_t)(found - place - 1) * sizeof *best);
        best[place] = (int32_t)c;
    }
}

/* The best columns of each row are collected in output ids, or in the workspace if ids isn't wanted. */
static size_t topk_workspace(const Node *node, int num_workers)
{
    (void)num_workers;
    return (size_t)type_numel(&node->in[0]->type) / (size_t)type_cols(&node->in[0]->type) * (size_t)((const TopkAttrs *)node->attrs)->k *
           sizeof(int32_t);
}

static void topk_task(void *context, int64_t row, int worker)
{
    const KernelArgs *args = context;
    const TensorView *x = &args->in[0], *y = &args->out[0];
    int64_t           cols = type_cols(&x->type), k = ((const TopkAttrs *)args->attrs)->k;
    int32_t          *best = (args->out[1].data ? (int32_t *)args->out[1].data : (int32_t *)args->workspace) + row * k;
    (void)worker;
    topk_row(x, row * cols, cols, best, k);
    for (int64_t i = 0; i < k && y->data; i++)
        vec_set(y->data, y->type.dtype, row * k + i, vec_get(x->data, x->type.dtype, row * cols + best[i]));
}

static void topk_bwd_task(void *context, int64_t row, int worker)
{
    const KernelArgs *args = context;
    const TensorView *dy = &args->in[0], *dx = &args->out[0];
    const int32_t    *ids = args->in[1].data;
    int64_t           cols = type_cols(&dx->type), k = type_cols(&dy->type);
    (void)worker;
    memset(vec_at_mut(dx->data, dx->type.dtype, row * cols), 0, (size_t)dtype_bytes(dx->type.dtype, cols));
    for (int64_t i = row * k; i < (row + 1) * k; i++)
        if (ids[i] >= 0 && ids[i] < cols) vec_set(dx->data, dx->type.dtype, row * cols + ids[i], vec_get(dy->data, dy->type.dtype, i));
}

static Status topk_cpu(const KernelArgs *args)
{
    pool_run(args->pool, type_rows(&args->in[0].type), topk_task, (void *)args);
    return OK;
}

static Status topk_bwd_cpu(const KernelArgs *args)
{
    pool_run(args->pool, type_rows(&args->in[0].type), topk_bwd_task, (void *)args);
    return OK;
}

const OpDef op_topk = {
    .id = OP_TOPK,
    .name = "topk",
    .synopsis = "y = the k largest elements of each row, in falling order, ids = their indexes; of equal elements the first "
                "comes first",
    .num_in = 1,
    .num_out = 2,
    .min_in = 1,
    .by_row = 1u << 0,
    .attrs_size = sizeof(TopkAttrs),
    .attrs = topk_attrs,
    .infer = topk_infer,
    .backward = topk_backward,
    .cost = topk_cost,
    .workspace = topk_workspace,
    .cpu = {{DT_SET_DECODE, topk_cpu, "reference"}},
    .samples = "[5,7] {k=3}\n"
               "[2,2,5] {k=3}\n"
               "[5] {k=5}\n",
    /* Rows such as a router's (the experts of each token) and logits. */
    .large = "[600,128] {k=8}\n"
             "[70,32000] {k=8}\n"
             "[2,3,2101] {k=8}\n",
};

const OpDef op_topk_bwd = {
    .id = OP_TOPK_BWD,
    .name = "topk_bwd",
    .synopsis = "dx = dy at ids of each row, else 0",
    .num_in = 2,
    .num_out = 1,
    .min_in = 2,
    .by_row = 1u << 0 | 1u << 1,
    .attrs_size = sizeof(TopkAttrs),
    .attrs = topk_bwd_attrs,
    .infer = topk_bwd_infer,
    .cost = topk_bwd_cost,
    .cpu = {{DT_SET_FLOAT, topk_bwd_cpu, "reference"}},
    .samples = "[5,1], i32[5,1] below=9 {size=9}\n"
               "[2,30,1], i32[2,30,1] below=1300 {size=1300}\n",
};
