/* Copies between host and device while matrix products run: measured milliseconds next to simulated ones (run/timeline.h).
 *
 *   build/bench/bench_copy [DEVICE [LAYERS [WIDTH]]]     DEVICE: cuda, cpu, or null:GPU, which only simulates (null:h200)
 *
 * First measures the link alone. Then runs chains of products x w^T, (T,W) to (T,4W) and back. Weights are in the host's memory and are
 * copied in ahead of use, two at a time; results are copied out. Each chain is simulated twice: with the device's rates that planning uses,
 * and with the measured times of the link and of the same chain without copies. The second simulation shows how well the overlap is
 * predicted. The results of all chains must have the bits of the chain without copies. */
#include "base/philox.h"
#include "ops/ops.h"
#include "passes/layout.h"
#include "passes/pass.h"
#include "run/session.h"
#include "run/timeline.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RUNS = 5, WEIGHTS = 4, BLOCK = 1 << 20, MAX_LAYERS = 256, COPIES = 16, SMALL = 64 /* large copy's bytes over small copy's */ };

typedef struct Bench {
    Device  *device;
    bool     runs; /* true: the device runs programs; false: it only plans */
    int      layers;
    int64_t  width;
    double   link_in, link_out; /* measured bytes per second */
    double   copy_seconds;      /* measured: the part of a copy's time that doesn't depend on its size */
    double   alone;             /* seconds of the chain without copies; 0: unknown */
    uint8_t *want;              /* result of the chain without copies */
    bool     differs;
} Bench;

/* Number of a chain's rows, and which of its tensors are copied. */
typedef struct Chain {
    int64_t tokens;
    bool    in;
    int     out; /* every out'th result is copied out; 0: none */
} Chain;

typedef struct Case {
    Arena    arena;
    Plan    *plan;
    Program *program;
    Session *session; /* NULL: the device only plans */
} Case;

/* ---- graphs ---- */

static Graph *new_graph(Case *c)
{
    return graph_create(&c->arena, "bench", op_table, OP_COUNT);
}

static Value *add_state(Graph *graph, const char *name, const TensorType *type, Space space)
{
    Value *value = graph_add_value(graph, VALUE_STATE, name, type);
    value->space = space;
    return value;
}

static Status add_copy(Graph *graph, Value *from, Space space, Stream stream, const char *name, Node **out)
{
    TRY(graph_add_node(graph, &op_copy, NULL, name, &from, 1, 1, out));
    (*out)->out[0]->space = space;
    (*out)->stream = stream;
    return OK;
}

/* Adds `count` copies from one value into another. */
static Status add_copies(Graph *graph, int64_t bytes, int count, Space from, Space to, Stream stream)
{
    TensorType  type = type_make(DT_U8, 1, bytes);
    const char *name = stream_name(stream);
    Value      *source = add_state(graph, arena_printf(graph->arena, "%s.from", name), &type, from);
    Value      *target = add_state(graph, arena_printf(graph->arena, "%s.to", name), &type, to);
    for (int i = 0; i < count; i++) {
        Node *node;
        TRY(add_copy(graph, source, to, stream, name, &node));
        value_place_in(node->out[0], target, 0);
        node->out[0]->kind = VALUE_STATE;
    }
    return OK;
}

/* The type of layer `layer`'s weight: even layers go from W columns to 4W, odd layers back. */
static TensorType weight_type(const Bench *b, int layer)
{
    return layer % 2 ? type_make(DT_BF16, 2, b->width, 4 * b->width) : type_make(DT_BF16, 2, 4 * b->width, b->width);
}

/* The copy of a weight waits for the product two layers before. A product reuses the memory of the result two layers before, and waits
 * until that result is copied out. */
static Status add_layer(Graph *graph, const Chain *chain, int layer, Value *weight, Value **x, Node **products, Node **outs)
{
    Value *in[] = {*x, weight};
    Node  *up, *product;
    if (chain->in) {
        TRY(add_copy(graph, weight, SPACE_DEVICE, STREAM_COPY_IN, "up", &up));
        up->flags |= NODE_AT_USE;
        if (layer >= 2) node_add_after(graph, up, products[layer - 2]);
        in[1] = up->out[0];
    }
    TRY(graph_add_node(graph, &op_linear, NULL, "y", in, 2, 1, &product));
    if (layer >= 2 && outs[layer - 2]) node_add_after(graph, product, outs[layer - 2]);
    products[layer] = product;
    *x = product->out[0];
    outs[layer] = NULL;
    if (chain->out && (layer + 1) % chain->out == 0) TRY(add_copy(graph, *x, SPACE_HOST, STREAM_COPY_OUT, "out", &outs[layer]));
    return OK;
}

