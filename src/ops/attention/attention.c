/* attention: o = softmax(scale q k^T) v per head; a query attends the keys of its own document up to its own key.
 *
 * With a window a query attends only the last `window` of these keys. With a softcap the scores are softcap tanh(scale q k / softcap).
 *
 * The whole T x T matrix of scores never exists: a task takes a block of queries of all heads that share a key/value head, and goes over
 * blocks of keys. It keeps, in fp32, the largest score and the sum of exponentials so far (Milakov and Gimelshein 2018; Dao et al. 2022).
 * Blocks of keys before the document or window, or after the queries, are skipped. lse = log(sum(exp(scores))) is kept for backward. */
#include "ops/attention/attention.h"

#include "base/scoped.h"
#include "device/cpu/sgemm.h"
#include "ops/attention/attention_few.h"

#include <float.h>

const AttrDef attention_attrs[] = {
    ATTR_INT(AttentionAttrs, num_heads, 0), ATTR_INT(AttentionAttrs, num_kv_heads, 0), ATTR_INT(AttentionAttrs, head_dim, 0),
    ATTR_INT(AttentionAttrs, window, 0),    ATTR_FLOAT(AttentionAttrs, scale, 0),      ATTR_FLOAT(AttentionAttrs, softcap, 0),
    ATTR_BOOL(AttentionAttrs, dense, 0),    ATTR_RARE(AttentionAttrs, bidirectional),  {0}};

enum { IN_Q, IN_K, IN_V, IN_DOC_START, IN_SINKS, IN_BIAS, NUM_IN };

static Status infer_scores(const Node *node, int more)
{
    const AttentionAttrs *attrs = node->attrs;
    if (node->in[more]) TRY(infer_input(node, more, "sinks", DT_SET_DECODE, DIMS(attrs->num_heads)));
    if (!node->in[more + 1]) return OK;
    TRY(infer_input(node, more + 1, "bias", DT_SET_DECODE, DIMS(-1, attrs->num_heads)));
    int64_t rows = node->in[more + 1]->type.dim[0];
    FAIL_IF(rows < 1 || (attrs->bidirectional && rows % 2 == 0), ERR_INVALID, "bias has %lld rows, expected one of each distance%s",
            (long long)rows, attrs->bidirectional ? ", -R / 2 to R / 2: an odd number" : ": at least 1");
    return OK;
}

Status attention_infer_qkv(const Node *node, int at, int more)
{
    const AttentionAttrs *attrs = node->attrs;
    int64_t               heads = attrs->num_heads, kv_heads = attrs->num_kv_heads, dim = attrs->head_dim;
    FAIL_IF(heads < 1 || kv_heads < 1 || dim < 1 || heads % kv_heads, ERR_INVALID,
            "attributes num_heads %lld, num_kv_heads %lld, head_dim %lld: expected at least 1 and a multiple of "
            "num_kv_heads heads",
            (long long)heads, (long long)kv_heads, (long long)dim);
    FAIL_IF(attrs->window < 0 || !(attrs->softcap >= 0), ERR_INVALID,
            "attributes window %lld, softcap %g: expected 0 (none) or a positive number", (long long)attrs->window, attrs->softcap);
    FAIL_IF(!isfinite(attrs->scale), ERR_INVALID, "attribute scale is %g, expected a finite number", attrs->scale);
    TRY(infer_scores(node, more));
    TRY(infer_float(node, at, "q", 3));
    if (node->in[at]->type.ndim == 3) {
        FAIL_IF(node->in[at + 1] || node->in[at + 2], ERR_INVALID, "packed q comes with k or v, expected it alone");
        return infer_input(node, at, "packed q", DT_SET_DECODE, DIMS(-1, -1, (heads + 2 * kv_heads) * dim));
    }
    TRY(infer_input(node, at, "q", DT_SET_DECODE, DIMS(-1, -1, heads, dim)));
    FAIL_IF(!node->in[at + 1] || !node->in[at + 2], ERR_INVALID, "q (B,T,H,D) without k or v, expected both");
    const TensorType *q = &node->in[at]->type;
    TRY(infer_input(node, at + 1, "k", DT_SET_DECODE, DIMS(q->dim[0], q->dim[1], kv_heads, dim)));
    TRY(infer_input(node, at + 2, "v", DT_SET_DECODE, DIMS(q->dim[0], q->dim[1], kv_heads, -1)));
    FAIL_IF(attention_value_dim(node, at) < 1, ERR_INVALID, "v has heads of no numbers, expected at least 1");
    return OK;
}

int64_t attention_value_dim(const Node *node, int at)
{
    return node->in[at + 2] ? node->in[at + 2]->type.dim[3] : ((const AttentionAttrs *)node->attrs)->head_dim;
}

