/* Attention for rows of one query. The panels of attention.c would waste all but one column of each product. Here a vector lane is a key
 * while scores are made (rows of keys are transposed in registers), and an element of a value while values are added up. The bits are those
 * of attention.c, as each step is the same: a score is one chain of multiply-adds over its elements, then scaled; exponentials of a block
 * of keys are added in order; values of a block are one chain over its keys, which is added to the sum so far. */
#include "ops/attention/attention_few.h"

#include "device/cpu/turn16.h"
#include "device/cpu/turn8.h"
#include "ops/vec.h"

#include <float.h>
#include <immintrin.h>

enum {
    MOST_QUERIES = 4, /* heads of a group that are computed at once */
    KEYS = 16,        /* keys whose scores are computed at once */
    LINE = 64,        /* bytes of a cache line */
    PAIRED = 32,      /* elements of bf16 in a register of AVX-512 */
    BLOCK = ATTENTION_BLOCK_K,
};

typedef struct FewJob {
    const Attention *a;
    float           *scratch;
    int64_t          heads, parts; /* heads: query heads of a task; parts: tasks into which a group is divided */
    int64_t          tasks;
} FewJob;

/* The queries of a task in f32, and their state so far. */
typedef struct FewState {
    int64_t count, dim, v_dim;
    float  *q, *sum;      /* (count, D) and (count, E); count is rounded up to a multiple of MOST_QUERIES */
    float  *most, *total; /* per query: the largest score and the sum of exponentials so far */
    float  *score;        /* (MOST_QUERIES, BLOCK) */
    float  *k, *v;        /* (BLOCK, D) and (BLOCK, E), decoded, if the cache is e4m3 */
} FewState;

static int64_t most_heads(const Attention *a)
{
    return div_up(a->group, MOST_QUERIES) * MOST_QUERIES;
}

static int64_t few_floats(const Attention *a)
{
    return div_up(most_heads(a) * (a->dim + a->v_dim + 2) + BLOCK * (MOST_QUERIES + a->dim + a->v_dim), 16) * 16;
}

bool attention_by_few(const Attention *a)
{
    return a->len == 1 && !a->bias.type.ndim;
}

size_t attention_few_workspace(const Attention *a, int num_workers)
{
    return (size_t)(num_workers * few_floats(a)) * sizeof(float);
}

static FewState few_start(const Attention *a, int64_t b, int64_t head, int64_t count, float *scratch)
{
    int64_t  most = most_heads(a);
    FewState s = {.count = count, .dim = a->dim, .v_dim = a->v_dim, .q = scratch};
    s.sum = s.q + most * a->dim, s.most = s.sum + most * a->v_dim, s.total = s.most + most;
    s.score = s.total + most, s.k = s.score + MOST_QUERIES * BLOCK, s.v = s.k + BLOCK * a->dim;
    memset(s.q, 0, (size_t)(most * (a->dim + a->v_dim)) * sizeof(float));
    for (int64_t i = 0; i < count; i++) dtype_decode(a->q.dtype, heads_at(&a->q, b, 0, head + i), a->dim, s.q + i * a->dim);
    for (int64_t i = 0; i < most; i++) s.most[i] = -FLT_MAX, s.total[i] = 0; /* finite, so that a difference from it is never NaN */
    return s;
}

/* The addresses of a block's rows of keys, or of values. */
typedef struct FewRows {
    int64_t     count; /* 0 or less: no rows */
    const void *at[BLOCK];
} FewRows;

/* Finds the rows of keys [key, end), but only to the end of key's block. */
static void find_rows(const Heads *heads, int64_t b, int64_t key, int64_t end, int64_t g, FewRows *out)
{
    int64_t step = dtype_bytes(heads->dtype, heads->token_stride);
    out->count = min_i64(end, (key / BLOCK + 1) * BLOCK) - key;
    for (int64_t j = 0, after; j < out->count; j = after) {
        const char *row = heads_at(heads, b, key + j, g);
        after = heads->pages ? min_i64(out->count, j + heads->page_len - (key + j) % heads->page_len) : out->count;
        for (int64_t i = j; i < after; i++) out->at[i] = row + (i - j) * step;
    }
}

