/* Keeping tensors in the host's memory changes no bit: losses, weights and optimizer states, for every offload option and all together,
 * with several rules, formats and recomputation. */
#include "base/philox.h"
#include "family.h"
#include "passes/precision.h"
#include "run/order.h"

enum { LAYERS = 5, ROWS = 2, LEN = 16, TOKENS = ROWS * LEN, STEPS = 2, VOCAB = 96 };

static const char config_text[] =
    "{\"architectures\": [\"%s\"], \"hidden_size\": 32, \"intermediate_size\": 48, "
    "\"num_hidden_layers\": 5, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 16, \"vocab_size\": 96, "
    "\"max_position_embeddings\": 64, \"rms_norm_eps\": 1e-6, \"rope_theta\": 10000.0, \"tie_word_embeddings\": %s, "
    "\"attention_bias\": false, \"hidden_act\": \"silu\"}";

static const char *const all_linear[] = {"all-linear"};

typedef struct Case {
    const char   *name;
    DType         model, moments;
    bool          masters, lora, tied;
    const char   *format; /* NULL: none */
    DType         forward, backward;
    OptimizerKind optimizer;
    uint32_t      recompute;
    const char   *architecture; /* NULL: Qwen3 */
} Case;

static const Case cases[] = {
    {"fp32", DT_F32, DT_F32, .forward = DT_F32, .backward = DT_F32},
    {"bf16, 8 bits", DT_BF16, DT_F32, .forward = DT_BF16, .backward = DT_BF16, .optimizer = OPTIMIZER_ADAMW_8BIT,
     .recompute = 1u << PART_BLOCK},
    {"8 bits and masters", DT_BF16, DT_F32, .masters = true, .forward = DT_BF16, .backward = DT_BF16, .optimizer = OPTIMIZER_ADAMW_8BIT,
     .tied = true},
    {"normuon", DT_BF16, DT_BF16, .forward = DT_BF16, .backward = DT_BF16, .optimizer = OPTIMIZER_NORMUON,
     .recompute = 1u << PART_FFN | 1u << PART_ATT},
    {"normuon and masters", DT_BF16, DT_F32, .masters = true, .forward = DT_BF16, .backward = DT_BF16, .optimizer = OPTIMIZER_NORMUON,
     .tied = true, .recompute = 1u << PART_BLOCK},
    {"normuon of several matrices in one", DT_BF16, DT_F32, .masters = true, .forward = DT_BF16, .backward = DT_BF16,
     .optimizer = OPTIMIZER_NORMUON, .architecture = "Phi3ForCausalLM"},
    {"fp8", DT_BF16, DT_F32, .forward = DT_E4M3, .backward = DT_E5M2, .recompute = 1u << PART_BLOCK},
    {"lora", DT_BF16, DT_F32, .masters = true, .lora = true, .forward = DT_BF16, .backward = DT_BF16},
    {"lora, fp8", DT_BF16, DT_F32, .lora = true, .forward = DT_E4M3, .backward = DT_E5M2, .recompute = 1u << PART_NORM},
    {"nf4", DT_BF16, DT_F32, .lora = true, .format = "nf4", .forward = DT_BF16, .backward = DT_BF16, .recompute = 1u << PART_BLOCK},
    {"fp8 tiles", DT_BF16, DT_F32, .lora = true, .format = "fp8", .forward = DT_BF16, .backward = DT_BF16},
    {"nvfp4 codes", DT_BF16, DT_F32, .lora = true, .format = "nvfp4", .forward = DT_BF16, .backward = DT_BF16,
     .optimizer = OPTIMIZER_ADAMW_8BIT},
    {"nvfp4", DT_BF16, DT_F32, .forward = DT_E2M1, .backward = DT_E2M1},
};
enum { NUM_CASES = sizeof cases / sizeof cases[0], ALL = (1 << OFFLOAD_COUNT) - 1 };

typedef struct Trained {
    Arena    arena;
    Device  *device;
    Plan    *plan;
    Session *session;
    float    losses[TOKENS], loss[STEPS], norm2[STEPS];
} Trained;

