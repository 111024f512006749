/* A tile reads its operands from panels: for each l, a panel of a has `rows` elements side by side, a panel of b `cols`. Packing copies a
 * matrix into panels, and transposes it in blocks of 8 x 8 if necessary. */
#include "device/cpu/sgemm.h"

#include "base/cpu.h"
#include "device/cpu/turn8.h"

#include <immintrin.h>
#include <string.h>

enum {
    BLOCK = 8,
    LINE_BYTES = 64,
    LINE = LINE_BYTES / 4, /* floats of a cache line */
    LINES = 32,            /* elements of a row read at once: two cache lines of f32 */
    ROWS_AHEAD = 8,        /* rows ahead that are prefetched while a row is copied */
};

/* Hides from the compiler where a pointer comes from: it then keeps this pointer, instead of one for each address derived from it. */
#define OPAQUE(x) __asm__("" : "+r"(x))
/* Hides where a value comes from that a loop doesn't change: the compiler keeps the value, not its sums with constants, for which there are
 * too few registers. */
#define OPAQUE_HERE(x) __asm__ volatile("" : "+r"(x))

#define NAME(function) avx2_##function
#define TARGET
#define VECTOR __m256
#define LANES 8
#define ROWS 6
#define ALL _mm256_set1_ps
#define FMA _mm256_fmadd_ps
#define ADD_PRODUCT(sum, x, y) __asm__("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(x), "x"(y))
#define PART __m256i
#define LOAD _mm256_loadu_ps
#define STORE _mm256_storeu_ps
#define PARTS(cols) \
    __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); \
    __m256i part0 = _mm256_cmpgt_epi32(_mm256_set1_epi32(cols), lane); \
    __m256i part1 = _mm256_cmpgt_epi32(_mm256_set1_epi32((cols)-LANES), lane)
#define LOAD_PART _mm256_maskload_ps
#define STORE_PART _mm256_maskstore_ps
#define ROW_CASES ROW_CASE(1) ROW_CASE(2) ROW_CASE(3) ROW_CASE(4) ROW_CASE(5) ROW_CASE(6)
#include "device/cpu/sgemm_tile.h"

#define NAME(function) avx512_##function
#define TARGET __attribute__((target("avx512f")))
#define VECTOR __m512
#define LANES 16
#define ROWS 12
#define ALL _mm512_set1_ps
#define FMA _mm512_fmadd_ps
#define ADD_PRODUCT(sum, x, y) __asm__("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(x), "v"(y))
#define PART __mmask16
#define LOAD _mm512_loadu_ps
#define STORE _mm512_storeu_ps
#define PARTS(cols) \
    uint32_t  mask = (cols) >= 2 * LANES ? UINT32_MAX : (1u << (cols)) - 1; \
    __mmask16 part0 = (__mmask16)mask, part1 = (__mmask16)(mask >> LANES)
#define LOAD_PART(p, part) _mm512_maskz_loadu_ps(part, p)
#define STORE_PART _mm512_mask_storeu_ps
#define ROW_CASES \
    ROW_CASE(1) \
    ROW_CASE(2) ROW_CASE(3) ROW_CASE(4) ROW_CASE(5) ROW_CASE(6) ROW_CASE(7) ROW_CASE(8) ROW_CASE(9) ROW_CASE(10) ROW_CASE(11) ROW_CASE(12)
#include "device/cpu/sgemm_tile.h"

static const SgemmKernel avx2 = {"AVX2", 6, 16, avx2_along_rows, avx2_along_depth, avx2_band_along_rows, avx2_band_along_depth, false};
static const SgemmKernel avx512 = {
    "AVX-512", 12, 32, avx512_along_rows, avx512_along_depth, avx512_band_along_rows, avx512_band_along_depth, true};

int sgemm_kernels(const SgemmKernel **out)
{
    int count = 0;
    if (cpu_avx512()) out[count++] = &avx512;
    out[count++] = &avx2;
    return count;
}

