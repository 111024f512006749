#include "run/scales.h"

#include "ops/lowbit/fp8.h"

#include <stdlib.h>

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
    size_t num = (size_t)session_plan(session)->num_scaled;
    float *values = malloc(num * (1 + FP8_SCALE_FLOATS) * sizeof *values);
    if (!values) fatal_out_of_memory(num * (1 + FP8_SCALE_FLOATS) * sizeof *values);
    Status status = begin(session, comm, margin, values, values + num);
    free(values);
    return status;
}

Status scales_forget(Session *session)
{
    size_t num = (size_t)session_plan(session)->num_scaled;
    float *zeros = calloc(num, sizeof *zeros);
    if (!zeros) fatal_out_of_memory(num * sizeof *zeros);
    Status status = session_write(session, PRECISION_NOW, zeros, num * sizeof *zeros);
    free(zeros);
    return status;
}