static CompileOptions options_of(const Case *c)
{
    CompileOptions options = compile_defaults();
    compile_add_training(&options, 1, LEN);
    compile_add(&options, &entry_eval, ROWS, LEN);
    compile_add(&options, &entry_decode, 1, 1);
    options.verify = true;
    options.cache_len = 32;
    options.model_dtype = c->model;
    options.moment_dtype = c->moments;
    options.master_weights = c->masters;
    options.recompute = c->recompute;
    options.optimizer = c->optimizer;
    options.weight_decay = 0.1;
    options.precision.forward = c->forward;
    options.precision.backward = c->backward;
    options.precision.amax_history = 4;
    options.weight_format = c->format ? weight_format_find(c->format) : NULL;
    options.train_base = !c->lora;
    if (precision_is_scaled(&options.precision)) compile_add(&options, &entry_calibrate, 1, LEN);
    if (c->lora) options.lora = (LoraOptions){.enabled = true, .r = 4, .alpha = 8, .dropout = 0.1, .targets = all_linear, .num_targets = 1};
    return options;
}

static Status values(void *context, const Param *param, int64_t first, int64_t count, float *out)
{
    (void)context;
    for (int64_t i = 0; i < count; i++)
        out[i] = philox_uniform(philox4x32((uint32_t)(first + i), (uint32_t)philox_name_key(param->name), 0, 0, 1).v[0]) * 0.2f - 0.1f;
    return OK;
}

static void open_plan(Trained *t, const Case *c, CompileOptions *options)
{
    size_t      len = 0;
    const char *architecture = c->architecture ? c->architecture : "Qwen3ForCausalLM", *ir = ir_shipped_module(architecture, &len), *text;
    IrModule   *module;
    JsonValue   config;
    LoadSource  source = {.values = values};
    *t = (Trained){.device = family_device(2)};
    text = arena_printf(&t->arena, config_text, architecture, c->tied ? "true" : "false");
    EXPECT_OK(json_parse(&t->arena, "config.json", text, strlen(text), &config));
    EXPECT_OK(ir_module_parse(&t->arena, architecture, ir, len, &module));
    Status status = compile_plan(&t->arena, module, &config, "config.json", options, t->device, &t->plan);
    EXPECT_OK(status);
    if (status != OK) exit(1);
    EXPECT_OK(session_create(t->plan, t->device, &t->session));
    EXPECT_OK(session_load(t->session, false, &source));
    EXPECT_OK(session_load(t->session, true, &source));
}

static void close_plan(Trained *t)
{
    session_destroy(t->session);
    t->device->api->destroy(t->device);
    arena_deinit(&t->arena);
}

static void write_if_there(Trained *t, const char *name, const void *data, size_t bytes)
{
    if (plan_find(t->plan, name)) EXPECT_OK(session_write(t->session, name, data, bytes));
}

static void write_batch(Trained *t, int step, int first, int rows)
{
    int32_t ids[TOKENS], labels[TOKENS], positions[TOKENS], start[TOKENS] = {0}, doc[TOKENS];
    int64_t steps[STEP_COUNT] = {1234, step, 0, 0};
    float   hyper[HYPER_COUNT] = {[HYPER_LR] = 1e-2f, [HYPER_INV_TOKENS] = 1.0f / TOKENS};
    size_t  bytes = (size_t)(rows * LEN) * sizeof *ids;
    for (int i = 0; i < rows * LEN; i++) {
        ids[i] = (int32_t)(philox4x32((uint32_t)(first * LEN + i), (uint32_t)step, 0, 0, 7).v[0] % VOCAB);
        labels[i] = (ids[i] * 5 + 3) % VOCAB;
        positions[i] = i % LEN;
        doc[i] = first + i / LEN;
    }
    write_if_there(t, "tokens", ids, bytes);
    write_if_there(t, "labels", labels, bytes);
    write_if_there(t, "positions", positions, bytes);
    write_if_there(t, "doc_start", start, bytes);
    write_if_there(t, "doc_id", doc, bytes);
    write_if_there(t, "step", steps, sizeof steps);
    write_if_there(t, "hyper", hyper, sizeof hyper);
}

static void run(Trained *t, const Program *program)
{
    EXPECT_OK(session_run(t->session, program));
}

static void train_step(Trained *t, int step)
{
    const Program *optimizer = plan_program(t->plan, &entry_optimizer);
    for (int row = 0; row < ROWS; row++) {
        write_batch(t, step, row, 1);
        run(t, plan_micro(t->plan, row > 0, 3));
    }
    run(t, optimizer);
    EXPECT_OK(session_output(t->session, optimizer, "loss", &t->loss[step], sizeof *t->loss));
    EXPECT_OK(session_output(t->session, optimizer, "norm2", &t->norm2[step], sizeof *t->norm2));
}

