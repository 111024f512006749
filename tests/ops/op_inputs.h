/* Numbers for the inputs of ops under test. */
#pragma once

#include "base/philox.h"
#include "ops/infer.h"

/* Element `index` of the normal numbers named `key`. */
static double draw_normal(uint64_t key, uint32_t index)
{
    Philox4 draw = philox4x32(index, 0, 0, 0, key);
    double  u = ((double)draw.v[0] + 0.5) / 4294967296.0, phase = (double)draw.v[1] / 4294967296.0;
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * phase);
}

/* Inputs whose elements must agree with each other or keep to a range. */
static void draw_constrained(const OpDef *op, int k, const TensorType *type, void *data)
{
    int64_t  numel = type_numel(type);
    float   *floats = data;
    int32_t *ints = data;
    if (type->dtype == DT_F32 && type->ndim == 1 && type->dim[0] == HYPER_COUNT && numel == HYPER_COUNT &&
        (op->id == OP_ADAMW || op->id == OP_LOSS_SUM || op->id == OP_LOSS_SUM_BWD)) {
        const float hyper[HYPER_COUNT] = { 1e-2f, 0.25f, 0.271f, 0.142625f };
        memcpy(data, hyper, sizeof hyper);
    }
    if (op->id == OP_ADAMW && k == 3)
        for (int64_t i = 0; i < numel; i++) vec_set(data, type->dtype, i, fabsf(vec_get(data, type->dtype, i)));
    if (op->id == OP_ADAMW && k == 4) floats[0] = 30.0f;
    if (op->id == OP_ADAMW && k == 8)
        for (int64_t s = 0, n = type->dim[0]; s < n; s++) {
            int64_t row[4] = { s * 20, s + 1 < n ? 17 : 18 + s, s & 1, 100 + s };
            memcpy((int64_t *)data + s * 4, row, sizeof row);
        }
    /* documents of 3, 8, 13, ... tokens in the first row, 4, 9, ... in the next */
    if ((op->id == OP_ATTENTION && k == 3) || (op->id == OP_ATTENTION_BWD && k == 6))
        for (int64_t b = 0; b < type->dim[0]; b++)
            for (int32_t t = 0, start = 0, len = (int32_t)b + 3; t < type->dim[1]; t++) {
                if (t - start == len) start = t, len += 5;
                ints[b * type->dim[1] + t] = start;
            }
    bool labels = (op->id == OP_CROSS_ENTROPY && k == 1) || (op->id == OP_CROSS_ENTROPY_BWD && k == 2) ||
                  (op->id == OP_LM_HEAD_LOSS && k == 2) || (op->id == OP_LM_HEAD_LOSS_BWD && k == 3);
    for (int64_t i = 1; labels && i < numel; i += 4) ints[i] = IGNORE_INDEX;
}
