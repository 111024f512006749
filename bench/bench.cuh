/* Shared by the kernel benches, each of which is a program: errors end it, the GPU fills operands, launches are timed in a graph. */
#pragma once

#include "device/cuda/kernel.h"

#include <cuda_bf16.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

typedef __nv_bfloat16 bf16;

enum { FILL_THREADS = 256 };

static void check(cudaError_t error, const char *what)
{
    if (error == cudaSuccess) return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
    exit(1);
}

/* Stands for the plugin's functions that the kernels' files call. Weak: a bench may link the library that has status_fail. */
extern "C" Status cuda_failed(cudaError_t error, const char *what, const char *, int)
{
    check(error, what);
    return ERR_DEVICE;
}
extern "C" __attribute__((weak)) Status status_fail(Status, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    exit(1);
}

static __device__ unsigned hash(int64_t i, unsigned seed)
{
    unsigned h = (unsigned)i * 2654435761u + seed;
    h = (h ^ h >> 15) * 2246822519u;
    return h ^ h >> 13;
}

/* Fills p with pseudorandom values: `unit` times a whole number from -1,000 to 1,000. */
static __global__ void fill(bf16 *p, int64_t count, unsigned seed, float unit = 1e-3f)
{
    int64_t step = (int64_t)gridDim.x * FILL_THREADS;
    for (int64_t i = (int64_t)blockIdx.x * FILL_THREADS + threadIdx.x; i < count; i += step)
        p[i] = __float2bfloat16((float)((int)(hash(i, seed) % 2001) - 1000) * unit);
}

/* Microseconds of one replay of a graph of the launches that launch() queues on the stream, after `warm` replays. */
template <typename F> static double time_graph(F launch, int warm, int runs, cudaStream_t stream)
{
    cudaGraph_t     graph;
    cudaGraphExec_t replay;
    cudaEvent_t     begin, end;
    float           ms;
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
    launch();
    check(cudaStreamEndCapture(stream, &graph), "capture");
    check(cudaGraphInstantiate(&replay, graph, 0), "instantiate");
    check(cudaEventCreate(&begin), "event");
    check(cudaEventCreate(&end), "event");
    for (int i = 0; i < warm + runs; i++) {
        if (i == warm) check(cudaEventRecord(begin, stream), "event");
        check(cudaGraphLaunch(replay, stream), "launch");
    }
    check(cudaEventRecord(end, stream), "event");
    check(cudaStreamSynchronize(stream), "run");
    check(cudaEventElapsedTime(&ms, begin, end), "event");
    cudaGraphExecDestroy(replay);
    cudaGraphDestroy(graph);
    return (double)ms * 1e3 / runs;
}
