/* concat: joins tensors along a dim. slice: a range of indexes of a dim. pad: zeros before and after a dim. concat's gradient is made of
 * slices; slice and pad are each other's gradient. They only move memory, so they work on i32 too. */
#include "ops/rows/move.h"

#include "ops/infer.h"

enum { MOVE_DTYPES = DT_SET_DECODE | DT_SET(DT_I32) };

static const AttrDef concat_attrs[] = {ATTR_INT(ConcatAttrs, dim, -1), {0}};
static const AttrDef slice_attrs[] = {ATTR_INT(SliceAttrs, dim, -1), ATTR_INT(SliceAttrs, begin, 0), ATTR_INT(SliceAttrs, size, 1), {0}};
static const AttrDef pad_attrs[] = {ATTR_INT(SliceAttrs, dim, -1), ATTR_INT(SliceAttrs, before, 0), ATTR_INT(SliceAttrs, after, 0), {0}};

/* The dim of a concat, slice or pad: the attributes of all three begin with `dim`. */
static int move_dim(const Node *node)
{
    return dim_of(((const ConcatAttrs *)node->attrs)->dim, node->in[0]->type.ndim);
}

static Status check_moved(const Node *node, const char *name)
{
    const TensorType *x = &node->in[0]->type;
    int64_t           dim = ((const ConcatAttrs *)node->attrs)->dim, ndim = x->ndim;
    TRY(infer_like(node, 0, name, MOVE_DTYPES, x));
    FAIL_IF(dim < -ndim || dim >= ndim, ERR_INVALID, "attribute dim is %lld, expected %lld to %lld, as %s has %lld dims", (long long)dim,
            (long long)-ndim, (long long)(ndim - 1), name, (long long)ndim);
    return OK;
}

/* a, b, ..., with equal dims except `dim` -> y of a's dtype. */
static Status concat_infer(Node *node)
{
    static const char names[] = "abcdefgh";
    TRY(check_moved(node, "a"));
    TensorType y = node->in[0]->type;
    int        dim = move_dim(node);
    char       want[64], got[64];
    for (int k = 1; k < CONCAT_IN; k++) {
        if (!node->in[k]) continue;
        TensorType in = node->in[k]->type, like = node->in[0]->type;
        bool whole = in.dtype == DT_I32, fits = in.ndim == like.ndim && (DT_SET(in.dtype) & MOVE_DTYPES) && whole == (like.dtype == DT_I32);
        if (fits) like.dim[dim] = in.dim[dim];
        FAIL_IF(!fits || !type_same_dims(&in, &like), ERR_INVALID, "%c is %s, beside a of %s; expected the same dims but for dim %d",
                names[k], type_text(&in, got), type_text(&node->in[0]->type, want), dim);
        y.dim[dim] += in.dim[dim];
    }
    node->out[0]->type = y;
    return OK;
}

/* x -> y of x's dtype. */
static Status slice_infer(Node *node)
{
    const SliceAttrs *attrs = node->attrs;
    TRY(check_moved(node, "x"));
    TensorType y = node->in[0]->type;
    int64_t    own = y.dim[move_dim(node)];
    char       text[64];
    FAIL_IF(attrs->begin < 0 || attrs->size < 1 || attrs->size > own || attrs->begin > own - attrs->size, ERR_INVALID,
            "%lld from %lld on of dim %d of x, which is %s: attributes begin and size don't fit", (long long)attrs->size,
            (long long)attrs->begin, move_dim(node), type_text(&y, text));
    y.dim[move_dim(node)] = attrs->size;
    node->out[0]->type = y;
    return OK;
}

static Status pad_infer(Node *node)
{
    const SliceAttrs *attrs = node->attrs;
    TRY(check_moved(node, "x"));
    TensorType y = node->in[0]->type;
    FAIL_IF(attrs->before < 0 || attrs->after < 0 || attrs->before > TYPE_MAX_NUMEL || attrs->after > TYPE_MAX_NUMEL, ERR_INVALID,
            "attributes before %lld and after %lld, expected 0 or more", (long long)attrs->before, (long long)attrs->after);
    y.dim[move_dim(node)] += attrs->before + attrs->after;
    node->out[0]->type = y;
    return OK;
}

