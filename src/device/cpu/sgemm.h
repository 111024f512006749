/* Products of fp32 matrices on one thread, in tiles that stay in registers (Goto and van de Geijn 2008; Van Zee and van
 * de Geijn 2015). An element of the result is a chain of fused multiply-adds over k in order, so that its bits depend
 * neither on the instruction set nor on how a product is cut up. */
#pragma once

#include "base/dtype.h"

enum {
    SGEMM_ROWS = 24, /* a multiple of the rows of every kernel's tile: blocks of a in this measure fill whole panels */
    SGEMM_COLS = 32, /* the same of columns */
    SGEMM_MOST_AHEAD = 2,
    SGEMM_SHALLOW = 64, /* depth up to which a product waits for c rather than for b (measured with 16 to 128) */
    SGEMM_STEPS = 4,    /* along the depth that a tile takes at a time, since counting them costs multiply-adds */
};

/* op(a): element (i,l) of the block is at panel * (i / rows) + row * (i % rows) + col * l, with the kernel's rows; row or
 * col is 1. */
typedef struct SgemmA {
    const float *data;
    int64_t      panel, row, col;
} SgemmA;

/* op(b): element (l,j) at panel * (j / cols) + row * l + j % cols, with the kernel's cols. */
typedef struct SgemmB {
    const float *data;
    int64_t      panel, row;
} SgemmB;

enum {
    SGEMM_ADD = 1,       /* to c */
    SGEMM_FAR = 2,       /* c is in memory, not in caches: a tile's is fetched while the one before it is made */
    SGEMM_BY_ROWS = 4,   /* tiles row by row: a's rows of a tile stay in the first cache, and panels of b come one after the other */
    SGEMM_TWO_LINES = 8, /* of a tile */
};

/* c (rows,cols) (+)= alpha a b over depth k; cols beyond the last aren't touched, in b either. With each SGEMM_STEPS of
 * them comes a cache line into the caches, or with SGEMM_TWO_LINES two, from `ahead` on, `step` bytes further each time; from `stream` on,
 * if not NULL, as many bytes as the tile reads of an a that isn't packed; and a tile of c at next_c, if not NULL. */
typedef void (*SgemmTile)(int rows, int cols, int64_t k, float alpha, const float *a, int64_t a_stride, const float *b, int64_t b_stride,
                          float *c, int64_t c_stride, int how, const char *ahead, int64_t step, const char *stream, const float *next_c);

/* The same of so many whole tiles side by side, whose panels of b lie `b_panel` apart; nothing is fetched. */
typedef void (*SgemmBand)(int64_t tiles, int64_t k, float alpha, const float *a, int64_t a_stride, const float *b, int64_t b_panel,
                          int64_t b_stride, float *c, int64_t c_stride, int how);

typedef struct SgemmKernel {
    const char *name;
    int         rows, cols;  /* of a tile */
    SgemmTile   along_rows;  /* a's rows lie side by side, a_stride from one l to the next */
    SgemmTile   along_depth; /* a's depth lies side by side, a_stride from one row to the next */
    SgemmBand   band_along_rows, band_along_depth;
    bool        far; /* panels are too large for the first cache: an operand that lies across the depth needn't be packed */
} SgemmKernel;

/* The fastest kernel that this CPU runs. */
const SgemmKernel *sgemm_kernel(void);

/* Those it runs, the fastest first: fills out (room for 2) and returns how many. */
int sgemm_kernels(const SgemmKernel **out);

/* a or b where it lies: f32, `stride` elements from a stored row to the next; trans: a is stored (k,m). */
SgemmA sgemm_a(const SgemmKernel *kernel, bool trans, const float *a, int64_t stride);
SgemmB sgemm_b(const SgemmKernel *kernel, const float *b, int64_t stride);

/* Copies `total` rows or columns, f32, bf16, FP8 or i8, depth k, to panels of `width`: 6, 12, 16 or 32. turn: the depth lies side by side.
 * `panel` floats from one panel to the next; with a width of 6 the 2 after each panel's depth may be written. */
void sgemm_pack(DType dtype, bool turn, int width, int64_t total, int64_t k, const void *data, int64_t stride, float *panels,
                int64_t panel);

/* Copies `rows` rows of op(a), f32, bf16, FP8 or i8, depth k, to panels: room for sgemm_packed(rows, SGEMM_ROWS, k) floats. */
SgemmA sgemm_pack_a(const SgemmKernel *kernel, bool trans, int64_t rows, int64_t k, const void *a, DType dtype, int64_t stride,
                    float *panels);

/* Copies `cols` columns of op(b), f32, bf16, FP8 or i8, depth k, to panels: room for sgemm_packed(cols, SGEMM_COLS, k) floats.
 * trans: b is stored (n,k). `panel` floats from one panel to the next: the kernel's cols * k, or more where k is a part of
 * what they hold. */
SgemmB sgemm_pack_b(const SgemmKernel *kernel, bool trans, int64_t cols, int64_t k, const void *b, DType dtype, int64_t stride,
                    float *panels, int64_t panel);

/* Floats of panels of so many rows or columns, with what lies between them. */
static inline int64_t sgemm_packed(int64_t count, int64_t measure, int64_t k)
{
    return (count + measure - 1) / measure * measure * (k + 16) + 16;
}

/* What is read after a product, and comes into the caches meanwhile: of `rows` rows, `stride` bytes apart, so many cache lines. */
typedef struct SgemmAhead {
    const void *data;
    int64_t     lines, stride, rows;
} SgemmAhead;

/* c (m,n) = alpha a b, or += with SGEMM_ADD; how: SGEMM_ADD | SGEMM_FAR | SGEMM_BY_ROWS; num_ahead: SGEMM_MOST_AHEAD at most. */
void sgemm_run(const SgemmKernel *kernel, int64_t m, int64_t n, int64_t k, float alpha, SgemmA a, SgemmB b, float *c, int64_t c_stride,
               int how, const SgemmAhead *ahead, int num_ahead);
