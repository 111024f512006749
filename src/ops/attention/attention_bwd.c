/* attention_bwd: gradients of attention from o and lse, which forward kept: p = exp(scale q k^T - lse), delta = sum over E of do o - dlse,
 * ds = p (do v^T - delta), dv = p^T do, dk = scale ds^T q, dq = scale ds k. With softcap the scores in p are softcap t, t = tanh(scale q
 * k^T / softcap), and ds has the factor 1 - t^2. The gradient of a distance's bias is the sum of ds without that factor. The gradient of a
 * sink, whose exponential is part of lse, is the sum of -exp(sink - lse) delta.
 *
 * A task is a strip of keys of one key/value head of a batch row, with all query heads of that head. It goes over blocks of keys and makes
 * scores in tiles: block of queries x block of keys. dk and dv of a key are written by one task. dq is summed in fp32 by strip, and
 * sum_task adds the strips in order. So each sum has one fixed order. */
#include "ops/attention/attention.h"
#include "ops/attention/attention_turns.h"

#include "device/cpu/sgemm.h"

enum { IN_DO, IN_Q, IN_K, IN_V, IN_O, IN_LSE, IN_DOC_START, IN_DLSE, IN_SINKS, IN_BIAS, IN_ACC_SINKS, IN_ACC_BIAS, NUM_IN };
enum { OUT_DQ, OUT_DK, OUT_DV, OUT_DSINKS, OUT_DBIAS, NUM_OUT };

static const AttrDef attention_bwd_attrs[] = {ATTR_INT(AttentionAttrs, num_heads, 0), ATTR_INT(AttentionAttrs, num_kv_heads, 0),
                                              ATTR_INT(AttentionAttrs, head_dim, 0),  ATTR_INT(AttentionAttrs, window, 0),
                                              ATTR_FLOAT(AttentionAttrs, scale, 0),   ATTR_FLOAT(AttentionAttrs, softcap, 0),
                                              ATTR_BOOL(AttentionAttrs, dense, 0),    ATTR_RARE(AttentionAttrs, bidirectional),
                                              ATTR_DTYPE(AttentionAttrs, dw_dtype),   {0}};

/* Sets the type of output `out`, the gradient of input k, which may be added to input `acc`. dtype: used without attribute dw_dtype. */
static Status infer_scores(Node *node, int k, int acc, const char *name, int out, DType dtype)
{
    node->out[out]->type = (TensorType){0};
    if (!node->in[k]) return OK;
    TensorType type = node->in[k]->type;
    type.dtype = dtype;
    TRY(infer_dw(node, acc, name, ((const AttentionAttrs *)node->attrs)->dw_dtype, &type));
    node->out[out]->type = type;
    return OK;
}

/* do (B,T,H,E), q | packed, [k], [v], o, lse, doc_start, [dlse (B,H,T) f32], [sinks (H)], [bias (R,H)], [acc dsinks], [acc dbias] -> dq |
 * dpacked, dk, dv of the types of q, k, v, dsinks in sinks' dtype and dbias in f32, unless attribute dw_dtype says another. */
static Status attention_bwd_infer(Node *node)
{
    const AttentionAttrs *attrs = node->attrs;
    TRY(attention_infer_qkv(node, IN_Q, IN_SINKS));
    const TensorType *q = &node->in[IN_Q]->type;
    int64_t           batch = q->dim[0], len = q->dim[1], dim = attention_value_dim(node, IN_Q);
    TRY(infer_input(node, IN_DO, "do", DT_SET_FLOAT, DIMS(batch, len, attrs->num_heads, dim)));
    TRY(infer_input(node, IN_O, "o", DT_SET_FLOAT, DIMS(batch, len, attrs->num_heads, dim)));
    TRY(infer_input(node, IN_LSE, "lse", DT_SET_F32, DIMS(batch, attrs->num_heads, len)));
    TRY(infer_input(node, IN_DOC_START, "doc_start", DT_SET(DT_I32), DIMS(batch, len)));
    if (node->in[IN_DLSE]) TRY(infer_input(node, IN_DLSE, "dlse", DT_SET_F32, DIMS(batch, attrs->num_heads, len)));
    node->out[0]->type = *q;
    for (int k = 1; k < 3; k++) node->out[k]->type = node->in[IN_Q + k] ? node->in[IN_Q + k]->type : (TensorType){0};
    DType sinks = node->in[IN_SINKS] ? node->in[IN_SINKS]->type.dtype : DT_F32;
    TRY(infer_scores(node, IN_SINKS, IN_ACC_SINKS, "acc dsinks", OUT_DSINKS, sinks));
    return infer_scores(node, IN_BIAS, IN_ACC_BIAS, "acc dbias", OUT_DBIAS, DT_F32);
}

static OpCost attention_bwd_cost(const Node *node)
{
    Attention a = attention_dims_of(node, IN_Q);
    double    flops = 4 * attention_macs(&a) * (double)(3 * a.dim + 2 * a.v_dim) / (double)(a.dim + a.v_dim); /* 10 macs if D = E */
    OpCost    cost = cost_streaming(node, flops);
    cost.matrix_unit = true;
    return cost;
}

enum {
    STRIPS = 4, /* parts into which the keys are divided */
    BLOCK_K = 128,
    BLOCK_Q = 64,            /* queries of a tile of scores */
    DIAGONAL_Q = 32,         /* queries of a tile near the diagonal, where queries are less than BLOCK_K after the block's first key */
    STRIP_STEP = SGEMM_COLS, /* a strip has a multiple of this many keys */
};

/* Keys [key, key_end) and the queries [row, row_end) that may attend them. */
typedef struct Strip {
    int64_t key, key_end, row, row_end;
    int64_t sums; /* where the strip's sums of dq (group, row_end - row, D) begin in the sums of its key/value head */
} Strip;

/* The number of pairs of a key before `end` and a query that attends it, if the row is one document. bidirectional: the number of keys
 * before `end`, since all keys have about equally many queries. */
static int64_t pairs_before(const Attention *a, int64_t end)
{
    if (a->bidirectional) return min_i64(end, a->len);
    int64_t last = min_i64(end, a->len), whole = a->window ? max_i64(0, min_i64(last, a->len - a->window)) : 0;
    return whole * a->window + (last - whole) * (2 * a->len - whole - last + 1) / 2;
}

