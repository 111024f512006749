#define _GNU_SOURCE
#include "train/rank_threads.h"

#include "base/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LEAVE_SECONDS = 10 }; /* that a rank has to end after rank 0 did */

typedef struct RankThread {
    RankWork  work;
    void     *context;
    Comm     *comm;
    RankPlace place;
    pthread_t thread;
    bool      is_started;
} RankThread;

static void *rank_main(void *context)
{
    RankThread *rank = context;
    log_mute(true); /* rank 0 speaks for all */
    Status told = rank->work(rank->context, rank->comm, rank->place);
    (void)told; /* by comm, to all */
    comm_destroy(rank->comm);
    return NULL;
}

static Status start(RankThread *ranks, int count)
{
    for (int r = 1; r < count; r++) {
        int error = pthread_create(&ranks[r].thread, NULL, rank_main, &ranks[r]);
        ranks[r].is_started = error == 0;
        FAIL_IF(error, ERR_IO, "cannot start the thread of rank %d of %d: %s", r, count, strerror(error));
    }
    return OK;
}

static void join(RankThread *ranks, int count, Status status)
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

Status rank_threads_run(const Config *config, RankWork work, void *context)
{
    int         count = (int)config->gpus;
    CommLimits  limits = {.progress = config->comm_timeout};
    Comm      **comms = calloc((size_t)count, sizeof *comms);
    RankThread *ranks = calloc((size_t)count, sizeof *ranks);
    if (!comms || !ranks) fatal_out_of_memory((size_t)count * sizeof *ranks);
    Status status = comm_threads_create(count, &limits, comms);
    if (status == OK) {
        for (int r = 0; r < count; r++) ranks[r] = (RankThread){work, context, comms[r], {r, count, r, count, r == 0}, 0, false};
        status = start(ranks, count);
        if (status != OK) comm_abort(comms[0], status, status_message());
        if (status == OK) status = work(context, comms[0], ranks[0].place);
        join(ranks, count, status);
        comm_destroy(comms[0]);
    }
    free(ranks);
    free(comms);
    return status;
}
