/* The dtype table and the conversions between formats. */
#include "base/dtype.h"
#include "base/avx2.h"

#include "base/nf4.h"
#include "base/small_float.h"

#include <math.h>

static const DTypeInfo table[DT_COUNT] = {
    [DT_F32] = {"f32", "float32", 32, 1, false},
    [DT_BF16] = {"bf16", "bfloat16", 16, 1, false},
    [DT_I32] = {"i32", "int32", 32, 1, false},
    [DT_I64] = {"i64", "int64", 64, 1, false},
    [DT_U8] = {"u8", "uint8", 8, 1, false},
    [DT_I8] = {"i8", "int8", 8, 1, false},
    [DT_F16] = {"f16", "float16", 16, 1, false},
    [DT_E4M3] = {"e4m3", "float8_e4m3fn", 8, 1, false},
    [DT_E5M2] = {"e5m2", "float8_e5m2", 8, 1, false},
    [DT_E2M1] = {"e2m1", "float4_e2m1fn", 4, 2, false}, /* packed as in NVFP4 and MXFP4 */
    [DT_NF4] = {"nf4", "nf4", 4, 2, true},              /* packed as in bitsandbytes */
};

const DTypeInfo *dtype_info(DType dtype)
{
    CHECK(dtype < DT_COUNT);
    return &table[dtype];
}

int64_t dtype_bytes(DType dtype, int64_t numel)
{
    const DTypeInfo *info = dtype_info(dtype);
    CHECK(numel % info->block == 0);
    return numel / info->block * (info->bits * info->block / 8);
}

bool dtype_parse(const char *text, DType *out)
{
    if (strncmp(text, "torch.", 6) == 0) text += 6; /* older config.json files write torch.float32 */
    for (int i = 0; i < DT_COUNT; i++) {
        if (strcmp(text, table[i].name) != 0 && strcmp(text, table[i].hf_name) != 0) continue;
        *out = (DType)i;
        return true;
    }
    if (strcmp(text, "fp32") != 0 && strcmp(text, "float") != 0) return false;
    *out = DT_F32;
    return true;
}

void bf16_to_f32_row(float *dst, const uint16_t *src, int64_t count)
{
    for (int64_t i = 0; i < count; i++) dst[i] = bf16_to_f32(src[i]);
}

static void bf16_from_f32_row(uint16_t *dst, const float *src, int64_t count)
{
    for (int64_t i = 0; i < count; i++) dst[i] = bf16_from_f32(src[i]);
}

/* ---- F16, by the CPU's own instructions ---- */

static void f16_encode(const float *values, int64_t numel, uint16_t *codes)
{
    const __m256 most = _mm256_set1_ps(65504), least = _mm256_set1_ps(-65504), sign = _mm256_set1_ps(-0.0f), quiet = _mm256_set1_ps(NAN);
    for (int64_t i = 0; i < numel; i += 8) {
        float    part[8] = {0};
        uint16_t half[8];
        size_t   n = numel - i < 8 ? (size_t)(numel - i) : 8;
        memcpy(part, values + i, n * sizeof *part);
        __m256 x = _mm256_loadu_ps(part), clamped = _mm256_max_ps(least, _mm256_min_ps(most, x));
        __m256 is_nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q), nan = _mm256_or_ps(_mm256_and_ps(x, sign), quiet);
        __m256 is_infinite = _mm256_cmp_ps(_mm256_andnot_ps(sign, x), _mm256_set1_ps(INFINITY), _CMP_EQ_OQ);
        __m256 kept = _mm256_blendv_ps(_mm256_blendv_ps(clamped, nan, is_nan), x, is_infinite);
        _mm_storeu_si128((__m128i *)half, _mm256_cvtps_ph(kept, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
        memcpy(codes + i, half, n * sizeof *half);
    }
}

static void f16_decode(const uint16_t *codes, int64_t numel, float *values)
{
    int64_t i = 0;
    for (; i + 8 <= numel; i += 8) _mm256_storeu_ps(values + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(codes + i))));
    for (; i < numel; i++) values[i] = _cvtsh_ss(codes[i]);
}

/* ---- floats of 8 and 4 bits ---- */

SMALL_FN void small_encode_all(SmallFloat f, const float *values, int64_t numel, uint8_t *codes)
{
    for (int64_t i = 0; i < numel; i++) codes[i] = (uint8_t)small_nearest(f, values[i]);
}

SMALL_FN void small_decode_all(SmallFloat f, const uint8_t *codes, int64_t numel, float *values)
{
    for (int64_t i = 0; i < numel; i++) values[i] = small_decode(f, codes[i]);
}

/* Decodes 8 codes by way of F16, whose exponent bias is larger by 8; hence the factor 256. */
static __m256 e4m3_eight(const uint8_t *codes)
{
    __m128i code = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)codes));
    __m128i magnitude = _mm_and_si128(code, _mm_set1_epi16(0x7F)), sign = _mm_slli_epi16(_mm_srli_epi16(code, 7), 15);
    __m128i is_nan = _mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x7F));
    __m128i half = _mm_blendv_epi8(_mm_slli_epi16(magnitude, 7), _mm_set1_epi16(0x7E00), is_nan);
    return _mm256_mul_ps(_mm256_cvtph_ps(_mm_or_si128(half, sign)), _mm256_set1_ps(256));
}

static void e4m3_decode(const uint8_t *codes, int64_t numel, float *values)
{
    int64_t i = 0;
    for (; i + 8 <= numel; i += 8) _mm256_storeu_ps(values + i, e4m3_eight(codes + i));
    small_decode_all(small_e4m3(), codes + i, numel - i, values + i);
}

