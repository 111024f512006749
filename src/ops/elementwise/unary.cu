/* exp, log, sqrt, tanh, sigmoid, silu, log_sigmoid and the gradients of the last three on CUDA. */
#include "ops/map.cuh"

static __device__ __forceinline__ float sigmoid_of(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

struct Exp {
    __device__ float operator()(float x, float) const
    {
        return expf(x);
    }
};

struct Log {
    __device__ float operator()(float x, float) const
    {
        return logf(x);
    }
};

struct Sqrt {
    __device__ float operator()(float x, float) const
    {
        return sqrtf(x);
    }
};

struct Tanh {
    __device__ float operator()(float x, float) const
    {
        return tanhf(x);
    }
};

struct Sigmoid {
    __device__ float operator()(float x, float) const
    {
        return sigmoid_of(x);
    }
};

struct Silu {
    __device__ float operator()(float x, float) const
    {
        return x * sigmoid_of(x);
    }
};

struct LogSigmoid {
    __device__ float operator()(float x, float) const
    {
        return (x < 0 ? x : 0.0f) - log1pf(expf(-fabsf(x)));
    }
};

struct SigmoidBwd {
    __device__ float operator()(float dy, float y) const
    {
        return dy * y * (1.0f - y);
    }
};

struct SiluBwd {
    __device__ float operator()(float dy, float x) const
    {
        float s = sigmoid_of(x);
        return dy * (s + x * s * (1.0f - s));
    }
};

struct LogSigmoidBwd {
    __device__ float operator()(float dy, float x) const
    {
        return dy * sigmoid_of(-x);
    }
};

#define UNARY_OF(set, op, F) \
    static Status op##_run(const KernelArgs *args) \
    { \
        return map_run(args, F()); \
    } \
    CUDA_KERNELS(op, {.dtypes = set, .run = op##_run, .name = "packs"})
#define UNARY(op, F) UNARY_OF(DT_SET_DECODE, op, F)
#define UNARY_BWD(op, F) UNARY_OF(DT_SET_FLOAT, op, F)

UNARY(exp, Exp)
UNARY(log, Log)
UNARY(sqrt, Sqrt)
UNARY(tanh, Tanh)
UNARY(sigmoid, Sigmoid)
UNARY(silu, Silu)
UNARY(log_sigmoid, LogSigmoid)
UNARY_BWD(sigmoid_bwd, SigmoidBwd)
UNARY_BWD(silu_bwd, SiluBwd)
UNARY_BWD(log_sigmoid_bwd, LogSigmoidBwd)