/* q | packed, [k], [v], doc_start i32 (B,T), [sinks], [bias] -> o (B,T,H,E) of q's dtype, lse (B,H,T) f32. */
static Status attention_infer(Node *node)
{
    const AttentionAttrs *attrs = node->attrs;
    TRY(attention_infer_qkv(node, IN_Q, IN_SINKS));
    const TensorType *q = &node->in[IN_Q]->type;
    TRY(infer_input(node, IN_DOC_START, "doc_start", DT_SET(DT_I32), DIMS(q->dim[0], q->dim[1])));
    node->out[0]->type = type_make(q->dtype, 4, q->dim[0], q->dim[1], attrs->num_heads, attention_value_dim(node, IN_Q));
    node->out[1]->type = type_make(DT_F32, 3, q->dim[0], attrs->num_heads, q->dim[1]);
    return OK;
}

static Status attention_backward(GradBuilder *grad, const Node *node)
{
    enum { NUM_BWD = 12, FIRST_SCORES = IN_SINKS, NUM_SCORES = NUM_IN - IN_SINKS };
    Value         *do_ = grad_of(grad, node->out[0]), *dlse = grad_of(grad, node->out[1]), *out[NODE_MAX_OUT] = {NULL};
    AttentionAttrs attrs = *(const AttentionAttrs *)node->attrs;
    uint32_t       want = 0;
    for (int k = 0; k < 3; k++) want |= want_bit(node->in[k] && grad_wanted(grad, node->in[k]), k);
    for (int k = 0; k < NUM_SCORES; k++)
        want |= want_bit(node->in[FIRST_SCORES + k] && grad_wanted(grad, node->in[FIRST_SCORES + k]), 3 + k);
    if ((!do_ && !dlse) || !want) return OK;
    ScaleAttrs none = {.by = 0};
    if (!do_) TRY(grad_emit(grad, OP_SCALE, &none, &node->out[0], 1, ~0u, &do_));
    Value *in[NUM_BWD] = {do_,          node->in[IN_Q],         node->in[IN_K], node->in[IN_V],     node->out[0],
                          node->out[1], node->in[IN_DOC_START], dlse,           node->in[IN_SINKS], node->in[IN_BIAS]};
    for (int k = 0; k < NUM_SCORES; k++) {
        Value *value = node->in[FIRST_SCORES + k];
        if (!(want >> (3 + k) & 1)) continue;
        in[NUM_BWD - NUM_SCORES + k] = grad_accumulator(grad, value);
        int64_t dtype = grad_dw_dtype(grad, value, value->type.dtype);
        if (dtype) attrs.dw_dtype = dtype;
    }
    TRY(grad_emit(grad, OP_ATTENTION_BWD, &attrs, in, NUM_BWD, want, out));
    for (int k = 0; k < NUM_SCORES; k++)
        if (want >> (3 + k) & 1) grad_set(grad, node->in[FIRST_SCORES + k], out[3 + k]);
    for (int k = 0; k < 3; k++)
        if (want & (1u << k)) TRY(grad_add(grad, node->in[k], out[k]));
    return OK;
}

Attention attention_dims_of(const Node *node, int at)
{
    return attention_dims(node->attrs, &node->in[at]->type, node->in[at + 2] ? &node->in[at + 2]->type : NULL);
}

Attention attention_dims(const AttentionAttrs *attrs, const TensorType *q, const TensorType *v)
{
    Attention a = {.batch = q->dim[0],
                   .len = q->dim[1],
                   .num_heads = attrs->num_heads,
                   .num_kv_heads = attrs->num_kv_heads,
                   .dim = attrs->head_dim,
                   .v_dim = v && v->ndim == 4 ? v->dim[3] : attrs->head_dim,
                   .window = attrs->window,
                   .softcap = (float)attrs->softcap,
                   .bidirectional = attrs->bidirectional,
                   .group = attrs->num_heads / attrs->num_kv_heads};
    a.scale = attrs->scale != 0 ? (float)attrs->scale : 1.0f / sqrtf((float)a.dim);
    a.q.dtype = q->dtype;
    return a;
}

Heads heads_of_view(const TensorView *view, int64_t dim)
{
    int64_t row = view->type.dim[2] * dim;
    return (Heads){.data = view->data, .dtype = view->type.dtype, .batch_stride = view->type.dim[1] * row, .token_stride = row, .dim = dim};
}

void attention_bind_qkv(Attention *a, const TensorView *views, Heads *out_q, Heads *out_k, Heads *out_v)
{
    if (views[0].type.ndim == 4) {
        *out_q = heads_of_view(&views[0], a->dim);
        *out_k = heads_of_view(&views[1], a->dim);
        *out_v = heads_of_view(&views[2], a->v_dim);
        return;
    }
    int64_t row = (a->num_heads + 2 * a->num_kv_heads) * a->dim;
    *out_q = *out_k = *out_v =
        (Heads){.data = views[0].data, .dtype = views[0].type.dtype, .batch_stride = a->len * row, .token_stride = row, .dim = a->dim};
    out_k->data = vec_at_mut(views[0].data, out_q->dtype, a->num_heads * a->dim);
    out_v->data = vec_at_mut(views[0].data, out_q->dtype, (a->num_heads + a->num_kv_heads) * a->dim);
}

