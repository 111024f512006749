/* See keeper.h. */
#define _GNU_SOURCE
#include "train/keeper.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

struct Keeper {
    Comm           *comm;
    const char     *phase; /* NULL: none yet */
    double          seconds, begun;
    bool            stop;
    pthread_t       thread;
    pthread_mutex_t lock;
    pthread_cond_t  changed;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *keeper_main(void *context)
{
    Keeper *k = context;
    pthread_mutex_lock(&k->lock);
    while (!k->stop) {
        struct timespec until;
        if (k->phase && now() - k->begun <= k->seconds) comm_beat(k->comm, k->phase);
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec++;
        pthread_cond_timedwait(&k->changed, &k->lock, &until);
    }
    pthread_mutex_unlock(&k->lock);
    return NULL;
}

Status keeper_start(Comm *comm, Keeper **out)
{
    *out = NULL;
    if (!comm) return OK;
    Keeper *k = calloc(1, sizeof *k);
    if (!k) fatal_out_of_memory(sizeof *k);
    k->comm = comm;
    pthread_mutex_init(&k->lock, NULL);
    pthread_cond_init(&k->changed, NULL);
    if (pthread_create(&k->thread, NULL, keeper_main, k) != 0) {
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
    k->begun = now();
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
