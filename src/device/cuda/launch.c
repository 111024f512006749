/* Queues launches on the device's streams, directly or captured into one CUDA graph. A program begins and ends on the compute stream:
 * other streams fork off it at their first launch and join it at the end, so that programs run one after another. */
#include "comm/comm.h"
#include "device/cuda/cuda.h"
#include "device/cuda/kernel.h"

#include <stdlib.h>

/* Pairs of events, before and after each place where the compute stream waits for another stream. */
typedef struct Waits {
    cudaEvent_t *events;
    int          count, most;
} Waits;

typedef struct Run {
    CudaDevice   *cuda;
    const Launch *launches;
    int           count;
    cudaEvent_t *
        done; /* by launch: recorded after it if another stream waits for it; [count]: recorded where the program begins, then at its end */
    bool  *awaited; /* by launch: another stream may wait for it */
    bool   forked[STREAM_COUNT];
    Waits *waits; /* NULL: waits are not timed */
} Run;

static Status run_launch(CudaDevice *cuda, const Launch *launch, cudaStream_t stream)
{
    KernelArgs args = launch->args;
    args.stream = stream;
    args.device = cuda;
    return launch->kernel.run(&args);
}

static Status name_failure(Status status, const Launch *launch, int index, int count)
{
    const char *op = launch->node ? launch->node->op->name : "launch";
    const char *name = launch->node && launch->node->out[0] ? launch->node->out[0]->name : "";
    return status_prefix(status, "%s (%s) of %s, launch %d of %d", op, launch->kernel.name, name, index, count);
}

Status cuda_launch_in_turn(CudaDevice *cuda, const Launch *launches, int count, bool await_each)
{
    for (int i = 0; i < count; i++) {
        Status status = run_launch(cuda, &launches[i], cuda->stream);
        if (status == OK && await_each) {
            cudaError_t error = cudaStreamSynchronize(cuda->stream);
            if (error != cudaSuccess) status = cuda_failed(error, "kernel", __FILE__, __LINE__);
        }
        if (status != OK) return name_failure(status, &launches[i], i, count);
    }
    return OK;
}

static cudaStream_t stream_of(const CudaDevice *cuda, Stream stream)
{
    return stream == STREAM_COMPUTE ? cuda->stream : cuda->side[stream];
}

static Status record(Run *r, int index, cudaStream_t stream)
{
    if (!r->done[index]) CUDA_TRY(cudaEventCreateWithFlags(&r->done[index], cudaEventDisableTiming));
    CUDA_TRY(cudaEventRecord(r->done[index], stream));
    return OK;
}

static void find_awaited(Run *r)
{
    for (int i = 0; i < r->count; i++)
        for (int s = 0; s < STREAM_COUNT; s++)
            if (r->launches[i].wait[s]) r->awaited[r->launches[i].wait[s] - 1] = true;
}

static Status fork_stream(Run *r, Stream stream)
{
    if (stream == STREAM_COMPUTE || r->forked[stream]) return OK;
    if (!r->cuda->side[stream]) CUDA_TRY(cudaStreamCreateWithFlags(&r->cuda->side[stream], cudaStreamNonBlocking));
    CUDA_TRY(cudaStreamWaitEvent(r->cuda->side[stream], r->done[r->count], 0));
    r->forked[stream] = true;
    return OK;
}

/* Records an event, once before the compute stream waits and once after. */
static Status mark_wait(Run *r)
{
    Waits *w = r->waits;
    if (!w) return OK;
    FAIL_IF(w->count == w->most, ERR_INTERNAL, "more than %d events", w->most);
    CUDA_TRY(cudaEventCreate(&w->events[w->count]));
    CUDA_TRY(cudaEventRecordWithFlags(w->events[w->count++], r->cuda->stream, cudaEventRecordExternal));
    return OK;
}

static Status queue_one(Run *r, int index)
{
    const Launch *launch = &r->launches[index];
    TRY(fork_stream(r, launch->stream));
    cudaStream_t stream = stream_of(r->cuda, launch->stream);
    bool         stands = false;
    for (int s = 0; s < STREAM_COUNT; s++) stands = stands || (launch->stream == STREAM_COMPUTE && launch->wait[s]);
    if (stands) TRY(mark_wait(r));
    for (int s = 0; s < STREAM_COUNT; s++)
        if (launch->wait[s]) CUDA_TRY(cudaStreamWaitEvent(stream, r->done[launch->wait[s] - 1], 0));
    if (stands) TRY(mark_wait(r));
    Status status = run_launch(r->cuda, launch, stream);
    if (status != OK) return name_failure(status, launch, index, r->count);
    return r->awaited[index] ? record(r, index, stream) : OK;
}

