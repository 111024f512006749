/* rms_norm_bwd: with g = dy (w + offset):  dx = rstd g - x rstd^3 mean(g x),  dw = sum over rows of dy x rstd. */
#include "ops/norms/rms_row.h"
#include "ops/gpu_sums.h"

static const AttrDef rms_norm_bwd_attrs[] = {ATTR_FLOAT(RmsNormAttrs, eps, 1e-6),
                                             ATTR_FLOAT(RmsNormAttrs, offset, 0),
                                             ATTR_DTYPE(RmsNormAttrs, dw_dtype),
                                             ATTR_DTYPE(RmsNormAttrs, codes),
                                             {0}};

enum { IN_DY, IN_X, IN_W, IN_RSTD, IN_ACC_DX, IN_ACC_DW, IN_SCALE, IN_AMAX };
enum { OUT_DX, OUT_DW, OUT_CODES, OUT_MORE, OUT_AMAX };

enum { CODES_MOST_COLS = 16384 }; /* longer rows don't fit a thread block on a GPU */

static bool rms_norm_bwd_codes_fit(const Node *node, int64_t whole)
{
    const TensorType *x = &node->in[IN_X]->type;
    return type_cols(x) <= CODES_MOST_COLS && codes_fit(node, x, whole, 1u << IN_DY | 1u << IN_X | 1u << IN_W | 1u << IN_ACC_DX);
}

/* dy, x (..., C), w (C), rstd (...) f32, [acc (..., C)], [acc (C)] -> dx (..., C) of acc's dtype, else x's, dw (C) in w's dtype unless
 * attribute dw_dtype says another, [the codes of dx, see OpCodes]. */
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

/* Holds partial sums of dw: a row of C floats for each chunk. */
static size_t rms_norm_bwd_workspace(const Node *node, int num_workers)
{
    const TensorType *x = &node->in[IN_X]->type;
    (void)num_workers;
    return node->out[1] ? (size_t)(num_chunks(type_rows(x)) * type_cols(x)) * sizeof(float) : 0;
}

static size_t rms_norm_bwd_gpu_workspace(const Node *node, int sm)
{
    const TensorType *x = &node->in[IN_X]->type;
    (void)sm;
    return sum_chunks_bytes(x, type_cols(x), node->out[OUT_DW] != NULL);
}

/* A chunk: rows [row, end). dw (C): sum of these rows' parts of dw; NULL: not wanted. adds: the result includes dx's old value, or input
 * acc if dx isn't wanted. */
typedef struct Chunk {
    const KernelArgs *args;
    RowCodes          codes;
    int64_t           row, end, cols;
    float            *dw;
    bool              adds;
} Chunk;

static Chunk chunk_begin(const KernelArgs *args, int64_t chunk)
{
    const TensorType *x = &args->in[IN_X].type;
    int64_t           rows = type_rows(x), step = chunk_rows(rows);
    Chunk             c = {.args = args, .codes = row_codes(args, &op_rms_norm_bwd.codes, x), .row = chunk * step, .cols = type_cols(x)};
    c.end = min_i64(rows, c.row + step);
    if (args->out[OUT_DW].data) c.dw = memset((float *)args->workspace + chunk * c.cols, 0, (size_t)c.cols * sizeof(float));
    c.adds = args->out[OUT_DX].data ? args->accumulate & 1 : args->in[IN_ACC_DX].data != NULL;
    return c;
}

/* Backward of contiguous rows. Each row is read again right after its sum is made; meanwhile the processor begins the next row's sum.
 * `wide` (floats, in a task for AVX-512), `adds` and `sums` are compile-time constants, so that the loop has no branches. */
VEC_ROW void rows_bwd(DType dtype, bool wide, bool adds, bool sums, void *dx, const void *dy, const void *x, const float *w, float *dw,
                      const float *rstd, int64_t rows, int64_t cols)
{
    for (int64_t r = 0; r < rows; r++) {
        RmsBwd row = {vec_at(dy, dtype, r * cols), vec_at(x, dtype, r * cols), w, dw, rstd[r], 0, adds, sums};
        row.pull = rms_pull(row.rstd, vec_row_dot3(dtype, row.x, dtype, row.dy, w, cols), cols);
        if (wide)
            rms_bwd_floats(vec_at_mut(dx, dtype, r * cols), &row, cols);
        else
            rms_bwd_row(dtype, dtype, vec_at_mut(dx, dtype, r * cols), &row, cols);
    }
}

