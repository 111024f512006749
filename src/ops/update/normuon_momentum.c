/* normuon_momentum: the first part of a NorMuon step (arXiv 2510.05491) of one matrix.
 *
 *   g <- g min(1, max_grad_norm / (norm + 1e-6))          norm = sqrt(norm2), of all gradients
 *   m <- momentum m + (1 - momentum) g
 *   u  = momentum m + (1 - momentum) g (Nesterov), or m
 *   x  = u / (1.02 |u|_F + 1e-6)                          so that no singular value of x is above 1, even after rounding
 *
 * Attributes begin, size and period say which rows of g and m form the matrix; |u|, x and m' are only of these rows.
 *
 * A step whose loss or norm isn't finite leaves m unchanged and gives x = 0. Once |u| is known, x is computed again from m and g, so
 * that a bf16 x is rounded just once. */
#include "ops/gpu_sums.h"
#include "ops/infer.h"
#include "ops/update/adamw.h"
#include "ops/update/normuon.h"

static const AttrDef normuon_momentum_attrs[] = {
    ATTR_FLOAT(NormuonMomentumAttrs, momentum, 0.95), ATTR_FLOAT(NormuonMomentumAttrs, max_grad_norm, 0),
    ATTR_BOOL(NormuonMomentumAttrs, nesterov, true),  ATTR_DTYPE(NormuonMomentumAttrs, dtype),
    NORMUON_ROWS_ATTRS(NormuonMomentumAttrs),         {0}};

enum { IN_G, IN_M, IN_NORM2, IN_LOSS };
enum { OUT_X, OUT_M };
enum { MOMENTUM_PER_TASK = 16 * TILE };

/* g, m (R,C), norm2, loss (1) f32 -> x (rows of the matrix,C), m' in place. */
static Status normuon_momentum_infer(Node *node)
{
    const NormuonMomentumAttrs *attrs = node->attrs;
    TRY(infer_input(node, IN_G, "g", DT_SET_FLOAT, DIMS(-1, -1)));
    const TensorType *g = &node->in[IN_G]->type;
    TRY(infer_like(node, IN_M, "m", DT_SET_FLOAT, g));
    TRY(infer_input(node, IN_NORM2, "norm2", DT_SET_F32, DIMS(1)));
    TRY(infer_input(node, IN_LOSS, "loss", DT_SET_F32, DIMS(1)));
    TensorType matrix;
    TRY(normuon_matrix(attrs->rows, g, &matrix));
    node->out[OUT_X]->type = type_as(&matrix, attrs->dtype ? ATTR_TO_DTYPE(attrs->dtype) : g->dtype);
    node->out[OUT_M]->type = node->in[IN_M]->type;
    return OK;
}

static int64_t matrix_numel(const NormuonMomentumAttrs *attrs, const TensorType *g)
{
    const MatrixRows rows = normuon_rows(attrs->rows, g->dim[0]);
    return type_numel(g) / rows.period * rows.size;
}

static OpCost normuon_momentum_cost(const Node *node)
{
    const NormuonMomentumAttrs *attrs = node->attrs;
    const Value                *x = node->out[OUT_X];
    return normuon_cost(cost_streaming(node, 10.0 * (double)matrix_numel(attrs, &node->in[IN_G]->type)), attrs->rows,
                        x ? (double)type_bytes(&x->type) : 0);
}

/* Room for each task's partial sum of |u|^2 in fp64. */
static size_t normuon_momentum_workspace(const Node *node, int num_workers)
{
    (void)num_workers;
    return (size_t)div_up(matrix_numel(node->attrs, &node->in[IN_G]->type), MOMENTUM_PER_TASK) * sizeof(double);
}

static size_t normuon_momentum_gpu_workspace(const Node *node, int sm)
{
    (void)node, (void)sm;
    return NORMUON_MOMENTUM_BLOCKS * sizeof(float);
}

typedef struct MomentumStep {
    const KernelArgs *args;
    MatrixRows        runs;  /* where the matrix's rows are in g and m; begin, size and period count elements */
    int64_t           numel; /* elements of the matrix */
    float             clip, momentum, rest, scale;
    bool              nesterov;
} MomentumStep;

static int64_t task_end(const MomentumStep *s, int64_t task)
{
    return min_i64(s->numel, (task + 1) * MOMENTUM_PER_TASK);
}

/* Elements of a tile that begins at `at` of the matrix: at most TILE, and contiguous in g and m. */
static int64_t tile_numel(const MomentumStep *s, int64_t at, int64_t end)
{
    return min_i64(min_i64(TILE, end - at), s->runs.size - at % s->runs.size);
}

static float input_of(const MomentumStep *s, float g, float m)
{
    return s->nesterov ? s->momentum * m + s->rest * (g * s->clip) : m;
}

