/* The pipeline: for each program the passes of passes.def in order. All programs are scheduled before any is placed, since a lasting value
 * has one place in all of them. */
#include "passes/compile.h"

#include "ops/infer.h"
#include "ops/ops.h"
#include "passes/layout.h"
#include "passes/pass.h"

#include <string.h>

typedef Status (*PassFn)(PassContext *context, Graph **graph);

static const struct {
    const char *name;
    uint32_t    scopes;
    PassFn      run;
} passes[] = {
#define PASS(name, scopes, help) {#name, scopes, pass_##name},
#include "passes/passes.def"
#undef PASS
};
enum { NUM_PASSES = sizeof passes / sizeof passes[0], NUM_BEFORE_LAYOUT = NUM_PASSES - 2 /* without place and emit */ };

int pass_count(void)
{
    return NUM_PASSES;
}

const char *pass_name(int index)
{
    return passes[index].name;
}

uint32_t pass_scopes(int index)
{
    return passes[index].scopes;
}

uint32_t entry_scopes(const Entry *entry)
{
    static const uint32_t of_source[] = {[ENTRY_OF_MODEL] = P_MODEL,
                                         [ENTRY_OF_UPDATE] = P_UPDATE,
                                         [ENTRY_OF_SHARES] = P_SHARES,
                                         [ENTRY_OF_WEIGHTS] = P_WEIGHTS,
                                         [ENTRY_OF_MATRIX] = P_MATRIX};
    return of_source[entry->source] | (entry->has_grads ? P_GRADS : 0) | (entry->is_cached ? P_CACHED : 0);
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
    bool    last = index == NUM_BEFORE_LAYOUT - 1; /* always verified: a pass's mistake must end the run, not change what it computes */
    if (status == OK) pass_work_nowhere(*graph);
    if (status == OK && (last || context->options->verify)) status = graph_verify(*graph);
    return status == ERR_INTERNAL ? status_prefix(status, "after pass %s", passes[index].name) : status;
}

Status pass_add(Graph *graph, const OpDef *op, const void *attrs, const char *name, Value *const *in, int num_in, Value **out)
{
    Node *node;
    TRY(graph_add_node(graph, op, attrs, name, in, num_in, ~0u, &node));
    *out = node->out[0];
    return OK;
}

Status pass_reshape(Graph *graph, const char *name, Value *x, const TensorType *dims, Node **out)
{
    ReshapeAttrs attrs = {.ndim = dims->ndim, .d0 = dims->dim[0], .d1 = dims->dim[1], .d2 = dims->dim[2], .d3 = dims->dim[3]};
    return graph_add_node(graph, &op_reshape, &attrs, name, &x, 1, ~0u, out);
}

Status plan_start(Arena *arena, const CompileOptions *options, Device *device, Plan **out_plan)
{
    Plan *plan = arena_new(arena, Plan);
    plan->arena = arena;
    plan->optimizer = optimizer_name(options->optimizer);
    plan->cache_len = options->cache_len;
    plan->choices = options->sampling.vocab;
    plan->cache_pages = compile_cache_pages(options);
    plan->row_adapters = options->num_row_adapters;
    plan->adapters_take = options->lora.enabled && lora_init_takes(options->lora.init);
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
        .adamw_beta1 = 0.9,
        .adamw_beta2 = 0.999,
        .adamw_epsilon = 1e-8,
        .max_grad_norm = 1.0,
        .piece_numel = 32 << 20,
        .train_base = true,
        .normuon = normuon_defaults(),
        .precision = {.forward = DT_COUNT, .backward = DT_COUNT, .amax_history = 1024, .fp4_hadamard = true, .fp4_four_six = true},
    };
}

static int64_t most_cached(const CompileOptions *options, bool rows)
{
    int64_t most = 0;
    for (int i = 0; i < options->num_programs; i++) {
        const ProgramSpec *spec = &options->programs[i];
        int64_t            count = rows ? spec->batch : spec->seq;
        if (spec->entry->is_cached && count > most) most = count;
    }
    return most;
}

