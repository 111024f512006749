/* See random_weights.h. One block of random values is used over and over. */
#include "measure/random_weights.h"

#include "base/philox.h"

#include <stdlib.h>
#include <string.h>

typedef struct RandomBlock {
    float    *values;
    uint16_t *bf16, *f16;
} RandomBlock;
enum { BLOCK = 1 << 24 };

static Status random_values(void *context, const Param *param, int64_t first, int64_t count, float *out)
{
    const RandomBlock *block = context;
    (void)first;
    for (int64_t at = 0, n; at < count; at += n) {
        n = count - at < BLOCK ? count - at : BLOCK;
        memcpy(out + at, block->values, (size_t)n * sizeof *out);
    }
    for (int64_t i = 0; i < count && param->init == INIT_ONES; i++) out[i] = 1;
    return OK;
}

static const void *stored_values(void *context, const Param *param, int64_t first, int64_t count)
{
    const RandomBlock *block = context;
    (void)first;
    if (count > BLOCK || param->init == INIT_ONES || !(DT_SET(param->type.dtype) & DT_SET_DECODE)) return NULL;
    if (param->type.dtype == DT_F16) return block->f16;
    return param->type.dtype == DT_BF16 ? (const void *)block->bf16 : block->values;
}

Status random_weights(Session *session, const HfModel *model)
{
    RandomBlock block = {malloc_or_end(BLOCK * sizeof *block.values), malloc_or_end(BLOCK * sizeof *block.bf16),
                         malloc_or_end(BLOCK * sizeof *block.f16)};
    LoadSource  source = {.context = &block, .values = random_values, .stored = stored_values};
    for (int i = 0; i < BLOCK; i++) block.values[i] = (philox_uniform(philox4x32((uint32_t)i, 0, 0, 0, 1).v[0]) - 0.5f) * 0.07f;
    dtype_convert(block.bf16, DT_BF16, block.values, DT_F32, BLOCK);
    dtype_convert(block.f16, DT_F16, block.values, DT_F32, BLOCK);
    Status status = session_load(session, false, &source);
    if (status == OK) status = session_load(session, true, &source);
    for (int i = 0; i < model->num_namespaces && status == OK; i++) {
        source.ns = model->namespaces[i]->ns;
        status = session_load(session, false, &source);
    }
    if (status == OK) status = session_sync(session);
    free(block.values);
    free(block.bf16);
    free(block.f16);
    return status;
}
