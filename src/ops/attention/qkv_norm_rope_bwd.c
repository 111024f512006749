/* qkv_norm_rope_bwd: dq and dk are rotated back, then go through each head's norm (if there are norms); dv is copied. dwq and dwk are sums
 * over rows and heads, added in fixed chunks of rows. */
#include "ops/attention/rope_row.h"
#include "ops/gpu_sums.h"
#include "ops/lowbit/fp8_rows.h"
#include "ops/norms/rms_row.h"
#include "ops/vec_wide.h"

static const AttrDef qkv_bwd_attrs[] = {
    ATTR_INT(QkvAttrs, num_heads, 0), ATTR_INT(QkvAttrs, num_kv_heads, 0), ATTR_INT(QkvAttrs, head_dim, 0), ATTR_FLOAT(QkvAttrs, eps, 1e-6),
    ATTR_FLOAT(QkvAttrs, offset, 0),  ATTR_DTYPE(QkvAttrs, dw_dtype),      ATTR_DTYPE(QkvAttrs, codes),     {0},
};

enum { IN_DY, IN_QKV, IN_WQ, IN_WK, IN_TABLE, IN_POSITIONS, IN_RSTD, IN_ACC_DWQ, IN_ACC_DWK, IN_SCALE, IN_AMAX };
enum { OUT_DX, OUT_DWQ, OUT_DWK, OUT_CODES, OUT_MORE, OUT_AMAX };

/* Whether a GPU kernel can make codes of dx: a head must be 16 bytes times 4, 8, 16 or 32 lanes. A row must have
 * a multiple of `all` elements. */
static bool qkv_bwd_codes_fit(const Node *node, int64_t all)
{
    const TensorType *dy = &node->in[IN_DY]->type;
    int64_t           lanes = dtype_bytes(dy->dtype, ((const QkvAttrs *)node->attrs)->head_dim) / 16;
    bool              whole = lanes == 4 || lanes == 8 || lanes == 16 || lanes == 32;
    return whole && codes_fit(node, dy, all, 1u << IN_DY | 1u << IN_QKV | 1u << IN_WQ | 1u << IN_WK);
}

/* dqkv' (B,T,(H+2G)D), and with norms: qkv, wq (D), wk (D), rstd (B,T,H+G) f32, [acc (D)] twice; table (P,D) f32, positions i32 (B,T) ->
 * dqkv of dqkv''s type, with norms dwq, dwk (D) in wq's and wk's dtype unless attribute dw_dtype says another, [the codes of dqkv, see
 * OpCodes]. */
static Status qkv_norm_rope_bwd_infer(Node *node)
{
    const QkvAttrs *attrs = node->attrs;
    int64_t         turned = attrs->num_heads + attrs->num_kv_heads, head_dim = attrs->head_dim;
    FAIL_IF(attrs->num_heads < 1 || attrs->num_kv_heads < 1 || head_dim < 2 || head_dim % 2 || head_dim > ROPE_MAX_HEAD_DIM, ERR_INVALID,
            "attributes num_heads %lld, num_kv_heads %lld, head_dim %lld: expected heads, and an even head_dim up to %d",
            (long long)attrs->num_heads, (long long)attrs->num_kv_heads, (long long)head_dim, ROPE_MAX_HEAD_DIM);
    TRY(infer_input(node, IN_DY, "dqkv", DT_SET_FLOAT, DIMS(-1, -1, (turned + attrs->num_kv_heads) * head_dim)));
    const TensorType *dy = &node->in[IN_DY]->type;
    bool              norms = node->in[IN_WQ] != NULL;
    FAIL_IF(norms != (node->in[IN_WK] != NULL) || (norms && (!node->in[IN_QKV] || !node->in[IN_RSTD])), ERR_INVALID,
            "wq, wk, qkv and rstd come together or not at all");
    TRY(infer_input(node, IN_TABLE, "table", DT_SET_F32, DIMS(-1, head_dim)));
    TRY(infer_input(node, IN_POSITIONS, "positions", DT_SET(DT_I32), DIMS(dy->dim[0], dy->dim[1])));
    node->out[0]->type = *dy;
    node->out[1]->type = node->out[2]->type = (TensorType){0};
    TRY(infer_codes(node, attrs->codes));
    if (!norms) return OK;
    TRY(infer_like(node, IN_QKV, "qkv", DT_SET_FLOAT, dy));
    TRY(infer_input(node, IN_WQ, "wq", DT_SET_FLOAT, DIMS(head_dim)));
    TRY(infer_input(node, IN_WK, "wk", DT_SET_FLOAT, DIMS(head_dim)));
    TRY(infer_input(node, IN_RSTD, "rstd", DT_SET_F32, DIMS(dy->dim[0], dy->dim[1], turned)));
    node->out[1]->type = node->in[IN_WQ]->type;
    node->out[2]->type = node->in[IN_WK]->type;
    TRY(infer_dw(node, IN_ACC_DWQ, "acc dwq", attrs->dw_dtype, &node->out[1]->type));
    return infer_dw(node, IN_ACC_DWK, "acc dwk", attrs->dw_dtype, &node->out[2]->type);
}

