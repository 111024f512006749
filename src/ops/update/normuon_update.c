/* normuon_update: the last part of a NorMuon step (arXiv 2510.05491) of one matrix of R rows and C columns. x is its orthogonalised
 * momentum. The matrix is a weight, or those of its rows that attributes begin, size and period choose; other rows stay unchanged.
 *
 *   v_r <- beta2 v_r + (1 - beta2) mean_c x_rc^2
 *   o    = x_rc / (sqrt(v_r) + eps)
 *   w   <- w - lr weight_decay w - lr 0.2 sqrt(R C) / |o|_F o          (the last term is 0 if |o|_F is 0)
 *
 * A step whose loss or norm isn't finite changes nothing. Arithmetic is fp32, sums over rows fp64. bf16 weights without a master copy
 * are rounded stochastically, as in adamw; with a master copy they are the master rounded to nearest. */
#include "ops/update/update.h"
#include "ops/gpu_sums.h"
#include "ops/update/normuon.h"

static const AttrDef normuon_update_attrs[] = {ATTR_FLOAT(NormuonUpdateAttrs, beta2, 0.95),
                                               ATTR_FLOAT(NormuonUpdateAttrs, eps, 1e-10),
                                               ATTR_FLOAT(NormuonUpdateAttrs, weight_decay, 0),
                                               ATTR_BOOL(NormuonUpdateAttrs, stochastic, true),
                                               ATTR_INT(NormuonUpdateAttrs, key, 0),
                                               NORMUON_ROWS_ATTRS(NormuonUpdateAttrs),
                                               {0}};

enum { IN_W, IN_X, IN_V, IN_NORM2, IN_LOSS, IN_HYPER, IN_STEP, IN_MASTER };
enum { OUT_W, OUT_V, OUT_MASTER };

/* w (R,C), x (rows of the matrix,C), v (R) f32, norm2, loss (1) f32, hyper f32 (HYPER_COUNT), step i64 (STEP_COUNT), [master (R,C) f32]
 * -> w', v', master' in place. */
static Status normuon_update_infer(Node *node)
{
    TRY(infer_input(node, IN_W, "w", DT_SET_FLOAT, DIMS(-1, -1)));
    const TensorType *w = &node->in[IN_W]->type;
    TensorType        matrix;
    TRY(normuon_matrix(((const NormuonUpdateAttrs *)node->attrs)->rows, w, &matrix));
    TRY(infer_like(node, IN_X, "x", DT_SET_FLOAT, &matrix));
    TRY(infer_input(node, IN_V, "v", DT_SET_F32, DIMS(w->dim[0])));
    TRY(infer_input(node, IN_NORM2, "norm2", DT_SET_F32, DIMS(1)));
    TRY(infer_input(node, IN_LOSS, "loss", DT_SET_F32, DIMS(1)));
    TRY(infer_input(node, IN_HYPER, "hyper", DT_SET_F32, DIMS(HYPER_COUNT)));
    TRY(infer_input(node, IN_STEP, "step", DT_SET(DT_I64), DIMS(STEP_COUNT)));
    if (node->in[IN_MASTER]) TRY(infer_like(node, IN_MASTER, "master", DT_SET_F32, w));
    node->out[OUT_W]->type = *w;
    node->out[OUT_V]->type = node->in[IN_V]->type;
    node->out[OUT_MASTER]->type = node->in[IN_MASTER] ? node->in[IN_MASTER]->type : (TensorType){0};
    return OK;
}

static OpCost normuon_update_cost(const Node *node)
{
    const TensorType *x = &node->in[IN_X]->type;
    double            bytes = (double)type_bytes(x);
    OpCost            cost = cost_streaming(node, 6.0 * (double)type_numel(x));
    cost.bytes += bytes; /* x is read twice */
    return normuon_cost(cost, ((const NormuonUpdateAttrs *)node->attrs)->rows, 2 * bytes);
}

