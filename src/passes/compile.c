/* The pipeline: for each program the passes of passes.def in order. All programs are scheduled before any is placed, since
 * lasting values have one place for all of them. */
#include "passes/compile.h"

#include "ops/ops.h"
#include "passes/layout.h"
#include "passes/pass.h"

#include <string.h>

typedef Status (*PassFn)(PassContext *context, Graph **graph);

static const struct {
    const char *name;
    uint32_t    programs;
    PassFn      run;
} passes[] = {
#define PASS(name, programs, help) {#name, programs, pass_##name},
#include "passes/passes.def"
#undef PASS
};
enum { NUM_PASSES = sizeof passes / sizeof passes[0], NUM_BEFORE_LAYOUT = NUM_PASSES - 2 /* place, emit */ };

int pass_count(void)
{
    return NUM_PASSES;
}

const char *pass_name(int index)
{
    return passes[index].name;
}

uint32_t pass_programs(int index)
{
    return passes[index].programs;
}

bool pass_after_layout(int index)
{
    return index >= NUM_BEFORE_LAYOUT;
}

Status pass_find(const char *name, int *out_index)
{
    const char *names[NUM_PASSES];
    for (int i = 0; i < NUM_PASSES; i++) names[i] = passes[i].name;
    return find_name("pass", name, names, NUM_PASSES, out_index);
}

Status pass_run(PassContext *context, int index)
{
    Graph **graph = &context->program->graph;
    Status  status = passes[index].run(context, graph);
    bool    last = index == NUM_BEFORE_LAYOUT - 1; /* a mistake of any pass ends the run, and computes nothing wrong */
    if (status == OK && (last || context->options->verify)) status = graph_verify(*graph);
    return status == ERR_INTERNAL ? status_prefix(status, "after pass %s", passes[index].name) : status;
}

Status plan_start(Arena *arena, const CompileOptions *options, Device *device, Plan **out_plan)
{
    Plan *plan = arena_new(arena, Plan);
    plan->arena = arena;
    plan->optimizer = optimizer_name(options->optimizer);
    plan->cache_len = options->cache_len;
    plan->rank = options->rank;
    plan->world = options->world;
    TRY(device->api->facts(device, &plan->facts));
    device_use_rates(&plan->facts);
    *out_plan = plan;
    return OK;
}

CompileOptions compile_defaults(void)
{
    return (CompileOptions){
        .cache_len = 256,
        .model_dtype = DT_F32,
        .master_dtype = DT_F32,
        .moment_dtype = DT_F32,
        .lora = {.r = 16, .alpha = 32},
        .world = 1,
        .zero_level = DIVIDE_STATES,
        .whole_bytes = 512 << 10,
        .beta1 = 0.9,
        .beta2 = 0.999,
        .adam_eps = 1e-8,
        .max_grad_norm = 1.0,
        .piece_numel = 32 << 20,
        .train_base = true,
        .normuon = normuon_defaults(),
        .precision = {.amax_history = 1024, .fp4_hadamard = true, .fp4_four_six = true},
    };
}

void compile_add(CompileOptions *options, ProgramKind kind, int64_t batch, int64_t seq)
{
    CHECK(options->num_programs < MAX_PROGRAMS && kind != PROGRAM_LOAD);
    options->programs[options->num_programs++] = (ProgramSpec){kind, batch, seq};
}

void compile_add_training(CompileOptions *options, int64_t batch, int64_t seq)
{
    compile_add(options, PROGRAM_MICRO_FIRST, batch, seq);
    compile_add(options, PROGRAM_MICRO_NEXT, batch, seq);
    if (options->world > 1) {
        compile_add(options, PROGRAM_MICRO_ONLY, batch, seq);
        compile_add(options, PROGRAM_MICRO_LAST, batch, seq);
        compile_add(options, PROGRAM_GATHER, 0, 0);
    }
    compile_add(options, PROGRAM_OPTIMIZER, 0, 0);
}

