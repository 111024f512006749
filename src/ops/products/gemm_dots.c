/* Products of a few rows (decoding) are dot products: they are bound by reading b, and packing would copy b first. Products with rows_alone
 * are dot products too, a few rows at a time. */
#include "base/cpu.h"
#include "ops/products/gemm_dots.h"
#include "ops/products/gemm_few.h"
#include "ops/products/gemm_operand.h"
#include "ops/vec_wide.h"

enum {
    FEW_ROWS = 4,
    DOT_COLS = 32,         /* columns of c that a task has at least, and that it computes together */
    DOT_TASKS = 8,         /* tasks for each worker, about */
    DOT_AHEAD = 8192,      /* bytes to prefetch ahead; rows of b along the depth follow each other */
    MANY_ROWS = 16,        /* from this many rows of a on, a b that isn't fp32 is converted to fp32, several columns at a time */
    TILE_COLS = 3,         /* columns of b that are multiplied with FEW_ROWS rows of a at once, with all sums in registers */
    MOST_COLS = 48,        /* columns that are converted at a time, at most */
    MOST_FLOATS = 1 << 16, /* floats that are converted at a time, at most: they and rows of a stay in the L2 cache */
};

bool gemm_by_dots(const Gemm *g)
{
    return (g->rows_alone || g->m <= FEW_ROWS) && g->b.trans && !g->a.trans && !gemm_has_pairs(g);
}

/* Columns of b that a worker converts to floats at a time. */
static int64_t cols_at_once(const Gemm *g)
{
    int64_t most = min_i64(MOST_COLS, MOST_FLOATS / max_i64(1, g->k));
    return g->m < MANY_ROWS ? 1 : max_i64(1, most / TILE_COLS) * TILE_COLS;
}

/* Floats of a worker's converted columns of b and rows of a. */
static int64_t floats_of_worker(const Gemm *g)
{
    return g->a.dtype == DT_F32 && g->b.dtype == DT_F32 ? 0 : (g->m + cols_at_once(g)) * g->k;
}

size_t gemm_dots_workspace(const Gemm *g, int num_workers)
{
    return (size_t)(num_workers * floats_of_worker(g)) * sizeof(float);
}

typedef struct DotJob {
    const Gemm *gemm;
    int         num_workers;
    float      *scratch; /* per worker */
    int64_t     scratch_floats;
} DotJob;

/* `count` elements side by side from (row, col) on, as floats: in place, or decoded into scratch. */
static const float *numbers_from(const GemmOperand *x, int64_t row, int64_t col, int64_t count, float *scratch)
{
    const void *from = operand_at(x, row, col);
    if (x->dtype == DT_F32) return from;
    dtype_decode(x->dtype, from, count, scratch);
    return scratch;
}

/* Multiplies a row by the scales of its blocks, from its first element on. */
static void scale_row(const GemmOperand *x, int64_t row, int64_t count, float *numbers)
{
    operand_scale_panels(x, 1, row, 1, 0, count, numbers, count);
}

/* Columns of a task. A worker has few tasks, so that it reads b in long pieces. */
static int64_t dot_cols(const Gemm *g, int num_workers)
{
    return max_i64(DOT_COLS, div_up(g->n, DOT_TASKS * num_workers));
}

/* As vec.h's functions, for rows in i8 too. */
static inline const void *elem_at(const void *row, DType dtype, int64_t i)
{
    return dtype == DT_I8 ? (const int8_t *)row + i : vec_at(row, dtype, i);
}

VEC_WIDE_ROW float elem_get(DType dtype, const void *row, int64_t i)
{
    return dtype == DT_I8 ? ((const int8_t *)row)[i] : vec_get(row, dtype, i);
}

VEC_WIDE_ROW Vec8 eight_get(DType dtype, const void *row, int64_t i)
{
    if (dtype != DT_I8) return vec8_get(dtype, row, i);
    return (Vec8)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(elem_at(row, dtype, i))));
}

