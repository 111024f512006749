/* The number formats a tensor may hold, one table, and conversions between them and float. */
#pragma once

#include "base/status.h"

#include <stdint.h>
#include <string.h>

typedef enum DType { DT_F32, DT_BF16, DT_I32, DT_I64, DT_U8, DT_COUNT } DType;

typedef struct DTypeInfo {
    const char *name;             /* in IR and reports: f32 */
    const char *safetensors_name; /* F32 */
    const char *hf_name;          /* config.json and run files: float32 */
    int         bytes;            /* of an element */
} DTypeInfo;

const DTypeInfo *dtype_info(DType dtype);
static inline int64_t dtype_bytes(DType dtype) { return dtype_info(dtype)->bytes; }

/* By IR name, HF name or common alias (bf16, fp32, bfloat16, float32). */
bool dtype_parse(const char *text, DType *out);

typedef uint32_t DTypeSet; /* bit per DType */
#define DT_SET(dt)   (1u << (dt))
#define DT_SET_F32   DT_SET(DT_F32)
#define DT_SET_BF16  DT_SET(DT_BF16)
#define DT_SET_FLOAT (DT_SET_F32 | DT_SET_BF16)

static inline float bf16_to_f32(uint16_t bits)
{
    uint32_t word = (uint32_t)bits << 16;
    float    out;
    memcpy(&out, &word, 4);
    return out;
}

/* Round to nearest, ties to even; NaN stays NaN (quiet), the largest finite values round to infinity. */
static inline uint16_t bf16_from_f32(float value)
{
    uint32_t word;
    memcpy(&word, &value, 4);
    uint32_t rounded = (word + 0x7FFFu + ((word >> 16) & 1u)) >> 16;
    return (word & 0x7FFFFFFFu) > 0x7F800000u ? (uint16_t)((word >> 16) | 0x40u) : (uint16_t)rounded;
}

/* Stochastic rounding: up with a chance equal to the fraction cut off; `random` is 32 random bits, the low 16 are used. */
static inline uint16_t bf16_from_f32_stochastic(float value, uint32_t random)
{
    uint32_t word;
    memcpy(&word, &value, 4);
    if ((word & 0x7F800000u) == 0x7F800000u) return bf16_from_f32(value);
    return (uint16_t)((word + (random & 0xFFFFu)) >> 16);
}

void bf16_to_f32_row(float *dst, const uint16_t *src, int64_t count);
void bf16_from_f32_row(uint16_t *dst, const float *src, int64_t count);

/* Any float dtype, element-wise; src and dst do not overlap. */
void dtype_convert(void *dst, DType dst_dtype, const void *src, DType src_dtype, int64_t count);
