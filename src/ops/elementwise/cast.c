/* cast: the same numbers in another dtype. Floats are rounded to nearest, ties to even, without saturation. Casts to i32 drop the
 * fraction and saturate, and NaN becomes 0. */
#include "ops/infer.h"

static const AttrDef cast_attrs[] = {ATTR_DTYPE(CastAttrs, dtype), {0}};

/* The dtype of the attribute; x's if it is unset. */
static DType cast_dtype(const Node *node)
{
    const CastAttrs *attrs = node->attrs;
    return attrs->dtype ? ATTR_TO_DTYPE(attrs->dtype) : node->in[0]->type.dtype;
}

/* x (...) -> y of x's dims. */
static Status cast_infer(Node *node)
{
    DTypeSet dtypes = DT_SET_DECODE | DT_SET(DT_I32);
    TRY(infer_like(node, 0, "x", dtypes, &node->in[0]->type));
    DType dtype = cast_dtype(node);
    FAIL_IF(!(DT_SET(dtype) & dtypes), ERR_INVALID, "dtype is %s; expected f32, bf16, f16 or i32", dtype_info(dtype)->name);
    node->out[0]->type = type_as(&node->in[0]->type, dtype);
    return OK;
}

static Status cast_backward(GradBuilder *grad, const Node *node)
{
    CastAttrs attrs = {.dtype = DTYPE_TO_ATTR(node->in[0]->type.dtype)};
    Value    *d = grad_of(grad, node->out[0]);
    TRY(grad_emit(grad, OP_CAST, &attrs, &d, 1, ~0u, &d));
    return grad_add(grad, node->in[0], d);
}

static OpCost cast_cost(const Node *node)
{
    return cost_streaming(node, 0);
}

enum { CAST_PER_TASK = 64 * TILE };

static int32_t to_whole(float x)
{
    if (!(x > -2147483648.0f)) return x == x ? INT32_MIN : 0;
    return x < 2147483648.0f ? (int32_t)x : INT32_MAX;
}

/* Copies: the chain itself rounds the results of its steps. */
static void cast_tile(float *y, const float *const *in, int64_t count, double number)
{
    (void)number;
    if (y != in[0]) memcpy(y, in[0], (size_t)count * sizeof *y);
}

/* Casts elements if x or y is i32. */
static void cast_whole(const TensorView *x, const TensorView *y, int64_t at, int64_t count)
{
    for (int64_t i = at; i < at + count; i++) {
        if (x->type.dtype == y->type.dtype)
            ((int32_t *)y->data)[i] = ((const int32_t *)x->data)[i];
        else if (x->type.dtype == DT_I32)
            vec_set(y->data, y->type.dtype, i, (float)((const int32_t *)x->data)[i]);
        else
            ((int32_t *)y->data)[i] = to_whole(vec_get(x->data, x->type.dtype, i));
    }
}

VEC_TASK(cast_task)
{
    const KernelArgs *args = context;
    int64_t           at = task * CAST_PER_TASK, count = type_numel(&args->out[0].type) - at;
    (void)worker;
    if (args->in[0].type.dtype == DT_I32 || args->out[0].type.dtype == DT_I32)
        cast_whole(&args->in[0], &args->out[0], at, min_i64(CAST_PER_TASK, count));
    else
        tile_copy(&args->out[0], at, &args->in[0], at, min_i64(CAST_PER_TASK, count));
}

static Status cast_cpu(const KernelArgs *args)
{
    pool_run(args->pool, div_up(type_numel(&args->out[0].type), CAST_PER_TASK), cast_task, (void *)args);
    return OK;
}

const OpDef op_cast = {
    .id = OP_CAST,
    .name = "cast",
    .synopsis = "y = x rounded to another dtype",
    .num_in = 1,
    .num_out = 1,
    .min_in = 1,
    .attrs_size = sizeof(CastAttrs),
    .attrs = cast_attrs,
    .by_row = 1u << 0,
    .by_element = true,
    .infer = cast_infer,
    .backward = cast_backward,
    .cost = cast_cost,
    .cpu = {{DT_SET_DECODE | DT_SET(DT_I32), cast_cpu, "reference"}},
    .tile = cast_tile,
    .samples = "[9]\n"
               "[2,3,7] {dtype=bf16}\n"
               "[70,1037]\n"
               "[3,35,1333] {dtype=bf16}\n"
               "[3,37] {dtype=i32}\n"
               "i32[3,37] below=3000 {dtype=f32}\n",
    .large = "[4096,1024]\n"
             "[4096,1024] {dtype=bf16}\n",
};
