/* rope: rotary position embedding of heads: pair i of the first R elements is rotated by position * f_i; the other elements are copied.
 * Pairs are half-split as in Hugging Face, (i, i + R/2), or interleaved, (2i, 2i + 1). */
#include "ops/attention/rope_row.h"

static const AttrDef rope_attrs[] = {ATTR_BOOL(RopeAttrs, inverse, false), ATTR_BOOL(RopeAttrs, interleaved, false), {0}};

/* x (B,T,H,D), table (P,R) f32, positions i32 (B,T) -> y (B,T,H,D) of x's dtype. */
static Status rope_infer(Node *node)
{
    TRY(infer_input(node, 0, "x", DT_SET_DECODE, DIMS(-1, -1, -1, -1)));
    const TensorType *x = &node->in[0]->type;
    TRY(infer_input(node, 1, "table", DT_SET_F32, DIMS(-1, -1)));
    int64_t turned = node->in[1]->type.dim[1];
    TRY(infer_input(node, 2, "positions", DT_SET(DT_I32), DIMS(x->dim[0], x->dim[1])));
    FAIL_IF(turned % 2 || x->dim[3] % 2 || turned < 2 || turned > x->dim[3] || x->dim[3] > ROPE_MAX_HEAD_DIM, ERR_INVALID,
            "heads have %lld elements and the table turns %lld, expected even numbers, up to %d of them, all turned or the first",
            (long long)x->dim[3], (long long)turned, ROPE_MAX_HEAD_DIM);
    node->out[0]->type = *x;
    return OK;
}

static Status rope_backward(GradBuilder *grad, const Node *node)
{
    RopeAttrs back = *(const RopeAttrs *)node->attrs;
    back.inverse = !back.inverse;
    Value *in[] = {grad_of(grad, node->out[0]), node->in[1], node->in[2]}, *out[1];
    TRY(grad_emit(grad, OP_ROPE, &back, in, 3, 1, out));
    return grad_add(grad, node->in[0], out[0]);
}

static OpCost rope_cost(const Node *node)
{
    return cost_streaming(node, 3.0 * (double)type_numel(&node->in[0]->type));
}

/* The same as rope_heads, for interleaved pairs (2i, 2i + 1). */
VEC_ROW void turn_neighbours(DType dtype, bool inverse, const void *x, void *y, int64_t heads, int64_t head_dim, const float *cosines,
                             int64_t half)
{
    const float *sines = cosines + half;
    float        sign = inverse ? -1.0f : 1.0f;
    for (int64_t h = 0; h < heads; h++, x = vec_at(x, dtype, head_dim), y = vec_at_mut(y, dtype, head_dim)) {
        VEC_LOOP
        for (int64_t i = 0; i < half; i++) {
            float c = cosines[i], s = sign * sines[i], first = vec_get(x, dtype, 2 * i), second = vec_get(x, dtype, 2 * i + 1);
            vec_set(y, dtype, 2 * i, fmaf(first, c, -(second * s)));
            vec_set(y, dtype, 2 * i + 1, fmaf(second, c, first * s));
        }
    }
}

/* Rotates the heads of tokens [row, end). */
VEC_ROW void turn_rows(DType dtype, bool interleaved, bool inverse, const KernelArgs *args, int64_t row, int64_t end)
{
    const int32_t *positions = args->in[2].data;
    const float   *table = args->in[1].data;
    int64_t        heads = args->in[0].type.dim[2], head_dim = args->in[0].type.dim[3], turned = args->in[1].type.dim[1];
    for (; row < end; row++) {
        const void  *x = vec_at(args->in[0].data, dtype, row * heads * head_dim);
        void        *y = vec_at_mut(args->out[0].data, dtype, row * heads * head_dim);
        const float *cosines = table + positions[row] * turned;
        for (int64_t at = turned; turned < head_dim && y != x && at < heads * head_dim; at += head_dim)
            memcpy(vec_at_mut(y, dtype, at), vec_at(x, dtype, at), (size_t)dtype_bytes(dtype, head_dim - turned));
        if (interleaved)
            turn_neighbours(dtype, inverse, x, y, heads, head_dim, cosines, turned / 2);
        else
            rope_heads(dtype, dtype, inverse, false, x, y, NULL, NULL, heads, head_dim, cosines, turned / 2);
    }
}

VEC_TASK(rope_task)
{
    const KernelArgs *args = context;
    const RopeAttrs  *attrs = args->attrs;
    const TensorType *x = &args->in[0].type;
    int64_t           step = rows_moved(args, x->dim[0] * x->dim[1], x->dim[2] * x->dim[3]),
            end = min_i64(type_numel(&args->in[2].type), (task + 1) * step);
    (void)worker;
    if (attrs->interleaved)
        VEC_OF_ANY(x->dtype, turn_rows, true, attrs->inverse, args, task * step, end);
    else if (attrs->inverse)
        VEC_OF_ANY(x->dtype, turn_rows, false, true, args, task * step, end);
    else
        VEC_OF_ANY(x->dtype, turn_rows, false, false, args, task * step, end);
}

static Status rope_cpu(const KernelArgs *args)
{
    const TensorType *x = &args->in[0].type;
    TRY(rope_check_positions(&args->in[2], &args->in[1]));
    pool_run(args->pool, div_up(x->dim[0] * x->dim[1], rows_moved(args, x->dim[0] * x->dim[1], x->dim[2] * x->dim[3])), rope_task,
             (void *)args);
    return OK;
}

const OpDef op_rope = {
    .id = OP_ROPE,
    .name = "rope",
    .synopsis = "rotates pairs (x_i, x_{i+R/2}), interleaved (x_{2i}, x_{2i+1}), of the first R elements of each head by the "
                "angles of the head's position; inverse: by minus the angles",
    .num_in = 3,
    .num_out = 1,
    .min_in = 3,
    .inplace = 1u << 0,
    .attrs_size = sizeof(RopeAttrs),
    .attrs = rope_attrs,
    .infer = rope_infer,
    .backward = rope_backward,
    .cost = rope_cost,
    .cpu = {{DT_SET_DECODE, rope_cpu, "reference"}},
    .constants = 1u << 1,
    .samples = "[2,3,2,8], [5,8], i32[2,3] below=5\n"
               "[2,3,2,10], [5,4], i32[2,3] below=5\n"
               "[2,3,2,10], [5,4], i32[2,3] below=5 {interleaved=true}\n"
               "[2,40,6,64], [50,64], i32[2,40] below=50 {inverse=true}\n",
    .large = "[2,200,8,128], [256,128], i32[2,200] below=256\n"
             "[2,200,8,96], [256,24], i32[2,200] below=256\n"
             "[2,200,8,128], [256,64], i32[2,200] below=256 {interleaved=true}\n",
};
