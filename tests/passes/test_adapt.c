/* LoRA: which layers a target selects, what is trained then, and which programs have dropout. */
#include "family_config.h"

typedef struct Adapted {
    Arena        arena;
    Plan        *plan;
    const Graph *micro; /* of the first micro-step, after the last pass */
    Status       status;
} Adapted;

static void adapt(Adapted *a, const char *const *targets, int num_targets, double dropout, bool train_base)
{
    Device        *device;
    CompileOptions options = compile_defaults();
    memset(a, 0, sizeof *a);
    options.cache_len = 8;
    add_all_programs(&options, 2, 8, 4);
    options.train_base = train_base;
    options.verify = true;
    options.lora = (LoraOptions){.enabled = true, .r = 4, .alpha = 8, .dropout = dropout, .targets = targets, .num_targets = num_targets};
    EXPECT_OK(device_null_create("h200", &device));
    a->status = compile_fixture(&a->arena, "llama", &options, device, &a->plan);
    device->api->destroy(device);
    if (a->status == OK) a->micro = plan_micro(a->plan, 0, 2)->graph;
}

static int count_ops(const Graph *graph, const OpDef *op)
{
    int count = 0;
    for (const Node *node = graph ? graph->first : NULL; node; node = node->next) count += node->op == op;
    return count;
}

static int count_adapters(const Adapted *a)
{
    const Graph *graph = a->micro;
    int          count = 0;
    for (int i = 0; graph && i < graph->num_params; i++) count += graph->params[i]->is_adapter;
    return count;
}

/* ---- targets ---- */

static void a_target_is_a_name_a_suffix_or_a_path(void)
{
    /* The fixture has 2 layers with 7 linear layers each, and the head; each wrapped layer has 2 adapter matrices. */
    static const struct {
        const char *targets[3];
        int         num, wrapped;
    } cases[] = {
        {{"q_proj"}, 1, 2},
        {{"self_attn.q_proj"}, 1, 2},
        {{"model.layers.1.self_attn.q_proj"}, 1, 1},
        {{"1.self_attn.q_proj"}, 1, 1},
        {{"q_proj", "down_proj"}, 2, 4},
        {{"q_proj", "self_attn.q_proj"}, 2, 2}, /* matched twice, wrapped once */
        {{"all-linear"}, 1, 14},
        {{"all-linear", "q_proj"}, 2, 14},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Adapted a;
        adapt(&a, cases[i].targets, cases[i].num, 0, false);
        if (a.status != OK) test_fail(__FILE__, __LINE__, "case %zu: %s", i, status_message());
        if (count_adapters(&a) != 2 * cases[i].wrapped)
            test_fail(__FILE__, __LINE__, "case %zu: %d adapters, expected %d", i, count_adapters(&a), 2 * cases[i].wrapped);
        arena_deinit(&a.arena);
    }
}

