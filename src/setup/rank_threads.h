/* The ranks of this process: the first works on the calling thread, each other one on a thread of its own. */
#pragma once

#include "comm/comm.h"
#include "config/config.h"

/* The number of a rank in the run, and among the ranks of its host. */
typedef struct RankPlace {
    int  rank, world, local, num_local;
    bool is_first_here; /* of this process */
} RankPlace;
#define RANK_ALONE ((RankPlace){.world = 1, .num_local = 1, .is_first_here = true})

/* One rank's work. If it fails alone, it calls comm_abort, so that no other rank waits for it. */
typedef Status (*RankWork)(void *context, Comm *comm, RankPlace place);

/* `count` ranks do `work` once; their ends of the group are taken over. Returns what the first rank's work returned. Where a thread hangs
 * in a library after a failure, the program ends. */
NODISCARD Status rank_threads_run(Comm *const *comms, int count, RankWork work, void *context);
/* The same with config->gpus ranks of this process alone. A single rank's comm is NULL. */
NODISCARD Status rank_threads_alone(const Config *config, RankWork work, void *context);

/* Ranks whose threads wait for work, again and again. */
typedef struct RankTeam RankTeam;

/* A group of this process alone. A single rank has no thread, and its comm is NULL. limits: NULL for the defaults. */
NODISCARD Status rank_team_create(int count, const CommLimits *limits, RankTeam **out);
void             rank_team_destroy(RankTeam *team); /* NULL is fine */
/* Returns once all ranks did `work`: OK, or the failure of the first rank that failed by itself. *out_failed: that rank; NULL: not wanted.
 * Calls come from one thread at a time. */
NODISCARD Status rank_team_run(RankTeam *team, RankWork work, void *context, int *out_failed);
