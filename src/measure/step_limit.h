/* What a step takes at least on this machine: the limit that its time is held against.
 *
 * Only arithmetic that the step's rows ask for counts: attention of the documents there are, the output head of the trained tokens.
 * A GPU's rates are its data sheet's. A CPU's rate is measured, and counts for arithmetic alone: how much of a step's traffic
 * reaches memory is its caches' affair. */
#pragma once

#include "data/loader.h"
#include "run/session.h"

/* What the rows of a step ask for. */
typedef struct StepWork {
    int64_t tokens;  /* read: all but padding */
    int64_t trained; /* of them, labels */
    double  pairs;   /* of queries and the keys they attend to */
} StepWork;
void step_work_add(StepWork *work, const Feeds *batch, int64_t batch_size, int64_t seq_len);

typedef struct ProgramWork {
    double flops, document_flops, label_flops, bytes; /* the two in the middle of rows of one document, all trained */
    double times;                                     /* a step */
} ProgramWork;

enum { STEP_PROGRAMS = 5 }; /* that run in a step at the most: its first, next, last or only micro-step, the update */

typedef struct StepLimit {
    Device     *device;
    bool        is_measured, is_beaten; /* by a step: it is to be measured again */
    double      flops_rate, byte_rate;  /* per second; flops_rate 0: unknown; byte_rate 0: doesn't bind */
    double      cells, pairs;           /* of a step whose rows are one document each */
    ProgramWork program[STEP_PROGRAMS];
    int         num_programs;
} StepLimit;

/* device and plan are borrowed. dtype: of the operands of products; products of FP8 and FP4 use their own. */
void step_limit_init(StepLimit *limit, Device *device, const Plan *plan, DType dtype, int64_t micros);

/* Measures again: another program may have been busy before, so that the best of all measurements counts. */
void step_limit_measure(StepLimit *limit);

/* Seconds at the limit of a step that took `seconds`; 0: unknown. A step that beats what was measured is a better measurement. */
double step_limit_seconds(StepLimit *limit, const StepWork *work, double seconds);