/* Divides the keys into strips of about equally many pairs. Returns how many floats the dq sums of one key/value head take. */
static int64_t make_strips(const Attention *a, Strip *strips)
{
    int64_t end = 0, sums = 0, all = pairs_before(a, a->len);
    for (int i = 0; i < STRIPS; i++) {
        Strip *strip = &strips[i];
        strip->key = end;
        while (end < a->len && (i == STRIPS - 1 || pairs_before(a, end + STRIP_STEP / 2) * STRIPS < all * (i + 1))) end += STRIP_STEP;
        strip->key_end = end = min_i64(end, a->len);
        strip->row = !a->bidirectional ? strip->key : a->window ? max_i64(0, strip->key - a->window + 1) : 0;
        strip->row_end = a->window ? min_i64(a->len, end + a->window - 1) : a->len;
        strip->sums = sums;
        if (strip->key < end) sums += (strip->row_end - strip->row) * a->group * a->dim;
    }
    return sums;
}

/* A worker's scratch. */
typedef struct Scratch {
    float *kt, *vt;        /* a block of keys, and of values, as transposed panels */
    float *k, *q, *grad_o; /* f32 copies (K,D), (R,D), (R,E), used if the operands are bf16; q may also hold rows of o (R,E) */
    float *dk, *dv;        /* f32 sums (K,D), (K,E), used if the results are bf16 */
    float *p, *ds;         /* each a tile (R,K) */
} Scratch;

static int64_t carve(const Attention *a, float *memory, Scratch *out)
{
    int64_t at = 0;
    struct {
        float **field;
        int64_t count;
    } parts[] = {
        {&out->kt, sgemm_packed(BLOCK_K, SGEMM_COLS, a->dim)},
        {&out->vt, sgemm_packed(BLOCK_K, SGEMM_COLS, a->v_dim)},
        {&out->k, BLOCK_K * a->dim},
        {&out->q, BLOCK_Q * max_i64(a->dim, a->v_dim)},
        {&out->grad_o, BLOCK_Q * a->v_dim},
        {&out->dk, BLOCK_K * a->dim},
        {&out->dv, BLOCK_K * a->v_dim},
        {&out->p, BLOCK_Q * BLOCK_K},
        {&out->ds, BLOCK_Q * BLOCK_K},
    };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        *parts[i].field = memory ? memory + at : NULL;
        at += (parts[i].count + 15) & ~(int64_t)15;
    }
    return at;
}

typedef struct BackwardJob {
    Attention    a; /* a.lse is an input here */
    Heads        grad_o, dq, dk, dv;
    Strip        strips[STRIPS];
    const float *dlse;  /* (B,H,T); NULL: 0 */
    float       *delta; /* (B,H,T) */
    float       *sums, *scratch;
    int64_t strip_sums, scratch_floats; /* strip_sums: floats of one key/value head's sums of dq; scratch_floats: of a worker's scratch */
    TensorView dsinks, dbias;           /* data NULL: not wanted */
    uint32_t   accumulate;
    float     *biases; /* each task's sums of dbias, (B, G, STRIPS, group, R); NULL: there is no bias */
} BackwardJob;

_Static_assert(BLOCK_K % DIAGONAL_Q == 0, "tiles are the same counted from the last on");

/* Divides the workspace (NULL: only counts). Returns how many floats it needs. */
static int64_t job_divide(BackwardJob *job, float *workspace, int num_workers)
{
    const Attention *a = &job->a;
    Scratch          scratch;
    job->strip_sums = (make_strips(a, job->strips) + 15) & ~(int64_t)15;
    job->scratch_floats = carve(a, NULL, &scratch);
    int64_t sums = a->batch * a->num_kv_heads * job->strip_sums, rows = (a->batch * a->num_heads * a->len + 15) & ~(int64_t)15;
    int64_t biases = (a->batch * a->num_heads * STRIPS * a->bias.type.dim[0] + 15) & ~(int64_t)15;
    if (workspace) {
        job->sums = workspace;
        job->delta = job->sums + sums;
        job->biases = a->bias.data ? job->delta + rows : NULL;
        job->scratch = job->delta + rows + biases;
    }
    return sums + rows + biases + num_workers * job->scratch_floats;
}

static size_t attention_bwd_workspace(const Node *node, int num_workers)
{
    BackwardJob job = {.a = attention_dims_of(node, IN_Q)};
    if (node->in[IN_BIAS]) job.a.bias.type = node->in[IN_BIAS]->type;
    int64_t reference = job.a.len * (2 * job.a.dim + job.a.v_dim) + job.a.bias.type.dim[0] * job.a.num_heads;
    return (size_t)max_i64(reference, job_divide(&job, NULL, num_workers)) * sizeof(float);
}

/* Computes delta of BLOCK_Q tokens, all heads. */
VEC_TASK(delta_task)
{
    const BackwardJob *job = context;
    const Attention   *a = &job->a;
    int64_t            blocks = div_up(a->len, BLOCK_Q), b = task / blocks, begin = task % blocks * BLOCK_Q;
    Scratch            s;
    carve(a, job->scratch + worker * job->scratch_floats, &s);
    for (int64_t t = begin; t < min_i64(begin + BLOCK_Q, a->len); t++)
        for (int64_t h = 0; h < a->num_heads; h++) {
            int64_t      o_stride, grad_stride;
            const float *o = attention_rows(&a->o, b, t, 1, h, s.q, &o_stride);
            const float *grad_o = attention_rows(&job->grad_o, b, t, 1, h, s.grad_o, &grad_stride);
            int64_t      at = (b * a->num_heads + h) * a->len + t;
            job->delta[at] = vec_dot(o, grad_o, a->v_dim);
            if (job->dlse) job->delta[at] -= job->dlse[at];
        }
}

/* One row of a tile: query t of a head, and the first key of the tile. */
typedef struct TileRow {
    int64_t head, t, key;
    float   lse, delta;
} TileRow;

