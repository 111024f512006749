/* The number formats a tensor may hold, one table, and conversions between them and float.
 *
 * A format of less than a byte is stored in blocks of `block` elements that fill whole bytes: sizes and offsets are of whole
 * blocks, and an element of one has no address. */
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
    DT_E4M3, /* 1.4.3 bits, the variant without infinities ("fn"): largest 448, NaN is all ones */
    DT_E5M2, /* 1.5.2 bits, with infinities and NaN: largest 57344 */
    DT_E2M1, /* 1.2.1 bits, neither: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives */
    DT_NF4,  /* an index into 16 quantiles of a normal distribution, from -1 to 1 */
    DT_COUNT
} DType;

typedef struct DTypeInfo {
    const char *name;          /* in IR and reports: f32 */
    const char *hf_name;       /* config.json and run files: float32 */
    int         bits;          /* of an element */
    int         block;         /* elements that fill whole bytes together: 1, or 2 in one byte */
    bool        first_is_high; /* of two elements in a byte the first is in the high four bits, else in the low ones */
} DTypeInfo;

const DTypeInfo *dtype_info(DType dtype);

/* Bytes of `numel` elements, and the offset of element `numel`. They must be whole blocks: our bug otherwise. */
int64_t dtype_bytes(DType dtype, int64_t numel);

/* By IR name, HF name or common alias (bf16, fp32, bfloat16, float32). */
bool dtype_parse(const char *text, DType *out);

typedef uint32_t DTypeSet; /* bit per DType */
#define DT_SET(dt) (1u << (dt))
#define DT_SET_F32 DT_SET(DT_F32)
#define DT_SET_BF16 DT_SET(DT_BF16)
#define DT_SET_FLOAT (DT_SET_F32 | DT_SET_BF16) /* those that training computes in */
#define DT_SET_FP8 (DT_SET(DT_E4M3) | DT_SET(DT_E5M2))
#define DT_SET_ANY ((1u << DT_COUNT) - 1)

static inline float bf16_to_f32(uint16_t bits)
{
    uint32_t word = (uint32_t)bits << 16;
    float    out;
    memcpy(&out, &word, 4);
    return out;
}

/* Round to nearest, ties to even; NaN stays NaN (quiet), the largest finite values round to infinity. Loops over it vectorise. */
static inline uint16_t bf16_from_f32(float value)
{
    uint32_t word;
    memcpy(&word, &value, 4);
    return (uint16_t)((value != value ? word | 0x400000u : word + 0x7FFFu + ((word >> 16) & 1u)) >> 16);
}

/* Stochastic rounding: up with a chance equal to the fraction cut off; `random` is 32 random bits, the low 16 are used. */
static inline uint16_t bf16_from_f32_stochastic(float value, uint32_t random)
{
    uint32_t word;
    memcpy(&word, &value, 4);
    uint32_t unrounded = (word & 0x7FFFFFFFu) > 0x7F800000u ? word | 0x400000u : word; /* infinity stays */
    return (uint16_t)(((word & 0x7F800000u) == 0x7F800000u ? unrounded : word + (random & 0xFFFFu)) >> 16);
}

void bf16_to_f32_row(float *dst, const uint16_t *src, int64_t count);

/* Floats to codes of any format but I32, I64 and U8; numel: whole blocks. To nearest, ties to even (NF4: to the lower one). Finite
 * values beyond the range become the largest finite one, but in F32 and BF16, which round to infinity. Infinities stay, and in E4M3,
 * which has none, become NaN; NaN becomes a quiet one of its sign. Formats without either have their largest value for infinity and
 * 0 for NaN: the scales beside such codes must tell. */
void dtype_encode(DType dtype, const float *values, int64_t numel, void *codes);

/* The same formats back, exactly. */
void dtype_decode(DType dtype, const void *codes, int64_t numel, float *values);

/* The bits of element i of a format of at most 8. */
uint32_t dtype_code(DType dtype, const void *codes, int64_t i);

/* The first of the values that is NaN or infinite, or isn't finite and within range any more in `as` (F32, BF16 or F16); numel:
 * there is none. */
int64_t dtype_first_unfit(DType as, const float *values, int64_t numel);

/* Between two of those formats of which one is F32, or within one, element-wise; src and dst do not overlap. */
void dtype_convert(void *dst, DType dst_dtype, const void *src, DType src_dtype, int64_t count);

/* What decoding, scoring and evaluating compute in. */
#define DT_SET_DECODE (DT_SET_FLOAT | DT_SET(DT_F16))
