/* What FP8 could make of a step's time at best. */
#pragma once

#include "setup/setup.h"

/* How short a step could be if FP8 changed nothing but the time of the products that it multiplies: what the same step is expected to take
 * under recipe bf16, less bf16's time of these products x (1 - rate of bf16 / rate of FP8). *out_seconds 0: the device's rates, or those
 * products, aren't there. */
NODISCARD Status fp8_bound(const Config *config, const HfModel *model, Device *device, double *out_seconds);
