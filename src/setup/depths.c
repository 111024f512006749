/* See depths.h. Bounds: what lasts, and what a stream runs, grows by the same with each layer. The most that is alive at a time, and the
 * busiest stream's time, are the largest of several such sums, so that they grow by no less from layer to layer (they are convex). Some
 * KiB of work memory grow by less. */
#include "setup/depths.h"

#include "run/timeline.h"

#include <math.h>

enum { FEW_LAYERS = 3, MORE_LAYERS = 5 };

/* Of a machine whose rates aren't known: 20 bytes of traffic take as long as 100 operations. */
static double seconds_of_cost(const Program *program)
{
    return 1e-11 * program->cost.flops + 5e-11 * program->cost.bytes;
}

static double busiest_stream(const DeviceFacts *facts, const Program *program)
{
    double busy[STREAM_COUNT] = {0}, most = 0;
    for (int i = 0; i < program->num_launches; i++) {
        const Launch *launch = &program->launches[i];
        busy[launch->stream] += launch_seconds(facts, launch);
        most = fmax(most, busy[launch->stream]);
    }
    return most;
}

static int64_t times_a_step(const Plan *plan, ProgramKind kind, int64_t micro_steps)
{
    bool has_last = plan_program(plan, PROGRAM_MICRO_LAST) != NULL;
    if (kind == PROGRAM_MICRO_NEXT) return micro_steps - 1 - has_last;
    return kind == PROGRAM_MICRO_FIRST || kind == PROGRAM_MICRO_ONLY || kind == PROGRAM_MICRO_LAST || kind == PROGRAM_OPTIMIZER;
}

PlanSize plan_size(const Plan *plan, int64_t micro_steps)
{
    PlanSize size = {.bytes = setup_needed_bytes(plan), .host_bytes = plan_host_bytes(plan), .numel = plan->total_numel};
    bool     has_rates = plan->facts.bandwidth > 0;
    for (int i = 0; i < plan->num_programs; i++) {
        const Program *program = &plan->programs[i];
        double         times = (double)times_a_step(plan, program->spec.kind, micro_steps);
        if (program->live_bytes > size.live_bytes) size.live_bytes = program->live_bytes;
        if (times <= 0) continue;
        size.seconds += times * (has_rates ? program->simulated_seconds : seconds_of_cost(program));
        size.least_seconds += times * (has_rates ? busiest_stream(&plan->facts, program) : seconds_of_cost(program));
    }
    size.least_bytes = size.bytes - plan->region_bytes[SPACE_DEVICE][REGION_ACTIVATIONS] + size.live_bytes;
    return size;
}

PlanSize depths_plan(const Depths *d, const Config *config, int64_t max_layers, bool timed)
{
    Arena          arena = {0};
    CompileOptions options;
    Plan          *plan;
    Status         status = setup_options(config, d->model, &options);
    options.max_layers = max_layers;
    options.unplaced = timed && max_layers; /* then bounds alone are asked for */
    /* Its memory is the other's. */
    if (!timed && compile_spec(&options, PROGRAM_MICRO_NEXT)) compile_drop(&options, PROGRAM_MICRO_FIRST);
    if (status == OK) status = compile_plan(&arena, d->model->module, &d->model->config, d->model->config_name, &options, d->device, &plan);
    PlanSize size = status == OK ? plan_size(plan, config->gradient_accumulation_steps) : (PlanSize){.bytes = -1};
    status_clear();
    arena_deinit(&arena);
    return size;
}

static double extended(const Depths *d, double few, double more)
{
    return more + d->turns * (more - few);
}

static PlanSize told_by(const Depths *d, const PlanSize *few, const PlanSize *more)
{
    const double  exact = 1 - 1e-9; /* sums of floating-point numbers */
    const int64_t slack = 1 << 20;
    if (few->bytes < 0 || more->bytes < 0) return (PlanSize){.bytes = -1};
    return (PlanSize){.bytes = (int64_t)extended(d, (double)few->bytes, (double)more->bytes),
                      .host_bytes = (int64_t)extended(d, (double)few->host_bytes, (double)more->host_bytes),
                      .numel = (int64_t)extended(d, (double)few->numel, (double)more->numel),
                      .seconds = extended(d, few->seconds, more->seconds),
                      .least_bytes = (int64_t)extended(d, (double)few->least_bytes, (double)more->least_bytes) - slack,
                      .live_bytes = (int64_t)extended(d, (double)few->live_bytes, (double)more->live_bytes),
                      .least_seconds = exact * extended(d, few->least_seconds, more->least_seconds)};
}

static bool is_near(double a, double b, double tolerance)
{
    return fabs(a - b) <= tolerance * fabs(b);
}

void depths_compare(Depths *d, const Config *config, const PlanSize *whole, bool timed)
{
    PlanSize few = depths_plan(d, config, FEW_LAYERS, timed), more = depths_plan(d, config, MORE_LAYERS, timed);
    d->whole = more.numel == few.numel || more.numel == whole->numel;
    if (d->whole) return;
    d->turns = (double)(whole->numel - more.numel) / (double)(more.numel - few.numel);
    PlanSize told = told_by(d, &few, &more);
    d->whole = timed ? told.least_bytes > whole->least_bytes || !is_near(told.least_seconds, whole->least_seconds, 1e-6)
                     : !is_near((double)told.bytes, (double)whole->bytes, 0.01);
}

PlanSize depths_size(const Depths *d, const Config *config, bool timed)
{
    if (d->whole) return depths_plan(d, config, 0, timed);
    PlanSize few = depths_plan(d, config, FEW_LAYERS, timed), more = depths_plan(d, config, MORE_LAYERS, timed);
    return told_by(d, &few, &more);
}
