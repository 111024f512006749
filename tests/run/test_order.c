/* Waits of programs on several streams. Random programs go through `place` and `emit`: they must be right as they are, and wrong with any
 * single wait removed. Two independent judges decide. order_check compares the bytes that launches touch. Runs in random orders fill dead
 * memory with NaN and compare their results with the results in program order. */
#include "passes/layout.h"
#include "passes/pass.h"
#include "run/order.h"
#include "run/session.h"

#include "base/philox.h"
#include "ops/attrs.h"
#include "ops/ops.h"
#include "test.h"

#include <stdlib.h>
#include <string.h>

enum { ROWS = 2, COLS = 4, MAX_LIVE = 12, NUM_STATES = 2, ORDERS = 64 };

typedef struct Random {
    uint32_t key, count;
} Random;

static uint32_t draw(Random *r, uint32_t below)
{
    return philox4x32(r->count++, 0, 0, r->key, 77).v[0] % below;
}

/* A program compiled for the CPU, with everything needed to run it in any order. */
typedef struct Case {
    Arena       arena;
    Device     *cpu;
    Plan       *plan;
    Program    *program;
    Session    *session;
    AccessList *accesses;
    int         num_outputs;
} Case;

static const TensorType cell = {DT_F32, 2, {ROWS, COLS}};

/* ---- random programs ---- */

typedef struct Maker {
    Random *random;
    Graph  *graph;
    Value  *live[MAX_LIVE];
    bool    read[MAX_LIVE];
    int     num_live;
    Value  *states[NUM_STATES]; /* newest version of each state */
    Value  *weight;
} Maker;

/* Keeps the new value in a free slot, or in the slot of a value that was read. */
static void keep(Maker *m, Value *value)
{
    int at = m->num_live;
    for (int i = 0; i < m->num_live && m->num_live == MAX_LIVE; i++)
        if (m->read[i]) at = i;
    if (at == MAX_LIVE) {
        graph_add_output(m->graph, arena_printf(m->graph->arena, "out%d", m->graph->num_outputs), m->live[0]);
        at = 0;
    }
    m->live[at] = value;
    m->read[at] = false;
    if (at == m->num_live) m->num_live++;
}

static Value *pick(Maker *m)
{
    uint32_t at = draw(m->random, (uint32_t)m->num_live);
    m->read[at] = true;
    return m->live[at];
}

static void add_random_node(Maker *m)
{
    Node *node;
    m->graph->layer = -1;
    uint32_t kind = draw(m->random, 8), state = draw(m->random, NUM_STATES);
    if (kind == 0) { /* a new version of a state: readers of the version before must have run */
        Value *in[] = {m->states[state], pick(m), m->weight};
        EXPECT_OK(graph_add_node(m->graph, &op_linear_add, NULL, "state", in, 3, ~0u, &node));
        m->states[state] = node->out[0];
    } else if (kind == 1) { /* uses scratch memory */
        Value *in[] = {pick(m), m->weight};
        EXPECT_OK(graph_add_node(m->graph, &op_linear, NULL, "linear", in, 2, ~0u, &node));
        keep(m, node->out[0]);
    } else if (kind == 3) {
        Value *in[] = {pick(m)};
        EXPECT_OK(graph_add_node(m->graph, &op_copy, NULL, "copy", in, 1, ~0u, &node));
        keep(m, node->out[0]);
    } else {
        Value *in[] = {pick(m), kind == 2 ? m->states[state] : pick(m)};
        EXPECT_OK(graph_add_node(m->graph, &op_add, NULL, "sum", in, 2, ~0u, &node));
        keep(m, node->out[0]);
    }
    if (kind && draw(m->random, 4) == 0) node->out[0]->space = SPACE_HOST;
    node->stream = (Stream)draw(m->random, STREAM_COUNT);
    if (draw(m->random, 16) == 0 && node->prev) node_add_after(m->graph, node, node->prev);
}