/* Computes p and ds of keys [begin, end) of a tile's row if there is a bias, and adds the bias's gradient to `sums` (R). */
static void biased_gradients(const Attention *a, const TileRow *row, float *p, float *ds, int64_t begin, int64_t end, float *sums)
{
    for (int64_t j = begin; j < end; j++) {
        int64_t distance = row->t - row->key - j;
        float   capped = a->softcap > 0 ? vec_tanhf(p[j] / a->softcap) : 0, score = a->softcap > 0 ? a->softcap * capped : p[j];
        p[j] = vec_exp_below(score + attention_bias(a, row->head, distance) - row->lse);
        ds[j] = p[j] * (ds[j] - row->delta);
        sums[attention_bias_row(a, distance)] += ds[j];
        ds[j] *= 1.0f - capped * capped;
    }
}

/* Computes p and ds of queries [row, row + rows) of a head x keys [key, key + keys). On entry s->p holds scores and s->ds holds do v^T.
 * biases: the head's sums of dbias; NULL: there is no bias. */
static void tile_gradients(const BackwardJob *job, const Scratch *s, int64_t b, int64_t head, int64_t row, int64_t rows, int64_t key,
                           int64_t keys, float *biases)
{
    const Attention *a = &job->a;
    int64_t          first = (b * a->num_heads + head) * a->len;
    for (int64_t i = 0; i < rows; i++) {
        int64_t t = row + i, begin = max_i64(attention_first_key(a, b, t) - key, 0),
                end = min_i64(attention_after_key(a, b, t) - key, keys);
        float *restrict p = s->p + i * keys, *restrict ds = s->ds + i * keys, lse = a->lse[first + t], delta = job->delta[first + t];
        begin = min_i64(begin, keys);
        end = max_i64(end, begin);
        for (int64_t j = 0; j < begin; j++) p[j] = ds[j] = 0;
        for (int64_t j = end; j < keys && biases; j++) p[j] = ds[j] = 0;
        if (biases) {
            TileRow of = {head, t, key, lse, delta};
            biased_gradients(a, &of, p, ds, begin, end, biases);
            continue;
        }
        for (int64_t j = begin; j < end && a->softcap > 0; j++) {
            float t = vec_tanhf(p[j] / a->softcap);
            p[j] = a->softcap * t;
            ds[j] = (ds[j] - delta) * (1.0f - t * t);
        }
        if (a->softcap > 0) delta = 0;                               /* delta is already in ds */
        int64_t whole = begin + ((end - begin + 15) & ~(int64_t)15); /* rounded up to whole vectors; elements after `end` become 0 below */
        if (whole > keys) whole = end;
        for (int64_t j = begin; j < whole; j++) {
            p[j] = vec_exp_below(p[j] - lse);
            ds[j] = p[j] * (ds[j] - delta);
        }
        for (int64_t j = end; j < keys; j++) p[j] = ds[j] = 0;
    }
}

/* A block of keys, with the operands that its tiles read and the sums that they add to. */
typedef struct KeyBlock {
    int64_t      b, g, key, keys, k_stride;
    const float *k;
    SgemmB       kt, vt;
    float       *dk, *dv; /* where dk and dv are summed; NULL: not wanted */
    float       *biases;  /* (group, R) sums of dbias; NULL: there is no bias */
    int64_t      dk_stride, dv_stride;
    bool         first; /* the first block of its strip: it starts the sums of dq */
    bool         begun; /* dk and dv hold sums already: further tiles are added */
} KeyBlock;

/* Where dk or dv of a block are summed: in the result itself, or in scratch. */
static float *sums_of(const Heads *result, const KeyBlock *block, float *scratch, int64_t *out_stride)
{
    bool direct = result->dtype == DT_F32;
    *out_stride = direct ? result->token_stride : result->dim;
    if (!result->data) return NULL;
    return direct ? heads_at_mut(result, block->b, block->key, block->g) : scratch;
}

static void store_sums(const Heads *result, const KeyBlock *block, const float *sums)
{
    if (!sums || result->dtype == DT_F32) return;
    for (int64_t i = 0; i < block->keys; i++)
        vec_store_row(heads_at_mut(result, block->b, block->key + i, block->g), result->dtype, sums + i * result->dim, result->dim);
}

/* For queries [row, row + rows) of head h of the group: adds their parts to the block's dk and dv, and the block's part to their dq
 * (rows,D). */
static void tile(const BackwardJob *job, const Scratch *s, KeyBlock *block, int64_t h, int64_t row, int64_t rows, float *dq)
{
    const Attention   *a = &job->a;
    const SgemmKernel *kernel = sgemm_kernel();
    int64_t            head = block->g * a->group + h, dim = a->dim, v_dim = a->v_dim, q_stride, grad_stride;
    int64_t            keys = a->bidirectional ? block->keys : min_i64(block->keys, row + rows - block->key);
    float             *biases = block->biases ? block->biases + h * a->bias.type.dim[0] : NULL;
    const float       *q = attention_rows(&a->q, block->b, row, rows, head, s->q, &q_stride);
    const float       *grad_o = attention_rows(&job->grad_o, block->b, row, rows, head, s->grad_o, &grad_stride);
    sgemm_run(kernel, rows, keys, dim, a->scale, sgemm_a(kernel, false, q, q_stride), block->kt, s->p, keys, 0, NULL, 0);
    sgemm_run(kernel, rows, keys, v_dim, 1, sgemm_a(kernel, false, grad_o, grad_stride), block->vt, s->ds, keys, 0, NULL, 0);
    tile_gradients(job, s, block->b, head, row, rows, block->key, keys, biases);
    SgemmA pt = sgemm_a(kernel, true, s->p, keys), dst = sgemm_a(kernel, true, s->ds, keys);
    SgemmB grad_b = sgemm_b(kernel, grad_o, grad_stride), q_b = sgemm_b(kernel, q, q_stride);
    if (block->dv) sgemm_run(kernel, keys, v_dim, rows, 1, pt, grad_b, block->dv, block->dv_stride, block->begun ? SGEMM_ADD : 0, NULL, 0);
    if (block->dk)
        sgemm_run(kernel, keys, dim, rows, a->scale, dst, q_b, block->dk, block->dk_stride, block->begun ? SGEMM_ADD : 0, NULL, 0);
    block->begun = true;
    sgemm_run(kernel, rows, dim, keys, a->scale, sgemm_a(kernel, false, s->ds, keys), sgemm_b(kernel, block->k, block->k_stride), dq, dim,
              block->first ? 0 : SGEMM_ADD, NULL, 0);
}

