/* base/status.h and lines of base/log.h inside the plugin: messages go to the program, through the table of functions that it passed. */
#include "device/cuda/plugin.h"

#include "base/log.h"
#include "device/cuda/cuda.h"
#include "device/cuda/kernel.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const CudaHost *host; /* set once, when the plugin is opened */

void cuda_host_set(const CudaHost *given)
{
    host = given;
}

/* ---- base/log.h ---- */

static void log_line(const char *prefix, const char *fmt, va_list args)
{
    char text[STATUS_MESSAGE_BYTES];
    int  n = snprintf(text, sizeof text, "%s", prefix);
    vsnprintf(text + n, sizeof text - (size_t)n, fmt, args);
    host->log(text);
}

void log_info(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    log_line("", fmt, args);
    va_end(args);
}

void log_warn(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    log_line("warning: ", fmt, args);
    va_end(args);
}

/* ---- base/status.h ---- */

const char *status_message(void)
{
    return host->message();
}

Status status_fail(Status status, const char *fmt, ...)
{
    char    text[STATUS_MESSAGE_BYTES];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return host->fail(status, text);
}

Status status_prefix(Status status, const char *fmt, ...)
{
    char    text[STATUS_MESSAGE_BYTES], prefix[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(prefix, sizeof prefix, fmt, args);
    va_end(args);
    snprintf(text, sizeof text, "%s: %.2048s", prefix, host->message());
    return host->fail(status, text);
}

void status_clear(void)
{
    host->fail(OK, "");
}

_Noreturn void check_failed(const char *expr, const char *file, int line)
{
    fprintf(stderr, "%s:%d: internal error: %s is false\n", file, line, expr);
    abort();
}

_Noreturn void fatal_out_of_memory(size_t bytes)
{
    fprintf(stderr, "out of memory: %zu bytes for bookkeeping\n", bytes);
    exit(3);
}

size_t cuda_shared_bytes(const CudaDevice *device)
{
    return device->shared_bytes;
}

int cuda_sm(const CudaDevice *device)
{
    return device->sm;
}

Status cuda_failed(cudaError_t error, const char *what, const char *file, int line)
{
    Status status = error == cudaErrorMemoryAllocation ? ERR_NO_FIT : ERR_DEVICE;
    return status_fail(status, "CUDA: %s (%s) at %s:%d: %s", cudaGetErrorString(error), cudaGetErrorName(error), file, line, what);
}