static OpCost qkv_norm_rope_bwd_cost(const Node *node)
{
    return cost_streaming(node, (node->in[IN_WQ] ? 13.0 : 3.0) * (double)type_numel(&node->in[IN_DY]->type));
}

/* Floats of all chunks' partial sums. Each chunk has head_dim sums of dwq, then head_dim of dwk. */
static int64_t partial_floats(const QkvAttrs *attrs, const TensorType *dy, bool wanted)
{
    return wanted ? num_chunks(type_rows(dy)) * 2 * attrs->head_dim : 0;
}

/* Holds the partial sums, and a row of dx for each worker if codes are made (dx itself may not be wanted). */
static size_t qkv_norm_rope_bwd_workspace(const Node *node, int num_workers)
{
    const QkvAttrs   *attrs = node->attrs;
    const TensorType *dy = &node->in[IN_DY]->type;
    int64_t           rows = attrs->codes ? num_workers * type_cols(dy) : 0;
    return (size_t)(partial_floats(attrs, dy, node->out[OUT_DWQ] || node->out[OUT_DWK]) + rows) * sizeof(float);
}

static size_t qkv_norm_rope_bwd_gpu_workspace(const Node *node, int sm)
{
    (void)sm;
    return sum_chunks_bytes(&node->in[IN_DY]->type, ((const QkvAttrs *)node->attrs)->head_dim, node->out[1] || node->out[2] ? 2 : 0);
}

/* The operands of contiguous heads. x, w, rstd and dw are only used with norms; sums are added to dw (NULL: not wanted). dx may share dy's
 * memory. */
typedef struct Heads {
    const void  *dy, *x;
    void        *dx;
    const float *cosines, *w, *rstd;
    float       *dw;
    int64_t      ahead; /* distance in elements to the heads that are prefetched meanwhile */
} Heads;

/* HEADS: heads that are computed together. Floats are computed one head at a time: with a compile-time head_dim the head stays in
 * registers. Other dtypes take so many instructions a head that the processor doesn't reach the next head while one waits for its sum. */
enum { HEADS = 8, ROWS_AHEAD = 2 };
#define HEADS_OF(dtype) ((dtype) == DT_F32 ? 1 : HEADS)

