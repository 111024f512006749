/* rms_norm_bwd: with g = dy w:  dx = rstd g - x rstd^3 mean(g x),  dw = sum over rows of dy x rstd. */
#include "ops/rms_row.h"

static const AttrDef rms_norm_bwd_attrs[] = {ATTR_FLOAT(RmsNormAttrs, eps, 1e-6),
                                             ATTR_FLOAT(RmsNormAttrs, offset, 0),
                                             ATTR_DTYPE(RmsNormAttrs, dw_dtype),
                                             ATTR_DTYPE(RmsNormAttrs, codes),
                                             {0}};

enum { IN_DY, IN_X, IN_W, IN_RSTD, IN_ACC_DX, IN_ACC_DW, IN_SCALE, IN_AMAX };
enum { OUT_DX, OUT_DW, OUT_CODES, OUT_MORE, OUT_AMAX };

enum { CODES_MOST_COLS = 16384 }; /* that a block on a GPU holds */

static bool rms_norm_bwd_codes_fit(const Node *node, int64_t whole)
{
    const TensorType *x = &node->in[IN_X]->type;
    return type_cols(x) <= CODES_MOST_COLS && codes_fit(node, x, whole, 1u << IN_DY | 1u << IN_X | 1u << IN_W | 1u << IN_ACC_DX);
}

/* dy, x (..., C), w (C), rstd (...) f32, [acc (..., C)], [acc (C)] -> dx (..., C) of acc's dtype, else x's,
 * dw (C), in w's dtype if not told otherwise, [what OpCodes says of dx]. */
static Status rms_norm_bwd_infer(Node *node)
{
    TRY(infer_float(node, IN_X, "x", 2));
    const TensorType *x = &node->in[IN_X]->type;
    TensorType        dx = *x, dw, rstd = type_without_last(x, DT_F32);
    TRY(infer_like(node, IN_DY, "dy", DT_SET_FLOAT, x));
    TRY(infer_input(node, IN_W, "w", DT_SET_FLOAT, DIMS(type_cols(x))));
    TRY(infer_like(node, IN_RSTD, "rstd", DT_SET_F32, &rstd));
    dw = node->in[IN_W]->type;
    if (node->in[IN_ACC_DX]) {
        TRY(infer_like(node, IN_ACC_DX, "acc dx", DT_SET_FLOAT, &dx));
        dx = node->in[IN_ACC_DX]->type;
    }
    TRY(infer_dw(node, IN_ACC_DW, "acc dw", ((const RmsNormAttrs *)node->attrs)->dw_dtype, &dw));
    node->out[0]->type = dx;
    node->out[1]->type = dw;
    return infer_codes(node, ((const RmsNormAttrs *)node->attrs)->codes);
}

static OpCost rms_norm_bwd_cost(const Node *node)
{
    return cost_streaming(node, 10.0 * (double)type_numel(&node->in[IN_X]->type));
}

/* Partial sums of dw. */
static size_t rms_norm_bwd_workspace(const Node *node, int num_workers)
{
    const TensorType *x = &node->in[IN_X]->type;
    (void)num_workers;
    return node->out[1] ? (size_t)(num_chunks(type_rows(x)) * type_cols(x)) * sizeof(float) : 0;
}

/* A task's part: dw NULL: not wanted. dtype: that of dy, x and dx, else f32. */
typedef struct BwdRows {
    const KernelArgs *args;
    RowCodes          codes;
    float            *dw;
    DType             dtype;
    bool              adds;
} BwdRows;

VEC_ROW float row_dot(DType dtype, const void *dy, const void *x, const float *w, int64_t count)
{
    return vec_row_dot3(dtype, x, dtype, dy, w, count);
}

VEC_ROW void row_bwd(DType dtype, void *dx, const RmsBwd *row, int64_t count)
{
    rms_bwd_row(dtype, dtype, dx, row, count);
}

/* sum(dy w x) of each of `rows` rows from element `at` on. */
static void rms_norm_bwd_dots(const BwdRows *s, int64_t at, int64_t rows, int64_t cols, float *dot)
{
    const TensorView *dy = &s->args->in[IN_DY], *x = &s->args->in[IN_X];
    double            offset = ((const RmsNormAttrs *)s->args->attrs)->offset;
    float             scratch_dy[TILE], scratch_x[TILE], scratch_w[TILE];
    DType             dtype = TILE_DTYPE(dy, x);
    for (int64_t r = 0; r < rows; r++) dot[r] = 0;
    for (int64_t c = 0; c < cols; c += TILE) {
        int64_t      n = min_i64(TILE, cols - c);
        const float *w = rms_weights(&s->args->in[IN_W], offset, c, n, scratch_w);
        for (int64_t r = 0; r < rows; r++) {
            int64_t from = at + r * cols + c;
            dot[r] += VEC_OF(dtype, row_dot, tile_in(dy, dtype, from, n, scratch_dy), tile_in(x, dtype, from, n, scratch_x), w, n);
        }
    }
}