double attention_macs(const Attention *a)
{
    /* first the queries whose window would begin before key 0, then the queries with a whole window */
    int64_t growing = a->window ? min_i64(a->len, max_i64(0, a->window - a->first)) : a->len;
    double  pairs = (double)growing * (double)a->first + (double)growing * (double)(growing + 1) / 2;
    pairs += (double)(a->len - growing) * (double)a->window;
    if (a->bidirectional) pairs = 2 * pairs - (double)a->len;
    return (double)(a->batch * a->num_heads * (a->dim + a->v_dim)) / 2 * pairs;
}

static OpCost attention_cost(const Node *node)
{
    Attention a = attention_dims_of(node, IN_Q);
    OpCost    cost = cost_streaming(node, 4 * attention_macs(&a));
    cost.matrix_unit = true;
    return cost;
}

const float *attention_rows(const Heads *heads, int64_t b, int64_t t, int64_t rows, int64_t h, float *scratch, int64_t *out_stride)
{
    bool in_one = !heads->pages || t / heads->page_len == (t + rows - 1) / heads->page_len;
    if (heads->dtype == DT_F32 && in_one) {
        *out_stride = heads->token_stride;
        return heads_at(heads, b, t, h);
    }
    *out_stride = heads->dim;
    for (int64_t i = 0; i < rows; i++) dtype_decode(heads->dtype, heads_at(heads, b, t + i, h), heads->dim, scratch + i * heads->dim);
    return scratch;
}

/* Transposes x (D, rows), whose rows are `stride` floats apart, and stores it as rows [t, t + rows) of one head. sgemm's packing of b does
 * the transpose. scratch: sgemm_packed(D, SGEMM_COLS, rows) floats. */
static void store_turned(const Heads *heads, int64_t b, int64_t t, int64_t rows, int64_t h, const float *x, int64_t stride, float *scratch)
{
    const SgemmKernel *kernel = sgemm_kernel();
    SgemmB             turned = sgemm_pack_b(kernel, true, heads->dim, rows, x, DT_F32, stride, scratch, kernel->cols * rows);
    for (int64_t d = 0; d < heads->dim; d += turned.row)
        for (int64_t i = 0; i < rows; i++) {
            void *to = vec_at_mut(heads_at_mut(heads, b, t + i, h), heads->dtype, d);
            vec_store_row(to, heads->dtype, turned.data + d / turned.row * turned.panel + i * turned.row,
                          min_i64(turned.row, heads->dim - d));
        }
}

enum {
    PANEL = SGEMM_COLS, /* queries of a panel */
    BLOCK_K = ATTENTION_BLOCK_K,
};

/* PANEL queries t, t + 1, .. of one head, a column each. Columns from `count` on repeat the last query. */
typedef struct Panel {
    int64_t head, t, count;
    int64_t begin, end;         /* keys that any of these queries attends */
    int64_t all_begin, all_end; /* keys that all of these queries attend */
    int32_t first[PANEL], after[PANEL];
    float   most[PANEL], total[PANEL]; /* per query: the largest score and the sum of exponentials so far */
    int64_t own;                       /* the key index of the first query's own token */
    float  *sum;                       /* (E, PANEL): sum of exponentials times values */
    SgemmB  q;                         /* the queries, (D, PANEL) */
} Panel;

static int64_t block_q(const Attention *a)
{
    return div_up(max_i64(1, 128 / a->group), PANEL) * PANEL;
}

/* The next three functions compute the size of a worker's scratch: its panels with their queries and sums; scores (K,PANEL); f32 copies of
 * keys (K,D) and values (K,E), used if these aren't f32; space to transpose results. */
static int64_t panels_of_block(const Attention *a)
{
    return a->group * div_up(min_i64(block_q(a), a->len), PANEL);
}

static int64_t panel_floats(const Attention *a)
{
    return div_up(sizeof(Panel), 64) * 16 + PANEL * a->v_dim + sgemm_packed(PANEL, SGEMM_COLS, a->dim);
}

static int64_t forward_floats(const Attention *a)
{
    return panels_of_block(a) * panel_floats(a) + BLOCK_K * (PANEL + a->dim) + sgemm_packed(a->v_dim, SGEMM_ROWS, BLOCK_K) +
           sgemm_packed(a->v_dim, SGEMM_COLS, PANEL);
}

size_t attention_forward_workspace(const Attention *a, int num_workers)
{
    return attention_by_few(a) ? attention_few_workspace(a, num_workers) : (size_t)(num_workers * forward_floats(a)) * sizeof(float);
}

static size_t attention_workspace(const Node *node, int num_workers)
{
    Attention a = attention_dims_of(node, IN_Q);
    if (node->in[IN_BIAS]) a.bias.type = node->in[IN_BIAS]->type;
    return attention_forward_workspace(&a, num_workers);
}

