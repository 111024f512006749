/* attention_bwd: gradients of attention from o and lse, which forward kept: p = exp(scale q k^T - lse),
 * delta = sum over D of do o - dlse, ds = p (do v^T - delta), dv = p^T do, dk = scale ds^T q, dq = scale ds k. With softcap the
 * scores in p are softcap t, t = tanh(scale q k^T / softcap), and ds has the factor 1 - t^2.
 *
 * A task is a key/value head of a batch row with all its query heads: no two tasks write the same place, and a task
 * adds up in one order. It holds its queries, do and dq in fp32 (T, group, D), and scores in tiles: block of queries x
 * block of keys. */
#include "ops/attention/attention.h"
#include "ops/attention/attention_turns.h"

#include "device/cpu/sgemm.h"

enum { IN_DO, IN_Q, IN_K, IN_V, IN_O, IN_LSE, IN_DOC_START, IN_DLSE };

/* do (B,T,H,D), q | packed, [k], [v], o, lse, doc_start, [dlse (B,H,T) f32] -> dq | dpacked, dk, dv of the types of q, k, v. */
static Status attention_bwd_infer(Node *node)
{
    const AttentionAttrs *attrs = node->attrs;
    TRY(attention_infer_qkv(node, IN_Q));
    const TensorType *q = &node->in[IN_Q]->type;
    int64_t           batch = q->dim[0], len = q->dim[1];
    TRY(infer_input(node, IN_DO, "do", DT_SET_FLOAT, DIMS(batch, len, attrs->num_heads, attrs->head_dim)));
    TRY(infer_input(node, IN_O, "o", DT_SET_FLOAT, DIMS(batch, len, attrs->num_heads, attrs->head_dim)));
    TRY(infer_input(node, IN_LSE, "lse", DT_SET_F32, DIMS(batch, attrs->num_heads, len)));
    TRY(infer_input(node, IN_DOC_START, "doc_start", DT_SET(DT_I32), DIMS(batch, len)));
    if (node->in[IN_DLSE]) TRY(infer_input(node, IN_DLSE, "dlse", DT_SET_F32, DIMS(batch, attrs->num_heads, len)));
    node->out[0]->type = *q;
    for (int k = 1; k < 3; k++) node->out[k]->type = node->in[IN_Q + k] ? node->in[IN_Q + k]->type : (TensorType){0};
    return OK;
}

static OpCost attention_bwd_cost(const Node *node)
{
    Attention a = attention_dims(node->attrs, &node->in[IN_Q]->type);
    OpCost    cost = cost_streaming(node, 10 * attention_macs(&a));
    cost.matrix_unit = true;
    return cost;
}

enum {
    STRIPS = 4, /* of keys */
    BLOCK_K = 128,
    BLOCK_Q = 64,            /* queries of a tile of scores */
    DIAGONAL_Q = 32,         /* of those within BLOCK_K of the block's first key */
    STRIP_STEP = SGEMM_COLS, /* keys of a strip are a multiple of it */
};

/* Keys [key, key_end) and the queries [key, row_end) that may attend them. */
typedef struct Strip {
    int64_t key, key_end, row_end;
    int64_t sums; /* where its sums of dq (group, row_end - key, D) begin among those of a key/value head */
} Strip;

/* Pairs of a query and a key before `end` that it attends, of a single document. */
static int64_t pairs_before(const Attention *a, int64_t end)
{
    int64_t last = min_i64(end, a->len), whole = a->window ? max_i64(0, min_i64(last, a->len - a->window)) : 0;
    return whole * a->window + (last - whole) * (2 * a->len - whole - last + 1) / 2;
}

/* About as many pairs in each strip. Returns the sums of a key/value head. */
static int64_t make_strips(const Attention *a, Strip *strips)
{
    int64_t end = 0, sums = 0, all = pairs_before(a, a->len);
    for (int i = 0; i < STRIPS; i++) {
        Strip *strip = &strips[i];
        strip->key = end;
        while (end < a->len && (i == STRIPS - 1 || pairs_before(a, end + STRIP_STEP / 2) * STRIPS < all * (i + 1))) end += STRIP_STEP;
        strip->key_end = end = min_i64(end, a->len);
        strip->row_end = a->window ? min_i64(a->len, end + a->window - 1) : a->len;
        strip->sums = sums;
        if (strip->key < end) sums += (strip->row_end - strip->key) * a->group * a->dim;
    }
    return sums;
}

