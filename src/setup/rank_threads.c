#define _GNU_SOURCE
#include "setup/rank_threads.h"

#include "base/c_locale.h"
#include "base/log.h"
#include "device/device.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LEAVE_SECONDS = 10 }; /* seconds that a rank has to end after rank 0 has failed */

typedef struct RankThread {
    RankTeam *team;
    Comm     *comm;
    RankPlace place;
    pthread_t thread; /* unused for the first rank, which has no thread */
    bool      is_started;
    int64_t   done;   /* number of rounds it has finished */
    Status    status; /* status of its last round */
    char      message[STATUS_MESSAGE_BYTES];
} RankThread;

struct RankTeam {
    RankThread *ranks;
    int         count;
    bool        leaves; /* each thread's rank leaves the group after its work */
    /* The round of work of all ranks; `lock` guards all fields below. */
    pthread_mutex_t lock;
    pthread_cond_t  begun, ended;
    RankWork        work; /* NULL: threads shall end */
    void           *context;
    int64_t         round;
};

/* ---- threads ---- */

static void work_as(RankThread *rank)
{
    rank->status = rank->team->work(rank->team->context, rank->comm, rank->place);
    snprintf(rank->message, sizeof rank->message, "%s", rank->status == OK ? "" : status_message());
}

static void *rank_main(void *context)
{
    RankThread *rank = context;
    RankTeam   *team = rank->team;
    log_mute(true); /* only rank 0 logs */
    pthread_mutex_lock(&team->lock);
    for (;;) {
        while (team->round == rank->done) pthread_cond_wait(&team->begun, &team->lock);
        if (!team->work) break;
        pthread_mutex_unlock(&team->lock);
        work_as(rank);
        if (team->leaves) {
            comm_destroy(rank->comm);
            rank->comm = NULL;
        }
        pthread_mutex_lock(&team->lock);
        rank->done++;
        pthread_cond_signal(&team->ended);
    }
    pthread_mutex_unlock(&team->lock);
    return NULL;
}

static void begin(RankTeam *team, RankWork work, void *context)
{
    pthread_mutex_lock(&team->lock);
    team->work = work;
    team->context = context;
    team->round++;
    pthread_cond_broadcast(&team->begun);
    pthread_mutex_unlock(&team->lock);
}

/* A rank whose thread is still working; 0: none. */
static int find_busy(const RankTeam *team)
{
    for (int r = 1; r < team->count; r++)
        if (team->ranks[r].done != team->round) return r;
    return 0;
}

/* Waits for all threads, at most until `until` (NULL: forever). Returns a rank that is still busy; 0: none. */
static int await_threads(RankTeam *team, const struct timespec *until)
{
    int busy, error = 0;
    pthread_mutex_lock(&team->lock);
    while ((busy = find_busy(team)) && error != ETIMEDOUT)
        error = until ? pthread_cond_timedwait(&team->ended, &team->lock, until) : pthread_cond_wait(&team->ended, &team->lock);
    pthread_mutex_unlock(&team->lock);
    return busy;
}

/* ---- teams ---- */

static Status start_threads(RankTeam *team)
{
    for (int r = 1; r < team->count; r++) {
        RankThread *rank = &team->ranks[r];
        int         error = c_locale_thread(&rank->thread, rank_main, rank);
        rank->is_started = error == 0;
        FAIL_IF(error, ERR_IO, "cannot start the thread of rank %d of %d: %s", r, team->count, strerror(error));
    }
    return OK;
}

/* Makes a team of the ranks, and takes ownership of `comms`. */
static Status create(Comm *const *comms, int count, bool leaves, RankTeam **out)
{
    RankTeam *team = calloc_or_end(1, sizeof *team);
    team->ranks = calloc_or_end((size_t)count, sizeof *team->ranks);
    team->count = count;
    team->leaves = leaves;
    pthread_mutex_init(&team->lock, NULL);
    pthread_cond_init(&team->begun, NULL);
    pthread_cond_init(&team->ended, NULL);
    for (int r = 0; r < count; r++) {
        int       rank = comm_rank(comms[r]), world = comm_size(comms[r]);
        RankPlace place = {.rank = rank, .world = world, .local = rank, .num_local = world, .is_first_here = r == 0};
        team->ranks[r] = (RankThread){.team = team, .comm = comms[r], .place = place};
    }
    if (comms[0]) device_prepare_ranks(comms[0]->is_local);
    Status status = start_threads(team);
    if (status != OK) {
        comm_abort(comms[0], status, status_message());
        rank_team_destroy(team);
        return status;
    }
    *out = team;
    return OK;
}

