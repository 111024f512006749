/* surogate explain run.yaml: a line for each launch of a program: kernel, limit, arithmetic, memory traffic, and where its result is
 * stored. */
#include "cli/cli.h"

#include "fit/fit.h"
#include "measure/step_bench.h"
#include "ops/elementwise/chain.h"
#include "ops/ops.h"
#include "passes/pass.h"
#include "run/timeline.h"

#include <stdio.h>

typedef struct Explain {
    const char *program, *gpu;
    bool        measure, streams; /* streams: the program uses several streams */
    ProgramSpec spec;
    const Plan *plan;
    double     *seconds; /* measured time of each launch; NULL: not measured */
    Timeline    timeline;
    double      overhead, document_share;
    StrBuf      out;
} Explain;

/* Whether the limits of launches are known. On a CPU they aren't: only a run measures its rates. */
static bool has_limit(const Explain *e)
{
    return e->plan->facts.bandwidth > 0;
}

/* Prints the ops of a chain, in order. */
static void print_steps(Explain *e, const Node *node)
{
    if (node->op != &op_chain) return;
    for (int i = 0; i < chain_count(node->attrs); i++)
        strbuf_printf(&e->out, "%s%s", i ? ", " : "      steps: ", chain_op(chain_step(node->attrs, i).code)->name);
    strbuf_putc(&e->out, '\n');
}

static void print_launch(Explain *e, const Program *program, int index)
{
    const Launch *launch = &program->launches[index];
    OpCost        cost = launch_cost(launch);
    char          place[64] = "-";
    for (int k = launch->node->num_out - 1; k >= 0; k--) {
        if (!launch->node->out[k]) continue;
        const Placement *at = &program->placement[launch->node->out[k]->id];
        snprintf(place, sizeof place, "%s+%llx", region_name(at->region), (unsigned long long)at->offset);
    }
    strbuf_printf(&e->out, "%5d ", index);
    if (e->seconds) strbuf_printf(&e->out, "%9.2f ", 1e6 * e->seconds[index]);
    if (has_limit(e))
        strbuf_printf(&e->out, "%9.2f %9.2f %10.2f ", 1e6 * launch_limit_seconds(&e->plan->facts, launch, e->document_share),
                      1e6 * launch_seconds(&e->plan->facts, launch), 1e6 * e->timeline.start[index]);
    else
        strbuf_printf(&e->out, "%9s ", "-");
    if (e->streams) strbuf_printf(&e->out, "%-8s ", stream_name(launch->stream));
    strbuf_printf(&e->out, "%10.3f %10.3f  %-10s %-24s ", cost.flops * 1e-9, cost.bytes * 1e-6, launch->kernel.name, place);
    node_print(launch->node, &e->out);
    if (e->out.len && e->out.data[e->out.len - 1] != '\n') strbuf_putc(&e->out, '\n');
    print_steps(e, launch->node);
}

/* Prints how many element-wise ops are joined to chains, and why consecutive ones aren't. */
static void print_chains(Explain *e, const Program *program)
{
    int chains = 0, steps = 0, alone = 0;
    for (int i = 0; i < program->num_launches; i++) {
        const Node *node = program->launches[i].node;
        chains += node->op == &op_chain;
        steps += node->op == &op_chain ? chain_count(node->attrs) : 0;
        alone += node->op->tile != NULL;
    }
    if (!chains && !alone) return;
    strbuf_printf(&e->out, "element-wise: %d ops in %d chains, %d alone\n", steps, chains, alone);
    for (int i = 0; i < program->num_launches; i++) {
        const Node *node = program->launches[i].node;
        for (int k = 0; k < node->num_in; k++) {
            const Node *maker = node->in[k] ? node->in[k]->producer : NULL;
            const char *why = maker ? chain_apart(maker, node) : NULL;
            if (why)
                strbuf_printf(&e->out, "  %s isn't joined with %s: %s\n", node->in[k]->name,
                              node->out[0] ? node->out[0]->name : node->op->name, why);
        }
    }
}