/* A worker's scratch. */
typedef struct Scratch {
    float *kt, *vt;        /* a block of keys and values as panels, turned */
    float *k, *q, *grad_o; /* (K,D), (R,D), (R,D), where they are bf16 */
    float *dk, *dv;        /* (K,D), where results are bf16 */
    float *p, *ds;         /* (R,K) */
} Scratch;

static int64_t carve(const Attention *a, float *memory, Scratch *out)
{
    int64_t at = 0;
    struct {
        float **field;
        int64_t count;
    } parts[] = {
        {&out->kt, sgemm_packed(BLOCK_K, SGEMM_COLS, a->dim)},
        {&out->vt, sgemm_packed(BLOCK_K, SGEMM_COLS, a->dim)},
        {&out->k, BLOCK_K * a->dim},
        {&out->q, BLOCK_Q * a->dim},
        {&out->grad_o, BLOCK_Q * a->dim},
        {&out->dk, BLOCK_K * a->dim},
        {&out->dv, BLOCK_K * a->dim},
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
    Attention    a; /* lse is read */
    Heads        grad_o, dq, dk, dv;
    Strip        strips[STRIPS];
    const float *dlse;  /* (B,H,T); NULL: 0 */
    float       *delta; /* (B,H,T) */
    float       *sums, *scratch;
    int64_t      strip_sums, scratch_floats; /* of a key/value head; of a worker */
} BackwardJob;

_Static_assert(BLOCK_K % DIAGONAL_Q == 0, "tiles are the same counted from the last on");

/* Returns the floats of its workspace. */
static int64_t job_divide(BackwardJob *job, float *workspace, int num_workers)
{
    const Attention *a = &job->a;
    Scratch          scratch;
    job->strip_sums = (make_strips(a, job->strips) + 15) & ~(int64_t)15;
    job->scratch_floats = carve(a, NULL, &scratch);
    int64_t sums = a->batch * a->num_kv_heads * job->strip_sums, rows = (a->batch * a->num_heads * a->len + 15) & ~(int64_t)15;
    if (workspace) {
        job->sums = workspace;
        job->delta = job->sums + sums;
        job->scratch = job->delta + rows;
    }
    return sums + rows + num_workers * job->scratch_floats;
}

static size_t attention_bwd_workspace(const Node *node, int num_workers)
{
    BackwardJob job = {.a = attention_dims(node->attrs, &node->in[IN_Q]->type)};
    int64_t     reference = 3 * job.a.len * job.a.dim;
    return (size_t)max_i64(reference, job_divide(&job, NULL, num_workers)) * sizeof(float);
}

/* delta of BLOCK_Q tokens. */
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
            job->delta[at] = vec_dot(o, grad_o, a->dim);
            if (job->dlse) job->delta[at] -= job->dlse[at];
        }
}

/* p and ds of queries [row, row + rows) of a head x keys [key, key + keys), from scores in p and do v^T in ds. */
static void tile_gradients(const BackwardJob *job, const Scratch *s, int64_t b, int64_t head, int64_t row, int64_t rows, int64_t key,
                           int64_t keys)
{
    const Attention *a = &job->a;
    int64_t          first = (b * a->num_heads + head) * a->len;
    for (int64_t i = 0; i < rows; i++) {
        int64_t t = row + i, begin = max_i64(attention_first_key(a, b, t) - key, 0), end = min_i64(t + 1 - key, keys);
        float *restrict p = s->p + i * keys, *restrict ds = s->ds + i * keys, lse = a->lse[first + t], delta = job->delta[first + t];
        begin = min_i64(begin, keys);
        end = max_i64(end, begin);
        for (int64_t j = 0; j < begin; j++) p[j] = ds[j] = 0;
        for (int64_t j = begin; j < end && a->softcap > 0; j++) {
            float t = vec_tanhf(p[j] / a->softcap);
            p[j] = a->softcap * t;
            ds[j] = (ds[j] - delta) * (1.0f - t * t);
        }
        if (a->softcap > 0) delta = 0;                               /* it is in ds */
        int64_t whole = begin + ((end - begin + 15) & ~(int64_t)15); /* whole vectors; what is after end becomes 0 below */
        if (whole > keys) whole = end;
        for (int64_t j = begin; j < whole; j++) {
            p[j] = vec_exp_below(p[j] - lse);
            ds[j] = p[j] * (ds[j] - delta);
        }
        for (int64_t j = end; j < keys; j++) p[j] = ds[j] = 0;
    }
}