static Status queue_all(Run *r)
{
    find_awaited(r);
    TRY(record(r, r->count, r->cuda->stream));
    for (int i = 0; i < r->count; i++) TRY(queue_one(r, i));
    TRY(mark_wait(r));
    for (int s = 0; s < STREAM_COUNT; s++) {
        if (!r->forked[s]) continue;
        TRY(record(r, r->count, r->cuda->side[s]));
        CUDA_TRY(cudaStreamWaitEvent(r->cuda->stream, r->done[r->count], 0));
    }
    return mark_wait(r);
}

static Status launch_all(CudaDevice *cuda, const Launch *launches, int count, Waits *waits)
{
    bool single = true;
    for (int i = 0; i < count; i++) single = single && launches[i].stream == STREAM_COMPUTE;
    if (single) return cuda_launch_in_turn(cuda, launches, count, false);
    Run r = {.cuda = cuda, .launches = launches, .count = count, .waits = waits};
    r.done = calloc((size_t)count + 1, sizeof *r.done);
    r.awaited = calloc((size_t)count + 1, sizeof *r.awaited);
    Status status = r.done && r.awaited ? queue_all(&r) : status_fail(ERR_NO_FIT, "no memory for %d events", count);
    for (int i = 0; r.done && i <= count; i++)
        if (r.done[i]) cudaEventDestroy(r.done[i]); /* CUDA keeps the event until nothing waits for it */
    free(r.done);
    free(r.awaited);
    return status;
}

Status cuda_launch_all(CudaDevice *cuda, const Launch *launches, int count)
{
    return launch_all(cuda, launches, count, NULL);
}

static Status end_capture(CudaDevice *cuda, Status status, cudaGraphExec_t *out)
{
    cudaGraph_t graph = NULL;
    cudaError_t error = cudaStreamEndCapture(cuda->stream, &graph);
    if (status == OK && error != cudaSuccess) status = cuda_failed(error, "cudaStreamEndCapture", __FILE__, __LINE__);
    if (status == OK) {
        error = cudaGraphInstantiate(out, graph, 0);
        if (error != cudaSuccess) status = cuda_failed(error, "cudaGraphInstantiate", __FILE__, __LINE__);
    }
    if (graph) cudaGraphDestroy(graph);
    return status;
}

static Status capture(CudaDevice *cuda, const Launch *launches, int count, Waits *waits, cudaGraphExec_t *out)
{
    CUDA_TRY(cudaStreamBeginCapture(cuda->stream, cudaStreamCaptureModeThreadLocal));
    return end_capture(cuda, launch_all(cuda, launches, count, waits), out);
}

Status cuda_capture(CudaDevice *cuda, const Launch *launches, int count, cudaGraphExec_t *out)
{
    TRY(capture(cuda, launches, count, NULL, out));
    CUDA_TRY(cudaGraphUpload(*out, cuda->stream));
    return OK;
}

/* ---- waits ---- */

/* Times the waits in one run, which all ranks begin together. */
static Status time_run(CudaDevice *cuda, const Waits *waits, cudaGraphExec_t graph, double *out_seconds)
{
    *out_seconds = 0;
    if (cuda->comm) TRY(comm_barrier(cuda->comm));
    CUDA_TRY(cudaGraphLaunch(graph, cuda->stream));
    CUDA_TRY(cudaStreamSynchronize(cuda->stream));
    for (int i = 0; i + 1 < waits->count; i += 2) {
        float ms = 0;
        CUDA_TRY(cudaEventElapsedTime(&ms, waits->events[i], waits->events[i + 1]));
        *out_seconds += 1e-3 * (double)ms;
    }
    return OK;
}

Status cuda_profile_waits(CudaDevice *cuda, const Launch *launches, int count, double *out_seconds)
{
    enum { RUNS = 3 };
    cudaGraphExec_t graph = NULL;
    Waits           waits = {.most = 2 * count + 2};
    double          each = 0, sum = 0;
    waits.events = calloc((size_t)waits.most, sizeof *waits.events);
    FAIL_IF(!waits.events, ERR_NO_FIT, "no memory for %d events", waits.most);
    Status status = capture(cuda, launches, count, &waits, &graph);
    if (status == OK) status = time_run(cuda, &waits, graph, &each); /* the first run loads kernels, so it doesn't count */
    for (int i = 0; i < RUNS && status == OK; i++) {
        status = time_run(cuda, &waits, graph, &each);
        sum += each;
    }
    if (graph) cudaGraphExecDestroy(graph);
    for (int i = 0; i < waits.count; i++) cudaEventDestroy(waits.events[i]);
    free(waits.events);
    *out_seconds = sum / RUNS;
    return status;
}
