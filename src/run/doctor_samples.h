/* The larger cases of doctor. */
#pragma once

#include "ops/attrs.h"
#include "ops/ops.h"

typedef struct DoctorSample {
    OpId     op;
    OpSample sample;
} DoctorSample;

extern const DoctorSample doctor_samples[];
extern const int          num_doctor_samples;
