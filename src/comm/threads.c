/* Ranks that are threads of one process. A collective has two meetings. At the first, every rank has published its pointers; then each rank
 * does its part directly on the memory of all ranks. After the second, no rank touches another's memory. Only ranks that wait in the first
 * meeting notice a failure. In the second meeting a rank must not leave early, because other ranks still read its memory; so nothing
 * between the two meetings may fail or wait. */
#include "comm/pulse.h"

#include "base/c_locale.h"
#include "comm/reduce.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef struct Group Group;

typedef struct ThreadComm {
    Comm     base;
    Group   *group;
    CommSide side;
    CommCall call; /* the rank's current collective */
    bool     left;
} ThreadComm;

struct Group {
    CommLife       life;
    pthread_cond_t met_or_ended; /* signalled after a meeting, or when the group has ended */
    pthread_t      watcher;
    int            size, arrived, done, num_left;
    uint64_t       met, finished; /* number of first and of second meetings so far */
    ThreadComm     ranks[];
};

static ThreadComm *thread_of(Comm *comm)
{
    return (ThreadComm *)comm;
}

static void threads_wake(Comm *comm)
{
    Group *group = thread_of(comm)->group;
    pthread_cond_broadcast(&group->met_or_ended);
    pthread_cond_broadcast(&group->life.changed);
}

/* Functions named "locked_..." are called with the group's lock held. */
static void locked_end(Group *group, int rank, Status cause, const char *why)
{
    comm_locked_end(&group->ranks[0].base, rank, cause, why);
}

/* ---- collectives ---- */

/* Ends the group if a rank's call differs from rank 0's. */
static bool locked_calls_match(Group *group)
{
    char why[256];
    for (int r = 1; r < group->size; r++) {
        if (comm_calls_match(&group->ranks[0].call, &group->ranks[r].call, why, sizeof why)) continue;
        locked_end(group, r, ERR_INTERNAL, why);
        return false;
    }
    return true;
}

static void locked_check_left(Group *group)
{
    for (int r = 0; r < group->size; r++)
        if (group->ranks[r].left) locked_end(group, r, ERR_INTERNAL, "it has left, and others wait for it");
}

static Status locked_meet(ThreadComm *self, const CommCall *call)
{
    Group   *group = self->group;
    uint64_t met = group->met;
    self->call = *call;
    if (group->num_left) locked_check_left(group);
    if (group->life.end.ended) return comm_end_status(&group->life.end);
    if (++group->arrived == group->size && locked_calls_match(group)) {
        group->arrived = 0;
        group->met++;
        pthread_cond_broadcast(&group->met_or_ended);
    }
    while (group->met == met && !group->life.end.ended) pthread_cond_wait(&group->met_or_ended, &group->life.lock);
    return group->met != met ? OK : comm_end_status(&group->life.end);
}

static void locked_finish(Group *group)
{
    uint64_t finished = group->finished;
    if (++group->done == group->size) {
        group->done = 0;
        group->finished++;
        pthread_cond_broadcast(&group->met_or_ended);
    }
    while (group->finished == finished) pthread_cond_wait(&group->met_or_ended, &group->life.lock);
}

/* Reduces elements [begin, end) of all ranks' sends; in the sends they start `offset` elements later. Stores the results at the indices
 * [begin, end) of dst or, if dst is NULL, of every rank's recv. */
static void reduce_part(const Group *group, const CommCall *call, int64_t offset, int64_t begin, int64_t end, void *dst)
{
    enum { RUN = 1024 };
    _Alignas(16) char sums[RUN * REDUCE_BYTES];
    for (int64_t at = begin, n; at < end; at += n) {
        n = end - at < RUN ? end - at : RUN;
        int64_t from = dtype_bytes(call->dtype, offset + at), to = dtype_bytes(call->dtype, at);
        reduce_first(sums, (const char *)group->ranks[0].call.send + from, n, call->dtype);
        for (int r = 1; r < group->size; r++)
            reduce_next(sums, (const char *)group->ranks[r].call.send + from, n, call->dtype, call->reduce);
        if (dst)
            reduce_store((char *)dst + to, sums, n, call->dtype);
        else
            for (int r = 0; r < group->size; r++) reduce_store((char *)group->ranks[r].call.recv + to, sums, n, call->dtype);
    }
}

/* Does this rank's part of the collective: it writes its own recv, or its part of every rank's recv. No other rank writes memory that this
 * rank reads. */