/* Room for 1 / (sqrt(v) + eps) and |o|^2 of each row. */
static size_t normuon_update_workspace(const Node *node, int num_workers)
{
    (void)num_workers;
    return (size_t)node->in[IN_X]->type.dim[0] * 2 * sizeof(double);
}

static size_t normuon_update_gpu_workspace(const Node *node, int sm)
{
    (void)sm;
    return (size_t)(NORMUON_UPDATE_BLOCKS + node->in[IN_X]->type.dim[0]) * sizeof(float);
}

typedef struct UpdateStep {
    const KernelArgs *args;
    MatrixRows        rows;
    double           *inverse, *square; /* by row of the matrix: 1 / (sqrt(v) + eps), and |o|^2 */
    float             decay, factor;
} UpdateStep;

static void rows_task(void *context, int64_t task, int worker)
{
    const UpdateStep         *s = context;
    const NormuonUpdateAttrs *attrs = s->args->attrs;
    const TensorView         *x = &s->args->in[IN_X];
    int64_t                   rows = x->type.dim[0], cols = x->type.dim[1], each = rows_per_task(cols);
    float                     scratch[TILE], *v = s->args->out[OUT_V].data;
    (void)worker;
    for (int64_t row = task * each, end = min_i64(rows, (task + 1) * each); row < end; row++) {
        double sum = 0;
        for (int64_t col = 0; col < cols; col += TILE) {
            int64_t      n = min_i64(TILE, cols - col);
            const float *piece = tile_load(x, row * cols + col, n, scratch);
            sum += (double)vec_dot(piece, piece, n);
        }
        float *moment = &v[normuon_place(s->rows, row)];
        *moment = (float)(attrs->beta2 * (double)*moment + (1 - attrs->beta2) * (sum / (double)cols));
        s->inverse[row] = 1 / (sqrt((double)*moment) + attrs->eps);
        s->square[row] = sum * s->inverse[row] * s->inverse[row];
    }
}

/* Updates elements [at, at + count) of the matrix, which start at `place` in the weight. */
static void weights_tile(const UpdateStep *s, int64_t at, int64_t place, int64_t count, uint64_t key)
{
    const NormuonUpdateAttrs *attrs = s->args->attrs;
    const TensorView         *in = s->args->in, *out = s->args->out, *source = in[IN_MASTER].data ? &in[IN_MASTER] : &in[IN_W];
    float                     w[TILE], scratch[TILE];
    uint32_t                  random[UPDATE_RANDOM];
    int64_t                   cols = in[IN_X].type.dim[1];
    const float              *x = tile_load(&in[IN_X], at, count, scratch);
    vec_copy_in(w, vec_at(source->data, source->type.dtype, place), source->type.dtype, count);
    for (int64_t i = 0; i < count;) {
        int64_t row = (at + i) / cols, end = min_i64(count, (row + 1) * cols - at);
        float   factor = s->factor * (float)s->inverse[row];
        for (; i < end; i++) w[i] = w[i] * s->decay - factor * x[i];
    }
    if (in[IN_MASTER].data) tile_store(&out[OUT_MASTER], place, w, count);
    if (in[IN_W].type.dtype == DT_BF16 && !in[IN_MASTER].data && attrs->stochastic) {
        update_random(random, key, at, count);
        store_stochastic(&out[OUT_W], place, w, random, 0, count);
    } else {
        tile_store(&out[OUT_W], place, w, count);
    }
}

static void weights_task(void *context, int64_t task, int worker)
{
    const UpdateStep         *s = context;
    const NormuonUpdateAttrs *attrs = s->args->attrs;
    const TensorType         *x = &s->args->in[IN_X].type;
    int64_t                   end = min_i64(type_numel(x), (task + 1) * UPDATE_PER_TASK), cols = x->dim[1], run = s->rows.size * cols, n;
    uint64_t                  key = update_key(s->args->in[IN_STEP].data, attrs->key);
    (void)worker;
    for (int64_t at = task * UPDATE_PER_TASK; at < end; at += n) {
        n = min_i64(min_i64(TILE, end - at), run - at % run);
        weights_tile(s, at, normuon_place(s->rows, at / cols) * cols + at % cols, n, key);
    }
}

