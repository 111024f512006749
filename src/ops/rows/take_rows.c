/* take_rows: rows [begin, begin + count) of (B,T), in their order. put_rows: puts rows back at their positions; the remaining rows are 0.
 * Each op is the other's gradient. passes/chunk.c uses them to compute some rows at a time. */
#include "ops/infer.h"

static const AttrDef rows_attrs[] = {
    ATTR_INT(RowsAttrs, begin, 0), ATTR_INT(RowsAttrs, count, 0), ATTR_INT(RowsAttrs, batch, 0), ATTR_INT(RowsAttrs, seq, 0), {0}};

static Status check_rows(const RowsAttrs *attrs, int64_t count, int64_t rows)
{
    FAIL_IF(attrs->begin < 0 || count < 1 || count > rows || attrs->begin > rows - count, ERR_INVALID,
            "%lld rows from %lld on of %lld: attributes don't fit", (long long)count, (long long)attrs->begin, (long long)rows);
    return OK;
}

/* The number of elements in a row of (B,T,...). */
static int64_t row_numel(const TensorType *type)
{
    return type_numel(type) / (type->dim[0] * type->dim[1]);
}

/* x (B,T,...) of any dtype -> y (1,count,...) of x's dtype. */
static Status take_rows_infer(Node *node)
{
    const RowsAttrs *attrs = node->attrs;
    TensorType       y = node->in[0]->type;
    FAIL_IF(y.ndim < 2, ERR_INVALID, "x: expected two dims or more");
    TRY(check_rows(attrs, attrs->count, y.dim[0] * y.dim[1]));
    y.dim[0] = 1;
    y.dim[1] = attrs->count;
    node->out[0]->type = y;
    return OK;
}

/* x (1,n,...), [acc (batch,seq,...)] -> y (batch,seq,...) of acc's dtype, else x's. */
static Status put_rows_infer(Node *node)
{
    const RowsAttrs *attrs = node->attrs;
    TRY(infer_float(node, 0, "x", 2));
    TensorType y = node->in[0]->type;
    FAIL_IF(y.dim[0] != 1 || attrs->batch < 1 || attrs->seq < 1, ERR_INVALID,
            "x: expected (1,n,...), and attributes batch and seq from 1 on");
    TRY(check_rows(attrs, y.dim[1], attrs->batch * attrs->seq));
    y.dim[0] = attrs->batch;
    y.dim[1] = attrs->seq;
    if (node->in[1]) {
        TRY(infer_like(node, 1, "acc", DT_SET_DECODE, &y));
        y = node->in[1]->type;
    }
    node->out[0]->type = y;
    return OK;
}

static Status take_rows_backward(GradBuilder *grad, const Node *node)
{
    const TensorType *x = &node->in[0]->type;
    RowsAttrs         attrs = {.begin = ((const RowsAttrs *)node->attrs)->begin, .batch = x->dim[0], .seq = x->dim[1]};
    Value            *in[] = {grad_of(grad, node->out[0]), NULL}, *dx;
    TRY(grad_emit(grad, OP_PUT_ROWS, &attrs, in, 2, ~0u, &dx));
    return grad_add(grad, node->in[0], dx);
}

static Status put_rows_backward(GradBuilder *grad, const Node *node)
{
    Value    *dy = grad_of(grad, node->out[0]), *dx;
    RowsAttrs attrs = {.begin = ((const RowsAttrs *)node->attrs)->begin, .count = node->in[0]->type.dim[1]};
    if (grad_wanted(grad, node->in[0])) {
        TRY(grad_emit(grad, OP_TAKE_ROWS, &attrs, &dy, 1, ~0u, &dx));
        TRY(grad_add(grad, node->in[0], dx));
    }
    return node->in[1] && grad_wanted(grad, node->in[1]) ? grad_add(grad, node->in[1], dy) : OK;
}

static OpCost take_rows_cost(const Node *node)
{
    return (OpCost){.bytes = 2.0 * (double)type_bytes(&node->out[0]->type)};
}

static OpCost put_rows_cost(const Node *node)
{
    double moved = (double)type_bytes(&node->in[0]->type);
    return (OpCost){.bytes = node->in[1] ? 3 * moved : moved + (double)type_bytes(&node->out[0]->type)};
}

