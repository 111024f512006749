/* Ops that work element by element on inputs of different dims: each dim is that of the result or 1, or the input is one number (1).
 * How the inputs lie, for CPU and CUDA alike. */
#pragma once

#include "ir/op.h"

enum { BROADCAST_MAX_IN = 3, BROADCAST_MOST_IN = 8 }; /* of single ops; of chains of them */

/* The result as few dims: those of size 1 are left out, and neighbours that every input goes through evenly are one. The last dim is there
 * always. step[k][d]: elements of input k from one index of dim d to the next, 0 where it has one number for all. */
typedef struct Broadcast {
    int     ndim;
    int64_t dim[TENSOR_MAX_DIMS], step[BROADCAST_MOST_IN][TENSOR_MAX_DIMS];
} Broadcast;

/* Elements of an input from one index of its dim d to the next; 0 where that dim is 1 or the input is one number. */
static inline int64_t broadcast_step(const TensorView *in, const TensorType *y, int d)
{
    int64_t step = 1;
    if (!in->data || in->type.ndim != y->ndim || in->type.dim[d] == 1) return 0;
    for (int e = d + 1; e < y->ndim; e++) step *= in->type.dim[e];
    return step;
}

/* How the inputs lie beside a result of y's dims. */
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
        if (!first && !even) { /* a dim in front of those so far */
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

/* Elements in front of the given row of the result, all dims but the last counted together, in input k. */
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