/* Columns [c, c + n) of a row: of dx, its codes and its part of dw. dx may share dy's memory. */
static void rms_norm_bwd_tile(BwdRows *s, const float *w, float rstd, float pull, int64_t row, int64_t c, int64_t n)
{
    const TensorView *dx = &s->args->out[0], *acc = dx->data ? dx : &s->args->in[IN_ACC_DX];
    int64_t           at = row * type_cols(&s->args->in[IN_X].type) + c;
    float             scratch_dy[TILE], scratch_x[TILE], scratch_dx[TILE];
    DType             dtype = s->dtype;
    const void *dy = tile_in(&s->args->in[IN_DY], dtype, at, n, scratch_dy), *x = tile_in(&s->args->in[IN_X], dtype, at, n, scratch_x);
    void       *result = dx->data ? tile_out(dx, dtype, at, scratch_dx) : scratch_dx;
    RmsBwd      bwd = {dy, x, s->adds ? result : NULL, w, s->dw ? s->dw + c : NULL, rstd, pull};
    if (s->adds && result == scratch_dx) vec_copy_in(scratch_dx, vec_at(acc->data, acc->type.dtype, at), acc->type.dtype, n);
    VEC_OF(dtype, row_bwd, result, &bwd, n);
    row_codes_store(&s->codes, row, c, result, n);
    if (dx->data) tile_done(dx, dtype, at, result, n);
}

VEC_TASK(rms_norm_bwd_task)
{
    const KernelArgs *args = context;
    const TensorType *x = &args->in[IN_X].type;
    const float      *rstd = args->in[IN_RSTD].data;
    int64_t           rows = type_rows(x), cols = type_cols(x), step = chunk_rows(rows), end = min_i64(rows, (task + 1) * step);
    BwdRows           s = {args, row_codes(args, &op_rms_norm_bwd.codes, x), NULL, DT_F32, false};
    float             scratch_w[TILE], dot[RMS_ROWS];
    (void)worker;
    if (args->out[1].data) s.dw = (float *)args->workspace + task * cols;
    if (s.dw) memset(s.dw, 0, (size_t)cols * sizeof(float));
    if (!row_codes_wanted(&s.codes)) s.dtype = TILE_DTYPE(&args->in[IN_DY], &args->in[IN_X], &args->out[0]);
    s.adds = args->out[0].data ? args->accumulate & 1 : args->in[IN_ACC_DX].data != NULL;
    for (int64_t row = task * step; row < end; row += rms_rows(cols)) {
        int64_t count = min_i64(rms_rows(cols), end - row);
        rms_norm_bwd_dots(&s, row * cols, count, cols, dot);
        for (int64_t c = 0; c < cols; c += TILE) {
            int64_t      n = min_i64(TILE, cols - c);
            const float *w = rms_weights(&args->in[IN_W], ((const RmsNormAttrs *)args->attrs)->offset, c, n, scratch_w);
            for (int64_t r = 0; r < count; r++)
                rms_norm_bwd_tile(&s, w, rstd[row + r], rms_pull(rstd[row + r], dot[r], cols), row + r, c, n);
        }
    }
    row_codes_record(&s.codes);
}

static Status rms_norm_bwd_cpu(const KernelArgs *args)
{
    const TensorType *x = &args->in[IN_X].type;
    int64_t           chunks = num_chunks(type_rows(x)), cols = type_cols(x);
    pool_run(args->pool, chunks, rms_norm_bwd_task, (void *)args);
    if (args->out[1].data) chunks_combine(&args->out[1], args->accumulate >> 1 & 1, args->workspace, chunks, cols, cols);
    return OK;
}

static const RmsNormAttrs rms_norm_bwd_f32 = {.eps = 1e-6, .dw_dtype = DTYPE_TO_ATTR(DT_F32)};

static const RmsNormAttrs rms_norm_bwd_to_codes = {.eps = 1e-6, .codes = DTYPE_TO_ATTR(DT_E4M3)};
static const RmsNormAttrs rms_norm_bwd_to_e5m2 = {.eps = 1e-6, .codes = DTYPE_TO_ATTR(DT_E5M2)};

static const RmsNormAttrs rms_norm_bwd_offset = {.eps = 1e-6, .offset = 1};

