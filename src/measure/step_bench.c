/* See step_bench.h. */
#include "measure/step_bench.h"

#include "measure/random_weights.h"
#include "base/clock.h"
#include "base/philox.h"
#include "comm/comm.h"
#include "comm/keeper.h"
#include "fit/fit.h"
#include "measure/fp8_bound.h"
#include "ops/ops.h"
#include "run/stepper.h"
#include "setup/rank_threads.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct StepBench {
    Config         config;
    Comm          *comm; /* NULL: one rank */
    RankPlace      place;
    Arena          arena;
    HfModel       *model;
    CompileOptions options;
    Device        *device;
    Plan          *plan;
    Session       *session;
    Keeper        *keeper;  /* NULL: one rank */
    double         allowed; /* allowed seconds for a step; INFINITY before the first step */
    Stepper        stepper;
    Feeds          batch;
    int64_t        trained;        /* labels in a micro-batch */
    double         document_share; /* query-key pairs within documents, divided by the pairs if each row were one document */
    int64_t        step;
    double         create_seconds;
};

/* The length of document n: lognormal with median 300, where the logarithm has deviation 1. At least 2, at most `most`. */
static int64_t document_len(uint32_t n, int64_t most)
{
    Philox4 draw = philox4x32(n, 0, 0, 0, 5);
    double  u = ((double)draw.v[0] + 0.5) / 4294967296.0, phase = (double)draw.v[1] / 4294967296.0;
    double  len = exp(log(300) + sqrt(-2 * log(u)) * cos(6.283185307179586 * phase));
    return len < 2 ? 2 : len > (double)most ? most : (int64_t)len;
}

static const Program *micro_program(const StepBench *b, int64_t micro)
{
    return plan_micro(b->plan, micro, b->config.gradient_accumulation_steps);
}

/* The ProgramSpec of the first micro-step. */
static const ProgramSpec *micro_spec(const StepBench *b)
{
    return &micro_program(b, 0)->spec;
}

static void make_batch(StepBench *b)
{
    int64_t  seq = micro_spec(b)->seq, count = micro_spec(b)->batch * seq;
    Feeds   *feeds = &b->batch;
    int32_t  document = 0;
    uint32_t vocab = (uint32_t)b->model->vocab_size;
    double   pairs = 0;
    feeds_init(feeds, arena_array(&b->arena, int32_t, feeds_numel(count, NULL, 0)), count, NULL, 0);
    b->trained = count;
    for (int64_t i = 0, begin = 0, len = 0; i < count; i++) {
        int64_t t = i % seq;
        if (t == 0 || t - begin == len) {
            begin = t;
            len = b->options.dense ? seq : document_len((uint32_t)document, seq);
            document++;
        }
        Philox4 random = philox4x32((uint32_t)i, (uint32_t)b->place.rank, 0, 0, 2);
        feeds->tokens[i] = (int32_t)(random.v[0] % vocab);
        feeds->labels[i] = (int32_t)(random.v[1] % vocab);
        feeds->positions[i] = (int32_t)(t - begin);
        feeds->doc_start[i] = (int32_t)begin;
        feeds->doc_id[i] = document - 1;
        pairs += (double)(t - begin + 1);
    }
    b->document_share = pairs / ((double)count * (double)(seq + 1) / 2);
}

static double trained_tokens(const StepBench *b)
{
    return (double)(b->trained * b->config.gradient_accumulation_steps * b->place.world);
}

/* Measures the first scales of values kept in codes, if there are any. */
static Status calibrate(StepBench *b)
{
    if (!stepper_must_measure(&b->stepper)) return OK;
    TRY(stepper_measure(&b->stepper, 0, trained_tokens(b), &b->batch));
    return stepper_measured(&b->stepper);
}

static Status create(StepBench *b)
{
    const Config *settled;
    TRY(setup_view_model(&b->arena, &b->config, &b->model));
    TRY(setup_rank_device(&b->config, b->place.local, b->place.num_local, &b->device));
    if (b->comm) TRY(b->device->api->join(b->device, b->comm));
    TRY(fit_settle(&b->arena, &b->config, b->model, b->device, b->comm, b->place.num_local, &settled));
    b->config = *settled;
    TRY(setup_options(&b->arena, &b->config, b->model, &b->options));
    b->options.rank = b->place.rank;
    compile_drop(&b->options, &entry_eval);
    compile_drop(&b->options, &entry_logits);
    compile_drop(&b->options, &entry_prefill);
    compile_drop(&b->options, &entry_decode);
    double before = clock_seconds();
    TRY(setup_plan(&b->arena, b->model, &b->options, b->device, &b->plan));
    TRY(setup_check_pinned(b->plan, 1, device_host_available()));
    TRY(fit_check_memory(&b->config, b->model, b->device, b->plan, true));
    TRY(session_create(b->plan, b->device, &b->session));
    TRY(setup_refuse_inputs(b->model, b->plan));
    stepper_init(&b->stepper, b->session, b->comm, 1, b->options.precision.margin);
    b->create_seconds = clock_seconds() - before;
    make_batch(b);
    TRY(random_weights(b->session, b->model));
    TRY(stepper_gather(&b->stepper));
    return calibrate(b);
}

