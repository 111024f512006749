/* layer_norm: y = (x - mean) rstd (w + offset) + b over the last dim, rstd = 1 / sqrt(mean((x - mean)^2) + eps) (Ba et al. 2016). Without
 * input w, w counts as 1. mean and rstd are outputs so that backward reads them instead of computing them again.
 *
 * layer_norm_bwd: with g = dy (w + offset) and h = (x - mean) rstd:
 *
 * dx = rstd (g - mean(g) - h mean(g h)),  dw = sum over rows of dy h,  db = sum over rows of dy. */
#include "ops/norms/layer_norm.h"
#include "ops/gpu_sums.h"
#include "ops/infer.h"

static const AttrDef layer_norm_attrs[] = {ATTR_FLOAT(LayerNormAttrs, eps, 1e-5), ATTR_FLOAT(LayerNormAttrs, offset, 0), {0}};
static const AttrDef layer_norm_bwd_attrs[] = {
    ATTR_FLOAT(LayerNormAttrs, eps, 1e-5), ATTR_FLOAT(LayerNormAttrs, offset, 0), ATTR_DTYPE(LayerNormAttrs, dw_dtype), {0}};

enum { X, W, B }; /* inputs of layer_norm */
enum { IN_DY, IN_X, IN_W, IN_MEAN, IN_RSTD, IN_ACC_DX, IN_ACC_DW, IN_ACC_DB };

/* x (..., C), [w (C)], [b (C)] of w's dtype -> y (..., C) of x's dtype, mean (...) f32, rstd (...) f32. */
static Status layer_norm_infer(Node *node)
{
    TRY(infer_eps(((const LayerNormAttrs *)node->attrs)->eps));
    TRY(infer_float(node, X, "x", 2));
    const TensorType *x = &node->in[X]->type;
    if (node->in[W]) TRY(infer_input(node, W, "w", DT_SET_DECODE, DIMS(type_cols(x))));
    if (node->in[B]) TRY(infer_input(node, B, "b", node->in[W] ? DT_SET(node->in[W]->type.dtype) : DT_SET_DECODE, DIMS(type_cols(x))));
    node->out[0]->type = *x;
    node->out[1]->type = node->out[2]->type = type_without_last(x, DT_F32);
    return OK;
}

/* dy, x (..., C), [w (C)], mean, rstd (...) f32, [acc (..., C)], [acc (C)], [acc (C)] -> dx (..., C) of acc's dtype, else x's; dw and db
 * (C) in w's dtype, else x's, unless attribute dw_dtype says another. */
static Status layer_norm_bwd_infer(Node *node)
{
    TRY(infer_float(node, IN_X, "x", 2));
    const TensorType *x = &node->in[IN_X]->type;
    int64_t           dw_dtype = ((const LayerNormAttrs *)node->attrs)->dw_dtype;
    TensorType        dx = *x, dw, db, row = type_without_last(x, DT_F32);
    TRY(infer_like(node, IN_DY, "dy", DT_SET_FLOAT, x));
    if (node->in[IN_W]) TRY(infer_input(node, IN_W, "w", DT_SET_FLOAT, DIMS(type_cols(x))));
    TRY(infer_like(node, IN_MEAN, "mean", DT_SET_F32, &row));
    TRY(infer_like(node, IN_RSTD, "rstd", DT_SET_F32, &row));
    dw = db = type_make(node->in[IN_W] ? node->in[IN_W]->type.dtype : x->dtype, 1, type_cols(x));
    if (node->in[IN_ACC_DX]) {
        TRY(infer_like(node, IN_ACC_DX, "acc dx", DT_SET_FLOAT, &dx));
        dx = node->in[IN_ACC_DX]->type;
    }
    TRY(infer_dw(node, IN_ACC_DW, "acc dw", dw_dtype, &dw));
    TRY(infer_dw(node, IN_ACC_DB, "acc db", dw_dtype, &db));
    node->out[0]->type = dx;
    node->out[1]->type = dw;
    node->out[2]->type = db;
    return OK;
}