const SgemmKernel *sgemm_kernel(void)
{
    return cpu_avx512() ? &avx512 : &avx2;
}

SgemmA sgemm_a(const SgemmKernel *kernel, bool trans, const float *a, int64_t stride)
{
    return trans ? (SgemmA){a, kernel->rows, 1, stride} : (SgemmA){a, kernel->rows * stride, stride, 1};
}

SgemmB sgemm_b(const SgemmKernel *kernel, const float *b, int64_t stride)
{
    return (SgemmB){b, kernel->cols, stride};
}

/* Decodes FP8 by way of F16, which has enough exponent and mantissa bits for both formats. e5m2 is the upper half of F16; e4m3's exponent
 * bias is 8 less. */
static inline __m256 load8_fp8(const void *data, DType dtype, int64_t at)
{
    __m128i code = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)((const uint8_t *)data + at)));
    if (dtype == DT_E5M2) return _mm256_cvtph_ps(_mm_slli_epi16(code, 8));
    __m128i magnitude = _mm_and_si128(code, _mm_set1_epi16(0x7F)), sign = _mm_slli_epi16(_mm_srli_epi16(code, 7), 15);
    __m128i nan = _mm_and_si128(_mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x7F)), _mm_set1_epi16(0x7E00));
    return _mm256_mul_ps(_mm256_cvtph_ps(_mm_or_si128(_mm_or_si128(_mm_slli_epi16(magnitude, 7), sign), nan)), _mm256_set1_ps(256));
}

static inline bool is_byte(DType dtype)
{
    return DT_SET(dtype) & (DT_SET_FP8 | DT_SET(DT_I8));
}

static inline __m256 load8(const void *data, DType dtype, int64_t at)
{
    if (dtype == DT_I8) return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)((const int8_t *)data + at))));
    if (dtype == DT_F32) return _mm256_loadu_ps((const float *)data + at);
    if (DT_SET(dtype) & DT_SET_FP8) return load8_fp8(data, dtype, at);
    __m128i half = _mm_loadu_si128((const __m128i *)((const uint16_t *)data + at));
    if (dtype == DT_F16) return _mm256_cvtph_ps(half);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

static inline float load1(const void *data, DType dtype, int64_t at)
{
    float value;
    if (dtype == DT_F16) return _cvtsh_ss(((const uint16_t *)data)[at]);
    if (!is_byte(dtype)) return dtype == DT_F32 ? ((const float *)data)[at] : bf16_to_f32(((const uint16_t *)data)[at]);
    dtype_decode(dtype, (const uint8_t *)data + at, 1, &value);
    return value;
}

/* Stores the first `count` floats of x; count is a constant: 4, 6 or 8. For 6 it writes two more: into the panel's next row, which is
 * written later, or into the room after the panel. */
static inline __attribute__((always_inline)) void store_first(float *to, __m256 x, int count)
{
    if (count == BLOCK / 2)
        _mm_storeu_ps(to, _mm256_castps256_ps128(x));
    else
        _mm256_storeu_ps(to, x);
}

static inline int least(int64_t a, int b)
{
    return a < b ? (int)a : b;
}

static inline __attribute__((always_inline)) void fetch(const void *data, DType dtype, int64_t at)
{
    __builtin_prefetch((const char *)data + at * (dtype == DT_F32 ? 4 : is_byte(dtype) ? 1 : 2));
}

/* Packs panels of `width` rows or columns from a matrix that stores the elements of one l side by side: each stored row is copied to all
 * panels. */