/* Returns the first query that attends a key of [key, key + keys). *end: one past the last such query, rounded up to whole tiles. */
static int64_t block_queries(const Attention *a, int64_t b, const Strip *strip, int64_t key, int64_t keys, int64_t *end)
{
    int64_t begin = key;
    while (a->bidirectional && begin > strip->row && attention_after_key(a, b, begin - 1) > key) begin--;
    *end = begin;
    while (*end < strip->row_end && attention_first_key(a, b, *end) < key + keys)
        *end += a->bidirectional || *end >= key + BLOCK_K ? BLOCK_Q : DIAGONAL_Q;
    return begin;
}

VEC_TASK(strip_task)
{
    const BackwardJob *job = context;
    const Attention   *a = &job->a;
    const SgemmKernel *kernel = sgemm_kernel();
    const Strip       *strip = &job->strips[task % STRIPS];
    int64_t            pair = task / STRIPS, b = pair / a->num_kv_heads, g = pair % a->num_kv_heads, dim = a->dim;
    int64_t            queries = strip->row_end - strip->row, biases = a->group * a->bias.type.dim[0];
    float             *sums = job->sums + pair * job->strip_sums + strip->sums;
    Scratch            s;
    if (job->biases) memset(job->biases + task * biases, 0, (size_t)biases * sizeof(float));
    if (strip->key == strip->key_end) return;
    carve(a, job->scratch + worker * job->scratch_floats, &s);
    for (int64_t key = strip->key; key < strip->key_end; key += BLOCK_K) {
        KeyBlock    block = {.b = b, .g = g, .key = key, .keys = min_i64(BLOCK_K, strip->key_end - key), .first = key == strip->key};
        const void *k = heads_at(&a->k, b, key, g), *v = heads_at(&a->v, b, key, g);
        block.k = attention_rows(&a->k, b, key, block.keys, g, s.k, &block.k_stride);
        block.kt = sgemm_pack_b(kernel, true, block.keys, dim, k, a->k.dtype, a->k.token_stride, s.kt, kernel->cols * dim);
        block.vt = sgemm_pack_b(kernel, true, block.keys, a->v_dim, v, a->v.dtype, a->v.token_stride, s.vt, kernel->cols * a->v_dim);
        block.biases = job->biases ? job->biases + task * biases : NULL;
        block.dk = sums_of(&job->dk, &block, s.dk, &block.dk_stride);
        block.dv = sums_of(&job->dv, &block, s.dv, &block.dv_stride);
        int64_t end, rows, begin = block_queries(a, b, strip, key, block.keys, &end);
        for (int64_t h = 0; block.first && h < a->group; h++) {
            float *of_head = sums + h * queries * dim;
            memset(of_head, 0, (size_t)((begin - strip->row) * dim) * sizeof(float));
            if (end < strip->row_end) memset(of_head + (end - strip->row) * dim, 0, (size_t)((strip->row_end - end) * dim) * sizeof(float));
        }
        /* from the last queries to the first: the last queries attend the whole block, so they can start its sums */
        for (int64_t row = end; row > begin;) {
            rows = a->bidirectional || row > key + BLOCK_K ? BLOCK_Q : DIAGONAL_Q;
            row -= rows;
            rows = min_i64(rows, strip->row_end - row);
            for (int64_t h = 0; h < a->group; h++) tile(job, &s, &block, h, row, rows, sums + (h * queries + row - strip->row) * dim);
        }
        store_sums(&job->dk, &block, block.dk);
        store_sums(&job->dv, &block, block.dv);
    }
}

/* Computes dq of BLOCK_Q queries of a head: adds the strips' sums in their order. */
VEC_TASK(sum_task)
{
    const BackwardJob *job = context;
    const Attention   *a = &job->a;
    int64_t      blocks = div_up(a->len, BLOCK_Q), head = task / blocks % a->num_heads, b = task / blocks / a->num_heads, dim = a->dim;
    int64_t      begin = task % blocks * BLOCK_Q, end = min_i64(begin + BLOCK_Q, a->len);
    const float *sums = job->sums + (b * a->num_kv_heads + head / a->group) * job->strip_sums;
    Scratch      s;
    carve(a, job->scratch + worker * job->scratch_floats, &s);
    memset(s.q, 0, (size_t)((end - begin) * dim) * sizeof(float));
    for (const Strip *strip = job->strips; strip < job->strips + STRIPS; strip++) {
        int64_t      from = max_i64(begin, strip->row), to = strip->key < strip->key_end ? min_i64(end, strip->row_end) : from;
        const float *sum = sums + strip->sums + (head % a->group * (strip->row_end - strip->row) + from - strip->row) * dim;
        float       *dq = s.q + (from - begin) * dim;
        for (int64_t i = 0; i < (to - from) * dim; i++) dq[i] += sum[i];
    }
    for (int64_t t = begin; t < end; t++) vec_store_row(heads_at_mut(&job->dq, b, t, head), job->dq.dtype, s.q + (t - begin) * dim, dim);
}

static float sink_gradient(const BackwardJob *job, int64_t h)
{
    const Attention *a = &job->a;
    double           sink = attention_sink(a, h), sum = 0;
    for (int64_t b = 0; b < a->batch; b++)
        for (int64_t i = (b * a->num_heads + h) * a->len, end = i + a->len; i < end; i++) sum -= exp(sink - a->lse[i]) * job->delta[i];
    return (float)sum;
}

static void put_sum(const BackwardJob *job, int k, const TensorView *out, int64_t i, float sum)
{
    if (job->accumulate >> k & 1)
        tile_add(out, i, &sum, 1);
    else
        tile_store(out, i, &sum, 1);
}

/* Computes dsinks and dbias of a head: adds up batch rows and, for the bias, strips, in their order. */
VEC_TASK(scores_task)
{
    const BackwardJob *job = context;
    const Attention   *a = &job->a;
    int64_t            rows = a->bias.type.dim[0], g = task / a->group, h = task % a->group;
    (void)worker;
    if (job->dsinks.data) put_sum(job, OUT_DSINKS, &job->dsinks, task, sink_gradient(job, task));
    for (int64_t r = 0; job->dbias.data && r < rows; r++) {
        float sum = 0;
        for (int64_t b = 0; b < a->batch; b++)
            for (int64_t strip = 0; strip < STRIPS; strip++)
                sum += job->biases[((((b * a->num_kv_heads + g) * STRIPS + strip) * a->group) + h) * rows + r];
        put_sum(job, OUT_DBIAS, &job->dbias, r * a->num_heads + task, sum);
    }
}

