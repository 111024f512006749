/* What ops that broadcast share on the CPU: types, gradients, the loop over tiles. */
#pragma once

#include "ops/elementwise/broadcast.h"
#include "ops/infer.h"

/* The dims of what the first `count` inputs, so far as present, broadcast to; y's dtype stays. */
NODISCARD Status infer_broadcast(const Node *node, int count, const char *const *names, TensorType *y);

/* grad_add of d, which has the dims of the op's result: summed in f32 over dims that the input lacks, in the input's dtype. */
NODISCARD Status grad_add_broadcast(GradBuilder *grad, Value *value, Value *d);

/* y[i] of in[k][i] for `count` elements, TILE at most; y may be one of the inputs. */
typedef void (*TileFn)(float *y, const float *const *in, int64_t count);

/* out[0] by tiles; an absent input is zeros. */
void broadcast_cpu(const KernelArgs *args, TileFn tile);