/* Prints how many FP4 products multiply codes, and with which kernel: on GPUs one library computes them, whatever fp4_backend is. */
static void print_fp4(Explain *e, const Program *program)
{
    const char *kernel = NULL;
    int         by_codes = 0, emulated = 0;
    for (int i = 0; i < program->num_launches; i++) {
        const Launch *launch = &program->launches[i];
        const Node   *maker = launch->node->num_in && launch->node->in[0] ? launch->node->in[0]->producer : NULL;
        emulated += maker && maker->op == &op_nvfp4_dequantise && launch_cost(launch).matrix_unit;
        if (launch->node->op != &op_fp4_linear) continue;
        by_codes++;
        kernel = launch->kernel.name;
    }
    if (e->plan->coded_format != CODED_FP4) return;
    if (by_codes && e->gpu) kernel = "cublaslt";
    strbuf_puts(&e->out, "FP4 products: ");
    if (by_codes) strbuf_printf(&e->out, "%d by their codes (%s, for fp4_backend: cutlass and cudnn alike), ", by_codes, kernel);
    strbuf_printf(&e->out, "%d emulated in model_dtype\n", emulated);
}

/* Prints how the weights that ranks divide are cut into chunks for the links. */
static void print_chunks(Explain *e)
{
    const Plan        *plan = e->plan;
    const DeviceFacts *facts = &plan->facts;
    for (int b = 0; b < plan->num_buckets && plan->world > 1; b++) {
        const Bucket *bucket = &plan->buckets[b];
        int64_t       most = 0;
        for (int c = 0; c < bucket->num_chunks; c++)
            if (bucket->chunks[c].numel > most) most = bucket->chunks[c].numel;
        strbuf_printf(&e->out, "bucket %d: %.2f MiB of %s cross in %d chunks of at most %.2f MiB\n", b,
                      (double)dtype_bytes(bucket->weight, bucket->numel) / (1 << 20), dtype_info(bucket->weight)->name, bucket->num_chunks,
                      (double)dtype_bytes(bucket->weight, most) / (1 << 20));
    }
    if (plan->world > 1 && facts->peer_link > 0)
        strbuf_printf(&e->out,
                      "links: %.0f GB/s and %.0f us a collective: half of that speed from %.2f MiB on, nine tenths from %.2f MiB\n",
                      facts->peer_link * 1e-9, facts->peer_seconds * 1e6, (double)link_bytes_at(facts, plan->world, 0.5) / (1 << 20),
                      (double)link_bytes_at(facts, plan->world, 0.9) / (1 << 20));
}

/* Prints the launches of a middle layer by op, in the order in which the ops first occur. */
static void print_layer(Explain *e, const Program *program)
{
    int layer = -1, launches = 0;
    for (int i = 0; i < program->num_launches; i++)
        if (program->launches[i].node->layer > layer) layer = program->launches[i].node->layer;
    layer /= 2;
    StrBuf ops = {0};
    for (int i = 0; i < program->num_launches; i++) {
        const Node *node = program->launches[i].node;
        int         count = 0;
        bool        first = node->layer == layer;
        for (int k = 0; k < program->num_launches && first; k++) {
            bool same = program->launches[k].node->layer == layer && program->launches[k].node->op == node->op;
            first = !same || k >= i;
            count += same;
        }
        if (!first) continue;
        launches += count;
        strbuf_printf(&ops, "%s%s", ops.len ? ", " : "", node->op->name);
        if (count > 1) strbuf_printf(&ops, " x %d", count);
    }
    if (launches) strbuf_printf(&e->out, "layer %d: %d launches: %s\n", layer, launches, strbuf_cstr(&ops));
    strbuf_deinit(&ops);
}

