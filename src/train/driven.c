/* See driven.h: opening, and steps. Micro-batches wait on the host until the step is complete: the loss is divided by the step's trained
 * tokens, which must be known before the first backward pass. */
#include "train/driven_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- all ranks ---- */

typedef struct DrivenCall {
    Driven     *driven;
    DrivenWork  work;
    void       *job;
    const char *phase;
} DrivenCall;

/* Does one rank's work of a call. A device failure leaves other ranks waiting in its collectives, so it ends all ranks. Other failures are
 * reported when the work is done; a rank that still waits in a collective of the work then fails, as this rank calls another collective
 * (comm_agree). */
static Status work_as(void *context, Comm *comm, RankPlace place)
{
    const DrivenCall *call = context;
    DrivenRank       *rank = &call->driven->ranks[place.rank];
    Keeper           *keeper = NULL;
    if (!rank->trainer) rank->trainer = trainer_create(call->driven->config, NULL, comm, place);
    Status status = call->phase ? keeper_start(comm, &keeper) : OK;
    keeper_phase(keeper, call->phase, INFINITY);
    if (status == OK) status = call->work(rank, call->job);
    if (status == ERR_DEVICE || status == ERR_INTERNAL)
        comm_abort(comm, status, status_message());
    else
        status = comm_agree(comm, status);
    keeper_stop(keeper);
    return status;
}

Status driven_run(Driven *d, DrivenWork work, void *job, const char *phase)
{
    Status status = rank_team_run(d->team, work_as, &(DrivenCall){d, work, job, phase}, NULL);
    FAIL_IF(status == ERR_RANK, ERR_RANK, "%s; open another trainer", status_message());
    return status;
}

Trainer *driven_trainer(const Driven *d)
{
    return d->ranks[0].trainer;
}

/* ---- open and close ---- */

Status driven_start_session(DrivenRank *rank)
{
    Trainer *t = rank->trainer;
    TRY(trainer_agree(t, trainer_start_session(t)));
    return stepper_gather(&t->stepper);
}

static Status open_rank(DrivenRank *rank, void *job)
{
    Trainer *t = rank->trainer;
    int64_t  began;
    (void)job;
    t->is_driven = true;
    TRY(trainer_open(t));
    TRY(trainer_agree(t, run_data_began(t->run_file, &began)));
    run_record_make(t->run_file, t->model, t->place.world, began, &t->record);
    t->keep = t->config->save_total_limit;
    t->branch = INT64_MAX; /* until a checkpoint is saved or loaded, none is set aside */
    rank->taken = arena_array(&t->arena, Feeds, t->config->gradient_accumulation_steps);
    return driven_start_session(rank);
}

static Status close_rank(DrivenRank *rank, void *job)
{
    (void)job;
    weight_list_destroy(rank->tensors);
    trainer_destroy(rank->trainer);
    return OK;
}

static Status open_all(Driven *d)
{
    CommLimits limits = {.progress = d->config->comm_timeout};
    FAIL_IF(d->config->world_size > 1, ERR_UNSUPPORTED,
            "steps driven from outside are of one process: leave world_size out; gpus are the ranks that it has");
    FAIL_IF(d->world > COMM_MOST_RANKS, ERR_INVALID, "gpus: %d: at most %d ranks", d->world, COMM_MOST_RANKS);
    TRY(rank_team_create(d->world, &limits, &d->team));
    return driven_run(d, open_rank, NULL, "opening");
}

Status driven_open(const Config *config, Driven **out)
{
    Driven *d = calloc_or_end(1, sizeof *d);
    d->config = config;
    d->world = (int)config->gpus;
    d->ranks = calloc_or_end((size_t)d->world, sizeof *d->ranks);
    for (int r = 0; r < d->world; r++) d->ranks[r].driven = d;
    Status status = open_all(d);
    if (status == OK)
        *out = d;
    else
        driven_close(d);
    return status;
}

void driven_close(Driven *d)
{
    if (!d) return;
    Status told = d->team ? driven_run(d, close_rank, NULL, NULL) : OK; /* without a team nothing was opened */
    (void)told;
    rank_team_destroy(d->team);
    document_numbers_deinit(&d->numbers);
    free(d->draws);
    free(d->ranks);
    free(d);
}

/* ---- steps ---- */

Status driven_refuse_broken(const Driven *d)
{
    FAIL_IF(d->is_broken, ERR_DEVICE, "an earlier step or load of this trainer failed; load a checkpoint, or open another trainer");
    return OK;
}

Status driven_drop(Driven *d)
{
    FAIL_IF(d->is_summed, ERR_INVALID, "this step's gradients are made; update, or load a checkpoint");
    d->num_taken = d->num_trained = 0;
    return OK;
}

/* If scales are needed, measures them on the micro-batches of the first step. */
static Status calibrate(DrivenRank *rank)
{
    const Driven *d = rank->driven;
    Trainer      *t = rank->trainer;
    if (!stepper_must_measure(&t->stepper)) return OK;
    for (int64_t i = 0; i < d->num_taken; i++)
        TRY(stepper_measure(&t->stepper, trainer_next_step(t), (double)d->num_trained, &rank->taken[i]));
    return stepper_measured(&t->stepper);
}

