/* Facts about this machine, and a measurement of its peak rates. */
#pragma once

#include "device/device.h"

/* Rates are 0: device_cpu_measure_peak measures them. num_threads 0: all cores this process may use. */
void cpu_facts(int num_threads, DeviceFacts *out);

/* cpu_measure_peak does the work of device_cpu_measure_peak; its memory has cpu_peak_bytes bytes. */
size_t cpu_peak_bytes(const ThreadPool *pool);
void   cpu_measure_peak(ThreadPool *pool, void *memory, double *out_flops, double *out_bytes);
