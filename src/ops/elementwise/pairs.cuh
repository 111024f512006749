/* Functions of pairs of bf16 in 32-bit words, as steps of a chain. They have the bits of the functions in functions.cuh, rounded to bf16,
 * but take one to three instructions for two elements. A sum, difference or product of two bf16 has the same bits rounded once as rounded
 * to fp32 and then to bf16. NaN results are 0x7FFF, as a conversion makes them. */
#pragma once

#include <cuda_bf16.h>
#include <stdint.h>

static __device__ __forceinline__ __nv_bfloat162 as_pair(uint32_t word)
{
    union {
        uint32_t       word;
        __nv_bfloat162 pair;
    } both = {word};
    return both.pair;
}

static __device__ __forceinline__ uint32_t as_word(__nv_bfloat162 pair)
{
    union {
        __nv_bfloat162 pair;
        uint32_t       word;
    } both = {pair};
    return both.word;
}

enum { PAIR_ONE = 0x3F803F80, PAIR_TWO = 0x40004000 };
#define PAIR_MINUS_ZERO 0x80008000u
#define PAIR_MINUS_ONE 0xBF80BF80u

/* a b + c, rounded once. */
static __device__ __forceinline__ uint32_t pair_fma(uint32_t a, uint32_t b, uint32_t c)
{
    return as_word(__hfma2(as_pair(a), as_pair(b), as_pair(c)));
}

static __device__ __forceinline__ uint32_t pair_mul(uint32_t a, uint32_t b)
{
    return pair_fma(a, b, PAIR_MINUS_ZERO);
}

static __device__ __forceinline__ uint32_t pair_select(uint32_t mask, uint32_t a, uint32_t b)
{
    return (mask & a) | (~mask & b);
}

struct PairAdd {
    __device__ __forceinline__ uint32_t operator()(uint32_t a, uint32_t b, uint32_t) const
    {
        return pair_fma(a, PAIR_ONE, b);
    }
};

struct PairSub {
    __device__ __forceinline__ uint32_t operator()(uint32_t a, uint32_t b, uint32_t) const
    {
        return pair_fma(b, PAIR_MINUS_ONE, a);
    }
};

struct PairMul {
    __device__ __forceinline__ uint32_t operator()(uint32_t a, uint32_t b, uint32_t) const
    {
        return pair_mul(a, b);
    }
};

/* Of equal operands the result is b, as a and b may be zeros of different signs. */
struct PairMinimum {
    __device__ __forceinline__ uint32_t operator()(uint32_t a, uint32_t b, uint32_t) const
    {
        return pair_select(__heq2_mask(as_pair(a), as_pair(b)), b, as_word(__hmin2_nan(as_pair(a), as_pair(b))));
    }
};

struct PairMaximum {
    __device__ __forceinline__ uint32_t operator()(uint32_t a, uint32_t b, uint32_t) const
    {
        return pair_select(__heq2_mask(as_pair(a), as_pair(b)), b, as_word(__hmax2_nan(as_pair(a), as_pair(b))));
    }
};

struct PairRelu {
    bool squared;

    __device__ __forceinline__ uint32_t operator()(uint32_t x, uint32_t, uint32_t) const
    {
        uint32_t r = x & ~__hlt2_mask(as_pair(x), as_pair(0));
        return pair_mul(r, squared ? r : PAIR_ONE);
    }
};

struct PairReluBwd {
    bool squared;

    __device__ __forceinline__ uint32_t operator()(uint32_t dy, uint32_t x, uint32_t) const
    {
        uint32_t d = pair_mul(squared ? pair_mul(x, PAIR_TWO) : PAIR_ONE, dy);
        return d & ~__hle2_mask(as_pair(x), as_pair(0));
    }
};

/* ---- division ---- */

static __device__ __forceinline__ float reciprocal(float x)
{
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

/* Checks that a * reciprocal(b), rounded to bf16, equals a / b rounded: b and its reciprocal are normal, and the result is normal or zero.
 * Two bf16 have no quotient so near the middle of two normal bf16 that the reciprocal's error matters. */
struct PairRange {
    /* bits without signs: of the least and the largest divisor, and of the least result minus 1 (so that zeros are the largest) */
    uint32_t least_b = 0xFFFFFFFFu, most_b = 0, least_q = 0xFFFFFFFFu;

    __device__ __forceinline__ void see(uint32_t q, uint32_t b)
    {
        least_b = __vminu2(least_b, b & 0x7FFF7FFFu);
        most_b = __vmaxu2(most_b, b & 0x7FFF7FFFu);
        least_q = __viaddmin_u16x2(q & 0x7FFF7FFFu, 0xFFFFFFFFu, least_q);
    }
    __device__ __forceinline__ bool far() const
    {
        uint32_t least = __vminu2(least_b, least_q), most = most_b >> 16 > (most_b & 0xFFFF) ? most_b >> 16 : most_b & 0xFFFF;
        return (least & 0xFFFF) < 0x80 || least >> 16 < 0x80 || most > 0x7E80;
    }
};