static Status add_chain(const Bench *b, Graph *graph, const Chain *chain)
{
    TensorType type = type_make(DT_BF16, 2, chain->tokens, b->width);
    Value     *x = graph_add_value(graph, VALUE_INPUT, "x", &type), *weights[WEIGHTS];
    Node      *products[MAX_LAYERS], *outs[MAX_LAYERS];
    for (int i = 0; i < WEIGHTS; i++) {
        type = weight_type(b, i);
        weights[i] = add_state(graph, arena_printf(graph->arena, "w%d", i), &type, chain->in ? SPACE_HOST : SPACE_DEVICE);
    }
    for (int i = 0; i < b->layers; i++) TRY(add_layer(graph, chain, i, weights[i % WEIGHTS], &x, products, outs));
    graph_add_output(graph, "y", x);
    if (chain->out) graph_add_output(graph, "out", outs[b->layers - 1]->out[0]);
    return OK;
}

/* ---- cases ---- */

static Status case_open(const Bench *b, Case *c, Graph *graph)
{
    CompileOptions options = compile_defaults();
    TRY(plan_start(&c->arena, &options, b->device, &c->plan));
    c->program = c->plan->programs = arena_new(&c->arena, Program);
    c->plan->num_programs = 1;
    *c->program = (Program){.spec = {.entry = &entry_eval}, .name = "copies", .graph = graph};
    PassContext context = {.arena = &c->arena, .options = &options, .device = b->device, .plan = c->plan, .program = c->program};
    TRY(graph_verify(graph));
    TRY(layout_add(c->plan, &options, graph));
    TRY(pass_place(&context, &c->program->graph));
    TRY(pass_emit(&context, &c->program->graph));
    return b->runs ? session_create(c->plan, b->device, &c->session) : OK;
}

static void case_close(Case *c)
{
    session_destroy(c->session);
    arena_deinit(&c->arena);
}