Status rank_team_create(int count, const CommLimits *limits, RankTeam **out)
{
    Comm **comms = calloc_or_end((size_t)count, sizeof *comms);
    Status status = count > 1 ? comm_threads_create(count, limits, comms) : OK;
    if (status == OK) status = create(comms, count, false, out);
    free(comms);
    return status;
}

void rank_team_destroy(RankTeam *team)
{
    if (!team) return;
    begin(team, NULL, NULL);
    for (int r = 1; r < team->count; r++)
        if (team->ranks[r].is_started) pthread_join(team->ranks[r].thread, NULL);
    for (int r = 0; r < team->count; r++) comm_destroy(team->ranks[r].comm);
    pthread_cond_destroy(&team->begun);
    pthread_cond_destroy(&team->ended);
    pthread_mutex_destroy(&team->lock);
    free(team->ranks);
    free(team);
}

Status rank_team_run(RankTeam *team, RankWork work, void *context, int *out_failed)
{
    const RankThread *failed = NULL;
    for (int r = 0; r < team->count; r++) comm_beat(team->ranks[r].comm, "working"); /* between rounds ranks give no signs of progress */
    begin(team, work, context);
    work_as(&team->ranks[0]);
    await_threads(team, NULL);
    for (int r = 0; r < team->count; r++) {
        const RankThread *rank = &team->ranks[r];
        if (rank->status != OK && (!failed || (failed->status == ERR_RANK && rank->status != ERR_RANK))) failed = rank;
    }
    if (!failed) return OK;
    if (out_failed) *out_failed = failed->place.rank;
    FAIL(failed->status, "%s", failed->message);
}

/* ---- once ---- */

typedef struct Once {
    RankWork work;
    void    *context;
    int      count; /* number of ranks in this process */
} Once;

/* Finds this rank's place among the ranks of its host. If a launcher shows a process of one rank a single GPU, the rank takes GPU 0. */
static Status find_place(Comm *comm, int count, RankPlace *place)
{
    enum { NAME_BYTES = 256 };
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    char        own[NAME_BYTES] = "", *all = calloc_or_end((size_t)place->world, NAME_BYTES);
    gethostname(own, sizeof own - 1);
    Status status = comm_all_gather(comm, own, all, sizeof own);
    place->local = place->num_local = 0;
    for (int r = 0; r < place->world && status == OK; r++) {
        bool is_here = strcmp(all + (size_t)r * NAME_BYTES, own) == 0;
        place->num_local += is_here;
        place->local += is_here && r < place->rank;
    }
    if (count == 1 && visible && *visible && !strchr(visible, ',')) place->local = 0;
    free(all);
    return status;
}

static Status work_once(void *context, Comm *comm, RankPlace place)
{
    const Once *once = context;
    TRY(find_place(comm, once->count, &place));
    return once->work(once->context, comm, place);
}

/* Waits for all threads. If the first rank has failed, the program ends when a thread takes longer than LEAVE_SECONDS. */
static void await_or_exit(RankTeam *team, Status status)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += LEAVE_SECONDS;
    int busy = await_threads(team, status == OK ? NULL : &until);
    if (!busy) return;
    log_error("%s\nrank %d doesn't end; the program does", status_message(), busy);
    _exit(status_exit_code(status));
}

Status rank_threads_run(Comm *const *comms, int count, RankWork work, void *context)
{
    RankTeam *team;
    TRY(create(comms, count, true, &team));
    log_mute(comm_rank(comms[0]) > 0); /* only rank 0 logs */
    begin(team, work_once, &(Once){work, context, count});
    work_as(&team->ranks[0]);
    log_mute(false);
    Status status = team->ranks[0].status;
    await_or_exit(team, status);
    rank_team_destroy(team);
    return status;
}

Status rank_threads_alone(const Config *config, RankWork work, void *context)
{
    int count = (int)config->gpus;
    if (count == 1) return work(context, NULL, RANK_ALONE);
    CommLimits limits = {.progress = config->comm_timeout};
    Comm     **comms = calloc_or_end((size_t)count, sizeof *comms);
    Status     status = comm_threads_create(count, &limits, comms);
    if (status == OK) status = rank_threads_run(comms, count, work, context);
    free(comms);
    return status;
}
