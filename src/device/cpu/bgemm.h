/* Products of bf16 matrices on one thread, in tiles, as sgemm.h has them for fp32. An element of the result is a sum over blocks of 32
 * along the depth. Within a block, even products and odd products are two chains of fused multiply-adds from 0; the block's sum is the sum
 * of both. Denormals count as 0. AMX's TDPBF16PS computes exactly this (Intel, Software Developer's Manual). So does VDPBF16PS if pairs are
 * stored in its order, and so do multiply-adds of fp32. All kernels thus give the same bits. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    BGEMM_BLOCK = 32,  /* elements along the depth; panels are padded to a multiple of it with 0 */
    BGEMM_COLS = 32,   /* columns of a tile, at most */
    BGEMM_KERNELS = 4, /* the most kernels that a CPU runs */
    BGEMM_LINE = 64,   /* bytes of a cache line */
    BGEMM_FEW = 4,     /* rows of a, at most, for which b needn't be packed */
    BGEMM_FEW_COLS = 16,
    BGEMM_ONE_DEPTH = 4096, /* depth of bgemm_one, at most: with a deeper row of a, which leaves the L1 cache, bgemm_few is faster */
};

/* A part of an operand in memory: `count` rows of a or columns of b, `depth` elements of each. */
typedef struct BgemmSource {
    const uint16_t *data;
    int64_t         stride; /* elements from a stored row to the next */
    bool            along;  /* stored rows run along the depth */
    int64_t         count, depth;
} BgemmSource;

typedef struct BgemmKernel {
    const char *name;
    int         rows, cols;                                           /* of a tile */
    int         bytes;                                                /* bytes of a packed element */
    void (*pack_a)(const BgemmSource *a, char *panels, size_t panel); /* panel: bytes from one panel to the next */
    void (*pack_b)(const BgemmSource *b, char *panels, size_t panel);
    void (*tile)(int64_t depth, const void *a, const void *b, float *sums); /* sums (rows, cols) of a panel of a and one of b */
    void (*begin)(void);                                                    /* called before and after a thread's tiles; NULL: no call */
    void (*end)(void);
} BgemmKernel;

/* The fastest kernel that this CPU runs. */
const BgemmKernel *bgemm_kernel(void);

/* The kernels that this CPU runs, the fastest first: fills `out` (room for BGEMM_KERNELS) and returns their number. */
int bgemm_kernels(const BgemmKernel **out);

/* The AMX kernel, even if this CPU doesn't run it; its packing needs only AVX-512. */
const BgemmKernel *bgemm_amx(void);

static inline int64_t bgemm_depth(int64_t depth)
{
    return (depth + BGEMM_BLOCK - 1) / BGEMM_BLOCK * BGEMM_BLOCK;
}

/* Bytes from a panel of `width` rows or columns to the next. Panels are a cache line apart: panels of whole pages would map to the same
 * cache sets, and data stored across the depth is copied to all panels. */
static inline size_t bgemm_panel(const BgemmKernel *kernel, int width, int64_t depth)
{
    return (size_t)(width * bgemm_depth(depth)) * (size_t)kernel->bytes + BGEMM_LINE;
}

/* Receives sums [row, row + rows) x [col, col + cols) of a product, `stride` floats from one row to the next. */
typedef void (*BgemmTake)(void *context, int64_t row, int64_t col, const float *sums, int64_t stride, int64_t rows, int64_t cols);

/* Computes a b (m,n) from packed panels of depth k. `take` receives the result in parts, at most BGEMM_COLS columns each. panel: bytes from
 * one panel of b to the next. */
void bgemm_run(const BgemmKernel *kernel, int64_t m, int64_t n, int64_t k, const char *a, const char *b, size_t panel, BgemmTake take,
               void *context);

/* Columns of b, each contiguous, `stride` elements apart. left: elements of a column from `data` on. jump: added to a prefetch beyond a
 * column's end, so that it reaches the columns read next. */
typedef struct BgemmCols {
    const uint16_t *data;
    int64_t         stride, left, jump;
} BgemmCols;

/* Whether bgemm_few reads rows of a as pairs of bf16, when a has `rows` rows. Else it reads floats. */
bool bgemm_few_paired(int64_t rows);

/* Stores a row of a, k elements, as bgemm_few reads it: in bgemm_depth(k) words. */
void bgemm_few_row(bool paired, const uint16_t *row, int64_t k, float *to);

/* Computes sums (rows, BGEMM_FEW_COLS) of `rows` rows of a (at most BGEMM_FEW) and `cols` columns of b (at most BGEMM_FEW_COLS) over depth
 * [from, from + k), with the bits of tiles. `from` is a multiple of BGEMM_BLOCK. Sums of columns from `cols` on are 0. Rows of a were
 * stored by bgemm_few_row, `a_stride` words apart; b begins at depth `from`. */
void bgemm_few(bool paired, int rows, int64_t cols, int64_t from, int64_t k, const float *a, int64_t a_stride, const BgemmCols *b,
               float *sums);

/* A product of one row of a with columns of b, which follow each other in memory. */
typedef struct BgemmOne {
    int64_t      k, run; /* k: depth, at most BGEMM_ONE_DEPTH; run: depth of a run, a multiple of BGEMM_BLOCK */
    float        factor;
    const float *a; /* stored by bgemm_one_row */
} BgemmOne;

/* Floats of a row of k elements, as bgemm_one_row stores it. */
int64_t bgemm_one_floats(int64_t k);

/* Stores a row of a as bgemm_one reads it. */
void bgemm_one_row(const uint16_t *row, int64_t k, float *to);

/* Adds to sums[j], for each run along the depth, the run's product with column j of b times the factor, rounded once. A run's product has
 * the bits of tiles. cols: columns of b, at most BGEMM_FEW_COLS; sums has room for BGEMM_FEW_COLS, and those from cols on are undefined. */
void bgemm_one(const BgemmOne *job, int64_t cols, const uint16_t *b, float *sums);
