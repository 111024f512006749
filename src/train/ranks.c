/* The ranks of a run: threads of this process, or of several processes. */
#define _GNU_SOURCE
#include "train/trainer_internal.h"

#include "base/log.h"
#include "config/options.h"
#include "files/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct TrainJob {
    const Config     *config;
    const TrainHooks *hooks;
    TrainOutcome     *out; /* filled in by the first rank of this process */
} TrainJob;

static Status train_rank(void *context, Comm *comm, RankPlace place)
{
    const TrainJob *job = context;
    TrainOutcome    other;
    return trainer_run(job->config, job->hooks, comm, place, place.is_first_here ? job->out : &other);
}

/* ---- processes ---- */

/* Hash of this program: ranks of different programs refuse to meet. */
static Status program_hash(uint64_t *out)
{
    return file_hash("/proc/self/exe", out);
}

/* Meets the ranks of other processes at `rendezvous`. Ranks are numbered process by process. */
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
    TRY(program_hash(&program));
    TRY(config_at(config->origin, KEY_run_rendezvous_secret, comm_secret_read(config->rendezvous_secret, &secret)));
    if (config->rank == 0)
        log_info("rank 0 of %lld waits for the others at %s", (long long)(config->world_size * config->gpus), config->rendezvous);
    CommLimits  limits = {.progress = config->comm_timeout};
    CommMeeting meeting = {.host = host,
                           .port = (int)port,
                           .rank = (int)(config->rank * config->gpus),
                           .world_size = (int)(config->world_size * config->gpus),
                           .secret = secret,
                           .agreed = program,
                           .timeout = config->comm_timeout};
    Status      status = comm_meet_several(&meeting, &limits, (int)config->gpus, out);
    free(secret);
    return status;
}

/* Trains under mpirun, which says how many processes there are and which one this is, so the run file needn't. */
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
    if (comm_size(comm) > 1) return rank_threads_run(&comm, 1, train_rank, &(TrainJob){&config, hooks, out});
    comm_destroy(comm);
    return trainer_run(given, hooks, NULL, RANK_ALONE, out);
}

/* Warns of a key for several processes or machines that the user set although only one process trains. */
static void warn_of_several(const Config *config, ConfigKey key, const char *why)
{
    const OptionInfo *option = &options[key];
    if (config->origin[key] && option_is_on(option, (const char *)config + option->offset))
        log_warn("%s: %s: no effect %s", config->origin[key], option->name, why);
}

/* Warns of keys without effect. If world_size is given, as Ray gives it to each node, several processes train and nothing is warned of. */
static void warn_of_idle_keys(const Config *config)
{
    if (config->origin[KEY_run_world_size]) return;
    for (int key = DISTRIBUTED_FIRST; key <= DISTRIBUTED_LAST; key++)
        warn_of_several(config, (ConfigKey)key, "without ray_address or --ray: only this machine trains");
    const char *why = comm_mpi_started() ? "under mpirun, by which the processes meet" : "without world_size: this process trains alone";
    warn_of_several(config, KEY_run_rendezvous, why);
    warn_of_several(config, KEY_run_rendezvous_secret, why);
}

Status train_run(const Config *config, const TrainHooks *hooks, TrainOutcome *out)
{
    bool     is_alone = config->world_size == 1;
    TrainJob job = {config, hooks, out};
    FAIL_IF(config->ray_address, ERR_INVALID,
            "ray_address: a run on Ray's nodes is started by the commands pt and sft, or by surogate.ray");
    FAIL_IF(config->rank >= config->world_size, ERR_INVALID, "rank %lld of world_size %lld; expected 0 to %lld", (long long)config->rank,
            (long long)config->world_size, (long long)config->world_size - 1);
    FAIL_IF(config->gpus > 1 && comm_mpi_started(), ERR_INVALID,
            "gpus: %lld under mpirun: ranks are threads of one process or processes of one rank each; start mpirun -n %lld without gpus",
            (long long)config->gpus, (long long)config->gpus);
    FAIL_IF(config->gpus * config->world_size > COMM_MOST_RANKS, ERR_INVALID, "gpus: %lld with world_size: %lld: at most %d ranks",
            (long long)config->gpus, (long long)config->world_size, COMM_MOST_RANKS);
    warn_of_idle_keys(config);
    if (is_alone && comm_mpi_started()) return run_under_mpi(config, hooks, out);
    if (is_alone) return rank_threads_alone(config, train_rank, &job);
    Comm **comms = calloc_or_end((size_t)config->gpus, sizeof *comms);
    Status status = meet(config, comms);
    if (status == OK) status = rank_threads_run(comms, (int)config->gpus, train_rank, &job);
    free(comms);
    return status;
}
