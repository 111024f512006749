/* Name, memory and cores of this machine, and a short measurement of its peak rates. */
#include "device/cpu/facts.h"

#include "base/cgroup.h"
#include "base/pool.h"
#include "device/cpu/sgemm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void cpu_name(char *buf, size_t size)
{
    char  line[256];
    FILE *file = fopen("/proc/cpuinfo", "r");
    snprintf(buf, size, "cpu");
    while (file && fgets(line, sizeof line, file)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon) continue;
        snprintf(buf, size, "%.*s", (int)strcspn(colon + 1, "\n") - 1, colon + 2);
        break;
    }
    if (file) fclose(file);
}

int64_t device_host_available(void)
{
    char    line[128];
    int64_t limit = cgroup_memory_limit(NULL, NULL), available = 0;
    FILE   *file = fopen("/proc/meminfo", "r");
    while (file && !available && fgets(line, sizeof line, file))
        if (strncmp(line, "MemAvailable:", 13) == 0) available = strtoll(line + 13, NULL, 10) * 1024;
    if (file) fclose(file);
    return limit < available ? limit : available;
}

void cpu_facts(int num_threads, DeviceFacts *out)
{
    *out = (DeviceFacts){.num_workers = num_threads, .fp8_blocks = true, .is_host = true};
    cpu_name(out->name, sizeof out->name);
    out->memory_bytes = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    int64_t limit = cgroup_memory_limit(NULL, NULL);
    if (limit < out->memory_bytes) out->memory_bytes = limit;
    if (!num_threads) out->num_workers = pool_usable_cores();
}

enum {
    PEAK_SIZE = 768, /* rows and columns of a square product, in blocks that fit in a core's L2 cache */
    PEAK_ROWS = 192,
    PEAK_DEPTH = 256,
    PEAK_PASSES = 3,
    STREAM_FLOATS = 16 * 1024 * 1024, /* 64 MiB: larger than the caches */
};

typedef struct Peak {
    float  *memory;
    int64_t floats; /* floats per task */
} Peak;

static void peak_gemm(void *context, int64_t task, int worker)
{
    const Peak *peak = context;
    float      *a = peak->memory + task * peak->floats, *b = a + PEAK_SIZE * PEAK_SIZE, *c = b + PEAK_SIZE * PEAK_SIZE;
    (void)worker;
    const SgemmKernel *kernel = sgemm_kernel();
    for (int64_t l = 0; l < PEAK_SIZE; l += PEAK_DEPTH)
        for (int64_t i = 0; i < PEAK_SIZE; i += PEAK_ROWS)
            sgemm_run(kernel, PEAK_ROWS, PEAK_SIZE, PEAK_DEPTH, 1,
                      (SgemmA){a + i * PEAK_SIZE + l * PEAK_ROWS, kernel->rows * PEAK_DEPTH, 1, kernel->rows},
                      (SgemmB){b + l * PEAK_SIZE, kernel->cols * PEAK_DEPTH, kernel->cols}, c + i * PEAK_SIZE, PEAK_SIZE,
                      l > 0 ? SGEMM_ADD : 0, NULL, 0);
}

static void peak_stream(void *context, int64_t task, int worker)
{
    const Peak *peak = context;
    float      *x = peak->memory + task * peak->floats;
    (void)worker;
    for (int64_t i = 0; i < peak->floats; i++) x[i] = x[i] * 0.5f + 1.0f;
}

/* Seconds of the fastest pass; the first warms up. */
static double fastest(ThreadPool *pool, PoolTask task, Peak *peak)
{
    double best = 1e9;
    for (int pass = 0; pass <= PEAK_PASSES; pass++) {
        struct timespec begin, end;
        clock_gettime(CLOCK_MONOTONIC, &begin);
        pool_run(pool, pool_num_workers(pool), task, peak);
        clock_gettime(CLOCK_MONOTONIC, &end);
        double seconds = (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec);
        if (pass && seconds < best) best = seconds;
    }
    return best;
}

size_t cpu_peak_bytes(const ThreadPool *pool)
{
    size_t gemm = (size_t)pool_num_workers(pool) * 3 * PEAK_SIZE * PEAK_SIZE;
    return (gemm > STREAM_FLOATS ? gemm : STREAM_FLOATS) * sizeof(float);
}

void cpu_measure_peak(ThreadPool *pool, void *memory, double *out_flops, double *out_bytes)
{
    int64_t workers = pool_num_workers(pool);
    Peak    gemm = {memory, 3 * PEAK_SIZE * PEAK_SIZE}, stream = {memory, STREAM_FLOATS / workers};
    *out_flops = 2.0 * PEAK_SIZE * PEAK_SIZE * PEAK_SIZE * (double)workers / fastest(pool, peak_gemm, &gemm);
    if (out_bytes) *out_bytes = 2.0 * (double)(stream.floats * workers) * sizeof(float) / fastest(pool, peak_stream, &stream);
}