/* Prefetches KEYS rows from `from` on into the L2 cache. Rows of one head are far apart in a KV cache, so the hardware prefetcher
 * doesn't. */
static void fetch_rows(const Heads *heads, const FewRows *rows, int64_t from)
{
    int64_t bytes = dtype_bytes(heads->dtype, heads->dim);
    for (int64_t j = from; j < min_i64(rows->count, from + KEYS); j++)
        for (int64_t i = 0; i < bytes; i += LINE) __builtin_prefetch((const char *)rows->at[j] + i, 0, 2);
}

/* Prepares rows for the kernels: decodes e4m3 into `scratch`, and repeats the last row up to a multiple of KEYS. */
static void ready_rows(const Heads *heads, float *scratch, FewRows *rows)
{
    for (int64_t j = 0; j < rows->count && heads->dtype == DT_E4M3; j++) {
        dtype_decode(DT_E4M3, rows->at[j], heads->dim, scratch + j * heads->dim);
        rows->at[j] = scratch + j * heads->dim;
    }
    for (int64_t j = rows->count; j < div_up(rows->count, KEYS) * KEYS; j++) rows->at[j] = rows->at[rows->count - 1];
}

/* Adds to sums[i] the products of query i with 8 keys, one key a lane, over elements [d, d + n). */
VEC_ROW void add_products(DType dtype, const int queries, const void *const rows[8], int64_t d, int64_t n, const float *q, int64_t dim,
                          Vec8 sums[MOST_QUERIES])
{
    __m256 x[8];
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) x[j] = (__m256)vec8_some(dtype, rows[j], d, n);
    turn8(x);
#pragma GCC unroll 8
    for (int l = 0; l < n; l++)
#pragma GCC unroll 4
        for (int i = 0; i < queries; i++) sums[i] = vec8_fma((Vec8)x[l], vec8_all(q[i * dim + d + l]), sums[i]);
}

/* Computes the scores of KEYS keys. Each query has a row of KEYS scores; rows are BLOCK floats apart. */
VEC_ROW void make_scores(DType dtype, const int queries, const void *const rows[KEYS], int64_t dim, const float *q, float scale,
                         float *score)
{
    Vec8    sums[2][MOST_QUERIES] = {0};
    int64_t d = 0;
    for (; d + 8 <= dim; d += 8)
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) add_products(dtype, queries, rows + 8 * half, d, 8, q, dim, sums[half]);
    for (int half = 0; half < 2 && d < dim; half++) add_products(dtype, queries, rows + 8 * half, d, dim - d, q, dim, sums[half]);
    for (int half = 0; half < 2; half++)
        for (int i = 0; i < queries; i++) {
            Vec8 scaled = sums[half][i] * vec8_all(scale);
            memcpy(score + i * BLOCK + 8 * half, &scaled, sizeof scaled);
        }
}

/* Adds to `sum` elements [d, d + 8 vectors) of the values, weighted by their keys' exponentials. */
VEC_ROW void add_columns(DType dtype, const int queries, const int vectors, const void *const *rows, int64_t keys, int64_t d, int64_t n,
                         int64_t dim, const float *exps, float *sum)
{
    Vec8 sums[MOST_QUERIES][4] = {0}, x[4];
    for (int64_t j = 0; j < keys; j++) {
#pragma GCC unroll 4
        for (int k = 0; k < vectors; k++) x[k] = vec8_held(vec8_some(dtype, rows[j], d + 8 * k, n));
#pragma GCC unroll 4
        for (int i = 0; i < queries; i++) {
            Vec8 weight = vec8_all(exps[i * BLOCK + j]);
#pragma GCC unroll 4
            for (int k = 0; k < vectors; k++) sums[i][k] = vec8_fma(x[k], weight, sums[i][k]);
        }
    }
    for (int i = 0; i < queries; i++)
        for (int k = 0; k < vectors; k++) {
            float *to = sum + i * dim + d + 8 * k;
            vec8_set(DT_F32, to, 0, n, sums[i][k] + vec8_some(DT_F32, to, 0, n));
        }
}