int64_t compile_row_pages(const CompileOptions *options)
{
    return div_up(options->cache_len + most_cached(options, false), CACHE_PAGE_LEN);
}

int64_t compile_cache_rows(const CompileOptions *options)
{
    return most_cached(options, true);
}

int64_t compile_cache_pages(const CompileOptions *options)
{
    int64_t row = div_up(options->cache_len, CACHE_PAGE_LEN);
    return 1 + (options->cache_pages ? options->cache_pages : compile_cache_rows(options) * row);
}

Status compile_parse_dtype(const char *word, DType *out)
{
    static const struct {
        const char *word;
        DType       dtype;
    } known[] = {{"fp32", DT_F32}, {"bf16", DT_BF16}, {"fp16", DT_F16}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(word, known[i].word) != 0) continue;
        *out = known[i].dtype;
        return OK;
    }
    FAIL(ERR_INVALID, "dtype %.100s: expected fp32, bf16 or fp16", word);
}

Status compile_parse_cache(const char *word, bool *out_fp8)
{
    *out_fp8 = strcmp(word, "fp8") == 0;
    FAIL_IF(!*out_fp8 && strcmp(word, "auto") != 0, ERR_INVALID, "kv %.100s: expected fp8, or auto for the model's dtype", word);
    return OK;
}

void compile_add_spec(CompileOptions *options, ProgramSpec spec)
{
    CHECK(options->num_programs < MAX_PROGRAMS && spec.entry->source != ENTRY_OF_WEIGHTS);
    options->programs[options->num_programs++] = spec;
}

void compile_add(CompileOptions *options, const Entry *entry, int64_t batch, int64_t seq)
{
    CHECK(!entry_makes_steps(entry));
    compile_add_spec(options, (ProgramSpec){.entry = entry, .batch = batch, .seq = seq});
}

void compile_add_micro(CompileOptions *options, int64_t micro, int64_t count, int64_t batch, int64_t seq)
{
    ProgramSpec spec = program_micro(micro, count, options->world);
    spec.batch = batch;
    spec.seq = seq;
    compile_add_spec(options, spec);
}

void compile_add_training(CompileOptions *options, int64_t batch, int64_t seq)
{
    enum { MOST_OF_ALL = 3 }; /* micro-steps of a step that has a first, a middle and a last one */
    compile_add_micro(options, 0, MOST_OF_ALL, batch, seq);
    compile_add_micro(options, 1, MOST_OF_ALL, batch, seq);
    if (options->world > 1) {
        compile_add_micro(options, 0, 1, batch, seq);
        compile_add_micro(options, MOST_OF_ALL - 1, MOST_OF_ALL, batch, seq);
        compile_add(options, &entry_gather, 0, 0);
    }
    compile_add(options, &entry_optimizer, 0, 0);
}

void compile_drop(CompileOptions *options, const Entry *entry)
{
    int count = 0;
    for (int i = 0; i < options->num_programs; i++)
        if (options->programs[i].entry != entry) options->programs[count++] = options->programs[i];
    options->num_programs = count;
}

const ProgramSpec *compile_spec(const CompileOptions *options, const Entry *entry)
{
    for (int i = 0; i < options->num_programs; i++)
        if (options->programs[i].entry == entry) return &options->programs[i];
    return NULL;
}

/* How many requested programs have this name and, if with_shape is set, also this shape. */
static int count_alike(const CompileOptions *options, const ProgramSpec *spec, bool with_shape)
{
    int count = 0;
    for (int i = 0; i < options->num_programs; i++) {
        const ProgramSpec *other = &options->programs[i];
        count += program_alike(other, spec) && (!with_shape || (other->batch == spec->batch && other->seq == spec->seq));
    }
    return count;
}

bool compile_has(const CompileOptions *options, const ProgramSpec *spec)
{
    return count_alike(options, spec, false) > 0;
}

