/* doctor: every kernel of a device against the CPU's, on the user's own machine: each op's samples and larger shapes,
 * fp32 and bf16, with guard bytes around every tensor, outputs poisoned before, and a second run that must give the
 * same bits. */
#pragma once

#include "device/device.h"

#include <stdio.h>

typedef struct DoctorCounts {
    int kernels;        /* kernel variants that ran at least once */
    int passed, failed; /* cases: op, shape, dtypes, variant */
} DoctorCounts;

/* Prints a line a kernel variant with its largest errors (and a line a failure) to `out`. only: an op's name, or op:kernel;
 * NULL: all. The device has the machine to itself while it is checked. */
NODISCARD Status doctor_check_ops(Device *device, Device *cpu, const char *only, FILE *out, DoctorCounts *counts);

/* Measures what a large matrix product and a large sum of two tensors reach; prints them. */
NODISCARD Status doctor_measure(Device *device, FILE *out);