static inline __attribute__((always_inline)) void copy_panels(DType dtype, int width, int64_t total, int64_t k, const void *data,
                                                              int64_t stride, float *panels, int64_t panel)
{
    for (int64_t l = 0; l < k; l++, panels += width) {
        int64_t at = l * stride, i = 0;
        float  *to = panels;
        for (; total - i >= (width + BLOCK - 1) / BLOCK * BLOCK; i += width, to += panel) {
            for (int j = 0; j < width && l + ROWS_AHEAD < k; j += dtype == DT_F32 ? LINE : 2 * LINE)
                fetch(data, dtype, at + ROWS_AHEAD * stride + i + j);
            for (int j = 0; j < width; j += BLOCK) store_first(to + j, load8(data, dtype, at + i + j), least(width - j, BLOCK));
        }
        for (; i < total; i += width, to += panel)
            for (int64_t j = 0; j < width; j++) to[j] = i + j < total ? load1(data, dtype, at + i + j) : 0;
    }
}

/* Transposes 8 elements, from `at` on, of `rows` rows of a panel (at most 8). `count` of these rows exist; the others are 0. */
static inline __attribute__((always_inline)) void turn_block(DType dtype, int width, int rows, int64_t count, const void *data, int64_t at,
                                                             int64_t stride, float *to)
{
    __m256 x[BLOCK];
    for (int j = 0; j < BLOCK; j++) x[j] = j < count ? load8(data, dtype, at + j * stride) : _mm256_setzero_ps();
    turn8(x);
    for (int j = 0; j < BLOCK; j++) store_first(to + j * width, x[j], rows);
}

/* Packs a panel from a matrix that stores each row side by side, and elements of one l `stride` apart. Whole cache lines of a row are read
 * before the next row: rows that are a power of two apart would evict one another. */
static inline __attribute__((always_inline)) void turn_panel(DType dtype, int width, int64_t count, int64_t k, const void *data, int64_t at,
                                                             int64_t stride, float *panel)
{
    int64_t l = 0;
    for (; l + BLOCK <= k; l += LINES) {
        int64_t end = l + LINES < k ? l + LINES : k;
        for (int i = 0; i < width; i += BLOCK) {
            int64_t ahead = at + (l + 2 * LINES < k ? l + 2 * LINES : width * stride + l + 2 * LINES - (k + LINES - 1) / LINES * LINES);
            for (int64_t j = i; j < least(i + BLOCK, width) && j < count; j++) {
                fetch(data, dtype, ahead + j * stride);
                if (dtype == DT_F32) fetch(data, dtype, ahead + j * stride + LINE);
            }
            int rows = least(width - i, BLOCK);
            for (int64_t from = l; from + BLOCK <= end; from += BLOCK)
                if (count >= width)
                    turn_block(dtype, width, rows, rows, data, at + i * stride + from, stride, panel + from * width + i);
                else
                    turn_block(dtype, width, rows, count - i, data, at + i * stride + from, stride, panel + from * width + i);
        }
    }
    for (l = k / BLOCK * BLOCK; l < k; l++)
        for (int64_t i = 0; i < width; i++) panel[l * width + i] = i < count ? load1(data, dtype, at + i * stride + l) : 0;
}

static inline __attribute__((always_inline)) void pack_as(DType dtype, bool turn, int width, int64_t total, int64_t k, const void *data,
                                                          int64_t stride, float *panels, int64_t panel)
{
    if (!turn) {
        copy_panels(dtype, width, total, k, data, stride, panels, panel);
        return;
    }
    for (int64_t i = 0; i < total; i += width, panels += panel) turn_panel(dtype, width, total - i, k, data, i * stride, stride, panels);
}

void sgemm_pack(DType dtype, bool turn, int width, int64_t total, int64_t k, const void *data, int64_t stride, float *panels, int64_t panel)
{
    /* dtype, turn and width become constants for the compiler */
#define PACK_CASE(type, turned, wide) \
    if (dtype == (type) && turn == (turned) && width == (wide)) pack_as(type, turned, wide, total, k, data, stride, panels, panel);
#define PACK_TURNS(type, wide) \
    PACK_CASE(type, false, wide) \
    PACK_CASE(type, true, wide)
#define PACK_CASES(wide) \
    PACK_TURNS(DT_F32, wide) \
    PACK_TURNS(DT_BF16, wide) \
    PACK_TURNS(DT_F16, wide) \
    PACK_TURNS(DT_E4M3, wide) \
    PACK_TURNS(DT_E5M2, wide) \
    PACK_TURNS(DT_I8, wide)
    PACK_CASES(6)
    PACK_CASES(12)
    PACK_CASES(16)
    PACK_CASES(32)
}

