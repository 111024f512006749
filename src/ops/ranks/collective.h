/* Shared by collective ops, which all ranks run together, each in its own program. */
#pragma once

#include "comm/comm.h"
#include "ops/infer.h"

NODISCARD static inline Status infer_ranks(int64_t ranks)
{
    FAIL_IF(ranks < 1 || ranks > COMM_MOST_RANKS, ERR_INVALID, "attribute ranks is %lld, expected 1 to %d", (long long)ranks,
            COMM_MOST_RANKS);
    return OK;
}

/* Cost of an op that divides `whole_bytes` among the ranks: each rank sends all parts but one, and receives as much, in a ring or
 * directly to every other rank. */
static inline OpCost cost_collective(const Node *node, double flops, int64_t ranks, double whole_bytes)
{
    OpCost cost = cost_streaming(node, flops);
    cost.peer_bytes = whole_bytes * (double)(ranks - 1) / (double)ranks;
    return cost;
}

/* Fails unless the device has `ranks` ranks, for which the program was made. */
NODISCARD static inline Status check_ranks(const KernelArgs *args, int64_t ranks)
{
    FAIL_IF(comm_size(args->comm) != ranks, ERR_INTERNAL, "a program for %lld ranks on a device of %d", (long long)ranks,
            comm_size(args->comm));
    return OK;
}
