/* Rates of ops on GPUs that were measured. */
#include "device/device.h"

#include <string.h>

static const OpRate h200[] = {
#define RATE(op, tflops, gbytes_per_second, microseconds) {#op, (tflops)*1e12, (gbytes_per_second)*1e9, (microseconds)*1e-6},
#include "device/rates_h200.def"
#undef RATE
    {0},
};

const OpRate *device_rates(const char *gpu)
{
    return strcmp(gpu, "NVIDIA H200") == 0 ? h200 : NULL;
}
