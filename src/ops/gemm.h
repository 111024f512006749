/* Gemm: a matrix product on the CPU over tiles of the result, shared out to the pool. The grid of tiles depends on
 * shapes alone and a tile is computed by one thread, so that results don't depend on the number of threads. */
#pragma once

#include "ops/infer.h"

/* c (m,n) (+)= alpha op(a) op(b) + bias. op(a) (m,k), op(b) (k,n); trans_a: a is stored (k,m); trans_b: b is stored
 * (n,k). Strides: elements from a stored row to the next. Each tensor is f32 or bf16; products and sums are fp32. */
typedef struct Gemm {
    int64_t     m, n, k;
    bool        trans_a, trans_b, accumulate;
    DType       a_dtype, b_dtype, c_dtype, bias_dtype;
    float       alpha;
    const void *a, *b, *bias; /* bias (n); NULL: none */
    void       *c;
    int64_t     a_stride, b_stride, c_stride;
} Gemm;

/* Scratch that gemm_run needs: 0 where all are f32. Only dims, dtypes and trans are read. */
size_t gemm_workspace(const Gemm *gemm, int num_workers);

void gemm_run(const Gemm *gemm, ThreadPool *pool, void *workspace);

/* The same by three loops in fp64, on this thread. */
void gemm_reference(const Gemm *gemm);

/* 2 m n k, and each matrix moved once. */
OpCost gemm_cost(const Gemm *gemm);
