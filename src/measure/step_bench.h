/* A training step without data: the run's programs on random weights and tokens, timed whole and launch by launch. Only config.json is
 * read from the model folder. */
#pragma once

#include "comm/comm.h"
#include "config/config.h"
#include "run/session.h"

typedef struct StepBench StepBench;

/* Times of whole steps. */
typedef struct StepTimes {
    int64_t tokens; /* tokens of a step, over all ranks */
    int64_t sequence_len;
    double  median, best, first; /* seconds of a step on the slowest rank */
    double  idle;                /* share of the time in which the device had no work */
    double  flops;               /* operations of a step over all ranks; attention counts only pairs within documents */
    double  first_loss, loss;
    double  fp8_bound;      /* seconds, see fp8_bound.h */
    double  create_seconds; /* seconds for compiling, allocating and choosing algorithms */
    double  comm, exposed;  /* with several ranks: seconds of a step's collectives, run alone; seconds that its compute waits for them */
    int64_t bytes;          /* device memory of the plan of rank 0 */
    int64_t beside[COMM_MOST_RANKS]; /* by rank: see session_beside_bytes */
    char    device[128];
} StepTimes;

/* Creates the bench for one rank, even if the run file asks for more. Each row is one document, or with sample_packing several documents
 * of lognormal lengths with median 300. */
NODISCARD Status step_bench_create(const Config *config, StepBench **out_bench);
void             step_bench_destroy(StepBench *bench);

NODISCARD Status step_bench_run(StepBench *bench, int num_steps, StepTimes *out_times);
/* step_bench_run on config->gpus ranks together. A rank that hangs ends all of them. */
NODISCARD Status step_bench_ranks(const Config *config, int num_steps, StepTimes *out_times);

/* Measures the seconds of each launch of the program, in order (DeviceApi.profile). The caller provides the array of num_launches
 * entries. */
NODISCARD Status step_bench_profile(StepBench *bench, const Program *program, double *seconds, double *out_overhead);

/* How many times a step runs the program. */
int step_bench_times(const StepBench *bench, const Program *program);
/* Flops of a launch; attention counts only pairs within documents. */
double step_bench_flops(const StepBench *bench, const Launch *launch);
/* Pairs of a query and a key within documents, divided by the number of pairs if each row were one document. */
double      step_bench_document_share(const StepBench *bench);
const Plan *step_bench_plan(const StepBench *bench);
