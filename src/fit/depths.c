/* See depths.h. Why sizes are bounds: lasting memory and the work of a stream grow by the same amount with each layer. The peak of live
 * memory and the busiest stream's time are maxima of several such sums: they are convex, so each layer adds at least as much as the one
 * before. Only some KiB of workspace grow by less. */
#include "fit/depths.h"

#include "ops/ops.h"
#include "run/timeline.h"

#include <math.h>
#include <string.h>

enum { FEW_LAYERS = 3, RANKS_LAYERS = 4, AHEAD_LAYERS = 5 };

/* On a machine whose rates aren't known, 20 bytes of traffic take as long as 100 operations. */
static double seconds_of_cost(const Program *program)
{
    return 1e-11 * program->cost.flops + 5e-11 * program->cost.bytes;
}

/* The least time that a launch takes on its stream. Of copies and collectives only the bytes count: these grow by the same amount with each
 * layer. The number of copies and collectives needn't, as pieces and chunks hold several values, and chunks are padded. */
static double least_launch_seconds(const DeviceFacts *facts, const Launch *launch)
{
    const double padded = 1e-3; /* largest share of padding in the chunks that passes/layout.c makes */
    double       seconds = launch_seconds(facts, launch);
    if (launch->stream == STREAM_COMPUTE) return seconds;
    seconds -= facts->launch_seconds + (launch->node->op->flags & OP_COLLECTIVE ? facts->peer_seconds : 0);
    return fmax(0, (1 - padded) * seconds);
}

/* Seconds of the busiest stream, or of the power limit if that is longer. Gathers outside of micro-steps don't count: the optimizer gathers
 * one chunk, however many layers there are. */
static double busiest_stream(const DeviceFacts *facts, const Program *program)
{
    double busy[STREAM_COUNT] = {0}, power = 0, most = 0;
    for (int i = 0; i < program->num_launches; i++) {
        const Launch *launch = &program->launches[i];
        if (launch->node->op == &op_gather && !entry_makes_steps(program->spec.entry)) continue;
        busy[launch->stream] += least_launch_seconds(facts, launch);
        power += launch_power_seconds(facts, launch);
        most = fmax(most, busy[launch->stream]);
    }
    return fmax(most, power);
}

/* Adds the time of `times` runs of a program. */
static void add_seconds(const Plan *plan, const Program *program, double times, PlanSize *size)
{
    bool has_rates = plan->facts.bandwidth > 0;
    size->seconds += times * (has_rates ? program->simulated_seconds : seconds_of_cost(program));
    size->least_seconds += times * (has_rates ? busiest_stream(&plan->facts, program) : seconds_of_cost(program));
}

double fit_step_seconds(const Plan *plan, int64_t micro_steps)
{
    double seconds = 0;
    for (int i = 0; i < plan->num_programs && plan->facts.bandwidth > 0; i++)
        seconds += (double)program_times(plan, &plan->programs[i], micro_steps) * plan->programs[i].simulated_seconds;
    return seconds;
}

/* An upper bound for the padding that gives ranks equal shares of chunks. */
static int64_t padding_bytes(const Plan *plan)
{
    int64_t bytes = 0;
    for (int b = 0; b < plan->num_buckets && plan->world > 1; b++) {
        const Bucket *bucket = &plan->buckets[b];
        int64_t       numel = bucket->numel;
        for (int i = bucket->first; i < bucket->first + bucket->count; i++) numel -= type_numel(&plan->trained_params[i]->type);
        bytes += numel * (int64_t)sizeof(float) * (4 + bucket->num_states); /* 4: weights and gradients, each whole and as shares */
    }
    return bytes;
}

void plan_bound(PlanSize *size)
{
    size->least_bytes = size->live_bytes > size->update_bytes ? size->live_bytes : size->update_bytes;
    for (int i = 0; i < REGION_COUNT; i++) size->least_bytes += size->lasting[i];
}

