/* Products of bf16 matrices on one thread, in tiles, as sgemm.h's of fp32. An element is a sum over blocks of 32 along the
 * depth. In a block its even and its odd products are two chains of fused multiply-adds from 0; the block's sum is that of
 * both. Denormals are taken for 0. That is what AMX's TDPBF16PS does (Intel, Software Developer's Manual); VDPBF16PS
 * does the same where pairs lie in its order, and so do multiply-adds of fp32. The bits are those of any kernel. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    BGEMM_BLOCK = 32,  /* along the depth; panels are filled up to it with 0 */
    BGEMM_COLS = 32,   /* of a tile, at most */
    BGEMM_KERNELS = 4, /* at most */
    BGEMM_LINE = 64,   /* bytes of a cache line */
    BGEMM_FEW = 4,     /* rows, of which b needn't be packed */
    BGEMM_FEW_COLS = 16,
};

/* Where a part of an operand lies: `count` rows of a or columns of b, over a depth. */
typedef struct BgemmSource {
    const uint16_t *data;
    int64_t         stride; /* elements from a stored row to the next */
    bool            along;  /* what lies side by side is the depth */
    int64_t         count, depth;
} BgemmSource;

typedef struct BgemmKernel {
    const char *name;
    int         rows, cols;                                           /* of a tile */
    int         bytes;                                                /* of an element in panels */
    void (*pack_a)(const BgemmSource *a, char *panels, size_t panel); /* bytes from one panel to the next */
    void (*pack_b)(const BgemmSource *b, char *panels, size_t panel);
    void (*tile)(int64_t depth, const void *a, const void *b, float *sums); /* sums (rows, cols) of one panel each */
    void (*begin)(void);                                                    /* before tiles on a thread, and after; NULL: nothing to do */
    void (*end)(void);
} BgemmKernel;

/* The fastest kernel that this CPU runs. */
const BgemmKernel *bgemm_kernel(void);

/* Those it runs, the fastest first: fills out (room for BGEMM_KERNELS) and returns how many. */
int bgemm_kernels(const BgemmKernel **out);

/* AMX's, whether this CPU runs it or not; packing takes AVX-512 alone. */
const BgemmKernel *bgemm_amx(void);

static inline int64_t bgemm_depth(int64_t depth)
{
    return (depth + BGEMM_BLOCK - 1) / BGEMM_BLOCK * BGEMM_BLOCK;
}

/* Bytes from a panel of `width` rows or columns to the next: a line apart, since panels of whole pages would share one place of the
 * cache, and what lies across the depth is copied to all of them. */
static inline size_t bgemm_panel(const BgemmKernel *kernel, int width, int64_t depth)
{
    return (size_t)(width * bgemm_depth(depth)) * (size_t)kernel->bytes + BGEMM_LINE;
}

/* Takes sums [row, row + rows) x [col, col + cols) of a product, `stride` floats from one row to the next. */
typedef void (*BgemmTake)(void *context, int64_t row, int64_t col, const float *sums, int64_t stride, int64_t rows, int64_t cols);

/* a b (m,n) of panels of depth k, which `take` gets in parts, at most BGEMM_COLS columns each; `panel` bytes from one panel of b to
 * the next. */
void bgemm_run(const BgemmKernel *kernel, int64_t m, int64_t n, int64_t k, const char *a, const char *b, size_t panel, BgemmTake take,
               void *context);

/* Columns of b, which lie along the depth, `stride` numbers apart. left: how many numbers a column has from there on; what comes into the
 * caches after them lies `jump` numbers further. */
typedef struct BgemmCols {
    const uint16_t *data;
    int64_t         stride, left, jump;
} BgemmCols;

/* sums (rows, BGEMM_FEW_COLS) of `rows` rows of a, BGEMM_FEW at most, and `cols` columns of b, BGEMM_FEW_COLS at most, over depth k, with
 * the bits of tiles; what is behind cols is zeros. Rows of a are floats, `a_stride` apart, zeros from k to bgemm_depth(k). */
void bgemm_few(int rows, int64_t cols, int64_t k, const float *a, int64_t a_stride, const BgemmCols *b, float *sums);