typedef struct ForwardJob {
    const Attention *a;
    float           *scratch;
    int64_t          blocks;
} ForwardJob;

static Panel *panel_start(const Attention *a, const SgemmKernel *kernel, int64_t b, int64_t head, int64_t t, int64_t count, float *memory)
{
    Panel *p = (Panel *)memory;
    *p = (Panel){.head = head, .t = t, .count = count, .own = attention_own_key(a, b, t), .begin = INT64_MAX, .all_end = INT64_MAX};
    p->sum = memory + div_up(sizeof(Panel), 64) * 16;
    p->q = sgemm_pack_b(kernel, true, count, a->dim, heads_at(&a->q, b, t, head), a->q.dtype, a->q.token_stride, p->sum + PANEL * a->v_dim,
                        kernel->cols * a->dim);
    for (int64_t i = 0; i < PANEL; i++) {
        int64_t query = t + min_i64(i, count - 1), first = attention_first_key(a, b, query), after = attention_after_key(a, b, query);
        p->first[i] = (int32_t)first;
        p->after[i] = (int32_t)after;
        p->begin = min_i64(p->begin, first);
        p->end = max_i64(p->end, after);
        p->all_begin = max_i64(p->all_begin, first);
        p->all_end = min_i64(p->all_end, after);
        p->most[i] = -FLT_MAX; /* finite, so that a difference from it is never NaN */
    }
    memset(p->sum, 0, (size_t)(PANEL * a->v_dim) * sizeof(float));
    return p;
}

/* Adds the bias of each pair's distance to `score` (keys, PANEL), whose first key is `key`. */
static void panel_bias(const Attention *a, const Panel *panel, float *score, int64_t key, int64_t keys)
{
    for (int64_t j = 0; j < keys; j++)
        for (int64_t i = 0; i < panel->count; i++) score[j * PANEL + i] += attention_bias(a, panel->head, panel->own + i - key - j);
}

/* Turns `score` (keys, PANEL; first key `key`) into exponentials, 0 where a query doesn't attend a key. Sums so far are rescaled to the new
 * largest score. Each query sums its exponentials in the order of keys. */
static void panel_softmax(const Attention *a, Panel *panel, float *restrict score, int64_t key, int64_t keys)
{
    float most[PANEL], total[PANEL], shrink[PANEL];
    if (a->softcap > 0) vec_softcap(score, a->softcap, keys * PANEL);
    if (a->bias.data) panel_bias(a, panel, score, key, keys);
    if (key < panel->all_begin || key + keys > panel->all_end)
        for (int64_t j = 0; j < keys; j++)
            for (int i = 0; i < PANEL; i++) {
                bool attends = (int32_t)(key + j) >= panel->first[i] && (int32_t)(key + j) < panel->after[i];
                score[j * PANEL + i] = attends ? score[j * PANEL + i] : -INFINITY;
            }
    memcpy(most, panel->most, sizeof most);
    for (int64_t j = 0; j < keys; j++)
        for (int i = 0; i < PANEL; i++) most[i] = score[j * PANEL + i] > most[i] ? score[j * PANEL + i] : most[i];
    for (int i = 0; i < PANEL; i++) {
        shrink[i] = vec_exp_below(panel->most[i] - most[i]);
        total[i] = panel->total[i] * shrink[i];
    }
    for (int64_t j = 0; j < keys; j++)
        for (int i = 0; i < PANEL; i++) {
            score[j * PANEL + i] = vec_exp_below(score[j * PANEL + i] - most[i]);
            total[i] += score[j * PANEL + i];
        }
    memcpy(panel->most, most, sizeof most);
    memcpy(panel->total, total, sizeof total);
    for (int64_t d = 0; d < a->v_dim; d++)
        for (int i = 0; i < PANEL; i++) panel->sum[d * PANEL + i] *= shrink[i];
}

/* Each query's sink counts as one more score, whose value vector is 0. */
static void panel_sink(const Attention *a, Panel *p)
{
    float sink = attention_sink(a, p->head);
    for (int i = 0; i < PANEL; i++) {
        float most = sink > p->most[i] ? sink : p->most[i], shrink = vec_exp_below(p->most[i] - most);
        p->total[i] = p->total[i] * shrink + vec_exp_below(sink - most);
        p->most[i] = most;
        for (int64_t d = 0; d < a->v_dim; d++) p->sum[d * PANEL + i] *= shrink;
    }
}

static void panel_finish(const Attention *a, int64_t b, Panel *p, float *scratch)
{
    float *lse = a->lse ? a->lse + (b * a->num_heads + p->head) * a->len + p->t : NULL;
    if (a->sinks.data) panel_sink(a, p);
    for (int64_t d = 0; d < a->v_dim; d++)
        for (int i = 0; i < PANEL; i++) p->sum[d * PANEL + i] /= p->total[i];
    if (a->o.data) store_turned(&a->o, b, p->t, p->count, p->head, p->sum, PANEL, scratch);
    for (int64_t i = 0; lse && i < p->count; i++) lse[i] = p->most[i] + logf(p->total[i]);
}

