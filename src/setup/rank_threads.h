/* The ranks of this process: the first works on the calling thread, every other rank on its own thread. */
#pragma once

#include "comm/comm.h"
#include "config/config.h"

/* A rank's number in the run (rank of world) and among the ranks of its host (local of num_local). */
typedef struct RankPlace {
    int  rank, world, local, num_local;
    bool is_first_here; /* the first rank of this process */
} RankPlace;
#define RANK_ALONE ((RankPlace){.world = 1, .num_local = 1, .is_first_here = true})

/* One rank's work. If it fails on one rank only, it calls comm_abort, so that no other rank waits for this one. */
typedef Status (*RankWork)(void *context, Comm *comm, RankPlace place);

/* Runs `work` once on `count` ranks, and takes ownership of `comms`. Returns the status of the first rank's work. If a thread hangs in a
 * library after a failure, the program exits. */
NODISCARD Status rank_threads_run(Comm *const *comms, int count, RankWork work, void *context);
/* rank_threads_run with config->gpus ranks, all in this process. A single rank's comm is NULL. */
NODISCARD Status rank_threads_alone(const Config *config, RankWork work, void *context);

/* Ranks whose threads wait for one round of work after another. */
typedef struct RankTeam RankTeam;

/* Creates a team of `count` ranks, all in this process. A single rank has no thread, and its comm is NULL. limits: NULL for the
 * defaults. */
NODISCARD Status rank_team_create(int count, const CommLimits *limits, RankTeam **out);
void             rank_team_destroy(RankTeam *team); /* NULL is fine */
/* Runs one round of work on all ranks, and returns once all are done: OK, or the failure of the first rank that failed by itself.
 * *out_failed: that rank; NULL: not wanted. Calls must come from one thread at a time. */
NODISCARD Status rank_team_run(RankTeam *team, RankWork work, void *context, int *out_failed);
