/* Functions of one element: used by element-wise ops on their own (map.cuh, broadcast.cuh) and as steps of a chain. */
#pragma once

#include "ops/map.cuh"

#include "ops/elementwise/gelu.h"

/* ---- of one tensor, and their gradients ---- */

static __device__ __forceinline__ float sigmoid_of(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

enum { SIGMOID_LEAST = -87 };

/* sigmoid_of(x) with the same bits, if x isn't below SIGMOID_LEAST: the divisor has a normal reciprocal, so one Newton step rounds it
 * correctly. There is no branch, unlike in a division. */
static __device__ __forceinline__ float sigmoid_near(float x)
{
    float d = 1.0f + expf(-x), r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(d));
    return fmaf(r, fmaf(-d, r, 1.0f), r);
}

/* sigmoid_of(x), if x isn't below SIGMOID_LEAST, with an error of some units in the last place of fp32. Functions of one bf16 number that
 * use it round to the same bf16 nevertheless; a test compares them for all bf16 numbers. */
static __device__ __forceinline__ float sigmoid_rough(float x)
{
    float e, r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(-1.4426950409f * x));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(1.0f + e));
    return r;
}

/* Functions that read a sigmoid: of(s, a, b), where s is the sigmoid of argument(a, b). OF_ONE: whether argument and of read only a. */
template <typename F> struct OfSigmoid : ManyAtOnce {
    __device__ float operator()(float a, float b) const
    {
        return F::of(sigmoid_of(F::argument(a, b)), a, b);
    }

    /* Branches only if a sigmoid's argument is below SIGMOID_LEAST. */
    template <typename T, int N> static __device__ __forceinline__ void each(float (&a)[N], const float (&b)[N])
    {
        float s[N], least = 0;
#pragma unroll
        for (int i = 0; i < N; i++) {
            float x = F::argument(a[i], b[i]);
            least = fminf(least, x);
            s[i] = F::OF_ONE && std::is_same<T, __nv_bfloat16>::value ? sigmoid_rough(x) : sigmoid_near(x);
        }
        if (least < SIGMOID_LEAST) {
#pragma unroll
            for (int i = 0; i < N; i++) s[i] = sigmoid_of(F::argument(a[i], b[i]));
        }
#pragma unroll
        for (int i = 0; i < N; i++) a[i] = F::of(s[i], a[i], b[i]);
    }
};

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

struct Sigmoid : OfSigmoid<Sigmoid> {
    enum { OF_ONE = true };

    static __device__ float argument(float x, float)
    {
        return x;
    }
    static __device__ float of(float s, float, float)
    {
        return s;
    }
};

struct Silu : OfSigmoid<Silu> {
    enum { OF_ONE = true };

    static __device__ float argument(float x, float)
    {
        return x;
    }
    static __device__ float of(float s, float x, float)
    {
        return x * s;
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

struct SiluBwd : OfSigmoid<SiluBwd> {
    enum { OF_ONE = false };

    static __device__ float argument(float, float x)
    {
        return x;
    }
    static __device__ float of(float s, float dy, float x)
    {
        return dy * (s + x * s * (1.0f - s));
    }
};

struct LogSigmoidBwd : OfSigmoid<LogSigmoidBwd> {
    enum { OF_ONE = false };

    static __device__ float argument(float, float x)
    {
        return -x;
    }
    static __device__ float of(float s, float dy, float)
    {
        return dy * s;
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

/* GeluTanh: gelu by its approximation with tanh. GeluErf: gelu by erf. */
struct GeluTanh : OfSigmoid<GeluTanh> {
    enum { OF_ONE = true };

    static __device__ float argument(float x, float)
    {
        return gelu_argument(x);
    }
    static __device__ float of(float s, float x, float)
    {
        return x * s;
    }
};

struct GeluTanhBwd : OfSigmoid<GeluTanhBwd> {
    enum { OF_ONE = false };

    static __device__ float argument(float, float x)
    {
        return gelu_argument(x);
    }
    static __device__ float of(float s, float dy, float x)
    {
        return dy * (s + x * s * (1.0f - s) * gelu_argument_slope(x));
    }
};

struct GeluErf {
    __device__ float operator()(float x, float) const
    {
        return x * normcdff(x);
    }
};

struct GeluErfBwd {
    __device__ float operator()(float dy, float x) const
    {
        return dy * (normcdff(x) + 0.3989422804f * x * expf(-0.5f * x * x));
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

/* NaN if a or b is NaN. */
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