VEC_TASK(forward_task)
{
    const ForwardJob  *job = context;
    const Attention   *a = job->a;
    const SgemmKernel *kernel = sgemm_kernel();
    float             *panels = job->scratch + worker * forward_floats(a), *score = panels + panels_of_block(a) * panel_floats(a);
    float             *k_scratch = score + BLOCK_K * PANEL, *v_scratch = k_scratch + BLOCK_K * a->dim,
          *turned = v_scratch + sgemm_packed(a->v_dim, SGEMM_ROWS, BLOCK_K);
    /* the last blocks attend the most keys: they go first */
    int64_t row = (job->blocks - 1 - task / (a->batch * a->num_kv_heads)) * block_q(a), rows = min_i64(block_q(a), a->len - row);
    int64_t b = task / a->num_kv_heads % a->batch, g = task % a->num_kv_heads, k_stride, v_stride, count = 0, begin = INT64_MAX, end = 0;
    for (int64_t h = g * a->group; h < (g + 1) * a->group; h++)
        for (int64_t i = 0; i < rows; i += PANEL) {
            Panel *p = panel_start(a, kernel, b, h, row + i, min_i64(PANEL, rows - i), panels + count++ * panel_floats(a));
            begin = min_i64(begin, p->begin);
            end = max_i64(end, p->end);
        }
    /* key blocks begin at multiples of BLOCK_K, so a query's bits don't depend on which queries share its panels */
    for (int64_t next, key = begin; key < end; key = next) {
        next = min_i64(end, (key / BLOCK_K + 1) * BLOCK_K);
        const float *k = attention_rows(&a->k, b, key, next - key, g, k_scratch, &k_stride);
        const float *v = attention_rows(&a->v, b, key, next - key, g, v_scratch, &v_stride);
        for (int64_t i = 0; i < count; i++) {
            Panel  *p = (Panel *)(panels + i * panel_floats(a));
            int64_t from = max_i64(key, p->begin), keys = min_i64(next, p->end) - from;
            if (keys <= 0) continue;
            SgemmA k_a = sgemm_a(kernel, false, k + (from - key) * k_stride, k_stride);
            SgemmA v_a = sgemm_a(kernel, true, v + (from - key) * v_stride, v_stride);
            sgemm_run(kernel, keys, PANEL, a->dim, a->scale, k_a, p->q, score, PANEL, 0, NULL, 0);
            panel_softmax(a, p, score, from, keys);
            sgemm_run(kernel, a->v_dim, PANEL, keys, 1, v_a, sgemm_b(kernel, score, PANEL), p->sum, PANEL, SGEMM_ADD, NULL, 0);
        }
    }
    for (int64_t i = 0; i < count; i++) panel_finish(a, b, (Panel *)(panels + i * panel_floats(a)), turned);
}

void attention_forward(const Attention *a, ThreadPool *pool, void *workspace)
{
    ForwardJob job = {.a = a, .scratch = workspace, .blocks = div_up(a->len, block_q(a))};
    if (!a->batch || !a->len) return;
    if (attention_by_few(a)) {
        attention_run_few(a, pool, workspace);
        return;
    }
    pool_run(pool, a->batch * a->num_kv_heads * job.blocks, forward_task, &job);
}

static float reference_at(const void *row, DType dtype, int64_t d)
{
    float value;
    dtype_decode(dtype, (const char *)row + dtype_bytes(dtype, d), 1, &value);
    return value;
}

static double reference_score(const Attention *a, int64_t b, int64_t t, int64_t h, int64_t key)
{
    const void *q = heads_at(&a->q, b, t, h), *k = heads_at(&a->k, b, key, h / a->group);
    double      dot = 0;
    for (int64_t d = 0; d < a->dim; d++) dot += (double)reference_at(q, a->q.dtype, d) * reference_at(k, a->k.dtype, d);
    double score = dot * a->scale, cap = a->softcap;
    if (cap > 0) score = cap * tanh(score / cap);
    return a->bias.data ? score + attention_bias(a, h, attention_own_key(a, b, t) - key) : score;
}

/* Computes one query of one head in fp64. */
static void reference_row(const Attention *a, int64_t b, int64_t t, int64_t h)
{
    int64_t begin = attention_first_key(a, b, t), end = attention_after_key(a, b, t);
    double  sink = a->sinks.data ? attention_sink(a, h) : -INFINITY, most = sink, total = 0;
    SCOPED_ARRAY(double, weight, end - begin); /* of each key: its score, then exp(score - most) */
    for (int64_t key = begin; key < end; key++) {
        weight[key - begin] = reference_score(a, b, t, h, key);
        most = fmax(most, weight[key - begin]);
    }
    for (int64_t i = 0; i < end - begin; i++) {
        weight[i] = exp(weight[i] - most);
        total += weight[i];
    }
    if (a->sinks.data) total += exp(sink - most);
    for (int64_t d = 0; a->o.data && d < a->v_dim; d++) {
        double sum = 0;
        for (int64_t key = begin; key < end; key++)
            sum += weight[key - begin] / total * reference_at(heads_at(&a->v, b, key, h / a->group), a->v.dtype, d);
        vec_set(heads_at_mut(&a->o, b, t, h), a->o.dtype, d, (float)sum);
    }
    if (a->lse) a->lse[(b * a->num_heads + h) * a->len + t] = (float)(most + log(total));
}