void compile_drop(CompileOptions *options, ProgramKind kind)
{
    int count = 0;
    for (int i = 0; i < options->num_programs; i++)
        if (options->programs[i].kind != kind) options->programs[count++] = options->programs[i];
    options->num_programs = count;
}

const ProgramSpec *compile_spec(const CompileOptions *options, ProgramKind kind)
{
    for (int i = 0; i < options->num_programs; i++)
        if (options->programs[i].kind == kind) return &options->programs[i];
    return NULL;
}

/* The programs asked for, each under a name of its own, and the one that loads their weights. */
static Status add_programs(Plan *plan, const CompileOptions *options)
{
    int of_kind[PROGRAM_KIND_COUNT] = {0};
    plan->programs = arena_array(plan->arena, Program, options->num_programs + 1);
    for (int i = 0; i < options->num_programs; i++) of_kind[options->programs[i].kind]++;
    for (int i = 0; i < options->num_programs; i++) {
        const ProgramSpec *spec = &options->programs[i];
        const char        *name = program_kind_name(spec->kind);
        if (of_kind[spec->kind] > 1) name = arena_printf(plan->arena, "%s[%lldx%lld]", name, (long long)spec->batch, (long long)spec->seq);
        FAIL_IF(plan_program_of(plan, spec->kind, spec->batch, spec->seq), ERR_INTERNAL, "compile: program %s is asked for twice", name);
        plan->programs[plan->num_programs++] = (Program){.spec = *spec, .name = name};
    }
    plan->programs[plan->num_programs++] = (Program){.spec.kind = PROGRAM_LOAD, .name = program_kind_name(PROGRAM_LOAD)};
    return OK;
}

static Status run_passes(PassContext *context, int first, int end)
{
    const CompileOptions *options = context->options;
    for (int i = first; i < end; i++) {
        if (!(passes[i].programs >> context->program->spec.kind & 1)) continue;
        TRY(pass_run(context, i));
        if (options->after_pass) options->after_pass(options->after_pass_context, passes[i].name, context->program->graph);
    }
    return OK;
}

/* All passes but the last two, and the layout, of the programs of these kinds. */
static Status schedule_programs(PassContext *context, uint32_t kinds)
{
    Plan *plan = context->plan;
    for (int i = 0; i < plan->num_programs; i++) {
        context->program = &plan->programs[i];
        if (!(kinds >> context->program->spec.kind & 1)) continue;
        TRY(run_passes(context, 0, NUM_BEFORE_LAYOUT));
        TRY(layout_add(plan, context->options, context->program->graph));
    }
    return OK;
}

static Status place_programs(PassContext *context, uint32_t kinds)
{
    for (int i = 0; i < context->plan->num_programs; i++) {
        context->program = &context->plan->programs[i];
        if (kinds >> context->program->spec.kind & 1) TRY(run_passes(context, NUM_BEFORE_LAYOUT, NUM_PASSES));
    }
    return OK;
}

Status compile_plan(Arena *arena, const IrModule *module, const JsonValue *config, const char *config_name, const CompileOptions *options,
                    Device *device, Plan **out_plan)
{
    Plan *plan;
    TRY(plan_start(arena, options, device, &plan));
    PassContext context = {.arena = arena,
                           .file = module->file,
                           .module = module,
                           .config = config,
                           .config_name = config_name,
                           .options = options,
                           .device = device,
                           .plan = plan};
    TRY(add_programs(plan, options));
    const uint32_t update = 1u << PROGRAM_OPTIMIZER | 1u << PROGRAM_GATHER, load = 1u << PROGRAM_LOAD, model = ~(update | load);
    /* The optimizer's graph, and that of gathering, are made from the layout of the trained parameters, that of loading from all weights
     * and master copies, and from the room that the others leave it. */
    TRY(schedule_programs(&context, model));
    TRY(schedule_programs(&context, update));
    TRY(place_programs(&context, model | update));
    if (!options->unplaced) {
        TRY(schedule_programs(&context, load));
        TRY(place_programs(&context, load));
    }
    *out_plan = plan;
    return OK;
}
