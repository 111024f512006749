/* Stepper: optimizer steps of a session, of one rank or many. It alone knows which program a micro-step runs, that scales are measured
 * before the first step, and that ranks gather weights. The training loop, a caller's trainer and the benchmark drive it.
 *
 *   stepper_gather;  if (stepper_must_measure) { stepper_measure each micro-batch of the first step; stepper_measured; }
 *   each step:  stepper_begin; stepper_micro...; stepper_update; then, up to a step later, stepper_await
 *
 * All calls but stepper_measured and stepper_await queue work on the device and return. With several ranks all ranks make the same
 * calls. */
#pragma once

#include "comm/comm.h"
#include "data/feeds.h"
#include "run/session.h"

typedef struct Stepper {
    Session       *session;
    Comm          *comm; /* NULL: one rank */
    int64_t        seed, margin;
    bool           has_scales; /* scales came from a checkpoint, or were measured */
    const Program *parts;      /* by index in the plan: programs run in place of the plan's; NULL: the plan's own */
    int64_t        index, micros, micro;
    double         divisor, rate;
} Stepper;

/* The results of a step, the same on all ranks. */
typedef struct StepScalars {
    float values[RESULT_MOST]; /* by RESULT_...; 0 after the plan's last scalar */
} StepScalars;

/* session and comm are borrowed. seed: for dropout and rounding. margin: for FP8 scales (PrecisionOptions). */
void stepper_init(Stepper *stepper, Session *session, Comm *comm, int64_t seed, int64_t margin);

/* With several ranks: gathers the whole weights, for the first step, for programs outside of training and for saving. A failure also ends
 * the other ranks, which may be waiting in the gather. */
NODISCARD Status stepper_gather(Stepper *stepper);

/* stepper_must_measure: whether scales are still to be measured. Then stepper_measure takes each micro-batch of step `index` (divisor as in
 * stepper_begin), and stepper_measured makes the scales. */
bool             stepper_must_measure(const Stepper *stepper);
NODISCARD Status stepper_measure(Stepper *stepper, int64_t index, double divisor, const Feeds *feeds);
NODISCARD Status stepper_measured(Stepper *stepper);
/* Forgets that scales were measured: they must be measured again before the next step. The old scales stay until then. */
NODISCARD Status stepper_forget_measures(Stepper *stepper);

/* Begins step `index`, of `micros` micro-steps. The loss is divided by divisor, the trained tokens of all ranks' micro-batches. rate:
 * learning rate. */
NODISCARD Status stepper_begin(Stepper *stepper, int64_t index, int64_t micros, double divisor, double rate);
NODISCARD Status stepper_micro(Stepper *stepper, const Feeds *feeds);
NODISCARD Status stepper_update(Stepper *stepper, double rate);

/* Waits for step `index`, one of the last RESULT_ROWS. *out_seconds: the device's time for it. */
NODISCARD Status stepper_await(Stepper *stepper, int64_t index, double *out_seconds, StepScalars *out);

/* The program that runs as micro-step `micro` of a step of `micros`. */
const Program *stepper_program(const Stepper *stepper, int64_t micro, int64_t micros);