/* A block of keys with what its tiles read. */
typedef struct KeyBlock {
    int64_t      b, g, key, keys, k_stride;
    const float *k;
    SgemmB       kt, vt;
    float       *dk, *dv; /* where their sums are; NULL: not wanted */
    int64_t      dk_stride, dv_stride;
    bool         first; /* of a strip: sums of dq begin */
    bool         begun; /* sums of dk and dv */
} KeyBlock;

/* Where sums of a block's dk or dv are: in the result, or in scratch. */
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

/* What queries [row, row + rows) of head h of the group add to dk and dv of the block, and to dq (rows,D). */
static void tile(const BackwardJob *job, const Scratch *s, KeyBlock *block, int64_t h, int64_t row, int64_t rows, float *dq)
{
    const Attention   *a = &job->a;
    const SgemmKernel *kernel = sgemm_kernel();
    int64_t      head = block->g * a->group + h, keys = min_i64(block->keys, row + rows - block->key), dim = a->dim, q_stride, grad_stride;
    const float *q = attention_rows(&a->q, block->b, row, rows, head, s->q, &q_stride);
    const float *grad_o = attention_rows(&job->grad_o, block->b, row, rows, head, s->grad_o, &grad_stride);
    sgemm_run(kernel, rows, keys, dim, a->scale, sgemm_a(kernel, false, q, q_stride), block->kt, s->p, keys, 0, NULL, 0);
    sgemm_run(kernel, rows, keys, dim, 1, sgemm_a(kernel, false, grad_o, grad_stride), block->vt, s->ds, keys, 0, NULL, 0);
    tile_gradients(job, s, block->b, head, row, rows, block->key, keys);
    SgemmA pt = sgemm_a(kernel, true, s->p, keys), dst = sgemm_a(kernel, true, s->ds, keys);
    SgemmB grad_b = sgemm_b(kernel, grad_o, grad_stride), q_b = sgemm_b(kernel, q, q_stride);
    if (block->dv) sgemm_run(kernel, keys, dim, rows, 1, pt, grad_b, block->dv, block->dv_stride, block->begun ? SGEMM_ADD : 0, NULL, 0);
    if (block->dk)
        sgemm_run(kernel, keys, dim, rows, a->scale, dst, q_b, block->dk, block->dk_stride, block->begun ? SGEMM_ADD : 0, NULL, 0);
    block->begun = true;
    sgemm_run(kernel, rows, dim, keys, a->scale, sgemm_a(kernel, false, s->ds, keys), sgemm_b(kernel, block->k, block->k_stride), dq, dim,
              block->first ? 0 : SGEMM_ADD, NULL, 0);
}

