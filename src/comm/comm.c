/* The calls of comm.h: each is checked, done at once where there is one rank, else handed to the group's backend. */
#include "comm/comm.h"

#include "comm/reduce.h"

static Status call(Comm *comm, CommCall call)
{
    if (comm) return comm->api->call(comm, &call);
    bool   reduces = call.kind == COMM_REDUCE_SCATTER || call.kind == COMM_ALL_REDUCE;
    size_t bytes = reduces ? (size_t)dtype_bytes(call.dtype, call.count) : (size_t)call.count;
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

void comm_abort(Comm *comm, Status cause, const char *why)
{
    if (comm) comm->api->abort(comm, cause, why);
}

Status comm_check(Comm *comm)
{
    return comm ? comm->api->check(comm) : OK;
}

Status comm_cause(Comm *comm)
{
    return comm ? comm->api->cause(comm) : OK;
}

void comm_beat(Comm *comm, const char *phase)
{
    if (comm) comm->api->beat(comm, phase);
}

void comm_on_end(Comm *comm, void (*on_end)(void *context), void *context)
{
    if (comm) comm->api->on_end(comm, on_end, context);
}

double comm_waited(Comm *comm)
{
    return comm ? comm->api->waited(comm) : 0;
}

void comm_destroy(Comm *comm)
{
    if (comm) comm->api->destroy(comm);
}
