/* What the ranks of a run decide together. Each call is made by all of them, in the same order; comm NULL: there is one. */
#pragma once

#include "comm/comm.h"

/* OK when every rank brings OK. Else all get the status of the first that failed and its message, behind "rank R: " unless that is rank
 * 0: what it does alone, it does for all. */
NODISCARD Status comm_agree(Comm *comm, Status mine);

/* The bytes [*begin, *end) of `bytes` that are this rank's when each has an equal part, in order. */
void comm_own_bytes(const Comm *comm, size_t bytes, size_t *begin, size_t *end);

/* The largest of what they bring. */
NODISCARD Status comm_agree_most(Comm *comm, int64_t *value);

/* ERR_INVALID, which names the first rank whose value isn't rank 0's. what: "programs". */
NODISCARD Status comm_agree_same(Comm *comm, uint64_t value, const char *what);
