/* Panels by kernel, padded with zeros to whole blocks.
 *   fp32    for each depth l the elements of all rows or columns, as in sgemm.h
 *   pairs   for each step one pair of bf16 of every row or column; steps alternate between the even and the odd chain. The upper half of a
 *   pair is added first
 *   AMX     a block of a is 2 x 16 rows of 32 elements each; a block of b is 2 x 16 columns: for each pair of l the pairs of 16 columns */
#include "device/cpu/bgemm.h"

#include "base/cpu.h"
#include "device/cpu/sgemm.h"
#include "device/cpu/turn16.h"
#include "device/cpu/turn8.h"

#include <immintrin.h>
#include <string.h>

enum {
    GROUP = TURN16, /* rows or columns that are packed together */
    UNROLLED = 4,   /* steps in one turn of a loop */
    SUM_ROWS = 48,  /* rows of sums passed to `take` at once, at most */
    AHEAD = 1024,   /* few rows: how many elements ahead b's columns are prefetched into the L2 cache */
    LINES = 4,      /* cache lines of a column that are prefetched at a time: memory is read in long pieces */
};

#define OPAQUE(x) __asm__("" : "+r"(x))

#define NAME(function) avx2_##function
#define TARGET
#define VECTOR __m256
#define LANES 8
#define ROWS 3
#define PANEL 6
#define STEPS 32
#define ALL _mm256_set1_ps
#define LOAD _mm256_loadu_ps
#define STORE _mm256_storeu_ps
#define ADD _mm256_add_ps
#define ADD_PRODUCT(sum, x, y) __asm__("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(x), "x"(y))
#include "device/cpu/bgemm_tile.h"

#define WIDE __attribute__((target("avx512f,avx512bw,avx512vl")))

#define NAME(function) avx512_##function
#define TARGET WIDE
#define VECTOR __m512
#define LANES 16
#define ROWS 4
#define PANEL 12
#define STEPS 32
#define ALL _mm512_set1_ps
#define LOAD _mm512_loadu_ps
#define STORE _mm512_storeu_ps
#define ADD _mm512_add_ps
#define ADD_PRODUCT(sum, x, y) __asm__("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(x), "v"(y))
#include "device/cpu/bgemm_tile.h"

#define NAME(function) pairs_##function
#define TARGET WIDE
#define VECTOR __m512
#define LANES 16
#define ROWS 4
#define PANEL 12
#define STEPS 16
#define ALL _mm512_set1_ps
#define LOAD _mm512_loadu_ps
#define STORE _mm512_storeu_ps
#define ADD _mm512_add_ps
#define ADD_PRODUCT(sum, x, y) __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(x), "v"(y))
#include "device/cpu/bgemm_tile.h"

#define AMX __attribute__((target("amx-tile,amx-bf16")))

enum { TILE_ROWS = 16, TILE_BYTES = 64, HALF = TILE_ROWS * TILE_BYTES /* bytes of 16 rows or columns of a block */ };

/* Tiles 0 to 3 are accumulators, 4 and 5 rows of a, 6 and 7 columns of b. The config is static, because GCC thinks that only its first
 * bytes are used. */
AMX static void amx_begin(void)
{
    static const struct {
        uint8_t  palette, start_row, zero[14];
        uint16_t row_bytes[16];
        uint8_t  rows[16];
    } config = {.palette = 1, .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64}, .rows = {16, 16, 16, 16, 16, 16, 16, 16}};
    _tile_loadconfig(&config);
}

AMX static void amx_end(void)
{
    _tile_release();
}

AMX static void amx_tile(int64_t depth, const void *a, const void *b, float *sums)
{
    const char *x = a, *y = b;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t l = 0; l < depth; l += BGEMM_BLOCK, x += 2 * HALF, y += 2 * HALF) {
        _tile_loadd(4, x, TILE_BYTES);
        _tile_loadd(6, y, TILE_BYTES);
        _tile_loadd(7, y + HALF, TILE_BYTES);
        _tile_loadd(5, x + HALF, TILE_BYTES);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    const int stride = 2 * TILE_BYTES;
    _tile_stored(0, sums, stride);
    _tile_stored(1, sums + 16, stride);
    _tile_stored(2, sums + 16 * 32, stride);
    _tile_stored(3, sums + 16 * 32 + 16, stride);
}

