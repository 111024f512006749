/* sub, div, minimum, maximum and its gradient, comparisons and where on CUDA. */
#include "ops/elementwise/broadcast.cuh"

#include "ops/elementwise/functions.cuh"

static Status maximum_bwd_run(const KernelArgs *args)
{
    return broadcast_run(args, MaximumBwd{((const MaximumAttrs *)args->attrs)->least});
}

#define BROADCAST(op, F) \
    static Status op##_run(const KernelArgs *args) \
    { \
        return broadcast_run(args, F()); \
    } \
    CUDA_KERNELS(op, {.dtypes = DT_SET_DECODE, .run = op##_run, .name = "rows"})

BROADCAST(sub, Sub)
BROADCAST(div, Div)
BROADCAST(minimum, Minimum)
BROADCAST(maximum, Maximum)
BROADCAST(ge, Ge)
BROADCAST(gt, Gt)
BROADCAST(eq, Eq)
BROADCAST(where, Where)
CUDA_KERNELS(maximum_bwd, {.dtypes = DT_SET_FLOAT, .run = maximum_bwd_run, .name = "rows"})