static void do_part(ThreadComm *self)
{
    const Group    *group = self->group;
    const CommCall *call = &self->call;
    int64_t         begin, end;
    switch (call->kind) {
    case COMM_ALL_GATHER:
        for (int r = 0; r < group->size && call->count; r++) {
            char *place = (char *)call->recv + (size_t)r * (size_t)call->count;
            if (place != group->ranks[r].call.send) memcpy(place, group->ranks[r].call.send, (size_t)call->count);
        }
        break;
    case COMM_BROADCAST:
        if (self->base.rank != call->root && call->count) memcpy(call->recv, group->ranks[call->root].call.send, (size_t)call->count);
        break;
    case COMM_REDUCE_SCATTER:
        reduce_part(group, call, self->base.rank * call->count, 0, call->count, call->recv);
        break;
    case COMM_ALL_REDUCE:
        comm_part(call->count, self->base.rank, group->size, &begin, &end);
        reduce_part(group, call, 0, begin, end, NULL);
        break;
    default:
        break;
    }
}

static Status threads_call(Comm *comm, const CommCall *call)
{
    ThreadComm *self = thread_of(comm);
    Group      *group = self->group;
    pthread_mutex_lock(&group->life.lock);
    pulse_enter(&self->side.pulse);
    Status status = locked_meet(self, call);
    if (status == OK && call->kind != COMM_BARRIER) {
        pthread_mutex_unlock(&group->life.lock);
        do_part(self);
        pthread_mutex_lock(&group->life.lock);
        locked_finish(group);
    }
    pulse_leave(&self->side.pulse);
    pthread_mutex_unlock(&group->life.lock);
    return status;
}

/* ---- ending the group together ---- */

/* Calls one rank's on_end that is still to be called, with the lock released meanwhile; false: there is none. */
static bool locked_tell_one(Group *group)
{
    for (int r = 0; r < group->size; r++)
        if (!group->ranks[r].left && comm_locked_tell(&group->ranks[r].base)) return true;
    return false;
}

static void locked_judge(Group *group)
{
    char   why[256];
    double now = pulse_now();
    for (int r = 0; r < group->size; r++) {
        ThreadComm *rank = &group->ranks[r];
        if (!rank->left && pulse_judge(&rank->side.pulse, r, &group->life.limits, now, why, sizeof why))
            locked_end(group, r, ERR_RANK, why);
    }
}

static void locked_wait_watched(Group *group)
{
    double          step = group->life.limits.progress / 10 < 0.25 ? group->life.limits.progress / 10 : 0.25, until = pulse_now() + step;
    struct timespec when = {.tv_sec = (time_t)until};
    when.tv_nsec = (long)((until - (double)when.tv_sec) * 1e9);
    if (group->life.end.ended)
        pthread_cond_wait(&group->life.changed, &group->life.lock);
    else
        pthread_cond_timedwait(&group->life.changed, &group->life.lock, &when);
}

static void *watch(void *argument)
{
    Group *group = argument;
    pthread_mutex_lock(&group->life.lock);
    while (group->num_left < group->size) {
        if (group->life.end.ended && locked_tell_one(group)) continue;
        if (!group->life.end.ended) locked_judge(group);
        locked_wait_watched(group);
    }
    pthread_mutex_unlock(&group->life.lock);
    return NULL;
}

static void group_free(Group *group)
{
    pthread_cond_destroy(&group->met_or_ended);
    comm_life_deinit(&group->life);
    free(group);
}

static void threads_destroy(Comm *comm)
{
    ThreadComm *self = thread_of(comm);
    Group      *group = self->group;
    pthread_mutex_lock(&group->life.lock);
    comm_locked_await_telling(comm);
    self->left = true;
    bool is_last = ++group->num_left == group->size;
    if (group->arrived) locked_check_left(group);
    pthread_cond_broadcast(&group->life.changed);
    pthread_mutex_unlock(&group->life.lock);
    if (!is_last) return;
    pthread_join(group->watcher, NULL);
    group_free(group);
}

static const CommApi threads_api = {
    .name = "threads",
    .call = threads_call,
    .wake = threads_wake,
    .destroy = threads_destroy,
};

Status comm_threads_create(int size, const CommLimits *limits, Comm *out[])
{
    FAIL_IF(size < 1 || size > COMM_MOST_RANKS, ERR_INVALID, "%d ranks asked for, expected 1 to %d", size, COMM_MOST_RANKS);
    size_t bytes = sizeof(Group) + (size_t)size * sizeof(ThreadComm);
    Group *group = calloc_or_end(1, bytes);
    group->size = size;
    comm_life_init(&group->life, limits);
    pthread_cond_init(&group->met_or_ended, NULL);
    for (int r = 0; r < size; r++) {
        ThreadComm *rank = &group->ranks[r];
        *rank = (ThreadComm){.group = group, .side.life = &group->life};
        rank->base = (Comm){.api = &threads_api, .side = &rank->side, .rank = r, .size = size, .is_local = true, .is_one_process = true};
        pulse_init(&rank->side.pulse);
    }
    int error = c_locale_thread(&group->watcher, watch, group);
    if (error) {
        group_free(group);
        FAIL(ERR_IO, "cannot start the thread that watches ranks: %s", strerror(error));
    }
    for (int r = 0; r < size; r++) out[r] = &group->ranks[r].base;
    return OK;
}