static void momentum_task(void *context, int64_t task, int worker)
{
    const MomentumStep *s = context;
    double              sum = 0;
    float               scratch[TILE], m[TILE];
    (void)worker;
    for (int64_t at = task * MOMENTUM_PER_TASK, end = task_end(s, task), n; at < end; at += n) {
        const TensorView *in = &s->args->in[IN_M];
        int64_t           place = normuon_place(s->runs, at);
        n = tile_numel(s, at, end);
        const float *g = tile_load(&s->args->in[IN_G], place, n, scratch);
        vec_copy_in(m, vec_at(in->data, in->type.dtype, place), in->type.dtype, n);
        for (int64_t i = 0; i < n; i++) m[i] = s->momentum * m[i] + s->rest * (g[i] * s->clip);
        tile_store(&s->args->out[OUT_M], place, m, n);
        for (int64_t i = 0; i < n; i++) m[i] = input_of(s, g[i], m[i]);
        sum += (double)vec_dot(m, m, n);
    }
    ((double *)s->args->workspace)[task] = sum;
}

static void scale_task(void *context, int64_t task, int worker)
{
    const MomentumStep *s = context;
    float               scratch_g[TILE], scratch_m[TILE], x[TILE];
    (void)worker;
    for (int64_t at = task * MOMENTUM_PER_TASK, end = task_end(s, task), n; at < end; at += n) {
        int64_t place = normuon_place(s->runs, at);
        n = tile_numel(s, at, end);
        const float *g = tile_load(&s->args->in[IN_G], place, n, scratch_g), *m = tile_load(&s->args->out[OUT_M], place, n, scratch_m);
        for (int64_t i = 0; i < n; i++) x[i] = input_of(s, g[i], m[i]) * s->scale;
        tile_store(&s->args->out[OUT_X], at, x, n);
    }
}

static Status normuon_momentum_cpu(const KernelArgs *args)
{
    const NormuonMomentumAttrs *attrs = args->attrs;
    float                       norm2 = *(const float *)args->in[IN_NORM2].data;
    const TensorType           *type = &args->in[IN_G].type;
    const MatrixRows            rows = normuon_rows(attrs->rows, type->dim[0]);
    int64_t                     cols = type->dim[1], numel = matrix_numel(attrs, type), tasks = div_up(numel, MOMENTUM_PER_TASK);
    const double               *sums = args->workspace;
    double                      sum = 0;
    MomentumStep                s = {.args = args,
                                     .runs = {rows.begin * cols, rows.size * cols, rows.period * cols},
                                     .numel = numel,
                                     .clip = clip_factor(norm2, attrs->max_grad_norm),
                                     .momentum = (float)attrs->momentum,
                                     .rest = (float)(1 - attrs->momentum),
                                     .nesterov = attrs->nesterov};
    if (!isfinite(norm2) || !isfinite(*(const float *)args->in[IN_LOSS].data)) {
        if (args->out[OUT_X].data) memset(args->out[OUT_X].data, 0, (size_t)type_bytes(&args->out[OUT_X].type));
        return OK;
    }
    pool_run(args->pool, tasks, momentum_task, &s);
    for (int64_t i = 0; i < tasks; i++) sum += sums[i];
    s.scale = (float)(1 / (1.02 * sqrt(sum) + 1e-6));
    if (args->out[OUT_X].data) pool_run(args->pool, tasks, scale_task, &s);
    return OK;
}

const OpDef op_normuon_momentum = {
    .id = OP_NORMUON_MOMENTUM,
    .name = "normuon_momentum",
    .synopsis = "m' = momentum m + (1 - momentum) g, with g clipped; x = u / (1.02 |u| + 1e-6), u = m', or with nesterov "
                "momentum m' + (1 - momentum) g",
    .num_in = 4,
    .num_out = 2,
    .min_in = 4,
    .alias = {{.out = OUT_M, .in = IN_M}},
    .num_alias = 1,
    .attrs_size = sizeof(NormuonMomentumAttrs),
    .attrs = normuon_momentum_attrs,
    .infer = normuon_momentum_infer,
    .cost = normuon_momentum_cost,
    .workspace = normuon_momentum_workspace,
    .gpu_workspace = normuon_momentum_gpu_workspace,
    .cpu = {{DT_SET_FLOAT, normuon_momentum_cpu, "reference"}},
    .holds = {[IN_NORM2] = HOLDS_NORM2},
    .samples = "[7,9], [7,9], [1], [1] {max_grad_norm=1}\n"
               "[150,300], [150,300], [1], [1] {momentum=0.9, nesterov=false, dtype=f32}\n"
               "[12,9], [12,9], [1], [1] {max_grad_norm=1, begin=1, size=2, period=4}\n"
               "[84,64], [84,64], [1], [1] {max_grad_norm=1, begin=1, size=2, period=4}\n",
    .large = "[1024,3072], [1024,3072], [1], [1] {max_grad_norm=1}\n"
             "bf16[2048,1024], [2048,1024], [1], [1] {max_grad_norm=1, dtype=bf16} tolerance=0.01\n"
             "[3072,1024], [3072,1024], [1], [1] {max_grad_norm=1, begin=2048, size=512, period=3072}\n"
             "[1024,1024], [1024,1024], [1], [1] {max_grad_norm=1, begin=1, size=2, period=4}\n",
};
