/* Shared by ops that broadcast, on the CPU: types, gradients, the loop over tiles. */
#pragma once

#include "ops/elementwise/broadcast.h"
#include "ops/infer.h"

/* Sets y's dims to what the first `count` inputs broadcast to, as far as they are present; y's dtype stays. */
NODISCARD Status infer_broadcast(const Node *node, int count, const char *const *names, TensorType *y);

/* grad_add of d, a gradient with the dims of the op's result. Dims that `value` lacks are summed in f32; the result has the dtype of
 * `value`. */
NODISCARD Status grad_add_broadcast(GradBuilder *grad, Value *value, Value *d);

/* See OpDef.tile; count is at most TILE. */
typedef void (*TileFn)(float *y, const float *const *in, int64_t count, double number);

/* Computes out[0] tile by tile; an absent input is an array of zeros. */
void broadcast_cpu(const KernelArgs *args, TileFn tile, double number);

/* Elements of input k for elements [at, at + count) of a row of the result, as floats. offset: where the row begins in the input. The
 * result points into the input, or to `scratch`. */
const float *broadcast_load(const KernelArgs *args, const Broadcast *plan, int k, int64_t offset, int64_t at, int64_t count,
                            float *scratch);
