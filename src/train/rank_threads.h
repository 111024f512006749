/* Ranks that are threads of this process: each calls `work` with its end of their group. */
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

/* config->gpus ranks; rank 0 is the calling thread, and what its work returns is returned. Where a thread hangs in a
 * library after a failure, the program ends. */
NODISCARD Status rank_threads_run(const Config *config, RankWork work, void *context);
