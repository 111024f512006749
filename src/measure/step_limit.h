/* The least time that a step needs on this machine, to compare its real time against.
 *
 * Only arithmetic that the step's rows require counts: attention within documents, the output head for trained tokens. Rates of a GPU
 * are from its data sheet. The rate of a CPU is measured. It limits arithmetic alone, as nobody knows which part of the memory traffic
 * stays in caches. */
#pragma once

#include "data/loader.h"
#include "run/session.h"

/* Work that the rows of a step require. */
typedef struct StepWork {
    int64_t tokens;  /* all tokens but padding */
    int64_t trained; /* tokens that have a label */
    double  pairs;   /* pairs of a query and a key that it attends to */
} StepWork;
void step_work_add(StepWork *work, const Feeds *batch, int64_t batch_size, int64_t seq_len);

typedef struct ProgramWork {
    double flops, document_flops, label_flops,
        bytes;    /* document_flops and label_flops: as if each row were one document, with a label for every token */
    double times; /* runs in a step */
} ProgramWork;

enum { STEP_PROGRAMS = 5 }; /* most programs in a step: first, next, last or only micro-step, and the update */

typedef struct StepLimit {
    Device *device;
    bool    is_measured,
        is_beaten; /* is_measured: flops_rate was measured on a CPU. is_beaten: a step was faster, so it must be measured again */
    double      flops_rate, byte_rate; /* per second; flops_rate 0: unknown; byte_rate 0: no bound */
    double      cells, pairs;          /* tokens of a step, and pairs of a query and a key, if each row is one document */
    ProgramWork program[STEP_PROGRAMS];
    int         num_programs;
} StepLimit;

/* Borrows device and plan. dtype: operand dtype of products; products in FP8 and FP4 use their own rates. micros: micro-steps of a step. */
void step_limit_init(StepLimit *limit, Device *device, const Plan *plan, DType dtype, int64_t micros);

/* Measures the CPU again and keeps the highest rate of all measurements, as other programs may have been running. */
void step_limit_measure(StepLimit *limit);

/* Least seconds for a step that took `seconds`; 0: unknown. If the step was faster than the measured rate allows, that rate is raised. */
double step_limit_seconds(StepLimit *limit, const StepWork *work, double seconds);
