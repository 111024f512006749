/* The output head with its loss, by chunks of rows, so that logits are never whole. Forward and backward run the same
 * chunks. */
#pragma once

#include "ops/loss/cross_entropy.h"
#include "ops/products/gemm.h"

/* x (N,C), w (V,C), labels (N). */
typedef struct LmHead {
    int64_t        rows, channels, vocab;
    TensorView     x, w, dx, dw; /* dx, dw: data NULL: not wanted */
    const int32_t *labels;
    const float   *dlosses;    /* (N); NULL: losses alone */
    float         *losses;     /* (N); NULL: not wanted */
    float         *hits;       /* (N), as cross_entropy's; NULL: not wanted */
    bool           accumulate; /* dw += */
    float          softcap;    /* of logits; 0: none */
    bool           narrow;     /* dlogits are rounded to bf16, as x and w are: the products of two bf16 operands are faster */
} LmHead;

/* Types alone are read. */
size_t lm_head_workspace(const LmHead *head, int num_workers);
void   lm_head_run(const LmHead *head, ThreadPool *pool, void *workspace);
void   lm_head_reference(const LmHead *head, float *row_scratch); /* row_scratch (V) */