static inline int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Order of a block's elements in pairs: low half, high half. */
static const uint16_t neighbours[BGEMM_BLOCK] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                                 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31};
static const uint16_t chained[BGEMM_BLOCK] = {2,  0,  3,  1,  6,  4,  7,  5,  10, 8,  11, 9,  14, 12, 15, 13,
                                              18, 16, 19, 17, 22, 20, 23, 21, 26, 24, 27, 25, 30, 28, 31, 29};

/* How a kernel's panels store pairs; lengths are in 32-bit words. */
typedef struct Layout {
    int             width;       /* rows or columns of a panel */
    int             step_words;  /* from a step to the next; by_rows: from a row to the next */
    int             group_words; /* from a group of rows or columns to the next within a block */
    bool            by_rows;     /* pairs of a row are side by side; else pairs of a step */
    const uint16_t *order;
} Layout;

/* Loads `count` rows (or columns) that are stored along the depth, `depth` elements of each, at most a block. x[i] is row i; the rest
 * is 0. */
WIDE static inline __attribute__((always_inline)) void load_along(const Layout *layout, const uint16_t *from, int64_t stride, int64_t count,
                                                                  int64_t depth, __m512i x[GROUP])
{
    __mmask32 there = depth >= BGEMM_BLOCK ? UINT32_MAX : (1u << depth) - 1;
    __m512i   order = _mm512_loadu_si512(layout->order);
#pragma GCC unroll 16
    for (int i = 0; i < GROUP; i++) {
        x[i] = i < count ? _mm512_maskz_loadu_epi16(there, from + i * stride) : _mm512_setzero_si512();
        if (layout->order != neighbours) x[i] = _mm512_permutexvar_epi16(order, x[i]);
    }
}

/* Loads pairs from a matrix that stores `count` rows (or columns) side by side at each depth. x[step] holds the pairs of a step. */
WIDE static inline __attribute__((always_inline)) void load_across(const Layout *layout, const uint16_t *from, int64_t stride,
                                                                   int64_t count, int64_t depth, __m512i x[GROUP])
{
    __mmask16 there = count >= GROUP ? UINT16_MAX : count <= 0 ? 0 : (__mmask16)((1u << count) - 1);
#pragma GCC unroll 16
    for (int step = 0; step < GROUP; step++) {
        int     l = layout->order[2 * step], k = layout->order[2 * step + 1];
        __m256i low = _mm256_maskz_loadu_epi16(l < depth ? there : 0, from + (l < depth ? l : 0) * stride);
        __m256i high = _mm256_maskz_loadu_epi16(k < depth ? there : 0, from + (k < depth ? k : 0) * stride);
        x[step] = _mm512_or_si512(_mm512_cvtepu16_epi32(low), _mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16));
    }
}

/* Packs a group over one block of the depth. */
WIDE static inline __attribute__((always_inline)) void pack_group(const Layout *layout, const BgemmSource *s, int64_t at, int64_t l,
                                                                  int64_t count, uint32_t *to)
{
    __m512i   x[GROUP];
    int       width = layout->width < GROUP ? layout->width : GROUP;
    __mmask16 store = (__mmask16)((1u << width) - 1);
    int64_t   there = least(width, count), depth = least(BGEMM_BLOCK, s->depth - l);
    if (s->along)
        load_along(layout, s->data + at * s->stride + l, s->stride, there, depth, x);
    else
        load_across(layout, s->data + l * s->stride + at, s->stride, there, depth, x);
    if (s->along != layout->by_rows) turn16(x);
#pragma GCC unroll 16
    for (int i = 0; i < GROUP; i++) _mm512_mask_storeu_epi32(to + i * layout->step_words, store, x[i]);
}

