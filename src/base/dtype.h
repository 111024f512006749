/* The number formats of tensors (one table), and conversions between them and float.
 *
 * Formats of less than a byte are stored in blocks of `block` elements that fill whole bytes. Sizes and offsets must be whole blocks; a
 * single element in a block has no address. */
#pragma once

#include "base/status.h"

#include <stdint.h>
#include <string.h>

typedef enum DType {
    DT_F32,
    DT_BF16,
    DT_I32,
    DT_I64,
    DT_U8,
    DT_I8,
    DT_F16,
    DT_E4M3, /* 1 sign, 4 exponent, 3 mantissa bits; no infinities ("fn"); largest 448; NaN: all exponent and mantissa bits are 1 */
    DT_E5M2, /* 1 sign, 5 exponent, 2 mantissa bits; has infinities and NaN; largest 57344 */
    DT_E2M1, /* 1 sign, 2 exponent, 1 mantissa bits; no infinities or NaN: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives */
    DT_NF4,  /* an index into 16 quantiles of a normal distribution, from -1 to 1 */
    DT_COUNT
} DType;

typedef struct DTypeInfo {
    const char *name;          /* name in the IR and in reports: f32 */
    const char *hf_name;       /* name in config.json and run files: float32 */
    int         bits;          /* bits per element */
    int         block;         /* number of elements that fill whole bytes: 1, or 2 if they share a byte */
    bool        first_is_high; /* if 2 elements share a byte: true: the first is in its high four bits; false: in the low ones */
} DTypeInfo;

const DTypeInfo *dtype_info(DType dtype);

/* Size of `numel` elements in bytes, which is also the offset of element `numel`. CHECKs that they are whole blocks. */
int64_t dtype_bytes(DType dtype, int64_t numel);

/* Accepts the IR name, the HF name, or a common alias (bf16, fp32, bfloat16, float32); false: unknown. */
bool dtype_parse(const char *text, DType *out);

typedef uint32_t DTypeSet; /* a set: bit i is DType i */
#define DT_SET(dt) (1u << (dt))
#define DT_SET_F32 DT_SET(DT_F32)
#define DT_SET_BF16 DT_SET(DT_BF16)
#define DT_SET_FLOAT (DT_SET_F32 | DT_SET_BF16) /* dtypes that training computes in */
#define DT_SET_FP8 (DT_SET(DT_E4M3) | DT_SET(DT_E5M2))
#define DT_SET_ANY ((1u << DT_COUNT) - 1)

static inline float bf16_to_f32(uint16_t bits)
{
    uint32_t word = (uint32_t)bits << 16;
    float    out;
    memcpy(&out, &word, 4);
    return out;
}

/* Rounds to nearest, ties to even. NaN stays NaN (quiet); values above the largest bf16 may round to infinity. Loops over it vectorise. */
static inline uint16_t bf16_from_f32(float value)
{
    uint32_t word;
    memcpy(&word, &value, 4);
    return (uint16_t)((value != value ? word | 0x400000u : word + 0x7FFFu + ((word >> 16) & 1u)) >> 16);
}

/* Rounds stochastically: away from zero with a probability equal to the part that is cut off, in units of the last bit kept. Only the low
 * 16 bits of `random` are used. */
static inline uint16_t bf16_from_f32_stochastic(float value, uint32_t random)
{
    uint32_t word;
    memcpy(&word, &value, 4);
    uint32_t unrounded = (word & 0x7FFFFFFFu) > 0x7F800000u ? word | 0x400000u : word; /* infinity is kept, NaN made quiet */
    return (uint16_t)(((word & 0x7F800000u) == 0x7F800000u ? unrounded : word + (random & 0xFFFFu)) >> 16);
}

void bf16_to_f32_row(float *dst, const uint16_t *src, int64_t count);

/* Encodes floats in any format but I32, I64 and U8; numel is whole blocks. Rounds to nearest, ties to even (NF4: ties to the lower value).
 * Finite values out of range become the largest finite value, but in F32 and BF16 they round to infinity. Infinities stay; in E4M3, which
 * has none, they become NaN. NaN becomes a quiet NaN of the same sign. I8, E2M1 and NF4 have neither: infinity becomes the largest value
 * and NaN becomes 0, so callers must mark both in the scales. */
void dtype_encode(DType dtype, const float *values, int64_t numel, void *codes);

/* Decodes the formats of dtype_encode, exactly. */
void dtype_decode(DType dtype, const void *codes, int64_t numel, float *values);

/* The bits of element i, for formats of at most 8 bits. */
uint32_t dtype_code(DType dtype, const void *codes, int64_t i);

/* The index of the first value that is NaN, infinite, or out of the range of `as` (F32, BF16 or F16); numel: there is none. */
int64_t dtype_first_unfit(DType as, const float *values, int64_t numel);

/* Converts element-wise between F32 and a format of dtype_encode, or copies within one format; src and dst do not overlap. */
void dtype_convert(void *dst, DType dst_dtype, const void *src, DType src_dtype, int64_t count);

/* Dtypes that decoding, scoring and evaluation compute in. */
#define DT_SET_DECODE (DT_SET_FLOAT | DT_SET(DT_F16))