static BackwardJob attention_bwd_bound(const KernelArgs *args)
{
    BackwardJob job = {.a = attention_dims(args->attrs, &args->in[IN_Q].type, &args->in[IN_V].type)};
    Attention  *a = &job.a;
    attention_bind_qkv(a, args->in + IN_Q, &a->q, &a->k, &a->v);
    a->o = heads_of_view(&args->in[IN_O], a->v_dim);
    a->sinks = args->in[IN_SINKS];
    a->bias = args->in[IN_BIAS];
    a->lse = args->in[IN_LSE].data;
    a->doc_start = args->in[IN_DOC_START].data;
    job.grad_o = heads_of_view(&args->in[IN_DO], a->v_dim);
    job.dlse = args->in[IN_DLSE].data;
    job.dsinks = args->out[OUT_DSINKS];
    job.dbias = args->out[OUT_DBIAS];
    job.accumulate = args->accumulate;
    if (args->in[IN_Q].type.ndim == 3) {
        if (args->out[0].data) attention_bind_qkv(a, args->out, &job.dq, &job.dk, &job.dv); /* no dq: only sinks or bias are trained */
    } else {
        Heads *heads[] = {&job.dq, &job.dk, &job.dv};
        for (int k = 0; k < 3; k++)
            if (args->out[k].data) *heads[k] = heads_of_view(&args->out[k], k == OUT_DV ? a->v_dim : a->dim);
    }
    return job;
}

static Status attention_bwd_blocks(const KernelArgs *args)
{
    BackwardJob job = attention_bwd_bound(args);
    TRY(attention_check_starts(&job.a));
    job_divide(&job, args->workspace, pool_num_workers(args->pool));
    if (!job.a.len) return OK;
    pool_run(args->pool, job.a.batch * div_up(job.a.len, BLOCK_Q), delta_task, &job);
    pool_run(args->pool, job.a.batch * job.a.num_kv_heads * STRIPS, strip_task, &job);
    if (job.dq.data) pool_run(args->pool, job.a.batch * job.a.num_heads * div_up(job.a.len, BLOCK_Q), sum_task, &job);
    if (job.dsinks.data || job.dbias.data) pool_run(args->pool, job.a.num_heads, scores_task, &job);
    return OK;
}

/* Sums of one batch row: dq (T,D) of a query head, dk (T,D) and dv (T,E) of its key/value head. dbias (R,H) sums up all batch rows. */
typedef struct Sums {
    float *dq, *dk, *dv, *dbias;
} Sums;

/* Adds one pair's part of dq[t], dk[key], dv[key] and dbias, in fp32. The pair is query t and one key, of head h. */
static void reference_pair(const BackwardJob *job, int64_t b, int64_t h, int64_t t, int64_t key, double delta, const Sums *sums)
{
    const Attention *a = &job->a;
    const void      *q = heads_at(&a->q, b, t, h), *k = heads_at(&a->k, b, key, h / a->group), *v = heads_at(&a->v, b, key, h / a->group);
    const void      *grad_o = heads_at(&job->grad_o, b, t, h);
    double           score = 0, grad_p = 0;
    for (int64_t d = 0; d < a->dim; d++) score += (double)vec_get(q, a->q.dtype, d) * vec_get(k, a->k.dtype, d);
    for (int64_t d = 0; d < a->v_dim; d++) grad_p += (double)vec_get(grad_o, job->grad_o.dtype, d) * vec_get(v, a->v.dtype, d);
    double cap = a->softcap, capped = cap > 0 ? tanh(score * a->scale / cap) : 0;
    score = cap > 0 ? cap * capped : score * a->scale;
    if (a->bias.data) score += attention_bias(a, h, t - key);
    double p = exp(score - a->lse[(b * a->num_heads + h) * a->len + t]), grad_score = p * (grad_p - delta);
    double ds = grad_score * (1 - capped * capped) * a->scale;
    if (a->bias.data) sums->dbias[attention_bias_row(a, t - key) * a->num_heads + h] += (float)grad_score;
    for (int64_t d = 0; d < a->dim; d++) {
        sums->dq[t * a->dim + d] += (float)(ds * vec_get(k, a->k.dtype, d));
        sums->dk[key * a->dim + d] += (float)(ds * vec_get(q, a->q.dtype, d));
    }
    for (int64_t d = 0; d < a->v_dim; d++) sums->dv[key * a->v_dim + d] += (float)(p * vec_get(grad_o, job->grad_o.dtype, d));
}

static void reference_store(const Heads *to, int64_t b, int64_t h, int64_t len, const float *rows)
{
    for (int64_t t = 0; to->data && t < len; t++) vec_store_row(heads_at_mut(to, b, t, h), to->dtype, rows + t * to->dim, to->dim);
}

static double reference_delta(const BackwardJob *job, int64_t b, int64_t h, int64_t t)
{
    const Attention *a = &job->a;
    double           delta = job->dlse ? -(double)job->dlse[(b * a->num_heads + h) * a->len + t] : 0;
    for (int64_t d = 0; d < a->v_dim; d++)
        delta += (double)vec_get(heads_at(&a->o, b, t, h), a->o.dtype, d) * vec_get(heads_at(&job->grad_o, b, t, h), job->grad_o.dtype, d);
    return delta;
}

static float reference_sink(const BackwardJob *job, int64_t h)
{
    const Attention *a = &job->a;
    double           sum = 0;
    for (int64_t b = 0; b < a->batch; b++)
        for (int64_t t = 0; t < a->len; t++)
            sum -= exp(attention_sink(a, h) - (double)a->lse[(b * a->num_heads + h) * a->len + t]) * reference_delta(job, b, h, t);
    return (float)sum;
}

