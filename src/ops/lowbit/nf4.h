/* What nf4_quantise and nf4_dequantise share, on the CPU and CUDA: NF4 with double quantisation (Dettmers 2023) as bitsandbytes 0.50.2
 * has it on the CPU, bit for bit but for the sum of the mean.
 *
 * Each NF4_BLOCK consecutive elements of a tensor, rows or not, have a scale: their largest magnitude. Scales less their mean, the
 * offset, are codes of the signed dynamic map, NF4_NESTED of which have a scale again. The last block of either kind may be short. */
#pragma once

#include "base/nf4.h"
#include "base/small_float.h"
#include "ops/attrs.h"
#include "ops/lowbit/dynamic_map.h"

enum { NF4_BLOCK = 64, NF4_NESTED = 256 };

typedef struct Nf4QuantiseAttrs {
    bool once; /* scales stay fp32 numbers */
} Nf4QuantiseAttrs;

/* The mean of the scales is summed in fp64: lane j adds up those whose index is j modulo NF4_LANES, in order; then lane j takes the
 * one half the lanes after it, for half of them, a quarter and so on. */
enum { NF4_LANES = 1024 };

/* A block's scale from its largest small_magnitude, which keeps a NaN. That of a short block is never 0: a whole one keeps 0 and is coded
 * with another. */
NF4_FN float nf4_scale(uint32_t most, bool is_short)
{
    union {
        uint32_t bits;
        float    value;
    } word = {most};
    return is_short && word.value < 1e-38f ? 1e-38f : word.value;
}

/* An element of a block with that scale in [-1, 1], but for rounding: divided in a short block, else multiplied. */
NF4_FN float nf4_in_block(float x, float scale, bool is_short)
{
    return is_short ? x / scale : x * (1 / (scale < 1e-38f ? 1e-38f : scale));
}

/* The code of a scale less the offset, in a block of them whose largest magnitude is `most`: the nearest to the nearest of 65,536
 * even steps from -1 to 1. NaN has code 0. */
NF4_FN int nf4_scale_code(const DynamicMap *map, float x, float most)
{
    if (most == 0) return 0;
    float clamped = fminf(fmaxf(x * (1 / most), -1), 1);
    int   step = (int)fmaf((clamped + 1) * 0.5f, 65535, 0.5f);
    return dynamic_nearest(map, true, (float)(2 * step) / 65535 - 1);
}

/* A scale from the map's value of its code. Product and sum are rounded one by one, which a compiler that contracts them wouldn't do. */
NF4_FN float nf4_scale_of(float value, float nested, float offset)
{
#ifdef __CUDA_ARCH__
    return __fadd_rn(__fmul_rn(value, nested), offset);
#else
    float product = value * nested;
    __asm__("" : "+x"(product));
    return product + offset;
#endif
}

/* Where a member's elements, scales and nested scales begin. Member m has offset m. */
typedef struct Nf4Member {
    int64_t first, numel, block, nested;
} Nf4Member;

/* The members of a weight of n rows of k elements. Returns their count; the entry after the last is where all end. */
static inline int nf4_members(const DequantiseAttrs *attrs, int64_t n, int64_t k, Nf4Member out[DEQUANTISE_MAX_MEMBERS + 1])
{
    int64_t rows[DEQUANTISE_MAX_MEMBERS];
    int     count = dequantise_members(attrs, n, rows), m = 0;
    out[0] = (Nf4Member){0, 0, 0, 0};
    for (; m < count; m++) {
        int64_t numel = rows[m] * k, blocks = (numel + NF4_BLOCK - 1) / NF4_BLOCK;
        out[m].numel = numel;
        out[m + 1] = (Nf4Member){out[m].first + numel, 0, out[m].block + blocks, out[m].nested + (blocks + NF4_NESTED - 1) / NF4_NESTED};
    }
    return count;
}