/* Adds whole values, 8 * `vectors` elements at a time: registers can hold the sums of that many. */
VEC_ROW void add_values(DType dtype, const int queries, const int vectors, const void *const *rows, int64_t keys, int64_t dim,
                        const float *exps, float *sum)
{
    int64_t d = 0;
    for (; d + 8 * vectors <= dim; d += 8 * vectors) add_columns(dtype, queries, vectors, rows, keys, d, 8, dim, exps, sum);
    for (; d < dim; d += 8) add_columns(dtype, queries, 1, rows, keys, d, min_i64(8, dim - d), dim, exps, sum);
}

/* Scores of KEYS keys in bf16: adds to sums[i] the products of query i with the keys, one key a lane, over elements [d, d + n). A word
 * holds two neighbouring elements of a key. */
VEC_WIDE_ROW void add_pairs(const int queries, const void *const rows[KEYS], int64_t d, int64_t n, const float *q, int64_t dim,
                            __m512 sums[MOST_QUERIES])
{
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000);
    __mmask32     there = n == PAIRED ? UINT32_MAX : (1u << n) - 1;
    __m512i       x[TURN16];
#pragma GCC unroll 16
    for (int j = 0; j < KEYS; j++) x[j] = _mm512_maskz_loadu_epi16(there, (const uint16_t *)rows[j] + d);
    turn16(x);
#pragma GCC unroll 16
    for (int p = 0; p < TURN16; p++) {
        __m512 pair[2] = {_mm512_castsi512_ps(_mm512_slli_epi32(x[p], 16)), _mm512_castsi512_ps(_mm512_and_si512(x[p], upper))};
#pragma GCC unroll 2
        for (int l = 0; l < 2; l++) {
            if (2 * p + l >= n) break;
#pragma GCC unroll 4
            for (int i = 0; i < queries; i++) sums[i] = _mm512_fmadd_ps(pair[l], _mm512_set1_ps(q[i * dim + d + 2 * p + l]), sums[i]);
        }
    }
}

/* As make_scores, for bf16. */
VEC_WIDE_ROW void make_scores_paired(const int queries, const void *const rows[KEYS], int64_t dim, const float *q, float scale,
                                     float *score)
{
    __m512  sums[MOST_QUERIES];
    int64_t d = 0;
#pragma GCC unroll 4
    for (int i = 0; i < queries; i++) sums[i] = _mm512_setzero_ps();
    for (; d + PAIRED <= dim; d += PAIRED) add_pairs(queries, rows, d, PAIRED, q, dim, sums);
    if (d < dim) add_pairs(queries, rows, d, dim - d, q, dim, sums);
#pragma GCC unroll 4
    for (int i = 0; i < queries; i++) _mm512_storeu_ps(score + i * BLOCK, _mm512_mul_ps(sums[i], _mm512_set1_ps(scale)));
}

/* As add_columns, for `parts` times PAIRED elements in bf16; n: elements of the last part. Even and odd elements have sums of their own. */
VEC_WIDE_ROW void add_columns_paired(const int queries, const int parts, const void *const *rows, int64_t keys, int64_t d, int64_t n,
                                     int64_t dim, const float *exps, float *sum)
{
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000);
    const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i second = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    __mmask32     there = n == PAIRED ? UINT32_MAX : (1u << n) - 1;
    __m512        even[MOST_QUERIES][4], odd[MOST_QUERIES][4];
#pragma GCC unroll 4
    for (int i = 0; i < queries; i++)
#pragma GCC unroll 4
        for (int k = 0; k < parts; k++) even[i][k] = odd[i][k] = _mm512_setzero_ps();
    for (int64_t j = 0; j < keys; j++)
