/* attention, attention_bwd and attention_cached against loops in fp64 written from the definition: documents that begin
 * and end inside blocks, grouped heads, packed rows, lengths around the sizes of blocks, a cache filled in pieces. */
#include "ops/attention/attention.h"

#include "ops/op_case.h"
#include "ops/op_inputs.h"

typedef struct Problem {
    int64_t batch, len, heads, kv_heads, dim, doc; /* doc: tokens of a document; padding follows the last document */
    int64_t window;
    double  softcap;
    bool    sinks, bidirectional;
    int64_t bias, v_dim; /* bias: rows of its table; v_dim: elements of a value's head, 0: dim */
} Problem;

static const Problem problems[] = {
    {1, 1, 1, 1, 8, 100, .window = 0},
    {2, 63, 2, 1, 12, 100, .window = 0},
    {1, 129, 4, 2, 16, 1000, .window = 0},
    {2, 300, 3, 3, 8, 70, .window = 0},
    {1, 257, 8, 1, 64, 128, .window = 0},
    {1, 200, 2, 2, 5, 1, .window = 0},
    {1, 520, 2, 1, 32, 250, .window = 0},
    {1, 130, 2, 1, 8, 1000, .window = 2},
    {2, 300, 4, 2, 16, 1000, .window = 70},
    {1, 520, 2, 1, 32, 250, .window = 128},
    {1, 520, 2, 2, 8, 400, .window = 127, .softcap = 2.0},
    {1, 300, 2, 2, 256, 1000, .window = 1000, .softcap = 50.0},
    {2, 129, 3, 1, 12, 1000, .softcap = 0.5},
    {2, 63, 4, 2, 12, 20, .sinks = true},
    {1, 300, 3, 1, 16, 70, .window = 33, .sinks = true},
    {1, 300, 4, 4, 8, 1000, .softcap = 2.0, .sinks = true},
    {2, 63, 2, 1, 12, 20, .bidirectional = true},
    {1, 300, 4, 2, 16, 1000, .bidirectional = true, .sinks = true},
    {1, 520, 2, 1, 8, 250, .window = 128, .bidirectional = true},
    {2, 129, 3, 1, 12, 50, .window = 0, .bias = 7},
    {1, 300, 4, 2, 16, 1000, .softcap = 1.5, .bias = 300},
    {1, 300, 2, 2, 8, 120, .window = 40, .bias = 1, .sinks = true},
    {1, 257, 2, 1, 8, 150, .bias = 21, .bidirectional = true},
    {2, 63, 2, 1, 12, 20, .v_dim = 8},
    {1, 300, 4, 2, 24, 1000, .v_dim = 16},
    {1, 150, 4, 1, 8, 70, .softcap = 2.0, .sinks = true, .bias = 5, .v_dim = 20},
    {2, 140, 4, 2, 8, 70, .window = 50, .sinks = true, .bidirectional = true, .bias = 31, .v_dim = 12},
};
enum { NUM_PROBLEMS = sizeof problems / sizeof problems[0] };

/* Everything in fp64, dense (B,T,heads,D). */
typedef struct Exact {
    const Problem *p;
    double        *q, *k, *v, *grad_o, *o, *lse, *dq, *dk, *dv, *sinks, *bias, *dsinks, *dbias;
    const int32_t *doc_start;
} Exact;

static double *doubles(int64_t count)
{
    return calloc((size_t)count, sizeof(double));
}

static int64_t at(const Problem *p, int64_t heads, int64_t b, int64_t t, int64_t h)
{
    return ((b * p->len + t) * heads + h) * p->dim;
}

static int64_t v_dim_of(const Problem *p)
{
    return p->v_dim ? p->v_dim : p->dim;
}

static bool is_packable(const Problem *p)
{
    return v_dim_of(p) == p->dim;
}

/* Index of the first element of head h of token t, in v and o. */
static int64_t v_at(const Problem *p, int64_t heads, int64_t b, int64_t t, int64_t h)
{
    return ((b * p->len + t) * heads + h) * v_dim_of(p);
}

static bool attends(const Exact *e, int64_t b, int64_t t, int64_t key)
{
    const Problem *p = e->p;
    bool           same = e->doc_start[b * p->len + t] == e->doc_start[b * p->len + key];
    return same && (p->bidirectional || key <= t) && (!p->window || llabs(t - key) < p->window);
}

/* Index of a head's bias for this distance in the table. */
static int64_t bias_at(const Problem *p, int64_t h, int64_t distance)
{
    int64_t most = p->bidirectional ? p->bias / 2 : p->bias - 1, least = p->bidirectional ? -most : 0;
    return ((distance < least ? least : distance > most ? most : distance) - least) * p->heads + h;
}

