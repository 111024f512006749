/* Gemm: the one description of a matrix product, made from a launch's views (or a node's types) by ops/products/products.h and read by
 * cost, the CPU (ops/products/gemm.c) and CUDA (device/cuda/gemm.c). */
#pragma once

#include "ir/op.h"

#ifdef __CUDACC__
#define GEMM_FN static __host__ __device__ inline
#else
#define GEMM_FN static inline
#endif

enum { GEMM_BLOCK = 128 }; /* numbers that share a scale, along k or both ways */

/* Which of an operand's numbers share a scale. A row of it is one of a, or a column of b. GEMM_SCALE_COLS is of b alone, of a product that
 * doesn't accumulate: sums of unscaled numbers are multiplied. */
typedef enum GemmScaling {
    GEMM_SCALE_WHOLE, /* all of them */
    GEMM_SCALE_ROWS,  /* GEMM_BLOCK of a row: scales (k / GEMM_BLOCK, rows) */
    GEMM_SCALE_TILES, /* GEMM_BLOCK of as many rows: scales (rows / GEMM_BLOCK, k / GEMM_BLOCK) */
    GEMM_SCALE_COLS,  /* a row: scales (n) */
} GemmScaling;

/* A matrix within rows that may be wider. trans: stored the other way round. */
typedef struct GemmOperand {
    void          *data;  /* NULL while planning: well aligned */
    const float   *scale; /* what its numbers are multiplied by; NULL: by 1 */
    DType          dtype;
    bool           trans;
    int64_t        stride; /* elements from a stored row to the next */
    int64_t        offset; /* elements from data to the first */
    GemmScaling    scaling;
    int64_t        scale_stride; /* floats from a row of scales to the next */
    bool           to_bf16;      /* numbers times the scale of their block are rounded to bf16 */
    const uint8_t *blocks;       /* of e2m1: scales of each 16 numbers along k beside the one of the whole, in tiles (base/nvfp4_tiles.h) */
} GemmOperand;

typedef enum GemmEpilogue { GEMM_PLAIN, GEMM_BIAS } GemmEpilogue;

/* c (m,n) = alpha a (m,k) b (k,n), plus c where it accumulates, plus bias (n) in every row where the epilogue says so. Products
 * are summed in fp32 (fp32 operands: no TF32) unless `fast`, rounded once, when c is stored. c isn't transposed and has no scale. */
typedef struct Gemm {
    int64_t      m, n, k;
    GemmOperand  a, b, c, bias;
    GemmEpilogue epilogue;
    bool         accumulate;
    float        alpha;
    bool         fast;       /* operands of 8 bits: sums may be kept in fewer bits than fp32 has */
    bool         rows_alone; /* a row of c has the same bits for any m: of few-bit operands where their scales don't depend on other rows */
    bool         early, b_constant; /* KernelArgs.early; nothing of the program writes b (KernelArgs.constant) */
} Gemm;

/* Whether numbers are multiplied by the scales of their blocks before they are summed up. */
GEMM_FN bool gemm_has_block_scales(const GemmOperand *x)
{
    return x->scaling == GEMM_SCALE_ROWS || x->scaling == GEMM_SCALE_TILES;
}

/* The scale of a number that has one of its block. */
GEMM_FN float gemm_block_scale(const GemmOperand *x, int64_t row, int64_t k)
{
    bool tiles = x->scaling == GEMM_SCALE_TILES;
    return x->scale[tiles ? row / GEMM_BLOCK * x->scale_stride + k / GEMM_BLOCK : k / GEMM_BLOCK * x->scale_stride + row];
}

/* All of a tensor (..., C) from element `offset` on, its rows C apart. */
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