static void train(Trained *t, const Case *c, CompileOptions *options)
{
    open_plan(t, c, options);
    if (plan_program(t->plan, &entry_calibrate)) {
        write_batch(t, 0, 0, 1);
        run(t, plan_program(t->plan, &entry_calibrate));
    }
    for (int step = 0; step < STEPS; step++) train_step(t, step);
    write_batch(t, STEPS, 0, ROWS);
    run(t, plan_program(t->plan, &entry_eval));
    EXPECT_OK(session_output(t->session, plan_program(t->plan, &entry_eval), "losses", t->losses, sizeof t->losses));
}

static bool lasts(const PlanEntry *entry)
{
    return entry->place.region == REGION_WEIGHTS || entry->place.region == REGION_OPTIMIZER || entry->place.region == REGION_GRADS;
}

static void expect_same(Trained *a, Trained *b, const char *what)
{
    int differing = 0;
    if (memcmp(a->loss, b->loss, sizeof a->loss) || memcmp(a->norm2, b->norm2, sizeof a->norm2) ||
        memcmp(a->losses, b->losses, sizeof a->losses))
        test_fail(__FILE__, __LINE__, "%s: other losses or norms", what);
    for (int i = 0; i < a->plan->num_entries; i++) {
        const PlanEntry *entry = &a->plan->entries[i];
        const char      *x = session_pointer(a->session, entry->name), *y = session_pointer(b->session, entry->name);
        if (!lasts(entry)) continue;
        EXPECT(x && y);
        if (x && y && memcmp(x, y, (size_t)entry->place.bytes) && !differing++)
            test_fail(__FILE__, __LINE__, "%s: %s differs", what, entry->name);
    }
}

/* No two launches of a program race on the bytes that they touch. */
static void expect_ordered(Trained *t, const char *what)
{
    for (int i = 0; i < t->plan->num_programs; i++) {
        const Program *p = &t->plan->programs[i];
        Race           race;
        if (!order_check(&t->arena, p->launches, order_accesses(&t->arena, p->launches, p->num_launches), p->num_launches, &race))
            test_fail(__FILE__, __LINE__, "%s: %s of program %s races with %s", what, p->launches[race.first].node->out[0]->name, p->name,
                      p->launches[race.second].node->out[0]->name);
    }
}

/* Whether the case keeps anything on the host. */
static bool moves(const Case *c, uint32_t offload)
{
    bool codes = c->lora && (c->format || c->forward == DT_E4M3);
    return offload & (1u << OFFLOAD_OPTIMIZER | 1u << OFFLOAD_RESIDUAL | 1u << OFFLOAD_WEIGHTS) ||
           (c->masters && offload >> OFFLOAD_MASTER & 1) || (!c->lora && offload >> OFFLOAD_GRADS & 1) ||
           (codes && offload >> OFFLOAD_QUANTS & 1);
}

static void every_option_leaves_the_bits(void)
{
    for (int i = 0; i < NUM_CASES; i++) {
        CompileOptions options = options_of(&cases[i]);
        Trained        plain, moved;
        train(&plain, &cases[i], &options);
        EXPECT_INT(plan_host_bytes(plain.plan) < 1024, true); /* only the results of steps are there */
        for (int k = 0; k < OFFLOAD_COUNT + 2; k++) {
            const char *what = arena_printf(&plain.arena, "%s, offload %s", cases[i].name, k < OFFLOAD_COUNT ? offload_name(k) : "all");
            options.offload = k < OFFLOAD_COUNT ? 1u << k : ALL;
            options.use_zero_copy = k == OFFLOAD_COUNT + 1;
            options.piece_numel = 3000;
            train(&moved, &cases[i], &options);
            expect_same(&plain, &moved, what);
            expect_ordered(&moved, what);
            EXPECT(moves(&cases[i], options.offload) == (plan_host_bytes(moved.plan) > plan_host_bytes(plain.plan)));
            close_plan(&moved);
        }
        close_plan(&plain);
    }
}

TEST_MAIN(TEST(every_option_leaves_the_bits))
