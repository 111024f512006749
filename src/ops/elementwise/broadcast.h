/* Element-wise ops on inputs of different dims: each dim of an input is that of the result or 1, or the input is one number (1). Strides
 * of the inputs, for CPU and CUDA. */
#pragma once

#include "ir/op.h"

enum { BROADCAST_MAX_IN = 3, BROADCAST_MOST_IN = 8 }; /* most inputs of a single op; of a chain of ops */

/* The result's dims, as few as possible: dims of size 1 are dropped, and neighbours are merged if every input's stride allows it. At
 * least one dim stays. step[k][d]: stride of input k along dim d, in elements; 0: the input is broadcast along it. */
typedef struct Broadcast {
    int     ndim;
    int64_t dim[TENSOR_MAX_DIMS], step[BROADCAST_MOST_IN][TENSOR_MAX_DIMS];
} Broadcast;

/* Stride of an input along dim d, in elements; 0: that dim is 1, or the input is one number or absent. */
static inline int64_t broadcast_step(const TensorView *in, const TensorType *y, int d)
{
    int64_t step = 1;
    if (!in->data || in->type.ndim != y->ndim || in->type.dim[d] == 1) return 0;
    for (int e = d + 1; e < y->ndim; e++) step *= in->type.dim[e];
    return step;
}

/* Plan for a result of y's dims. */
static inline Broadcast broadcast_plan_of(const KernelArgs *args, const TensorType *y)
{
    Broadcast plan = {0};
    plan.ndim = 1;
    plan.dim[0] = 1;
    for (int d = y->ndim - 1; d >= 0; d--) {
        int64_t step[BROADCAST_MOST_IN] = {0};
        bool    first = plan.ndim == 1 && plan.dim[0] == 1, even = true;
        if (y->dim[d] == 1) continue;
        for (int k = 0; k < args->num_in && k < BROADCAST_MOST_IN; k++) {
            step[k] = broadcast_step(&args->in[k], y, d);
            even = even && step[k] == plan.step[k][0] * plan.dim[0];
        }
        if (!first && !even) { /* starts a new dim, in front of the others */
            for (int e = plan.ndim++; e > 0; e--) {
                plan.dim[e] = plan.dim[e - 1];
                for (int k = 0; k < BROADCAST_MOST_IN; k++) plan.step[k][e] = plan.step[k][e - 1];
            }
            plan.dim[0] = 1;
            first = true;
        }
        for (int k = 0; first && k < BROADCAST_MOST_IN; k++) plan.step[k][0] = step[k];
        plan.dim[0] *= y->dim[d];
    }
    return plan;
}

static inline Broadcast broadcast_plan(const KernelArgs *args)
{
    return broadcast_plan_of(args, &args->out[0].type);
}

/* Offset in input k, in elements, of the given row of the result. Rows count all dims but the last together. */
#ifdef __CUDACC__
__host__ __device__
#endif
    static inline int64_t
    broadcast_offset(const Broadcast *plan, int k, int64_t row)
{
    int64_t offset = 0;
    for (int d = plan->ndim - 2; d >= 0; d--) {
        offset += row % plan->dim[d] * plan->step[k][d];
        row /= plan->dim[d];
    }
    return offset;
}