static void exact_row(const Exact *e, double scale, int64_t b, int64_t t, int64_t h)
{
    const Problem *p = e->p;
    int64_t first = t, end = t + 1, g = h / (p->heads / p->kv_heads), row = at(p, p->heads, b, t, h), v_row = v_at(p, p->heads, b, t, h);
    double *w = doubles(p->len), *slope = doubles(p->len), most = p->sinks ? e->sinks[h] : -INFINITY, total = 0, delta = 0;
    while (first > 0 && attends(e, b, t, first - 1)) first--;
    while (end < p->len && attends(e, b, t, end)) end++;
    for (int64_t j = first; j < end; j++) {
        for (int64_t d = 0; d < p->dim; d++) w[j] += e->q[row + d] * e->k[at(p, p->kv_heads, b, j, g) + d] * scale;
        slope[j] = 1 - (p->softcap > 0 ? pow(tanh(w[j] / p->softcap), 2) : 0);
        if (p->softcap > 0) w[j] = p->softcap * tanh(w[j] / p->softcap);
        if (p->bias) w[j] += e->bias[bias_at(p, h, t - j)];
        most = fmax(most, w[j]);
    }
    for (int64_t j = first; j < end; j++) total += w[j] = exp(w[j] - most);
    if (p->sinks) total += exp(e->sinks[h] - most);
    e->lse[(b * p->heads + h) * p->len + t] = most + log(total);
    for (int64_t j = first; j < end; j++) {
        w[j] /= total;
        for (int64_t d = 0; d < v_dim_of(p); d++) e->o[v_row + d] += w[j] * e->v[v_at(p, p->kv_heads, b, j, g) + d];
    }
    for (int64_t d = 0; d < v_dim_of(p); d++) delta += e->o[v_row + d] * e->grad_o[v_row + d];
    if (p->sinks) e->dsinks[h] -= exp(e->sinks[h] - most) / total * delta;
    for (int64_t j = first; j < end; j++) {
        int64_t key = at(p, p->kv_heads, b, j, g), v_key = v_at(p, p->kv_heads, b, j, g);
        double  dp = -delta;
        for (int64_t d = 0; d < v_dim_of(p); d++) dp += e->grad_o[v_row + d] * e->v[v_key + d];
        for (int64_t d = 0; d < v_dim_of(p); d++) e->dv[v_key + d] += w[j] * e->grad_o[v_row + d];
        if (p->bias) e->dbias[bias_at(p, h, t - j)] += w[j] * dp;
        for (int64_t d = 0; d < p->dim; d++) {
            e->dq[row + d] += w[j] * dp * slope[j] * scale * e->k[key + d];
            e->dk[key + d] += w[j] * dp * slope[j] * scale * e->q[row + d];
        }
    }
    free(w), free(slope);
}

static double draw(uint64_t key, int64_t index)
{
    return (double)(float)draw_normal(key, (uint32_t)index);
}

static Exact exact_make(const Problem *p)
{
    int64_t  nq = p->batch * p->len * p->heads * p->dim, nk = p->batch * p->len * p->kv_heads * p->dim;
    int64_t  no = nq / p->dim * v_dim_of(p), nv = nk / p->dim * v_dim_of(p), biases = p->bias * p->heads;
    int32_t *doc_start = calloc((size_t)(p->batch * p->len), sizeof(int32_t));
    Exact    e = {p,
                  doubles(nq),
                  doubles(nk),
                  doubles(nv),
                  doubles(no),
                  doubles(no),
                  doubles(p->batch * p->len * p->heads),
                  doubles(nq),
                  doubles(nk),
                  doubles(nv),
                  doubles(p->heads),
                  doubles(biases + 1),
                  doubles(p->heads),
                  doubles(biases + 1),
                  doc_start};
    for (int64_t i = 0; i < nq; i++) e.q[i] = 2 * draw(1, i);
    for (int64_t i = 0; i < no; i++) e.grad_o[i] = draw(2, i);
    for (int64_t i = 0; i < nk; i++) e.k[i] = draw(3, i);
    for (int64_t i = 0; i < nv; i++) e.v[i] = draw(4, i);
    for (int64_t i = 0; i < p->heads; i++) e.sinks[i] = 2 * draw(5, i);
    for (int64_t i = 0; i < biases; i++) e.bias[i] = draw(6, i);
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t t = 0; t < p->len; t++)
            doc_start[b * p->len + t] = (int32_t)(t >= p->len - 3 ? t : (t + b) / p->doc * p->doc > b ? (t + b) / p->doc * p->doc - b : 0);
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t t = 0; t < p->len; t++)
            for (int64_t h = 0; h < p->heads; h++) exact_row(&e, 1 / sqrt((double)p->dim), b, t, h);
    return e;
}

static void exact_free(Exact *e)
{
    double *all[] = {e->q, e->k, e->v, e->grad_o, e->o, e->lse, e->dq, e->dk, e->dv, e->sinks, e->bias, e->dsinks, e->dbias};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
    free((void *)e->doc_start);
}

