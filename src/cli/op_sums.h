/* Measured launches, summed by op and kernel. */
#pragma once

#include "base/arena.h"
#include "base/strbuf.h"
#include "run/program.h"

/* The sum over all launches of one op with one kernel. */
typedef struct OpSum {
    const char *op, *kernel;
    int         launches; /* per step */
    double      seconds, limit_seconds, flops, bytes;
} OpSum;

typedef struct OpSums {
    OpSum *items;
    int    count;
    double seconds, overhead; /* overhead: seconds that measuring added to each launch, already subtracted */
} OpSums;

/* The sum for this launch's op and kernel; a new sum of 0 is added if there is none. */
OpSum *op_sums_of(Arena *arena, OpSums *sums, const Launch *launch);
void   op_sums_sort(OpSums *sums); /* longest first */
/* Appends a table with each op's share of the measured time; step_seconds: the time of a whole step. */
void op_sums_print(const OpSums *sums, double step_seconds, StrBuf *out);
void op_sums_print_json(const OpSums *sums, StrBuf *out);
