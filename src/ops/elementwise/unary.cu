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

#define UNARY(op, F) \
    static Status op##_run(const KernelArgs *args) \
    { \
        return map_run(args, F()); \
    } \
    CUDA_KERNELS(op, {.dtypes = DT_SET_FLOAT, .run = op##_run, .name = "packs"})

UNARY(exp, Exp)
UNARY(log, Log)
UNARY(sqrt, Sqrt)
UNARY(tanh, Tanh)
UNARY(sigmoid, Sigmoid)
UNARY(silu, Silu)
UNARY(log_sigmoid, LogSigmoid)
UNARY(sigmoid_bwd, SigmoidBwd)
UNARY(silu_bwd, SiluBwd)
UNARY(log_sigmoid_bwd, LogSigmoidBwd)