/* ---- two elements a byte ---- */

static uint32_t encode_four_bits(DType dtype, float value)
{
    return dtype == DT_NF4 ? (uint32_t)nf4_nearest(value) : small_nearest(small_e2m1(), value);
}

static float decode_four_bits(DType dtype, uint32_t code)
{
    return dtype == DT_NF4 ? nf4_value((int)code) : small_decode(small_e2m1(), code);
}

static void encode_pairs(DType dtype, const float *values, int64_t numel, uint8_t *codes)
{
    int first = dtype_info(dtype)->first_is_high ? 4 : 0;
    for (int64_t i = 0; i < numel; i += 2)
        codes[i / 2] = (uint8_t)(encode_four_bits(dtype, values[i]) << first | encode_four_bits(dtype, values[i + 1]) << (4 - first));
}

uint32_t dtype_code(DType dtype, const void *codes, int64_t i)
{
    const DTypeInfo *info = dtype_info(dtype);
    uint32_t         byte = ((const uint8_t *)codes)[i / info->block];
    CHECK(info->bits <= 8);
    if (info->block == 1) return byte;
    return (i % 2 == 0) == info->first_is_high ? byte >> 4 : byte & 15u;
}

static void decode_pairs(DType dtype, const uint8_t *codes, int64_t numel, float *values)
{
    for (int64_t i = 0; i < numel; i++) values[i] = decode_four_bits(dtype, dtype_code(dtype, codes, i));
}

/* ---- any format ---- */

static void i8_encode(const float *values, int64_t numel, int8_t *codes)
{
    for (int64_t i = 0; i < numel; i++) codes[i] = values[i] != values[i] ? 0 : (int8_t)rintf(fminf(fmaxf(values[i], -128), 127));
}

static void i8_decode(const int8_t *codes, int64_t numel, float *values)
{
    for (int64_t i = 0; i < numel; i++) values[i] = codes[i];
}

void dtype_encode(DType dtype, const float *values, int64_t numel, void *codes)
{
    CHECK(numel % dtype_info(dtype)->block == 0);
    switch (dtype) {
    case DT_F32:
        memcpy(codes, values, (size_t)dtype_bytes(dtype, numel));
        break;
    case DT_BF16:
        bf16_from_f32_row(codes, values, numel);
        break;
    case DT_F16:
        f16_encode(values, numel, codes);
        break;
    case DT_I8:
        i8_encode(values, numel, codes);
        break;
    case DT_E4M3:
        small_encode_all(small_e4m3(), values, numel, codes);
        break;
    case DT_E5M2:
        small_encode_all(small_e5m2(), values, numel, codes);
        break;
    case DT_E2M1:
    case DT_NF4:
        encode_pairs(dtype, values, numel, codes);
        break;
    case DT_I32:
    case DT_I64:
    case DT_U8:
    case DT_COUNT:
        CHECK(!"a format that floats are stored in");
    }
}

void dtype_decode(DType dtype, const void *codes, int64_t numel, float *values)
{
    CHECK(numel % dtype_info(dtype)->block == 0);
    switch (dtype) {
    case DT_F32:
        memcpy(values, codes, (size_t)dtype_bytes(dtype, numel));
        break;
    case DT_BF16:
        bf16_to_f32_row(values, codes, numel);
        break;
    case DT_F16:
        f16_decode(codes, numel, values);
        break;
    case DT_I8:
        i8_decode(codes, numel, values);
        break;
    case DT_E4M3:
        e4m3_decode(codes, numel, values);
        break;
    case DT_E5M2:
        small_decode_all(small_e5m2(), codes, numel, values);
        break;
    case DT_E2M1:
    case DT_NF4:
        decode_pairs(dtype, codes, numel, values);
        break;
    case DT_I32:
    case DT_I64:
    case DT_U8:
    case DT_COUNT:
        CHECK(!"a format that floats are stored in");
    }
}

enum { UNFIT_BLOCK = 1024 };

/* Whether any value's magnitude, compared as bits, is >= limit; without branches, so that the loop vectorises. */
static inline bool any_from(uint32_t limit, const float *values, int64_t numel)
{
    uint32_t any = 0;
    for (int64_t i = 0; i < numel; i++) {
        uint32_t word;
        memcpy(&word, &values[i], 4);
        any |= (word & 0x7FFFFFFFu) >= limit;
    }
    return any;
}

int64_t dtype_first_unfit(DType as, const float *values, int64_t numel)
{
    /* The bits of the smallest magnitude that rounds to more than the largest finite value of `as`. */
    uint32_t limit = as == DT_F16 ? 0x477FF000u : as == DT_BF16 ? 0x7F7F8000u : 0x7F800000u;
    CHECK(DT_SET(as) & DT_SET_DECODE);
    int64_t at = 0;
    while (at + UNFIT_BLOCK <= numel && !any_from(limit, values + at, UNFIT_BLOCK)) at += UNFIT_BLOCK;
    while (at < numel && !any_from(limit, values + at, 1)) at++;
    return at;
}

void dtype_convert(void *dst, DType dst_dtype, const void *src, DType src_dtype, int64_t count)
{
    if (dst_dtype == src_dtype) {
        memcpy(dst, src, (size_t)dtype_bytes(src_dtype, count));
    } else if (src_dtype == DT_F32) {
        dtype_encode(dst_dtype, src, count, dst);
    } else {
        CHECK(dst_dtype == DT_F32);
        dtype_decode(src_dtype, src, count, dst);
    }
}