WIDE static inline __attribute__((always_inline)) void pack_panel(const Layout *layout, const BgemmSource *s, int64_t at, int64_t l,
                                                                  char *panel)
{
    char *block = panel + l * layout->width * 2;
    for (int g = 0; g * GROUP < layout->width; g++)
        pack_group(layout, s, at + g * GROUP, l, least(GROUP, s->count - at - g * GROUP), (uint32_t *)block + g * layout->group_words);
}

/* Packs all panels, in the order that reads memory along its stored rows. */
WIDE static inline __attribute__((always_inline)) void pack(const Layout *layout, const BgemmSource *s, char *panels, size_t panel)
{
    int width = layout->width;
    if (s->along) {
        for (int64_t i = 0; i < s->count; i += width)
            for (int64_t l = 0; l < s->depth; l += BGEMM_BLOCK) pack_panel(layout, s, i, l, panels + (size_t)(i / width) * panel);
        return;
    }
    for (int64_t l = 0; l < s->depth; l += BGEMM_BLOCK)
        for (int64_t i = 0; i < s->count; i += width) pack_panel(layout, s, i, l, panels + (size_t)(i / width) * panel);
}

#define PACK(name, ...) \
    WIDE static void name(const BgemmSource *s, char *panels, size_t panel) \
    { \
        static const Layout layout = {__VA_ARGS__}; \
        pack(&layout, s, panels, panel); \
    }

PACK(amx_pack_a, 32, .step_words = 16, .group_words = 256, .by_rows = true, .order = neighbours)
PACK(amx_pack_b, 32, .step_words = 16, .group_words = 256, .order = neighbours)
PACK(pairs_pack_a, 12, .step_words = 12, .order = chained)
PACK(pairs_pack_b, 32, .step_words = 32, .group_words = 16, .order = chained)

static void pack_fp32(int width, const BgemmSource *s, char *panels, size_t panel)
{
    int64_t floats = (int64_t)(panel / sizeof(float)), end = width * bgemm_depth(s->depth);
    float  *to = (float *)panels;
    sgemm_pack(DT_BF16, s->along, width, s->count, s->depth, s->data, s->stride, to, floats);
    for (int64_t i = 0; i < s->count; i += width, to += floats)
        memset(to + width * s->depth, 0, (size_t)(end - width * s->depth) * sizeof(float));
}

#define PACK_FP32(name, wide) \
    static void name(const BgemmSource *s, char *panels, size_t panel) \
    { \
        pack_fp32(wide, s, panels, panel); \
    }

PACK_FP32(pack_6, 6)
PACK_FP32(pack_12, 12)
PACK_FP32(pack_16, 16)
PACK_FP32(pack_32, 32)

/* Treats denormals as 0 on this thread, until _mm_setcsr of the returned value. */
static unsigned flush_denormals(void)
{
    const unsigned to_zero = 0x8000, are_zero = 0x40;
    unsigned       before = _mm_getcsr();
    _mm_setcsr(before | to_zero | are_zero);
    return before;
}

static const BgemmKernel avx2 = {"AVX2", 6, 16, 4, pack_6, pack_16, avx2_tile, NULL, NULL};
static const BgemmKernel avx512 = {"AVX-512", 12, 32, 4, pack_12, pack_32, avx512_tile, NULL, NULL};
static const BgemmKernel pairs = {"AVX512_BF16", 12, 32, 2, pairs_pack_a, pairs_pack_b, pairs_tile, NULL, NULL};
static const BgemmKernel amx = {"AMX", 32, 32, 2, amx_pack_a, amx_pack_b, amx_tile, amx_begin, amx_end};

/* VDPBF16PS takes as long as four multiply-adds on Intel's processors, and as long as one multiply-add on AMD's. */
static bool pairs_are_fast(void)
{
    return __builtin_cpu_is("amd");
}

