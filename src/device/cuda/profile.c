/* Measures where a replayed program spends its time: the program is captured once more, with an event recorded after every launch.
 *
 * In a graph, launches overlap at their ends and find the caches as their predecessors left them, so times of launches run alone would
 * be wrong. Recording an event takes time itself. So the difference between the captured and the plain program, divided by the number of
 * launches, is subtracted from each. */
#include "device/cuda/cuda.h"
#include "device/cuda/kernel.h"

#include <stdlib.h>

enum { WARM_RUNS = 2, RUNS = 5, PLAIN_RUNS = 2 };

typedef struct Profile {
    CudaDevice     *cuda;
    const Launch   *launches;
    int             count;
    cudaEvent_t    *events; /* count + 1 events */
    cudaGraphExec_t plain, marked;
} Profile;

static Status queue(Profile *p, bool marked)
{
    cudaStream_t stream = p->cuda->stream;
    if (!marked) return cuda_launch_in_turn(p->cuda, p->launches, p->count, false);
    CUDA_TRY(cudaEventRecordWithFlags(p->events[0], stream, cudaEventRecordExternal));
    for (int i = 0; i < p->count; i++) {
        TRY(cuda_launch_in_turn(p->cuda, p->launches + i, 1, false));
        CUDA_TRY(cudaEventRecordWithFlags(p->events[i + 1], stream, cudaEventRecordExternal));
    }
    return OK;
}

static Status capture(Profile *p, bool marked, cudaGraphExec_t *out)
{
    cudaGraph_t graph = NULL;
    CUDA_TRY(cudaStreamBeginCapture(p->cuda->stream, cudaStreamCaptureModeThreadLocal));
    Status      status = queue(p, marked);
    cudaError_t error = cudaStreamEndCapture(p->cuda->stream, &graph);
    if (status == OK && error == cudaSuccess) error = cudaGraphInstantiate(out, graph, 0);
    if (graph) cudaGraphDestroy(graph);
    TRY(status);
    CUDA_TRY(error);
    return OK;
}

static Status elapsed(cudaEvent_t begin, cudaEvent_t end, double *out)
{
    float ms = 0;
    CUDA_TRY(cudaEventElapsedTime(&ms, begin, end));
    *out = 1e-3 * (double)ms;
    return OK;
}

/* Mean seconds of `runs` plain runs. */
static Status time_plain(Profile *p, int runs, double *out)
{
    cudaStream_t stream = p->cuda->stream;
    CUDA_TRY(cudaEventRecord(p->events[0], stream));
    for (int i = 0; i < runs; i++) CUDA_TRY(cudaGraphLaunch(p->plain, stream));
    CUDA_TRY(cudaEventRecord(p->events[p->count], stream));
    CUDA_TRY(cudaStreamSynchronize(stream));
    TRY(elapsed(p->events[0], p->events[p->count], out));
    *out /= runs;
    return OK;
}

/* Runs the program with events, and adds each launch's time to seconds[i]; NULL: just runs it. */
static Status time_marked(Profile *p, double *seconds)
{
    CUDA_TRY(cudaGraphLaunch(p->marked, p->cuda->stream));
    CUDA_TRY(cudaStreamSynchronize(p->cuda->stream));
    for (int i = 0; seconds && i < p->count; i++) {
        double each;
        TRY(elapsed(p->events[i], p->events[i + 1], &each));
        seconds[i] += each;
    }
    return OK;
}

static Status measure(Profile *p, double *seconds, double *out_overhead)
{
    double plain = 0, marked = 0, once;
    for (int i = 0; i <= p->count; i++) CUDA_TRY(cudaEventCreate(&p->events[i]));
    TRY(capture(p, false, &p->plain));
    TRY(capture(p, true, &p->marked));
    TRY(time_plain(p, WARM_RUNS, &once));
    TRY(time_marked(p, NULL));
    for (int i = 0; i < RUNS; i++) { /* alternate, so that clock rates are alike for both */
        TRY(time_marked(p, seconds));
        TRY(time_plain(p, PLAIN_RUNS, &once));
        plain += once / RUNS;
    }
    for (int i = 0; i < p->count; i++) marked += seconds[i] /= RUNS;
    double overhead = marked > plain ? (marked - plain) / p->count : 0;
    for (int i = 0; i < p->count; i++) seconds[i] = seconds[i] > overhead ? seconds[i] - overhead : 0;
    *out_overhead = overhead;
    return OK;
}

Status cuda_profile(CudaDevice *cuda, const Launch *launches, int count, double *seconds, double *out_overhead)
{
    Profile p = {.cuda = cuda, .launches = launches, .count = count};
    *out_overhead = 0;
    if (count < 1) return OK;
    for (int i = 0; i < count; i++) seconds[i] = 0;
    p.events = calloc((size_t)count + 1, sizeof *p.events);
    FAIL_IF(!p.events, ERR_NO_FIT, "no memory for %d events", count);
    Status status = measure(&p, seconds, out_overhead);
    if (p.plain) cudaGraphExecDestroy(p.plain);
    if (p.marked) cudaGraphExecDestroy(p.marked);
    for (int i = 0; i <= count; i++)
        if (p.events[i]) cudaEventDestroy(p.events[i]);
    free(p.events);
    return status;
}