/* Copies `rows` dense rows of `width` doubles to columns from `offset` on of rows that have `row` floats. */
static void put_heads(float *to, int64_t row, int64_t offset, const double *from, int64_t rows, int64_t width)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < width; j++) to[i * row + offset + j] = (float)from[i * width + j];
}

static void expect_heads(const float *got, int64_t row, int64_t offset, const double *expected, int64_t rows, int64_t width,
                         const char *what)
{
    double worst = 0, largest = 0.5;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < width; j++) {
            double d = fabs((double)got[i * row + offset + j] - expected[i * width + j]);
            worst = d <= worst ? worst : isnan(d) ? INFINITY : d;
            largest = fmax(largest, fabs(expected[i * width + j]));
        }
    if (!(worst <= 3e-6 * largest)) test_fail(__FILE__, __LINE__, "%s: off by %g of %g", what, worst, largest);
}

/* Fills in q, k and v: packed into input `first`, or into inputs first, first + 1 and first + 2. */
static void put_qkv(OpCase *c, int first, const Exact *e, bool packed)
{
    const Problem *p = e->p;
    int64_t        rows = p->batch * p->len, wq = p->heads * p->dim, wk = p->kv_heads * p->dim, row = wq + 2 * wk;
    if (packed) {
        put_heads((float *)c->in[first].data, row, 0, e->q, rows, wq);
        put_heads((float *)c->in[first].data, row, wq, e->k, rows, wk);
        put_heads((float *)c->in[first].data, row, wq + wk, e->v, rows, wk);
        return;
    }
    put_heads((float *)c->in[first].data, wq, 0, e->q, rows, wq);
    put_heads((float *)c->in[first + 1].data, wk, 0, e->k, rows, wk);
    put_heads((float *)c->in[first + 2].data, p->kv_heads * v_dim_of(p), 0, e->v, rows, p->kv_heads * v_dim_of(p));
}

/* Sets the types of the inputs sinks and bias, if the problem has them. */
static void score_types(const Problem *p, TensorType types[2])
{
    if (p->sinks) types[0] = type_make(DT_F32, 1, p->heads);
    if (p->bias) types[1] = type_make(DT_F32, 2, p->bias, p->heads);
}

static void put_scores(OpCase *c, int first, const Exact *e)
{
    const Problem *p = e->p;
    if (p->sinks) put_heads((float *)c->in[first].data, p->heads, 0, e->sinks, 1, p->heads);
    if (p->bias) put_heads((float *)c->in[first + 1].data, p->heads, 0, e->bias, p->bias, p->heads);
}

static void qkv_types(const Problem *p, bool packed, TensorType types[3])
{
    TensorType none = {0};
    types[0] = packed ? type_make(DT_F32, 3, p->batch, p->len, (p->heads + 2 * p->kv_heads) * p->dim)
                      : type_make(DT_F32, 4, p->batch, p->len, p->heads, p->dim);
    types[1] = types[2] = packed ? none : type_make(DT_F32, 4, p->batch, p->len, p->kv_heads, p->dim);
    if (!packed) types[2].dim[3] = v_dim_of(p);
}

static AttentionAttrs attrs_of(const Problem *p)
{
    return (AttentionAttrs){.num_heads = p->heads,
                            .num_kv_heads = p->kv_heads,
                            .head_dim = p->dim,
                            .window = p->window,
                            .softcap = p->softcap,
                            .bidirectional = p->bidirectional};
}

static void check_forward(const Exact *e, bool packed, const char *what)
{
    const Problem *p = e->p;
    AttentionAttrs attrs = attrs_of(p);
    TensorType     in[NODE_MAX_IN] = {0};
    OpCase         c;
    qkv_types(p, packed, in);
    in[3] = type_make(DT_I32, 2, p->batch, p->len);
    score_types(p, in + 4);
    EXPECT_OK(op_case_make(&c, &op_attention, &attrs, in));
    put_qkv(&c, 0, e, packed);
    put_scores(&c, 4, e);
    memcpy(c.in[3].data, e->doc_start, c.in[3].bytes);
    EXPECT_OK(op_case_run(&c, &op_attention.cpu[0], 1, what));
    int64_t rows = p->batch * p->len, width = p->heads * v_dim_of(p);
    expect_heads((float *)c.out[0].data, width, 0, e->o, rows, width, what);
    expect_heads((float *)c.out[1].data, p->len, 0, e->lse, p->batch * p->heads, p->len, what);
    op_case_free(&c);
}