static Status normuon_update_cpu(const KernelArgs *args)
{
    const NormuonUpdateAttrs *attrs = args->attrs;
    const TensorType         *x = &args->in[IN_X].type;
    int64_t                   rows = x->dim[0], numel = type_numel(x);
    double                    lr = (double)((const float *)args->in[IN_HYPER].data)[HYPER_LR], sum = 0;
    UpdateStep                s = {.args = args,
                                   .rows = normuon_rows(attrs->rows, args->in[IN_W].type.dim[0]),
                                   .inverse = args->workspace,
                                   .square = (double *)args->workspace + rows,
                                   .decay = (float)(1 - lr * attrs->weight_decay)};
    if (!isfinite(*(const float *)args->in[IN_NORM2].data) || !isfinite(*(const float *)args->in[IN_LOSS].data)) return OK;
    pool_run(args->pool, div_up(rows, rows_per_task(x->dim[1])), rows_task, &s);
    for (int64_t i = 0; i < rows; i++) sum += s.square[i];
    s.factor = sum > 0 ? (float)(lr * 0.2 * sqrt((double)numel / sum)) : 0;
    pool_run(args->pool, div_up(numel, UPDATE_PER_TASK), weights_task, &s);
    return OK;
}

const OpDef op_normuon_update = {
    .id = OP_NORMUON_UPDATE,
    .name = "normuon_update",
    .synopsis =
        "v' = beta2 v + (1 - beta2) mean x^2 of each row; w' = w - lr (weight_decay w + 0.2 sqrt(R C) o / |o|), o = x / (sqrt(v') + eps)",
    .num_in = 8,
    .num_out = 3,
    .min_in = 7,
    .flags = OP_RANDOM,
    .alias = {{.out = OUT_W, .in = IN_W}, {.out = OUT_V, .in = IN_V}, {.out = OUT_MASTER, .in = IN_MASTER}},
    .num_alias = 3,
    .attrs_size = sizeof(NormuonUpdateAttrs),
    .attrs = normuon_update_attrs,
    .infer = normuon_update_infer,
    .cost = normuon_update_cost,
    .workspace = normuon_update_workspace,
    .gpu_workspace = normuon_update_gpu_workspace,
    .cpu = {{DT_SET_FLOAT, normuon_update_cpu, "reference"}},
    .holds = {[IN_V] = HOLDS_SQUARES, [IN_NORM2] = HOLDS_NORM2, [IN_HYPER] = HOLDS_HYPER},
    .samples = "[7,9], [7,9], [7], [1], [1], [8], i64[4] below=99 {weight_decay=0.1, key=77}\n"
               "[150,301], [150,301], [150], [1], [1], [8], i64[4] below=99, [150,301] {weight_decay=0.1, key=77}\n"
               "[12,9], [6,9], [12], [1], [1], [8], i64[4] below=99 {weight_decay=0.1, key=77, begin=1, size=2, period=4}\n"
               "[84,64], [42,64], [84], [1], [1], [8], i64[4] below=99 {weight_decay=0.1, key=77, begin=1, size=2, period=4}\n"
               "[20,301], [10,301], [20], [1], [1], [8], i64[4] below=99, [20,301]"
               "  {weight_decay=0.1, key=77, begin=1, size=2, period=4}\n",
    .large = "[3072,1024], [3072,1024], [3072], [1], [1], [8], i64[4] below=99 {weight_decay=0.1, key=77}\n"
             "[1024,3072], [1024,3072], [1024], [1], [1], [8], i64[4] below=99, [1024,3072] {weight_decay=0.1, key=77}\n"
             "[1024,1024], [512,1024], [1024], [1], [1], [8], i64[4] below=99 {weight_decay=0.1, key=77, begin=1, size=2, period=4}\n",
};
