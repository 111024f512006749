/* Stepper: optimizer steps of a session, of one rank or many. It alone knows which program a micro-step runs, that scales are measured
 * before the first step, and that ranks gather weights. The training loop, a caller's trainer and the benchmark drive it.
 *
 *   stepper_gather;  if (stepper_must_measure) { stepper_measure each micro-batch of the first step; stepper_measured; }
 *   each step:  stepper_begin; stepper_micro...; stepper_update; then, up to a step later, stepper_await
 *
 * All calls but stepper_await queue work on the device and return. With several ranks all make the same calls. */
#pragma once

#include "comm/comm.h"
#include "data/feeds.h"
#include "run/session.h"

typedef struct Stepper {
    Session       *session;
    Comm          *comm; /* NULL: one rank */
    int64_t        seed, margin;
    bool           has_scales; /* of a checkpoint, or measured */
    const Program *parts;      /* by index in the plan, run in place of its programs; NULL: those themselves */
    int64_t        index, micros, micro;
    double         divisor, rate;
} Stepper;

/* What a step comes to, the same on all ranks. */
typedef struct StepScalars {
    float values[RESULT_MOST]; /* by RESULT_...; 0 behind the plan's */
} StepScalars;

/* session and comm are borrowed. seed: of dropout and rounding. margin: of FP8 scales (PrecisionOptions). */
void stepper_init(Stepper *stepper, Session *session, Comm *comm, int64_t seed, int64_t margin);

/* With several ranks: weights become whole, for the first step, for programs outside of training and for saving. A failure ends the others
 * too, which may wait in it. */
NODISCARD Status stepper_gather(Stepper *stepper);

/* Whether scales are still to be measured. Each call of stepper_measure takes a micro-batch of step `index`; divisor as in stepper_begin.
 */
bool             stepper_must_measure(const Stepper *stepper);
NODISCARD Status stepper_measure(Stepper *stepper, int64_t index, double divisor, const Feeds *feeds);
NODISCARD Status stepper_measured(Stepper *stepper);
/* As if nothing had been measured: the first step measures its own. The scales stay until then. */
NODISCARD Status stepper_forget_measures(Stepper *stepper);

/* Step `index`, of `micros` micro-steps. divisor: the loss is divided by it: trained tokens of all ranks' micro-batches. */
NODISCARD Status stepper_begin(Stepper *stepper, int64_t index, int64_t micros, double divisor, double rate);
NODISCARD Status stepper_micro(Stepper *stepper, const Feeds *feeds);
NODISCARD Status stepper_update(Stepper *stepper, double rate);

/* Waits for step `index`, which is one of the last RESULT_ROWS. *out_seconds: what the device took for it. */
NODISCARD Status stepper_await(Stepper *stepper, int64_t index, double *out_seconds, StepScalars *out);

/* The program that a micro-step of a step of so many runs. */
const Program *stepper_program(const Stepper *stepper, int64_t micro, int64_t micros);
