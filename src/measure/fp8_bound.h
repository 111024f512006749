/* A lower bound of a step's time with FP8. */
#pragma once

#include "setup/setup.h"

/* Seconds of a step if FP8 only sped up the products it is used for: the simulated time of the step under recipe bf16, minus a share of
 * these products' time in it: 1 - rate of bf16 / rate of FP8. *out_seconds 0: the device's rates are unknown, or no product uses FP8. */
NODISCARD Status fp8_bound(const Config *config, const HfModel *model, Device *device, double *out_seconds);
