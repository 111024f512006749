/* A training step without its data: the run's programs on random weights and tokens, timed whole and launch by launch. Of the model
 * folder only config.json is read. */
#pragma once

#include "comm/comm.h"
#include "config/config.h"
#include "run/session.h"

typedef struct StepBench StepBench;

/* What whole steps took. */
typedef struct StepTimes {
    int64_t tokens; /* of a step, on all ranks */
    int64_t sequence_len;
    double  median, best, first; /* seconds, on the slowest rank */
    double  idle;                /* share of the time in which the device waited for the next step */
    double  flops;               /* of a step on all ranks, attention by the documents there are */
    double  first_loss, loss;
    double  fp8_bound;               /* seconds, as fp8_bound has it */
    double  create_seconds;          /* compiling, allocating, choosing algorithms */
    double  comm, exposed;           /* with several ranks: a step's collectives alone; what its arithmetic waits for them */
    int64_t bytes;                   /* that the plan takes of the device; of rank 0 */
    int64_t beside[COMM_MOST_RANKS]; /* by rank: session_beside_bytes */
    char    device[128];
} StepTimes;

/* On one rank, whatever the run file says of others. Rows are one document each, or with sample_packing documents of lognormal lengths,
 * median 300. */
NODISCARD Status step_bench_create(const Config *config, StepBench **out_bench);
void             step_bench_destroy(StepBench *bench);

NODISCARD Status step_bench_run(StepBench *bench, int num_steps, StepTimes *out_times);
/* The same of all config->gpus ranks together, which a rank that hangs doesn't hold up for ever. */
NODISCARD Status step_bench_ranks(const Config *config, int num_steps, StepTimes *out_times);

/* Seconds of each launch of the program, in order (DeviceApi.profile). The array is the caller's: num_launches entries. */
NODISCARD Status step_bench_profile(StepBench *bench, const Program *program, double *seconds, double *out_overhead);

/* How often a step runs the program. */
int step_bench_times(const StepBench *bench, const Program *program);
/* Arithmetic of a launch; attention by the documents there are. */
double step_bench_flops(const StepBench *bench, const Launch *launch);
/* Pairs of queries and keys, over those of rows of one document. */
double      step_bench_document_share(const StepBench *bench);
const Plan *step_bench_plan(const StepBench *bench);