/* Backward of a chunk if all operands have one dtype, so that rows are read and written in place. */
VEC_ROW void chunk_bwd_here(DType dtype, bool wide, const Chunk *c, const float *w)
{
    int64_t      at = c->row * c->cols, rows = c->end - c->row;
    const float *rstd = (const float *)c->args->in[IN_RSTD].data + c->row;
    void        *dx = vec_at_mut(c->args->out[OUT_DX].data, dtype, at);
    const void  *dy = vec_at(c->args->in[IN_DY].data, dtype, at), *x = vec_at(c->args->in[IN_X].data, dtype, at);
    if (c->adds && c->dw)
        rows_bwd(dtype, wide, true, true, dx, dy, x, w, c->dw, rstd, rows, c->cols);
    else if (c->adds)
        rows_bwd(dtype, wide, true, false, dx, dy, x, w, c->dw, rstd, rows, c->cols);
    else if (c->dw)
        rows_bwd(dtype, wide, false, true, dx, dy, x, w, c->dw, rstd, rows, c->cols);
    else
        rows_bwd(dtype, wide, false, false, dx, dy, x, w, c->dw, rstd, rows, c->cols);
}

/* Computes columns [at, at + n) of the chunk's first row: dx, its codes, and the part of dw; n is at most TILE. dx may share dy's
 * memory. */
static void tile_bwd(Chunk *c, const float *w, float rstd, float pull, int64_t at, int64_t n)
{
    const TensorView *dx = &c->args->out[OUT_DX], *acc = dx->data ? dx : &c->args->in[IN_ACC_DX];
    float             scratch_dy[TILE], scratch_x[TILE], scratch_dx[TILE];
    int64_t           from = c->row * c->cols + at;
    float            *result = dx->data ? tile_result(dx, from, scratch_dx) : scratch_dx;
    RmsBwd            tile = {.dy = tile_load(&c->args->in[IN_DY], from, n, scratch_dy),
                              .x = tile_load(&c->args->in[IN_X], from, n, scratch_x),
                              .w = w,
                              .dw = c->dw ? c->dw + at : NULL,
                              .rstd = rstd,
                              .pull = pull,
                              .adds = c->adds,
                              .sums = c->dw != NULL};
    if (c->adds && result == scratch_dx) vec_copy_in(scratch_dx, vec_at(acc->data, acc->type.dtype, from), acc->type.dtype, n);
    rms_bwd_row(DT_F32, DT_F32, result, &tile, n);
    row_codes_store(&c->codes, c->row, at, result, n);
    if (dx->data) tile_store(dx, from, result, n);
}

/* Backward of the chunk's first row, for any length and dtypes. */
static void row_bwd(Chunk *c)
{
    const TensorView *dy = &c->args->in[IN_DY], *x = &c->args->in[IN_X], *w = &c->args->in[IN_W];
    double            offset = ((const RmsNormAttrs *)c->args->attrs)->offset;
    float             rstd = ((const float *)c->args->in[IN_RSTD].data)[c->row], dot = 0;
    float             scratch_dy[TILE], scratch_x[TILE], scratch_w[TILE];
    for (int64_t at = 0; at < c->cols; at += TILE) {
        int64_t      n = min_i64(TILE, c->cols - at), from = c->row * c->cols + at;
        const float *weights = rms_weights(w, offset, at, n, scratch_w);
        dot += vec_dot3(tile_load(dy, from, n, scratch_dy), weights, tile_load(x, from, n, scratch_x), n);
    }
    for (int64_t at = 0; at < c->cols; at += TILE) {
        int64_t n = min_i64(TILE, c->cols - at);
        tile_bwd(c, rms_weights(w, offset, at, n, scratch_w), rstd, rms_pull(rstd, dot, c->cols), at, n);
    }
}

VEC_TASK(rms_norm_bwd_task)
{
    const KernelArgs *args = context;
    int64_t           rows = type_rows(&args->in[IN_X].type), each = chunks_moved(args, rows);
    (void)worker;
    for (int64_t chunk = task * each; chunk < min_i64(num_chunks(rows), (task + 1) * each); chunk++) {
        Chunk c = chunk_begin(args, chunk);
        for (; c.row < c.end; c.row++) row_bwd(&c);
        row_codes_record(&c.codes);
    }
}

enum { MOST_COLS_HERE = 8 * TILE };

