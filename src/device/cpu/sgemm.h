/* Products of fp32 matrices on one thread, in tiles that stay in registers (Goto and van de Geijn 2008; Van Zee and van
 * de Geijn 2015). An element of the result is a chain of fused multiply-adds over k in order, so that its bits depend
 * neither on the instruction set nor on how a product is cut up. */
#pragma once

#include "base/dtype.h"

enum {
    SGEMM_ROWS = 24, /* a multiple of every kernel's tile rows, so that this many rows of a fill whole panels */
    SGEMM_COLS = 32, /* a multiple of every kernel's tile columns */
    SGEMM_MOST_AHEAD = 2,
    SGEMM_SHALLOW = 64, /* depth up to which a product waits for c rather than for b (measured with 16 to 128) */
    SGEMM_STEPS = 4,    /* steps along the depth in one turn of a tile's loop: with fewer, counting would take the place of multiply-adds */
};

/* op(a): element (i,l) of the block is at panel * (i / rows) + row * (i % rows) + col * l, where `rows` is the kernel's; row or col is
 * 1. */
typedef struct SgemmA {
    const float *data;
    int64_t      panel, row, col;
} SgemmA;

/* op(b): element (l,j) is at panel * (j / cols) + row * l + j % cols, where `cols` is the kernel's. */
typedef struct SgemmB {
    const float *data;
    int64_t      panel, row;
} SgemmB;

enum {
    SGEMM_ADD = 1,       /* to c */
    SGEMM_FAR = 2,       /* c is in memory, not in caches: a tile's part of c is prefetched during the tile before */
    SGEMM_BY_ROWS = 4,   /* tiles row by row: a tile's rows of a stay in the L1 cache, and panels of b are read one after the other */
    SGEMM_TWO_LINES = 8, /* prefetch two lines at a time */
};

/* c (rows,cols) (+)= alpha a b over depth k; neither c nor b is touched beyond the last column. Every SGEMM_STEPS steps it prefetches: one
 * cache line at `ahead` (SGEMM_TWO_LINES: two), which then moves on by `step` bytes; at `stream`, if not NULL, as many bytes as these steps
 * read of an unpacked a; and a row of the tile at next_c, if not NULL. */
typedef void (*SgemmTile)(int rows, int cols, int64_t k, float alpha, const float *a, int64_t a_stride, const float *b, int64_t b_stride,
                          float *c, int64_t c_stride, int how, const char *ahead, int64_t step, const char *stream, const float *next_c);

/* Computes `tiles` whole tiles side by side, whose panels of b are `b_panel` floats apart. Like SgemmTile, but prefetches nothing. */
typedef void (*SgemmBand)(int64_t tiles, int64_t k, float alpha, const float *a, int64_t a_stride, const float *b, int64_t b_panel,
                          int64_t b_stride, float *c, int64_t c_stride, int how);

typedef struct SgemmKernel {
    const char *name;
    int         rows, cols;  /* of a tile */
    SgemmTile   along_rows;  /* for each l the elements of a's rows are contiguous; a_stride: from one l to the next */
    SgemmTile   along_depth; /* each row of a is contiguous; a_stride: from one row to the next */
    SgemmBand   band_along_rows, band_along_depth;
    bool        far; /* panels don't fit into the L1 cache; so packing an operand stored across the depth gains nothing */
} SgemmKernel;

/* The fastest kernel that this CPU runs. */
const SgemmKernel *sgemm_kernel(void);

/* The kernels that this CPU runs, the fastest first: fills `out` (room for 2) and returns their number. */
int sgemm_kernels(const SgemmKernel **out);

/* a or b in place: f32, `stride` elements from a stored row to the next; trans: a is stored (k,m). */
SgemmA sgemm_a(const SgemmKernel *kernel, bool trans, const float *a, int64_t stride);
SgemmB sgemm_b(const SgemmKernel *kernel, const float *b, int64_t stride);

/* Packs `total` rows or columns (f32, bf16, f16, FP8 or i8) of depth k into panels of `width`: 6, 12, 16 or 32. turn: the depth is
 * contiguous. panel: floats from one panel to the next. With a width of 6 the 2 floats after each panel's depth may be overwritten. */
void sgemm_pack(DType dtype, bool turn, int width, int64_t total, int64_t k, const void *data, int64_t stride, float *panels,
                int64_t panel);

/* Packs `rows` rows of op(a) (f32, bf16, f16, FP8 or i8) of depth k into panels, which have room for sgemm_packed(rows, SGEMM_ROWS, k)
 * floats. */
SgemmA sgemm_pack_a(const SgemmKernel *kernel, bool trans, int64_t rows, int64_t k, const void *a, DType dtype, int64_t stride,
                    float *panels);

/* Packs `cols` columns of op(b) (f32, bf16, f16, FP8 or i8) of depth k into panels, which have room for sgemm_packed(cols, SGEMM_COLS, k)
 * floats. trans: b is stored (n,k). panel: floats from one panel to the next, the kernel's cols * k, or more if panels hold a larger depth
 * than k. */
SgemmB sgemm_pack_b(const SgemmKernel *kernel, bool trans, int64_t cols, int64_t k, const void *b, DType dtype, int64_t stride,
                    float *panels, int64_t panel);

/* Floats of panels of `count` rows or columns, gaps included; measure: SGEMM_ROWS or SGEMM_COLS. */
static inline int64_t sgemm_packed(int64_t count, int64_t measure, int64_t k)
{
    return (count + measure - 1) / measure * measure * (k + 16) + 16;
}

/* Data read after a product, and prefetched during it: `lines` cache lines of each of `rows` rows, `stride` bytes apart. */
typedef struct SgemmAhead {
    const void *data;
    int64_t     lines, stride, rows;
} SgemmAhead;

/* c (m,n) = alpha a b, or += with SGEMM_ADD; how: SGEMM_ADD | SGEMM_FAR | SGEMM_BY_ROWS; num_ahead: SGEMM_MOST_AHEAD at most. */
void sgemm_run(const SgemmKernel *kernel, int64_t m, int64_t n, int64_t k, float alpha, SgemmA a, SgemmB b, float *c, int64_t c_stride,
               int how, const SgemmAhead *ahead, int num_ahead);