int bgemm_kernels(const BgemmKernel **out)
{
    int  count = 0;
    bool has_pairs = cpu_has_bf16(), fast_pairs = pairs_are_fast();
    if (cpu_amx()) out[count++] = &amx;
    if (has_pairs && fast_pairs) out[count++] = &pairs;
    if (cpu_avx512()) out[count++] = &avx512;
    if (has_pairs && !fast_pairs) out[count++] = &pairs;
    out[count++] = &avx2;
    return count;
}

const BgemmKernel *bgemm_amx(void)
{
    return &amx;
}

const BgemmKernel *bgemm_kernel(void)
{
    const BgemmKernel *kernels[BGEMM_KERNELS];
    bgemm_kernels(kernels);
    return kernels[0];
}

/* The mode for denormals is switched once for several panels of a. */
void bgemm_run(const BgemmKernel *kernel, int64_t m, int64_t n, int64_t k, const char *a, const char *b, size_t panel, BgemmTake take,
               void *context)
{
    float   sums[SUM_ROWS * BGEMM_COLS] __attribute__((aligned(64)));
    size_t  a_panel = bgemm_panel(kernel, kernel->rows, k);
    int64_t together = SUM_ROWS / kernel->rows * kernel->rows;
    if (kernel->begin) kernel->begin();
    for (int64_t j = 0; j < n; j += kernel->cols, b += panel) {
        const char *rows = a;
        for (int64_t i = 0; i < m; i += together) {
            int64_t  end = least(together, m - i);
            unsigned before = flush_denormals();
            for (int64_t r = 0; r < end; r += kernel->rows, rows += a_panel) kernel->tile(bgemm_depth(k), rows, b, sums + r * kernel->cols);
            _mm_setcsr(before);
            take(context, i, j, sums, kernel->cols, end, least(kernel->cols, n - j));
        }
    }
    if (kernel->end) kernel->end();
}

/* ---- few rows ---- */

/* Prefetches columns of b into the L2 cache, AHEAD elements further on. Each block of l prefetches one of LINES parts of the columns, in
 * turn: LINES cache lines of each column of the part. The L1 cache allows too few requests in flight to keep memory busy. */
static inline __attribute__((always_inline)) void fetch_ahead(const int cols, int64_t l, const BgemmCols *b)
{
    int64_t         part = l / BGEMM_BLOCK % LINES, from = l - part * BGEMM_BLOCK + AHEAD;
    const uint16_t *at = b->data + from + (from < b->left ? 0 : b->jump) + part * (cols / LINES) * b->stride;
#pragma GCC unroll 4
    for (int j = 0; j < cols / LINES; j++, at += b->stride)
#pragma GCC unroll 4
        for (int line = 0; line < LINES; line++) __builtin_prefetch(at + line * BGEMM_BLOCK, 0, 2);
}

/* Lanes are columns: a block of 16 columns is transposed in registers, so that a word holds two neighbouring elements of a column. */
WIDE static inline __attribute__((always_inline)) void few_wide(const int rows, int64_t cols, int64_t k, const float *a, int64_t a_stride,
                                                                const BgemmCols *b, float *sums)
{
    static const Layout layout = {.order = neighbours};
    const __m512i       upper = _mm512_set1_epi32((int)0xffff0000);
    __m512              sum[BGEMM_FEW];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) sum[r] = _mm512_setzero_ps();
    for (int64_t l = 0; l < k; l += BGEMM_BLOCK) {
        __m512i x[GROUP];
        __m512  even[BGEMM_FEW], odd[BGEMM_FEW];
        fetch_ahead(GROUP, l, b);
        load_along(&layout, b->data + l, b->stride, cols, k - l, x);
        turn16(x);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) even[r] = odd[r] = _mm512_setzero_ps();
