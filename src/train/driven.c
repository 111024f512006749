/* See driven.h: the ranks of a run, which all do what the caller asks for. */
#include "train/document_numbers.h"
#include "train/driven_rank.h"

#include "base/c_locale.h"
#include "base/log.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Member {
    Driven     *driven;
    DrivenRank *rank;
    Comm       *comm; /* NULL: there is one rank */
    RankPlace   place;
    pthread_t   thread; /* but of rank 0, which the caller's is */
    bool        is_started;
    Status      status; /* of the last work */
    char        message[STATUS_MESSAGE_BYTES];
} Member;

typedef Status (*MemberWork)(Member *member, void *context);

struct Driven {
    const Config *config;
    int           world;
    Member       *members;
    /* What all are to do, guarded by `lock`. */
    pthread_mutex_t lock;
    pthread_cond_t  changed;
    MemberWork      work;
    void           *context;
    const char     *phase; /* of work that may take long; NULL: it doesn't */
    int64_t         round;
    int             num_busy;
    bool            ends;
    DocumentNumbers numbers; /* of the step that micro-batches are taken for */
    int32_t        *draws;   /* (draws_size): of one micro-batch */
    int64_t         draws_size;
};

/* ---- all ranks ---- */

/* A device that fails leaves others waiting in its collectives: that ends all. Other failures are told behind the work, and ranks that
 * still wait for this one then see that its call is another. */
static void work_as(Member *m)
{
    const Driven *d = m->driven;
    Keeper       *keeper = NULL;
    Status        status = d->phase ? keeper_start(m->comm, &keeper) : OK;
    if (d->phase) keeper_phase(keeper, d->phase, INFINITY);
    if (status == OK) status = d->work(m, d->context);
    if (status == ERR_DEVICE || status == ERR_INTERNAL)
        comm_abort(m->comm, status, status_message());
    else
        status = comm_agree(m->comm, status);
    keeper_stop(keeper);
    m->status = status;
    snprintf(m->message, sizeof m->message, "%s", status == OK ? "" : status_message());
}