#pragma GCC unroll 4
        for (int k = 0; k < parts; k++) {
            __m512i x = _mm512_maskz_loadu_epi16(there, (const uint16_t *)rows[j] + d + k * PAIRED);
            __m512  low = _mm512_castsi512_ps(_mm512_slli_epi32(x, 16)), high = _mm512_castsi512_ps(_mm512_and_si512(x, upper));
#pragma GCC unroll 4
            for (int i = 0; i < queries; i++) {
                __m512 weight = _mm512_set1_ps(exps[i * BLOCK + j]);
                even[i][k] = _mm512_fmadd_ps(low, weight, even[i][k]);
                odd[i][k] = _mm512_fmadd_ps(high, weight, odd[i][k]);
            }
        }
#pragma GCC unroll 4
    for (int i = 0; i < queries; i++)
#pragma GCC unroll 4
        for (int k = 0; k < parts; k++) {
            float    *to = sum + i * dim + d + k * PAIRED;
            __mmask16 low = (__mmask16)there, high = (__mmask16)(there >> 16);
            __m512    x = _mm512_permutex2var_ps(even[i][k], first, odd[i][k]), y = _mm512_permutex2var_ps(even[i][k], second, odd[i][k]);
            _mm512_mask_storeu_ps(to, low, _mm512_add_ps(x, _mm512_maskz_loadu_ps(low, to)));
            _mm512_mask_storeu_ps(to + 16, high, _mm512_add_ps(y, _mm512_maskz_loadu_ps(high, to + 16)));
        }
}

/* As add_values, for bf16. */
VEC_WIDE_ROW void add_values_paired(const int queries, const int parts, const void *const *rows, int64_t keys, int64_t dim,
                                    const float *exps, float *sum)
{
    int64_t d = 0;
    for (; d + PAIRED * parts <= dim; d += PAIRED * parts) add_columns_paired(queries, parts, rows, keys, d, PAIRED, dim, exps, sum);
    for (; d + PAIRED * 2 <= dim; d += PAIRED * 2) add_columns_paired(queries, 2, rows, keys, d, PAIRED, dim, exps, sum);
    for (; d + PAIRED <= dim; d += PAIRED) add_columns_paired(queries, 1, rows, keys, d, PAIRED, dim, exps, sum);
    if (d < dim) add_columns_paired(queries, 1, rows, keys, d, dim - d, dim, exps, sum);
}

/* make_scores and add_values for a dtype and a number of queries, both compile-time constants. Each instance is its own function: if all
 * were inlined into one, compilers would keep sums in memory. */
typedef struct FewKernel {
    void (*scores)(const void *const rows[KEYS], int64_t dim, const float *q, float scale, float *score);
    void (*values)(const void *const *rows, int64_t keys, int64_t dim, const float *exps, float *sum);
} FewKernel;

#define KERNEL_OF(target, name, dtype, queries, vectors) \
    target static void name##_scores(const void *const rows[KEYS], int64_t dim, const float *q, float scale, float *score) \
    { \
        make_scores(dtype, queries, rows, dim, q, scale, score); \
    } \
    target static void name##_values(const void *const *rows, int64_t keys, int64_t dim, const float *exps, float *sum) \
    { \
        add_values(dtype, queries, vectors, rows, keys, dim, exps, sum); \
    }
#define PAIRED_OF(name, queries, parts) \
    VEC_WIDE static void name##_scores(const void *const rows[KEYS], int64_t dim, const float *q, float scale, float *score) \
    { \
        make_scores_paired(queries, rows, dim, q, scale, score); \
    } \
    VEC_WIDE static void name##_values(const void *const *rows, int64_t keys, int64_t dim, const float *exps, float *sum) \
    { \
        add_values_paired(queries, parts, rows, keys, dim, exps, sum); \
    }
