/* The one driver that checks the kernels of ops, on any device, against references on the CPU. Each op runs its samples. For each kernel it
 * checks results, guards around tensors and workspace, unchanged inputs, codes, and bits. Bits may depend on nothing but the inputs: not on
 * what memory held, on the wanted outputs, on sharing memory where that is allowed, on the number of threads or the width of vectors, nor,
 * where the op says so, on other rows. doctor and tests call it. */
#pragma once

#include "ops/case.h"

/* The outcome of a case: one kernel on one sample with one set of dtypes. kernel NULL: the case failed before a kernel ran, or the outcome
 * is about several kernels. */
typedef struct OpOutcome {
    const char *op, *kernel, *sample, *types;
    int         index;    /* index of the sample; large samples are counted from 0 again */
    DType       rounding; /* results are rounded to it: F32, BF16 or F16 */
    double      error;    /* largest error of an output, in the L2 norm */
    const char *faults;   /* NULL: passed */
} OpOutcome;

typedef struct OpChecks {
    Device     *device, *cpu; /* device: its kernels are checked; cpu: makes references */
    Device     *planner;      /* plans for the device without having one: must reserve enough workspace; NULL: not checked */
    Device     *same[2];      /* other devices on which the same kernels must compute the same bits; NULL: none */
    const char *kernel;       /* checks only this kernel; NULL: all */
    bool        large;        /* runs large samples too */
    void (*report)(void *context, const OpOutcome *outcome);
    void *context;
} OpChecks;

/* Runs all cases of the op and reports each. Fails only if the device or a reference does. */
NODISCARD Status op_check(const OpChecks *checks, const OpDef *op);
