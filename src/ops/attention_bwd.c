/* attention_bwd: gradients of attention from o and lse, which forward kept: p = exp(scale q k^T - lse),
 * delta = sum over D of do o, ds = p (do v^T - delta), dv = p^T do, dk = scale ds^T q, dq = scale ds k. With softcap the
 * scores in p are softcap t, t = tanh(scale q k^T / softcap), and ds has the factor 1 - t^2.
 *
 * A task is a key/value head of a batch row with all its query heads: no two tasks write the same place, and a task
 * adds up in one order. It holds its queries, do and dq in fp32 (T, group, D), and scores in tiles: block of queries x
 * block of keys. */
#include "ops/attention.h"

#include "device/cpu/sgemm.h"

enum { IN_DO, IN_Q, IN_K, IN_V, IN_O, IN_LSE, IN_DOC_START };

/* do (B,T,H,D), q | packed, [k], [v], o, lse, doc_start -> dq | dpacked, dk, dv of the types of q, k, v. */
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

/* A worker's scratch. Queries lie in blocks: block i holds [head of the group][query of the block][D] from i * group *
 * block_q. */
typedef struct Scratch {
    float *q, *grad_o, *dq; /* (T, group, D); q times scale */
    float *lse, *delta;     /* (T, group) */
    float *kt, *vt;         /* a block of keys and values as panels, turned */
    float *k;               /* (K, D), where k is bf16 */
    float *dk, *dv;         /* (K, D) */
    float *p, *ds;          /* (R, K) */
} Scratch;

static int64_t carve(const Attention *a, float *memory, Scratch *out)
{
    int64_t queries = a->len * a->group, rows = attention_block_q(a) * a->group, at = 0;
    struct {
        float **field;
        int64_t count;
    } parts[] = {
        {&out->q, queries * a->dim},
        {&out->grad_o, queries * a->dim},
        {&out->dq, queries * a->dim},
        {&out->lse, queries},
        {&out->delta, queries},
        {&out->kt, sgemm_packed(ATTENTION_BLOCK_K, SGEMM_COLS, a->dim)},
        {&out->vt, sgemm_packed(ATTENTION_BLOCK_K, SGEMM_COLS, a->dim)},
        {&out->k, ATTENTION_BLOCK_K * a->dim},
        {&out->dk, ATTENTION_BLOCK_K * a->dim},
        {&out->dv, ATTENTION_BLOCK_K * a->dim},
        {&out->p, rows * ATTENTION_BLOCK_K},
        {&out->ds, rows * ATTENTION_BLOCK_K},
    };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        *parts[i].field = memory ? memory + at : NULL;
        at += (parts[i].count + 15) & ~(int64_t)15;
    }
    return at;
}

static size_t attention_bwd_workspace(const Node *node, int num_workers)
{
    Attention a = attention_dims(node->attrs, &node->in[IN_Q]->type);
    Scratch   scratch;
    return (size_t)(num_workers * carve(&a, NULL, &scratch)) * sizeof(float);
}

typedef struct BackwardJob {
    Attention a; /* lse is read */
    Heads     grad_o, dq, dk, dv;
    float    *scratch;
    int64_t   scratch_floats, block_q;
} BackwardJob;

/* Fills q, grad_o, lse, delta of the scratch and clears dq. */
static void load_inputs(const BackwardJob *job, const Scratch *s, int64_t b, int64_t g)
{
    const Attention *a = &job->a;
    int64_t          dim = a->dim;
    for (int64_t row = 0; row < a->len; row += job->block_q) {
        int64_t rows = min_i64(job->block_q, a->len - row);
        for (int64_t h = 0; h < a->group; h++)
            for (int64_t i = 0; i < rows; i++) {
                int64_t r = row * a->group + h * rows + i, head = g * a->group + h, t = row + i;
                vec_copy_in(s->dq + r * dim, heads_at(&a->o, b, t, head), a->o.dtype, dim);
                vec_copy_in(s->grad_o + r * dim, heads_at(&job->grad_o, b, t, head), job->grad_o.dtype, dim);
                vec_copy_in(s->q + r * dim, heads_at(&a->q, b, t, head), a->q.dtype, dim);
                vec_scale(s->q + r * dim, a->scale, dim);
                s->delta[r] = vec_dot(s->dq + r * dim, s->grad_o + r * dim, dim); /* dq lent for o */
                s->lse[r] = a->lse[(b * a->num_heads + head) * a->len + t];
            }
    }
    memset(s->dq, 0, (size_t)(a->len * a->group * dim) * sizeof(float));
}

