/* Measured launches, summed by op and kernel. */
#pragma once

#include "base/arena.h"
#include "base/strbuf.h"
#include "run/program.h"

/* All launches of one op by one kernel. */
typedef struct OpSum {
    const char *op, *kernel;
    int         launches; /* of a step */
    double      seconds, limit_seconds, flops, bytes;
} OpSum;

typedef struct OpSums {
    OpSum *items;
    int    count;
    double seconds, overhead; /* overhead: what measuring took a launch, taken off */
} OpSums;

/* The sum that a launch belongs to, there from now on. */
OpSum *op_sums_of(Arena *arena, OpSums *sums, const Launch *launch);
void   op_sums_sort(OpSums *sums); /* the longest first */
/* A table, with the share of a step of so many seconds; as members of a JSON object, with a comma before. */
void op_sums_print(const OpSums *sums, double step_seconds, StrBuf *out);
void op_sums_print_json(const OpSums *sums, StrBuf *out);