/* Elements [i, i + 16) of a row in f32, bf16, f16 or i8. */
VEC_WIDE_ROW __m512 vec16_get(DType dtype, const void *row, int64_t i)
{
    const void *at = elem_at(row, dtype, i);
    if (dtype == DT_F32) return _mm512_loadu_ps(at);
    if (dtype == DT_I8) return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(at)));
    if (dtype == DT_F16) return _mm512_cvtph_ps(_mm256_loadu_si256(at));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(at)), 16));
}

/* Adds up the lanes of two accumulators, which hold the first `whole` elements, and then the remaining elements, in vec_dot's order. */
VEC_WIDE_ROW float end_dot(DType dtype, __m512 low, __m512 high, const float *a, const void *b, int64_t whole, int64_t count)
{
    Vec8    first = vec16_half(low, 0);
    int64_t i = whole;
    float   tail = 0;
    for (; i + 8 <= count; i += 8) first = vec8_fma(vec8_load(a + i), eight_get(dtype, b, i), first);
    for (; i < count; i++) tail = fmaf(a[i], elem_get(dtype, b, i), tail);
    return vec8_sum((first + vec16_half(low, 1)) + (vec16_half(high, 0) + vec16_half(high, 1))) + tail;
}

/* Prefetches the data DOT_AHEAD bytes after element i of b into the L2 cache, which allows more requests in flight than the L1 cache. */
VEC_WIDE_ROW void fetch_ahead(DType dtype, const void *b, int64_t i)
{
    __builtin_prefetch((const char *)elem_at(b, dtype, i) + DOT_AHEAD, 0, 2);
}

/* Dot products of `rows` rows of a with a row of b. They have the bits of vec_dot: its 4 groups of 8 lanes are 2 groups of 16 here. */
VEC_WIDE_ROW void dots_of_rows(DType dtype, int rows, const float *const *a, const void *b, int64_t count, float *sums)
{
    __m512  low[FEW_ROWS], high[FEW_ROWS];
    int64_t whole = count / 32 * 32;
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) low[r] = high[r] = _mm512_setzero_ps();
    for (int64_t i = 0; i < whole; i += 32) {
        __m512 b_low = vec16_get(dtype, b, i), b_high = vec16_get(dtype, b, i + 16);
        __asm__("" : "+v"(b_low), "+v"(b_high)); /* kept in registers, not loaded again for each row */
        fetch_ahead(dtype, b, i);
        if (dtype == DT_F32) fetch_ahead(dtype, b, i + 16);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            low[r] = _mm512_fmadd_ps(_mm512_loadu_ps(a[r] + i), b_low, low[r]);
            high[r] = _mm512_fmadd_ps(_mm512_loadu_ps(a[r] + i + 16), b_high, high[r]);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) sums[r] = end_dot(dtype, low[r], high[r], a[r], b, whole, count);
}

/* Dot products of FEW_ROWS rows of a with TILE_COLS rows of b, `stride` elements apart: each loaded element is used several times. */
VEC_WIDE_ROW void dots_of_tile(DType dtype, const float *const *a, const void *b, int64_t stride, int64_t count, float (*sums)[FEW_ROWS])
{
    __m512  sum[2][FEW_ROWS][TILE_COLS];
    int64_t whole = count / 32 * 32;
#pragma GCC unroll 24
    for (int i = 0; i < 2 * FEW_ROWS * TILE_COLS; i++) (&sum[0][0][0])[i] = _mm512_setzero_ps();
    for (int64_t i = 0; i < whole; i += 32)
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
            __m512 of_b[TILE_COLS];
#pragma GCC unroll 3
            for (int j = 0; j < TILE_COLS; j++) {
                of_b[j] = vec16_get(dtype, b, j * stride + i + half * 16);
                __asm__("" : "+v"(of_b[j]));
                if (dtype != DT_F32 && !half) fetch_ahead(dtype, b, j * stride + i); /* f32: mostly converted columns, which are cached */
            }
#pragma GCC unroll 4
            for (int r = 0; r < FEW_ROWS; r++) {
                __m512 of_a = _mm512_loadu_ps(a[r] + i + half * 16);
                __asm__("" : "+v"(of_a));
#pragma GCC unroll 3
                for (int j = 0; j < TILE_COLS; j++) sum[half][r][j] = _mm512_fmadd_ps(of_a, of_b[j], sum[half][r][j]);
            }
        }