static Status layer_norm_backward(GradBuilder *grad, const Node *node)
{
    Value   *x = node->in[X], *w = node->in[W], *b = node->in[B], *dy = grad_of(grad, node->out[0]);
    bool     dx_wanted = grad_wanted(grad, x), dw_wanted = grad_wanted(grad, w), db_wanted = grad_wanted(grad, b);
    uint32_t want = want_bit(dx_wanted, 0) | want_bit(dw_wanted, 1) | want_bit(db_wanted, 2);
    if (!dy || !want) return OK;
    LayerNormAttrs attrs = *(const LayerNormAttrs *)node->attrs;
    if (dw_wanted) attrs.dw_dtype = grad_dw_dtype(grad, w, w->type.dtype);
    if (db_wanted && !attrs.dw_dtype) attrs.dw_dtype = grad_dw_dtype(grad, b, b->type.dtype);
    Value *in[] = {dy,
                   x,
                   w,
                   node->out[1],
                   node->out[2],
                   NULL,
                   dw_wanted ? grad_accumulator(grad, w) : NULL,
                   db_wanted ? grad_accumulator(grad, b) : NULL};
    Value *out[3];
    TRY(grad_emit(grad, OP_LAYER_NORM_BWD, &attrs, in, 8, want, out));
    if (dw_wanted) grad_set(grad, w, out[1]);
    if (db_wanted) grad_set(grad, b, out[2]);
    return dx_wanted ? grad_add(grad, x, out[0]) : OK;
}

static OpCost layer_norm_cost(const Node *node)
{
    return cost_streaming(node, 7.0 * (double)type_numel(&node->in[X]->type));
}

static OpCost layer_norm_bwd_cost(const Node *node)
{
    return cost_streaming(node, 14.0 * (double)type_numel(&node->in[IN_X]->type));
}

/* Holds partial sums: for each chunk of rows C sums of dw, then C of db; unwanted ones are left out. */
static size_t layer_norm_bwd_workspace(const Node *node, int num_workers)
{
    const TensorType *x = &node->in[IN_X]->type;
    int64_t           sums = (node->out[1] != NULL) + (node->out[2] != NULL);
    (void)num_workers;
    return (size_t)(num_chunks(type_rows(x)) * type_cols(x) * sums) * sizeof(float);
}

static size_t layer_norm_bwd_gpu_workspace(const Node *node, int sm)
{
    const TensorType *x = &node->in[IN_X]->type;
    (void)sm;
    return sum_chunks_bytes(x, type_cols(x), (node->out[1] != NULL) + (node->out[2] != NULL));
}

/* Elements [at, at + count) of w + offset; 1 + offset if there is no w. */
static const float *tile_weights(const TensorView *w, int64_t at, int64_t count, float offset, float *scratch)
{
    if (w->data && offset == 0) return tile_load(w, at, count, scratch);
    const float *from = w->data ? tile_load(w, at, count, scratch) : NULL;
    for (int64_t i = 0; i < count; i++) scratch[i] = (from ? from[i] : 1.0f) + offset;
    return scratch;
}

/* ---- forward ---- */

static float row_mean(const TensorView *x, int64_t at, int64_t cols)
{
    float scratch[TILE], sum = 0;
    for (int64_t c = 0; c < cols; c += TILE) {
        int64_t n = min_i64(TILE, cols - c);
        sum += vec_sum(tile_load(x, at + c, n, scratch), n);
    }
    return sum / (float)cols;
}

/* out = elements [at, at + count) of x, minus the mean. */
static void tile_centre(float *out, const TensorView *x, int64_t at, float mean, int64_t count)
{
    float        scratch[TILE];
    const float *row = tile_load(x, at, count, scratch);
    for (int64_t i = 0; i < count; i++) out[i] = row[i] - mean;
}

static float row_rstd(const TensorView *x, int64_t at, float mean, double eps, int64_t cols)
{
    float centred[TILE], sum = 0;
    for (int64_t c = 0; c < cols; c += TILE) {
        int64_t n = min_i64(TILE, cols - c);
        tile_centre(centred, x, at + c, mean, n);
        sum += vec_dot(centred, centred, n);
    }
    return 1.0f / sqrtf(sum / (float)cols + (float)eps);
}

/* Writes one row of y, from element `at` on. y may be x's memory. */
static void write_row(const KernelArgs *args, int64_t at, float mean, float rstd, int64_t cols)
{
    const TensorView *b = &args->in[B], *y = &args->out[0];
    float             offset = (float)((const LayerNormAttrs *)args->attrs)->offset;
    float             centred[TILE], scratch_w[TILE], scratch_b[TILE], scratch_y[TILE];
    for (int64_t c = 0; c < cols; c += TILE) {
        int64_t      n = min_i64(TILE, cols - c);
        const float *w = tile_weights(&args->in[W], c, n, offset, scratch_w), *bias = b->data ? tile_load(b, c, n, scratch_b) : NULL;
        float       *result = tile_result(y, at + c, scratch_y);
        tile_centre(centred, &args->in[X], at + c, mean, n);
        for (int64_t i = 0; i < n; i++) result[i] = w[i] * (centred[i] * rstd);
        for (int64_t i = 0; bias && i < n; i++) result[i] += bias[i];
        tile_store(y, at + c, result, n);
    }
}

