/* dropout: zero with probability p, else x / (1 - p). Its backward is the same op on dy, with the same draws.
 *
 * A draw is keyed by (seed, step, site) and counted by (document, position, element), so that it doesn't depend on the row or
 * micro-batch that holds a token. */
#include "ops/infer.h"
#include "ops/random_row.h"

static const AttrDef dropout_attrs[] = {ATTR_FLOAT(DropoutAttrs, p, 0), ATTR_SITE(DropoutAttrs, site), {0}};

enum { IN_X, IN_DOC_ID, IN_POSITIONS, IN_STEP };

/* x (B,T,C), doc_id i32 (B,T), positions i32 (B,T), step i64 (STEP_COUNT) -> y of x's type. */
static Status dropout_infer(Node *node)
{
    const DropoutAttrs *attrs = node->attrs;
    TRY(infer_input(node, IN_X, "x", DT_SET_FLOAT, DIMS(-1, -1, -1)));
    const TensorType *x = &node->in[IN_X]->type;
    TRY(infer_input(node, IN_DOC_ID, "doc_id", DT_SET(DT_I32), DIMS(x->dim[0], x->dim[1])));
    TRY(infer_input(node, IN_POSITIONS, "positions", DT_SET(DT_I32), DIMS(x->dim[0], x->dim[1])));
    TRY(infer_input(node, IN_STEP, "step", DT_SET(DT_I64), DIMS(STEP_COUNT)));
    FAIL_IF(!(attrs->p >= 0 && attrs->p < 1), ERR_INVALID, "attribute p is %g, expected a chance in [0, 1)", attrs->p);
    node->out[0]->type = *x;
    return OK;
}

static Status dropout_backward(GradBuilder *grad, const Node *node)
{
    Value *in[] = {grad_of(grad, node->out[0]), node->in[IN_DOC_ID], node->in[IN_POSITIONS], node->in[IN_STEP]}, *out[1];
    TRY(grad_emit(grad, OP_DROPOUT, node->attrs, in, 4, 1, out));
    return grad_add(grad, node->in[IN_X], out[0]);
}

/* A Philox draw of four takes about 100 integer operations. */
static OpCost dropout_cost(const Node *node)
{
    return cost_streaming(node, 26.0 * (double)type_numel(&node->in[IN_X]->type));
}

/* y = x / (1 - p) for elements that are kept, else 0. */
VEC_ROW void dropout_tile(DType dtype, void *y, const void *x, const uint32_t *random, double p, int64_t count)
{
    float kept = (float)(1 / (1 - p)), chance = (float)p;
    VEC_LOOP
    for (int64_t i = 0; i < count; i++) {
        float    value = vec_get(x, dtype, i) * kept;
        uint32_t word, mask = 0u - (philox_uniform(random[i]) >= chance); /* a mask, as choosing between values wouldn't vectorise */
        memcpy(&word, &value, 4);
        word &= mask;
        memcpy(&value, &word, 4);
        vec_set(y, dtype, i, value);
    }
}

VEC_TASK(dropout_task)
{
    const KernelArgs   *args = context;
    const DropoutAttrs *attrs = args->attrs;
    const TensorView   *x = &args->in[IN_X], *y = &args->out[0];
    const int32_t      *doc_id = args->in[IN_DOC_ID].data, *position = args->in[IN_POSITIONS].data;
    const int64_t      *now = args->in[IN_STEP].data;
    uint64_t            key = random_key(now[STEP_SEED], now[STEP_INDEX], RANDOM_DROPOUT, attrs->site);
    int64_t             cols = type_cols(&x->type), step = rows_moved(args, type_rows(&x->type), cols),
            end = min_i64(type_rows(&x->type), (task + 1) * step);
    uint32_t random[TILE];
    DType    dtype = x->type.dtype;
    (void)worker;
    for (int64_t row = task * step; row < end; row++)
        for (int64_t c = 0; c < cols; c += TILE) {
            int64_t n = min_i64(TILE, cols - c), at = row * cols + c;
            random_row(random, key, (uint32_t)(c / 4), (uint32_t)position[row], (uint32_t)doc_id[row], n);
            VEC_OF(dtype, dropout_tile, vec_at_mut(y->data, dtype, at), vec_at(x->data, dtype, at), random, attrs->p, n);
        }
}

static Status dropout_cpu(const KernelArgs *args)
{
    const TensorType *x = &args->in[IN_X].type;
    pool_run(args->pool, div_up(type_rows(x), rows_moved(args, type_rows(x), type_cols(x))), dropout_task, (void *)args);
    return OK;
}

const OpDef op_dropout = {
    .id = OP_DROPOUT,
    .name = "dropout",
    .synopsis = "y = 0 with chance p, else x / (1 - p); drawn by (seed, step, site, document, position, element)",
    .num_in = 4,
    .num_out = 1,
    .min_in = 4,
    .flags = OP_RANDOM,
    .inplace = 1u << 0,
    .attrs_size = sizeof(DropoutAttrs),
    .attrs = dropout_attrs,
    .infer = dropout_infer,
    .backward = dropout_backward,
    .cost = dropout_cost,
    .cpu = {{DT_SET_FLOAT, dropout_cpu, "reference"}},
    .samples = "[2,3,7], i32[2,3] below=9, i32[2,3] below=9, i64[4] below=99 {p=0.5, site=1000}\n"
               "[2,35,1030], i32[2,35] below=9, i32[2,35] below=99, i64[4] below=99 {p=0.1, site=3}\n",
    .large = "[2,300,1024], i32[2,300] below=9, i32[2,300] below=99, i64[4] below=99 {p=0.1, site=7}\n",
};
