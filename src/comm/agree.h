/* Decisions that the ranks of a run make together. All ranks make the same calls in the same order; comm NULL: there is one rank. */
#pragma once

#include "comm/comm.h"

/* OK if `mine` is OK on every rank. Else all ranks fail with the status and message of the first rank that failed, prefixed by "rank R:
 * ". Rank 0's message has no prefix, as rank 0 also does things on behalf of all. */
NODISCARD Status comm_agree(Comm *comm, Status mine);

/* This rank's part [*begin, *end) of `bytes` bytes, which are divided evenly among the ranks, in their order. */
void comm_own_bytes(const Comm *comm, size_t bytes, size_t *begin, size_t *end);

/* *value becomes the largest of all ranks' values. */
NODISCARD Status comm_agree_most(Comm *comm, int64_t *value);

/* ERR_INVALID if the values differ; the message names the first rank that differs from rank 0. what: names the values in it, as
 * "programs". */
NODISCARD Status comm_agree_same(Comm *comm, uint64_t value, const char *what);
