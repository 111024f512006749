/* Measured rates of ops and links on GPUs. */
#include "device/device.h"

#include <string.h>

static const OpRate h200[] = {
#define RATE(op, tflops, gbytes_per_second, microseconds) {#op, (tflops)*1e12, (gbytes_per_second)*1e9, (microseconds)*1e-6},
#define LINK(in, out)
#define PEERS(gbytes_per_second, microseconds)
#define POWER(tflops, fp8_tflops, gbytes_per_second)
#include "device/rates_h200.def"
#undef RATE
#undef LINK
#undef PEERS
#undef POWER
    {0},
};

void device_use_rates(DeviceFacts *facts)
{
    if (strcmp(facts->name, "NVIDIA H200") != 0) return;
    facts->rates = h200;
#define RATE(op, tflops, gbytes_per_second, microseconds)
#define LINK(in, out) facts->link_in = (in)*1e9, facts->link_out = (out)*1e9;
#define PEERS(gbytes_per_second, microseconds) facts->peer_link = (gbytes_per_second)*1e9, facts->peer_seconds = (microseconds)*1e-6;
#define POWER(tflops, fp8_tflops, gbytes_per_second) \
    facts->power_flops = (tflops)*1e12, facts->power_fp8_flops = (fp8_tflops)*1e12, facts->power_bytes = (gbytes_per_second)*1e9;
#include "device/rates_h200.def"
#undef RATE
#undef LINK
#undef PEERS
#undef POWER
}
