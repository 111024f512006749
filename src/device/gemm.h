/* Gemm: the one description of a matrix product, made from a launch's views (or a node's types) by ops/products.h and read by
 * cost, the CPU (ops/gemm.c) and CUDA (device/cuda/gemm.c). */
#pragma once

#include "ir/op.h"

/* A matrix within rows that may be wider. trans: stored the other way round. */
typedef struct GemmOperand {
    void        *data;  /* NULL while planning: well aligned */
    const float *scale; /* its numbers are multiplied by this one; NULL: by 1 */
    DType        dtype;
    bool         trans;
    int64_t      stride; /* elements from a stored row to the next */
    int64_t      offset; /* elements from data to the first */
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
    bool         fast; /* operands of 8 bits: sums may be kept in fewer bits than fp32 has */
} Gemm;

/* All of a tensor (..., C) from element `offset` on, its rows C apart. */
static inline GemmOperand gemm_operand(const TensorView *t, bool trans, int64_t offset)
{
    GemmOperand o = {t->data, NULL, t->type.dtype, trans, type_cols(&t->type), offset};
    return o;
}

static inline Gemm gemm_of(int64_t m, int64_t n, int64_t k, GemmOperand a, GemmOperand b, GemmOperand c, double alpha, bool accumulate)
{
    GemmOperand none = {NULL, NULL, DT_F32, false, 0, 0};
    Gemm        g = {m, n, k, a, b, c, none, GEMM_PLAIN, accumulate, (float)alpha, false};
    return g;
}
