/* The calls of comm.h: each is checked, done at once if there is one rank, else forwarded to the group's backend. */
#include "comm/comm.h"

#include "comm/pulse.h"
#include "comm/reduce.h"

static Status call(Comm *comm, CommCall call)
{
    if (comm) return comm->api->call(comm, &call);
    size_t bytes = comm_send_bytes(&call, 1);
    if (bytes && call.send != call.recv) memmove(call.recv, call.send, bytes);
    return OK;
}

static Status check_reduction(int64_t count, DType dtype)
{
    FAIL_IF(!reduce_serves(dtype), ERR_UNSUPPORTED, "ranks can't add up %s: f32, bf16, f16, i32 and i64 only", dtype_info(dtype)->name);
    FAIL_IF(count < 0, ERR_INVALID, "a reduction of %lld elements", (long long)count);
    return OK;
}

int comm_rank(const Comm *comm)
{
    return comm ? comm->rank : 0;
}

int comm_size(const Comm *comm)
{
    return comm ? comm->size : 1;
}

Status comm_barrier(Comm *comm)
{
    return call(comm, (CommCall){.kind = COMM_BARRIER});
}

Status comm_all_gather(Comm *comm, const void *send, void *recv, size_t bytes)
{
    return call(comm, (CommCall){.kind = COMM_ALL_GATHER, .count = (int64_t)bytes, .send = send, .recv = recv});
}

Status comm_broadcast(Comm *comm, int root, void *data, size_t bytes)
{
    FAIL_IF(root < 0 || root >= comm_size(comm), ERR_INVALID, "broadcast from rank %d of %d", root, comm_size(comm));
    return call(comm, (CommCall){.kind = COMM_BROADCAST, .root = root, .count = (int64_t)bytes, .send = data, .recv = data});
}

Status comm_reduce_scatter(Comm *comm, const void *send, void *recv, int64_t count, DType dtype, CommReduce reduce)
{
    TRY(check_reduction(count, dtype));
    return call(comm,
                (CommCall){.kind = COMM_REDUCE_SCATTER, .count = count, .dtype = dtype, .reduce = reduce, .send = send, .recv = recv});
}

Status comm_all_reduce(Comm *comm, void *data, int64_t count, DType dtype, CommReduce reduce)
{
    TRY(check_reduction(count, dtype));
    return call(comm, (CommCall){.kind = COMM_ALL_REDUCE, .count = count, .dtype = dtype, .reduce = reduce, .send = data, .recv = data});
}

/* ---- failing together ---- */

static void lock(Comm *comm)
{
    pthread_mutex_lock(&comm->side->life->lock);
}

static void unlock(Comm *comm)
{
    pthread_mutex_unlock(&comm->side->life->lock);
}

void comm_abort(Comm *comm, Status cause, const char *why)
{
    if (!comm) return;
    lock(comm);
    comm_locked_end(comm, comm->rank, cause, why);
    unlock(comm);
}

Status comm_check(Comm *comm)
{
    if (!comm) return OK;
    lock(comm);
    Status status = comm_end_status(&comm->side->life->end);
    unlock(comm);
    return status;
}

Status comm_cause(Comm *comm)
{
    if (!comm) return OK;
    lock(comm);
    Status cause = comm->side->life->end.cause;
    unlock(comm);
    return cause;
}

void comm_beat(Comm *comm, const char *phase)
{
    if (!comm) return;
    lock(comm);
    pulse_beat(&comm->side->pulse, phase);
    unlock(comm);
}

void comm_on_end(Comm *comm, void (*on_end)(void *context), void *context)
{
    if (!comm) return;
    lock(comm);
    comm_locked_await_telling(comm);
    comm->side->on_end = on_end;
    comm->side->context = context;
    comm->api->wake(comm);
    unlock(comm);
}

double comm_waited(Comm *comm)
{
    if (!comm) return 0;
    lock(comm);
    double waited = comm->side->pulse.waited;
    unlock(comm);
    return waited;
}

void comm_destroy(Comm *comm)
{
    if (comm) comm->api->destroy(comm);
}
