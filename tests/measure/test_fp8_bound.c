/* The shortest possible step in FP8: shorter than in bf16, but by no more than the share of products in the step. */
#include "measure/fp8_bound.h"

#include "fit/fit.h"

#include "test.h"

static const char wide_llama[] =
    "{\"architectures\":[\"LlamaForCausalLM\"],\"vocab_size\":128256,\"hidden_size\":8192,\"intermediate_size\":28672,"
    "\"num_hidden_layers\":%d,\"num_attention_heads\":64,\"num_key_value_heads\":8,\"rms_norm_eps\":1e-5,"
    "\"max_position_embeddings\":131072,\"rope_theta\":500000,\"tie_word_embeddings\":false}";

/* Lower limit of a step's time for a run with these lines, in seconds; *out_bf16: expected seconds of the same run in bf16. */
static double bound(const char *lines, double *out_bf16)
{
    Arena          arena = {0};
    Config         config;
    HfModel       *model;
    CompileOptions options;
    Device        *planned;
    Plan          *plan;
    StrBuf         run = {0};
    double         seconds;
    char           folder[] = "/tmp/test_setup_XXXXXX";
    EXPECT(mkdtemp(folder));
    const char *path = arena_printf(&arena, "%s/config.json", folder), *json = arena_printf(&arena, wide_llama, 2);
    EXPECT_OK(file_write_atomic(path, json, strlen(json)));
    strbuf_printf(&run, "model: %s\nsequence_len: 2048\n%s", folder, lines);
    EXPECT_OK(config_parse("run.yaml", run.data, run.len, NULL, 0, &config, NULL));
    EXPECT_OK(setup_model(&arena, &config, &model));
    EXPECT_OK(device_null_create("h200", &planned));
    EXPECT_OK(fp8_bound(&config, model, planned, &seconds));
    config.recipe = OPT_RECIPE_BF16;
    config.matmul_dtype = OPT_UNSET;
    EXPECT_OK(setup_options(&arena, &config, model, &options));
    EXPECT_OK(setup_plan(&arena, model, &options, planned, &plan));
    *out_bf16 = fit_step_seconds(plan, config.gradient_accumulation_steps);
    planned->api->destroy(planned);
    hf_model_close(model);
    config_deinit(&config);
    strbuf_deinit(&run);
    EXPECT_OK(file_remove_tree(folder));
    arena_deinit(&arena);
    return seconds;
}

/* Products take most of such a step, and FP8 units are twice as fast. */
static void fp8_has_a_bound(void)
{
    double bf16, seconds = bound("recipe: fp8-hybrid\ngradient_accumulation_steps: 4\n", &bf16);
    EXPECT(seconds > 0.5 * bf16 && seconds < 0.85 * bf16);
    double forward = bound("matmul_dtype: e4m3\ngradient_accumulation_steps: 4\n", &bf16);
    EXPECT(forward > seconds && forward < bf16);
    EXPECT(bound("gradient_accumulation_steps: 4\n", &bf16) == 0);
    EXPECT(bound("recipe: fp8-hybrid\nskip_quant_first_layers: 2\n", &bf16) == 0);
}

/* With several ranks a step ends with a program of its own. */
static void fp8_has_a_bound_on_several_gpus(void)
{
    const char *const lines[] = {"recipe: fp8-hybrid\ngpus: 2\ngradient_accumulation_steps: 1\n",
                                 "recipe: fp8-hybrid\ngpus: 2\ngradient_accumulation_steps: 2\n",
                                 "recipe: fp8-hybrid\ngpus: 2\ngradient_accumulation_steps: 4\n"};
    double            before = 0, before_bf16 = 0, bf16;
    for (int i = 0; i < 3; i++) {
        double seconds = bound(lines[i], &bf16);
        EXPECT(seconds > 0.5 * bf16 && seconds < 0.95 * bf16);
        EXPECT(seconds > before && bf16 > before_bf16);
        before = seconds, before_bf16 = bf16;
    }
}

TEST_MAIN(TEST(fp8_has_a_bound), TEST(fp8_has_a_bound_on_several_gpus))
