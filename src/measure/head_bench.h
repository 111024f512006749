/* Decoding over a bare matrix of random numbers, timed: two batches in flight, and one at a time. */
#pragma once

#include "infer/head_ranks.h"

typedef struct HeadBenchOptions {
    int64_t      vocab, dim, rows;
    DType        dtype, hidden; /* of the matrix, of hidden states */
    HeadStrategy strategy;
    int64_t      batches; /* timed each way */
    const char  *device;  /* of head_ranks_open */
    int64_t      threads;
} HeadBenchOptions;

/* Seconds a batch. */
typedef struct HeadTimes {
    double   mean, sigma, least, most; /* two in flight: from result to result */
    double   alone;                    /* mean of batches that are awaited before the next one is queued */
    double   first;                    /* the first batch of all */
    double   limit; /* of moving the matrix, a part on each device, and the hidden states; 0: the device's bandwidth isn't known */
    int64_t  bytes; /* of the device, that the decoder takes */
    int64_t  moved; /* of the matrix and the hidden states */
    uint64_t ids;   /* a hash of the first batches' ids: equal on devices that choose the same */
    char     device[64];
} HeadTimes;

NODISCARD Status head_bench_run(const HeadBenchOptions *options, HeadTimes *out_times);
