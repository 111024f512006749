/* Functions of one element: used by element-wise ops on their own (map.cuh, broadcast.cuh) and as steps of a chain. */
#pragma once

#include "ops/elementwise/gelu.h"

/* ---- of one tensor, and their gradients ---- */

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

/* relu of NaN is NaN. */
struct Relu {
    bool squared;

    __device__ float operator()(float x, float) const
    {
        float r = x < 0 ? 0 : x;
        return squared ? r * r : r;
    }
};

struct ReluBwd {
    bool squared;

    __device__ float operator()(float dy, float x) const
    {
        return x <= 0 ? 0 : squared ? 2.0f * x * dy : dy;
    }
};

struct Softcap {
    float cap;

    __device__ float operator()(float x, float) const
    {
        return cap * tanhf(x / cap);
    }
};

struct SoftcapBwd {
    float cap;

    __device__ float operator()(float dy, float y) const
    {
        float t = y / cap;
        return dy * (1.0f - t * t);
    }
};

/* gelu(x), and *slope, its derivative. TANH: by the approximation. */
template <bool TANH> static __device__ __forceinline__ float gelu_of(float x, float *slope)
{
    if (TANH) {
        float s = 1.0f / (1.0f + expf(-gelu_argument(x)));
        *slope = s + x * s * (1.0f - s) * gelu_argument_slope(x);
        return x * s;
    }
    float below = normcdff(x);
    *slope = below + 0.3989422804f * x * expf(-0.5f * x * x);
    return x * below;
}

template <bool TANH> struct Gelu {
    __device__ float operator()(float x, float) const
    {
        float slope;
        return gelu_of<TANH>(x, &slope);
    }
};

template <bool TANH> struct GeluBwd {
    __device__ float operator()(float dy, float x) const
    {
        float slope;
        gelu_of<TANH>(x, &slope);
        return dy * slope;
    }
};

struct Scale {
    float by;

    __device__ float operator()(float x, float) const
    {
        return by * x;
    }
};

/* ---- of two or three ---- */

struct Add {
    __device__ float operator()(float a, float b, float) const
    {
        return a + b;
    }
};

struct Mul {
    __device__ float operator()(float a, float b, float) const
    {
        return a * b;
    }
};

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

/* NaN if a or b is. */
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
