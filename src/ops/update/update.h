/* Optimizer steps on the CPU: segments cut into tasks, weights stored by stochastic rounding. */
#pragma once

#include "ops/infer.h"
#include "ops/random_row.h"

/* A segment's work in tasks; tiles start at multiples of TILE within their segment, so that a tile's draws are whole quads. */
enum { TILES_PER_TASK = 16, UPDATE_PER_TASK = TILES_PER_TASK * TILE };

/* The tasks of all segments of a flat run of `numel` elements. */
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

/* The index of the segment that the task is of; *task becomes its number within the segment. */
static inline int64_t segment_of_task(const int64_t (*segments)[SEGMENT_COLUMNS], int64_t *task)
{
    for (int64_t i = 0;; i++) {
        int64_t tasks = div_up(segments[i][SEGMENT_NUMEL], UPDATE_PER_TASK);
        if (*task < tasks) return i;
        *task -= tasks;
    }
}

/* The key of a segment's draws in this step. */
static inline uint64_t update_key(const int64_t *step, int64_t segment_key)
{
    return random_key(step[STEP_SEED], step[STEP_INDEX], RANDOM_ADAMW, segment_key);
}

/* Room for the words of a tile: they come in groups, which the first element may begin within. */
enum { UPDATE_RANDOM = TILE + RANDOM_GROUP };

/* Words of elements [first, first + count) of a parameter, count at most TILE. See random_segment_quad. */
static inline void update_random(uint32_t *random, uint64_t key, int64_t first, int64_t count)
{
    for (; first % 4 && count > 0; first++, count--) *random++ = random_segment_quad(key, (uint64_t)first / 4).v[first % 4];
    if (count > 0) random_row(random, key, (uint32_t)(first / 4), (uint32_t)(first / 4 >> 32), 0, count);
}

/* Elements [at, at + count) of a bf16 tensor, each with 16 bits of its random word. */
static inline void store_stochastic(const TensorView *t, int64_t at, const float *src, const uint32_t *random, int shift, int64_t count)
{
    uint16_t *dst = vec_at_mut(t->data, DT_BF16, at);
    for (int64_t i = 0; i < count; i++) dst[i] = bf16_from_f32_stochastic(src[i], random[i] >> shift);
}
