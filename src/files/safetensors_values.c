/* Element values of float tensors: conversion to float and the check for NaN and infinity. */
#include "files/safetensors.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { BLOCK_DOUBLES = 512 };

/* src must be aligned to its elements. */
static void decode(StDType dtype, const void *src, int64_t count, float *dst)
{
    const double *wide = src;
    if (dtype == ST_F32) memcpy(dst, src, (size_t)count * 4);
    if (dtype == ST_BF16) bf16_to_f32_row(dst, src, count);
    if (dtype == ST_F16) dtype_decode(DT_F16, src, count, dst);
    for (int64_t i = 0; i < count && dtype == ST_F64; i++) dst[i] = (float)wide[i];
}

Status st_to_f32(const StTensor *tensor, int64_t first, int64_t count, float *dst)
{
    CHECK(first >= 0 && count >= 0 && first <= tensor->numel - count);
    if (tensor->made) {
        tensor->made->to_f32(tensor->made, first, count, dst);
        return OK;
    }
    if (!st_dtype_is_float(tensor->dtype))
        FAIL(ERR_UNSUPPORTED, "%s: tensor \"%.200s\" is %s; weights are read as F32, BF16, F16 or F64", tensor->path, tensor->name,
             st_dtype_name(tensor->dtype));
    size_t      bytes = (size_t)st_dtype_bits(tensor->dtype) / 8;
    const char *src = (const char *)tensor->data + (size_t)first * bytes;
    if (st_is_aligned(tensor)) {
        decode(tensor->dtype, src, count, dst);
        return OK;
    }
    double block[BLOCK_DOUBLES];
    for (int64_t most = (int64_t)(sizeof block / bytes), n; count > 0; count -= n, src += (size_t)n * bytes, dst += n) {
        n = count < most ? count : most;
        memcpy(block, src, (size_t)n * bytes);
        decode(tensor->dtype, block, n, dst);
    }
    return OK;
}

/* The index of element `left` as text: "[3, 4]". */
static const char *index_text(const StTensor *tensor, int64_t left, char text[ST_MAX_NDIM * 24 + 3])
{
    int64_t index[ST_MAX_NDIM];
    int     len = 1;
    for (int i = tensor->ndim - 1; i >= 0; i--) {
        index[i] = left % tensor->dim[i];
        left /= tensor->dim[i];
    }
    strcpy(text, "[");
    for (int i = 0; i < tensor->ndim; i++) len += sprintf(text + len, "%s%lld", i ? ", " : "", (long long)index[i]);
    strcpy(text + len, "]");
    return text;
}

static Status out_of_range(const StTensor *tensor, int64_t at, float value, DType as)
{
    char text[ST_MAX_NDIM * 24 + 3];
    index_text(tensor, at, text);
    FAIL_IF(isfinite(value), ERR_INVALID, "%s: tensor \"%.200s\" holds %g at %s, which %s can't hold; %s", tensor->path, tensor->name,
            value, text, dtype_info(as)->name, as == DT_F16 ? "take dtype bf16 or fp32" : "set model_dtype: fp32");
    double wide = NAN;
    if (tensor->dtype == ST_F64 && !tensor->made) memcpy(&wide, (const char *)tensor->data + (size_t)at * sizeof wide, sizeof wide);
    FAIL_IF(isfinite(wide), ERR_INVALID, "%s: tensor \"%.200s\" holds %g at %s, which no float can hold", tensor->path, tensor->name, wide,
            text);
    FAIL(ERR_INVALID, "%s: tensor \"%.200s\" holds %s at %s%s", tensor->path, tensor->name, isnan(value) ? "NaN" : "an infinity", text,
         tensor->dtype == ST_F16 && !tensor->made && isinf(value)
             ? "; F16 ends at 65504, so a larger value was lost when the file was written: take the weights as BF16 or F32"
             : "");
}

Status st_check_range(const StTensor *tensor, DType as)
{
    enum { BLOCK = 4096 };
    float values[BLOCK];
    if (!st_dtype_is_float(tensor->dtype)) return OK;
    for (int i = 0; tensor->made && i < tensor->made->num_parts; i++) TRY(st_check_range(&tensor->made->parts[i], DT_F32));
    if (tensor->made && tensor->made->is_tame(tensor->made)) return OK;
    for (int64_t first = 0; first < tensor->numel; first += BLOCK) {
        int64_t count = tensor->numel - first < BLOCK ? tensor->numel - first : BLOCK;
        TRY(st_to_f32(tensor, first, count, values));
        int64_t at = dtype_first_unfit(as, values, count);
        if (at < count) return out_of_range(tensor, first + at, values[at], as);
    }
    return OK;
}
