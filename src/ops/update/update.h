/* Optimizer steps on the CPU: segments are divided into tasks, and weights may be stored with stochastic rounding. */
#pragma once

#include "ops/infer.h"
#include "ops/random_row.h"

/* Elements of a task. Tiles start at multiples of TILE within their segment, so that the random words of a tile come in whole quads. */
enum { TILES_PER_TASK = 16, UPDATE_PER_TASK = TILES_PER_TASK * TILE };

/* Number of tasks for all segments of a flat tensor of `numel` elements. */
NODISCARD static inline Status segments_tasks(const TensorView *table, int64_t numel, int64_t *out_tasks)
{
    const int64_t(*segments)[SEGMENT_COLUMNS] = table->data;
    int64_t tasks = 0, end = 0;
    for (int64_t i = 0; i < table->type.dim[0]; i++) {
        int64_t first = segments[i][SEGMENT_OFFSET], count = segments[i][SEGMENT_NUMEL];
        FAIL_IF(first < end || count < 0 || count > numel - first, ERR_INVALID,
                "segment %lld is [%lld, +%lld): segments are sorted, apart, and within %lld elements", (long long)i, (long long)first,
                (long long)count, (long long)numel);
        end = first + count;
        tasks += div_up(count, UPDATE_PER_TASK);
    }
    *out_tasks = tasks;
    return OK;
}

/* Index of the segment to which the task belongs; *task becomes its index within the segment. */
static inline int64_t segment_of_task(const int64_t (*segments)[SEGMENT_COLUMNS], int64_t *task)
{
    for (int64_t i = 0;; i++) {
        int64_t tasks = div_up(segments[i][SEGMENT_NUMEL], UPDATE_PER_TASK);
        if (*task < tasks) return i;
        *task -= tasks;
    }
}

/* The random key of a segment in this step. */
static inline uint64_t update_key(const int64_t *step, int64_t segment_key)
{
    return random_key(step[STEP_SEED], step[STEP_INDEX], RANDOM_ADAMW, segment_key);
}

/* Room for a tile's random words. They are made in groups, and a tile may begin within a group. */
enum { UPDATE_RANDOM = TILE + RANDOM_GROUP };

/* Random words for elements [first, first + count) of a parameter; count is at most TILE. See random_segment_quad. */
static inline void update_random(uint32_t *random, uint64_t key, int64_t first, int64_t count)
{
    for (; first % 4 && count > 0; first++, count--) *random++ = random_segment_quad(key, (uint64_t)first / 4).v[first % 4];
    if (count > 0) random_row(random, key, (uint32_t)(first / 4), (uint32_t)(first / 4 >> 32), 0, count);
}

/* Stores elements [at, at + count) of a bf16 tensor, each rounded by the 16 bits of its random word from bit `shift` on. */
static inline void store_stochastic(const TensorView *t, int64_t at, const float *src, const uint32_t *random, int shift, int64_t count)
{
    uint16_t *dst = vec_at_mut(t->data, DT_BF16, at);
    for (int64_t i = 0; i < count; i++) dst[i] = bf16_from_f32_stochastic(src[i], random[i] >> shift);
}