static void check_backward(const Exact *e, bool packed, const char *what)
{
    const Problem *p = e->p;
    AttentionAttrs attrs = attrs_of(p);
    TensorType     in[NODE_MAX_IN] = {0}, o = type_make(DT_F32, 4, p->batch, p->len, p->heads, v_dim_of(p));
    int64_t        rows = p->batch * p->len, wq = p->heads * p->dim, wk = p->kv_heads * p->dim, row = wq + 2 * wk;
    int64_t        wo = p->heads * v_dim_of(p), wv = p->kv_heads * v_dim_of(p);
    OpCase         c;
    qkv_types(p, packed, in + 1);
    in[0] = in[4] = o;
    in[5] = type_make(DT_F32, 3, p->batch, p->heads, p->len);
    in[6] = type_make(DT_I32, 2, p->batch, p->len);
    score_types(p, in + 8);
    EXPECT_OK(op_case_make(&c, &op_attention_bwd, &attrs, in));
    put_qkv(&c, 1, e, packed);
    put_scores(&c, 8, e);
    put_heads((float *)c.in[0].data, wo, 0, e->grad_o, rows, wo);
    put_heads((float *)c.in[4].data, wo, 0, e->o, rows, wo);
    put_heads((float *)c.in[5].data, p->len, 0, e->lse, p->batch * p->heads, p->len);
    memcpy(c.in[6].data, e->doc_start, c.in[6].bytes);
    EXPECT_OK(op_case_run(&c, &op_attention_bwd.cpu[0], 1, what));
    const float *dq = (float *)c.out[0].data, *dk = packed ? dq : (float *)c.out[1].data, *dv = packed ? dq : (float *)c.out[2].data;
    expect_heads(dq, packed ? row : wq, 0, e->dq, rows, wq, what);
    expect_heads(dk, packed ? row : wk, packed ? wq : 0, e->dk, rows, wk, what);
    expect_heads(dv, packed ? row : wv, packed ? wq + wk : 0, e->dv, rows, wv, what);
    if (p->sinks) expect_heads((float *)c.out[3].data, p->heads, 0, e->dsinks, 1, p->heads, what);
    if (p->bias) expect_heads((float *)c.out[4].data, p->heads, 0, e->dbias, p->bias, p->heads, what);
    op_case_free(&c);
}

static void forward_and_backward_match_the_definition(void)
{
    for (int i = 0; i < NUM_PROBLEMS; i++) {
        Exact e = exact_make(&problems[i]);
        for (int packed = 0; packed < (is_packable(&problems[i]) ? 2 : 1); packed++) {
            char what[64];
            snprintf(what, sizeof what, "problem %d%s", i, packed ? ", packed" : "");
            check_forward(&e, packed, what);
            check_backward(&e, packed, what);
        }
        exact_free(&e);
    }
}

/* Scores are in the thousands, but only differences of scores are exponentiated, so nothing overflows. */
static void large_scores_stay_finite(void)
{
    const Problem  p = {1, 140, 1, 1, 4, 1000, .window = 0};
    AttentionAttrs attrs = attrs_of(&p);
    TensorType     in[NODE_MAX_IN] = {0};
    OpCase         c;
    qkv_types(&p, false, in);
    in[3] = type_make(DT_I32, 2, p.batch, p.len);
    EXPECT_OK(op_case_make(&c, &op_attention, &attrs, in));
    for (int k = 0; k < 3; k++)
        for (int64_t i = 0; i < p.len * p.dim; i++) ((float *)c.in[k].data)[i] = k == 2 ? 1.0f : (float)(i / p.dim);
    memset(c.in[3].data, 0, c.in[3].bytes);
    EXPECT_OK(op_case_run(&c, &op_attention.cpu[0], 1, "large scores"));
    for (int64_t i = 0; i < p.len * p.dim; i++) EXPECT_NEAR(((float *)c.out[0].data)[i], 1, 1e-5);
    EXPECT_NEAR(((float *)c.out[1].data)[139], 139.0 * 139 * 4 / 2, 0.01);
    op_case_free(&c);
}

enum { PAGE_LEN = 16, ROW_PAGES = 20 };

/* Page number i of row b. The rows' pages alternate, from the last page down; page 0 belongs to no row. */
static int32_t page_of(int64_t batch, int64_t b, int64_t i)
{
    return (int32_t)(batch * ROW_PAGES - i * batch - b);
}

