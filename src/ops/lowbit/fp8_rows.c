/* These functions aren't in the header: each op with codes would compile them twice, for AVX2 and for AVX-512. */
#include "ops/lowbit/fp8_rows.h"

RowCodes row_codes(const KernelArgs *args, const OpCodes *codes, const TensorType *of)
{
    const TensorView *out = args->out + codes->out, *scale = &args->in[codes->scale];
    RowCodes          q = {.codes = out[0].data, .rows = type_rows(of), .cols = type_cols(of), .dtype = of->dtype, .format = DT_E4M3};
    if (!scale->data) {
        q.scales = out[1].data;
        return q;
    }
    q.turned = out[1].data;
    q.amax = out[2].data;
    q.scale = scale->data;
    q.format = fp8_dtype(*(const int64_t *)(const void *)((const char *)args->attrs + codes->attr));
    return q;
}

uint32_t fp8_encode_scaled(const float *values, int64_t count, float factor, DType format, uint8_t *codes)
{
    float    scaled[FP8_TILE], largest = fp8_most(format);
    uint32_t most = 0;
    for (int64_t i = 0; i < count; i++) {
        uint32_t magnitude = small_magnitude(values[i]);
        bool     is_finite = magnitude < FP8_INFINITE;
        scaled[i] = is_finite ? fminf(fmaxf(values[i] * factor, -largest), largest) : NAN;
        if (is_finite && magnitude > most) most = magnitude;
    }
    dtype_encode(format, scaled, count, codes);
    return most;
}

static void row_codes_scaled(RowCodes *q, int64_t row, int64_t col, const float *x, int64_t count)
{
    uint8_t  codes[FP8_TILE];
    uint32_t most = fp8_encode_scaled(x, count, q->scale[FP8_SCALE], q->format, codes);
    if (most > q->most) q->most = most;
    if (q->codes) memcpy(q->codes + row * q->cols + col, codes, (size_t)count);
    for (int64_t i = 0; i < count && q->turned; i++) q->turned[(col + i) * q->rows + row] = codes[i];
}

static void row_codes_block(RowCodes *q, int64_t row, int64_t col, const float *values, int64_t count)
{
    float x[FP8_TILE];
    for (int64_t i = 0; i < count; i++) x[i] = q->dtype == DT_BF16 ? bf16_to_f32(bf16_from_f32(values[i])) : values[i];
    if (q->scale) {
        row_codes_scaled(q, row, col, x, count);
        return;
    }
    float scale = fp8_row_scale(most_magnitude(0, x, count)), inverse = 1 / scale;
    for (int64_t i = 0; i < count && q->codes; i++)
        q->codes[row * q->cols + col + i] = (uint8_t)small_nearest(small_e4m3(), x[i] * inverse);
    if (q->scales) q->scales[col / FP8_TILE * q->rows + row] = scale;
}

void row_codes_store(RowCodes *q, int64_t row, int64_t col, const float *values, int64_t count)
{
    for (int64_t c = 0; c < count && row_codes_wanted(q); c += FP8_TILE)
        row_codes_block(q, row, col + c, values + c, min_i64(FP8_TILE, count - c));
}

void row_codes_record(const RowCodes *q)
{
    float most = small_value(q->most), seen;
    if (!q->amax) return;
    __atomic_load(q->amax, &seen, __ATOMIC_RELAXED);
    while (most > seen && !__atomic_compare_exchange(q->amax, &seen, &most, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) continue;
}