/* Adds the gradients pair by pair (reference_pair); the heads of a group add to the same dk and dv. */
static Status attention_bwd_reference(const KernelArgs *args)
{
    BackwardJob job = attention_bwd_bound(args);
    Attention  *a = &job.a;
    int64_t     count = a->len * a->dim, biases = a->bias.data ? a->bias.type.dim[0] * a->num_heads : 0;
    float      *memory = args->workspace, *dv = memory + 2 * count;
    Sums        sums = {memory, memory + count, dv, dv + a->len * a->v_dim};
    size_t      bytes = (size_t)count * sizeof(float), v_bytes = (size_t)(a->len * a->v_dim) * sizeof(float);
    memset(sums.dbias, 0, (size_t)biases * sizeof(float));
    for (int64_t b = 0; b < a->batch; b++)
        for (int64_t h = 0; h < a->num_heads; h++) {
            if (h % a->group == 0) memset(sums.dk, 0, bytes), memset(sums.dv, 0, v_bytes);
            memset(sums.dq, 0, bytes);
            for (int64_t t = 0; t < a->len; t++) {
                double delta = reference_delta(&job, b, h, t);
                for (int64_t key = attention_first_key(a, b, t), end = attention_after_key(a, b, t); key < end; key++)
                    reference_pair(&job, b, h, t, key, delta, &sums);
            }
            reference_store(&job.dq, b, h, a->len, sums.dq);
            if (h % a->group < a->group - 1) continue;
            reference_store(&job.dk, b, h / a->group, a->len, sums.dk);
            reference_store(&job.dv, b, h / a->group, a->len, sums.dv);
        }
    for (int64_t h = 0; job.dsinks.data && h < a->num_heads; h++) put_sum(&job, OUT_DSINKS, &job.dsinks, h, reference_sink(&job, h));
    for (int64_t i = 0; job.dbias.data && i < biases; i++) put_sum(&job, OUT_DBIAS, &job.dbias, i, sums.dbias[i]);
    return OK;
}

/* cuDNN's deterministic backward holds, per head, T x T scores of 16 bits; if heads share keys, also dk and dv of each query head. */
static size_t attention_bwd_gpu_workspace(const Node *node, int sm)
{
    const AttentionAttrs *attrs = node->attrs;
    const TensorType     *q = &node->in[IN_Q]->type;
    Attention             a = attention_dims_of(node, IN_Q);
    size_t                rows = (size_t)(a.batch * a.num_heads * a.len), sums = rows * sizeof(float);
    bool                  formed = a.bidirectional || node->in[IN_BIAS], turns = sm == TURNS_SM && q->dtype == DT_BF16;
    bool                  dim = a.v_dim == a.dim && (a.dim == 64 || a.dim == 128 || a.dim == 256);
    bool                  cudnn = !node->in[IN_DLSE] && !node->in[IN_SINKS] && !formed;
    turns = turns && (formed ? attention_forms_in_turns(attrs, a.v_dim, node->in[IN_BIAS] != NULL)
                             : attention_in_turns(attrs, a.v_dim, a.batch, a.len, cudnn));
    if (node->out[OUT_DBIAS]) /* the kernel on the vector units needs the most */
        return sums + (size_t)(a.batch * a.num_heads * div_up(a.len, ATTENTION_BIAS_QUERIES)) * (size_t)node->in[IN_BIAS]->type.dim[0] *
                          sizeof(float);
    if (turns) {
        TurnsBytes n = attention_turns_bytes(a.batch, a.num_heads, a.len, a.dim);
        return n.delta + n.taken + n.sum;
    }
    if (!cudnn || !attention_may_hold_scores(attrs, a.batch, a.len) || q->dtype != DT_BF16 || !dim) return sums;
    return sums + (size_t)attention_scores_bytes(attrs, a.batch, a.len) + (a.group > 1 ? 2 * rows * (size_t)a.dim * 2 : 0);
}

