/* sub, div, minimum, maximum and its gradient, comparisons and where on CUDA. */
#include "ops/elementwise/broadcast.cuh"

struct Sub {
    __device__ float operator()(float a, float b, float) const
    {
        return a - b;
    }
};

struct Div {
    __device__ float operator()(float a, float b, float) const
    {
        return a / b;
    }
};

/* NaN where one of them is. */
struct Minimum {
    __device__ float operator()(float a, float b, float) const
    {
        return a < b || a != a ? a : b;
    }
};

struct Maximum {
    __device__ float operator()(float a, float b, float) const
    {
        return a > b || a != a ? a : b;
    }
};

struct MaximumBwd {
    bool least;

    __device__ float operator()(float dy, float a, float b) const
    {
        if (a == b) return 0.5f * dy;
        return least ? (a < b ? dy : 0.0f) : (a > b ? dy : 0.0f);
    }
};

struct Ge {
    __device__ float operator()(float a, float b, float) const
    {
        return a >= b ? 1.0f : 0.0f;
    }
};

struct Gt {
    __device__ float operator()(float a, float b, float) const
    {
        return a > b ? 1.0f : 0.0f;
    }
};

struct Eq {
    __device__ float operator()(float a, float b, float) const
    {
        return a == b ? 1.0f : 0.0f;
    }
};

struct Where {
    __device__ float operator()(float cond, float a, float b) const
    {
        return cond != 0 ? a : b;
    }
};

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