static Graph *make_graph(Arena *arena, Random *random)
{
    Maker      m = {.random = random, .graph = graph_create(arena, "random", op_table, OP_COUNT)};
    TensorType square = {DT_F32, 2, {COLS, COLS}};
    for (int i = 0; i < 3; i++) keep(&m, graph_add_value(m.graph, VALUE_INPUT, arena_printf(arena, "in%d", i), &cell));
    for (int i = 0; i < NUM_STATES; i++) m.states[i] = graph_add_value(m.graph, VALUE_STATE, arena_printf(arena, "state%d", i), &cell);
    m.weight = graph_add_value(m.graph, VALUE_INPUT, "weight", &square);
    int count = 12 + (int)draw(random, 28);
    for (int i = 0; i < count; i++) add_random_node(&m);
    for (int i = 0; i < m.num_live; i++)
        if (m.live[i]->producer) graph_add_output(m.graph, arena_printf(arena, "out%d", m.graph->num_outputs), m.live[i]);
    for (int i = 0; i < NUM_STATES; i++) graph_add_output(m.graph, arena_printf(arena, "state%d", i), m.states[i]);
    return m.graph;
}

static void compile(Case *c, Random *random)
{
    CompileOptions options = compile_defaults();
    c->plan = arena_new(&c->arena, Plan);
    c->plan->arena = &c->arena;
    c->plan->programs = c->program = arena_new(&c->arena, Program);
    c->plan->num_programs = 1;
    c->program->spec.entry = &entry_eval;
    c->program->graph = make_graph(&c->arena, random);
    PassContext context = {.arena = &c->arena, .options = &options, .device = c->cpu, .plan = c->plan, .program = c->program};
    EXPECT_OK(graph_verify(c->program->graph));
    EXPECT_OK(layout_add(c->plan, &options, c->program->graph));
    EXPECT_OK(pass_place(&context, &c->program->graph));
    EXPECT_OK(pass_emit(&context, &c->program->graph));
    EXPECT_OK(session_create(c->plan, c->cpu, &c->session));
    c->accesses = order_accesses(&c->arena, c->program->launches, c->program->num_launches);
    c->num_outputs = c->program->graph->num_outputs;
}

static void case_deinit(Case *c)
{
    session_destroy(c->session);
    arena_deinit(&c->arena);
}

/* ---- runs in any order ---- */

static void set_inputs(Case *c)
{
    for (int i = 0; i < c->plan->num_entries; i++) {
        const PlanEntry *entry = &c->plan->entries[i];
        float           *data = session_pointer(c->session, entry->name);
        for (int64_t k = 0; k < type_numel(&entry->type); k++)
            data[k] = philox_uniform(philox4x32((uint32_t)k, (uint32_t)i, 0, 0, 9).v[0]) - 0.5f;
    }
}

static void *address_of(Case *c, const Value *value)
{
    int64_t offset;
    Value  *root = value_root((Value *)value, &offset);
    if (root->kind != VALUE_ACTIVATION) return session_pointer(c->session, root->name);
    const Launch *launch = c->program->launches; /* the launch that makes it */
    while (launch->node != root->producer) launch++;
    return launch->args.out[root->out_index].data;
}

/* left: for each activation, the number of launches that touch it and haven't run. If none is left, the activation's memory is dead, unless
 * the launch's result reuses it. */
static void bury(Case *c, int *left, int launch)
{
    const Node *node = c->program->launches[launch].node;
    const void *result = c->program->launches[launch].args.out[0].data;
    for (int i = 0; i < node->num_in + node->num_out; i++) {
        Value *value = i < node->num_in ? node->in[i] : node->out[i - node->num_in];
        if (!value) continue;
        Value *root = value_root(value, NULL);
        if (root->kind != VALUE_ACTIVATION || --left[root->id] > 0) continue;
        if (address_of(c, root) != result || value_root(node->out[0], NULL) == root)
            memset(address_of(c, root), 0xFF, (size_t)type_bytes(&root->type));
    }
}

static void bury_all(Case *c)
{
    for (int i = 0; i < c->program->graph->num_values; i++) {
        Value *value = c->program->graph->values[i];
        if (value->kind == VALUE_ACTIVATION && value_root(value, NULL) == value)
            memset(address_of(c, value), 0xFF, (size_t)type_bytes(&value->type));
    }
}

static void count_touches(Case *c, int *left)
{
    const Graph *graph = c->program->graph;
    memset(left, 0, sizeof *left * (size_t)graph->num_values);
    for (const Node *node = graph->first; node; node = node->next)
        for (int i = 0; i < node->num_in + node->num_out; i++) {
            Value *value = i < node->num_in ? node->in[i] : node->out[i - node->num_in];
            if (value) left[value_root(value, NULL)->id]++;
        }
    for (int i = 0; i < graph->num_outputs; i++) left[value_root(graph->outputs[i].value, NULL)->id]++;
}