SgemmA sgemm_pack_a(const SgemmKernel *kernel, bool trans, int64_t rows, int64_t k, const void *a, DType dtype, int64_t stride,
                    float *panels)
{
    /* panels are a cache line apart: panels of whole pages would map to the same cache sets, and a row is copied to all of them */
    int64_t panel = kernel->rows * k + LINE;
    sgemm_pack(dtype, !trans, kernel->rows, rows, k, a, stride, panels, panel);
    return (SgemmA){panels, panel, 1, kernel->rows};
}

SgemmB sgemm_pack_b(const SgemmKernel *kernel, bool trans, int64_t cols, int64_t k, const void *b, DType dtype, int64_t stride,
                    float *panels, int64_t panel)
{
    sgemm_pack(dtype, trans, kernel->cols, cols, k, b, stride, panels, panel);
    return (SgemmB){panels, panel, kernel->cols};
}

/* Data that is prefetched during a product. Each tile prefetches a part of a column of cache lines: one line of each row, or two. */
typedef struct Fetch {
    const SgemmAhead *ahead;
    int               left;        /* entries of `ahead` that remain */
    int               lines;       /* lines of a row at a time */
    int64_t           column, row; /* position in the first entry: cache line, row */
} Fetch;

/* Where a tile of depth k begins to prefetch; *out_step: bytes from one row there to the next. If nothing is left: `idle` and 0. */
static const char *fetch_part(Fetch *f, int64_t k, const void *idle, int64_t *out_step)
{
    *out_step = 0;
    if (!f->left) return idle;
    const char *from = (const char *)f->ahead->data + f->column * LINE_BYTES + f->row * f->ahead->stride;
    *out_step = f->ahead->stride;
    f->row += k / SGEMM_STEPS;
    if (f->row + SGEMM_STEPS > f->ahead->rows) f->row = 0, f->column += f->lines;
    if (f->column >= f->ahead->lines) f->column = 0, f->ahead++, f->left--;
    return from;
}

/* Computes tiles row by row: c is then written in memory order, and the hardware prefetches it. */
static void run_by_rows(const SgemmKernel *kernel, int64_t m, int64_t n, int64_t k, float alpha, SgemmA a, int64_t a_stride, SgemmB b,
                        float *c, int64_t c_stride, int how)
{
    SgemmTile tile = a.row == 1 ? kernel->along_rows : kernel->along_depth;
    SgemmBand band = a.row == 1 ? kernel->band_along_rows : kernel->band_along_depth;
    for (int64_t i = 0; i < m; i += kernel->rows, a.data += a.panel, c += kernel->rows * c_stride) {
        int     rows = least(m - i, kernel->rows);
        int64_t whole = rows == kernel->rows ? n / kernel->cols : 0;
        band(whole, k, alpha, a.data, a_stride, b.data, b.panel, b.row, c, c_stride, how);
        for (int64_t j = whole * kernel->cols; j < n; j += kernel->cols) {
            const float *b_panel = b.data + j / kernel->cols * b.panel;
            tile(rows, least(n - j, kernel->cols), k, alpha, a.data, a_stride, b_panel, b.row, c + j, c_stride, how, (const char *)b_panel,
                 0, NULL, NULL);
        }
    }
}

/* Like run_by_rows, for an a stored across the depth. The hardware prefetches neither c nor the next tiles' rows of a, so both are
 * prefetched here. Of each stored row of a, the line of the last element is prefetched; the tile before has loaded the line of the first
 * element. */
