/* doctor: checks every kernel of a device (ops/check.h), small samples and large ones, on the user's own machine, and reports it. */
#pragma once

#include "device/device.h"

#include <stdio.h>

typedef struct DoctorCounts {
    int kernels;        /* kernel variants that ran at least once */
    int passed, failed; /* cases: op, shape, dtypes, variant */
} DoctorCounts;

/* Prints one line per kernel variant, with its largest errors, and one line per failure to `out`. only: an op's name, or op:kernel;
 * NULL: all. Nothing else should run on the device meanwhile. */
NODISCARD Status doctor_check_ops(Device *device, Device *cpu, const char *only, FILE *out, DoctorCounts *counts);

/* Measures the speed of large matrix products and of a large sum of two tensors, and prints it. */
NODISCARD Status doctor_measure(Device *device, FILE *out);