const OpDef op_attention_bwd = {
    .id = OP_ATTENTION_BWD,
    .name = "attention_bwd",
    .synopsis =
        "dq, dk, dv of attention; p = exp(scale q k^T - lse), ds = p (do v^T - sum(do o) + dlse); dbias[distance] = sum of ds, dsinks = -sum of exp(sink - lse) (sum(do o) - dlse)",
    .num_in = NUM_IN,
    .num_out = NUM_OUT,
    .min_in = 7,
    .optional_in = 1u << IN_K | 1u << IN_V,
    .alias = {{.out = OUT_DSINKS, .in = IN_ACC_SINKS, .accumulate = true}, {.out = OUT_DBIAS, .in = IN_ACC_BIAS, .accumulate = true}},
    .num_alias = 2,
    .attrs_size = sizeof(AttentionAttrs),
    .attrs = attention_bwd_attrs,
    .infer = attention_bwd_infer,
    .flags = OP_BY_DOCUMENT,
    .cost = attention_bwd_cost,
    .workspace = attention_bwd_workspace,
    .gpu_workspace = attention_bwd_gpu_workspace,
    .cpu = {{DT_SET_FLOAT, attention_bwd_blocks, "blocks"}, {DT_SET_FLOAT, attention_bwd_reference, "reference"}},
    .holds = {[IN_DOC_START] = HOLDS_DOC_START},
    .results = {&op_attention, {IN_Q, IN_K, IN_V, IN_DOC_START, IN_SINKS, IN_BIAS}, {IN_O, IN_LSE}},
    .samples = "[2,5,4,6], [2,5,4,6], [2,5,2,6], [2,5,2,6], [2,5,4,6], [2,4,5], i32[2,5] below=1"
               "  {num_heads=4, num_kv_heads=2, head_dim=6}\n"
               "[1,150,3,16], [1,150,80], _, _, [1,150,3,16], [1,3,150], i32[1,150] below=1"
               "  {num_heads=3, num_kv_heads=1, head_dim=16, scale=0.3}\n"
               "[1,300,3,16], [1,300,80], _, _, [1,300,3,16], [1,3,300], i32[1,300] below=1, [1,3,300]"
               "  {num_heads=3, num_kv_heads=1, head_dim=16, window=70, scale=0.3, softcap=0.7}\n"
               "[1,150,3,16], [1,150,80], _, _, [1,150,3,16], [1,3,150], i32[1,150] below=1, _, [3], [9,3]"
               "  {num_heads=3, num_kv_heads=1, head_dim=16, scale=0.3}\n"
               "[2,5,4,6], [2,5,4,6], [2,5,2,6], [2,5,2,6], [2,5,4,6], [2,4,5], i32[2,5] below=1, [2,4,5], [4]"
               "  {num_heads=4, num_kv_heads=2, head_dim=6}\n"
               "[2,5,4,6], [2,5,4,6], [2,5,2,6], [2,5,2,6], [2,5,4,6], [2,4,5], i32[2,5] below=1, _, _, [3,4]"
               "  {num_heads=4, num_kv_heads=2, head_dim=6, window=3, softcap=0.7}\n"
               "[2,5,4,4], [2,5,4,6], [2,5,2,6], [2,5,2,4], [2,5,4,4], [2,4,5], i32[2,5] below=1"
               "  {num_heads=4, num_kv_heads=2, head_dim=6}\n"
               "[2,5,4,6], [2,5,4,6], [2,5,2,6], [2,5,2,6], [2,5,4,6], [2,4,5], i32[2,5] below=1"
               "  {num_heads=4, num_kv_heads=2, head_dim=6, bidirectional=true}\n"
               "[2,7,4,8], [2,7,4,6], [2,7,2,6], [2,7,2,8], [2,7,4,8], [2,4,7], i32[2,7] below=1, [2,4,7], [4], [5,4]"
               "  {num_heads=4, num_kv_heads=2, head_dim=6, window=3, softcap=0.7, bidirectional=true}\n",
    .large = "[2,333,4,64], [2,333,512], _, _, [2,333,4,64], [2,4,333], i32[2,333] {num_heads=4, num_kv_heads=2, head_dim=64}\n"
             "[2,333,4,64], [2,333,512], _, _, [2,333,4,64], [2,4,333], i32[2,333], [2,4,333]"
             "  {num_heads=4, num_kv_heads=2, head_dim=64}\n"
             "[2,600,4,128], [2,600,768], _, _, [2,600,4,128], [2,4,600], i32[2,600] {num_heads=4, num_kv_heads=1, head_dim=128}\n"
             "[1,130,2,96], [1,130,2,96], [1,130,2,96], [1,130,2,96], [1,130,2,96], [1,2,130], i32[1,130]"
             "  {num_heads=2, num_kv_heads=2, head_dim=96}\n"
             "[2,512,4,128], [2,512,1024], _, _, [2,512,4,128], [2,4,512], i32[2,512]"
             "  {num_heads=4, num_kv_heads=2, head_dim=128, dense=true}\n"
             "[2,512,4,128], [2,512,1024], _, _, [2,512,4,128], [2,4,512], i32[2,512], [2,4,512]"
             "  {num_heads=4, num_kv_heads=2, head_dim=128, dense=true}\n"
             "[2,300,4,64], [2,300,768], _, _, [2,300,4,64], [2,4,300], i32[2,300]"
             "  {num_heads=4, num_kv_heads=4, head_dim=64, dense=true}\n"
             "[2,333,4,64], [2,333,512], _, _, [2,333,4,64], [2,4,333], i32[2,333]"
             "  {num_heads=4, num_kv_heads=2, head_dim=64, window=100}\n"
             "[2,512,4,128], [2,512,768], _, _, [2,512,4,128], [2,4,512], i32[2,512]"
             "  {num_heads=4, num_kv_heads=1, head_dim=128, window=64, dense=true}\n"
             "[2,512,4,128], [2,512,1024], _, _, [2,512,4,128], [2,4,512], i32[2,512]"
             "  {num_heads=4, num_kv_heads=2, head_dim=128, window=300, dense=true}\n"
             "[2,333,4,64], [2,333,512], _, _, [2,333,4,64], [2,4,333], i32[2,333]"
             "  {num_heads=4, num_kv_heads=2, head_dim=64, softcap=0.8}\n"
             "[1,600,4,128], [1,600,1536], _, _, [1,600,4,128], [1,4,600], i32[1,600]"
             "  {num_heads=4, num_kv_heads=4, head_dim=128, window=129, softcap=0.8, dense=true}\n"
             "[1,333,4,256], [1,333,2048], _, _, [1,333,4,256], [1,4,333], i32[1,333] {num_heads=4, num_kv_heads=2, head_dim=256}\n"
             "[1,333,4,256], [1,333,2048], _, _, [1,333,4,256], [1,4,333], i32[1,333], [1,4,333]"
             "  {num_heads=4, num_kv_heads=2, head_dim=256}\n"
             "[1,512,2,256], [1,512,1024], _, _, [1,512,2,256], [1,2,512], i32[1,512]"
             "  {num_heads=2, num_kv_heads=1, head_dim=256, dense=true}\n"
             "[1,200,3,256], [1,200,1280], _, _, [1,200,3,256], [1,3,200], i32[1,200]"
             "  {num_heads=3, num_kv_heads=1, head_dim=256, window=1, dense=true}\n"
             "[1,500,2,256], [1,500,1024], _, _, [1,500,2,256], [1,2,500], i32[1,500]"
             "  {num_heads=2, num_kv_heads=1, head_dim=256, window=130, scale=0.1, softcap=0.8, dense=true}\n"
             "[1,200,2,80], [1,200,480], _, _, [1,200,2,80], [1,2,200], i32[1,200]"
             "  {num_heads=2, num_kv_heads=2, head_dim=80, window=77, softcap=0.8, dense=true}\n"
             "[2,128,4,128], [2,128,1024], _, _, [2,128,4,128], [2,4,128], i32[2,128]"
             "  {num_heads=4, num_kv_heads=2, head_dim=128, scale=-0.3, dense=true}\n"
             "[2,1,2,128], [2,1,2,192], [2,1,2,192], [2,1,2,128], [2,1,2,128], [2,2,1], i32[2,1], _, [2]"
             "  {num_heads=2, num_kv_heads=2, head_dim=192}\n"
             "[2,63,2,128], [2,63,2,192], [2,63,2,192], [2,63,2,128], [2,63,2,128], [2,2,63], i32[2,63]"
             "  {num_heads=2, num_kv_heads=2, head_dim=192}\n"
             "[1,64,2,128], [1,64,2,192], [1,64,1,192], [1,64,1,128], [1,64,2,128], [1,2,64], i32[1,64]"
             "  {num_heads=2, num_kv_heads=1, head_dim=192}\n"
             "[2,65,2,128], [2,65,2,192], [2,65,2,192], [2,65,2,128], [2,65,2,128], [2,2,65], i32[2,65]"
             "  {num_heads=2, num_kv_heads=2, head_dim=192}\n"
             "[1,200,2,128], [1,200,2,192], [1,200,2,192], [1,200,2,128], [1,200,2,128], [1,2,200], i32[1,200]"
             "  {num_heads=2, num_kv_heads=2, head_dim=192}\n"
             "[2,333,4,128], [2,333,4,192], [2,333,2,192], [2,333,2,128], [2,333,4,128], [2,4,333], i32[2,333]"
             "  {num_heads=4, num_kv_heads=2, head_dim=192, window=100}\n"
             "[1,513,2,128], [1,513,2,192], [1,513,2,192], [1,513,2,128], [1,513,2,128], [1,2,513], i32[1,513]"
             "  {num_heads=2, num_kv_heads=2, head_dim=192, dense=true}\n"
             "[1,200,2,128], [1,200,2,192], [1,200,2,192], [1,200,2,128], [1,200,2,128], [1,2,200], i32[1,200]"
             "  {num_heads=2, num_kv_heads=2, head_dim=192, softcap=0.8}\n"
             "[1,333,4,128], [1,333,4,192], [1,333,4,192], [1,333,4,128], [1,333,4,128], [1,4,333], i32[1,333], [1,4,333], [4]"
             "  {num_heads=4, num_kv_heads=4, head_dim=192}\n"
             "[2,333,4,128], [2,333,4,192], [2,333,2,192], [2,333,2,128], [2,333,4,128], [2,4,333], i32[2,333]"
             "  {num_heads=4, num_kv_heads=2, head_dim=192, window=200, bidirectional=true}\n"
             "[1,200,2,128], [1,200,2,192], [1,200,2,192], [1,200,2,128], [1,200,2,128], [1,2,200], i32[1,200], _, _, [70,2]"
             "  {num_heads=2, num_kv_heads=2, head_dim=192}\n"
             "[2,333,8,64], [2,333,640], _, _, [2,333,8,64], [2,8,333], i32[2,333], _, [8]"
             "  {num_heads=8, num_kv_heads=1, head_dim=64, window=128}\n"
             "[1,300,4,64], [1,300,512], _, _, [1,300,4,64], [1,4,300], i32[1,300], _, _, [129,4]"
             "  {num_heads=4, num_kv_heads=2, head_dim=64, scale=1}\n"
             "[2,333,4,64], [2,333,512], _, _, [2,333,4,64], [2,4,333], i32[2,333]"
             "  {num_heads=4, num_kv_heads=2, head_dim=64, bidirectional=true}\n"
             "[1,300,4,64], [1,300,512], _, _, [1,300,4,64], [1,4,300], i32[1,300], _, [4], [31,4]"
             "  {num_heads=4, num_kv_heads=2, head_dim=64, bidirectional=true}\n"
             "[2,63,2,64], [2,63,256], _, _, [2,63,2,64], [2,2,63], i32[2,63]"
             "  {num_heads=2, num_kv_heads=1, head_dim=64, bidirectional=true}\n"
             "[2,65,2,128], [2,65,768], _, _, [2,65,2,128], [2,2,65], i32[2,65], [2,2,65]"
             "  {num_heads=2, num_kv_heads=2, head_dim=128, bidirectional=true}\n"
             "[1,1,2,64], [1,1,384], _, _, [1,1,2,64], [1,2,1], i32[1,1]"
             "  {num_heads=2, num_kv_heads=2, head_dim=64, bidirectional=true}\n"
             "[1,513,2,64], [1,513,256], _, _, [1,513,2,64], [1,2,513], i32[1,513]"
             "  {num_heads=2, num_kv_heads=1, head_dim=64, window=100, bidirectional=true}\n"
             "[2,512,2,128], [2,512,512], _, _, [2,512,2,128], [2,2,512], i32[2,512]"
             "  {num_heads=2, num_kv_heads=1, head_dim=128, dense=true, bidirectional=true}\n"
             "[1,200,4,128], [1,200,1024], _, _, [1,200,4,128], [1,4,200], i32[1,200], _, _, [200,4]"
             "  {num_heads=4, num_kv_heads=2, head_dim=128}\n"
             "[1,333,4,128], [1,333,1536], _, _, [1,333,4,128], [1,4,333], i32[1,333], _, [4], [511,4]"
             "  {num_heads=4, num_kv_heads=4, head_dim=128, window=129, bidirectional=true}\n"
             "[2,333,2,64], [2,333,256], _, _, [2,333,2,64], [2,2,333], i32[2,333], _, _, [90,2]"
             "  {num_heads=2, num_kv_heads=1, head_dim=64, window=100}\n"
             "[1,200,2,32], [1,200,128], _, _, [1,200,2,32], [1,2,200], i32[1,200]"
             "  {num_heads=2, num_kv_heads=1, head_dim=32, bidirectional=true}\n"
             "[1,333,2,256], [1,333,1024], _, _, [1,333,2,256], [1,2,333], i32[1,333]"
             "  {num_heads=2, num_kv_heads=1, head_dim=256, bidirectional=true}\n"
             "[1,200,2,256], [1,200,1024], _, _, [1,200,2,256], [1,2,200], i32[1,200], _, _, [70,2]"
             "  {num_heads=2, num_kv_heads=1, head_dim=256}\n"
             "[1,200,2,64], [1,200,384], _, _, [1,200,2,64], [1,2,200], i32[1,200], _, _, [70,2]"
             "  {num_heads=2, num_kv_heads=2, head_dim=64, softcap=0.8}\n"
             "[1,333,4,128], [1,333,1024], _, _, [1,333,4,128], [1,4,333], i32[1,333], [1,4,333], [4]"
             "  {num_heads=4, num_kv_heads=2, head_dim=128}\n"
             "[2,512,4,128], [2,512,1024], _, _, [2,512,4,128], [2,4,512], i32[2,512], _, [4]"
             "  {num_heads=4, num_kv_heads=2, head_dim=128, dense=true}\n"
             "[1,333,4,256], [1,333,2048], _, _, [1,333,4,256], [1,4,333], i32[1,333], _, [4]"
             "  {num_heads=4, num_kv_heads=2, head_dim=256}\n"
             "[1,200,2,80], [1,200,480], _, _, [1,200,2,80], [1,2,200], i32[1,200], _, [2]"
             "  {num_heads=2, num_kv_heads=2, head_dim=80, window=77, softcap=0.8, dense=true}\n",
};