PlanSize plan_size(const Plan *plan, int64_t micro_steps)
{
    PlanSize size = {.bytes = setup_needed_bytes(plan), .host_bytes = plan_host_bytes(plan), .numel = plan->total_numel};
    for (int i = 0; i < plan->num_programs; i++) {
        const Program *program = &plan->programs[i];
        double         times = (double)program_times(plan, program, micro_steps);
        int64_t       *live = program->spec.entry->source == ENTRY_OF_UPDATE ? &size.update_bytes : &size.live_bytes;
        if (program->live_bytes > *live) *live = program->live_bytes;
        if (times > 0) add_seconds(plan, program, times, &size);
    }
    for (int i = 0; i < REGION_COUNT; i++)
        size.lasting[i] = (i == REGION_ACTIVATIONS ? 0 : plan->region_bytes[SPACE_DEVICE][i]) +
                          (plan->facts.is_host ? plan->region_bytes[SPACE_HOST][i] : 0);
    size.lasting[REGION_WEIGHTS] -= padding_bytes(plan);
    plan_bound(&size);
    return size;
}

static bool is_micro(const ProgramSpec *spec, bool adds)
{
    return entry_makes_steps(spec->entry) && spec->adds == adds && !spec->ends;
}

/* Drops the first micro-step if a later one, which adds to its gradients, is planned: both take the same memory. */
static void drop_first(CompileOptions *options)
{
    int  count = 0;
    bool has_next = false;
    for (int i = 0; i < options->num_programs; i++) has_next = has_next || is_micro(&options->programs[i], true);
    for (int i = 0; i < options->num_programs; i++)
        if (!has_next || !is_micro(&options->programs[i], false)) options->programs[count++] = options->programs[i];
    options->num_programs = count;
}

/* Keeps the programs of a part. The optimizer's program is made from the parameters that the other programs train: PLAN_UPDATE keeps one of
 * those programs too, and tell_update_alone leaves out its size. */
static void choose_part(CompileOptions *options, PlanPart part)
{
    const ProgramSpec *optimizer = compile_spec(options, &entry_optimizer);
    options->unplaced = part == PLAN_MICRO || part == PLAN_UPDATE;
    if (part == PLAN_MEMORY) drop_first(options);
    if (part == PLAN_MICRO) {
        compile_drop(options, &entry_optimizer), compile_drop(options, &entry_gather);
        options->micro_steps = 1; /* a bound for all head_chunks: with more micro-steps the head might sum in fp32, which takes memory */
    }
    if (part != PLAN_UPDATE) return;
    ProgramSpec kept[] = {options->programs[0], *optimizer};
    memcpy(options->programs, kept, sizeof kept);
    options->num_programs = 2;
}

/* Leaves out the time, and the unshared memory, of the program that PLAN_UPDATE keeps beside the optimizer's. */
static void tell_update_alone(PlanSize *size, const Plan *plan)
{
    size->seconds = size->least_seconds = 0;
    add_seconds(plan, plan_program(plan, &entry_optimizer), 1, size);
    size->live_bytes = 0;
    for (int i = REGION_CONSTS; i < REGION_COUNT; i++) size->lasting[i] = 0;
    plan_bound(size);
}

PlanSize depths_plan(const Depths *d, const Config *config, int64_t max_layers, PlanPart part)
{
    CompileOptions options;
    Plan          *plan;
    Status         status = setup_options(d->arena, config, d->model, &options);
    options.max_layers = max_layers;
    if (status == OK) choose_part(&options, part);
    if (status == OK)
        status = compile_plan(d->arena, d->model->module, &d->model->config, d->model->config_name, &options, d->device, &plan);
    PlanSize size = status == OK ? plan_size(plan, config->gradient_accumulation_steps) : (PlanSize){.bytes = -1};
    if (status == OK && part == PLAN_UPDATE) tell_update_alone(&size, plan);
    status_clear();
    arena_reset(d->arena); /* the next plan takes this one's memory, which isn't given back to the system */
    return size;
}

static int64_t extended(double turns, int64_t few, int64_t more)
{
    return (int64_t)((double)more + turns * (double)(more - few));
}