void attention_forward_reference(const Attention *a)
{
    for (int64_t b = 0; b < a->batch; b++)
        for (int64_t t = 0; t < a->len; t++)
            for (int64_t h = 0; h < a->num_heads; h++) reference_row(a, b, t, h);
}

static Attention attention_bound(const KernelArgs *args)
{
    Attention a = attention_dims(args->attrs, &args->in[IN_Q].type, &args->in[IN_V].type);
    attention_bind_qkv(&a, args->in, &a.q, &a.k, &a.v);
    a.o = heads_of_view(&args->out[0], a.v_dim);
    a.doc_start = args->in[IN_DOC_START].data;
    a.lse = args->out[1].data;
    if (args->in[IN_SINKS].data) a.sinks = args->in[IN_SINKS];
    if (args->in[IN_BIAS].data) a.bias = args->in[IN_BIAS];
    return a;
}

static Status attention_blocks(const KernelArgs *args)
{
    Attention a = attention_bound(args);
    TRY(attention_check_starts(&a));
    attention_forward(&a, args->pool, args->workspace);
    return OK;
}

static Status attention_reference(const KernelArgs *args)
{
    Attention a = attention_bound(args);
    attention_forward_reference(&a);
    return OK;
}

static Status attention_use_cache(Graph *graph, const Node *node, const CacheShape *shape, Node **out)
{
    const AttentionAttrs *attrs = node->attrs;
    DType                 dtype = shape->fp8 ? DT_E4M3 : node->out[0]->type.dtype;
    FAIL_IF(attrs->bidirectional, ERR_UNSUPPORTED,
            "%s: attention is bidirectional: a token's keys aren't all there before the tokens after it, so that nothing can be generated",
            node->out[0]->name);
    FAIL_IF(node->in[IN_DOC_START] != graph_find(graph, feed_info(FEED_DOC_START)->name), ERR_UNSUPPORTED,
            "%s: attention takes %s for doc_start, but with a cache a token attends from the beginning of its text, so that nothing can be "
            "generated; give it the engine's doc_start",
            node->out[0]->name, node->in[IN_DOC_START]->name);
    TensorType k_type = type_make(dtype, 4, shape->pages, shape->page_len, attrs->num_kv_heads, attrs->head_dim), v_type = k_type;
    v_type.dim[3] = attention_value_dim(node, IN_Q);
    Value *k = graph_add_value(graph, VALUE_CACHE, arena_printf(graph->arena, "cache.k.%d", node->layer), &k_type);
    Value *v = graph_add_value(graph, VALUE_CACHE, arena_printf(graph->arena, "cache.v.%d", node->layer), &v_type);
    Value *in[] = {node->in[IN_Q],   node->in[IN_K],     node->in[IN_V],   k, v, shape->starts,
                   shape->row_pages, node->in[IN_SINKS], node->in[IN_BIAS]};
    int    num = node->in[IN_BIAS] ? 9 : node->in[IN_SINKS] ? 8 : 7;
    return graph_add_node(graph, &op_attention_cached, attrs, node->out[0]->name, in, num, ~0u, out);
}

static void attention_set_dense(Node *node, bool dense)
{
    ((AttentionAttrs *)node->attrs)->dense = dense;
}

