/* The output head with its loss on the CPU, by chunks of rows, so that the whole matrix of logits never exists. Forward and backward run
 * the same chunks. */
#pragma once

#include "ops/loss/cross_entropy.h"
#include "ops/products/gemm.h"

/* x (N,C), w (V,C), labels (N). */
typedef struct LmHead {
    int64_t        rows, channels, vocab;
    TensorView     x, w, dx, dw; /* dx, dw: data NULL: not wanted */
    const int32_t *labels;
    const float   *dlosses;    /* (N); NULL: only losses are computed */
    float         *losses;     /* (N); NULL: not wanted */
    float         *hits;       /* (N), as in cross_entropy; NULL: not wanted */
    bool           accumulate; /* dw is added to, not replaced */
    float          softcap;    /* cap of logits; 0: none */
    bool           narrow;     /* dlogits are rounded to bf16, the dtype of x and w: products of two bf16 operands are faster */
} LmHead;

/* Bytes of lm_head_run's workspace. Reads only sizes, types, and whether pointers are NULL. */
size_t lm_head_workspace(const LmHead *head, int num_workers);
void   lm_head_run(const LmHead *head, ThreadPool *pool, void *workspace);
void   lm_head_reference(const LmHead *head, float *row_scratch); /* row_scratch: V floats */
