/* What nf4_quantise and nf4_dequantise share, on the CPU and CUDA: NF4 with double quantisation (Dettmers 2023) as bitsandbytes 0.50.2
 * computes it on the CPU, bit for bit except the order of the mean's sum.
 *
 * Each NF4_BLOCK consecutive elements of a tensor, even across rows, have a scale: their largest magnitude. The mean of the scales is the
 * offset. Scales minus the offset are encoded by the signed dynamic map, in blocks of NF4_NESTED, each with a nested scale. The last block
 * of either kind may be short. */
#pragma once

#include "base/nf4.h"
#include "base/small_float.h"
#include "ops/attrs.h"
#include "ops/lowbit/dynamic_map.h"

enum { NF4_BLOCK = 64, NF4_NESTED = 256 };

typedef struct Nf4QuantiseAttrs {
    bool once; /* scales stay fp32 */
} Nf4QuantiseAttrs;

/* The mean of the scales is summed in fp64. Lane j first adds up the scales whose index is j modulo NF4_LANES, in order. Then each lane of
 * the first half adds the lane half the lanes further on; then of the first quarter, and so on. */
enum { NF4_LANES = 1024 };

/* A block's scale from its largest small_magnitude; NaN stays NaN. A short block's scale is never 0. A whole block's may be 0; nf4_in_block
 * then uses 1e-38. */
NF4_FN float nf4_scale(uint32_t most, bool is_short)
{
    union {
        uint32_t bits;
        float    value;
    } word = {most};
    return is_short && word.value < 1e-38f ? 1e-38f : word.value;
}

/* An element of a block divided by the scale: in [-1, 1] apart from rounding. Short blocks divide, others multiply by the inverse. */
NF4_FN float nf4_in_block(float x, float scale, bool is_short)
{
    return is_short ? x / scale : x * (1 / (scale < 1e-38f ? 1e-38f : scale));
}

/* The code of x, a scale minus the offset, in a block of scales whose largest magnitude is `most`. x is first rounded to 65,536 even steps
 * from -1 to 1, then to the nearest code. NaN has code 0. */
NF4_FN int nf4_scale_code(const DynamicMap *map, float x, float most)
{
    if (most == 0) return 0;
    float clamped = fminf(fmaxf(x * (1 / most), -1), 1);
    int   step = (int)fmaf((clamped + 1) * 0.5f, 65535, 0.5f);
    return dynamic_nearest(map, true, (float)(2 * step) / 65535 - 1);
}

/* A scale from its code's value in the map. Product and sum are rounded separately; a compiler that fuses them would round once. */
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

/* Where a member's elements, scales and nested scales begin. Offset m belongs to member m. */
typedef struct Nf4Member {
    int64_t first, numel, block, nested;
} Nf4Member;

/* Fills `out` with the members of a weight of n rows of k elements, and returns their number. The entry after the last says where all of
 * them end. */
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