#pragma GCC unroll 3
    for (int j = 0; j < TILE_COLS; j++)
#pragma GCC unroll 4
        for (int r = 0; r < FEW_ROWS; r++)
            sums[j][r] = end_dot(dtype, sum[0][r][j], sum[1][r][j], a[r], elem_at(b, dtype, j * stride), whole, count);
}

/* Dot products of up to FEW_ROWS rows of a with any number of rows of b. */
VEC_WIDE_ROW void dots_of_cols(DType dtype, const int rows, const float *const *a, const void *b, int64_t stride, int64_t cols,
                               int64_t count, float (*sums)[FEW_ROWS])
{
    int64_t j = 0;
    for (; rows == FEW_ROWS && j + TILE_COLS <= cols; j += TILE_COLS)
        dots_of_tile(dtype, a, elem_at(b, dtype, j * stride), stride, count, sums + j);
    for (; j < cols; j++) dots_of_rows(dtype, rows, a, elem_at(b, dtype, j * stride), count, sums[j]);
}

/* As VEC_OF_ANY, for i8 too. */
#define DOTS_OF(dtype, ...) \
    do { \
        if ((dtype) == DT_I8) \
            dots_of_cols(DT_I8, __VA_ARGS__); \
        else \
            VEC_OF_ANY(dtype, dots_of_cols, __VA_ARGS__); \
    } while (0)

VEC_WIDE static void dots_wide(DType dtype, int64_t rows, const float *const *a, const void *b, int64_t stride, int64_t cols, int64_t count,
                               float (*sums)[FEW_ROWS])
{
    switch (rows) {
    case 1:
        DOTS_OF(dtype, 1, a, b, stride, cols, count, sums);
        return;
    case 2:
        DOTS_OF(dtype, 2, a, b, stride, cols, count, sums);
        return;
    case 3:
        DOTS_OF(dtype, 3, a, b, stride, cols, count, sums);
        return;
    default:
        DOTS_OF(dtype, FEW_ROWS, a, b, stride, cols, count, sums);
    }
}

static void dots_narrow(DType dtype, int64_t rows, const float *const *a, const void *b, int64_t stride, int64_t cols, int64_t count,
                        float (*sums)[FEW_ROWS])
{
    for (int64_t j = 0; j < cols; j++)
        for (int64_t r = 0; r < rows; r++) sums[j][r] = VEC_OF_ANY(dtype, vec_row_dot, a[r], vec_at(b, dtype, j * stride), count);
}

/* Whether elements of b become floats in registers. Otherwise a column is converted in scratch, for all rows of a. */
static bool b_lies(const GemmOperand *b)
{
    return !gemm_has_block_scales(b) && DT_SET(b->dtype) & (cpu_avx512() ? DT_SET_DECODE | DT_SET(DT_I8) : DT_SET_DECODE);
}

/* Stores elements of c that are sums times a factor, without bias or accumulation. */
static void put_plain(const Gemm *g, int64_t row, int64_t rows, int64_t col, int64_t cols, float (*sums)[FEW_ROWS])
{
    float factor = gemm_factor(g), values[MOST_COLS];
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < cols; j++) values[j] = factor * sums[j][i] * gemm_col_scale(g, col + j);
        vec_store_row(gemm_c_at(g, row + i, col), g->c.dtype, values, cols);
    }
}