/* One run of attention_cached over tokens [position, position + len) of the problem; kc and vc are updated. */
static void cached_run(const Exact *e, int64_t position, int64_t len, float *kc, float *vc, bool packed, float *o)
{
    const Problem *p = e->p;
    Problem        part = *p;
    AttentionAttrs attrs = attrs_of(p);
    TensorType     in[NODE_MAX_IN] = {0};
    OpCase         c;
    int64_t        wq = p->heads * p->dim, wk = p->kv_heads * p->dim, wv = p->kv_heads * v_dim_of(p), wo = p->heads * v_dim_of(p);
    Exact          piece = {.p = &part,
                            .q = doubles(p->batch * len * wq),
                            .k = doubles(p->batch * len * wk),
                            .v = doubles(p->batch * len * wv),
                            .sinks = e->sinks,
                            .bias = e->bias};
    part.len = len;
    for (int64_t b = 0; b < p->batch; b++) {
        memcpy(piece.q + b * len * wq, e->q + (b * p->len + position) * wq, (size_t)(len * wq) * sizeof(double));
        memcpy(piece.k + b * len * wk, e->k + (b * p->len + position) * wk, (size_t)(len * wk) * sizeof(double));
        memcpy(piece.v + b * len * wv, e->v + (b * p->len + position) * wv, (size_t)(len * wv) * sizeof(double));
    }
    qkv_types(&part, packed, in);
    in[3] = in[4] = type_make(DT_F32, 4, 1 + p->batch * ROW_PAGES, (int64_t)PAGE_LEN, p->kv_heads, p->dim);
    in[4].dim[3] = v_dim_of(p);
    score_types(p, in + 7);
    in[5] = type_make(DT_I32, 1, p->batch);
    in[6] = type_make(DT_I32, 2, p->batch, (int64_t)ROW_PAGES);
    EXPECT_OK(op_case_make(&c, &op_attention_cached, &attrs, in));
    put_qkv(&c, 0, &piece, packed);
    put_scores(&c, 7, &piece);
    memcpy(c.in[3].data, kc, c.in[3].bytes);
    memcpy(c.in[4].data, vc, c.in[4].bytes);
    for (int64_t b = 0; b < p->batch; b++) {
        ((int32_t *)c.in[5].data)[b] = (int32_t)position;
        for (int64_t i = 0; i < ROW_PAGES; i++) ((int32_t *)c.in[6].data)[b * ROW_PAGES + i] = page_of(p->batch, b, i);
    }
    EXPECT_OK(op_case_run(&c, &op_attention_cached.cpu[0], 1, "cached"));
    memcpy(kc, c.out[1].data, c.out[1].bytes);
    memcpy(vc, c.out[2].data, c.out[2].bytes);
    for (int64_t b = 0; b < p->batch; b++)
        memcpy(o + (b * p->len + position) * wo, (float *)c.out[0].data + b * len * wo, (size_t)(len * wo) * sizeof(float));
    op_case_free(&c);
    free(piece.q), free(piece.k), free(piece.v);
}

/* ---- a cache in FP8 ---- */

enum { F_ROWS = 2, F_LEN = 5, F_PAGES = 7, F_HELD = 3, F_HEADS = 4, F_GROUPS = 2, F_DIM = 24 };

static float drawn(int64_t i)
{
    float unit = (float)((uint32_t)i * 2654435761u >> 8) / 8388608.0f - 1;
    return i % 97 ? ldexpf(unit, (int)(i % 5) - 3) : 3000 * unit; /* some beyond the format's range */
}

/* Runs attention_cached with queries in dtype q. The new keys and values are the drawn ones or, if `rounded`, rounded to e4m3. */
static OpCase over_cache(DType q, DType cache, bool rounded)
{
    static const AttentionAttrs attrs = {.num_heads = F_HEADS, .num_kv_heads = F_GROUPS, .head_dim = F_DIM};
    static const int32_t        starts[F_ROWS] = {40, 7}, pages[F_ROWS * F_HELD] = {5, 2, 6, 1, 4, 3};
    TensorType                  page = type_make(cache, 4, (int64_t)F_PAGES, (int64_t)PAGE_LEN, (int64_t)F_GROUPS, (int64_t)F_DIM);
    TensorType                  key = type_make(q, 4, (int64_t)F_ROWS, (int64_t)F_LEN, (int64_t)F_GROUPS, (int64_t)F_DIM), query = key;
    OpCase                      c;
    query.dim[2] = F_HEADS;
    TensorType types[NODE_MAX_IN] = {
        query, key, key, page, page, type_make(DT_I32, 1, (int64_t)F_ROWS), type_make(DT_I32, 2, (int64_t)F_ROWS, (int64_t)F_HELD)};
    EXPECT_OK(op_case_make(&c, &op_attention_cached, &attrs, types));
    for (int k = 0; k < 5; k++) {
        int64_t numel = type_numel(&types[k]);
        float  *values = calloc((size_t)numel, sizeof *values);
        char   *codes = calloc((size_t)numel, 1);
        for (int64_t i = 0; i < numel; i++) values[i] = bf16_to_f32(bf16_from_f32(k ? drawn(i + 1000 * k) : 0.1f * drawn(i)));
        if (k > 2 || (k && rounded)) {
            dtype_encode(DT_E4M3, values, numel, codes);
            dtype_decode(DT_E4M3, codes, numel, values);
        }
        dtype_encode(types[k].dtype, values, numel, c.in[k].data);
        free(values), free(codes);
    }
    memcpy(c.in[5].data, starts, sizeof starts);
    memcpy(c.in[6].data, pages, sizeof pages);
    EXPECT_OK(op_case_run(&c, &op_attention_cached.cpu[0], 1, "cached"));
    return c;
}