VEC_TASK(strip_task)
{
    const BackwardJob *job = context;
    const Attention   *a = &job->a;
    const SgemmKernel *kernel = sgemm_kernel();
    const Strip       *strip = &job->strips[task % STRIPS];
    int64_t            pair = task / STRIPS, b = pair / a->num_kv_heads, g = pair % a->num_kv_heads, dim = a->dim;
    int64_t            queries = strip->row_end - strip->key;
    float             *sums = job->sums + pair * job->strip_sums + strip->sums;
    Scratch            s;
    if (strip->key == strip->key_end) return;
    carve(a, job->scratch + worker * job->scratch_floats, &s);
    for (int64_t key = strip->key; key < strip->key_end; key += BLOCK_K) {
        KeyBlock    block = {.b = b, .g = g, .key = key, .keys = min_i64(BLOCK_K, strip->key_end - key), .first = key == strip->key};
        const void *k = heads_at(&a->k, b, key, g), *v = heads_at(&a->v, b, key, g);
        block.k = attention_rows(&a->k, b, key, block.keys, g, s.k, &block.k_stride);
        block.kt = sgemm_pack_b(kernel, true, block.keys, dim, k, a->k.dtype, a->k.token_stride, s.kt, kernel->cols * dim);
        block.vt = sgemm_pack_b(kernel, true, block.keys, dim, v, a->v.dtype, a->v.token_stride, s.vt, kernel->cols * dim);
        block.dk = sums_of(&job->dk, &block, s.dk, &block.dk_stride);
        block.dv = sums_of(&job->dv, &block, s.dv, &block.dv_stride);
        int64_t end = key, rows;
        while (end < strip->row_end && attention_first_key(a, b, end) < key + block.keys) end += end < key + BLOCK_K ? DIAGONAL_Q : BLOCK_Q;
        for (int64_t h = 0; block.first && end < strip->row_end && h < a->group; h++)
            memset(sums + (h * queries + end - key) * dim, 0, (size_t)((strip->row_end - end) * dim) * sizeof(float));
        /* from the last queries on, which attend all of the block: they begin its sums */
        for (int64_t row = end; row > key;) {
            rows = row > key + BLOCK_K ? BLOCK_Q : DIAGONAL_Q;
            row -= rows;
            rows = min_i64(rows, strip->row_end - row);
            for (int64_t h = 0; h < a->group; h++) tile(job, &s, &block, h, row, rows, sums + (h * queries + row - strip->key) * dim);
        }
        store_sums(&job->dk, &block, block.dk);
        store_sums(&job->dv, &block, block.dv);
    }
}

/* dq of BLOCK_Q queries of a head: sums of the strips, in their order. */
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
        int64_t      from = max_i64(begin, strip->key), to = strip->key < strip->key_end ? min_i64(end, strip->row_end) : from;
        const float *sum = sums + strip->sums + (head % a->group * (strip->row_end - strip->key) + from - strip->key) * dim;
        float       *dq = s.q + (from - begin) * dim;
        for (int64_t i = 0; i < (to - from) * dim; i++) dq[i] += sum[i];
    }
    for (int64_t t = begin; t < end; t++) vec_store_row(heads_at_mut(&job->dq, b, t, head), job->dq.dtype, s.q + (t - begin) * dim, dim);
}

