/* Shared by the losses on the CPU. A row of logits and its label give loss = log(sum(exp(logits))) - logits[label]. */
#pragma once

#include "ops/infer.h"

typedef struct RowLoss {
    float loss;  /* 0 if label is IGNORE_INDEX; NaN if label is another number outside the vocabulary */
    float lse;   /* log of the sum of exponentials of logits */
    float shift; /* the largest logit */
    float total; /* sum of e^(logits - shift) */
    float hit;   /* 1 if no logit is above the label's, else 0 */
} RowLoss;

static inline RowLoss row_loss_of(float shift, float total, float target, int32_t label)
{
    float lse = shift + logf(total);
    return (RowLoss){label == IGNORE_INDEX ? 0 : lse - target, lse, shift, total, target >= shift ? 1 : 0};
}

/* Computes one row's loss. Exponentials are summed tile by tile, in order. */
static inline RowLoss row_loss(const void *logits, DType dtype, int64_t vocab, int32_t label)
{
    float shift = -INFINITY, total = 0, scratch[TILE], tile[TILE];
    for (int64_t c = 0; c < vocab; c += TILE) {
        int64_t n = min_i64(TILE, vocab - c);
        float   most = vec_max(vec_load_row(vec_at(logits, dtype, c), dtype, n, scratch), n);
        shift = most > shift ? most : shift;
    }
    for (int64_t c = 0; c < vocab; c += TILE) {
        int64_t n = min_i64(TILE, vocab - c);
        total += vec_exp_sum(tile, vec_load_row(vec_at(logits, dtype, c), dtype, n, scratch), shift, n);
    }
    return row_loss_of(shift, total, label >= 0 && label < vocab ? vec_get(logits, dtype, label) : NAN, label);
}

/* Checks input k, the labels of x's rows: i32, with all dims of x except the last. */
NODISCARD Status infer_labels(const Node *node, int k, const TensorType *x);