/* The gradient of each input is a slice of dy. */
static Status concat_backward(GradBuilder *grad, const Node *node)
{
    SliceAttrs attrs = {.dim = move_dim(node)};
    for (int k = 0; k < node->num_in; k++) {
        Value *dy = grad_of(grad, node->out[0]), *in = node->in[k], *dx;
        if (!in) continue;
        attrs.size = in->type.dim[attrs.dim];
        if (grad_wanted(grad, in)) {
            CastAttrs cast = {.dtype = DTYPE_TO_ATTR(in->type.dtype)};
            TRY(grad_emit(grad, OP_SLICE, &attrs, &dy, 1, ~0u, &dx));
            if (dx->type.dtype != in->type.dtype) TRY(grad_emit(grad, OP_CAST, &cast, &dx, 1, ~0u, &dx));
            TRY(grad_add(grad, in, dx));
        }
        attrs.begin += attrs.size;
    }
    return OK;
}

static Status slice_backward(GradBuilder *grad, const Node *node)
{
    const SliceAttrs *own = node->attrs;
    int               dim = move_dim(node);
    SliceAttrs        attrs = {.dim = dim, .before = own->begin, .after = node->in[0]->type.dim[dim] - own->begin - own->size};
    Value            *d = grad_of(grad, node->out[0]);
    TRY(grad_emit(grad, OP_PAD, &attrs, &d, 1, ~0u, &d));
    return grad_add(grad, node->in[0], d);
}

static Status pad_backward(GradBuilder *grad, const Node *node)
{
    int        dim = move_dim(node);
    SliceAttrs attrs = {.dim = dim, .begin = ((const SliceAttrs *)node->attrs)->before, .size = node->in[0]->type.dim[dim]};
    Value     *d = grad_of(grad, node->out[0]);
    TRY(grad_emit(grad, OP_SLICE, &attrs, &d, 1, ~0u, &d));
    return grad_add(grad, node->in[0], d);
}

static OpCost move_cost(const Node *node)
{
    return cost_streaming(node, 0);
}

/* Only the slice of x is read. */
static OpCost slice_cost(const Node *node)
{
    return (OpCost){.bytes = 2.0 * (double)type_bytes(&node->out[0]->type)};
}

/* ---- kernels ---- */

typedef struct MoveJob {
    const TensorView *y;
    LineMove          move;
    int64_t           rows, pieces; /* a task moves `rows` lines; or one piece, if a line has several (`pieces`) */
} MoveJob;

enum { PIECE = 64 * TILE };

/* Copies elements of x (NULL: zeros), converted if dtypes differ. x is i32 only if y is. */
static void move_elements(const TensorView *y, int64_t y_at, const TensorView *x, int64_t x_at, int64_t count)
{
    DType  dtype = y->type.dtype;
    char  *to = (char *)y->data + dtype_bytes(dtype, y_at);
    size_t bytes = (size_t)dtype_bytes(dtype, count);
    if (!x)
        memset(to, 0, bytes);
    else if (x->type.dtype == dtype)
        memcpy(to, (const char *)x->data + dtype_bytes(dtype, x_at), bytes);
    else
        tile_copy(y, y_at, x, x_at, count);
}

static void move_task(void *context, int64_t task, int worker)
{
    const MoveJob  *job = context;
    const LineMove *m = &job->move;
    int64_t         first = task / job->pieces * job->rows, begin = task % job->pieces * PIECE, n = min_i64(PIECE, m->len - begin);
    (void)worker;
    for (int64_t o = first; o < min_i64(m->outer, first + job->rows); o++)
        move_elements(job->y, m->y_at + o * m->y_step + begin, m->x, m->x_at + o * m->x_step + begin, n);
}

