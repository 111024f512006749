/* The pipeline: for each program the passes of passes.def in order. All programs are scheduled before any is placed, since
 * lasting values have one place for all of them. */
#include "passes/compile.h"

#include "ops/ops.h"
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
    if (status == OK && context->options->verify) status = graph_verify(*graph);
    return status == ERR_INTERNAL ? status_prefix(status, "after pass %s", passes[index].name) : status;
}

Status plan_start(Arena *arena, const CompileOptions *options, Device *device, Plan **out_plan)
{
    Plan *plan = arena_new(arena, Plan);
    plan->arena = arena;
    plan->optimizer = optimizer_name(options->optimizer);
    TRY(device->api->facts(device, &plan->facts));
    plan->facts.rates = device_rates(plan->facts.name);
    *out_plan = plan;
    return OK;
}

CompileOptions compile_defaults(void)
{
    return (CompileOptions){
        .programs = 1u << PROGRAM_MICRO_FIRST | 1u << PROGRAM_MICRO_NEXT | 1u << PROGRAM_OPTIMIZER,
        .batch = 1,
        .seq = 128,
        .eval_batch = 1,
        .eval_seq = 128,
        .cache_batch = 1,
        .cache_len = 256,
        .prefill_chunk = 64,
        .model_dtype = DT_F32,
        .master_dtype = DT_F32,
        .moment_dtype = DT_F32,
        .lora = {.r = 16, .alpha = 32},
        .beta1 = 0.9,
        .beta2 = 0.999,
        .adam_eps = 1e-8,
        .max_grad_norm = 1.0,
        .train_base = true,
        .num_workers = 1,
        .normuon = normuon_defaults(),
    };
}

static Status run_passes(PassContext *context, int first, int end)
{
    const CompileOptions *options = context->options;
    for (int i = first; i < end; i++) {
        if (!(passes[i].programs >> context->kind & 1)) continue;
        TRY(pass_run(context, i));
        if (options->after_pass) options->after_pass(options->after_pass_context, passes[i].name, context->program->graph);
    }
    return OK;
}

static Status run_phase(PassContext *context, uint32_t programs, int first, int end, bool layout)
{
    for (int kind = 0; kind < PROGRAM_KIND_COUNT; kind++) {
        if (!(programs >> kind & 1)) continue;
        context->kind = (ProgramKind)kind;
        context->program = &context->plan->program[kind];
        context->program->kind = (ProgramKind)kind;
        TRY(run_passes(context, first, end));
        if (layout) TRY(layout_add(context->plan, context->options, context->program->graph));
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
    uint32_t    update = options->programs & (1u << PROGRAM_OPTIMIZER), others = options->programs & ~update;
    /* The optimizer's graph is made from the layout of the trained parameters. */
    TRY(run_phase(&context, others, 0, NUM_BEFORE_LAYOUT, true));
    TRY(run_phase(&context, update, 0, NUM_BEFORE_LAYOUT, true));
    TRY(run_phase(&context, options->programs, NUM_BEFORE_LAYOUT, NUM_PASSES, false));
    *out_plan = plan;
    return OK;
}