static bool is_ready(const Launch *launch, const bool *done)
{
    for (int s = 0; s < STREAM_COUNT; s++)
        if (launch->wait[s] && !done[launch->wait[s] - 1]) return false;
    return true;
}

/* Returns the launch to run next: the next one of a random stream, if that launch is ready. In every second order `ranks` sorts the
 * streams, and the first ready one runs. random NULL: program order. */
static int choose(const Case *c, const bool *done, Random *random, const int *ranks)
{
    int head[STREAM_COUNT], ready[STREAM_COUNT], num_ready = 0;
    for (int s = 0; s < STREAM_COUNT; s++) head[s] = -1;
    for (int i = c->program->num_launches - 1; i >= 0; i--)
        if (!done[i]) head[c->program->launches[i].stream] = i;
    int first = -1;
    for (int r = 0; r < STREAM_COUNT; r++) {
        int at = head[ranks[r]];
        if (at >= 0 && (first < 0 || at < first)) first = at;
        if (at >= 0 && is_ready(&c->program->launches[at], done)) ready[num_ready++] = at;
    }
    if (!random) return first;
    CHECK(num_ready);
    return random->key & 1 ? ready[0] : ready[draw(random, (uint32_t)num_ready)];
}

static void run(Case *c, Random *random)
{
    int   count = c->program->num_launches, ranks[STREAM_COUNT], *left = malloc(sizeof(int) * (size_t)(c->program->graph->num_values + 1));
    bool *done = calloc((size_t)count + 1, sizeof *done);
    CHECK(left && done);
    for (int i = 0; i < STREAM_COUNT; i++) {
        int k = random ? (int)draw(random, (uint32_t)i + 1) : i;
        ranks[i] = ranks[k];
        ranks[k] = i;
    }
    set_inputs(c);
    bury_all(c);
    count_touches(c, left);
    for (int n = 0; n < count; n++) {
        int        at = choose(c, done, random, ranks);
        KernelArgs args = c->program->launches[at].args;
        args.pool = device_cpu_pool(c->cpu);
        args.device = c->cpu;
        EXPECT_OK(c->program->launches[at].kernel.run(&args));
        done[at] = true;
        bury(c, left, at);
    }
    free(left);
    free(done);
}

static void read_outputs(Case *c, float *out)
{
    for (int i = 0; i < c->num_outputs; i++)
        memcpy(out + i * ROWS * COLS, address_of(c, c->program->graph->outputs[i].value), sizeof(float) * ROWS * COLS);
}

/* Whether any of ORDERS random orders gives other bits than `want`. */
static bool orders_differ(Case *c, const float *want, float *got, uint32_t key)
{
    for (uint32_t i = 0; i < ORDERS; i++) {
        Random random = {key * ORDERS + i, 0};
        run(c, &random);
        read_outputs(c, got);
        if (memcmp(want, got, sizeof(float) * ROWS * COLS * (size_t)c->num_outputs) != 0) return true;
    }
    return false;
}

/* ---- the tests ---- */

typedef struct Score {
    int programs, waits, unseen_by_check, unseen_by_runs, implied;
} Score;

static bool is_implied(Case *c, int launch, int stream)
{
    Arena   scratch = {0};
    Launch *l = &c->program->launches[launch];
    int32_t kept = l->wait[stream];
    l->wait[stream] = 0;
    Order *without = order_of_launches(&scratch, c->program->launches, c->program->num_launches);
    bool   implied = order_before(without, kept - 1, launch);
    l->wait[stream] = kept;
    arena_deinit(&scratch);
    return implied;
}

/* Whether the wait guards memory; false: it comes from an explicit edge (`after`), which may guard none. */
static bool guards_memory(Case *c, int launch, int stream)
{
    const Node *node = c->program->launches[launch].node;
    const Node *waited = c->program->launches[c->program->launches[launch].wait[stream] - 1].node;
    for (int i = 0; i < node->num_after; i++)
        if (node->after[i] == waited) return false;
    return true;
}

static void judge_wait(Case *c, int launch, int stream, const float *want, float *got, bool run_too, Score *score)
{
    Launch *l = &c->program->launches[launch];
    int32_t kept = l->wait[stream];
    Race    race;
    Arena   scratch = {0};
    score->waits++;
    score->implied += is_implied(c, launch, stream);
    if (guards_memory(c, launch, stream)) {
        l->wait[stream] = 0;
        score->unseen_by_check += order_check(&scratch, c->program->launches, c->accesses, c->program->num_launches, &race);
        if (run_too) score->unseen_by_runs += !orders_differ(c, want, got, (uint32_t)launch);
        l->wait[stream] = kept;
    }
    arena_deinit(&scratch);
}

