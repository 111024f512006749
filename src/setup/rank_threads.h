/* The ranks of this process, each a thread, which calls `work` with its end of their group. */
#pragma once

#include "comm/comm.h"
#include "config/config.h"

/* Which of the run's ranks this is, and which of those of this host. */
typedef struct RankPlace {
    int  rank, world, local, num_local;
    bool is_first_here; /* of this process */
} RankPlace;
#define RANK_ALONE ((RankPlace){.world = 1, .num_local = 1, .is_first_here = true})

/* A failure that isn't common to all ranks is to end the others too (comm_abort). */
typedef Status (*RankWork)(void *context, Comm *comm, RankPlace place);

/* `count` ranks, whose ends of the group are taken over; the first is the calling thread's, and what its work returns is returned. Where a
 * thread hangs in a library after a failure, the program ends. */
NODISCARD Status rank_threads_run(Comm *const *comms, int count, RankWork work, void *context);
/* The same of a group of this process's threads alone, config->gpus of them. */
NODISCARD Status rank_threads_alone(const Config *config, RankWork work, void *context);
