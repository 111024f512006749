/* Adapters on one input as one product (fusion `lora`) give the same losses and gradients as separate products: for subsets of the targets,
 * any scale, recomputed, accumulated over micro-steps, with tied heads, with dropout. */
#include "base/philox.h"
#include "family.h"

typedef struct Case {
    const char *what, *targets[4];
    int         num_targets;
    int64_t     r;
    double      dropout;
    bool        rslora, accumulate;
    uint32_t    recompute;
    int         adds; /* number of lora_add nodes per layer; 0: none at all */
} Case;

static const Case cases[] = {
    {.what = "all linear", .targets = {"all-linear"}, .num_targets = 1, .r = 4, .adds = 4},
    {.what = "q and v", .targets = {"q_proj", "v_proj"}, .num_targets = 2, .r = 8, .adds = 1},
    {.what = "k and v", .targets = {"k_proj", "v_proj"}, .num_targets = 2, .r = 3, .adds = 1},
    {.what = "gate only", .targets = {"gate_proj"}, .num_targets = 1, .r = 1, .adds = 1},
    {.what = "up, o, down", .targets = {"up_proj", "o_proj", "down_proj"}, .num_targets = 3, .r = 16, .adds = 3},
    {.what = "rsLoRA", .targets = {"all-linear"}, .num_targets = 1, .r = 8, .rslora = true, .adds = 4},
    {.what = "the head, too", .targets = {"all-linear", "lm_head"}, .num_targets = 2, .r = 4, .adds = 4},
    {.what = "accumulated", .targets = {"all-linear"}, .num_targets = 1, .r = 4, .accumulate = true, .adds = 4},
    {.what = "accumulated, q and v", .targets = {"q_proj", "v_proj"}, .num_targets = 2, .r = 4, .accumulate = true, .adds = 1},
    {.what = "all recomputed", .targets = {"all-linear"}, .num_targets = 1, .r = 4, .recompute = ~0u, .adds = 4},
    {.what = "blocks recomputed", .targets = {"all-linear"}, .num_targets = 1, .r = 4, .recompute = 1u << PART_BLOCK, .adds = 4},
    {.what = "qkv recomputed", .targets = {"q_proj", "v_proj"}, .num_targets = 2, .r = 4, .recompute = 1u << PART_QKV, .adds = 1},
    {.what = "ffn recomputed", .targets = {"all-linear"}, .num_targets = 1, .r = 4, .recompute = 1u << PART_FFN, .adds = 4},
    {.what = "dropout", .targets = {"all-linear"}, .num_targets = 1, .r = 4, .dropout = 0.25, .adds = 0},
};

/* Every weight's values depend on its name, not on the parameter's index. */
static void fill_by_name(Family *f)
{
    for (int i = 0; i < f->plan->num_params; i++) {
        const Param *param = f->plan->params[i];
        int64_t      n = type_numel(&param->type);
        float       *values = arena_array(&f->arena, float, n);
        uint32_t     key = 0;
        for (const char *p = param->name; *p; p++) key = key * 31 + (unsigned char)*p;
        for (int64_t k = 0; k < n; k++) values[k] = (philox_uniform(philox4x32((uint32_t)k, key, 0, 0, 1).v[0]) - 0.5f) * 0.4f;
        EXPECT_OK(session_write(f->session, param->name, values, (size_t)n * sizeof(float)));
    }
}

static int count_nodes(const Family *f, const OpDef *op)
{
    int count = 0;
    for (const Node *node = plan_micro(f->plan, 0, 2)->graph->first; node; node = node->next) count += node->op == op;
    return count;
}

/* Returns the loss of the packed batch; the gradients stay in the session. */
static float run(Family *f, const char *family, const Case *c, bool fused)
{
    CompileOptions options = compile_defaults();
    int            rows = c->accumulate ? 1 : FAMILY_B;
    compile_add_training(&options, rows, FAMILY_T);
    compile_add(&options, &entry_eval, 1, FAMILY_T); /* shares the memory layout */
    options.recompute = c->recompute;
    options.train_base = false;
    if (!fused) options.no_fuse = 1u << FUSE_LORA;
    options.lora = (LoraOptions){.enabled = true,
                                 .r = c->r,
                                 .alpha = 8,
                                 .dropout = c->dropout,
                                 .use_rslora = c->rslora,
                                 .targets = (const char **)(void *)c->targets,
                                 .num_targets = c->num_targets};
    family_open(f, family, "config.json", &options, 2);
    fill_by_name(f);
    const int32_t *ids = fixture_ints(f, "packed.ids"), *labels = fixture_ints(f, "packed.labels"),
                  *positions = fixture_ints(f, "packed.position_ids"), *starts = fixture_ints(f, "packed.doc_start");
    float inv = 1.0f / (float)count_labels(labels, FAMILY_TOKENS), loss = NAN;
    for (int first = 0; first < FAMILY_B; first += rows) {
        const Program *program = plan_micro(f->plan, first > 0, 3);
        family_batch(f, ids, labels, positions, starts, first, rows, inv, 3);
        EXPECT_OK(session_run(f->session, program));
        EXPECT_OK(session_output(f->session, program, "loss", &loss, sizeof loss));
    }
    return loss;
}

static float *gradient_of(Family *f, const char *name, int64_t n)
{
    float *out = arena_array(&f->arena, float, n);
    EXPECT_OK(session_read(f->session, arena_printf(&f->arena, "grad.%s", name), out, (size_t)n * sizeof(float)));
    return out;
}

static bool has_head_target(const Case *c)
{
    return c->num_targets > 1 && strcmp(c->targets[1], "lm_head") == 0;
}

static void compare(const char *family, const Case *c)
{
    Family fused, plain;
    float  got = run(&fused, family, c, true), want = run(&plain, family, c, false);
    if (!(fabsf(got - want) <= 1e-6f * fabsf(want)))
        test_fail(__FILE__, __LINE__, "%s, %s: loss %.8g, unfused %.8g", family, c->what, (double)got, (double)want);
    EXPECT_INT(fused.plan->num_trained, plain.plan->num_trained);
    for (int i = 0; i < plain.plan->num_trained; i++) {
        const Param *param = plain.plan->trained_params[i];
        int64_t      n = type_numel(&param->type);
        double       error = l2_error(gradient_of(&fused, param->name, n), gradient_of(&plain, param->name, n), n);
        if (!(error <= 1e-5)) test_fail(__FILE__, __LINE__, "%s, %s: gradient of %s: error %.3g", family, c->what, param->name, error);
    }
    int layers = 0;
    for (int i = 0; i < plain.plan->num_params; i++)
        if (plain.plan->params[i]->layer >= layers) layers = plain.plan->params[i]->layer + 1;
    if (!c->recompute) EXPECT_INT(count_nodes(&fused, &op_lora_add), c->adds ? c->adds * layers + has_head_target(c) : 0);
    EXPECT_INT(count_nodes(&plain, &op_lora_add), 0);
    if (c->adds) EXPECT_INT(count_nodes(&fused, &op_linear_add), 0);
    family_close(&fused);
    family_close(&plain);
}

/* Families with the linear layers of Llama. */
static void fused_is_unfused(void)
{
    static const struct {
        const char *name;
        bool        tied; /* the head is the embedding, not a linear layer */
    } families[] = {{"llama", false}, {"llama3", true}, {"qwen3", true}, {"qwen3_untied", false}, {"qwen2", true}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (size_t k = 0; k < sizeof families / sizeof families[0]; k++)
            if (!(families[k].tied && has_head_target(&cases[i]))) compare(families[k].name, &cases[i]);
}

TEST_MAIN(TEST(fused_is_unfused))