static BackwardJob attention_bwd_bound(const KernelArgs *args)
{
    BackwardJob job = {.a = attention_dims(args->attrs, &args->in[IN_Q].type)};
    Attention  *a = &job.a;
    attention_bind_qkv(a, args->in + IN_Q, &a->q, &a->k, &a->v);
    a->o = heads_of_view(&args->in[IN_O], a->dim);
    a->lse = args->in[IN_LSE].data;
    a->doc_start = args->in[IN_DOC_START].data;
    job.grad_o = heads_of_view(&args->in[IN_DO], a->dim);
    job.dlse = args->in[IN_DLSE].data;
    if (args->in[IN_Q].type.ndim == 3) {
        attention_bind_qkv(a, args->out, &job.dq, &job.dk, &job.dv);
    } else {
        Heads *heads[] = {&job.dq, &job.dk, &job.dv};
        for (int k = 0; k < 3; k++)
            if (args->out[k].data) *heads[k] = heads_of_view(&args->out[k], a->dim);
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
    return OK;
}

/* (T,D) of a batch row and head. */
typedef struct Sums {
    float *dq, *dk, *dv;
} Sums;

/* One pair of query and key of one head: what it adds to dq[t], dk[key], dv[key], in fp32 sums (T,D) of a batch row and
 * head. */
static void reference_pair(const BackwardJob *job, int64_t b, int64_t h, int64_t t, int64_t key, double delta, const Sums *sums)
{
    const Attention *a = &job->a;
    const void      *q = heads_at(&a->q, b, t, h), *k = heads_at(&a->k, b, key, h / a->group), *v = heads_at(&a->v, b, key, h / a->group);
    const void      *grad_o = heads_at(&job->grad_o, b, t, h);
    double           score = 0, grad_p = 0;
    for (int64_t d = 0; d < a->dim; d++) {
        score += (double)vec_get(q, a->q.dtype, d) * vec_get(k, a->k.dtype, d);
        grad_p += (double)vec_get(grad_o, job->grad_o.dtype, d) * vec_get(v, a->v.dtype, d);
    }
    double cap = a->softcap, capped = cap > 0 ? tanh(score * a->scale / cap) : 0;
    double p = exp((cap > 0 ? cap * capped : score * a->scale) - a->lse[(b * a->num_heads + h) * a->len + t]);
    double ds = p * (grad_p - delta) * (1 - capped * capped) * a->scale;
    for (int64_t d = 0; d < a->dim; d++) {
        sums->dq[t * a->dim + d] += (float)(ds * vec_get(k, a->k.dtype, d));
        sums->dk[key * a->dim + d] += (float)(ds * vec_get(q, a->q.dtype, d));
        sums->dv[key * a->dim + d] += (float)(p * vec_get(grad_o, job->grad_o.dtype, d));
    }
}

static void reference_store(const Heads *to, int64_t b, int64_t h, int64_t len, const float *rows)
{
    for (int64_t t = 0; to->data && t < len; t++) vec_store_row(heads_at_mut(to, b, t, h), to->dtype, rows + t * to->dim, to->dim);
}

/* Pair by pair, over the heads of a group. */
static Status attention_bwd_reference(const KernelArgs *args)
{
    BackwardJob job = attention_bwd_bound(args);
    Attention  *a = &job.a;
    int64_t     count = a->len * a->dim;
    float      *memory = args->workspace;
    Sums        sums = {memory, memory + count, memory + 2 * count};
    size_t      bytes = (size_t)count * sizeof(float);
    for (int64_t b = 0; b < a->batch; b++)
        for (int64_t h = 0; h < a->num_heads; h++) {
            if (h % a->group == 0) memset(sums.dk, 0, bytes), memset(sums.dv, 0, bytes);
            memset(sums.dq, 0, bytes);
            for (int64_t t = 0; t < a->len; t++) {
                double delta = job.dlse ? -(double)job.dlse[(b * a->num_heads + h) * a->len + t] : 0;
                for (int64_t d = 0; d < a->dim; d++)
                    delta += (double)vec_get(heads_at(&a->o, b, t, h), a->o.dtype, d) *
                             vec_get(heads_at(&job.grad_o, b, t, h), job.grad_o.dtype, d);
                for (int64_t key = attention_first_key(a, b, t); key <= t; key++) reference_pair(&job, b, h, t, key, delta, &sums);
            }
            reference_store(&job.dq, b, h, a->len, sums.dq);
            if (h % a->group < a->group - 1) continue;
            reference_store(&job.dk, b, h / a->group, a->len, sums.dk);
            reference_store(&job.dv, b, h / a->group, a->len, sums.dv);
        }
    return OK;
}

static const AttentionAttrs attention_bwd_small = {.num_heads = 4, .num_kv_heads = 2, .head_dim = 6};
static const AttentionAttrs attention_bwd_packed = {.num_heads = 3, .num_kv_heads = 1, .head_dim = 16, .scale = 0.3};
static const AttentionAttrs attention_bwd_window = {
    .num_heads = 3, .num_kv_heads = 1, .head_dim = 16, .scale = 0.3, .window = 70, .softcap = 0.7};

/* cuDNN's deterministic backward holds a T x T score of 16 bits a head, and dk, dv a query head where heads share keys. */
static size_t attention_bwd_gpu_workspace(const Node *node, int sm)
{
    const AttentionAttrs *attrs = node->attrs;
    const TensorType     *q = &node->in[IN_Q]->type;
    Attention             a = attention_dims(attrs, q);
    size_t                rows = (size_t)(a.batch * a.num_heads * a.len), sums = rows * sizeof(float);
    bool                  dim = a.dim == 64 || a.dim == 128 || a.dim == 256, cudnn = !node->in[IN_DLSE];
    if (sm == TURNS_SM && q->dtype == DT_BF16 && attention_in_turns(attrs, a.batch, a.len, cudnn)) {
        TurnsBytes n = attention_turns_bytes(a.batch, a.num_heads, a.len, a.dim);
        return n.delta + n.taken + n.sum;
    }
    if (!cudnn || !attention_may_hold_scores(attrs, a.batch, a.len) || q->dtype != DT_BF16 || !dim) return sums;
    return sums + (size_t)attention_scores_bytes(attrs, a.batch, a.len) + (a.group > 1 ? 2 * rows * (size_t)a.dim * 2 : 0);
}

static const OpSample attention_bwd_samples[] = {
    {.in = {{DT_F32, 4, {2, 5, 4, 6}},
            {DT_F32, 4, {2, 5, 4, 6}},
            {DT_F32, 4, {2, 5, 2, 6}},
            {DT_F32, 4, {2, 5, 2, 6}},
            {DT_F32, 4, {2, 5, 4, 6}},
            {DT_F32, 3, {2, 4, 5}},
            {DT_I32, 2, {2, 5}}},
     .attrs = &attention_bwd_small,
     .int_range = {0, 0, 0, 0, 0, 0, 1}},
    {.in = {{DT_F32, 4, {1, 150, 3, 16}},
            {DT_F32, 3, {1, 150, 80}},
            {0},
            {0},
            {DT_F32, 4, {1, 150, 3, 16}},
            {DT_F32, 3, {1, 3, 150}},
            {DT_I32, 2, {1, 150}}},
     .attrs = &attention_bwd_packed,
     .int_range = {0, 0, 0, 0, 0, 0, 1}},
    {.in = {{DT_F32, 4, {1, 300, 3, 16}},
            {DT_F32, 3, {1, 300, 80}},
            {0},
            {0},
            {DT_F32, 4, {1, 300, 3, 16}},
            {DT_F32, 3, {1, 3, 300}},
            {DT_I32, 2, {1, 300}},
            {DT_F32, 3, {1, 3, 300}}},
     .attrs = &attention_bwd_window,
     .int_range = {0, 0, 0, 0, 0, 0, 1}},
};

static const AttentionAttrs large_gqa_64 = {.num_heads = 4, .num_kv_heads = 2, .head_dim = 64};
static const AttentionAttrs large_gqa_128 = {.num_heads = 4, .num_kv_heads = 1, .head_dim = 128};
static const AttentionAttrs large_mha_96 = {.num_heads = 2, .num_kv_heads = 2, .head_dim = 96};
static const AttentionAttrs large_dense_128 = {.num_heads = 4, .num_kv_heads = 2, .head_dim = 128, .dense = true};
static const AttentionAttrs large_dense_64 = {.num_heads = 4, .num_kv_heads = 4, .head_dim = 64, .dense = true};

/* Shapes of real models. */
static const OpSample attention_bwd_large_samples[] = {
    {.in = {{DT_F32, 4, {2, 333, 4, 64}},
            {DT_F32, 3, {2, 333, 512}},
            {0},
            {0},
            {DT_F32, 4, {2, 333, 4, 64}},
            {DT_F32, 3, {2, 4, 333}},
            {DT_I32, 2, {2, 333}}},
     .attrs = &large_gqa_64},
    {.in = {{DT_F32, 4, {2, 333, 4, 64}},
            {DT_F32, 3, {2, 333, 512}},
            {0},
            {0},
            {DT_F32, 4, {2, 333, 4, 64}},
            {DT_F32, 3, {2, 4, 333}},
            {DT_I32, 2, {2, 333}},
            {DT_F32, 3, {2, 4, 333}}},
     .attrs = &large_gqa_64},
    {.in = {{DT_F32, 4, {2, 600, 4, 128}},
            {DT_F32, 3, {2, 600, 768}},
            {0},
            {0},
            {DT_F32, 4, {2, 600, 4, 128}},
            {DT_F32, 3, {2, 4, 600}},
            {DT_I32, 2, {2, 600}}},
     .attrs = &large_gqa_128},
    {.in = {{DT_F32, 4, {1, 130, 2, 96}},
            {DT_F32, 4, {1, 130, 2, 96}},
            {DT_F32, 4, {1, 130, 2, 96}},
            {DT_F32, 4, {1, 130, 2, 96}},
            {DT_F32, 4, {1, 130, 2, 96}},
            {DT_F32, 3, {1, 2, 130}},
            {DT_I32, 2, {1, 130}}},
     .attrs = &large_mha_96},
    {.in = {{DT_F32, 4, {2, 512, 4, 128}},
            {DT_F32, 3, {2, 512, 1024}},
            {0},
            {0},
            {DT_F32, 4, {2, 512, 4, 128}},
            {DT_F32, 3, {2, 4, 512}},
            {DT_I32, 2, {2, 512}}},
     .attrs = &large_dense_128},
    {.in = {{DT_F32, 4, {2, 512, 4, 128}},
            {DT_F32, 3, {2, 512, 1024}},
            {0},
            {0},
            {DT_F32, 4, {2, 512, 4, 128}},
            {DT_F32, 3, {2, 4, 512}},
            {DT_I32, 2, {2, 512}},
            {DT_F32, 3, {2, 4, 512}}},
     .attrs = &large_dense_128},
    {.in = {{DT_F32, 4, {2, 300, 4, 64}},
            {DT_F32, 3, {2, 300, 768}},
            {0},
            {0},
            {DT_F32, 4, {2, 300, 4, 64}},
            {DT_F32, 3, {2, 4, 300}},
            {DT_I32, 2, {2, 300}}},
     .attrs = &large_dense_64},
    {.in = {{DT_F32, 4, {2, 333, 4, 64}},
            {DT_F32, 3, {2, 333, 512}},
            {0},
            {0},
            {DT_F32, 4, {2, 333, 4, 64}},
            {DT_F32, 3, {2, 4, 333}},
            {DT_I32, 2, {2, 333}}},
     .attrs = &attention_large_attrs[0]},
    {.in = {{DT_F32, 4, {2, 512, 4, 128}},
            {DT_F32, 3, {2, 512, 768}},
            {0},
            {0},
            {DT_F32, 4, {2, 512, 4, 128}},
            {DT_F32, 3, {2, 4, 512}},
            {DT_I32, 2, {2, 512}}},
     .attrs = &attention_large_attrs[1]},
    {.in = {{DT_F32, 4, {2, 512, 4, 128}},
            {DT_F32, 3, {2, 512, 1024}},
            {0},
            {0},
            {DT_F32, 4, {2, 512, 4, 128}},
            {DT_F32, 3, {2, 4, 512}},
            {DT_I32, 2, {2, 512}}},
     .attrs = &attention_large_attrs[2]},
    {.in = {{DT_F32, 4, {2, 333, 4, 64}},
            {DT_F32, 3, {2, 333, 512}},
            {0},
            {0},
            {DT_F32, 4, {2, 333, 4, 64}},
            {DT_F32, 3, {2, 4, 333}},
            {DT_I32, 2, {2, 333}}},
     .attrs = &attention_large_attrs[3]},
    {.in = {{DT_F32, 4, {1, 600, 4, 128}},
            {DT_F32, 3, {1, 600, 1536}},
            {0},
            {0},
            {DT_F32, 4, {1, 600, 4, 128}},
            {DT_F32, 3, {1, 4, 600}},
            {DT_I32, 2, {1, 600}}},
     .attrs = &attention_large_attrs[4]},
    {.in = {{DT_F32, 4, {1, 333, 4, 256}},
            {DT_F32, 3, {1, 333, 2048}},
            {0},
            {0},
            {DT_F32, 4, {1, 333, 4, 256}},
            {DT_F32, 3, {1, 4, 333}},
            {DT_I32, 2, {1, 333}}},
     .attrs = &attention_large_attrs[5]},
    {.in = {{DT_F32, 4, {1, 333, 4, 256}},
            {DT_F32, 3, {1, 333, 2048}},
            {0},
            {0},
            {DT_F32, 4, {1, 333, 4, 256}},
            {DT_F32, 3, {1, 4, 333}},
            {DT_I32, 2, {1, 333}},
            {DT_F32, 3, {1, 4, 333}}},
     .attrs = &attention_large_attrs[5]},
    {.in = {{DT_F32, 4, {1, 512, 2, 256}},
            {DT_F32, 3, {1, 512, 1024}},
            {0},
            {0},
            {DT_F32, 4, {1, 512, 2, 256}},
            {DT_F32, 3, {1, 2, 512}},
            {DT_I32, 2, {1, 512}}},
     .attrs = &attention_large_attrs[6]},
    {.in = {{DT_F32, 4, {1, 200, 3, 256}},
            {DT_F32, 3, {1, 200, 1280}},
            {0},
            {0},
            {DT_F32, 4, {1, 200, 3, 256}},
            {DT_F32, 3, {1, 3, 200}},
            {DT_I32, 2, {1, 200}}},
     .attrs = &attention_large_attrs[7]},
    {.in = {{DT_F32, 4, {1, 500, 2, 256}},
            {DT_F32, 3, {1, 500, 1024}},
            {0},
            {0},
            {DT_F32, 4, {1, 500, 2, 256}},
            {DT_F32, 3, {1, 2, 500}},
            {DT_I32, 2, {1, 500}}},
     .attrs = &attention_large_attrs[8]},
    {.in = {{DT_F32, 4, {1, 200, 2, 80}},
            {DT_F32, 3, {1, 200, 480}},
            {0},
            {0},
            {DT_F32, 4, {1, 200, 2, 80}},
            {DT_F32, 3, {1, 2, 200}},
            {DT_I32, 2, {1, 200}}},
     .attrs = &attention_large_attrs[9]},
    {.in = {{DT_F32, 4, {2, 128, 4, 128}},
            {DT_F32, 3, {2, 128, 1024}},
            {0},
            {0},
            {DT_F32, 4, {2, 128, 4, 128}},
            {DT_F32, 3, {2, 4, 128}},
            {DT_I32, 2, {2, 128}}},
     .attrs = &attention_large_attrs[10]},
};

const OpDef op_attention_bwd = {
    .id = OP_ATTENTION_BWD,
    .name = "attention_bwd",
    .synopsis = "dq, dk, dv of attention; p = exp(scale q k^T - lse), ds = p (do v^T - sum(do o) + dlse)",
    .num_in = 8,
    .num_out = 3,
    .min_in = 7,
    .optional_in = 1u << IN_K | 1u << IN_V,
    .attrs_size = sizeof(AttentionAttrs),
    .attrs = attention_attrs,
    .infer = attention_bwd_infer,
    .flags = OP_BY_DOCUMENT,
    .cost = attention_bwd_cost,
    .workspace = attention_bwd_workspace,
    .gpu_workspace = attention_bwd_gpu_workspace,
    .cpu = {{DT_SET_FLOAT, attention_bwd_blocks, "blocks"}, {DT_SET_FLOAT, attention_bwd_reference, "reference"}},
    .holds = {[IN_DOC_START] = HOLDS_DOC_START},
    .results = {&op_attention, {IN_Q, IN_K, IN_V, IN_DOC_START}, {IN_O, IN_LSE}},
    .samples = attention_bwd_samples,
    .num_samples = sizeof attention_bwd_samples / sizeof attention_bwd_samples[0],
    .large = attention_bwd_large_samples,
    .num_large = sizeof attention_bwd_large_samples / sizeof attention_bwd_large_samples[0],
};
