/* The loss may be any number: its gradient when it has several terms, and how losses of micro-steps are added. */
#include "ops/attrs.h"
#include "ops/ops.h"
#include "passes/pass.h"
#include "test.h"

/* sum = inv_tokens (t0 + ... + t5). The graphs in_place and added have one more term, computed from x a^T. */
#define TERMS \
    "graph \"terms\"\n" \
    "input tokens: i32[1,6]\ninput hyper: f32[8]\ninput x: f32[1,4]\n" \
    "param table: f32[6,1] {trained init=zeros}\nparam a: f32[1,4] {trained init=zeros}\n" \
    "rows: f32[1,6,1] = embedding(tokens, table)\n" \
    "losses: f32[1,6] = reshape(rows) {ndim=2, d0=1, d1=6}\n" \
    "sum: f32[1] = loss_sum(losses, hyper)\n"

static const char in_place[] = TERMS "flat: f32[1,1] = reshape(sum) {ndim=2, d0=1, d1=1}\n"
                                     "both: f32[1,1] = linear_add(flat, x, a) {alpha=0.25}\n"
                                     "output loss = both\n";
static const char added[] = TERMS "dot: f32[1,1] = linear(x, a)\n"
                                  "one: f32[1] = reshape(dot) {ndim=1, d0=1}\n"
                                  "both: f32[1] = add(sum, one)\n"
                                  "output loss = both\n";
static const char alone[] = TERMS "output loss = sum\n";
static const char seen_twice[] = TERMS "output loss = sum\noutput other = sum\n";

/* A loss of two terms, the first from a head that is fused with its loss; a loss with a second head; a gradient that is computed from the
 * loss itself. */
#define HEAD \
    "graph \"head\"\n" \
    "input tokens: i32[1,6]\ninput labels: i32[1,6]\ninput hyper: f32[8]\ninput x: f32[1,4]\n" \
    "param table: f32[6,4] {trained init=zeros}\nparam head: f32[7,4] {trained init=zeros}\n" \
    "param a: f32[1,4] {trained init=zeros}\n" \
    "rows: f32[1,6,4] = embedding(tokens, table)\n" \
    "logits: f32[1,6,7] = linear(rows, head)\n" \
    "losses: f32[1,6], lse: f32[1,6] = cross_entropy(logits, labels)\n" \
    "sum: f32[1] = loss_sum(losses, hyper)\n" \
    "dot: f32[1,1] = linear(x, a)\n" \
    "one: f32[1] = reshape(dot) {ndim=1, d0=1}\n"
static const char head_and_term[] = HEAD "both: f32[1] = add(sum, one)\noutput loss = both\n";
static const char two_heads[] = HEAD "more: f32[1,6,7] = linear(rows, head)\n"
                                     "more_losses: f32[1,6], more_lse: f32[1,6] = cross_entropy(more, tokens)\n"
                                     "more_sum: f32[1] = loss_sum(more_losses, hyper)\n"
                                     "sums: f32[1] = add(sum, more_sum)\n"
                                     "both: f32[1] = add(sums, one)\noutput loss = both\n";
static const char gated[] = HEAD "flat: f32[1,1] = reshape(sum) {ndim=2, d0=1, d1=1}\n"
                                 "gate: f32[1,1] = swiglu(flat, dot)\noutput loss = gate\n";

typedef struct Model {
    Arena  arena;
    Graph *graph;
    void **memory; /* by value id; only set for values that have their own memory */
} Model;

static void *memory_of(Model *m, Value *value)
{
    int64_t offset;
    Value  *root = value_root(value, &offset);
    if (!m->memory[root->id]) {
        m->memory[root->id] = arena_alloc(&m->arena, (size_t)type_bytes(&root->type));
        if (root->const_data) memcpy(m->memory[root->id], root->const_data, (size_t)type_bytes(&root->type));
    }
    return (char *)m->memory[root->id] + dtype_bytes(root->type.dtype, offset);
}