#define NARROW
#define KERNELS_OF(name, dtype, queries) \
    KERNEL_OF(NARROW, name##_narrow, dtype, queries, 2) \
    KERNEL_OF(VEC_WIDE, name##_wide, dtype, queries, 4)
#define KERNELS_OF_BF16(queries, parts) \
    KERNEL_OF(NARROW, bf16_##queries##_narrow, DT_BF16, queries, 2) \
    PAIRED_OF(bf16_##queries##_wide, queries, parts)
#define KERNEL_ROWS(name) \
    { \
        {name##_narrow_scores, name##_narrow_values}, \
        { \
            name##_wide_scores, name##_wide_values \
        } \
    }

KERNELS_OF(f32_1, DT_F32, 1)
KERNELS_OF(f32_2, DT_F32, 2)
KERNELS_OF(f32_4, DT_F32, 4)
KERNELS_OF_BF16(1, 4)
KERNELS_OF_BF16(2, 4)
KERNELS_OF_BF16(4, 2)
KERNELS_OF(f16_1, DT_F16, 1)
KERNELS_OF(f16_2, DT_F16, 2)
KERNELS_OF(f16_4, DT_F16, 4)

/* 3 queries run as 4; the fourth is ignored. Rows in e4m3 were decoded to f32 before. */
static const FewKernel *few_kernel(DType dtype, int64_t queries, bool wide)
{
    static const FewKernel kernels[3][3][2] = {{KERNEL_ROWS(f32_1), KERNEL_ROWS(f32_2), KERNEL_ROWS(f32_4)},
                                               {KERNEL_ROWS(bf16_1), KERNEL_ROWS(bf16_2), KERNEL_ROWS(bf16_4)},
                                               {KERNEL_ROWS(f16_1), KERNEL_ROWS(f16_2), KERNEL_ROWS(f16_4)}};
    return &kernels[dtype == DT_BF16 ? 1 : dtype == DT_F16 ? 2 : 0][min_i64(queries, 3) - 1][wide];
}

/* Turns scores into exponentials and rescales the sums so far to the new largest score. */
VEC_ROW void exponentials(const Attention *a, FewState *s, int64_t first, int64_t count, int64_t keys)
{
    float total[MOST_QUERIES] = {0};
    for (int64_t i = 0; i < count; i++) {
        float *score = s->score + i * BLOCK, most = s->most[first + i], *sum = s->sum + (first + i) * s->v_dim;
        if (a->softcap > 0) vec_softcap(score, a->softcap, keys);
        most = fmaxf(most, vec_max(score, keys));
        float shrink = vec_exp_below(s->most[first + i] - most);
        total[i] = s->total[first + i] * shrink;
        s->most[first + i] = most;
        for (int64_t j = 0; j < keys; j++) score[j] = vec_exp_below(score[j] - most);
        for (int64_t d = 0; d < s->v_dim; d++) sum[d] *= shrink;
    }
    for (int64_t j = 0; j < keys; j++)
        for (int i = 0; i < MOST_QUERIES; i++) total[i] += i < count ? s->score[i * BLOCK + j] : 0;
    for (int64_t i = 0; i < count; i++) s->total[first + i] = total[i];
}

/* Adds keys k and values v of a block. While scores of the first queries are computed, v and the next block's keys are prefetched. */
VEC_ROW void add_block(const Attention *a, FewState *s, FewRows *k, FewRows *v, const FewRows *next, bool wide)
{
    int64_t keys = k->count;
    ready_rows(&a->k, s->k, k);
    for (int64_t first = 0; first < s->count; first += MOST_QUERIES) {
        int64_t count = min_i64(MOST_QUERIES, s->count - first);
        for (int64_t j = 0; j < keys; j += KEYS) {
            if (!first) {
                fetch_rows(&a->v, v, j);
                fetch_rows(&a->k, next, j);
            }
            few_kernel(a->k.dtype, count, wide)->scores(k->at + j, s->dim, s->q + first * s->dim, a->scale, s->score + j);
        }
        exponentials(a, s, first, count, keys);
        if (!first) ready_rows(&a->v, s->v, v);
        few_kernel(a->v.dtype, count, wide)->values(v->at, keys, s->v_dim, s->score, s->sum + first * s->v_dim);
    }
}

/* The same as panel_sink of attention.c. */
static void add_sink(const Attention *a, int64_t head, float *most, float *total, float *sum)
{
    float sink = attention_sink(a, head), now = sink > *most ? sink : *most, shrink = vec_exp_below(*most - now);
    *total = *total * shrink + vec_exp_below(sink - now);
    *most = now;
    for (int64_t d = 0; d < a->v_dim; d++) sum[d] *= shrink;
}

/* A task: `count` query heads from `head` on, of group g of row b, which attend keys [key, end). */
typedef struct FewTask {
    int64_t b, g, head, count, key, end;
} FewTask;

static FewTask task_at(const FewJob *job, int64_t task)
{
    const Attention *a = job->a;
    int64_t          part = task % job->parts, g = task / job->parts % a->num_kv_heads, b = task / job->parts / a->num_kv_heads;
    int64_t          head = g * a->group + part * job->heads, count = min_i64(job->heads, (g + 1) * a->group - head);
    return (FewTask){b, g, head, count, attention_first_key(a, b, 0), attention_own_key(a, b, 0) + 1};
}

/* Finds the keys of the block at `key`. After the task's last block it finds the first keys of the task that this worker probably takes
 * next. */
static void find_keys(const FewJob *job, int64_t task, const FewTask *now, int64_t key, FewRows *out)
{
    bool    last = key >= now->end;
    FewTask next = last && task + 1 < job->tasks ? task_at(job, task + 1) : *now;
    find_rows(&job->a->k, next.b, last ? next.key : key, last && task + 1 == job->tasks ? 0 : next.end, next.g, out);
}

VEC_TASK(few_task)
{
    const FewJob    *job = context;
    const Attention *a = job->a;
    FewTask          t = task_at(job, task);
    FewState         s = few_start(a, t.b, t.head, t.count, job->scratch + worker * few_floats(a));
    FewRows          k[2], v;
    find_rows(&a->k, t.b, t.key, t.end, t.g, &k[0]);
    for (int64_t j = 0; j < BLOCK; j += KEYS) fetch_rows(&a->k, &k[0], j);
    for (int64_t key = t.key, now = 0; key < t.end; key += v.count, now = !now) {
        find_rows(&a->v, t.b, key, t.end, t.g, &v);
        find_keys(job, task, &t, key + v.count, &k[!now]);
        add_block(a, &s, &k[now], &v, &k[!now], wide);
    }
    for (int64_t i = 0; i < t.count; i++) {
        float *sum = s.sum + i * a->v_dim;
        if (a->sinks.data) add_sink(a, t.head + i, &s.most[i], &s.total[i], sum);
        for (int64_t d = 0; d < a->v_dim; d++) sum[d] /= s.total[i];
        if (a->o.data) vec_store_row(heads_at_mut(&a->o, t.b, 0, t.head + i), a->o.dtype, sum, a->v_dim);
        if (a->lse) a->lse[t.b * a->num_heads + t.head + i] = s.most[i] + logf(s.total[i]);
    }
}

/* Query heads of a group read the same keys, so they stay in one task. They are divided only if there would be fewer tasks than workers. */
void attention_run_few(const Attention *a, ThreadPool *pool, void *workspace)
{
    FewJob job = {.a = a, .scratch = workspace, .heads = a->group, .parts = 1};
    while (a->batch * a->num_kv_heads * job.parts < pool_num_workers(pool) && job.heads > 1) {
        job.heads = div_up(job.heads, 2);
        job.parts = div_up(a->group, job.heads);
    }
    job.tasks = a->batch * a->num_kv_heads * job.parts;
    pool_run(pool, job.tasks, few_task, &job);
}
