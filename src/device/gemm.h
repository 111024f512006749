/* Gemm: the one description of a matrix product, made from a launch's views (or a node's types) by ops/products/products.h and read by
 * cost, the CPU (ops/products/gemm.c) and CUDA (device/cuda/gemm.c). */
#pragma once

#include "ir/op.h"

#ifdef __CUDACC__
#define GEMM_FN static __host__ __device__ inline
#else
#define GEMM_FN static inline
#endif

enum { GEMM_BLOCK = 128 }; /* elements that share a scale, along k or in both directions */

/* Which of an operand's elements share a scale. A row of an operand is a row of a or a column of b. Only b may have GEMM_SCALE_COLS, and
 * only if the product doesn't accumulate: the scales multiply the sums. */
typedef enum GemmScaling {
    GEMM_SCALE_WHOLE, /* all elements */
    GEMM_SCALE_ROWS,  /* GEMM_BLOCK elements of a row: scales (k / GEMM_BLOCK, rows) */
    GEMM_SCALE_TILES, /* GEMM_BLOCK x GEMM_BLOCK elements: scales (rows / GEMM_BLOCK, k / GEMM_BLOCK) */
    GEMM_SCALE_COLS,  /* all elements of a row: scales (n) */
} GemmScaling;

/* A matrix whose rows may be parts of wider rows. trans: stored transposed. */
typedef struct GemmOperand {
    void          *data;  /* NULL while planning: taken to be well aligned */
    const float   *scale; /* factor of the elements; NULL: 1 */
    DType          dtype;
    bool           trans;
    int64_t        stride; /* elements from a stored row to the next */
    int64_t        offset; /* elements from data to the first */
    GemmScaling    scaling;
    int64_t        scale_stride; /* floats from a row of scales to the next */
    bool           to_bf16;      /* an element times the scale of its block is rounded to bf16 */
    const uint8_t *blocks;       /* e2m1: a scale for each 16 elements along k, in tiles (base/nvfp4_tiles.h), besides `scale` */
} GemmOperand;

typedef enum GemmEpilogue { GEMM_PLAIN, GEMM_BIAS } GemmEpilogue;

/* c (m,n) = alpha a (m,k) b (k,n), plus c if `accumulate`, plus bias (n) in every row if `epilogue` is GEMM_BIAS. Products are summed in
 * fp32 (fp32 operands: no TF32) unless `fast`, and rounded once, when c is stored. c isn't transposed and has no scale. */
typedef struct Gemm {
    int64_t      m, n, k;
    GemmOperand  a, b, c, bias;
    GemmEpilogue epilogue;
    bool         accumulate;
    float        alpha;
    bool         fast;       /* 8-bit operands: sums may be kept in fewer bits than fp32 has */
    bool         rows_alone; /* a row of c has the same bits for any m (few-bit operands: if their scales don't depend on other rows) */
    bool         early, b_constant; /* KernelArgs.early; no launch of the program writes b (KernelArgs.constant) */
} Gemm;

/* Whether elements are multiplied by block scales before they are summed. */
GEMM_FN bool gemm_has_block_scales(const GemmOperand *x)
{
    return x->scaling == GEMM_SCALE_ROWS || x->scaling == GEMM_SCALE_TILES;
}

/* The scale of an element's block; x has block scales. */
GEMM_FN float gemm_block_scale(const GemmOperand *x, int64_t row, int64_t k)
{
    bool tiles = x->scaling == GEMM_SCALE_TILES;
    return x->scale[tiles ? row / GEMM_BLOCK * x->scale_stride + k / GEMM_BLOCK : k / GEMM_BLOCK * x->scale_stride + row];
}

/* A whole tensor (..., C) from element `offset` on; its stride is C. */
static inline GemmOperand gemm_operand(const TensorView *t, bool trans, int64_t offset)
{
    GemmOperand o = {t->data, NULL, t->type.dtype, trans, type_cols(&t->type), offset, GEMM_SCALE_WHOLE, 0, false, NULL};
    return o;
}

static inline Gemm gemm_of(int64_t m, int64_t n, int64_t k, GemmOperand a, GemmOperand b, GemmOperand c, double alpha, bool accumulate)
{
    GemmOperand none = {NULL, NULL, DT_F32, false, 0, 0, GEMM_SCALE_WHOLE, 0, false, NULL};
    Gemm        g = {m, n, k, a, b, c, none, GEMM_PLAIN, accumulate, (float)alpha, false, false, false, false};
    return g;
}