/* Attention over a cache in e4m3 has the same bits as over numbers rounded to e4m3, and so have the appended keys and values. */
static void a_cache_in_fp8_is_that_of_rounded_numbers(void)
{
    static const DType dtypes[] = {DT_F32, DT_BF16};
    for (int i = 0; i < 2; i++) {
        OpCase codes = over_cache(dtypes[i], DT_E4M3, false), numbers = over_cache(dtypes[i], DT_F32, true);
        EXPECT(memcmp(codes.out[0].data, numbers.out[0].data, codes.out[0].bytes) == 0);
        for (int k = 1; k < 3; k++) {
            const float *kept = (const float *)(void *)numbers.out[k].data;
            float       *decoded = calloc(codes.out[k].bytes, sizeof *decoded);
            dtype_decode(DT_E4M3, codes.out[k].data, (int64_t)codes.out[k].bytes, decoded);
            EXPECT(memcmp(decoded, kept, numbers.out[k].bytes) == 0);
            free(decoded);
        }
        op_case_free(&codes);
        op_case_free(&numbers);
    }
}

static void fill_in_pieces(Problem p)
{
    const int64_t pieces[] = {70, 1, 1, 64, 13, 1};
    Exact         e = exact_make(&p);
    memset((void *)e.doc_start, 0, (size_t)(p.batch * p.len) * sizeof(int32_t));
    memset(e.o, 0, (size_t)(p.batch * p.len * p.heads * v_dim_of(&p)) * sizeof(double));
    for (int64_t b = 0; b < p.batch; b++)
        for (int64_t t = 0; t < p.len; t++)
            for (int64_t h = 0; h < p.heads; h++) exact_row(&e, 0.25, b, t, h);
    for (int packed = 0; packed < (is_packable(&p) ? 2 : 1); packed++) {
        int64_t rows = (1 + p.batch * ROW_PAGES) * PAGE_LEN * p.kv_heads, width = p.heads * v_dim_of(&p), position = 0;
        float  *kc = calloc((size_t)(rows * p.dim), 4), *vc = calloc((size_t)(rows * v_dim_of(&p)), 4);
        float  *o = calloc((size_t)(p.batch * p.len * width), 4);
        for (int64_t i = 0; i < rows * p.dim; i++) kc[i] = NAN; /* what isn't written yet is never read */
        for (int64_t i = 0; i < rows * v_dim_of(&p); i++) vc[i] = NAN;
        for (size_t i = 0; i < sizeof pieces / sizeof pieces[0]; position += pieces[i++])
            cached_run(&e, position, pieces[i], kc, vc, packed, o);
        EXPECT_INT(position, p.len);
        expect_heads(o, width, 0, e.o, p.batch * p.len, width, "cached");
        free(kc), free(vc), free(o);
    }
    exact_free(&e);
}

static void cache_filled_in_pieces_equals_attention_at_once(void)
{
    static const Problem cached[] = {
        {2, 150, 4, 2, 16, 1000, .window = 0},
        {2, 150, 4, 2, 16, 1000, .window = 1},
        {2, 150, 4, 2, 16, 1000, .window = 66},
        {2, 150, 4, 2, 16, 1000, .window = 20, .softcap = 3},
        {2, 150, 4, 2, 16, 1000, .window = 20, .sinks = true},
        {2, 150, 4, 2, 16, 1000, .softcap = 3, .bias = 40},
        {2, 150, 4, 2, 16, 1000, .window = 0, .v_dim = 8},
        {2, 150, 4, 2, 16, 1000, .window = 66, .sinks = true, .bias = 200, .v_dim = 24},
    };
    for (size_t i = 0; i < sizeof cached / sizeof cached[0]; i++) fill_in_pieces(cached[i]);
}

/* Runs tokens [start, start + len) of one row over caches of a dtype that hold the tokens before them; o (len, H D). */
static void row_run(const AttentionAttrs *attrs, DType dtype, const float *qkv, int64_t start, int64_t len, int64_t last_page, float *o)
{
    const int64_t    wq = attrs->num_heads * attrs->head_dim, wk = attrs->num_kv_heads * attrs->head_dim, width = wq + 2 * wk;
    const TensorType cache = type_make(dtype, 4, (int64_t)30, (int64_t)PAGE_LEN, attrs->num_kv_heads, attrs->head_dim);
    TensorType       in[NODE_MAX_IN] = {0};
    OpCase           c;
    in[0] = type_make(DT_F32, 3, (int64_t)1, len, width);
    in[3] = in[4] = cache;
    in[5] = type_make(DT_I32, 1, (int64_t)1);
    in[6] = type_make(DT_I32, 2, (int64_t)1, (int64_t)ROW_PAGES);
    EXPECT_OK(op_case_make(&c, &op_attention_cached, attrs, in));
    memcpy(c.in[0].data, qkv + start * width, c.in[0].bytes);
    for (int64_t i = 0; i < ROW_PAGES; i++) ((int32_t *)c.in[6].data)[i] = (int32_t)(last_page - i);
    *(int32_t *)c.in[5].data = (int32_t)start;
    for (int64_t t = 0; t < start; t++)
        for (int k = 0; k < 2; k++) {
            int64_t to = ((last_page - t / PAGE_LEN) * PAGE_LEN + t % PAGE_LEN) * wk;
            dtype_encode(dtype, qkv + t * width + wq + k * wk, wk, (char *)c.in[3 + k].data + dtype_bytes(dtype, to));
        }
    EXPECT_OK(op_case_run(&c, &op_attention_cached.cpu[0], 1, "row"));
    memcpy(o, c.out[0].data, c.out[0].bytes);
    op_case_free(&c);
}

