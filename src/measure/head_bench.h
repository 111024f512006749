/* Times decoding with a bare matrix of random values, without a model: with two batches in flight, and with one at a time. */
#pragma once

#include "infer/head_ranks.h"

typedef struct HeadBenchOptions {
    int64_t      vocab, dim, rows;
    DType        dtype, hidden; /* dtypes of the matrix and of hidden states */
    HeadStrategy strategy;
    int64_t      batches; /* batches to time with two in flight, and again with one */
    const char  *device;  /* name, as for head_ranks_open */
    int64_t      threads;
} HeadBenchOptions;

/* Times are seconds per batch. */
typedef struct HeadTimes {
    double   mean, sigma, least, most; /* with two batches in flight: time from result to result */
    double   alone;                    /* mean with one batch in flight */
    double   first;                    /* the very first batch */
    double   limit; /* time to read the matrix (divided among the devices) and the hidden states; 0: the device's bandwidth is unknown */
    int64_t  bytes; /* device memory that the decoder uses */
    int64_t  moved; /* bytes of the matrix and the hidden states */
    uint64_t ids;   /* a hash of the ids of the first batches: equal on devices that choose the same tokens */
    char     device[64];
} HeadTimes;

NODISCARD Status head_bench_run(const HeadBenchOptions *options, HeadTimes *out_times);