#pragma GCC unroll 16
        for (int p = 0; p < GROUP; p++) {
            __m512 first = _mm512_castsi512_ps(_mm512_slli_epi32(x[p], 16)), second = _mm512_castsi512_ps(_mm512_and_si512(x[p], upper));
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) {
                const float *of_a = a + r * a_stride + l + 2 * p;
                even[r] = _mm512_fmadd_ps(_mm512_set1_ps(of_a[0]), first, even[r]);
                odd[r] = _mm512_fmadd_ps(_mm512_set1_ps(of_a[1]), second, odd[r]);
            }
        }
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) sum[r] = _mm512_add_ps(sum[r], _mm512_add_ps(even[r], odd[r]));
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) _mm512_storeu_ps(sums + r * BGEMM_FEW_COLS, sum[r]);
}

#define PAIRS __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))

/* Like few_wide, but by VDPBF16PS: elements of a and b are in its order of pairs, and aren't converted to floats. */
PAIRS static inline __attribute__((always_inline)) void few_pairs(const int rows, int64_t cols, int64_t k, const uint32_t *a,
                                                                  int64_t a_stride, const BgemmCols *b, float *sums)
{
    static const Layout layout = {.order = chained};
    __m512              sum[BGEMM_FEW];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) sum[r] = _mm512_setzero_ps();
    for (int64_t l = 0; l < k; l += BGEMM_BLOCK, a += GROUP) {
        __m512i x[GROUP];
        __m512  even[BGEMM_FEW], odd[BGEMM_FEW];
        fetch_ahead(GROUP, l, b);
        load_along(&layout, b->data + l, b->stride, cols, k - l, x);
        turn16(x);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) even[r] = odd[r] = _mm512_setzero_ps();
#pragma GCC unroll 8
        for (int p = 0; p < GROUP; p += 2)
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) {
                const uint32_t *of_a = a + r * a_stride + p;
                even[r] = _mm512_dpbf16_ps(even[r], (__m512bh)_mm512_set1_epi32((int)of_a[0]), (__m512bh)x[p]);
                odd[r] = _mm512_dpbf16_ps(odd[r], (__m512bh)_mm512_set1_epi32((int)of_a[1]), (__m512bh)x[p + 1]);
            }
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) sum[r] = _mm512_add_ps(sum[r], _mm512_add_ps(even[r], odd[r]));
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) _mm512_storeu_ps(sums + r * BGEMM_FEW_COLS, sum[r]);
}

/* A block of 8 columns with `depth` elements each, of which `cols` columns exist: in place, or padded with zeros in `filled`, whose stride
 * is set. */
static inline const uint16_t *whole_block(const uint16_t *at, int64_t *stride, int64_t cols, int64_t depth, uint16_t filled[8][BGEMM_BLOCK])
{
    if (cols >= 8 && depth >= BGEMM_BLOCK) return at;
    memset(filled, 0, 8 * sizeof *filled);
    for (int64_t j = 0; j < least(8, cols); j++) memcpy(filled[j], at + j * *stride, (size_t)least(BGEMM_BLOCK, depth) * sizeof **filled);
    *stride = BGEMM_BLOCK;
    return filled[0];
}