static Status print_program(Explain *e)
{
    const Program *program = plan_program_like(e->plan, &e->spec);
    double         limits[STREAM_COUNT] = {0}, limit = 0, measured = 0;
    timeline_simulate(e->plan->arena, &e->plan->facts, program->launches, program->num_launches, &e->timeline);
    for (int i = 0; i < program->num_launches; i++) e->streams = e->streams || program->launches[i].stream != STREAM_COMPUTE;
    strbuf_printf(&e->out, "%5s ", "#");
    if (e->seconds) strbuf_printf(&e->out, "%9s ", "us");
    strbuf_printf(&e->out, "%9s ", "limit us");
    if (has_limit(e)) strbuf_printf(&e->out, "%9s %10s ", e->plan->facts.rates ? "expected" : "at least", "start us");
    if (e->streams) strbuf_printf(&e->out, "%-8s ", "stream");
    strbuf_printf(&e->out, "%10s %10s  %-10s %-24s node\n", "GFLOP", "MB", "kernel", "result");
    for (int i = 0; i < program->num_launches; i++) {
        print_launch(e, program, i);
        double *busy = &limits[program->launches[i].stream];
        *busy += launch_limit_seconds(&e->plan->facts, &program->launches[i], e->document_share);
        if (*busy > limit) limit = *busy;
        if (e->seconds) measured += e->seconds[i];
    }
    strbuf_printf(&e->out, "\n%s: %d launches, %.3f GFLOP, %.3f MB", program->name, program->num_launches, program->cost.flops * 1e-9,
                  program->cost.bytes * 1e-6);
    if (has_limit(e))
        strbuf_printf(&e->out, ", at the limit %.3f ms, %s %.3f ms (%s)", 1e3 * limit, e->plan->facts.rates ? "expected" : "at least",
                      1e3 * e->timeline.seconds, e->plan->facts.rates ? "rates measured on this GPU" : "data-sheet rates");
    if (e->seconds)
        strbuf_printf(&e->out, ", measured %.3f ms (measuring took %.2f us a launch, taken off)", 1e3 * measured, 1e6 * e->overhead);
    strbuf_putc(&e->out, '\n');
    print_layer(e, program);
    print_chains(e, program);
    print_fp4(e, program);
    print_chunks(e);
    if (e->spec.entry->is_cached) fit_print_latent(&e->plan->latent, "latent: ", &e->out);
    if (has_limit(e)) timeline_print_streams(&e->timeline, program->launches, &e->out);
    return cli_print(&e->out);
}

/* Explains the plan without a run, for this machine's device or a GPU that isn't here. */
static Status explain_plan(Explain *e, Arena *arena, const Config *config)
{
    HfModel       *model;
    CompileOptions options;
    Device        *device;
    Plan          *plan = NULL;
    TRY(setup_view_model(arena, config, &model));
    TRY(setup_device(config, e->gpu, &device));
    Status status = fit_settle(arena, config, model, device, NULL, (int)config->gpus, &config);
    if (status == OK) status = setup_options(arena, config, model, &options);
    if (status == OK && !compile_has(&options, &e->spec)) setup_add_program(config, model, e->spec, &options);
    if (status == OK) status = setup_plan(arena, model, &options, device, &plan);
    e->plan = plan;
    if (status == OK) status = print_program(e);
    device->api->destroy(device);
    hf_model_close(model);
    return status;
}

static Status explain_measured(Explain *e, Arena *arena, const Config *config)
{
    StepBench *bench;
    StepTimes  times;
    TRY(step_bench_create(config, &bench));
    e->plan = step_bench_plan(bench);
    e->document_share = step_bench_document_share(bench);
    const Program *program = plan_program_like(e->plan, &e->spec);
    Status         status = program && step_bench_times(bench, program)
                                ? OK
                                : status_fail(ERR_INVALID, "--measure: a step of this run has no %s; expected micro_first, micro_next or optimizer",
                                              e->program);
    if (status == OK) status = step_bench_run(bench, 2, &times);
    if (status == OK) e->seconds = arena_array(arena, double, program->num_launches + 1);
    if (status == OK) status = step_bench_profile(bench, program, e->seconds, &e->overhead);
    if (status == OK) status = print_program(e);
    step_bench_destroy(bench);
    return status;
}

Status cmd_explain(CliArgs *args)
{
    Explain    e = {.program = "micro_first", .document_share = 1};
    bool       done;
    const Flag flags[] = {
        {"--program", FLAG_TEXT, &e.program, "NAME", CLI_PROGRAMS " (micro_first)"},
        {"--gpu", FLAG_TEXT, &e.gpu, "NAME", "as for this GPU: h200, h100, rtx4090, ..."},
        {"--measure", FLAG_SWITCH, &e.measure, NULL, "run it here, on random weights and tokens, and time every launch"},
    };
    TRY(cli_parse(args, flags, 3, true, &done));
    if (done) return OK;
    FAIL_IF(e.gpu && e.measure, ERR_INVALID, "surogate explain: --measure runs on this machine's device, --gpu is for one that isn't here");
    TRY(cli_find_program(e.program, &e.spec));
    Config config;
    Arena  arena = {0};
    TRY(cli_config(args, &config));
    Status status = e.measure ? explain_measured(&e, &arena, &config) : explain_plan(&e, &arena, &config);
    strbuf_deinit(&e.out);
    arena_deinit(&arena);
    config_deinit(&config);
    return status;
}
