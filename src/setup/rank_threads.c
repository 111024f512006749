#define _GNU_SOURCE
#include "setup/rank_threads.h"

#include "base/c_locale.h"
#include "base/log.h"
#include "device/device.h"

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
    int       count; /* of this process */
    bool      is_first;
    pthread_t thread;
    bool      is_started;
} RankThread;

/* This rank's place among those of its host. Where the launcher shows each process of one rank a GPU of its own, that is its first. */
static Status find_place(const RankThread *rank, RankPlace *out)
{
    enum { NAME_BYTES = 256 };
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    int         world = comm_size(rank->comm);
    char        own[NAME_BYTES] = "", *all = calloc((size_t)world, NAME_BYTES);
    if (!all) fatal_out_of_memory((size_t)world * NAME_BYTES);
    gethostname(own, sizeof own - 1);
    Status status = comm_all_gather(rank->comm, own, all, sizeof own);
    *out = (RankPlace){.rank = comm_rank(rank->comm), .world = world, .is_first_here = rank->is_first};
    for (int r = 0; r < world && status == OK; r++) {
        bool is_here = strcmp(all + (size_t)r * NAME_BYTES, own) == 0;
        out->num_local += is_here;
        out->local += is_here && r < out->rank;
    }
    if (rank->count == 1 && visible && *visible && !strchr(visible, ',')) out->local = 0;
    free(all);
    return status;
}

static Status work_as(const RankThread *rank)
{
    RankPlace place;
    log_mute(comm_rank(rank->comm) > 0); /* rank 0 speaks for all */
    Status status = find_place(rank, &place);
    if (status == OK) status = rank->work(rank->context, rank->comm, place);
    log_mute(false);
    return status;
}

static void *rank_main(void *context)
{
    RankThread *rank = context;
    Status      told = work_as(rank);
    (void)told; /* by comm, to all */
    comm_destroy(rank->comm);
    return NULL;
}

static Status start(RankThread *ranks, int count)
{
    for (int r = 1; r < count; r++) {
        int error = c_locale_thread(&ranks[r].thread, rank_main, &ranks[r]);
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

Status rank_threads_run(Comm *const *comms, int count, RankWork work, void *context)
{
    RankThread *ranks = calloc((size_t)count, sizeof *ranks);
    if (!ranks) fatal_out_of_memory((size_t)count * sizeof *ranks);
    for (int r = 0; r < count; r++)
        ranks[r] = (RankThread){.work = work, .context = context, .comm = comms[r], .count = count, .is_first = r == 0};
    device_prepare_ranks(comms[0]->is_local);
    Status status = start(ranks, count);
    if (status != OK) comm_abort(comms[0], status, status_message());
    if (status == OK) status = work_as(&ranks[0]);
    join(ranks, count, status);
    comm_destroy(comms[0]);
    free(ranks);
    return status;
}

Status rank_threads_alone(const Config *config, RankWork work, void *context)
{
    int        count = (int)config->gpus;
    CommLimits limits = {.progress = config->comm_timeout};
    Comm     **comms = calloc((size_t)count, sizeof *comms);
    if (!comms) fatal_out_of_memory((size_t)count * sizeof *comms);
    Status status = comm_threads_create(count, &limits, comms);
    if (status == OK) status = rank_threads_run(comms, count, work, context);
    free(comms);
    return status;
}
