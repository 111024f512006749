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

/* A task's part: dw NULL: not wanted. */
typedef struct BwdRows {
    const KernelArgs *args;
    RowCodes          codes;
    float            *dw;
    DType             dtype; /* that of dy, x and dx, else f32 */
    bool              adds;
    bool              lie; /* all rows are read and written where they lie */
} BwdRows;

/* dot[r] += sum(dy w x) over the first n columns of each of `rows` rows. */
VEC_ROW void add_dots(DType dtype, float *dot, const void *dy, const void *x, const float *w, int64_t rows, int64_t cols, int64_t n)
{
    for (int64_t r = 0; r < rows; r++) dot[r] += vec_row_dot3(dtype, vec_at(x, dtype, r * cols), dtype, vec_at(dy, dtype, r * cols), w, n);
}

/* The same columns of dx, and what they add to dw. */
VEC_ROW void rows_bwd(DType dtype, void *dx, const void *dy, const void *x, const float *w, float *dw, const float *rstd, const float *pull,
                      bool adds, int64_t rows, int64_t cols, int64_t n)
{
    for (int64_t r = 0; r < rows; r++) {
        void  *to = vec_at_mut(dx, dtype, r * cols);
        RmsBwd row = {vec_at(dy, dtype, r * cols), vec_at(x, dtype, r * cols), adds ? to : NULL, w, dw, rstd[r], pull[r]};
        rms_bwd_row(dtype, dtype, to, &row, n);
    }
}

/* sum(dy w x) over columns [c, c + n) of rows, n at most TILE. */
static void tile_dots(const BwdRows *s, const float *w, int64_t row, int64_t rows, int64_t cols, int64_t c, int64_t n, float *dot)
{
    const TensorView *dy = &s->args->in[IN_DY], *x = &s->args->in[IN_X];
    float             scratch_dy[TILE], scratch_x[TILE];
    int64_t           at = row * cols + c;
    if (s->lie) {
        VEC_OF(s->dtype, add_dots, dot, vec_at(dy->data, s->dtype, at), vec_at(x->data, s->dtype, at), w, rows, cols, n);
        return;
    }
    for (int64_t r = 0; r < rows; r++, at += cols)
        add_dots(DT_F32, dot + r, tile_load(dy, at, n, scratch_dy), tile_load(x, at, n, scratch_x), w, 1, cols, n);
}

/* The same columns of dx, its codes and its part of dw. dx may share dy's memory. */
static void tile_bwd(BwdRows *s, const float *w, const float *rstd, const float *pull, int64_t row, int64_t rows, int64_t cols, int64_t c,
                     int64_t n)
{
    const TensorView *dy = &s->args->in[IN_DY], *x = &s->args->in[IN_X], *dx = &s->args->out[0],
                     *acc = dx->data ? dx : &s->args->in[IN_ACC_DX];
    float   scratch_dy[TILE], scratch_x[TILE], scratch_dx[TILE], *dw = s->dw ? s->dw + c : NULL;
    int64_t at = row * cols + c;
    if (s->lie) {
        VEC_OF(s->dtype, rows_bwd, vec_at_mut(dx->data, s->dtype, at), vec_at(dy->data, s->dtype, at), vec_at(x->data, s->dtype, at), w, dw,
               rstd, pull, s->adds, rows, cols, n);
        return;
    }
    for (int64_t r = 0; r < rows; r++, at += cols) {
        float *result = dx->data ? tile_result(dx, at, scratch_dx) : scratch_dx;
        if (s->adds && result == scratch_dx) vec_copy_in(scratch_dx, vec_at(acc->data, acc->type.dtype, at), acc->type.dtype, n);
        rows_bwd(DT_F32, result, tile_load(dy, at, n, scratch_dy), tile_load(x, at, n, scratch_x), w, dw, rstd + r, pull + r, s->adds, 1,
                 cols, n);
        row_codes_store(&s->codes, row + r, c, result, n);
        if (dx->data) tile_store(dx, at, result, n);
    }
}

static void chunk_bwd(const KernelArgs *args, int64_t chunk)
{
    const RmsNormAttrs *attrs = args->attrs;
    const TensorType   *x = &args->in[IN_X].type;
    const TensorView   *dx = &args->out[0];
    const float        *rstd = args->in[IN_RSTD].data;
    int64_t             rows = type_rows(x), cols = type_cols(x), step = chunk_rows(rows), end = min_i64(rows, (chunk + 1) * step);
    BwdRows             s = {.args = args, .codes = row_codes(args, &op_rms_norm_bwd.codes, x), .dtype = x->dtype};
    float               scratch_w[TILE];
    if (args->out[1].data) s.dw = (float *)args->workspace + chunk * cols;
    if (s.dw) memset(s.dw, 0, (size_t)cols * sizeof(float));
    s.lie = !row_codes_wanted(&s.codes) && dx->data && dx->type.dtype == x->dtype && args->in[IN_DY].type.dtype == x->dtype;
    s.adds = dx->data ? args->accumulate & 1 : args->in[IN_ACC_DX].data != NULL;
    for (int64_t row = chunk * step; row < end; row += rms_rows(cols)) {
        int64_t count = min_i64(rms_rows(cols), end - row);
        float   pull[RMS_ROWS] = {0};
        for (int64_t c = 0, n; c < cols; c += n) {
            n = min_i64(TILE, cols - c);
            tile_dots(&s, rms_weights(&args->in[IN_W], attrs->offset, c, n, scratch_w), row, count, cols, c, n, pull);
        }
        for (int64_t r = 0; r < count; r++) pull[r] = rms_pull(rstd[row + r], pull[r], cols);
        for (int64_t c = 0, n; c < cols; c += n) {
            n = min_i64(TILE, cols - c);
            tile_bwd(&s, rms_weights(&args->in[IN_W], attrs->offset, c, n, scratch_w), rstd + row, pull, row, count, cols, c, n);
        }
    }
    row_codes_record(&s.codes);
}

VEC_TASK(rms_norm_bwd_task)
{
    const KernelArgs *args = context;
    int64_t           rows = type_rows(&args->in[IN_X].type), each = chunks_moved(args, rows);
    (void)worker;
    for (int64_t chunk = task * each; chunk < min_i64(num_chunks(rows), (task + 1) * each); chunk++) chunk_bwd(args, chunk);
}

static Status rms_norm_bwd_cpu(const KernelArgs *args)
{
    const TensorType *x = &args->in[IN_X].type;
    int64_t           rows = type_rows(x), cols = type_cols(x), chunks = num_chunks(rows);
    pool_run(args->pool, div_up(chunks, chunks_moved(args, rows)), rms_norm_bwd_task, (void *)args);
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
