/* Element values of float tensors: conversion to float and the check for NaN and infinity. */
#include "files/safetensors.h"

#include <immintrin.h>
#include <math.h>
#include <stdio.h>

Status st_to_f32(const StTensor *tensor, int64_t first, int64_t count, float *dst)
{
    CHECK(first >= 0 && count >= 0 && first <= tensor->numel - count);
    const char *src = (const char *)tensor->data + first * (st_dtype_bits(tensor->dtype) / 8);
    switch (tensor->dtype) {
    case ST_F32: memcpy(dst, src, (size_t)count * 4); return OK;
    case ST_BF16: bf16_to_f32_row(dst, (const uint16_t *)src, count); return OK;
    case ST_F16: {
        const uint16_t *half = (const uint16_t *)src;
        int64_t         i = 0;
        for (; i + 8 <= count; i += 8)
            _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(half + i))));
        for (; i < count; i++) dst[i] = _cvtsh_ss(half[i]);
        return OK;
    }
    case ST_F64: {
        const double *wide = (const double *)src;
        for (int64_t i = 0; i < count; i++) dst[i] = (float)wide[i];
        return OK;
    }
    default:
        FAIL(ERR_UNSUPPORTED, "%s: tensor \"%.200s\" is %s; weights are read as F32, BF16, F16 or F64", tensor->path,
             tensor->name, st_dtype_name(tensor->dtype));
    }
}

/* The exponent bits of a value all set: NaN or infinity. Written without branches so that it vectorises. */
static bool all_finite(const float *values, int64_t count)
{
    uint32_t any = 0;
    for (int64_t i = 0; i < count; i++) {
        uint32_t word;
        memcpy(&word, &values[i], 4);
        any |= (word & 0x7F800000u) == 0x7F800000u;
    }
    return !any;
}

Status st_check_finite(const StTensor *tensor)
{
    enum { BLOCK = 4096 };
    float values[BLOCK];
    if (!st_dtype_is_float(tensor->dtype)) return OK;
    for (int64_t first = 0; first < tensor->numel; first += BLOCK) {
        int64_t count = tensor->numel - first < BLOCK ? tensor->numel - first : BLOCK;
        TRY(st_to_f32(tensor, first, count, values));
        if (all_finite(values, count)) continue;
        int64_t at = 0;
        while (isfinite(values[at])) at++;
        float   value = values[at];
        int64_t left = first + at, index[ST_MAX_NDIM];
        for (int i = tensor->ndim - 1; i >= 0; i--) {
            index[i] = left % tensor->dim[i];
            left /= tensor->dim[i];
        }
        char text[ST_MAX_NDIM * 24] = "";
        int  len = 0;
        for (int i = 0; i < tensor->ndim; i++)
            len += snprintf(text + len, sizeof text - (size_t)len, "%s%lld", i ? ", " : "", (long long)index[i]);
        FAIL(ERR_INVALID, "%s: tensor \"%.200s\" holds %s at [%s]", tensor->path, tensor->name,
             isnan(value) ? "NaN" : "an infinity", text);
    }
    return OK;
}