static void run_across(const SgemmKernel *kernel, int64_t m, int64_t n, int64_t k, float alpha, SgemmA a, SgemmB b, float *c,
                       int64_t c_stride, int how, const SgemmAhead *ahead, int num_ahead)
{
    Fetch after = {ahead, num_ahead, 1, 0, 0};
    for (int64_t i = 0; i < m; i += kernel->rows, a.data += a.panel, c += kernel->rows * c_stride) {
        int        rows = least(m - i, kernel->rows), next_rows = least(m - i - rows, kernel->rows);
        SgemmAhead next_a = {a.data + a.panel + next_rows - 1, 1, a.col * (int64_t)sizeof(float), k};
        Fetch      panel = {&next_a, next_rows > 0, 1, 0, 0};
        float     *below = next_rows == kernel->rows ? c + kernel->rows * c_stride : NULL;
        for (int64_t j = 0; j < n; j += kernel->cols) {
            const float *b_panel = b.data + j / kernel->cols * b.panel, *next_c = j + 2 * kernel->cols <= n ? c + j + kernel->cols : below;
            int64_t      step;
            const char  *from = fetch_part(panel.left ? &panel : &after, k, b_panel, &step);
            kernel->along_rows(rows, least(n - j, kernel->cols), k, alpha, a.data, a.col, b_panel, b.row, c + j, c_stride, how, from, step,
                               NULL, how & SGEMM_FAR ? next_c : NULL);
        }
    }
}

/* Prefetches the next panel of b, then the caller's `ahead`; and the next rows of a if a's rows are contiguous. */
void sgemm_run(const SgemmKernel *kernel, int64_t m, int64_t n, int64_t k, float alpha, SgemmA a, SgemmB b, float *c, int64_t c_stride,
               int how, const SgemmAhead *ahead, int num_ahead)
{
    bool      along_rows = a.row == 1, a_streams = !along_rows && a.row == k;
    SgemmTile tile = along_rows ? kernel->along_rows : kernel->along_depth;
    int64_t   a_stride = along_rows ? a.col : a.row, panel_lines = kernel->cols / LINE;
    bool      few = m <= kernel->rows * SGEMM_STEPS * panel_lines; /* few tiles: one line each time wouldn't fetch a whole panel of b */
    Fetch     after = {ahead, num_ahead, few ? 2 : 1, 0, 0};
    if (k <= SGEMM_SHALLOW || how & SGEMM_BY_ROWS) {
        if (k > SGEMM_SHALLOW && along_rows)
            run_across(kernel, m, n, k, alpha, a, b, c, c_stride, how, ahead, num_ahead);
        else
            run_by_rows(kernel, m, n, k, alpha, a, a_stride, b, c, c_stride, how);
        return;
    }
    if (few) how |= SGEMM_TWO_LINES;
    for (int64_t j = 0; j < n; j += kernel->cols) {
        const float *b_panel = b.data + j / kernel->cols * b.panel, *a_panel = a.data;
        int          cols = least(n - j, kernel->cols);
        SgemmAhead   next_b = {b_panel + b.panel, panel_lines, b.row * (int64_t)sizeof(float), k};
        Fetch        panel = {&next_b, j + kernel->cols < n, after.lines, 0, 0};
        for (int64_t i = 0; i < m; i += kernel->rows, a_panel += a.panel) {
            int         rows = least(m - i, kernel->rows);
            int64_t     step;
            const char *from = fetch_part(panel.left ? &panel : &after, k, b_panel, &step);
            const char *next_a = a_streams && j == 0 && i + kernel->rows < m ? (const char *)(a_panel + a.panel) : NULL;
            float      *tile_c = c + i * c_stride + j;
            bool        fetch_c = how & SGEMM_FAR && i + 2 * kernel->rows <= m; /* the rows below may be another thread's */
            tile(rows, cols, k, alpha, a_panel, a_stride, b_panel, b.row, tile_c, c_stride, how, from, step, next_a,
                 fetch_c ? tile_c + kernel->rows * c_stride : NULL);
        }
    }
}