static PlanSize told_by(const Depths *d, const PlanSize *few, const PlanSize *more)
{
    const double  exact = 1 - 1e-9; /* less than 1, for rounding in floating-point sums */
    const int64_t slack = 1 << 20;
    if (few->bytes < 0 || more->bytes < 0) return (PlanSize){.bytes = -1};
    double   turns = (double)(d->numel - more->numel) / (double)(more->numel - few->numel);
    PlanSize size = {.bytes = extended(turns, few->bytes, more->bytes),
                     .host_bytes = extended(turns, few->host_bytes, more->host_bytes),
                     .numel = d->numel,
                     .seconds = more->seconds + turns * (more->seconds - few->seconds),
                     .live_bytes = extended(turns, few->live_bytes, more->live_bytes),
                     .update_bytes = more->update_bytes,
                     .least_seconds = exact * (more->least_seconds + turns * (more->least_seconds - few->least_seconds))};
    for (int i = 0; i < REGION_COUNT; i++) size.lasting[i] = extended(turns, few->lasting[i], more->lasting[i]);
    size.lasting[REGION_WEIGHTS] -= slack;
    size.lasting[REGION_WORKSPACE] = more->lasting[REGION_WORKSPACE]; /* workspace of a chunk: it grows until a chunk has its full size */
    plan_bound(&size);
    if (size.bytes < 0) size.bytes = 0; /* an estimate below 0: the first layers aren't typical */
    return size;
}

/* The numbers of layers of the two plans. The smaller must contain all that a deep model has in flight at a time: transfers from the host
 * or from other ranks begin layers ahead. Where ranks own whole matrices (NorMuon), each rank must own the same number of matrices of each
 * shape, so both numbers of layers are multiples of `world`. */
static void choose_depths(const Config *config, int64_t *out_few, int64_t *out_more)
{
    int  world = setup_world(config);
    bool is_ahead = config->offload_residual || config->offload_grads || (world > 1 && (config->offload_weights || config->offload_quants));
    int64_t each = config->optimizer == OPT_OPTIMIZER_NORMUON ? world : 1, few = world > 1 ? RANKS_LAYERS : FEW_LAYERS;
    if (is_ahead) few = AHEAD_LAYERS;
    *out_few = (few + each - 1) / each * each;
    *out_more = *out_few + each;
}

PlanSize depths_size(const Depths *d, const Config *config, PlanPart part)
{
    int64_t  few_layers, more_layers;
    PlanSize few, more;
    if (d->whole) return depths_plan(d, config, 0, part);
    choose_depths(config, &few_layers, &more_layers);
    more = depths_plan(d, config, more_layers, part);
    if (more.bytes < 0) return more;
    if (more.numel == d->numel) return depths_plan(d, config, 0, part);
    few = depths_plan(d, config, few_layers, part);
    return told_by(d, &few, &more);
}

PlanSize plan_join(const PlanSize *micro, const PlanSize *update)
{
    PlanSize size = *micro;
    if (update->bytes < 0) size.bytes = -1;
    size.seconds += update->seconds;
    size.least_seconds += update->least_seconds;
    size.update_bytes = update->update_bytes;
    for (int i = 0; i < REGION_COUNT; i++)
        if (update->lasting[i] > size.lasting[i]) size.lasting[i] = update->lasting[i];
    plan_bound(&size);
    return size;
}

static bool is_near(double a, double b, double tolerance)
{
    return fabs(a - b) <= tolerance * fabs(b);
}

/* Whether the model is deeper than both plans of its first layers. */
static bool is_deep(const Depths *d, const Config *config)
{
    int64_t few_layers, more_layers;
    choose_depths(config, &few_layers, &more_layers);
    PlanSize few = depths_plan(d, config, few_layers, PLAN_MEMORY), more = depths_plan(d, config, more_layers, PLAN_MEMORY);
    return few.numel < more.numel && more.numel < d->numel;
}

void depths_compare(Depths *d, const Config *config, const PlanSize *whole, bool timed)
{
    d->numel = whole->numel;
    d->whole = !is_deep(d, config);
    if (d->whole) return;
    if (!timed) {
        d->whole = !is_near((double)depths_size(d, config, PLAN_MEMORY).bytes, (double)whole->bytes, 0.01);
        return;
    }
    PlanSize micro = depths_size(d, config, PLAN_MICRO), update = depths_size(d, config, PLAN_UPDATE), told = plan_join(&micro, &update);
    d->whole = told.least_bytes > whole->least_bytes || !is_near(told.least_seconds, whole->least_seconds, 1e-6);
}
