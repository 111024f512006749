/* What is known of this machine at once. */
#pragma once

#include "device/device.h"

/* Rates are 0: device_cpu_measure_peak measures them. num_threads 0: all cores this process may use. */
void cpu_facts(int num_threads, DeviceFacts *out);