VEC_TASK(layer_norm_task)
{
    const KernelArgs     *args = context;
    const LayerNormAttrs *attrs = args->attrs;
    const TensorView     *x = &args->in[X];
    float                *means = args->out[1].data, *rstds = args->out[2].data;
    int64_t               cols = type_cols(&x->type), step = rows_per_task(cols);
    int64_t               end = min_i64(type_rows(&x->type), (task + 1) * step);
    (void)worker;
    for (int64_t row = task * step; row < end; row++) {
        float mean = row_mean(x, row * cols, cols), rstd = row_rstd(x, row * cols, mean, attrs->eps, cols);
        if (means) means[row] = mean;
        if (rstds) rstds[row] = rstd;
        if (args->out[0].data) write_row(args, row * cols, mean, rstd, cols);
    }
}

static Status layer_norm_cpu(const KernelArgs *args)
{
    const TensorType *x = &args->in[X].type;
    pool_run(args->pool, div_up(type_rows(x), rows_per_task(type_cols(x))), layer_norm_task, (void *)args);
    return OK;
}

/* ---- backward ---- */

/* Sums that a row's dx needs: dx = rstd dy w - shift - (x - mean) pull. */
typedef struct RowSums {
    float mean, rstd, shift, pull;
} RowSums;

static RowSums row_sums(const KernelArgs *args, int64_t row, int64_t cols)
{
    float scratch_dy[TILE], scratch_w[TILE], centred[TILE], sum = 0, dot = 0, offset = (float)((const LayerNormAttrs *)args->attrs)->offset;
    float mean = ((const float *)args->in[IN_MEAN].data)[row], rstd = ((const float *)args->in[IN_RSTD].data)[row];
    for (int64_t c = 0; args->out[0].data && c < cols; c += TILE) {
        int64_t      n = min_i64(TILE, cols - c);
        const float *dy = tile_load(&args->in[IN_DY], row * cols + c, n, scratch_dy);
        const float *w = tile_weights(&args->in[IN_W], c, n, offset, scratch_w);
        tile_centre(centred, &args->in[IN_X], row * cols + c, mean, n);
        sum += vec_dot(dy, w, n);
        dot += vec_dot3(dy, w, centred, n);
    }
    return (RowSums){mean, rstd, rstd * sum / (float)cols, rstd * rstd * rstd * dot / (float)cols};
}

/* Computes one row of dx and adds the row's part of dw and db (NULL: not wanted). dx may share dy's memory. */
static void layer_norm_bwd_row(const KernelArgs *args, float *dw, float *db, int64_t row, int64_t cols)
{
    const TensorView *dx = &args->out[0];
    RowSums           s = row_sums(args, row, cols);
    float             offset = (float)((const LayerNormAttrs *)args->attrs)->offset;
    float             scratch_dy[TILE], scratch_w[TILE], scratch_dx[TILE], centred[TILE];
    for (int64_t c = 0; c < cols; c += TILE) {
        int64_t      n = min_i64(TILE, cols - c), at = row * cols + c;
        const float *dy = tile_load(&args->in[IN_DY], at, n, scratch_dy), *w = tile_weights(&args->in[IN_W], c, n, offset, scratch_w);
        tile_centre(centred, &args->in[IN_X], at, s.mean, n);
        for (int64_t i = 0; dw && i < n; i++) dw[c + i] += dy[i] * (centred[i] * s.rstd);
        for (int64_t i = 0; db && i < n; i++) db[c + i] += dy[i];
        if (!dx->data) continue;
        float *result = args->accumulate & 1 ? scratch_dx : tile_result(dx, at, scratch_dx);
        for (int64_t i = 0; i < n; i++) result[i] = dy[i] * w[i] * s.rstd - s.shift - centred[i] * s.pull;
        if (args->accumulate & 1)
            tile_add(dx, at, result, n);
        else
            tile_store(dx, at, result, n);
    }
}

