/* The rotary table of a config.json: frequencies and factor compared with transformers' (tests/oracle/make_rope.py), and which length
 * decides in longrope. */
#include "family_config.h"

static const RopeTableAttrs *table_of(Arena *arena, const JsonValue *config, CompileOptions *options, Device *device)
{
    const char *architecture = json_get(config, "architectures")->items[0].string.data;
    size_t      len = 0;
    const char *ir = ir_shipped_module(architecture, &len);
    IrModule   *module;
    Graph      *graph = NULL;
    Program     program = {.spec = options->programs[0], .name = "program"};
    EXPECT_OK(ir_module_parse(arena, architecture, ir, len, &module));
    Plan        plan = {0};
    PassContext context = {.arena = arena,
                           .plan = &plan,
                           .module = module,
                           .config = config,
                           .config_name = architecture,
                           .options = options,
                           .device = device,
                           .program = &program};
    EXPECT_OK(pass_bind(&context, &graph));
    for (const Node *node = graph ? graph->first : NULL; node; node = node->next)
        if (node->op == &op_rope_table) return node->attrs;
    test_fail(__FILE__, __LINE__, "%s: no rotary table", architecture);
    exit(1);
}

static void frequencies_are_those_of_transformers(void)
{
    Arena     arena = {0};
    Str       text;
    JsonValue cases;
    Device   *device;
    EXPECT_OK(device_null_create("h200", &device));
    EXPECT_OK(file_read(&arena, "tests/fixtures/rope.json", 1 << 20, &text));
    EXPECT_OK(json_parse(&arena, "rope.json", text.data, text.len, &cases));
    EXPECT(cases.count == 20);
    for (uint32_t k = 0; k < cases.count; k++) {
        const JsonValue *want = json_get(&cases.items[k], "frequencies");
        int64_t          reach;
        double           scale, worst = 0;
        CompileOptions   options = compile_defaults();
        EXPECT(json_get_int(&cases.items[k], "reach", &reach) && json_get_double(&cases.items[k], "scale", &scale));
        compile_add(&options, &entry_eval, 1, reach);
        const RopeTableAttrs *attrs = table_of(&arena, json_get(&cases.items[k], "config"), &options, device);
        EXPECT_INT(attrs->head_dim, 2 * want->count);
        for (uint32_t i = 0; i < want->count; i++) {
            /* `dynamic` changes nothing for sequences up to max_position_embeddings. */
            double got = attrs->frequencies.count ? attrs->frequencies.values[i] : pow(attrs->theta, -2.0 * i / (double)attrs->head_dim);
            double error = fabs(got / want->items[i].number - 1);
            if (!(error <= worst)) worst = error;
        }
        if (!(worst <= 1e-6 && fabs(attrs->scale / scale - 1) <= 1e-12)) /* the frequencies of transformers are fp32 */
            test_fail(__FILE__, __LINE__, "case %u: a frequency is off by %.2g, the factor is %.9g, expected %.9g", k, worst, attrs->scale,
                      scale);
    }
    device->api->destroy(device);
    arena_deinit(&arena);
}

/* The divisor of the second pair's frequency 0.1: 1.1 for rows up to the original length, 1.9 for longer rows. */
static double second_of(int64_t rows, int64_t cache, int64_t original)
{
    Arena          arena = {0};
    Device        *device;
    CompileOptions options = compile_defaults();
    JsonValue      config;
    const char    *text = arena_printf(&arena,
                                       "{\"architectures\": [\"Phi3ForCausalLM\"], \"vocab_size\": 64, \"hidden_size\": 16, "
                                          "\"intermediate_size\": 16, \"num_hidden_layers\": 1, \"num_attention_heads\": 2, "
                                          "\"max_position_embeddings\": 4096, \"original_max_position_embeddings\": %lld, "
                                          "\"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": [1, 1.1, 2, 3], "
                                          "\"long_factor\": [1, 1.9, 4, 8]}}",
                                       (long long)original);
    EXPECT_OK(device_null_create("h200", &device));
    EXPECT_OK(json_parse(&arena, "config.json", text, strlen(text), &config));
    if (rows) compile_add_training(&options, 1, rows);
    if (cache) compile_add(&options, &entry_prefill, 1, 4);
    if (cache) compile_add(&options, &entry_decode, 1, 1);
    options.cache_len = cache;
    const RopeTableAttrs *attrs = table_of(&arena, &config, &options, device);
    EXPECT_INT(attrs->len, rows > cache ? rows : cache);
    double second = 0.1 / attrs->frequencies.values[1];
    device->api->destroy(device);
    arena_deinit(&arena);
    return second;
}

static void longrope_goes_by_the_rows_then_by_the_cache(void)
{
    EXPECT_NEAR(second_of(64, 0, 64), 1.1, 1e-12);
    EXPECT_NEAR(second_of(65, 0, 64), 1.9, 1e-12);
    EXPECT_NEAR(second_of(0, 64, 64), 1.1, 1e-12);
    EXPECT_NEAR(second_of(0, 65, 64), 1.9, 1e-12);
    EXPECT_NEAR(second_of(64, 80, 64), 1.1, 1e-12); /* samples during a run change nothing that is trained */
    EXPECT_NEAR(second_of(80, 64, 64), 1.9, 1e-12);
}

TEST_MAIN(TEST(frequencies_are_those_of_transformers), TEST(longrope_goes_by_the_rows_then_by_the_cache))
