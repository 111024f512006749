/* What the losses share. A row of logits and its label give loss = log(sum(exp(logits))) - logits[label]. */
#pragma once

#include "ops/infer.h"

typedef struct RowLoss {
    float loss;  /* 0 where label is IGNORE_INDEX; NaN where it is no token of the vocabulary */
    float lse;   /* log of the sum of exponentials */
    float shift; /* exps are e^(logits - shift) */
    float total; /* their sum */
    float hit;   /* 1 where no logit is above the label's, else 0 */
} RowLoss;

/* exps (vocab) receives the exponentials and may be logits itself; NULL: not wanted. Sums by tiles, in order. */
RowLoss row_loss(const void *logits, DType dtype, int64_t vocab, int32_t label, float *exps);

/* Labels, checked against rows: i32 of x's dims without the last. */
NODISCARD Status infer_labels(const Node *node, int k, const TensorType *x);