static float *floats(Model *m, const char *name)
{
    Value *value = graph_find(m->graph, name);
    if (!value) test_fail(__FILE__, __LINE__, "no value %s", name);
    return value ? memory_of(m, value) : arena_alloc(&m->arena, 4096);
}

/* Differentiates, verifies, prints and reads the graph back: the graph that runs is the one in the text. */
static bool model_make(Model *m, const char *text, bool accumulate, bool fuse)
{
    int counts[FUSION_COUNT];
    *m = (Model){0};
    StrBuf printed = {0}, again = {0};
    Status status = graph_parse(&m->arena, "loss.ir", text, strlen(text), op_table, OP_COUNT, &m->graph);
    if (status == OK) status = fuse_graph(m->graph, fuse ? 0 : ~0u, counts);
    if (status == OK) status = autodiff_graph(m->graph, accumulate, false);
    if (status == OK) status = graph_verify(m->graph);
    if (status == OK) {
        graph_print(m->graph, &printed);
        status = graph_parse(&m->arena, "printed.ir", printed.data, printed.len, op_table, OP_COUNT, &m->graph);
    }
    if (status == OK) status = graph_verify(m->graph);
    if (status == OK) {
        graph_print(m->graph, &again);
        EXPECT_STR(strbuf_cstr(&again), strbuf_cstr(&printed));
        m->memory = arena_array(&m->arena, void *, m->graph->num_values);
    } else {
        test_fail(__FILE__, __LINE__, "%s", status_message());
    }
    strbuf_deinit(&printed);
    strbuf_deinit(&again);
    return status == OK;
}

static void model_fill(Model *m)
{
    for (int i = 0; i < 6; i++) {
        ((int32_t *)memory_of(m, graph_find(m->graph, "tokens")))[i] = i;
        floats(m, "table")[i] = 1 + (float)i;
    }
    for (int i = 0; i < 4; i++) {
        floats(m, "x")[i] = (float)i - 1.5f;
        floats(m, "a")[i] = 2.0f * (float)i;
    }
    floats(m, "hyper")[HYPER_INV_TOKENS] = 0.125f;
}

static void model_run(Model *m)
{
    for (Node *node = m->graph->first; node; node = node->next) {
        if (node->op->flags & OP_VIEW) continue;
        TensorView in[NODE_MAX_IN] = {0}, out[NODE_MAX_OUT] = {0};
        for (int i = 0; i < node->num_in; i++)
            if (node->in[i]) in[i] = (TensorView){memory_of(m, node->in[i]), node->in[i]->type};
        for (int k = 0; k < node->num_out; k++)
            if (node->out[k]) out[k] = (TensorView){memory_of(m, node->out[k]), node->out[k]->type};
        size_t     bytes = node->op->workspace ? node->op->workspace(node, 1) : 0;
        KernelArgs args = {.in = in,
                           .out = out,
                           .num_in = node->num_in,
                           .num_out = node->num_out,
                           .attrs = node->attrs,
                           .accumulate = node_accumulate_mask(node),
                           .workspace = arena_alloc(&m->arena, bytes + 256),
                           .workspace_bytes = bytes};
        EXPECT_OK(op_cpu_kernel(node)->run(&args));
    }
}

/* The first micro-step writes the loss and the gradients, the next one adds. d_sum, d_dot: derivatives of the loss with respect to the two
 * terms. */
static void check_terms(const char *text, float loss, float d_sum, float d_dot)
{
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        Model m;
        float before = accumulate ? 100 : 0;
        if (model_make(&m, text, accumulate, false)) {
            model_fill(&m);
            floats(&m, "loss.sum")[0] = 100;
            for (int i = 0; i < 6; i++) floats(&m, "grad.table")[i] = 100;
            for (int i = 0; d_dot && i < 4; i++) floats(&m, "grad.a")[i] = 100;
            model_run(&m);
            EXPECT_NEAR(floats(&m, "loss.sum")[0], before + loss, 1e-4);
            EXPECT_NEAR(*(float *)memory_of(&m, graph_output(m.graph, "loss")), before + loss, 1e-4);
            for (int i = 0; i < 6; i++) EXPECT_NEAR(floats(&m, "grad.table")[i], before + d_sum * 0.125f, 1e-4);
            for (int i = 0; d_dot && i < 4; i++) EXPECT_NEAR(floats(&m, "grad.a")[i], before + d_dot * ((float)i - 1.5f), 1e-4);
        }
        arena_deinit(&m.arena);
    }
}