/* A single token takes another path than several tokens; both paths give the same bits. */
static void a_token_has_the_same_bits_alone_and_in_any_run(void)
{
    enum { LEN = 310 };
    static const AttentionAttrs kinds[] = {
        {.num_heads = 4, .num_kv_heads = 2, .head_dim = 16, .window = 50},
        {.num_heads = 7, .num_kv_heads = 1, .head_dim = 20, .softcap = 0.7},
        {.num_heads = 3, .num_kv_heads = 3, .head_dim = 6, .scale = -0.3},
        {.num_heads = 6, .num_kv_heads = 2, .head_dim = 40, .window = 150},
        {.num_heads = 2, .num_kv_heads = 1, .head_dim = 128},
        {.num_heads = 2, .num_kv_heads = 2, .head_dim = 104},
        {.num_heads = 4, .num_kv_heads = 1, .head_dim = 72},
    };
    static const DType dtypes[] = {DT_F32, DT_BF16, DT_F16};
    const int64_t      runs[][2] = {{309, 1}, {149, 1}, {144, 1}, {143, 1}, {0, 1}, {64, 1}, {63, 2}, {17, 40}, {100, 50}, {128, 20}};
    for (size_t k = 0; k < 3 * (sizeof kinds / sizeof kinds[0]); k++) {
        const AttentionAttrs *attrs = &kinds[k / 3];
        DType                 dtype = dtypes[k % 3];
        int64_t               out = attrs->num_heads * attrs->head_dim, width = out + 2 * attrs->num_kv_heads * attrs->head_dim;
        float *qkv = calloc((size_t)(LEN * width), 4), *whole = calloc((size_t)(LEN * out), 4), *part = calloc((size_t)(LEN * out), 4);
        for (int64_t i = 0; i < LEN * width; i++) qkv[i] = (float)(i * 7919 % 1013) / 500 - 1;
        row_run(attrs, dtype, qkv, 0, LEN, 29, whole);
        for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
            row_run(attrs, dtype, qkv, runs[i][0], runs[i][1], 21, part);
            EXPECT_INT(memcmp(part, whole + runs[i][0] * out, sizeof(float) * (size_t)(runs[i][1] * out)), 0);
        }
        free(qkv), free(whole), free(part);
    }
}

static void positions_outside_the_cache_are_refused(void)
{
    const Problem  p = {1, 3, 1, 1, 4, 1000, .window = 0};
    const int32_t  bad[] = {-1, 6, 1000000, INT32_MAX};
    AttentionAttrs attrs = attrs_of(&p);
    TensorType     in[NODE_MAX_IN] = {0};
    OpCase         c;
    qkv_types(&p, false, in);
    in[3] = in[4] = type_make(DT_F32, 4, (int64_t)3, (int64_t)4, (int64_t)1, (int64_t)4);
    in[5] = type_make(DT_I32, 1, (int64_t)1);
    in[6] = type_make(DT_I32, 2, (int64_t)1, (int64_t)2);
    EXPECT_OK(op_case_make(&c, &op_attention_cached, &attrs, in));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        for (int k = 0; k < 7; k++) memset(c.in[k].data, 0, c.in[k].bytes);
        *(int32_t *)c.in[5].data = bad[i];
        EXPECT_FAILS(op_case_run(&c, &op_attention_cached.cpu[0], 1, "outside"), ERR_INVALID,
                     "outside its 8 positions of the key/value cache");
        *(int32_t *)c.in[5].data = 0;
        ((int32_t *)c.in[6].data)[1] = i % 2 ? 3 + (int32_t)i : -1;
        EXPECT_FAILS(op_case_run(&c, &op_attention_cached.cpu[0], 1, "no page"), ERR_INVALID, "the key/value cache has 3 pages");
    }
    op_case_free(&c);
}