static void *member_main(void *context)
{
    Member *m = context;
    Driven *d = m->driven;
    int64_t done = 0;
    log_mute(true); /* rank 0 speaks for all */
    pthread_mutex_lock(&d->lock);
    while (true) {
        while (d->round == done && !d->ends) pthread_cond_wait(&d->changed, &d->lock);
        if (d->round == done) break;
        done = d->round;
        pthread_mutex_unlock(&d->lock);
        work_as(m);
        pthread_mutex_lock(&d->lock);
        d->num_busy--;
        pthread_cond_broadcast(&d->changed);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

/* The failure of the rank that failed by itself, if any did. */
static Status first_failure(const Driven *d)
{
    const Member *found = NULL;
    for (int r = 0; r < d->world; r++) {
        const Member *m = &d->members[r];
        if (m->status != OK && (!found || (found->status == ERR_RANK && m->status != ERR_RANK))) found = m;
    }
    if (!found) return OK;
    FAIL_IF(found->status == ERR_RANK, ERR_RANK, "%s; open another trainer", found->message);
    FAIL(found->status, "%s", found->message);
}

/* phase: of work that may take longer than ranks wait for one another; NULL: it doesn't. */
static Status on_all(Driven *d, MemberWork work, void *context, const char *phase)
{
    if (d->world == 1) return work(&d->members[0], context);
    for (int r = 0; r < d->world; r++) comm_beat(d->members[r].comm, "driven"); /* nobody was waited for until here */
    pthread_mutex_lock(&d->lock);
    d->work = work;
    d->context = context;
    d->phase = phase;
    d->round++;
    d->num_busy = d->world - 1;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
    work_as(&d->members[0]);
    pthread_mutex_lock(&d->lock);
    while (d->num_busy) pthread_cond_wait(&d->changed, &d->lock);
    pthread_mutex_unlock(&d->lock);
    return first_failure(d);
}

static DrivenRank *first_of(const Driven *d)
{
    return d->members[0].rank;
}

/* ---- open and close ---- */

static Status open_member(Member *m, void *context)
{
    (void)context;
    return driven_rank_open(m->driven->config, m->comm, m->place, &m->rank);
}

static Status close_member(Member *m, void *context)
{
    (void)context;
    driven_rank_close(m->rank);
    m->rank = NULL;
    return OK;
}

static Status start_threads(Driven *d)
{
    CommLimits limits = {.progress = d->config->comm_timeout};
    Comm     **comms = calloc((size_t)d->world, sizeof *comms);
    if (!comms) fatal_out_of_memory((size_t)d->world * sizeof *comms);
    Status status = comm_threads_create(d->world, &limits, comms);
    for (int r = 0; r < d->world && status == OK; r++) d->members[r].comm = comms[r];
    free(comms);
    TRY(status);
    device_prepare_ranks(true);
    for (int r = 1; r < d->world; r++) {
        Member *m = &d->members[r];
        int     error = c_locale_thread(&m->thread, member_main, m);
        m->is_started = error == 0;
        FAIL_IF(error, ERR_IO, "cannot start the thread of rank %d of %d: %s", r, d->world, strerror(error));
    }
    return OK;
}

static Status open_all(Driven *d)
{
    FAIL_IF(d->config->world_size > 1, ERR_UNSUPPORTED,
            "steps driven from outside are of one process: leave world_size out; gpus are the ranks that it has");
    FAIL_IF(d->world > COMM_MOST_RANKS, ERR_INVALID, "gpus: %d: at most %d ranks", d->world, COMM_MOST_RANKS);
    if (d->world > 1) TRY(start_threads(d));
    return on_all(d, open_member, NULL, "opening");
}

Status driven_open(const Config *config, Driven **out)
{
    Driven *d = calloc(1, sizeof *d);
    if (!d) fatal_out_of_memory(sizeof *d);
    d->config = config;
    d->world = (int)config->gpus;
    d->members = calloc((size_t)d->world, sizeof *d->members);
    if (!d->members) fatal_out_of_memory((size_t)d->world * sizeof *d->members);
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->changed, NULL);
    for (int r = 0; r < d->world; r++)
        d->members[r] =
            (Member){.driven = d, .place = {.rank = r, .world = d->world, .local = r, .num_local = d->world, .is_first_here = r == 0}};
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
    bool all_run = true;
    for (int r = 1; r < d->world; r++) all_run &= d->members[r].is_started;
    Status told = all_run ? on_all(d, close_member, NULL, NULL) : OK; /* else nothing was opened */
    (void)told;
    pthread_mutex_lock(&d->lock);
    d->ends = true;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
    for (int r = 1; r < d->world; r++)
        if (d->members[r].is_started) pthread_join(d->members[r].thread, NULL);
    for (int r = 0; r < d->world; r++) comm_destroy(d->members[r].comm);
    pthread_cond_destroy(&d->changed);
    pthread_mutex_destroy(&d->lock);
    document_numbers_deinit(&d->numbers);
    free(d->draws);
    free(d->members);
    free(d);
}

/* ---- steps ---- */

/* The number of each token's document for draws. first_row: of the step, which is a document's where the caller has no numbers. */
static void number_documents(Driven *d, const DrivenBatch *in, int64_t first_row)
{
    for (int64_t r = 0; r < in->rows; r++) {
        int32_t number = -1;
        for (int64_t c = 0, i = r * in->cols; c < in->cols; c++, i++) {
            int32_t own = in->documents ? in->documents[i] : (int32_t)(first_row + r);
            if (own < 0)
                number = -1;
            else if (number < 0 || driven_begins(in, i))
                number = in->of_data_set ? own : document_numbers_take(&d->numbers, own);
            d->draws[i] = number;
        }
    }
}

static Status make_draws(Driven *d, const DrivenBatch *in)
{
    int64_t taken = first_of(d)->num_taken, count = in->rows * in->cols;
    if (d->draws_size < count) {
        free(d->draws);
        d->draws = malloc((size_t)count * sizeof *d->draws);
        d->draws_size = d->draws ? count : 0;
        if (!d->draws) fatal_out_of_memory((size_t)count * sizeof *d->draws);
    }
    if (!taken) document_numbers_clear(&d->numbers);
    number_documents(d, in, taken * driven_rank_rows(first_of(d)) * d->world);
    return OK;
}

/* In the caller's thread: devices aren't touched. */
Status driven_step(Driven *d, const DrivenBatch *in)
{
    int64_t trained = first_of(d)->num_trained;
    TRY(driven_rank_check(first_of(d), in));
    TRY(make_draws(d, in));
    for (int r = 0; r < d->world; r++) TRY(driven_rank_step(d->members[r].rank, in, d->draws, &trained));
    for (int r = 0; r < d->world; r++) {
        d->members[r].rank->num_taken++;
        d->members[r].rank->num_trained = trained;
    }
    return OK;
}

Status driven_drop(Driven *d)
{
    for (int r = 0; r < d->world; r++) TRY(driven_rank_drop(d->members[r].rank));
    return OK;
}

static Status backward_member(Member *m, void *context)
{
    (void)context;
    return driven_rank_backward(m->rank);
}

Status driven_backward(Driven *d)
{
    return on_all(d, backward_member, NULL, NULL);
}

static Status update_member(Member *m, void *context)
{
    return driven_rank_update(m->rank, *(const double *)context);
}

Status driven_update(Driven *d, double lr)
{
    return on_all(d, update_member, &lr, NULL);
}

static Status result_member(Member *m, void *context)
{
    StepMetrics other;
    return driven_rank_result(m->rank, m->place.rank ? &other : context);
}

Status driven_result(Driven *d, StepMetrics *out)
{
    return on_all(d, result_member, out, NULL);
}

Status driven_lr(const Driven *d, double *out)
{
    return driven_rank_lr(first_of(d), out);
}

int64_t driven_steps(const Driven *d)
{
    return driven_rank_steps(first_of(d));
}

/* ---- between steps ---- */

typedef struct RowsJob {
    const DrivenBatch *in;
    float             *out;
    size_t             numel;
} RowsJob;

static Status losses_member(Member *m, void *context)
{
    const RowsJob *job = context;
    return driven_rank_losses(m->rank, job->in, job->out);
}

Status driven_losses(Driven *d, const DrivenBatch *in, float *losses)
{
    return on_all(d, losses_member, &(RowsJob){.in = in, .out = losses}, "evaluating");
}

static Status logits_member(Member *m, void *context)
{
    const RowsJob *job = context;
    return driven_rank_logits(m->rank, job->in, job->out, job->numel);
}

Status driven_logits(Driven *d, const DrivenBatch *in, float *logits, size_t numel)
{
    return on_all(d, logits_member, &(RowsJob){in, logits, numel}, "evaluating");
}

bool driven_has_scales(const Driven *d)
{
    return driven_rank_has_scales(first_of(d));
}

typedef struct SessionJob {
    Status (*work)(void *context, Session *session, int rank);
    void *context;
} SessionJob;

static Status session_member(Member *m, void *context)
{
    const SessionJob *job = context;
    Session          *session;
    TRY(driven_rank_settle(m->rank, &session));
    TRY(stepper_gather(&m->rank->trainer->stepper));
    return job->work(job->context, session, m->place.rank);
}

Status driven_with_sessions(Driven *d, Status (*work)(void *context, Session *session, int rank), void *context)
{
    return on_all(d, session_member, &(SessionJob){work, context}, "generating");
}

static Status tensors_member(Member *m, void *context)
{
    (void)context;
    return driven_rank_tensors(m->rank);
}

Status driven_tensors(Driven *d, const WeightList **out)
{
    TRY(on_all(d, tensors_member, NULL, NULL));
    *out = first_of(d)->tensors;
    return OK;
}

typedef struct ReadJob {
    size_t  index;
    bool    gradient;
    float  *values;
    int64_t numel;
} ReadJob;

static Status read_member(Member *m, void *context)
{
    const ReadJob *job = context;
    return driven_rank_read(m->rank, job->index, job->gradient, job->values, job->numel);
}

Status driven_read(Driven *d, size_t index, bool gradient, float *values, int64_t numel)
{
    return on_all(d, read_member, &(ReadJob){index, gradient, values, numel}, NULL);
}

/* ---- files ---- */

static Status save_member(Member *m, void *context)
{
    return driven_rank_save(m->rank, context);
}

Status driven_save(Driven *d, const char *dir)
{
    return on_all(d, save_member, (void *)dir, "saving");
}

static Status load_member(Member *m, void *context)
{
    return driven_rank_load(m->rank, context);
}

Status driven_load(Driven *d, const char *path)
{
    return on_all(d, load_member, (void *)path, "loading");
}

typedef struct ExportJob {
    const char *dir;
    bool        whole;
} ExportJob;

static Status export_member(Member *m, void *context)
{
    const ExportJob *job = context;
    return driven_rank_export(m->rank, job->dir, job->whole);
}

Status driven_export(Driven *d, const char *dir, bool whole)
{
    return on_all(d, export_member, &(ExportJob){dir, whole}, "saving");
}

/* ---- what it is ---- */

const Plan *driven_plan(const Driven *d)
{
    return first_of(d)->trainer->plan;
}

const Config *driven_config(const Driven *d)
{
    return first_of(d)->trainer->config;
}

const Tokenizer *driven_tokenizer(const Driven *d)
{
    return first_of(d)->trainer->tokenizer;
}

int64_t driven_input_size(const Driven *d, const char *name)
{
    const IrModule *module = first_of(d)->trainer->model->module;
    for (int i = 0; i < module->num_inputs; i++)
        if (strcmp(module->inputs[i].name, name) == 0) return module->inputs[i].size;
    return 0;
}

int64_t driven_vocab_size(const Driven *d)
{
    return first_of(d)->trainer->model->vocab_size;
}