/* sum = 21 / 8, x a^T = 10. */
static void terms_add_up_over_micro_steps(void)
{
    check_terms(alone, 2.625f, 1, 0);
    check_terms(seen_twice, 2.625f, 1, 0);
    check_terms(in_place, 2.625f + 0.25f * 10, 1, 0.25f);
    check_terms(added, 2.625f + 10, 1, 1);
}

static void one_term_is_summed_where_it_is_made(void)
{
    Model m;
    if (model_make(&m, alone, true, false)) {
        const Node *node = graph_output(m.graph, "loss")->producer;
        EXPECT(node->op->id == OP_LOSS_SUM && node->in[2] == graph_find(m.graph, "loss.sum"));
    }
    arena_deinit(&m.arena);
}

static void fill_head(Model *m)
{
    for (int i = 0; i < 6; i++) {
        ((int32_t *)memory_of(m, graph_find(m->graph, "tokens")))[i] = i;
        ((int32_t *)memory_of(m, graph_find(m->graph, "labels")))[i] = i == 2 ? IGNORE_INDEX : 6 - i;
    }
    for (int i = 0; i < 24; i++) floats(m, "table")[i] = sinf((float)i);
    for (int i = 0; i < 28; i++) floats(m, "head")[i] = cosf((float)i);
    for (int i = 0; i < 4; i++) floats(m, "x")[i] = floats(m, "a")[i] = 0.25f * (float)(i + 1);
    floats(m, "hyper")[HYPER_INV_TOKENS] = 0.2f;
}

/* The gradient rule of a fused head computes the losses in the backward op. Nodes that read the losses must run after it, or the
 * forward op computes the losses itself. */
static void a_fused_head_gives_the_same_with_more_terms(void)
{
    static const char *const texts[] = {head_and_term, two_heads, gated};
    static const struct {
        const char *name;
        int         count;
    } results[] = {{"loss.sum", 1}, {"grad.table", 24}, {"grad.head", 28}, {"grad.a", 4}};
    for (int t = 0; t < 3; t++) {
        Model plain, fused;
        if (model_make(&plain, texts[t], false, false) && model_make(&fused, texts[t], false, true)) {
            fill_head(&plain);
            fill_head(&fused);
            model_run(&plain);
            model_run(&fused);
            EXPECT(!graph_find(plain.graph, "d.lm_head_loss_bwd") && graph_find(fused.graph, "d.lm_head_loss_bwd.1"));
            for (int r = 0; r < 4; r++)
                for (int i = 0; i < results[r].count; i++)
                    EXPECT_NEAR(floats(&fused, results[r].name)[i], floats(&plain, results[r].name)[i], 1e-5);
        }
        arena_deinit(&plain.arena);
        arena_deinit(&fused.arena);
    }
}

static void what_is_no_number_is_refused(void)
{
    static const struct {
        const char *text, *message;
    } cases[] = {
        {TERMS "output loss = losses\n", "output \"loss\": expected one f32 number, found f32[1,6] of reshape"},
        {TERMS "output loss = x\n", "the graph computes no output \"loss\""},
        {TERMS "output sum = sum\n", "the graph computes no output \"loss\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        Arena  arena = {0};
        Graph *graph;
        EXPECT_OK(graph_parse(&arena, "loss.ir", cases[i].text, strlen(cases[i].text), op_table, OP_COUNT, &graph));
        EXPECT_FAILS(autodiff_graph(graph, false, false), ERR_INVALID, cases[i].message);
        arena_deinit(&arena);
    }
}

TEST_MAIN(TEST(terms_add_up_over_micro_steps), TEST(one_term_is_summed_where_it_is_made), TEST(a_fused_head_gives_the_same_with_more_terms),
          TEST(what_is_no_number_is_refused))
