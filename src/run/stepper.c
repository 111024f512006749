#include "run/stepper.h"

#include "ops/attrs.h"
#include "run/scales.h"

#include <string.h>

void stepper_init(Stepper *s, Session *session, Comm *comm, int64_t seed, int64_t margin)
{
    *s = (Stepper){.session = session, .comm = comm, .seed = seed, .margin = margin};
}

static Status run(Stepper *s, const Program *program)
{
    return session_run(s->session, s->parts ? &s->parts[program - session_plan(s->session)->programs] : program);
}

Status stepper_gather(Stepper *s)
{
    if (!s->comm) return OK;
    Status status = run(s, plan_program(session_plan(s->session), &entry_gather));
    if (status != OK) comm_abort(s->comm, status, status_message());
    return status;
}

static Status write_numbers(Stepper *s, int64_t index, double divisor, double rate)
{
    int64_t step[STEP_COUNT] = {[STEP_SEED] = s->seed, [STEP_INDEX] = index};
    float   hyper[HYPER_COUNT] = {[HYPER_LR] = (float)rate, [HYPER_INV_TOKENS] = divisor > 0 ? (float)(1.0 / divisor) : 0.0f};
    Feeds   feeds = {.step = step, .hyper = hyper};
    return session_feed(s->session, NULL, &feeds);
}

/* ---- scales ---- */

bool stepper_must_measure(const Stepper *s)
{
    return session_plan(s->session)->num_scaled > 0 && !s->has_scales;
}

Status stepper_measure(Stepper *s, int64_t index, double divisor, const Feeds *feeds)
{
    const Program *program = plan_program(session_plan(s->session), &entry_calibrate);
    TRY(write_numbers(s, index, divisor, 0));
    TRY(session_feed(s->session, program, feeds));
    return run(s, program);
}

Status stepper_measured(Stepper *s)
{
    s->has_scales = true;
    return scales_begin(s->session, s->comm, s->margin);
}

Status stepper_forget_measures(Stepper *s)
{
    s->has_scales = false;
    return scales_forget(s->session);
}

/* ---- steps ---- */

const Program *stepper_program(const Stepper *s, int64_t micro, int64_t micros)
{
    return plan_micro(session_plan(s->session), micro, micros);
}

Status stepper_begin(Stepper *s, int64_t index, int64_t micros, double divisor, double rate)
{
    s->index = index;
    s->micros = micros;
    s->micro = 0;
    s->divisor = divisor;
    s->rate = rate;
    TRY(session_begin_step(s->session, index));
    return write_numbers(s, index, divisor, rate);
}

Status stepper_micro(Stepper *s, const Feeds *feeds)
{
    const Program *program = stepper_program(s, s->micro, s->micros);
    CHECK(s->micro < s->micros);
    s->micro++;
    TRY(session_feed(s->session, program, feeds));
    return run(s, program);
}

Status stepper_update(Stepper *s, double rate)
{
    if (rate != s->rate) TRY(write_numbers(s, s->index, s->divisor, rate));
    TRY(run(s, plan_program(session_plan(s->session), &entry_optimizer)));
    return session_end_step(s->session, s->index);
}

Status stepper_await(Stepper *s, int64_t index, double *out_seconds, StepScalars *out)
{
    TRY(session_await_step(s->session, index, out_seconds));
    const float *ring = session_pointer(s->session, "results");
    int64_t      count = RESULT_SCALARS + session_plan(s->session)->num_scalars;
    *out = (StepScalars){0};
    memcpy(out->values, ring + index % RESULT_ROWS * count, (size_t)count * sizeof *ring);
    return OK;
}