/* Stores `rows` rows of c from `row` on, `cols` columns from `col` on; sums[column][row]. */
static void put_sums(const Gemm *g, int64_t row, int64_t rows, int64_t col, int64_t cols, float (*sums)[FEW_ROWS])
{
    float factor = gemm_factor(g);
    if (g->epilogue == GEMM_PLAIN && !g->accumulate) {
        put_plain(g, row, rows, col, cols, sums);
        return;
    }
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) {
            float value = factor * sums[j][i] * gemm_col_scale(g, col + j);
            if (g->epilogue == GEMM_BIAS) value += vec_get(g->bias.data, g->bias.dtype, g->bias.offset + col + j);
            if (g->accumulate) value += vec_get(g->c.data, g->c.dtype, operand_index(&g->c, row + i, col + j));
            vec_set(g->c.data, g->c.dtype, operand_index(&g->c, row + i, col + j), value);
        }
}

/* Rows [row, row + rows) of a as floats: in place, or from the worker's copy of all rows. */
static void rows_of_a(const Gemm *g, int64_t row, int64_t rows, const float *converted, const float **a)
{
    for (int64_t i = 0; i < rows; i++) a[i] = g->a.dtype == DT_F32 ? operand_at(&g->a, row + i, 0) : converted + (row + i) * g->k;
}

/* Columns of b, `stride` elements apart. */
typedef struct Columns {
    DType       dtype;
    const void *data;
    int64_t     stride;
} Columns;

/* Columns [from, from + cols): in place, or as floats in scratch. */
static Columns columns_of_b(const Gemm *g, int64_t from, int64_t cols, bool lies, float *scratch)
{
    if (lies || (g->b.dtype == DT_F32 && !gemm_has_block_scales(&g->b)))
        return (Columns){g->b.dtype, operand_at(&g->b, 0, from), g->b.stride};
    for (int64_t j = 0; j < cols; j++) {
        (void)numbers_from(&g->b, 0, from + j, g->k, scratch + j * g->k);
        scale_row(&g->b, from + j, g->k, scratch + j * g->k);
    }
    return (Columns){DT_F32, scratch, g->k};
}

static void gemm_dots(void *context, int64_t task, int worker)
{
    const DotJob *job = context;
    const Gemm   *g = job->gemm;
    int64_t       cols = dot_cols(g, job->num_workers), end = min_i64(g->n, (task + 1) * cols), once = cols_at_once(g);
    float        *scratch = job->scratch + worker * job->scratch_floats, *converted = scratch + once * g->k;
    bool          many = g->m >= MANY_ROWS, lies = !many && b_lies(&g->b);
    int64_t       step = lies ? DOT_COLS : once;
    const float  *a[FEW_ROWS];
    float         sums[MOST_COLS][FEW_ROWS];
    for (int64_t i = 0; i < g->m; i++) {
        (void)numbers_from(&g->a, i, 0, g->k, converted + i * g->k);
        scale_row(&g->a, i, g->k, converted + i * g->k);
    }
    for (int64_t from = task * cols; from < end; from += step) {
        int64_t few = min_i64(step, end - from);
        Columns b = columns_of_b(g, from, few, lies, scratch);
        for (int64_t row = 0; row < g->m; row += FEW_ROWS) {
            int64_t rows = min_i64(FEW_ROWS, g->m - row);
            rows_of_a(g, row, rows, converted, a);
            (cpu_avx512() ? dots_wide : dots_narrow)(b.dtype, rows, a, b.data, b.stride, few, g->k, sums);
            put_sums(g, row, rows, from, few, sums);
        }
    }
}

void gemm_run_dots(const Gemm *g, ThreadPool *pool, void *workspace)
{
    DotJob job = {.gemm = g, .num_workers = pool_num_workers(pool), .scratch = workspace, .scratch_floats = floats_of_worker(g)};
    pool_run(pool, div_up(g->n, dot_cols(g, job.num_workers)), gemm_dots, &job);
}