/* Fills the inputs with values that keep the results about as large as x: zeros would multiply faster. */
static Status fill(Case *c)
{
    uint16_t *block = malloc(BLOCK * sizeof *block);
    Status    status = OK;
    if (!block) fatal_out_of_memory(BLOCK * sizeof *block);
    for (int i = 0; i < c->plan->num_entries && status == OK; i++) {
        const PlanEntry *entry = &c->plan->entries[i];
        size_t           all = (size_t)entry->place.bytes, bytes = BLOCK * sizeof *block;
        float            size = entry->name[0] == 'w' ? sqrtf(12.0f / (float)type_cols(&entry->type)) : 3.4f;
        for (int k = 0; k < BLOCK; k++)
            block[k] = bf16_from_f32(size * (philox_uniform(philox4x32((uint32_t)k, (uint32_t)i, 0, 0, 3).v[0]) - 0.5f));
        for (size_t at = 0; at < all && status == OK; at += bytes)
            status = session_write_range(c->session, entry->name, at, block, all - at < bytes ? all - at : bytes);
    }
    free(block);
    return status;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median time of RUNS runs, after one run to warm up. */
static Status time_case(Case *c, double *out_seconds)
{
    double seconds[RUNS + 1];
    for (int i = 0; i <= RUNS; i++) {
        TRY(session_begin_step(c->session, i));
        TRY(session_run(c->session, c->program));
        TRY(session_end_step(c->session, i));
        TRY(session_await_step(c->session, i, &seconds[i]));
    }
    qsort(seconds + 1, RUNS, sizeof *seconds, by_value);
    *out_seconds = seconds[1 + RUNS / 2];
    return OK;
}

/* ---- the link ---- */

/* Seconds of `count` copies of `bytes` each: into the device, out of it, or both at once; if neither, within the device. */
static Status time_copies(const Bench *b, int64_t bytes, int count, bool in, bool out, double *out_seconds)
{
    Case   c = {0};
    Graph *graph = new_graph(&c);
    Status status = OK;
    if (in) status = add_copies(graph, bytes, count, SPACE_HOST, SPACE_DEVICE, STREAM_COPY_IN);
    if (status == OK && out) status = add_copies(graph, bytes, count, SPACE_DEVICE, SPACE_HOST, STREAM_COPY_OUT);
    if (status == OK && !in && !out) status = add_copies(graph, bytes, count, SPACE_DEVICE, SPACE_DEVICE, STREAM_COMPUTE);
    if (status == OK) status = case_open(b, &c, graph);
    if (status == OK) status = time_case(&c, out_seconds);
    case_close(&c);
    return status;
}

/* Measures one direction with large and small copies: bytes per second, and the fixed seconds of a copy. */
static Status measure_direction(const Bench *b, bool in, bool out, double *out_rate, double *out_each)
{
    int64_t large = 8 * b->width * b->width, small = large / SMALL;
    double  of_large, of_small;
    TRY(time_copies(b, large, COPIES, in, out, &of_large));
    TRY(time_copies(b, small, COPIES, in, out, &of_small));
    double rate = (double)((large - small) * COPIES) / (of_large - of_small), each = of_small / COPIES - (double)small / rate;
    *out_rate = of_large > of_small ? rate : (double)(large * COPIES) / of_large;
    *out_each = each > 0 ? each : 0;
    return OK;
}

static Status measure_link(Bench *b)
{
    int64_t bytes = 8 * b->width * b->width;
    double  each_in, each_out, each_within, within, both;
    TRY(measure_direction(b, true, false, &b->link_in, &each_in));
    TRY(measure_direction(b, false, true, &b->link_out, &each_out));
    TRY(measure_direction(b, false, false, &within, &each_within));
    TRY(time_copies(b, bytes, COPIES, true, true, &both));
    b->copy_seconds = fmax(each_in, each_out);
    double alone = (double)(bytes * COPIES) / fmin(b->link_in, b->link_out);
    printf("link, copies of %.1f MiB: from the host %.1f GB/s, to the host %.1f GB/s, both at once %.1f GB/s each way (%.2f of the time of "
           "the slower one alone)\n",
           (double)bytes / 1048576, b->link_in * 1e-9, b->link_out * 1e-9, (double)(bytes * COPIES) / both * 1e-9, both / alone);
    printf("any copy: %.1f us from the host, %.1f us to it, %.1f us within the device at %.1f GB/s, read and written\n", 1e6 * each_in,
           1e6 * each_out, 1e6 * each_within, 2e-9 * within);
    printf("rows for src/device/rates_*.def: LINK(%.1f, %.1f)  RATE(copy, 0, %.0f, %.2f)\n\n", b->link_in * 1e-9, b->link_out * 1e-9,
           2e-9 * within, 1e6 * b->copy_seconds);
    return OK;
}

/* ---- chains ---- */

static double simulate(Case *c, const DeviceFacts *facts)
{
    Timeline timeline;
    timeline_simulate(&c->arena, facts, c->program->launches, c->program->num_launches, &timeline);
    return timeline.seconds;
}

/* Simulates with measured rates only. */
static double simulate_measured(const Bench *b, Case *c)
{
    double       flops = b->layers * 8.0 * (double)type_rows(&graph_find(c->program->graph, "x")->type) * (double)(b->width * b->width);
    const OpRate rates[] = {{"linear", flops / b->alone, 0, 0}, {"copy", 0, 0, b->copy_seconds}, {0}};
    DeviceFacts  facts = {.rates = rates, .link_in = b->link_in, .link_out = b->link_out};
    return simulate(c, &facts);
}

/* Sets *out_same to false if an output's bits differ from the chain without copies. */
static Status compare(Bench *b, Case *c, const char *name, bool *out_same)
{
    size_t   bytes = (size_t)type_bytes(&graph_output(c->program->graph, name)->type);
    uint8_t *got = malloc(bytes);
    if (!got) fatal_out_of_memory(bytes);
    Status status = session_output(c->session, c->program, name, got, bytes);
    bool   same = status == OK && (!b->want || memcmp(b->want, got, bytes) == 0);
    *out_same = *out_same && same;
    if (!b->want)
        b->want = got;
    else
        free(got);
    return status;
}

static void print_ms(bool known, double seconds)
{
    if (known)
        printf(" %10.3f", 1e3 * seconds);
    else
        printf(" %10s", "-");
}

/* Prints simulated seconds, and by how many percent they differ from the measured ones. */
static void print_simulated(bool known, double simulated, double measured)
{
    print_ms(known, simulated);
    if (known && measured > 0)
        printf(" %+6.1f%%", 100 * (simulated / measured - 1));
    else
        printf(" %7s", "-");
}

static void print_head(void)
{
    printf("%-8s %-28s %8s %8s %10s %10s %10s %7s %10s %7s  %s\n", "tokens", "copies", "MiB in", "MiB out", "link", "measured", "by rates",
           "off", "by alone", "off", "bits");
}

static void print_case(const Bench *b, Case *c, const Chain *chain, double measured, bool same)
{
    double bytes[2] = {0}, link = 0;
    for (int i = 0; i < c->program->num_launches; i++) {
        const Launch *launch = &c->program->launches[i];
        if (launch->stream != STREAM_COMPUTE) bytes[launch->stream == STREAM_COPY_OUT] += (double)type_bytes(&launch->node->out[0]->type);
    }
    if (b->runs) link = fmax(bytes[0] / b->link_in, bytes[1] / b->link_out);
    const char *outs = chain->out == 1 ? "all results" : chain->out ? "every second result" : "";
    char        what[64];
    snprintf(what, sizeof what, "%s%s%s", chain->in ? "weights" : "", chain->in && chain->out ? ", " : "", outs);
    printf("%-8lld %-28s %8.0f %8.0f", (long long)chain->tokens, what[0] ? what : "none", bytes[0] / 1048576, bytes[1] / 1048576);
    print_ms(b->runs, link);
    print_ms(b->runs, measured);
    print_simulated(c->plan->facts.bandwidth > 0, simulate(c, &c->plan->facts), measured);
    print_simulated(b->alone > 0, b->alone > 0 ? simulate_measured(b, c) : 0, measured);
    printf("  %s\n", !b->runs || !what[0] ? "-" : same ? "equal" : "DIFFERENT");
    fflush(stdout);
}

static Status run_case(Bench *b, Case *c, const Chain *chain)
{
    Graph *graph = new_graph(c);
    double measured = 0;
    bool   same = true;
    TRY(add_chain(b, graph, chain));
    TRY(case_open(b, c, graph));
    if (b->runs) {
        TRY(fill(c));
        TRY(time_case(c, &measured));
        if (!chain->in && !chain->out) b->alone = measured;
        TRY(compare(b, c, "y", &same));
        if (chain->out) TRY(compare(b, c, "out", &same));
        b->differs = b->differs || !same;
    }
    print_case(b, c, chain, measured, same);
    return OK;
}

/* The chain without copies comes first for each number of tokens. With 3 W tokens, products take about as long as copying weights on an
 * H200. */
static Status run_chains(Bench *b)
{
    int64_t     w = b->width;
    const Chain chains[] = {{w, false, 0},     {w, true, 0},     {w, true, 1},      {3 * w, false, 0}, {3 * w, true, 0}, {3 * w, false, 2},
                            {3 * w, false, 1}, {3 * w, true, 2}, {9 * w, false, 0}, {9 * w, true, 0},  {9 * w, true, 2}};
    printf("%d products of (tokens,%lld) by (%lld,%lld) and back, bf16; times in ms, median of %d runs\n", b->layers, (long long)w,
           (long long)(4 * w), (long long)w, RUNS);
    print_head();
    for (size_t i = 0; i < sizeof chains / sizeof chains[0]; i++) {
        Case c = {0};
        if (!chains[i].in && !chains[i].out) {
            free(b->want);
            b->want = NULL;
            b->alone = 0;
        }
        Status status = run_case(b, &c, &chains[i]);
        case_close(&c);
        if (status == ERR_NO_FIT)
            printf("%lld tokens: %s\n", (long long)chains[i].tokens, status_message());
        else
            TRY(status);
    }
    return OK;
}

static Status run(Bench *b, const char *device)
{
    DeviceFacts facts;
    b->runs = strncmp(device, "null:", 5) != 0;
    TRY(b->runs ? device_open(device, 0, 0, &b->device) : device_null_create(device + 5, &b->device));
    TRY(b->device->api->facts(b->device, &facts));
    device_use_rates(&facts);
    printf("%s, %s: %s, link %.0f and %.0f GB/s\n", b->device->api->name, facts.name,
           facts.rates ? "rates measured on such a GPU" : "data-sheet rates", facts.link_in * 1e-9, facts.link_out * 1e-9);
    if (b->runs) TRY(measure_link(b));
    return run_chains(b);
}

int main(int argc, char **argv)
{
    const char *device = argc > 1 ? argv[1] : "auto";
    Bench       b = {.layers = argc > 2 ? atoi(argv[2]) : 24, .width = argc > 3 ? atoi(argv[3]) : 4096};
    if (b.layers < 2 || b.layers % 2 || b.layers > MAX_LAYERS || b.width < 16 || b.width % 16 || b.width > 16384) {
        fprintf(
            stderr,
            "usage: bench_copy [DEVICE [LAYERS [WIDTH]]]: LAYERS an even number from 2 to %d, WIDTH a multiple of 16 from 16 to 16384\n",
            MAX_LAYERS);
        return 2;
    }
    Status status = run(&b, device);
    if (status != OK) fprintf(stderr, "%s\n", status_message());
    if (b.differs) fprintf(stderr, "a chain with copies gives other bits than the one without\n");
    free(b.want);
    if (b.device) b.device->api->destroy(b.device);
    return status != OK || b.differs;
}