/* As few_wide, with 8 columns at a time. */
static inline __attribute__((always_inline)) void few_narrow(const int rows, int64_t cols, int64_t k, const float *a, int64_t a_stride,
                                                             const BgemmCols *b, float *sums)
{
    const __m256i upper = _mm256_set1_epi32((int)0xffff0000);
    uint16_t      filled[8][BGEMM_BLOCK];
    __m256        sum[BGEMM_FEW], even[BGEMM_FEW], odd[BGEMM_FEW];
    for (int r = 0; r < rows; r++) sum[r] = _mm256_setzero_ps();
    for (int64_t l = 0; l < k; l += BGEMM_BLOCK) {
        int64_t         stride = b->stride;
        const uint16_t *block = whole_block(b->data + l, &stride, cols, k - l, filled);
        fetch_ahead(8, l, b);
        for (int r = 0; r < rows; r++) even[r] = odd[r] = _mm256_setzero_ps();
        for (int64_t half = 0; half < BGEMM_BLOCK; half += BGEMM_BLOCK / 2) {
            __m256 x[8];
            for (int j = 0; j < 8; j++) x[j] = _mm256_loadu_ps((const float *)(const void *)(block + j * stride + half));
            turn8(x);
            for (int p = 0; p < 8; p++) {
                __m256i pair = _mm256_castps_si256(x[p]);
                __m256  first = _mm256_castsi256_ps(_mm256_slli_epi32(pair, 16)),
                       second = _mm256_castsi256_ps(_mm256_and_si256(pair, upper));
                for (int r = 0; r < rows; r++) {
                    const float *of_a = a + r * a_stride + l + half + 2 * p;
                    even[r] = _mm256_fmadd_ps(_mm256_set1_ps(of_a[0]), first, even[r]);
                    odd[r] = _mm256_fmadd_ps(_mm256_set1_ps(of_a[1]), second, odd[r]);
                }
            }
        }
        for (int r = 0; r < rows; r++) sum[r] = _mm256_add_ps(sum[r], _mm256_add_ps(even[r], odd[r]));
    }
    for (int r = 0; r < rows; r++) _mm256_storeu_ps(sums + r * BGEMM_FEW_COLS, sum[r]);
}

/* Calls the function with `rows` as a constant. */
#define FEW_OF(function, ...) \
    do { \
        if (rows == 1) \
            function(1, __VA_ARGS__); \
        else if (rows == 2) \
            function(2, __VA_ARGS__); \
        else if (rows == 3) \
            function(3, __VA_ARGS__); \
        else \
            function(BGEMM_FEW, __VA_ARGS__); \
    } while (0)

WIDE static void run_few_wide(int rows, int64_t cols, int64_t k, const float *a, int64_t a_stride, const BgemmCols *b, float *sums)
{
    FEW_OF(few_wide, cols, k, a, a_stride, b, sums);
}

PAIRS static void run_few_pairs(int rows, int64_t cols, int64_t k, const uint32_t *a, int64_t a_stride, const BgemmCols *b, float *sums)
{
    FEW_OF(few_pairs, cols, k, a, a_stride, b, sums);
}

static void run_few_narrow(int rows, int64_t cols, int64_t k, const float *a, int64_t a_stride, const BgemmCols *b, float *sums)
{
    BgemmCols some = *b;
    for (int64_t j = 0; j < BGEMM_FEW_COLS; j += 8, some.data += 8 * some.stride)
        FEW_OF(few_narrow, cols - j, k, a, a_stride, &some, sums + j);
}

/* With one row a product waits for memory either way, and even longer by VDPBF16PS: loads that catch up with their prefetches leave fewer
 * requests in flight. */
bool bgemm_few_paired(int64_t rows)
{
    return rows > 1 && cpu_has_bf16() && pairs_are_fast();
}

/* Whether 16 columns are read at a time, or 8. For one row 8 are faster on AMD's processors: their prefetchers follow so many streams. */
static bool few_is_wide(int rows)
{
    return cpu_avx512() && (rows > 1 || !__builtin_cpu_is("amd"));
}

WIDE static void row_of_pairs(const uint16_t *row, int64_t k, float *to)
{
    __m512i order = _mm512_loadu_si512(chained);
    for (int64_t l = 0; l < k; l += BGEMM_BLOCK, to += GROUP) {
        __mmask32 there = k - l >= BGEMM_BLOCK ? UINT32_MAX : (1u << (k - l)) - 1;
        _mm512_storeu_si512(to, _mm512_permutexvar_epi16(order, _mm512_maskz_loadu_epi16(there, row + l)));
    }
}

static void row_of_floats(const uint16_t *row, int64_t k, float *to)
{
    for (int64_t i = 0; i < k; i++) {
        uint32_t bits = (uint32_t)row[i] << 16;
        memcpy(to + i, &bits, sizeof bits);
    }
    memset(to + k, 0, (size_t)(bgemm_depth(k) - k) * sizeof *to);
}