static Status create_rank(const Config *config, Comm *comm, RankPlace place, StepBench **out_bench)
{
    StepBench *b = calloc_or_end(1, sizeof *b);
    b->config = *config;
    b->comm = comm;
    b->place = place;
    b->allowed = INFINITY;
    Status status = keeper_start(comm, &b->keeper);
    keeper_phase(b->keeper, "starting", b->allowed);
    if (status == OK) status = create(b);
    if (status != OK) {
        if (comm) comm_abort(comm, status, status_message()); /* before memory is freed that other ranks' devices may read */
        step_bench_destroy(b);
        return status;
    }
    *out_bench = b;
    return OK;
}

Status step_bench_create(const Config *config, StepBench **out_bench)
{
    Config alone = *config;
    alone.gpus = alone.world_size = 1;
    return create_rank(&alone, NULL, RANK_ALONE, out_bench);
}

void step_bench_destroy(StepBench *b)
{
    if (!b) return;
    session_destroy(b->session);
    if (b->device) b->device->api->destroy(b->device);
    hf_model_close(b->model);
    keeper_stop(b->keeper);
    arena_deinit(&b->arena);
    free(b);
}

/* Queues the programs of a step after all work already queued. */
static Status queue_step(StepBench *b)
{
    const double rate = 1e-5;
    TRY(stepper_begin(&b->stepper, b->step++, b->config.gradient_accumulation_steps, trained_tokens(b), rate));
    for (int64_t micro = 0; micro < b->config.gradient_accumulation_steps; micro++) TRY(stepper_micro(&b->stepper, &b->batch));
    return stepper_update(&b->stepper, rate);
}

/* Replaces a rank's seconds by the slowest rank's. */
static Status slowest(const StepBench *b, double *seconds)
{
    double all[COMM_MOST_RANKS];
    if (!b->comm) return OK;
    TRY(comm_all_gather(b->comm, seconds, all, sizeof *seconds));
    for (int r = 0; r < b->place.world; r++)
        if (all[r] > *seconds) *seconds = all[r];
    return OK;
}

/* Runs steps back to back as in training: the device has the next step queued while a result is awaited. A step lasts from the end of
 * the previous step to its own end. *out_idle: share of the whole time in which the device had no work. */
