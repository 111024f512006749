/* What autodiff refuses: a module may say anything. */
#include "ops/ops.h"
#include "passes/pass.h"
#include "test.h"

typedef struct Model {
    Arena  arena;
    Param  param;
    Graph *graph;
    Value *weight, *hyper;
} Model;

static void model_make(Model *m)
{
    TensorType rows = type_make(DT_F32, 2, INT64_C(2), INT64_C(3)), hyper = type_make(DT_F32, 1, (int64_t)HYPER_COUNT);
    *m = (Model){.param = {.name = "w", .type = rows, .trained = true, .layer = -1}};
    m->graph = graph_create(&m->arena, "model", op_table, OP_COUNT);
    m->weight = graph_add_param(m->graph, &m->param);
    m->hyper = graph_add_value(m->graph, VALUE_INPUT, "hyper", &hyper);
}

/* add has no gradient for a weight: its rule adds up gradients of activations. */
static void a_weight_where_no_rule_expects_one_is_refused(void)
{
    Model m;
    Node *node;
    model_make(&m);
    Value *in[] = {m.weight, graph_add_value(m.graph, VALUE_INPUT, "x", &m.param.type)};
    EXPECT_OK(graph_add_node(m.graph, &op_add, NULL, "losses", in, 2, ~0u, &node));
    Value *sum[] = {node->out[0], m.hyper};
    EXPECT_OK(graph_add_node(m.graph, &op_loss_sum, NULL, "loss", sum, 2, ~0u, &node));
    graph_add_output(m.graph, "loss", node->out[0]);
    EXPECT_FAILS(autodiff_graph(m.graph, false, false), ERR_UNSUPPORTED, "input 0 of add is the trained weight w");
    arena_deinit(&m.arena);
}

TEST_MAIN(TEST(a_weight_where_no_rule_expects_one_is_refused))