void bgemm_few_row(bool paired, const uint16_t *row, int64_t k, float *to)
{
    (paired ? row_of_pairs : row_of_floats)(row, k, to);
}

void bgemm_few(bool paired, int rows, int64_t cols, int64_t from, int64_t k, const float *a, int64_t a_stride, const BgemmCols *b,
               float *sums)
{
    unsigned before = flush_denormals();
    if (paired)
        run_few_pairs(rows, cols, k, (const uint32_t *)(const void *)a + from / 2, a_stride, b, sums);
    else
        (few_is_wide(rows) ? run_few_wide : run_few_narrow)(rows, cols, k, a + from, a_stride, b, sums);
    _mm_setcsr(before);
}

/* ---- one row ---- */

/* Lanes are 8 blocks of one column, so that memory is read strictly in its order, which is fastest. Blocks' sums are then added up in
 * order, 8 columns at a time. */
enum {
    ONE_GROUP = 8 * BGEMM_BLOCK, /* elements of a column whose blocks' sums are computed at once */
    ONE_AHEAD = 8192,            /* how many elements ahead memory is prefetched into the L2 cache */
    ONE_LINES = 7,               /* of the 8 cache lines of a group, how many are prefetched while its sums are computed */
};

int64_t bgemm_one_floats(int64_t k)
{
    return (k + ONE_GROUP - 1) / ONE_GROUP * ONE_GROUP;
}

static inline __m256 floats_of_eight(const uint16_t *at)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)at)), 16));
}

/* A group in place, or padded with zeros in `filled`. */
static inline const uint16_t *whole_group(const uint16_t *at, int64_t depth, uint16_t filled[ONE_GROUP])
{
    if (depth >= ONE_GROUP) return at;
    memset(filled, 0, ONE_GROUP * sizeof *filled);
    memcpy(filled, at, (size_t)depth * sizeof *filled);
    return filled;
}

void bgemm_one_row(const uint16_t *row, int64_t k, float *to)
{
    uint16_t filled[ONE_GROUP];
    for (int64_t l = 0; l < k; l += ONE_GROUP) {
        const uint16_t *group = whole_group(row + l, k - l, filled);
        for (int i = 0; i < BGEMM_BLOCK; i += 8, to += 64) {
            __m256 x[8];
            for (int j = 0; j < 8; j++) x[j] = floats_of_eight(group + j * BGEMM_BLOCK + i);
            turn8(x);
            for (int j = 0; j < 8; j++) _mm256_storeu_ps(to + 8 * j, x[j]);
        }
    }
}

/* The sums of 8 blocks of a column, in lanes. */
static inline __m256 sums_of_group(const float *a, const uint16_t *b)
{
    const __m256i upper = _mm256_set1_epi32((int)0xffff0000);
    __m256        even = _mm256_setzero_ps(), odd = even;
#pragma GCC unroll 2
    for (int half = 0; half < BGEMM_BLOCK; half += BGEMM_BLOCK / 2) {
        __m256 x[8];
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) x[j] = _mm256_loadu_ps((const float *)(const void *)(b + j * BGEMM_BLOCK + half));
        turn8(x);
#pragma GCC unroll 8
        for (int p = 0; p < 8; p++, a += 16) {
            __m256i pair = _mm256_castps_si256(x[p]);
            even = _mm256_fmadd_ps(_mm256_loadu_ps(a), _mm256_castsi256_ps(_mm256_slli_epi32(pair, 16)), even);
            odd = _mm256_fmadd_ps(_mm256_loadu_ps(a + 8), _mm256_castsi256_ps(_mm256_and_si256(pair, upper)), odd);
        }
    }
    return _mm256_add_ps(even, odd);
}

/* Blocks' sums of 8 columns, [column][block]. Columns that were a multiple of a page apart would share cache sets; these aren't. */
typedef float OneBlocks[8][BGEMM_ONE_DEPTH / BGEMM_BLOCK + 8];

