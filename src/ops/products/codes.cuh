/* One-byte codes as bf16 values: the four codes of a word become two pairs. */
#pragma once

#include "device/cuda/fp8.cuh"
#include "ops/mma.cuh"

/* int8 codes divided by 64; their sums are multiplied by 64. code + 128 fits in 8 bits without a sign. Read as the bits of a bf16 value,
 * these are worth 2^-133 each, also across the border between subnormal and normal values. All steps are exact, except for sums below
 * 2^-120. */
struct Int8Codes {
    enum { HAS_TILES = 0, WHOLE = 64 };

    static __device__ __forceinline__ uint32_t two(uint32_t bits)
    {
        uint32_t numbers;
        asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(numbers) : "r"(bits), "r"(0x7F007F00u), "r"(0xC000C000u)); /* 2^127, -2 */
        return numbers;
    }
    static __device__ __forceinline__ void four(uint32_t word, float, uint32_t &low, uint32_t &high)
    {
        uint32_t moved = word ^ 0x80808080u;
        low = two(__byte_perm(moved, 0, 0x4140)), high = two(__byte_perm(moved, 0, 0x4342));
    }
};

/* e4m3 times the scale of the tile, rounded to bf16, as fp8_tiles_dequantise does. */
struct Fp8Tiles {
    enum { HAS_TILES = 1, WHOLE = 1 };

    static __device__ __forceinline__ uint32_t two(uint16_t codes, float scale)
    {
        __half2_raw pair = __nv_cvt_fp8x2_to_halfraw2(codes, __NV_E4M3);
        float2      values = __half22float2(__half2(pair));
        return pack_bf16(values.x * scale, values.y * scale);
    }
    static __device__ __forceinline__ void four(uint32_t word, float scale, uint32_t &low, uint32_t &high)
    {
        low = two((uint16_t)word, scale), high = two((uint16_t)(word >> 16), scale);
    }
};
