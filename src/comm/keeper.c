/* See keeper.h. */
#define _GNU_SOURCE
#include "comm/keeper.h"

#include "base/c_locale.h"
#include "base/clock.h"
#include "base/log.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define LEAVE_SECONDS 2.0 /* how long after the group's end the rank may still run, before its process is ended */

enum { LOOK_NANOSECONDS = 250000000 };

struct Keeper {
    Comm           *comm;
    const char     *phase; /* NULL: none yet */
    double          seconds, begun;
    bool            stop;
    pthread_t       thread;
    pthread_mutex_t lock;
    pthread_cond_t  changed;
};

/* Ends this process if a failure has ended the group but this rank hangs or goes on working. *ended: when this function first saw the
 * group's end; 0: not yet. Nothing is lost, because the files of a run are complete at any moment. */
static void end_with_others(const Keeper *k, double *ended)
{
    if (comm_check(k->comm) == OK) return;
    if (!*ended) *ended = clock_seconds();
    if (clock_seconds() - *ended < LEAVE_SECONDS) return;
    log_error("%s\nrank %d doesn't end by itself: its process is ended", status_message(), comm_rank(k->comm));
    _exit(status_exit_code(comm_cause(k->comm)));
}

static void *keeper_main(void *context)
{
    Keeper *k = context;
    double  ended = 0;
    pthread_mutex_lock(&k->lock);
    while (!k->stop) {
        struct timespec until;
        if (k->phase && clock_seconds() - k->begun <= k->seconds) comm_beat(k->comm, k->phase);
        end_with_others(k, &ended);
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += LOOK_NANOSECONDS;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&k->changed, &k->lock, &until);
    }
    pthread_mutex_unlock(&k->lock);
    return NULL;
}

Status keeper_start(Comm *comm, Keeper **out)
{
    *out = NULL;
    if (!comm) return OK;
    Keeper *k = calloc_or_end(1, sizeof *k);
    k->comm = comm;
    pthread_mutex_init(&k->lock, NULL);
    pthread_cond_init(&k->changed, NULL);
    if (c_locale_thread(&k->thread, keeper_main, k) != 0) {
        free(k);
        FAIL(ERR_INTERNAL, "cannot start a thread");
    }
    *out = k;
    return OK;
}

void keeper_phase(Keeper *k, const char *phase, double seconds)
{
    if (!k) return;
    comm_beat(k->comm, phase);
    pthread_mutex_lock(&k->lock);
    k->phase = phase;
    k->seconds = seconds;
    k->begun = clock_seconds();
    pthread_mutex_unlock(&k->lock);
}

void keeper_stop(Keeper *k)
{
    if (!k) return;
    pthread_mutex_lock(&k->lock);
    k->stop = true;
    pthread_cond_signal(&k->changed);
    pthread_mutex_unlock(&k->lock);
    pthread_join(k->thread, NULL);
    pthread_mutex_destroy(&k->lock);
    pthread_cond_destroy(&k->changed);
    free(k);
}