/* p and ds of queries [row, row + rows) x keys [key, key + keys), from scores in p and do v^T in ds. */
static void block_gradients(const Attention *a, const Scratch *s, int64_t b, int64_t row, int64_t rows, int64_t key, int64_t keys)
{
    for (int64_t r = 0; r < a->group * rows; r++) {
        int64_t t = row + r % rows, begin = max_i64(attention_first_key(a, b, t) - key, 0), end = min_i64(t + 1 - key, keys);
        float  *p = s->p + r * keys, *ds = s->ds + r * keys, lse = s->lse[row * a->group + r], delta = s->delta[row * a->group + r];
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
            p[j] = vec_expf(p[j] - lse);
            ds[j] = p[j] * (ds[j] - delta);
        }
        for (int64_t j = end; j < keys; j++) p[j] = ds[j] = 0;
    }
}

/* dk and dv of one block of keys, and what it adds to dq. */
static void key_block(const BackwardJob *job, const Scratch *s, int64_t b, int64_t g, int64_t key, int64_t block_keys)
{
    const Attention   *a = &job->a;
    const SgemmKernel *kernel = sgemm_kernel();
    int64_t            dim = a->dim, k_stride = dim;
    const float       *k = s->k;
    const void        *keys_at = heads_at(&a->k, b, key, g), *values_at = heads_at(&a->v, b, key, g);
    if (a->k.dtype == DT_F32)
        k = keys_at, k_stride = a->k.token_stride;
    else
        for (int64_t i = 0; i < block_keys; i++) vec_copy_in(s->k + i * dim, heads_at(&a->k, b, key + i, g), a->k.dtype, dim);
    SgemmB k_b = sgemm_b(kernel, k, k_stride),
           kt = sgemm_pack_b(kernel, true, block_keys, dim, keys_at, a->k.dtype, a->k.token_stride, s->kt, kernel->cols * dim),
           vt = sgemm_pack_b(kernel, true, block_keys, dim, values_at, a->v.dtype, a->v.token_stride, s->vt, kernel->cols * dim);
    memset(s->dk, 0, (size_t)(block_keys * dim) * sizeof(float));
    memset(s->dv, 0, (size_t)(block_keys * dim) * sizeof(float));
    for (int64_t row = key / job->block_q * job->block_q; row < a->len; row += job->block_q) {
        if (attention_first_key(a, b, row) >= key + block_keys) break;
        int64_t rows = min_i64(job->block_q, a->len - row), all = rows * a->group, keys = min_i64(block_keys, row + rows - key);
        float  *q = s->q + row * a->group * dim, *grad_o = s->grad_o + row * a->group * dim, *dq = s->dq + row * a->group * dim;
        sgemm_run(kernel, all, keys, dim, 1, sgemm_a(kernel, false, q, dim), kt, s->p, keys, false, NULL, 0);
        sgemm_run(kernel, all, keys, dim, 1, sgemm_a(kernel, false, grad_o, dim), vt, s->ds, keys, false, NULL, 0);
        block_gradients(a, s, b, row, rows, key, keys);
        SgemmA pt = sgemm_a(kernel, true, s->p, keys), dst = sgemm_a(kernel, true, s->ds, keys);
        sgemm_run(kernel, keys, dim, all, 1, pt, sgemm_b(kernel, grad_o, dim), s->dv, dim, true, NULL, 0);
        sgemm_run(kernel, keys, dim, all, 1, dst, sgemm_b(kernel, q, dim), s->dk, dim, true, NULL, 0);
        sgemm_run(kernel, all, dim, keys, a->scale, sgemm_a(kernel, false, s->ds, keys), k_b, dq, dim, true, NULL, 0);
    }
    for (int64_t i = 0; i < block_keys; i++) {
        if (job->dk.data) vec_store_row(heads_at_mut(&job->dk, b, key + i, g), job->dk.dtype, s->dk + i * dim, dim);
        if (job->dv.data) vec_store_row(heads_at_mut(&job->dv, b, key + i, g), job->dv.dtype, s->dv + i * dim, dim);
    }
}