static Status time_steps(StepBench *b, int count, double *seconds, double *out_idle)
{
    bool    ahead = !b->device->api->is_synchronous;
    int64_t first = b->step;
    double  idle = 0, sum = 0;
    for (int i = 0; i < count; i++) {
        double gap = 0;
        keeper_phase(b->keeper, "timing steps", b->allowed);
        while (b->step <= first + i + ahead && b->step < first + count) TRY(queue_step(b));
        TRY(session_await_step(b->session, first + i, &seconds[i]));
        if (i > 0) TRY(session_idle_before(b->session, first + i, &gap));
        seconds[i] += gap;
        TRY(slowest(b, &seconds[i]));
        sum += seconds[i];
        idle += gap;
    }
    *out_idle = idle / sum;
    return OK;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts `seconds`. */
static double median(double *seconds, int count)
{
    qsort(seconds, (size_t)count, sizeof *seconds, by_value);
    return seconds[count / 2];
}

static Status read_loss(StepBench *b, double *out)
{
    float loss;
    TRY(session_output(b->session, plan_program(b->plan, &entry_optimizer), "loss", &loss, sizeof loss));
    *out = (double)loss;
    return OK;
}

Status step_bench_run(StepBench *b, int num_steps, StepTimes *out_times)
{
    double *seconds = arena_array(&b->arena, double, num_steps + 1);
    *out_times = (StepTimes){.sequence_len = micro_spec(b)->seq,
                             .tokens = micro_spec(b)->batch * micro_spec(b)->seq * b->config.gradient_accumulation_steps * b->place.world,
                             .create_seconds = b->create_seconds,
                             .bytes = plan_total_bytes(b->plan)};
    snprintf(out_times->device, sizeof out_times->device, "%s", b->plan->facts.name);
    TRY(time_steps(b, 1, &out_times->first, &out_times->idle));
    b->allowed = 5 * out_times->first;
    TRY(read_loss(b, &out_times->first_loss));
    TRY(time_steps(b, num_steps, seconds, &out_times->idle));
    out_times->median = median(seconds, num_steps);
    out_times->best = seconds[0];
    TRY(read_loss(b, &out_times->loss));
    TRY(fp8_bound(&b->config, b->model, b->device, &out_times->fp8_bound));
    for (int k = 0; k < b->plan->num_programs; k++) {
        const Program *program = &b->plan->programs[k];
        for (int i = 0; i < program->num_launches; i++)
            out_times->flops += b->place.world * step_bench_times(b, program) * step_bench_flops(b, &program->launches[i]);
    }
    return b->comm ? OK : session_beside_bytes(b->session, out_times->beside);
}

/* ---- several ranks ---- */

/* Copies only the collectives of a program. They no longer wait for launches that are left out. */
static void take_collectives(Arena *arena, const Program *whole, Program *out)
{
    int *index =
        arena_array(arena, int, whole->num_launches + 1); /* by launch: 1 + its index among the collectives; 0: it is no collective */
    *out = *whole;
    out->launches = arena_array(arena, Launch, whole->num_launches + 1);
    out->num_launches = 0;
    out->replay = NULL;
    for (int i = 0; i < whole->num_launches; i++) {
        if (!(whole->launches[i].node->op->flags & OP_COLLECTIVE)) continue;
        Launch *launch = &out->launches[out->num_launches++];
        *launch = whole->launches[i];
        for (int s = 0; s < STREAM_COUNT; s++)
            if (launch->wait[s]) launch->wait[s] = index[launch->wait[s] - 1];
        index[i] = out->num_launches;
    }
}

/* Median seconds of steps that run only the collectives. Values in the session are wrong from then on. */
static Status time_collectives(StepBench *b, int num_steps, double *out)
{
    const DeviceApi *api = b->device->api;
    Program         *parts = arena_array(&b->arena, Program, b->plan->num_programs);
    double          *seconds = arena_array(&b->arena, double, num_steps), idle;
    Status           status = OK;
    for (int i = 0; i < b->plan->num_programs && status == OK; i++) {
        const Program *whole = &b->plan->programs[i];
        if (!step_bench_times(b, whole)) continue;
        take_collectives(&b->arena, whole, &parts[i]);
        status = api->prepare(b->device, parts[i].launches, parts[i].num_launches, &parts[i].replay);
    }
    b->stepper.parts = parts;
    if (status == OK) status = time_steps(b, num_steps, seconds, &idle);
    b->stepper.parts = NULL;
    for (int i = 0; i < b->plan->num_programs; i++)
        if (parts[i].replay) api->release(b->device, parts[i].replay);
    if (status == OK) *out = median(seconds, num_steps);
    return status;
}

/* Time that a step's compute waits for collectives, on the slowest rank. Without profile_waits the device has one stream, which waits
 * for every collective. */
static Status time_waits(StepBench *b, StepTimes *times)
{
    double own = 0;
    for (int i = 0; i < b->plan->num_programs && b->device->api->profile_waits; i++) {
        const Program *program = &b->plan->programs[i];
        double         seconds = 0;
        int            runs = step_bench_times(b, program);
        keeper_phase(b->keeper, "timing waits", b->allowed);
        if (runs) TRY(b->device->api->profile_waits(b->device, program->launches, program->num_launches, &seconds));
        own += runs * seconds;
    }
    TRY(slowest(b, &own));
    times->exposed = b->device->api->profile_waits ? own : times->comm;
    return OK;
}

static Status share_beside(StepBench *b, StepTimes *times)
{
    int64_t own;
    TRY(session_beside_bytes(b->session, &own));
    return comm_all_gather(b->comm, &own, times->beside, sizeof own);
}

typedef struct RanksJob {
    const Config *config;
    int           num_steps;
    StepTimes    *times; /* filled in by rank 0 */
} RanksJob;

static Status bench_rank(void *context, Comm *comm, RankPlace place)
{
    RanksJob  *job = context;
    StepBench *b = NULL;
    StepTimes  other, *times = place.rank ? &other : job->times;
    Status     status = create_rank(job->config, comm, place, &b);
    if (status == OK) status = step_bench_run(b, job->num_steps, times);
    if (status == OK) status = time_collectives(b, (job->num_steps + 1) / 2, &times->comm);
    if (status == OK) status = time_waits(b, times);
    if (status == OK) status = share_beside(b, times);
    if (status == OK) status = comm_barrier(comm); /* no rank may leave while another rank's device may wait for it */
    if (status != OK) comm_abort(comm, status, status_message());
    step_bench_destroy(b);
    return status;
}

Status step_bench_ranks(const Config *config, int num_steps, StepTimes *out_times)
{
    return rank_threads_alone(config, bench_rank, &(RanksJob){config, num_steps, out_times});
}

Status step_bench_profile(StepBench *b, const Program *program, double *seconds, double *out_overhead)
{
    FAIL_IF(!b->device->api->profile, ERR_UNSUPPORTED, "the device %s can't time launches", b->device->api->name);
    return b->device->api->profile(b->device, program->launches, program->num_launches, seconds, out_overhead);
}

int step_bench_times(const StepBench *b, const Program *program)
{
    return (int)program_times(b->plan, program, b->config.gradient_accumulation_steps);
}

double step_bench_flops(const StepBench *b, const Launch *launch)
{
    double flops = launch_cost(launch).flops;
    return launch->node->op->flags & OP_BY_DOCUMENT ? flops * b->document_share : flops;
}

double step_bench_document_share(const StepBench *b)
{
    return b->document_share;
}

const Plan *step_bench_plan(const StepBench *b)
{
    return b->plan;
}
