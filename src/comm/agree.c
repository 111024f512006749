/* See agree.h. */
#include "comm/agree.h"

#include "base/arena.h"

#include <stdio.h>

typedef struct Report {
    Status status;
    char   message[STATUS_MESSAGE_BYTES / 2];
} Report;

Status comm_agree(Comm *comm, Status mine)
{
    if (!comm || mine == ERR_RANK) return mine; /* on ERR_RANK every rank has failed already */
    Arena   arena = {0};
    Report *all = arena_array(&arena, Report, comm_size(comm)), own = {.status = mine};
    if (mine != OK) snprintf(own.message, sizeof own.message, "%.*s", (int)sizeof own.message - 1, status_message());
    Status status = comm_all_gather(comm, &own, all, sizeof own);
    for (int r = 0; r < comm_size(comm) && status == OK; r++) {
        if (all[r].status == OK) continue;
        status = status_fail(all[r].status, "%s", all[r].message);
        if (r > 0) status = status_prefix(status, "rank %d", r);
    }
    arena_deinit(&arena);
    return status;
}

void comm_own_bytes(const Comm *comm, size_t bytes, size_t *begin, size_t *end)
{
    size_t rank = (size_t)comm_rank(comm), size = (size_t)comm_size(comm);
    *begin = bytes / size * rank + (rank < bytes % size ? rank : bytes % size);
    *end = *begin + bytes / size + (rank < bytes % size);
}

Status comm_agree_most(Comm *comm, int64_t *value)
{
    Arena    arena = {0};
    int64_t *all = arena_array(&arena, int64_t, comm_size(comm));
    Status   status = comm_all_gather(comm, value, all, sizeof *value);
    for (int r = 0; r < comm_size(comm) && status == OK; r++)
        if (all[r] > *value) *value = all[r];
    arena_deinit(&arena);
    return status;
}

Status comm_agree_same(Comm *comm, uint64_t value, const char *what)
{
    Arena     arena = {0};
    uint64_t *all = arena_array(&arena, uint64_t, comm_size(comm));
    Status    status = comm_all_gather(comm, &value, all, sizeof value);
    for (int r = 1; r < comm_size(comm) && status == OK; r++)
        if (all[r] != all[0])
            status = status_fail(ERR_INVALID,
                                 "rank %d has other %s than rank 0: start all ranks with the same run file, program and kind of device", r,
                                 what);
    arena_deinit(&arena);
    return status;
}