VEC_TASK(backward_task)
{
    const BackwardJob *job = context;
    const Attention   *a = &job->a;
    int64_t            b = task / a->num_kv_heads, g = task % a->num_kv_heads;
    Scratch            s;
    carve(a, job->scratch + worker * job->scratch_floats, &s);
    load_inputs(job, &s, b, g);
    for (int64_t key = 0; key < a->len; key += ATTENTION_BLOCK_K) key_block(job, &s, b, g, key, min_i64(ATTENTION_BLOCK_K, a->len - key));
    if (!job->dq.data) return;
    for (int64_t row = 0; row < a->len; row += job->block_q) {
        int64_t rows = min_i64(job->block_q, a->len - row);
        for (int64_t r = 0; r < a->group * rows; r++)
            vec_store_row(heads_at_mut(&job->dq, b, row + r % rows, g * a->group + r / rows), job->dq.dtype,
                          s.dq + (row * a->group + r) * a->dim, a->dim);
    }
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
    job.block_q = attention_block_q(a);
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
    Scratch     scratch;
    job.scratch = args->workspace;
    job.scratch_floats = carve(&job.a, NULL, &scratch);
    if (job.a.len) pool_run(args->pool, job.a.batch * job.a.num_kv_heads, backward_task, &job);
    return OK;
}

/* One pair of query and key of one head: what it adds to dq[t], dk[key], dv[key], in fp32 sums (T,D) of a batch row and
 * head. */
static void reference_pair(const BackwardJob *job, int64_t b, int64_t h, int64_t t, int64_t key, double delta, const Scratch *sums)
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
    Scratch     sums;
    size_t      bytes = (size_t)(a->len * a->dim) * sizeof(float);
    carve(a, args->workspace, &sums);
    sums.dk = sums.q, sums.dv = sums.grad_o; /* lent: sums of all keys */
    for (int64_t b = 0; b < a->batch; b++)
        for (int64_t h = 0; h < a->num_heads; h++) {
            if (h % a->group == 0) memset(sums.dk, 0, bytes), memset(sums.dv, 0, bytes);
            memset(sums.dq, 0, bytes);
            for (int64_t t = 0; t < a->len; t++) {
                double delta = 0;
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
static size_t attention_bwd_gpu_workspace(const Node *node)
{
    const AttentionAttrs *attrs = node->attrs;
    const TensorType     *q = &node->in[IN_Q]->type;
    Attention             a = attention_dims(attrs, q);
    size_t                rows = (size_t)(a.batch * a.num_heads * a.len), sums = rows * sizeof(float);
    bool                  dim = a.dim == 64 || a.dim == 128 || a.dim == 256;
    if (!attention_by_rows(attrs, a.len) || q->dtype != DT_BF16 || a.len % 128 || !dim) return sums;
    return sums + rows * (size_t)a.len * 2 + (a.group > 1 ? 2 * rows * (size_t)a.dim * 2 : 0);
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
            {DT_I32, 2, {1, 300}}},
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
};

const OpDef op_attention_bwd = {
    .id = OP_ATTENTION_BWD,
    .name = "attention_bwd",
    .synopsis = "dq, dk, dv of attention; p = exp(scale q k^T - lse), ds = p (do v^T - sum(do o))",
    .num_in = 7,
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
