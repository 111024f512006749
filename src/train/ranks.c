/* The ranks of a run: threads of this process, or this process among others. */
#define _GNU_SOURCE
#include "train/trainer_internal.h"

#include "base/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { LEAVE_SECONDS = 10 }; /* that a rank has to end after rank 0 did */

typedef struct RankThread {
    const Config     *config;
    const TrainHooks *hooks;
    Comm             *comm;
    RankPlace         place;
    pthread_t         thread;
    bool              is_started;
    TrainOutcome      outcome;
    Status            status;
    char              message[STATUS_MESSAGE_BYTES];
} RankThread;

static void *rank_main(void *context)
{
    RankThread *rank = context;
    log_mute(true); /* rank 0 speaks for all */
    rank->status = trainer_run(rank->config, rank->hooks, rank->comm, rank->place, &rank->outcome);
    snprintf(rank->message, sizeof rank->message, "%s", status_message());
    comm_destroy(rank->comm);
    return NULL;
}

static Status start_threads(RankThread *ranks, int count)
{
    for (int r = 1; r < count; r++) {
        int error = pthread_create(&ranks[r].thread, NULL, rank_main, &ranks[r]);
        ranks[r].is_started = error == 0;
        FAIL_IF(error, ERR_IO, "cannot start the thread of rank %d of %d: %s", r, count, strerror(error));
    }
    return OK;
}

/* A rank that hangs in a library can't be ended but with the process. */
static void join_threads(RankThread *ranks, int count, Status status)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += LEAVE_SECONDS;
    for (int r = 1; r < count; r++) {
        if (!ranks[r].is_started) continue;
        int error = status == OK ? pthread_join(ranks[r].thread, NULL) : pthread_timedjoin_np(ranks[r].thread, NULL, &until);
        if (error != ETIMEDOUT) continue;
        log_error("%s\nrank %d doesn't end; the program does", status_message(), r);
        _exit(status_exit_code(status));
    }
}

/* What all of them end with: a failure of one rank is told with that rank's status. */
static Status common_status(const RankThread *ranks, int count)
{
    Status status = ranks[0].status;
    for (int r = 1; r < count && status == ERR_RANK; r++)
        if (ranks[r].is_started && ranks[r].status != OK) status = ranks[r].status;
    return ranks[0].status == OK ? OK : status_fail(status, "%s", ranks[0].message);
}

static Status run_threads(const Config *config, const TrainHooks *hooks, TrainOutcome *out)
{
    int         count = (int)config->gpus;
    CommLimits  limits = {.progress = config->comm_timeout};
    Comm      **comms = calloc((size_t)count, sizeof *comms);
    RankThread *ranks = calloc((size_t)count, sizeof *ranks);
    if (!comms || !ranks) fatal_out_of_memory((size_t)count * sizeof *ranks);
    Status status = comm_threads_create(count, &limits, comms);
    if (status == OK) {
        for (int r = 0; r < count; r++)
            ranks[r] = (RankThread){.config = config, .hooks = hooks, .comm = comms[r], .place = {r, count, r, count}};
        status = start_threads(ranks, count);
        if (status != OK) comm_abort(comms[0], status, status_message());
        if (status == OK) status = trainer_run(config, hooks, comms[0], ranks[0].place, out);
        ranks[0].status = status;
        snprintf(ranks[0].message, sizeof ranks[0].message, "%s", status_message());
        join_threads(ranks, count, status);
        status = common_status(ranks, count);
        comm_destroy(comms[0]);
    }
    free(ranks);
    free(comms);
    return status;
}

Status train_run(const Config *config, const TrainHooks *hooks, TrainOutcome *out)
{
    FAIL_IF(config->gpus > 1 && config->world_size > 1, ERR_INVALID,
            "gpus: %lld with world_size: %lld: ranks are threads of one process or processes of one rank each; leave one of them out",
            (long long)config->gpus, (long long)config->world_size);
    if (config->gpus > 1) return run_threads(config, hooks, out);
    return trainer_run(config, hooks, NULL, (RankPlace){.world = 1, .num_local = 1}, out);
}