static const OpSample rms_norm_bwd_samples[] = {
    {.in = {{DT_F32, 2, {70, 64}}, {DT_F32, 2, {70, 64}}, {DT_F32, 1, {64}}, {DT_F32, 1, {70}}}, .attrs = &rms_norm_bwd_offset},
    {.in = {{DT_F32, 3, {2, 3, 16}}, {DT_F32, 3, {2, 3, 16}}, {DT_F32, 1, {16}}, {DT_F32, 2, {2, 3}}}},
    {.in = {{DT_F32, 2, {70, 1037}},
            {DT_F32, 2, {70, 1037}},
            {DT_F32, 1, {1037}},
            {DT_F32, 1, {70}},
            {DT_F32, 2, {70, 1037}},
            {DT_F32, 1, {1037}}}},
    {.in = {{DT_F32, 2, {70, 64}}, {DT_F32, 2, {70, 64}}, {DT_F32, 1, {64}}, {DT_F32, 1, {70}}}, .attrs = &rms_norm_bwd_f32},
    {.in = {{DT_F32, 2, {70, 384}}, {DT_F32, 2, {70, 384}}, {DT_F32, 1, {384}}, {DT_F32, 1, {70}}}, .attrs = &rms_norm_bwd_to_codes},
    {.in = {{DT_F32, 2, {70, 80}}, {DT_F32, 2, {70, 80}}, {DT_F32, 1, {80}}, {DT_F32, 1, {70}}, {0}, {0}, CODES_SCALE, CODES_AMAX},
     .attrs = &rms_norm_bwd_to_e5m2},
};

static const RmsNormAttrs large_norm_f32 = {.eps = 1e-6, .dw_dtype = DTYPE_TO_ATTR(DT_F32)};

/* Shapes of real models. */
static const OpSample rms_norm_bwd_large_samples[] = {
    {.in = {{DT_F32, 2, {600, 1024}}, {DT_F32, 2, {600, 1024}}, {DT_F32, 1, {1024}}, {DT_F32, 1, {600}}}},
    {.in = {{DT_F32, 2, {600, 2304}}, {DT_F32, 2, {600, 2304}}, {DT_F32, 1, {2304}}, {DT_F32, 1, {600}}}, .attrs = &rms_norm_bwd_offset},
    {.in = {{DT_F32, 2, {600, 1024}}, {DT_F32, 2, {600, 1024}}, {DT_F32, 1, {1024}}, {DT_F32, 1, {600}}}, .attrs = &large_norm_f32},
    {.in = {{DT_F32, 2, {600, 4096}}, {DT_F32, 2, {600, 4096}}, {DT_F32, 1, {4096}}, {DT_F32, 1, {600}}}, .attrs = &rms_norm_bwd_to_codes},
    {.in = {{DT_F32, 2, {600, 4096}}, {DT_F32, 2, {600, 4096}}, {DT_F32, 1, {4096}}, {DT_F32, 1, {600}}, {0}, {0}, CODES_SCALE, CODES_AMAX},
     .attrs = &rms_norm_bwd_to_e5m2},
};

const OpDef op_rms_norm_bwd = {
    .id = OP_RMS_NORM_BWD,
    .name = "rms_norm_bwd",
    .synopsis = "dx = rstd dy w - x rstd^3 mean(dy w x), dw = sum of dy x rstd; w stands for w + offset",
    .num_in = 8,
    .num_out = 5,
    .min_in = 4,
    .flags = OP_INPLACE,
    .alias = {{.out = OUT_DX, .in = IN_ACC_DX, .accumulate = true},
              {.out = OUT_DW, .in = IN_ACC_DW, .accumulate = true},
              {.out = OUT_AMAX, .in = IN_AMAX}},
    .num_alias = 3,
    .attrs_size = sizeof(RmsNormAttrs),
    .attrs = rms_norm_bwd_attrs,
    .infer = rms_norm_bwd_infer,
    .cost = rms_norm_bwd_cost,
    .workspace = rms_norm_bwd_workspace,
    .cpu = {{DT_SET_FLOAT, rms_norm_bwd_cpu, "reference", {{.out = 1u << OUT_CODES | 1u << OUT_MORE, .dtypes = DT_SET_FP8 | DT_SET_F32}}}},
    .codes = {&op_fp8_rows_quantise, &op_fp8_quantise, OUT_DX, OUT_CODES, IN_SCALE, false, offsetof(RmsNormAttrs, codes),
              rms_norm_bwd_codes_fit},
    .holds = {[IN_SCALE] = HOLDS_SCALE, [IN_AMAX] = HOLDS_SQUARES},
    .samples = rms_norm_bwd_samples,
    .num_samples = sizeof rms_norm_bwd_samples / sizeof rms_norm_bwd_samples[0],
    .large = rms_norm_bwd_large_samples,
    .num_large = sizeof rms_norm_bwd_large_samples / sizeof rms_norm_bwd_large_samples[0],
};