/* Makes the result by `count` moves. */
static Status move_all(const KernelArgs *args, const LineMove *moves, int count)
{
    for (int i = 0; i < count; i++) {
        MoveJob job = {&args->out[0], moves[i], rows_per_task(moves[i].len), div_up(moves[i].len, PIECE)};
        pool_run(args->pool, div_up(moves[i].outer, job.rows) * job.pieces, move_task, &job);
    }
    return OK;
}

static Status concat_cpu(const KernelArgs *args)
{
    LineMove moves[MOST_MOVES];
    return move_all(args, moves, concat_moves(args, moves));
}

static Status slice_cpu(const KernelArgs *args)
{
    LineMove moves[MOST_MOVES];
    return move_all(args, moves, slice_moves(args, moves));
}

static Status pad_cpu(const KernelArgs *args)
{
    LineMove moves[MOST_MOVES];
    return move_all(args, moves, pad_moves(args, moves));
}

/* ---- descriptors ---- */

/* Two inputs, eight inputs, an absent input between others; each dim. */
static const char concat_samples[] = "[5,7], [5,3]\n"
                                     "[2,3,37], [2,1,37], _, [2,5,37] {dim=1}\n"
                                     "[3,40], [70,40] {dim=0}\n"
                                     "[3,9,16], [3,9,8], [3,9,24], [3,9,8], [3,9,8], [3,9,8], [3,9,8], [3,9,16]\n"
                                     "i32[2,5] below=9, i32[2,3] below=9\n";

static const char slice_samples[] = "[5,7] {begin=2, size=3}\n"
                                    "[2,9,37] {dim=1, begin=4, size=5}\n"
                                    "[2,3,40,64] {dim=3, begin=32, size=32}\n"
                                    "[70000] {dim=0, begin=1, size=69000}\n"
                                    "i32[3,12] below=9 {dim=1, begin=1, size=11}\n";

static const char pad_samples[] = "[5,7] {before=2, after=3}\n"
                                  "[2,9,37] {dim=1, after=5}\n"
                                  "[3,7,64] {dim=2, before=32}\n"
                                  "i32[3,12] below=9 {dim=0, before=1, after=1}\n";

static const char concat_large_samples[] = "[1,300,16,128], [1,300,16,64]\n";

static const char slice_large_samples[] = "[1,300,16,192] {dim=3, begin=128, size=64}\n"
                                          "[2,300,1024] {dim=1, begin=1, size=299}\n";

static const char pad_large_samples[] = "[2,299,1024] {dim=1, before=1}\n";

#define MOVE(op_id, op_name, text, list, more, ...) \
    .id = op_id, .name = op_name, .synopsis = text, .num_out = 1, .samples = list, .large = more, .row_dims = move_dim, __VA_ARGS__

const OpDef op_concat = {
    MOVE(OP_CONCAT, "concat", "y = a, b, ... one after the other along a dim", concat_samples, concat_large_samples, .num_in = CONCAT_IN,
         .min_in = 2, .by_row = (1u << CONCAT_IN) - 1, .attrs_size = sizeof(ConcatAttrs), .attrs = concat_attrs, .infer = concat_infer,
         .backward = concat_backward, .cost = move_cost, .cpu = {{MOVE_DTYPES, concat_cpu, "reference"}}),
};

const OpDef op_slice = {
    MOVE(OP_SLICE, "slice", "y = indexes begin to begin + size - 1 of a dim of x", slice_samples, slice_large_samples, .num_in = 1,
         .min_in = 1, .by_row = 1u << 0, .attrs_size = sizeof(SliceAttrs), .attrs = slice_attrs, .infer = slice_infer,
         .backward = slice_backward, .cost = slice_cost, .cpu = {{MOVE_DTYPES, slice_cpu, "reference"}}),
};

const OpDef op_pad = {
    MOVE(OP_PAD, "pad", "y = x with zeros in front of and behind a dim", pad_samples, pad_large_samples, .num_in = 1, .min_in = 1,
         .by_row = 1u << 0, .attrs_size = sizeof(SliceAttrs), .attrs = pad_attrs, .infer = pad_infer, .backward = pad_backward,
         .cost = move_cost, .cpu = {{MOVE_DTYPES, pad_cpu, "reference"}}),
};
