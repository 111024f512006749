#include "run/scales.h"

#include "ops/lowbit/fp8.h"

static Status begin(Session *session, Comm *comm, int64_t margin, float *now, float *scales)
{
    const Plan *plan = session_plan(session);
    size_t      num = (size_t)plan->num_scaled, bytes = num * FP8_SCALE_FLOATS * sizeof *scales;
    TRY(session_read(session, PRECISION_NOW, now, num * sizeof *now));
    TRY(comm_all_reduce(comm, now, (int64_t)num, DT_F32, COMM_MAX));
    TRY(session_write(session, PRECISION_NOW, now, num * sizeof *now));
    TRY(session_read(session, PRECISION_SCALES, scales, bytes));
    for (size_t i = 0; i < num; i++) {
        if (plan->scaled[i].num_params) continue;
        fp8_scale_set(scales + i * FP8_SCALE_FLOATS, 1);
        fp8_scale_follow(scales + i * FP8_SCALE_FLOATS, now[i], fp8_most(plan->scaled[i].dtype), margin);
    }
    return session_write(session, PRECISION_SCALES, scales, bytes);
}

Status scales_begin(Session *session, Comm *comm, int64_t margin)
{
    int    num = session_plan(session)->num_scaled;
    Arena  arena = {0};
    Status status = begin(session, comm, margin, arena_array(&arena, float, num), arena_array(&arena, float, num *FP8_SCALE_FLOATS));
    arena_deinit(&arena);
    return status;
}

Status scales_forget(Session *session)
{
    int    num = session_plan(session)->num_scaled;
    Arena  arena = {0};
    Status status = session_write(session, PRECISION_NOW, arena_array(&arena, float, num), (size_t)num * sizeof(float));
    arena_deinit(&arena);
    return status;
}
