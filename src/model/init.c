/* Initialisation: see init.h. Everything is computed in double and rounded once, so that all compilers give the same values. */
#include "model/init.h"

#include "base/hash.h"
#include "base/philox.h"

#include <math.h>
#include <string.h>

enum { TASK_NUMEL = 1 << 14 };

static Philox4 draw(uint64_t seed, uint64_t name, int64_t block)
{
    return philox4x32((uint32_t)block, (uint32_t)(block >> 32), (uint32_t)name, (uint32_t)(name >> 32), seed);
}

/* Two normal numbers from two random words. */
static void box_muller(uint32_t a, uint32_t b, double out[2])
{
    double radius = sqrt(-2.0 * log(((double)a + 1.0) * 0x1p-32)), angle = 6.283185307179586477 * ((double)b * 0x1p-32);
    out[0] = radius * cos(angle);
    out[1] = radius * sin(angle);
}

void init_normal(uint64_t seed, const char *name, int64_t first, int64_t count, float std, float *out)
{
    uint64_t hash = hash_bytes(name, strlen(name), 0);
    CHECK(first % 4 == 0);
    for (int64_t i = 0; i < count; i += 4) {
        Philox4 words = draw(seed, hash, (first + i) / 4);
        double  values[4];
        box_muller(words.v[0], words.v[1], values);
        box_muller(words.v[2], words.v[3], values + 2);
        for (int64_t k = 0; k < 4 && i + k < count; k++) out[i + k] = (float)(values[k] * (double)std);
    }
}

void init_uniform(uint64_t seed, const char *name, int64_t first, int64_t count, float bound, float *out)
{
    uint64_t hash = hash_bytes(name, strlen(name), 0);
    CHECK(first % 4 == 0);
    for (int64_t i = 0; i < count; i += 4) {
        Philox4 words = draw(seed, hash, (first + i) / 4);
        for (int64_t k = 0; k < 4 && i + k < count; k++) out[i + k] = (float)(((double)words.v[k] * 0x1p-31 - 1.0) * (double)bound);
    }
}

void init_values(uint64_t seed, const Param *param, int64_t first, int64_t count, float *out)
{
    switch (param->init) {
    case INIT_NORMAL:
        init_normal(seed, param->name, first, count, param->init_std, out);
        break;
    case INIT_UNIFORM:
        init_uniform(seed, param->name, first, count, param->init_std, out);
        break;
    case INIT_ZEROS:
        memset(out, 0, (size_t)count * sizeof *out);
        break;
    case INIT_NORMS: /* norms of the base's weights, which aren't known here: ones in their place */
    case INIT_ONES:
        for (int64_t i = 0; i < count; i++) out[i] = 1.0f;
    }
}

typedef struct Fill {
    uint64_t     seed;
    ThreadPool  *pool;
    const Param *param;
    int64_t      first, count;
    float       *out;
} Fill;

static void fill_task(void *context, int64_t task, int worker)
{
    (void)worker;
    Fill   *fill = context;
    int64_t begin = task * TASK_NUMEL, count = fill->count - begin;
    init_values(fill->seed, fill->param, fill->first + begin, count < TASK_NUMEL ? count : TASK_NUMEL, fill->out + begin);
}

static Status fill_values(void *context, const Param *param, int64_t first, int64_t count, float *out)
{
    Fill *fill = context;
    fill->param = param;
    fill->first = first;
    fill->count = count;
    fill->out = out;
    pool_run(fill->pool, (count + TASK_NUMEL - 1) / TASK_NUMEL, fill_task, fill);
    return OK;
}

Status init_params(Session *session, uint64_t seed, bool adapters, ThreadPool *pool)
{
    Fill       fill = {.seed = seed, .pool = pool};
    LoadSource source = {.context = &fill, .values = fill_values, .begins = adapters};
    return session_load(session, adapters, &source);
}