/* Queues the gradients of the micro-batches taken, unless they are queued already. */
static Status sum_gradients(DrivenRank *rank, void *job)
{
    const Driven *d = rank->driven;
    Trainer      *t = rank->trainer;
    (void)job;
    if (d->is_summed) return OK;
    TRY(calibrate(rank));
    TRY(trainer_begin_step(t, d->num_taken, d->num_trained, 0));
    for (int64_t i = 0; i < d->num_taken; i++) TRY(trainer_queue_micro(t, &rank->taken[i]));
    return OK;
}

static Status check_taken(const Driven *d)
{
    TRY(driven_refuse_broken(d));
    FAIL_IF(d->num_taken == 0, ERR_INVALID, "there is no micro-batch to make gradients of; call step first");
    if (d->is_summed) return OK;
    FAIL_IF(d->num_trained == 0, ERR_INVALID, "the step has no trained target: all are %d", LABEL_IGNORE);
    FAIL_IF(driven_trainer(d)->num_queued + d->num_results == MOST_WAITING, ERR_INVALID, "%d steps wait for their result to be asked for",
            MOST_WAITING);
    return OK;
}

Status driven_backward(Driven *d)
{
    TRY(check_taken(d));
    if (d->is_summed) return OK;
    Status status = driven_run(d, sum_gradients, NULL, NULL);
    d->is_broken = status != OK;
    d->is_summed = d->has_gradients = status == OK;
    return status;
}

static Status update(DrivenRank *rank, void *job)
{
    const double *lr = job;
    TRY(sum_gradients(rank, NULL));
    return trainer_queue_update(rank->trainer, *lr);
}

Status driven_update(Driven *d, double lr)
{
    FAIL_IF(!(lr >= 0 && lr <= 1e6), ERR_INVALID, "learning rate %g; expected a number from 0 on", lr);
    TRY(check_taken(d));
    Status status = driven_run(d, update, &lr, NULL);
    d->is_broken = status != OK;
    d->has_gradients |= status == OK;
    d->num_taken = d->num_trained = 0;
    d->is_summed = false;
    return status;
}

static Status await_step(DrivenRank *rank, void *job)
{
    StepMetrics other;
    return trainer_await_step(rank->trainer, trainer_leads(rank->trainer) ? job : &other);
}

static Status await_one(Driven *d, const char *phase)
{
    Status status = driven_run(d, await_step, &d->results[d->num_results], phase);
    d->is_broken |= status != OK;
    d->num_results += status == OK;
    return status;
}

Status driven_settle(Driven *d, const char *phase)
{
    TRY(driven_refuse_broken(d));
    while (driven_trainer(d)->num_queued) TRY(await_one(d, phase));
    return OK;
}

Status driven_result(Driven *d, StepMetrics *out)
{
    TRY(driven_refuse_broken(d));
    FAIL_IF(driven_trainer(d)->num_queued + d->num_results == 0, ERR_INVALID, "no step waits for its result to be asked for; update first");
    if (d->num_results == 0) TRY(await_one(d, NULL));
    *out = d->results[0];
    memmove(d->results, d->results + 1, (size_t)--d->num_results * sizeof *d->results);
    return OK;
}

Status driven_lr(const Driven *d, double *out)
{
    const Schedule *schedule = &driven_trainer(d)->schedule;
    int64_t         next = driven_steps(d);
    FAIL_IF(!schedule->total, ERR_INVALID, "the learning rate follows from max_steps, which isn't set: set it, or give a rate");
    FAIL_IF(next >= schedule->total, ERR_INVALID, "step %lld is behind max_steps: give a rate, or raise it", (long long)next + 1);
    *out = schedule_lr(schedule, next);
    return OK;
}

int64_t driven_steps(const Driven *d)
{
    return trainer_next_step(driven_trainer(d));
}

/* ---- between steps ---- */

typedef struct SessionJob {
    Status (*work)(void *context, Session *session, int rank);
    void *context;
} SessionJob;

static Status use_session(DrivenRank *rank, void *job)
{
    const SessionJob *call = job;
    TRY(stepper_gather(&rank->trainer->stepper));
    return call->work(call->context, rank->trainer->session, rank->trainer->place.rank);
}

Status driven_with_sessions(Driven *d, Status (*work)(void *context, Session *session, int rank), void *context)
{
    TRY(driven_settle(d, "generating"));
    return driven_run(d, use_session, &(SessionJob){work, context}, "generating");
}

/* ---- its parts ---- */

bool driven_has_scales(const Driven *d)
{
    return !stepper_must_measure(&driven_trainer(d)->stepper);
}

const Plan *driven_plan(const Driven *d)
{
    return driven_trainer(d)->plan;
}

const Config *driven_config(const Driven *d)
{
    return driven_trainer(d)->config;
}

const Tokenizer *driven_tokenizer(const Driven *d)
{
    return driven_trainer(d)->tokenizer;
}

int64_t driven_input_size(const Driven *d, const char *name)
{
    const IrModule *module = driven_trainer(d)->model->module;
    for (int i = 0; i < module->num_inputs; i++)
        if (strcmp(module->inputs[i].name, name) == 0) return module->inputs[i].size;
    return 0;
}

int64_t driven_vocab_size(const Driven *d)
{
    return driven_trainer(d)->model->vocab_size;
}