static void documents_that_begin_later_are_refused(void)
{
    static const AttentionAttrs attrs = {.num_heads = 1, .num_kv_heads = 1, .head_dim = 4};
    const TensorType            packed = type_make(DT_F32, 3, (int64_t)2, (int64_t)3, (int64_t)12);
    const TensorType            o = type_make(DT_F32, 4, (int64_t)2, (int64_t)3, (int64_t)1, (int64_t)4);
    const TensorType            lse = type_make(DT_F32, 3, (int64_t)2, (int64_t)1, (int64_t)3);
    const TensorType            starts = type_make(DT_I32, 2, (int64_t)2, (int64_t)3), none = {0};
    const TensorType            forward[NODE_MAX_IN] = {packed, none, none, starts};
    const TensorType            backward[NODE_MAX_IN] = {o, packed, none, none, o, lse, starts};
    for (int i = 0; i < 2; i++) {
        const OpDef *op = i ? &op_attention_bwd : &op_attention;
        OpCase       c;
        EXPECT_OK(op_case_make(&c, op, &attrs, i ? backward : forward));
        OpData *at = &c.in[i ? 6 : 3];
        memset(at->data, 0, at->bytes);
        EXPECT_OK(op_case_run(&c, &op->cpu[0], 1, "inside"));
        ((int32_t *)at->data)[4] = 2;
        EXPECT_FAILS(op_case_run(&c, &op->cpu[0], 1, "outside"), ERR_INVALID, "doc_start of row 1, position 1 is 2");
        op_case_free(&c);
    }
}

static void wrong_attributes_are_refused(void)
{
    const Problem wrong[] = {{1, 3, 1, 1, 4, 1000, .window = -1},
                             {1, 3, 1, 1, 4, 1000, .softcap = -2},
                             {1, 3, 1, 1, 4, 1000, .softcap = NAN},
                             {1, 3, 1, 1, 4, 1000, .bidirectional = true, .bias = 4}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        AttentionAttrs attrs = attrs_of(&wrong[i]);
        TensorType     in[NODE_MAX_IN] = {0};
        OpCase         c;
        qkv_types(&wrong[i], false, in);
        in[3] = type_make(DT_I32, 2, (int64_t)1, (int64_t)3);
        score_types(&wrong[i], in + 4);
        EXPECT_FAILS(op_case_make(&c, &op_attention, &attrs, in), ERR_INVALID, wrong[i].bias ? "bias has 4 rows" : "attributes window");
        op_case_free(&c);
    }
}

/* Bytes of attention_bwd's workspace on a GPU, with Qwen3-8B's heads; dense: each row is one document, else rows are packed. */
static int64_t backward_bytes(int64_t batch, int64_t len, bool dense, int sm)
{
    AttentionAttrs attrs = {.num_heads = 32, .num_kv_heads = 8, .head_dim = 128, .dense = dense};
    TensorType     o = type_make(DT_BF16, 4, batch, len, INT64_C(32), INT64_C(128)), qkv = type_make(DT_BF16, 3, batch, len, INT64_C(6144));
    TensorType     in[NODE_MAX_IN] = {o, qkv, {0}, {0}, o, type_make(DT_F32, 3, batch, INT64_C(32), len), type_make(DT_I32, 2, batch, len)};
    Arena          arena = {0};
    Node          *node;
    Graph         *graph = graph_create(&arena, "case", op_table, OP_COUNT);
    Value         *values[NODE_MAX_IN] = {0};
    for (int i = 0; i < 7; i++)
        if (in[i].ndim) values[i] = graph_add_value(graph, VALUE_INPUT, arena_printf(&arena, "in%d", i), &in[i]);
    EXPECT_OK(graph_add_node(graph, &op_attention_bwd, &attrs, "d", values, 7, ~0u, &node));
    int64_t bytes = (int64_t)op_attention_bwd.gpu_workspace(node, sm);
    arena_deinit(&arena);
    return bytes;
}

/* cuDNN's backward holds a score for each pair of a row's tokens: it is used only while these scores take little memory. */
static void scores_of_long_rows_are_not_held(void)
{
    const int     sms[] = {80, 86, 89, 90, 100, 120};
    const int64_t gib = INT64_C(1) << 30;
    for (size_t i = 0; i < sizeof sms / sizeof sms[0]; i++) {
        EXPECT_INT(backward_bytes(1, 32768, true, sms[i]), backward_bytes(1, 32768, false, sms[i]));
        EXPECT_INT(backward_bytes(1, 131072, true, sms[i]), backward_bytes(1, 131072, false, sms[i]));
        EXPECT_INT(backward_bytes(32, 3968, true, sms[i]), backward_bytes(32, 3968, false, sms[i]));
        int64_t held = backward_bytes(16, 2048, true, sms[i]);
        EXPECT(held > 4 * gib && held < 5 * gib);
    }
}

TEST_MAIN(TEST(wrong_attributes_are_refused), TEST(scores_of_long_rows_are_not_held), TEST(forward_and_backward_match_the_definition),
          TEST(large_scores_stay_finite), TEST(cache_filled_in_pieces_equals_attention_at_once),
          TEST(a_cache_in_fp8_is_that_of_rounded_numbers), TEST(a_token_has_the_same_bits_alone_and_in_any_run),
          TEST(positions_outside_the_cache_are_refused), TEST(documents_that_begin_later_are_refused))
