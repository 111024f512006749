/* What ops that broadcast share on the CPU: types, gradients, the loop over tiles. */
#pragma once

#include "ops/elementwise/broadcast.h"
#include "ops/infer.h"

/* The dims of what the first `count` inputs, so far as present, broadcast to; y's dtype stays. */
NODISCARD Status infer_broadcast(const Node *node, int count, const char *const *names, TensorType *y);

/* grad_add of d, which has the dims of the op's result: summed in f32 over dims that the input lacks, in the input's dtype. */
NODISCARD Status grad_add_broadcast(GradBuilder *grad, Value *value, Value *d);

/* As OpDef.tile; count is TILE at most. */
typedef void (*TileFn)(float *y, const float *const *in, int64_t count, double number);

/* out[0] by tiles; an absent input is zeros. */
void broadcast_cpu(const KernelArgs *args, TileFn tile, double number);

/* Elements [at, at + count) of a row of the result in input k, whose elements for that row begin at `offset`. */
const float *broadcast_load(const KernelArgs *args, const Broadcast *plan, int k, int64_t offset, int64_t at, int64_t count,
                            float *scratch);