enum { TASK_NUMEL = 1 << 16 };

static void take_rows_task(void *context, int64_t task, int worker)
{
    const KernelArgs *args = context;
    const TensorType *y = &args->out[0].type;
    int64_t           first = ((const RowsAttrs *)args->attrs)->begin * row_numel(&args->in[0].type), at = task * TASK_NUMEL;
    (void)worker;
    memcpy((char *)args->out[0].data + dtype_bytes(y->dtype, at), (const char *)args->in[0].data + dtype_bytes(y->dtype, first + at),
           (size_t)dtype_bytes(y->dtype, min_i64(TASK_NUMEL, type_numel(y) - at)));
}

static void put_rows_task(void *context, int64_t task, int worker)
{
    const KernelArgs *args = context;
    const TensorView *x = &args->in[0], *y = &args->out[0];
    bool              adds = args->accumulate & 1;
    int64_t first = ((const RowsAttrs *)args->attrs)->begin * row_numel(&y->type), numel = type_numel(&x->type), at = task * TASK_NUMEL;
    int64_t begin = adds ? first + at : at, end = min_i64(begin + TASK_NUMEL, adds ? first + numel : type_numel(&y->type));
    float   scratch[TILE];
    (void)worker;
    if (!adds) memset(vec_at_mut(y->data, y->type.dtype, begin), 0, (size_t)dtype_bytes(y->type.dtype, end - begin));
    if (begin < first) begin = first;
    if (end > first + numel) end = first + numel;
    for (int64_t n; begin < end; begin += n) {
        n = min_i64(TILE, end - begin);
        if (adds)
            tile_add(y, begin, tile_load(x, begin - first, n, scratch), n);
        else
            tile_copy(y, begin, x, begin - first, n);
    }
}

static Status take_rows_cpu(const KernelArgs *args)
{
    pool_run(args->pool, div_up(type_numel(&args->out[0].type), TASK_NUMEL), take_rows_task, (void *)args);
    return OK;
}

static Status put_rows_cpu(const KernelArgs *args)
{
    const TensorType *touched = args->accumulate & 1 ? &args->in[0].type : &args->out[0].type;
    pool_run(args->pool, div_up(type_numel(touched), TASK_NUMEL), put_rows_task, (void *)args);
    return OK;
}

const OpDef op_take_rows = {
    .id = OP_TAKE_ROWS,
    .name = "take_rows",
    .synopsis = "y[0,r] = row begin + r of x",
    .num_in = 1,
    .num_out = 1,
    .min_in = 1,
    .attrs_size = sizeof(RowsAttrs),
    .attrs = rows_attrs,
    .infer = take_rows_infer,
    .backward = take_rows_backward,
    .cost = take_rows_cost,
    .cpu = {{DT_SET_ANY, take_rows_cpu, "reference"}},
    .samples = "[2,7,5] {begin=3, count=6}\n"
               "[4,250] {begin=901, count=99}\n",
    .large = "[2,1024,1024] {begin=512, count=512}\n"
             "i32[2,1024] below=99 {begin=512, count=512}\n",
};

const OpDef op_put_rows = {
    .id = OP_PUT_ROWS,
    .name = "put_rows",
    .synopsis = "row begin + r of y = x[0,r], the other rows 0",
    .num_in = 2,
    .num_out = 1,
    .min_in = 1,
    .alias = {{.out = 0, .in = 1, .accumulate = true}},
    .num_alias = 1,
    .attrs_size = sizeof(RowsAttrs),
    .attrs = rows_attrs,
    .infer = put_rows_infer,
    .backward = put_rows_backward,
    .cost = put_rows_cost,
    .cpu = {{DT_SET_DECODE, put_rows_cpu, "reference"}},
    .samples = "[1,6,5] {begin=3, batch=2, seq=7}\n"
               "[1,99], [4,250] {begin=901, batch=4, seq=250}\n"
               "[1,99,161], [4,250,161] {begin=901, batch=4, seq=250}\n",
    .large = "[1,512,1024] {begin=512, batch=2, seq=1024}\n"
             "[1,512,1024], [2,1024,1024] {begin=512, batch=2, seq=1024}\n",
};