/* Adds the requested programs, each under its own name, and the load program. */
static Status add_programs(Plan *plan, const CompileOptions *options)
{
    plan->programs = arena_array(plan->arena, Program, options->num_programs + 1);
    for (int i = 0; i < options->num_programs; i++) {
        const ProgramSpec *spec = &options->programs[i];
        const char        *name = program_spec_name(spec);
        if (count_alike(options, spec, false) > 1)
            name = arena_printf(plan->arena, "%s[%lldx%lld]", name, (long long)spec->batch, (long long)spec->seq);
        FAIL_IF(count_alike(options, spec, true) > 1, ERR_INTERNAL, "compile: program %s is asked for twice", name);
        FAIL_IF(spec->entry->source == ENTRY_OF_MATRIX, ERR_INVALID, "program %s is a bare matrix's; a model has none", name);
        plan->programs[plan->num_programs++] = (Program){.spec = *spec, .name = name};
    }
    const ProgramSpec load = {.entry = &entry_load};
    plan->programs[plan->num_programs++] = (Program){.spec = load, .name = program_spec_name(&load)};
    return OK;
}

static Status run_passes(PassContext *context, int first, int end)
{
    const CompileOptions *options = context->options;
    for (int i = first; i < end; i++) {
        if (!(passes[i].scopes & entry_scopes(context->program->spec.entry))) continue;
        TRY(pass_run(context, i));
        if (options->after_pass) options->after_pass(options->after_pass_context, passes[i].name, context->program->graph);
    }
    return OK;
}

/* Runs all passes but place and emit over the programs in these scopes, and lays out their lasting values. */
static Status schedule_programs(PassContext *context, uint32_t scopes)
{
    Plan *plan = context->plan;
    for (int i = 0; i < plan->num_programs; i++) {
        context->program = &plan->programs[i];
        if (!(scopes & entry_scopes(context->program->spec.entry))) continue;
        TRY(run_passes(context, 0, NUM_BEFORE_LAYOUT));
        TRY(layout_add(plan, context->options, context->program->graph));
    }
    return OK;
}

static Status place_programs(PassContext *context, uint32_t scopes)
{
    for (int i = 0; i < context->plan->num_programs; i++) {
        context->program = &context->plan->programs[i];
        if (scopes & entry_scopes(context->program->spec.entry)) TRY(run_passes(context, NUM_BEFORE_LAYOUT, NUM_PASSES));
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
    for (int i = 0; i < module->num_inputs; i++) plan->own_feeds[i] = module->inputs[i].name;
    TRY(add_programs(plan, options));
    /* The optimizer's and the gather program are made from the layout of the trained parameters. The load program is made from all weights
     * and master copies, and from the memory that the other programs leave it. */
    TRY(schedule_programs(&context, P_MODEL));
    TRY(schedule_programs(&context, P_UPDATE | P_SHARES));
    TRY(place_programs(&context, P_MODEL | P_UPDATE | P_SHARES));
    if (!options->unplaced) {
        TRY(schedule_programs(&context, P_WEIGHTS));
        TRY(place_programs(&context, P_WEIGHTS));
    }
    *out_plan = plan;
    return OK;
}

Status compile_head(Arena *arena, const CompileOptions *options, Device *device, Plan **out_plan)
{
    Plan *plan;
    TRY(plan_start(arena, options, device, &plan));
    PassContext context = {.arena = arena, .file = "head", .options = options, .device = device, .plan = plan};
    plan->programs = arena_array(arena, Program, options->num_programs);
    plan->num_programs = options->num_programs;
    for (int i = 0; i < options->num_programs; i++) {
        const ProgramSpec *spec = &options->programs[i];
        const char        *name = arena_printf(arena, "head.%s[%lld]", dtype_info(spec->hidden)->name, (long long)spec->batch);
        plan->programs[i] = (Program){.spec = *spec, .name = name};
    }
    TRY(schedule_programs(&context, P_MATRIX));
    TRY(place_programs(&context, P_MATRIX));
    *out_plan = plan;
    return OK;
}