/* Backward of chunks whose rows are read and written in place. These have tasks of their own, so that their loops have enough registers. */
VEC_ROW void chunks_bwd_here(DType dtype, bool wide, const KernelArgs *args, int64_t task)
{
    const TensorType *x = &args->in[IN_X].type;
    int64_t           rows = type_rows(x), each = chunks_moved(args, rows);
    float             scratch_w[MOST_COLS_HERE];
    const float      *w = rms_weights(&args->in[IN_W], ((const RmsNormAttrs *)args->attrs)->offset, 0, type_cols(x), scratch_w);
    for (int64_t chunk = task * each; chunk < min_i64(num_chunks(rows), (task + 1) * each); chunk++) {
        Chunk c = chunk_begin(args, chunk);
        chunk_bwd_here(dtype, wide, &c, w);
    }
}

VEC_TASK(here_task)
{
    const KernelArgs *args = context;
    (void)worker;
    VEC_OF(args->in[IN_X].type.dtype, chunks_bwd_here, false, args, task);
}

VEC_WIDE static void here_wide_task(void *context, int64_t task, int worker)
{
    (void)worker;
    chunks_bwd_here(DT_F32, true, context, task);
}

static Status rms_norm_bwd_cpu(const KernelArgs *args)
{
    const TensorType *x = &args->in[IN_X].type;
    const TensorView *dx = &args->out[OUT_DX];
    RowCodes          codes = row_codes(args, &op_rms_norm_bwd.codes, x);
    int64_t           rows = type_rows(x), cols = type_cols(x), chunks = num_chunks(rows);
    bool              here = cols <= MOST_COLS_HERE && dx->data && dx->type.dtype == x->dtype && args->in[IN_DY].type.dtype == x->dtype;
    PoolTask          task = rms_norm_bwd_task;
    if (here && !row_codes_wanted(&codes)) task = x->dtype == DT_F32 && cpu_avx512() ? here_wide_task : here_task;
    pool_run(args->pool, div_up(chunks, chunks_moved(args, rows)), task, (void *)args);
    if (args->out[OUT_DW].data) chunks_combine(&args->out[OUT_DW], args->accumulate >> 1 & 1, args->workspace, chunks, cols, cols);
    return OK;
}

const OpDef op_rms_norm_bwd = {
    .id = OP_RMS_NORM_BWD,
    .name = "rms_norm_bwd",
    .synopsis = "dx = rstd dy w - x rstd^3 mean(dy w x), dw = sum of dy x rstd; w stands for w + offset",
    .num_in = 8,
    .num_out = 5,
    .min_in = 4,
    .inplace = 1u << 0,
    .alias = {{.out = OUT_DX, .in = IN_ACC_DX, .accumulate = true},
              {.out = OUT_DW, .in = IN_ACC_DW, .accumulate = true},
              {.out = OUT_AMAX, .in = IN_AMAX}},
    .num_alias = 3,
    .attrs_size = sizeof(RmsNormAttrs),
    .attrs = rms_norm_bwd_attrs,
    .infer = rms_norm_bwd_infer,
    .cost = rms_norm_bwd_cost,
    .workspace = rms_norm_bwd_workspace,
    .gpu_workspace = rms_norm_bwd_gpu_workspace,
    .cpu = {{DT_SET_FLOAT, rms_norm_bwd_cpu, "reference", {{.out = 1u << OUT_CODES | 1u << OUT_MORE, .dtypes = DT_SET_FP8 | DT_SET_F32}}}},
    .codes = {&op_fp8_rows_quantise, &op_fp8_quantise, OUT_DX, OUT_CODES, IN_SCALE, false, offsetof(RmsNormAttrs, codes),
              rms_norm_bwd_codes_fit},
    .holds = {[IN_SCALE] = HOLDS_SCALE, [IN_AMAX] = HOLDS_SQUARES},
    .samples = "[70,64], [70,64], [64], [70] {offset=1}\n"
               "[2,3,16], [2,3,16], [16], [2,3]\n"
               "[70,1037], [70,1037], [1037], [70], [70,1037], [1037]\n"
               "[70,64], [70,64], [64], [70] {dw_dtype=f32}\n"
               "[70,384], [70,384], [384], [70] {codes=e4m3}\n"
               "[70,80], [70,80], [80], [70], _, _, [4], [1] {codes=e5m2}\n",
    .large = "[600,1024], [600,1024], [1024], [600]\n"
             "[600,2304], [600,2304], [2304], [600] {offset=1}\n"
             "[600,1024], [600,1024], [1024], [600] {dw_dtype=f32}\n"
             "[600,4096], [600,4096], [4096], [600] {codes=e4m3}\n"
             "[600,4096], [600,4096], [4096], [600], _, _, [4], [1] {codes=e5m2}\n",
};