const OpDef op_attention = {
    .id = OP_ATTENTION,
    .name = "attention",
    .synopsis = "o = softmax(s) v, s = scale q k^T + bias[min(t - key, R - 1)], over keys doc_start..t, or the last `window` of "
                "them; softcap: scale q k^T becomes softcap tanh(scale q k^T / softcap) first; sinks: e^sink is added to the "
                "softmax's sum; bidirectional: later keys of the document count too; lse = log of that sum",
    .num_in = NUM_IN,
    .num_out = 2,
    .min_in = 4,
    .optional_in = 1u << IN_K | 1u << IN_V,
    .attrs_size = sizeof(AttentionAttrs),
    .attrs = attention_attrs,
    .infer = attention_infer,
    .backward = attention_backward,
    .flags = OP_BY_DOCUMENT,
    .cost = attention_cost,
    .workspace = attention_workspace,
    .cpu = {{DT_SET_DECODE, attention_blocks, "blocks"}, {DT_SET_DECODE, attention_reference, "reference"}},
    .holds = {[IN_DOC_START] = HOLDS_DOC_START},
    .params = 1u << IN_SINKS, /* the bias isn't a parameter: it is computed from weights, see distance_buckets */
    .grad_outputs = 1u << 1,
    .cached = attention_use_cache,
    .set_dense = attention_set_dense,
    .samples = "[2,5,4,6], [2,5,2,6], [2,5,2,6], i32[2,5] below=1 {num_heads=4, num_kv_heads=2, head_dim=6, scale=-0.7}\n"
               "[2,5,4,6], [2,5,2,6], [2,5,2,6], i32[2,5] below=1 {num_heads=4, num_kv_heads=2, head_dim=6}\n"
               "[1,150,80], _, _, i32[1,150] below=1 {num_heads=3, num_kv_heads=1, head_dim=16, scale=0.3}\n"
               "[2,5,4,6], [2,5,2,6], [2,5,2,6], i32[2,5] below=1 {num_heads=4, num_kv_heads=2, head_dim=6, window=3, softcap=0.7}\n"
               "[1,300,80], _, _, i32[1,300] below=1 {num_heads=3, num_kv_heads=1, head_dim=16, window=70, scale=0.3}\n"
               "[2,5,4,6], [2,5,2,6], [2,5,2,6], i32[2,5] below=1, [4] {num_heads=4, num_kv_heads=2, head_dim=6}\n"
               "[2,5,4,6], [2,5,2,6], [2,5,2,6], i32[2,5] below=1, _, [3,4] {num_heads=4, num_kv_heads=2, head_dim=6, window=3,"
               "  softcap=0.7}\n"
               "[2,5,4,6], [2,5,2,6], [2,5,2,4], i32[2,5] below=1 {num_heads=4, num_kv_heads=2, head_dim=6}\n"
               "[2,5,4,6], [2,5,2,6], [2,5,2,6], i32[2,5] below=1 {num_heads=4, num_kv_heads=2, head_dim=6, bidirectional=true}\n"
               "[2,7,4,6], [2,7,2,6], [2,7,2,8], i32[2,7] below=1, [4], [5,4]"
               "  {num_heads=4, num_kv_heads=2, head_dim=6, window=3, softcap=0.7, bidirectional=true}\n",
    .large = "[2,333,512], _, _, i32[2,333] {num_heads=4, num_kv_heads=2, head_dim=64}\n"
             "[2,600,768], _, _, i32[2,600] {num_heads=4, num_kv_heads=1, head_dim=128}\n"
             "[1,130,2,96], [1,130,2,96], [1,130,2,96], i32[1,130] {num_heads=2, num_kv_heads=2, head_dim=96}\n"
             "[2,512,1024], _, _, i32[2,512] {num_heads=4, num_kv_heads=2, head_dim=128, dense=true}\n"
             "[2,300,768], _, _, i32[2,300] {num_heads=4, num_kv_heads=4, head_dim=64, dense=true}\n"
             "[2,333,512], _, _, i32[2,333] {num_heads=4, num_kv_heads=2, head_dim=64, window=100}\n"
             "[2,512,768], _, _, i32[2,512] {num_heads=4, num_kv_heads=1, head_dim=128, window=64, dense=true}\n"
             "[2,512,1024], _, _, i32[2,512] {num_heads=4, num_kv_heads=2, head_dim=128, window=300, dense=true}\n"
             "[2,333,512], _, _, i32[2,333] {num_heads=4, num_kv_heads=2, head_dim=64, softcap=0.8}\n"
             "[1,600,1536], _, _, i32[1,600] {num_heads=4, num_kv_heads=4, head_dim=128, window=129, softcap=0.8, dense=true}\n"
             "[1,333,2048], _, _, i32[1,333] {num_heads=4, num_kv_heads=2, head_dim=256}\n"
             "[1,512,1024], _, _, i32[1,512] {num_heads=2, num_kv_heads=1, head_dim=256, dense=true}\n"
             "[1,200,1280], _, _, i32[1,200] {num_heads=3, num_kv_heads=1, head_dim=256, window=1, dense=true}\n"
             "[1,500,1024], _, _, i32[1,500] {num_heads=2, num_kv_heads=1, head_dim=256, window=130, scale=0.1, softcap=0.8,"
             "  dense=true}\n"
             "[1,200,480], _, _, i32[1,200] {num_heads=2, num_kv_heads=2, head_dim=80, window=77, softcap=0.8, dense=true}\n"
             "[2,128,1024], _, _, i32[2,128] {num_heads=4, num_kv_heads=2, head_dim=128, scale=-0.3, dense=true}\n"
             "[2,1,2,192], [2,1,2,192], [2,1,2,128], i32[2,1] {num_heads=2, num_kv_heads=2, head_dim=192}\n"
             "[2,63,2,192], [2,63,2,192], [2,63,2,128], i32[2,63] {num_heads=2, num_kv_heads=2, head_dim=192}\n"
             "[1,64,2,192], [1,64,1,192], [1,64,1,128], i32[1,64] {num_heads=2, num_kv_heads=1, head_dim=192}\n"
             "[2,65,2,192], [2,65,2,192], [2,65,2,128], i32[2,65] {num_heads=2, num_kv_heads=2, head_dim=192}\n"
             "[1,200,2,192], [1,200,2,192], [1,200,2,128], i32[1,200] {num_heads=2, num_kv_heads=2, head_dim=192}\n"
             "[2,333,4,192], [2,333,2,192], [2,333,2,128], i32[2,333] {num_heads=4, num_kv_heads=2, head_dim=192, window=100}\n"
             "[1,513,2,192], [1,513,2,192], [1,513,2,128], i32[1,513] {num_heads=2, num_kv_heads=2, head_dim=192, dense=true}\n"
             "[1,200,2,192], [1,200,2,192], [1,200,2,128], i32[1,200] {num_heads=2, num_kv_heads=2, head_dim=192, softcap=0.8}\n"
             "[1,333,4,192], [1,333,4,192], [1,333,4,128], i32[1,333], [4] {num_heads=4, num_kv_heads=4, head_dim=192}\n"
             "[2,333,4,192], [2,333,2,192], [2,333,2,128], i32[2,333]"
             "  {num_heads=4, num_kv_heads=2, head_dim=192, window=200, bidirectional=true}\n"
             "[1,200,2,192], [1,200,2,192], [1,200,2,128], i32[1,200], _, [70,2] {num_heads=2, num_kv_heads=2, head_dim=192}\n"
             "[2,333,640], _, _, i32[2,333], [8] {num_heads=8, num_kv_heads=1, head_dim=64, window=128}\n"
             "[1,300,512], _, _, i32[1,300], _, [129,4] {num_heads=4, num_kv_heads=2, head_dim=64, scale=1}\n"
             "[2,333,512], _, _, i32[2,333] {num_heads=4, num_kv_heads=2, head_dim=64, bidirectional=true}\n"
             "[1,300,512], _, _, i32[1,300], [4], [31,4] {num_heads=4, num_kv_heads=2, head_dim=64, bidirectional=true}\n"
             "[2,63,256], _, _, i32[2,63] {num_heads=2, num_kv_heads=1, head_dim=64, bidirectional=true}\n"
             "[2,65,768], _, _, i32[2,65] {num_heads=2, num_kv_heads=2, head_dim=128, bidirectional=true}\n"
             "[1,1,384], _, _, i32[1,1] {num_heads=2, num_kv_heads=2, head_dim=64, bidirectional=true}\n"
             "[1,513,256], _, _, i32[1,513] {num_heads=2, num_kv_heads=1, head_dim=64, window=100, bidirectional=true}\n"
             "[2,512,512], _, _, i32[2,512] {num_heads=2, num_kv_heads=1, head_dim=128, dense=true, bidirectional=true}\n"
             "[1,200,1024], _, _, i32[1,200], _, [200,4] {num_heads=4, num_kv_heads=2, head_dim=128}\n"
             "[1,333,1536], _, _, i32[1,333], [4], [665,4] {num_heads=4, num_kv_heads=4, head_dim=128, window=129, bidirectional=true}\n"
             "[2,333,256], _, _, i32[2,333], _, [90,2] {num_heads=2, num_kv_heads=1, head_dim=64, window=100}\n"
             "[1,200,128], _, _, i32[1,200] {num_heads=2, num_kv_heads=1, head_dim=32, bidirectional=true}\n"
             "[1,333,1024], _, _, i32[1,333] {num_heads=2, num_kv_heads=1, head_dim=256, bidirectional=true}\n"
             "[1,200,1024], _, _, i32[1,200], _, [70,2] {num_heads=2, num_kv_heads=1, head_dim=256}\n"
             "[1,200,384], _, _, i32[1,200], _, [70,2] {num_heads=2, num_kv_heads=2, head_dim=64, softcap=0.8}\n"
             "[1,333,1024], _, _, i32[1,333], [4] {num_heads=4, num_kv_heads=2, head_dim=128}\n"
             "[2,512,1024], _, _, i32[2,512], [4] {num_heads=4, num_kv_heads=2, head_dim=128, dense=true}\n"
             "[1,333,2048], _, _, i32[1,333], [4] {num_heads=4, num_kv_heads=2, head_dim=256}\n"
             "[1,500,1024], _, _, i32[1,500], [2] {num_heads=2, num_kv_heads=1, head_dim=256, window=130, scale=0.1, softcap=0.8,"
             "  dense=true}\n"
             "[1,600,1536], _, _, i32[1,600], [4] {num_heads=4, num_kv_heads=4, head_dim=128, window=129, softcap=0.8, dense=true}\n"
             "[1,200,480], _, _, i32[1,200], [2] {num_heads=2, num_kv_heads=2, head_dim=80, window=77, softcap=0.8, dense=true}\n",
};
