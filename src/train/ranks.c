/* The ranks of a run: threads of this process, or of this process and others. */
#define _GNU_SOURCE
#include "train/trainer_internal.h"

#include "base/hash.h"
#include "base/log.h"
#include "base/version.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LEAVE_SECONDS = 10 }; /* that a rank has to end after rank 0 did */

typedef struct RankThread {
    const Config     *config;
    const TrainHooks *hooks;
    Comm             *comm;
    pthread_t         thread;
    bool              is_started;
} RankThread;

/* This rank's place among those of its host. Where the launcher shows each process a GPU of its own, that is its first. */
static Status find_place(const Config *config, Comm *comm, RankPlace *out)
{
    enum { NAME_BYTES = 256 };
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    int         rank = comm_rank(comm), world = comm_size(comm);
    char        own[NAME_BYTES] = "", *all = calloc((size_t)world, NAME_BYTES);
    if (!all) fatal_out_of_memory((size_t)world * NAME_BYTES);
    gethostname(own, sizeof own - 1);
    Status status = comm_all_gather(comm, own, all, sizeof own);
    *out = (RankPlace){.rank = rank, .world = world};
    for (int r = 0; r < world && status == OK; r++) {
        bool is_here = strcmp(all + (size_t)r * NAME_BYTES, own) == 0;
        out->num_local += is_here;
        out->local += is_here && r < rank;
    }
    if (config->gpus == 1 && visible && *visible && !strchr(visible, ',')) out->local = 0;
    free(all);
    return status;
}

/* Rank 0 speaks for all. is_first: of this process. */
static Status run_rank(const Config *config, const TrainHooks *hooks, Comm *comm, bool is_first, TrainOutcome *out)
{
    RankPlace place;
    log_mute(comm_rank(comm) > 0);
    Status status = find_place(config, comm, &place);
    place.is_first_here = is_first;
    if (status == OK) status = trainer_run(config, hooks, comm, place, out);
    log_mute(false);
    return status;
}

static void *rank_main(void *context)
{
    RankThread  *rank = context;
    TrainOutcome outcome;
    Status       told = run_rank(rank->config, rank->hooks, rank->comm, false, &outcome);
    (void)told; /* by comm, to all */
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

/* The ranks of this process, each a thread; their ends of the group are taken over. */
static Status run_here(const Config *config, const TrainHooks *hooks, Comm *const *comms, TrainOutcome *out)
{
    int         count = (int)config->gpus;
    RankThread *ranks = calloc((size_t)count, sizeof *ranks);
    if (!ranks) fatal_out_of_memory((size_t)count * sizeof *ranks);
    for (int r = 0; r < count; r++) ranks[r] = (RankThread){.config = config, .hooks = hooks, .comm = comms[r]};
    Status status = start_threads(ranks, count);
    if (status != OK) comm_abort(comms[0], status, status_message());
    if (status == OK) status = run_rank(config, hooks, comms[0], true, out);
    join_threads(ranks, count, status);
    comm_destroy(comms[0]);
    free(ranks);
    return status;
}

/* ---- processes ---- */

/* Ranks of different programs don't meet. */
static uint64_t program_hash(void)
{
    return hash_bytes(SUROGATE_VERSION, strlen(SUROGATE_VERSION), 0);
}

static Status run_alone(const Config *config, const TrainHooks *hooks, TrainOutcome *out)
{
    return trainer_run(config, hooks, NULL, (RankPlace){.world = 1, .num_local = 1, .is_first_here = true}, out);
}

/* Ranks are numbered process by process. */
static Status meet(const Config *config, Comm **out)
{
    char        host[256], *secret;
    const char *colon = strrchr(config->rendezvous, ':');
    long        port = colon ? strtol(colon + 1, NULL, 10) : 0;
    if (!colon || colon == config->rendezvous || port < 1 || port > 65535)
        return config_at(config->origin, KEY_run_rendezvous,
                         status_fail(ERR_INVALID, "rendezvous %s; expected host:port", config->rendezvous));
    FAIL_IF(config->rank >= config->world_size, ERR_INVALID, "rank %lld of world_size %lld; expected 0 to %lld", (long long)config->rank,
            (long long)config->world_size, (long long)config->world_size - 1);
    snprintf(host, sizeof host, "%.*s", (int)(colon - config->rendezvous), config->rendezvous);
    TRY(config_at(config->origin, KEY_run_rendezvous_secret, comm_secret_read(config->rendezvous_secret, &secret)));
    CommLimits  limits = {.progress = config->comm_timeout};
    CommMeeting meeting = {.host = host,
                           .port = (int)port,
                           .rank = (int)(config->rank * config->gpus),
                           .world_size = (int)(config->world_size * config->gpus),
                           .secret = secret,
                           .agreed = program_hash(),
                           .timeout = config->comm_timeout};
    Status      status = comm_meet_several(&meeting, &limits, (int)config->gpus, out);
    free(secret);
    return status;
}

/* mpirun says how many processes there are and which this one is, so that the run file needn't. */
static Status run_under_mpi(const Config *given, const TrainHooks *hooks, TrainOutcome *out)
{
    Comm      *comm;
    CommLimits limits = {.progress = given->comm_timeout};
    TRY(comm_mpi_create(NULL, program_hash(), &limits, 1, &comm));
    Config config = *given;
    config.world_size = comm_size(comm);
    config.rank = comm_rank(comm);
    if (comm_size(comm) > 1) return run_here(&config, hooks, &comm, out);
    comm_destroy(comm);
    return run_alone(given, hooks, out);
}

Status train_run(const Config *config, const TrainHooks *hooks, TrainOutcome *out)
{
    bool       is_alone = config->world_size == 1;
    CommLimits limits = {.progress = config->comm_timeout};
    FAIL_IF(config->gpus > 1 && comm_mpi_started(), ERR_INVALID,
            "gpus: %lld under mpirun: ranks are threads of one process or processes of one rank each; start mpirun -n %lld without gpus",
            (long long)config->gpus, (long long)config->gpus);
    FAIL_IF(config->gpus * config->world_size > COMM_MOST_RANKS, ERR_INVALID, "gpus: %lld with world_size: %lld: at most %d ranks",
            (long long)config->gpus, (long long)config->world_size, COMM_MOST_RANKS);
    if (is_alone && comm_mpi_started()) return run_under_mpi(config, hooks, out);
    if (is_alone && config->gpus == 1) return run_alone(config, hooks, out);
    Comm **comms = calloc((size_t)config->gpus, sizeof *comms);
    if (!comms) fatal_out_of_memory((size_t)config->gpus * sizeof *comms);
    Status status = is_alone ? comm_threads_create((int)config->gpus, &limits, comms) : meet(config, comms);
    if (status == OK) status = run_here(config, hooks, comms, out);
    free(comms);
    return status;
}