VEC_TASK(layer_norm_bwd_task)
{
    const KernelArgs *args = context;
    const TensorType *x = &args->in[IN_X].type;
    int64_t           rows = type_rows(x), cols = type_cols(x), step = chunk_rows(rows), end = min_i64(rows, (task + 1) * step);
    int64_t           sums = (args->out[1].data != NULL) + (args->out[2].data != NULL);
    float            *part = (float *)args->workspace + task * cols * sums;
    float            *dw = args->out[1].data ? part : NULL, *db = args->out[2].data ? part + (sums - 1) * cols : NULL;
    (void)worker;
    memset(part, 0, (size_t)(cols * sums) * sizeof(float));
    for (int64_t row = task * step; row < end; row++) layer_norm_bwd_row(args, dw, db, row, cols);
}

static Status layer_norm_bwd_cpu(const KernelArgs *args)
{
    const TensorType *x = &args->in[IN_X].type;
    int64_t           chunks = num_chunks(type_rows(x)), cols = type_cols(x);
    int64_t           stride = cols * ((args->out[1].data != NULL) + (args->out[2].data != NULL));
    const float      *part = args->workspace;
    pool_run(args->pool, chunks, layer_norm_bwd_task, (void *)args);
    if (args->out[1].data) chunks_combine(&args->out[1], args->accumulate >> 1 & 1, part, chunks, stride, cols);
    if (args->out[2].data) chunks_combine(&args->out[2], args->accumulate >> 2 & 1, part + stride - cols, chunks, stride, cols);
    return OK;
}

/* ---- descriptors ---- */

const OpDef op_layer_norm = {
    .id = OP_LAYER_NORM,
    .name = "layer_norm",
    .synopsis = "y = (x - mean) rstd (w + offset) + b, rstd = 1 / sqrt(mean((x - mean)^2) + eps)",
    .num_in = 3,
    .num_out = 3,
    .min_in = 1,
    .inplace = 1u << 0,
    .attrs_size = sizeof(LayerNormAttrs),
    .attrs = layer_norm_attrs,
    .infer = layer_norm_infer,
    .backward = layer_norm_backward,
    .cost = layer_norm_cost,
    .cpu = {{DT_SET_DECODE, layer_norm_cpu, "reference"}},
    .params = 1u << W | 1u << B,
    .samples = "[2,3,16], [16], [16] {eps=0.1}\n"
               "[70,1037], [1037], [1037]\n"
               "[5,24], [24]\n"
               "[5,24]\n"
               "[5,24], [24], [24] {offset=1}\n",
    .large = "[600,768], [768], [768]\n"
             "[100,8192], [8192], [8192]\n"
             "[100,2048]\n"
             "[100,2048], [2048], [2048] {offset=1}\n",
};

const OpDef op_layer_norm_bwd = {
    .id = OP_LAYER_NORM_BWD,
    .name = "layer_norm_bwd",
    .synopsis = "g = dy (w + offset), h = (x - mean) rstd: dx = rstd (g - mean(g) - h mean(g h)), dw = sum of dy h, db = sum of dy",
    .num_in = 8,
    .num_out = 3,
    .min_in = 5,
    .optional_in = 1u << IN_W,
    .inplace = 1u << 0,
    .alias = {{.out = 0, .in = IN_ACC_DX, .accumulate = true},
              {.out = 1, .in = IN_ACC_DW, .accumulate = true},
              {.out = 2, .in = IN_ACC_DB, .accumulate = true}},
    .num_alias = 3,
    .attrs_size = sizeof(LayerNormAttrs),
    .attrs = layer_norm_bwd_attrs,
    .infer = layer_norm_bwd_infer,
    .cost = layer_norm_bwd_cost,
    .workspace = layer_norm_bwd_workspace,
    .gpu_workspace = layer_norm_bwd_gpu_workspace,
    .cpu = {{DT_SET_FLOAT, layer_norm_bwd_cpu, "reference"}},
    .samples = "[2,3,16], [2,3,16], [16], [2,3], [2,3]\n"
               "[70,1037], [70,1037], [1037], [70], [70], [70,1037], [1037], [1037]\n"
               "[70,64], [70,64], [64], [70], [70] {dw_dtype=f32}\n"
               "[5,24], [5,24], _, [5], [5]\n"
               "[5,24], [5,24], [24], [5], [5] {offset=1}\n",
    .large = "[600,768], [600,768], [768], [600], [600]\n"
             "[100,8192], [100,8192], [8192], [100], [100] {dw_dtype=f32}\n"
             "[100,2048], [100,2048], _, [100], [100]\n"
             "[100,2048], [100,2048], [2048], [100], [100] {offset=1}\n",
};