/* State of 8 columns while sums of blocks are added up to runs. */
typedef struct OneRuns {
    __m256  now;                                     /* the sums of the current run so far */
    int64_t left;                                    /* blocks that the current run still lacks */
    int64_t count;                                   /* runs that ended */
    float   ended[BGEMM_ONE_DEPTH / BGEMM_BLOCK][8]; /* sums of the runs that ended */
} OneRuns;

/* Prefetches the next `lines` cache lines into the L2 cache. */
static inline __attribute__((always_inline)) void fetch_lines(const uint16_t **ahead, int lines)
{
#pragma GCC unroll 8
    for (int i = 0; i < lines; i++, *ahead += BGEMM_BLOCK) __builtin_prefetch(*ahead, 0, 2);
}

/* Computes the sums of a column's blocks over its depth. For each group a part of its cache lines is prefetched; add_up prefetches
 * the rest, so that memory is never idle. */
static inline void sums_of_blocks(int64_t depth, const float *a, const uint16_t *b, float *sums, const uint16_t **ahead)
{
    uint16_t filled[ONE_GROUP];
    for (int64_t l = 0; l < depth; l += ONE_GROUP) {
        fetch_lines(ahead, ONE_LINES);
        _mm256_storeu_ps(sums + l / BGEMM_BLOCK, sums_of_group(a + l, whole_group(b + l, depth - l, filled)));
    }
}

static inline void end_run(OneRuns *runs, int64_t run)
{
    _mm256_storeu_ps(runs->ended[runs->count++], runs->now);
    runs->now = _mm256_setzero_ps();
    runs->left = run / BGEMM_BLOCK;
}

/* Adds the sums of `count` blocks of 8 columns to the columns' runs. */
static inline void add_up(OneRuns *runs, int64_t run, int64_t count, OneBlocks blocks, const uint16_t **ahead)
{
    for (int64_t at = 0; at < count; at += 8) {
        __m256 x[8];
        fetch_lines(ahead, 8 * (8 - ONE_LINES));
        for (int j = 0; j < 8; j++) x[j] = _mm256_loadu_ps(blocks[j] + at);
        turn8(x);
        for (int i = 0; i < least(8, count - at); i++) {
            runs->now = _mm256_add_ps(runs->now, x[i]);
            if (--runs->left == 0) end_run(runs, run);
        }
    }
}

/* Computes the runs of `cols` columns, 8 columns at a time. */
static void add_runs(const BgemmOne *job, int64_t cols, const uint16_t *b, OneRuns *runs)
{
    unsigned        before = flush_denormals();
    const uint16_t *ahead = b + ONE_AHEAD;
    for (int64_t col = 0; col < cols; col += 8, runs++) {
        OneBlocks blocks;
        runs->now = _mm256_setzero_ps();
        runs->left = job->run / BGEMM_BLOCK;
        runs->count = 0;
        for (int64_t j = col; j < col + 8; j++) sums_of_blocks(job->k, job->a, b + least(j, cols - 1) * job->k, blocks[j - col], &ahead);
        add_up(runs, job->run, bgemm_depth(job->k) / BGEMM_BLOCK, blocks, &ahead);
        if (runs->left < job->run / BGEMM_BLOCK) end_run(runs, job->run);
    }
    _mm_setcsr(before);
}

/* Runs are multiplied by the factor in the caller's mode for denormals, like runs that tiles computed. */
void bgemm_one(const BgemmOne *job, int64_t cols, const uint16_t *b, float *sums)
{
    OneRuns runs[BGEMM_FEW_COLS / 8];
    add_runs(job, cols, b, runs);
    for (int64_t i = 0; 8 * i < cols; i++) {
        __m256 all = _mm256_loadu_ps(sums + 8 * i);
        for (int64_t r = 0; r < runs[i].count; r++)
            all = _mm256_fmadd_ps(_mm256_loadu_ps(runs[i].ended[r]), _mm256_set1_ps(job->factor), all);
        _mm256_storeu_ps(sums + 8 * i, all);
    }
}
