/* The ranks of a run: threads of this process, or this process among others. */
#define _GNU_SOURCE
#include "train/trainer_internal.h"

#include "base/log.h"
#include "files/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct TrainJob {
    const Config     *config;
    const TrainHooks *hooks;
    TrainOutcome     *out; /* of rank 0 */
} TrainJob;

static Status train_rank(void *context, Comm *comm, RankPlace place)
{
    const TrainJob *job = context;
    TrainOutcome    other;
    return trainer_run(job->config, job->hooks, comm, place, place.rank ? &other : job->out);
}

static Status run_threads(const Config *config, const TrainHooks *hooks, TrainOutcome *out)
{
    TrainJob job = {config, hooks, out};
    return rank_threads_run(config, train_rank, &job);
}

/* ---- processes ---- */

/* This rank's place among those of its host. Where the launcher shows each process a GPU of its own, that is its first. */
static Status find_place(Comm *comm, RankPlace *out)
{
    enum { NAME_BYTES = 256 };
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    int         rank = comm_rank(comm), world = comm_size(comm);
    char        own[NAME_BYTES] = "", *all = calloc((size_t)world, NAME_BYTES);
    if (!all) fatal_out_of_memory((size_t)world * NAME_BYTES);
    gethostname(own, sizeof own - 1);
    Status status = comm_all_gather(comm, own, all, sizeof own);
    *out = (RankPlace){.rank = rank, .world = world, .is_first_here = true};
    for (int r = 0; r < world && status == OK; r++) {
        bool is_here = strcmp(all + (size_t)r * NAME_BYTES, own) == 0;
        out->num_local += is_here;
        out->local += is_here && r < rank;
    }
    if (visible && *visible && !strchr(visible, ',')) out->local = 0;
    free(all);
    return status;
}

static Status run_process(const Config *config, const TrainHooks *hooks, Comm *comm, TrainOutcome *out)
{
    RankPlace place;
    Status    status = find_place(comm, &place);
    log_mute(place.rank > 0); /* rank 0 speaks for all */
    if (status == OK) status = trainer_run(config, hooks, comm, place, out);
    log_mute(false);
    comm_destroy(comm);
    return status;
}

/* Ranks of different programs don't meet. */
static Status program_hash(uint64_t *out)
{
    return file_hash("/proc/self/exe", out);
}

static Status run_alone(const Config *config, const TrainHooks *hooks, TrainOutcome *out)
{
    return trainer_run(config, hooks, NULL, RANK_ALONE, out);
}

static Status meet(const Config *config, Comm **out)
{
    char        host[256], *secret;
    const char *colon = strrchr(config->rendezvous, ':');
    char       *end = NULL;
    long        port = colon ? strtol(colon + 1, &end, 10) : 0;
    uint64_t    program;
    if (!colon || colon == config->rendezvous || *end || port < 1 || port > 65535)
        return config_at(config->origin, KEY_run_rendezvous,
                         status_fail(ERR_INVALID, "rendezvous %s; expected host:port", config->rendezvous));
    snprintf(host, sizeof host, "%.*s", (int)(colon - config->rendezvous), config->rendezvous);
    TRY(config_at(config->origin, KEY_run_rendezvous_secret, comm_secret_read(config->rendezvous_secret, &secret)));
    TRY(program_hash(&program));
    if (config->rank == 0) log_info("rank 0 of %lld waits for the others at %s", (long long)config->world_size, config->rendezvous);
    CommLimits  limits = {.progress = config->comm_timeout};
    CommMeeting meeting = {.host = host,
                           .port = (int)port,
                           .rank = (int)config->rank,
                           .world_size = (int)config->world_size,
                           .secret = secret,
                           .agreed = program,
                           .timeout = config->comm_timeout};
    Status      status = comm_meet(&meeting, &limits, out);
    free(secret);
    return status;
}

/* mpirun says how many processes there are and which this one is, so that the run file needn't. */
static Status run_under_mpi(const Config *given, const TrainHooks *hooks, TrainOutcome *out)
{
    Comm      *comm;
    uint64_t   program;
    CommLimits limits = {.progress = given->comm_timeout};
    TRY(program_hash(&program));
    TRY(comm_mpi_create(NULL, program, &limits, 1, &comm));
    Config config = *given;
    config.world_size = comm_size(comm);
    config.rank = comm_rank(comm);
    if (comm_size(comm) > 1) return run_process(&config, hooks, comm, out);
    comm_destroy(comm);
    return run_alone(given, hooks, out);
}

Status train_run(const Config *config, const TrainHooks *hooks, TrainOutcome *out)
{
    Comm *comm;
    FAIL_IF(config->gpus > 1 && config->world_size > 1, ERR_INVALID,
            "gpus: %lld with world_size: %lld: ranks are threads of one process or processes of one rank each; leave one of them out",
            (long long)config->gpus, (long long)config->world_size);
    FAIL_IF(config->rank >= config->world_size, ERR_INVALID, "rank %lld of world_size %lld; expected 0 to %lld", (long long)config->rank,
            (long long)config->world_size, (long long)config->world_size - 1);
    FAIL_IF(config->gpus > 1 && comm_mpi_started(), ERR_INVALID,
            "gpus: %lld under mpirun: ranks are threads of one process or processes of one rank each; start mpirun -n %lld without gpus",
            (long long)config->gpus, (long long)config->gpus);
    if (config->gpus > 1) return run_threads(config, hooks, out);
    if (config->world_size == 1) return comm_mpi_started() ? run_under_mpi(config, hooks, out) : run_alone(config, hooks, out);
    TRY(meet(config, &comm));
    return run_process(config, hooks, comm, out);
}