static void a_target_that_matches_nothing_is_an_error_with_the_names(void)
{
    static const char *const cases[][2] = {
        {"query", "lora_target_modules: \"query\" matches no linear layer of this model; it has "},
        {"proj", "\"proj\" matches no linear layer"}, /* a suffix of the path starts after a dot */
        {"_proj", "\"_proj\" matches no linear layer"},
        {"self_attn", "\"self_attn\" matches no linear layer"},
        {"input_layernorm", "\"input_layernorm\" matches no linear layer"}, /* a weight that belongs to no linear layer */
        {"model.layers.2.self_attn.q_proj", "matches no linear layer"},
        {"", "\"\" matches no linear layer"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *targets[] = {"q_proj", cases[i][0]};
        Adapted     a;
        adapt(&a, targets, 2, 0, false);
        EXPECT_INT(a.status, ERR_INVALID);
        EXPECT_CONTAINS(status_message(), cases[i][1]);
        EXPECT_CONTAINS(status_message(), "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj");
        EXPECT_CONTAINS(status_message(), "(or all-linear)");
        arena_deinit(&a.arena);
    }
}

static void options_are_checked(void)
{
    static const char *const q[] = {"q_proj"};
    Arena                    arena = {0};
    Program                  program = {.spec.entry = &entry_micro};
    PassContext              context = {.arena = &arena, .program = &program};
    CompileOptions           options = compile_defaults();
    Graph                   *graph = graph_create(&arena, "g", op_table, OP_COUNT);
    context.options = &options;
    EXPECT_OK(pass_adapt(&context, &graph)); /* LoRA isn't enabled */
    options.lora = (LoraOptions){.enabled = true, .r = 0, .targets = q, .num_targets = 1};
    EXPECT_FAILS(pass_adapt(&context, &graph), ERR_INVALID, "lora_rank: 0; expected at least 1");
    options.lora.r = 1;
    for (int i = 0; i < 3; i++) {
        options.lora.dropout = i == 0 ? 1.0 : i == 1 ? -0.1 : NAN;
        EXPECT_FAILS(pass_adapt(&context, &graph), ERR_INVALID, "expected 0 <= p < 1");
    }
    options.lora.dropout = 0;
    EXPECT_FAILS(pass_adapt(&context, &graph), ERR_INVALID, "it has none: no weight of its IR has \"linear\": true");
    arena_deinit(&arena);
}

/* ---- what is trained ---- */

static void only_adapters_have_gradients_and_optimizer_state(void)
{
    static const char *const targets[] = {"q_proj", "v_proj"};
    Adapted                  a;
    adapt(&a, targets, 2, 0, false);
    EXPECT_OK(a.status);
    const Graph *graph = a.micro;
    int          trained = 0, base = 0, grads = 0;
    int64_t      trained_numel = 0, grad_numel = 0;
    for (int i = 0; graph && i < graph->num_params; i++) {
        const Param *param = graph->params[i];
        if (param->is_adapter != param->trained)
            test_fail(__FILE__, __LINE__, "%s: adapter %d, trained %d", param->name, param->is_adapter, param->trained);
        trained += param->trained;
        base += !param->trained;
        if (param->trained) trained_numel += type_numel(&param->type);
    }
    EXPECT_INT(trained, 8);
    EXPECT(base > 14);
    for (int i = 0; graph && i < graph->num_values; i++) {
        const Value *value = graph->values[i];
        if (value->kind != VALUE_GRAD || value->producer || value->storage) continue;
        grads++;
        grad_numel += type_numel(&value->type);
    }
    EXPECT(grads > 0);
    EXPECT_INT(grad_numel, trained_numel);
    EXPECT_INT(a.plan->trained_numel, trained_numel);
    /* At most two moments and a master copy of the adapters; nothing of the base's size. */
    EXPECT(a.plan->region_bytes[SPACE_DEVICE][REGION_GRADS] >= 4 * trained_numel &&
           a.plan->region_bytes[SPACE_DEVICE][REGION_GRADS] < 4 * trained_numel + (1 << 14));
    EXPECT(a.plan->region_bytes[SPACE_DEVICE][REGION_OPTIMIZER] >= 8 * trained_numel &&
           a.plan->region_bytes[SPACE_DEVICE][REGION_OPTIMIZER] < 12 * trained_numel + (1 << 14));
    /* No weight gradient of a frozen layer is computed: both linear_dw are for the packed lora_A of the two layers. */
    EXPECT_INT(count_ops(graph, &op_linear_dw), 2);
    EXPECT_INT(count_ops(graph, &op_lora_add_bwd), 2);
    EXPECT_INT(count_ops(graph, &op_embedding_dw), 0);
    arena_deinit(&a.arena);
}

/* In programs with a cache each row chooses an adapter; other programs run only the base. The A matrices of both adapters are in one
 * matrix, with room for the larger rank. */
static void rows_choose_in_programs_with_a_cache(void)
{
    static const LoraModule  first[] = {{"model.layers.0.mlp.down_proj", 4, 8}, {"model.layers.1.self_attn.q_proj", 2, 2}};
    static const LoraModule  second[] = {{"model.layers.1.self_attn.q_proj", 9, 3}};
    static const LoraOptions adapters[] = {{.enabled = true, .modules = first, .num_modules = 2},
                                           {.enabled = true, .use_rslora = true, .modules = second, .num_modules = 1}};
    Arena                    arena = {0};
    Plan                    *plan;
    Device                  *device;
    CompileOptions           options = compile_defaults();
    options.verify = true;
    options.train_base = false;
    options.row_adapters = adapters;
    options.num_row_adapters = 2;
    compile_add(&options, &entry_prefill, 1, 4);
    compile_add(&options, &entry_decode, 3, 1);
    compile_add(&options, &entry_eval, 1, 8);
    EXPECT_OK(device_null_create("h200", &device));
    EXPECT_OK(compile_fixture(&arena, "llama", &options, device, &plan));
    EXPECT_INT(plan->row_adapters, 2);
    EXPECT_INT(count_ops(plan_program(plan, &entry_eval)->graph, &op_lora_rows), 0);
    EXPECT_INT(count_ops(plan_program(plan, &entry_prefill)->graph, &op_lora_rows), 2);
    const Graph *graph = plan_program(plan, &entry_decode)->graph;
    EXPECT_INT(count_ops(graph, &op_lora_rows), 2);
    for (const Node *node = graph->first; node; node = node->next) {
        const LoraRowsAttrs *attrs = node->attrs;
        if (node->op != &op_lora_rows) continue;
        bool is_down = attrs->ranks.values[0] == 4;
        EXPECT(attrs->ranks.count == 2 && attrs->ranks.values[1] == (is_down ? 0 : 9) && node->in[3]->type.dim[0] == 3);
        EXPECT(attrs->scales.values[0] == (is_down ? 2 : 1) && attrs->scales.values[1] == (is_down ? 0 : 1));
        EXPECT_INT(node->in[2]->type.dim[1], 16);
        EXPECT_INT(type_cols(&node->in[1]->type), 32);
    }
    arena_deinit(&arena);
    device->api->destroy(device);
}

static void the_adapters_are_those_of_peft(void)
{
    static const char *const targets[] = {"down_proj"};
    Adapted                  a;
    adapt(&a, targets, 1, 0, false);
    EXPECT_OK(a.status);
    const Graph *graph = a.micro;
    const Param *down = NULL, *lora_a = NULL, *lora_b = NULL;
    for (int i = 0; graph && i < graph->num_params; i++) {
        if (strcmp(graph->params[i]->name, "blocks.1.mlp.down.weight") == 0) down = graph->params[i];
        if (strcmp(graph->params[i]->name, "blocks.1.mlp.down.weight.lora_A") == 0) lora_a = graph->params[i];
        if (strcmp(graph->params[i]->name, "blocks.1.mlp.down.weight.lora_B") == 0) lora_b = graph->params[i];
    }
    EXPECT(down && lora_a && lora_b);
    if (down && lora_a && lora_b) {
        EXPECT(lora_a->type.dim[0] == 4 && lora_a->type.dim[1] == down->type.dim[1]);
        EXPECT(lora_b->type.dim[0] == down->type.dim[0] && lora_b->type.dim[1] == 4);
        EXPECT_STR(lora_a->hf.names[0], "model.layers.1.mlp.down_proj.lora_A.weight");
        EXPECT_STR(lora_b->hf.names[0], "model.layers.1.mlp.down_proj.lora_B.weight");
        EXPECT(lora_b->init == INIT_ZEROS && lora_a->init == INIT_UNIFORM);
        EXPECT_NEAR(lora_a->init_std, 1 / sqrt((double)down->type.dim[1]), 1e-7);
        EXPECT(lora_a->layer == 1 && lora_a->decay && !lora_a->is_linear);
    }
    arena_deinit(&a.arena);
}

static void dropout_is_in_training_programs_alone(void)
{
    static const char *const targets[] = {"q_proj", "up_proj"};
    for (int with = 0; with < 2; with++) {
        Adapted a;
        adapt(&a, targets, 2, with ? 0.1 : 0, false);
        EXPECT_OK(a.status);
        EXPECT_INT(a.plan->num_programs, 8); /* two micro-steps; the optimizer; calibrate, eval, prefill, decode; load */
        for (int i = 0; i < a.plan->num_programs; i++) {
            const Program *program = &a.plan->programs[i];
            int            count = count_ops(program->graph, &op_dropout);
            if (program->spec.entry->has_grads && with ? count < 4 : count != 0)
                test_fail(__FILE__, __LINE__, "program %s, dropout %d: %d nodes", program->name, with, count);
        }
        arena_deinit(&a.arena);
    }
}

TEST_MAIN(TEST(a_target_is_a_name_a_suffix_or_a_path), TEST(a_target_that_matches_nothing_is_an_error_with_the_names),
          TEST(options_are_checked), TEST(only_adapters_have_gradients_and_optimizer_state), TEST(rows_choose_in_programs_with_a_cache),
          TEST(the_adapters_are_those_of_peft), TEST(dropout_is_in_training_programs_alone))
