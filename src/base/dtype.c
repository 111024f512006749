/* The dtype table and the conversions between float formats. */
#include "base/dtype.h"

static const DTypeInfo table[DT_COUNT] = {
    [DT_F32]  = { "f32", "F32", "float32", 4 },
    [DT_BF16] = { "bf16", "BF16", "bfloat16", 2 },
    [DT_I32]  = { "i32", "I32", "int32", 4 },
    [DT_I64]  = { "i64", "I64", "int64", 8 },
    [DT_U8]   = { "u8", "U8", "uint8", 1 },
};

const DTypeInfo *dtype_info(DType dtype)
{
    CHECK(dtype < DT_COUNT);
    return &table[dtype];
}

bool dtype_parse(const char *text, DType *out)
{
    if (strncmp(text, "torch.", 6) == 0) text += 6; /* as older config.json files spell it */
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

void bf16_from_f32_row(uint16_t *dst, const float *src, int64_t count)
{
    for (int64_t i = 0; i < count; i++) dst[i] = bf16_from_f32(src[i]);
}

void dtype_convert(void *dst, DType dst_dtype, const void *src, DType src_dtype, int64_t count)
{
    CHECK(((DT_SET(dst_dtype) | DT_SET(src_dtype)) & ~DT_SET_FLOAT) == 0);
    if (dst_dtype == src_dtype) memcpy(dst, src, (size_t)(count * dtype_bytes(src_dtype)));
    else if (dst_dtype == DT_F32 && src_dtype == DT_BF16) bf16_to_f32_row(dst, src, count);
    else bf16_from_f32_row(dst, src, count);
}
