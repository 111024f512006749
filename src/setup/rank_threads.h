/* The ranks of this process: the first works on the calling thread, each other one on a thread of its own. */
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

/* `count` ranks, whose ends of the group are taken over, do `work` once. What the first rank's work returns is returned. Where a thread
 * hangs in a library after a failure, the program ends. */
NODISCARD Status rank_threads_run(Comm *const *comms, int count, RankWork work, void *context);
/* The same of a group of this process's threads alone, config->gpus of them. */
NODISCARD Status rank_threads_alone(const Config *config, RankWork work, void *context);

/* Ranks whose threads wait for work, again and again. */
typedef struct RankTeam RankTeam;

/* A group of this process alone. A single rank has no thread, and its comm is NULL. limits: NULL for the defaults. */
NODISCARD Status rank_team_create(int count, const CommLimits *limits, RankTeam **out);
void             rank_team_destroy(RankTeam *team); /* NULL is fine */
/* Returns once all ranks did `work`: OK, or the failure of the first rank that failed by itself. *out_failed: that rank; NULL: not wanted.
 * Calls come from one thread at a time. */
NODISCARD Status rank_team_run(RankTeam *team, RankWork work, void *context, int *out_failed);