/* Backward of one float head with norms; head_dim is a compile-time constant, 64 or 128. It gives the same bits as heads_bwd. */
VEC_WIDE_ROW void head_bwd_wide(int64_t head_dim, const Heads *heads, int64_t h)
{
    enum { LANES = 16, MOST = 128 / LANES };
    const float *dys = (const float *)heads->dy + h * head_dim, *xs = (const float *)heads->x + h * head_dim;
    const float *cosines = heads->cosines, *sines = cosines + head_dim / 2;
    float       *dx = (float *)heads->dx + h * head_dim;
    int64_t      count = head_dim / LANES, half = count / 2;
    __m512       dy[MOST], x[MOST], scaled[MOST], sums[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    __m512       rstd = _mm512_set1_ps(heads->rstd[h]);
    vec_ahead_floats(DT_F32, xs, heads->ahead, head_dim);
    vec_ahead_floats(DT_F32, dys, heads->ahead, head_dim);
    for (int64_t k = 0; k < half; k++) {
        __m512 c = _mm512_loadu_ps(cosines + k * LANES), s = _mm512_loadu_ps(sines + k * LANES);
        __m512 first = _mm512_loadu_ps(dys + k * LANES), second = _mm512_loadu_ps(dys + (k + half) * LANES);
        dy[k] = _mm512_fmadd_ps(first, c, _mm512_mul_ps(second, s));
        dy[k + half] = _mm512_fmsub_ps(second, c, _mm512_mul_ps(first, s));
    }
    for (int64_t k = 0; k < count; k++) {
        x[k] = _mm512_loadu_ps(xs + k * LANES);
        scaled[k] = _mm512_mul_ps(dy[k], _mm512_loadu_ps(heads->w + k * LANES));
        sums[k % 2] = _mm512_fmadd_ps(scaled[k], x[k], sums[k % 2]);
    }
    __m512 pull = _mm512_set1_ps(rms_pull(heads->rstd[h], vec16_sum(sums[0], sums[1]), head_dim));
    for (int64_t k = 0; k < count; k++) {
        float *dw = heads->dw + k * LANES;
        if (heads->dw) _mm512_storeu_ps(dw, _mm512_fmadd_ps(dy[k], _mm512_mul_ps(x[k], rstd), _mm512_loadu_ps(dw)));
        _mm512_storeu_ps(dx + k * LANES, _mm512_fmsub_ps(scaled[k], rstd, _mm512_mul_ps(x[k], pull)));
    }
}

VEC_WIDE static void heads_bwd_wide(int64_t head_dim, const Heads *heads, int64_t count)
{
    for (int64_t h = 0; h < count && head_dim == 64; h++) head_bwd_wide(64, heads, h);
    for (int64_t h = 0; h < count && head_dim == 128; h++) head_bwd_wide(128, heads, h);
}

/* Computes dx of `count` heads. */
VEC_ROW void heads_bwd(DType dtype, int64_t head_dim, bool norms, bool sums, const Heads *heads, int64_t count)
{
    _Alignas(64) float turned[HEADS * ROPE_MAX_HEAD_DIM];
    float              pull[HEADS];
    if (!norms) {
        rope_heads(dtype, dtype, true, false, heads->dy, heads->dx, NULL, NULL, count, head_dim, heads->cosines, head_dim / 2);
        return;
    }
    for (int64_t h = 0, n; h < count; h += n) {
        const void *x = vec_at(heads->x, dtype, h * head_dim), *dy = vec_at(heads->dy, dtype, h * head_dim);
        n = min_i64(HEADS_OF(dtype), count - h);
        vec_ahead_floats(dtype, x, heads->ahead, head_dim);
        vec_ahead_floats(dtype, dy, heads->ahead, head_dim);
        rope_heads(dtype, DT_F32, true, false, dy, turned, NULL, NULL, n, head_dim, heads->cosines, head_dim / 2);
        for (int64_t k = 0; k < n; k++) {
            float dot = vec_row_dot3(dtype, vec_at(x, dtype, k * head_dim), DT_F32, turned + k * head_dim, heads->w, head_dim);
            pull[k] = rms_pull(heads->rstd[h + k], dot, head_dim);
        }
        for (int64_t k = 0; k < n; k++) {
            RmsBwd row = {
                turned + k * head_dim, vec_at(x, dtype, k * head_dim), heads->w, heads->dw, heads->rstd[h + k], pull[k], false, sums};
            rms_bwd_row(DT_F32, dtype, vec_at_mut(heads->dx, dtype, (h + k) * head_dim), &row, head_dim);
        }
    }
}

/* Backward of the query heads and key heads of a row, all of one dtype. Reads dy and qkv from element `at` on, writes dx from dx_at on. */
VEC_ROW void row_bwd(DType dtype, int64_t head_dim, bool wide, bool norms, bool sums, const KernelArgs *args, const Heads *queries,
                     const Heads *keys, int64_t at, const TensorView *dx, int64_t dx_at)
{
    const QkvAttrs *attrs = args->attrs;
    for (int k = 0; k < 2; k++) { /* a loop, as each call inlines all of heads_bwd */
        Heads   heads = k ? *keys : *queries;
        int64_t before = k ? attrs->num_heads * head_dim : 0, count = k ? attrs->num_kv_heads : attrs->num_heads;
        heads.dy = vec_at(args->in[IN_DY].data, dtype, at + before);
        heads.x = vec_at(args->in[IN_QKV].data, dtype, at + before);
        heads.dx = vec_at_mut(dx->data, dtype, dx_at + before);
        if (wide)
            heads_bwd_wide(head_dim, &heads, count);
        else
            heads_bwd(dtype, head_dim, norms, sums, &heads, count);
    }
}

/* Backward of head h for any dtypes. Not inlined: that would cost the compiler seconds. */
__attribute__((noinline)) static void head_bwd_any(const KernelArgs *args, const Heads *heads, int64_t h, int64_t at, const TensorView *dx,
                                                   int64_t dx_at)
{
    Heads   head = *heads;
    int64_t head_dim = ((const QkvAttrs *)args->attrs)->head_dim;
    float   scratch_dy[ROPE_MAX_HEAD_DIM], scratch_x[ROPE_MAX_HEAD_DIM], scratch_dx[ROPE_MAX_HEAD_DIM];
    head.dy = tile_load(&args->in[IN_DY], at, head_dim, scratch_dy);
    head.x = head.w ? tile_load(&args->in[IN_QKV], at, head_dim, scratch_x) : NULL;
    head.ahead = 0; /* no prefetch: x and dy may be scratch */
    head.dx = dx->data ? tile_result(dx, dx_at, scratch_dx) : scratch_dx;
    if (head.w) head.rstd += h;
    heads_bwd(DT_F32, head_dim, head.w != NULL, head.dw != NULL, &head, 1);
    if (dx->data) tile_store(dx, dx_at, head.dx, head_dim);
}

/* Makes the codes of row `row` from its dx, which begins at element dx_at of `dx`. */
static void code_row(RowCodes *codes, int64_t row, const TensorView *dx, int64_t dx_at)
{
    float scratch[TILE];
    for (int64_t c = 0; row_codes_wanted(codes) && c < codes->cols; c += TILE) {
        int64_t n = min_i64(TILE, codes->cols - c);
        row_codes_store(codes, row, c, tile_load(dx, dx_at + c, n, scratch), n);
    }
}

static void chunk_bwd(const KernelArgs *args, int64_t chunk, int worker)
{
    const QkvAttrs   *attrs = args->attrs;
    const TensorView *dy = &args->in[IN_DY];
    TensorView        dx = args->out[OUT_DX];
    RowCodes          codes = row_codes(args, &op_qkv_norm_rope_bwd.codes, &dy->type);
    const float      *table = args->in[IN_TABLE].data;
    const int32_t    *positions = args->in[IN_POSITIONS].data;
    int64_t           head_dim = attrs->head_dim, num_q = attrs->num_heads, turned = num_q + attrs->num_kv_heads;
    int64_t           heads = turned + attrs->num_kv_heads, rows = type_rows(&dy->type), step = chunk_rows(rows);
    float             scratch_q[ROPE_MAX_HEAD_DIM], scratch_k[ROPE_MAX_HEAD_DIM];
    const float      *wq = NULL, *wk = NULL;
    float            *dw = NULL;
    bool              sums = args->out[OUT_DWQ].data || args->out[OUT_DWK].data;
    int64_t           partial = partial_floats(attrs, &dy->type, sums);
    if (!dx.data && row_codes_wanted(&codes)) dx = (TensorView){(float *)args->workspace + partial + worker * codes.cols, dy->type};
    if (args->in[IN_WQ].data) {
        wq = rms_weights(&args->in[IN_WQ], attrs->offset, 0, head_dim, scratch_q);
        wk = rms_weights(&args->in[IN_WK], attrs->offset, 0, head_dim, scratch_k);
    }
    if (sums) {
        dw = (float *)args->workspace + chunk * 2 * head_dim;
        memset(dw, 0, (size_t)(2 * head_dim) * sizeof(float));
    }
    bool same = dx.data && dx.type.dtype == dy->type.dtype && (!wq || args->in[IN_QKV].type.dtype == dy->type.dtype);
    bool wide = same && wq && dy->type.dtype == DT_F32 && (head_dim == 64 || head_dim == 128) && cpu_avx512();
    for (int64_t row = chunk * step; row < min_i64(rows, (chunk + 1) * step); row++) {
        int64_t      at = row * heads * head_dim, dx_at = args->out[OUT_DX].data ? at : 0, values = turned * head_dim;
        const float *cosines = table + positions[row] * head_dim, *rstd = wq ? (const float *)args->in[IN_RSTD].data + row * turned : NULL;
        Heads        queries = {.cosines = cosines, .w = wq, .rstd = rstd, .dw = dw, .ahead = ROWS_AHEAD * heads * head_dim};
        Heads        keys = {
                   .cosines = cosines, .w = wk, .rstd = wq ? rstd + num_q : NULL, .dw = sums ? dw + head_dim : NULL, .ahead = queries.ahead};
        if (!same)
            for (int64_t h = 0; h < turned; h++)
                head_bwd_any(args, h < num_q ? &queries : &keys, h < num_q ? h : h - num_q, at + h * head_dim, &dx, dx_at + h * head_dim);
        else if (wide)
            row_bwd(DT_F32, head_dim, true, true, sums, args, &queries, &keys, at, &dx, dx_at);
        else if (sums)
            ROPE_OF(VEC_OF, head_dim, row_bwd, dy->type.dtype, false, true, true, args, &queries, &keys, at, &dx, dx_at);
        else if (wq)
            ROPE_OF(VEC_OF, head_dim, row_bwd, dy->type.dtype, false, true, false, args, &queries, &keys, at, &dx, dx_at);
        else
            ROPE_OF(VEC_OF, head_dim, row_bwd, dy->type.dtype, false, false, false, args, &queries, &keys, at, &dx, dx_at);
        if (dx.data) tile_copy(&dx, dx_at + values, dy, at + values, (heads - turned) * head_dim);
        code_row(&codes, row, &dx, dx_at);
    }
    row_codes_record(&codes);
}

VEC_TASK(qkv_norm_rope_bwd_task)
{
    const KernelArgs *args = context;
    int64_t           rows = type_rows(&args->in[IN_DY].type), each = chunks_moved(args, rows);
    for (int64_t chunk = task * each; chunk < min_i64(num_chunks(rows), (task + 1) * each); chunk++) chunk_bwd(args, chunk, worker);
}

static Status qkv_norm_rope_bwd_cpu(const KernelArgs *args)
{
    const QkvAttrs *attrs = args->attrs;
    int64_t         rows = type_rows(&args->in[IN_DY].type), chunks = num_chunks(rows), head_dim = attrs->head_dim;
    TRY(rope_check_positions(&args->in[IN_POSITIONS], &args->in[IN_TABLE]));
    pool_run(args->pool, div_up(chunks, chunks_moved(args, rows)), qkv_norm_rope_bwd_task, (void *)args);
    for (int k = 1; k <= 2; k++) {
        if (!args->out[k].data) continue;
        const float *partial = (const float *)args->workspace + (k - 1) * head_dim;
        chunks_combine(&args->out[k], args->accumulate >> k & 1, partial, chunks, 2 * head_dim, head_dim);
    }
    return OK;
}

const OpDef op_qkv_norm_rope_bwd = {
    .id = OP_QKV_NORM_ROPE_BWD,
    .name = "qkv_norm_rope_bwd",
    .synopsis = "gradients of qkv_norm_rope: dq and dk are rotated back, then go through the norms; dv is copied",
    .num_in = 11,
    .num_out = 6,
    .min_in = 6,
    .optional_in = 1u << IN_QKV | 1u << IN_WQ | 1u << IN_WK,
    .inplace = 1u << 0,
    .alias = {{.out = OUT_DWQ, .in = IN_ACC_DWQ, .accumulate = true},
              {.out = OUT_DWK, .in = IN_ACC_DWK, .accumulate = true},
              {.out = OUT_AMAX, .in = IN_AMAX}},
    .num_alias = 3,
    .attrs_size = sizeof(QkvAttrs),
    .attrs = qkv_bwd_attrs,
    .infer = qkv_norm_rope_bwd_infer,
    .cost = qkv_norm_rope_bwd_cost,
    .workspace = qkv_norm_rope_bwd_workspace,
    .gpu_workspace = qkv_norm_rope_bwd_gpu_workspace,
    .cpu = {{DT_SET_FLOAT,
             qkv_norm_rope_bwd_cpu,
             "reference",
             {{.out = 1u << OUT_CODES | 1u << OUT_MORE, .dtypes = DT_SET_FP8 | DT_SET_F32}}}},
    .codes = {&op_fp8_rows_quantise, &op_fp8_quantise, OUT_DX, OUT_CODES, IN_SCALE, false, offsetof(QkvAttrs, codes), qkv_bwd_codes_fit},
    .holds = {[IN_SCALE] = HOLDS_SCALE, [IN_AMAX] = HOLDS_SQUARES},
    .samples = "[2,40,128], [2,40,128], [32], [32], [50,32], i32[2,40] below=50, [2,40,3]"
               "  {num_heads=2, num_kv_heads=1, head_dim=32, offset=1}\n"
               "[2,3,64], [2,3,64], [8], [8], [5,8], i32[2,3] below=5, [2,3,6], [8], [8] {num_heads=4, num_kv_heads=2, head_dim=8}\n"
               "[2,2,128], [2,2,128], [8], [8], [5,8], i32[2,2] below=5, [2,2,13] {num_heads=10, num_kv_heads=3, head_dim=8}\n"
               "[2,3,64], _, _, _, [5,8], i32[2,3] below=5 {num_heads=4, num_kv_heads=2, head_dim=8}\n"
               "[2,40,128], [2,40,128], [32], [32], [50,32], i32[2,40] below=50, [2,40,3]"
               "  {num_heads=2, num_kv_heads=1, head_dim=32, dw_dtype=f32}\n"
               "[2,90,320], [2,90,320], [64], [64], [50,64], i32[2,90] below=50, [2,90,4] {num_heads=3, num_kv_heads=1, head_dim=64}\n"
               "[2,40,256], [2,40,256], [64], [64], [50,64], i32[2,40] below=50, [2,40,3]"
               "  {num_heads=2, num_kv_heads=1, head_dim=64, codes=e4m3}\n"
               "[2,3,256], _, _, _, [5,64], i32[2,3] below=5 {num_heads=2, num_kv_heads=1, head_dim=64, codes=e4m3}\n"
               "[2,40,192], [2,40,192], [64], [64], [50,64], i32[2,40] below=50, [2,40,2], _, _, [4], [1]"
               "  {num_heads=1, num_kv_heads=1, head_dim=64, codes=e5m2}\n"
               "[2,3,192], _, _, _, [5,64], i32[2,3] below=5, _, _, _, [4], [1] {num_heads=1, num_kv_heads=1, head_dim=64, codes=e5m2}\n",
    .large = "[2,200,2048], [2,200,2048], [128], [128], [256,128], i32[2,200] below=256, [2,200,12]"
             "  {num_heads=8, num_kv_heads=4, head_dim=128}\n"
             "[2,200,2048], [2,200,2048], [128], [128], [256,128], i32[2,200] below=256, [2,200,12]"
             "  {num_heads=8, num_kv_heads=4, head_dim=128, codes=e4m3}\n"
             "[2,200,2048], [2,200,2048], [128], [128], [256,128], i32[2,200] below=256, [2,200,12], _, _, [4], [1]"
             "  {num_heads=8, num_kv_heads=4, head_dim=128, codes=e4m3}\n",
};