static void judge_program(Device *cpu, uint32_t seed, bool run_too, Score *score)
{
    Case   c = {.cpu = cpu};
    Random random = {seed, 0};
    Race   race;
    compile(&c, &random);
    float *want = malloc(sizeof(float) * ROWS * COLS * (size_t)c.num_outputs),
          *got = malloc(sizeof(float) * ROWS * COLS * (size_t)c.num_outputs);
    CHECK(want && got);
    if (!order_check(&c.arena, c.program->launches, c.accesses, c.program->num_launches, &race))
        test_fail(__FILE__, __LINE__, "program %u: launches %d and %d race", seed, race.first, race.second);
    run(&c, NULL);
    read_outputs(&c, want);
    if (run_too && orders_differ(&c, want, got, seed)) test_fail(__FILE__, __LINE__, "program %u: an order gives other bits", seed);
    for (int i = 0; i < c.program->num_launches; i++)
        for (int s = 0; s < STREAM_COUNT; s++)
            if (c.program->launches[i].wait[s]) judge_wait(&c, i, s, want, got, run_too, score);
    score->programs++;
    free(want);
    free(got);
    case_deinit(&c);
}

static void judge(uint32_t first, uint32_t count, bool run_too)
{
    Device *cpu;
    Score   score = {0};
    EXPECT_OK(device_cpu_create(1, &cpu));
    for (uint32_t i = 0; i < count; i++) judge_program(cpu, first + i, run_too, &score);
    cpu->api->destroy(cpu);
    printf("# %d programs, %d waits: %d removals unseen by the check, %d by %d runs each\n", score.programs, score.waits,
           score.unseen_by_check, score.unseen_by_runs, ORDERS);
    EXPECT(score.waits > 4 * score.programs);
    EXPECT_INT(score.unseen_by_check, 0);
    EXPECT_INT(score.implied, 0);
    if (run_too) EXPECT(score.unseen_by_runs * 100 <= score.waits);
}

static void every_removed_wait_is_seen_by_the_check(void)
{
    const char *programs = getenv("ORDER_PROGRAMS");
    judge(1000, programs ? (uint32_t)atoi(programs) : 1000, false);
}

static void removed_waits_are_seen_by_runs_in_random_orders(void)
{
    const char *programs = getenv("ORDER_RUN_PROGRAMS");
    judge(1, programs ? (uint32_t)atoi(programs) : 30, true);
}

/* The copy to the device may start while a's memory is still in use, but no later launch may. Nodes have several results, so the index of
 * a launch isn't the index of a value. */
static void a_life_beside_another_stream_ends_with_what_may_start_in_it(void)
{
    static const char text[] = "graph \"case\"\n"
                               "input x: f32[4,8]\n"
                               "input w: f32[8]\n"
                               "state host: f32[4,8] space=host\n"
                               "a: f32[4,8], a1: f32[4,8], a2: f32[4] = add_rms_norm(x, x, w) {eps=1e-06}\n"
                               "b: f32[4,8], b1: f32[4,8], b2: f32[4] = add_rms_norm(a, a1, w) {eps=1e-06}\n"
                               "in: f32[4,8] = copy(host) stream=copy_in\n"
                               "c: f32[4,8], c1: f32[4,8], c2: f32[4] = add_rms_norm(b, b1, w) {eps=1e-06}\n"
                               "d: f32[4,8], d1: f32[4,8], d2: f32[4] = add_rms_norm(c, in, w) {eps=1e-06}\n"
                               "output d = d\n";
    Arena             arena = {0};
    Graph            *graph;
    EXPECT_OK(graph_parse(&arena, "text", text, strlen(text), op_table, OP_COUNT, &graph));
    Order *order = order_make(&arena, graph);
    EXPECT_INT(order_last_beside(order, graph_find(graph, "a")), 2);
    EXPECT_INT(order_last_beside(order, graph_find(graph, "c")), 4);
    EXPECT_INT(order_last_beside(order, graph_find(graph, "in")), 4);
    arena_deinit(&arena);
}

TEST_MAIN(TEST(every_removed_wait_is_seen_by_the_check), TEST(removed_waits_are_seen_by_runs_in_random_orders),
          TEST(a_life_beside_another_stream_ends_with_what_may_start_in_it))
