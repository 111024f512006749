/* What fits where a plan doesn't: found with little planning, for that of a large model is what takes time. */
#include "setup/setup.h"

#include "ops/ops.h"

#include "test.h"

static Device   *planned; /* the device under the counting one */
static DeviceApi counting_api;
static int       num_launches; /* planned */

static Status facts(Device *device, DeviceFacts *out)
{
    (void)device;
    return planned->api->facts(planned, out);
}

static Status count_bind(Device *device, const Node *node, BoundKernel *out)
{
    (void)device;
    num_launches++;
    return planned->api->bind(planned, node, out);
}

static const char llama_70b[] =
    "{\"architectures\":[\"LlamaForCausalLM\"],\"vocab_size\":128256,\"hidden_size\":8192,\"intermediate_size\":28672,"
    "\"num_hidden_layers\":%d,\"num_attention_heads\":64,\"num_key_value_heads\":8,\"rms_norm_eps\":1e-5,"
    "\"max_position_embeddings\":131072,\"rope_theta\":500000,\"tie_word_embeddings\":false}";

/* A plan of Llama-3.1-70B, or of its first layers, with these lines of a run file, and whether it fits: `text` in the answer, or, for NULL,
 * the search for settings that fit, with at most so many times the launches of that plan. */
static void expect_answer(int num_layers, const char *lines, const char *text, int most_plans)
{
    Arena          arena = {0};
    Config         config;
    HfModel       *model;
    CompileOptions options;
    Plan          *plan;
    StrBuf         run = {0};
    char           folder[] = "/tmp/test_setup_XXXXXX";
    EXPECT(mkdtemp(folder));
    const char *path = arena_printf(&arena, "%s/config.json", folder), *json = arena_printf(&arena, llama_70b, num_layers);
    EXPECT_OK(file_write_atomic(path, json, strlen(json)));
    strbuf_printf(&run, "model: %s\nsequence_len: 8192\n%s", folder, lines);
    EXPECT_OK(config_parse("run.yaml", run.data, run.len, NULL, 0, &config, NULL));
    EXPECT_OK(setup_model(&arena, &config, &model));
    EXPECT_OK(setup_options(&config, model, &options));
    EXPECT_OK(device_null_create("h200", &planned));
    counting_api = *planned->api;
    counting_api.facts = facts;
    counting_api.bind = count_bind;
    Device counting = {.api = &counting_api};
    num_launches = 0;
    EXPECT_OK(setup_plan(&arena, model, &options, &counting, &plan));
    int first = num_launches;
    if (text) {
        EXPECT_FAILS(setup_check_memory(&config, model, &counting, plan, false), ERR_NO_FIT, text);
    } else {
        MemoryChoices *found = arena_new(&arena, MemoryChoices);
        EXPECT_OK(setup_search(&config, model, &counting, found));
        EXPECT(found->count > 0);
    }
    EXPECT(num_launches - first <= most_plans * first);
    planned->api->destroy(planned);
    hf_model_close(model);
    config_deinit(&config);
    strbuf_deinit(&run);
    EXPECT_OK(file_remove_tree(folder));
    arena_deinit(&arena);
}

#define ON_DEVICE \
    "offload_residual: false\noffload_optimizer: false\noffload_master: false\noffload_weights: false\noffload_quants: false\n"

/* What leaves weights, gradients and moments, which alone take more, isn't planned. */
static void a_large_model_is_answered_with_little_planning(void)
{
    expect_answer(80, "", "recompute_block=true lora=true qlora=nf4", 10);
    expect_answer(80, ON_DEVICE "memory_limit: 20GiB\n", "recompute_block=true lora=true qlora=nf4 head_chunks=32 sequence_len=256;", 7);
    expect_answer(80, ON_DEVICE "qlora: none\n", "recompute_block=true lora=true head_chunks=", 10);
    expect_answer(80, ON_DEVICE "qlora: none\nmemory_limit: 20GiB\n", "it takes about 1", 4);
    expect_answer(80, ON_DEVICE "head_chunks: 0\nqlora: none\nmemory_limit: 132GiB\n",
                  "with per_device_train_batch_size=1 gradient_accumulation_steps=8 recompute_block=true lora=true sequence_len=256;", 7);
}

/* What memory: auto would do is found as well: what waits on the host leaves the GPU, and no more of it than is needed. */
static void what_may_wait_on_the_host_is_tried(void)
{
    expect_answer(80, "memory_limit: 20GiB\n",
                  "of the host's memory: per_device_train_batch_size=1 gradient_accumulation_steps=8 "
                  "recompute_block=true lora=true qlora=nf4 offload_weights=true",
                  8);
    expect_answer(80, "qlora: none\nmemory_limit: 20GiB\n", "lora=true offload_residual=true offload_weights=true", 8);
    expect_answer(80, "lora: true\nqlora: nf4\nmemory_limit: 20GiB\n", "recompute_block=true offload_weights=true", 10);
    expect_answer(80, "lora: true\nqlora: nf4\noffload_weights: false\nmemory_limit: 20GiB\n", "offload_quants=true", 10);
}

/* Of their 792, 792, 12,672, 12,672 and 384 combinations. */
static void a_large_grid_is_searched_with_little_planning(void)
{
    expect_answer(80, ON_DEVICE "lora: true\nqlora: nf4\n", NULL, 25);
    expect_answer(80, ON_DEVICE "lora: true\nqlora: nf4\nmemory_limit: 60GB\n", NULL, 25);
    expect_answer(80, "lora: true\n", NULL, 42);
    expect_answer(80, "gpus: 4\noptimizer: adamw_8bit\n", NULL, 45);
    expect_answer(80, "gpus: 4\nlora: true\nzero_level: 3\nrecompute_block: true\n", NULL, 17);
}

/* A run from random weights has no base to adapt. */
static void what_was_not_tried_is_not_named(void)
{
    expect_answer(80, ON_DEVICE "head_chunks: 0\nmemory_limit: 20GiB\nfrom_scratch: true\n",
                  "recompute_block=true optimizer=adamw_8bit sequence_len=256;", 3);
}

/* Those of 8 bits take least, and come first. They are AdamW's; adapters' are no matter. */
static void smaller_moments_are_offered(void)
{
    expect_answer(10, "memory_limit: 130GiB\n", ": optimizer=adamw_8bit\n", 6);
    EXPECT_CONTAINS(strstr(status_message(), "adamw_8bit"), ": moment_dtype=bf16\n");
    expect_answer(10, "memory_limit: 115GiB\noptimizer: normuon\n", ": moment_dtype=bf16", 6);
    EXPECT(!strstr(status_message(), "adamw_8bit"));
    expect_answer(10, "memory_limit: 60GiB\nlora: true\n", ": recompute_block=true", 6);
    EXPECT(!strstr(status_message(), "adamw_8bit") && !strstr(status_message(), "moment_dtype"));
}

static void pinned_memory_is_what_the_host_has_at_most(void)
{
    static const int64_t gib = INT64_C(1) << 30;
    Plan                 plan = {0};
    plan.region_bytes[SPACE_HOST][REGION_WEIGHTS] = 2 * gib;
    plan.region_bytes[SPACE_HOST][REGION_OPTIMIZER] = gib;
    EXPECT_OK(setup_check_pinned(&plan, 1, 3 * gib));
    EXPECT_OK(setup_check_pinned(&plan, 1, 0));
    EXPECT_FAILS(setup_check_pinned(&plan, 1, 3 * gib - 1), ERR_NO_FIT, "the plan pins 3.00 GiB of the host's memory, which has 3.00 GiB");
    EXPECT_OK(setup_check_pinned(&plan, 2, 6 * gib));
    EXPECT_FAILS(setup_check_pinned(&plan, 2, 5 * gib), ERR_NO_FIT,
                 "the plans of 2 ranks pin 6.00 GiB of the host's memory, which has 5.00 GiB");
    EXPECT_INT(setup_needed_bytes(&plan), 0);
    plan.facts.is_host = true;
    EXPECT_OK(setup_check_pinned(&plan, 1, gib));
    EXPECT_INT(setup_needed_bytes(&plan), 3 * gib);
}

static void the_smallest_bound_counts(void)
{
    Plan      plan = {.facts = {.memory_bytes = 80, .driver_bytes = 10}};
    Config    config = {0};
    ConfigKey key;
    EXPECT_INT(setup_memory_limit(&config, &plan, &key), 80);
    EXPECT_INT(key, CONFIG_KEY_COUNT);
    config.gpu_memory = 80;
    EXPECT_INT(setup_memory_limit(&config, &plan, &key), 70);
    EXPECT_INT(key, KEY_run_gpu_memory);
    config.memory_limit = 60;
    EXPECT_INT(setup_memory_limit(&config, &plan, &key), 60);
    EXPECT_INT(key, KEY_run_memory_limit);
    config.gpu_memory = 5;
    EXPECT_INT(setup_memory_limit(&config, &plan, NULL), 1);
    plan.facts.memory_bytes = config.memory_limit = config.gpu_memory = 0;
    EXPECT_INT(setup_memory_limit(&config, &plan, &key), 0);
    plan.facts = (DeviceFacts){.memory_bytes = 80, .is_host = true};
    config.gpus = 4; /* ranks share it */
    EXPECT_INT(setup_memory_limit(&config, &plan, &key), 20);
}

/* The bound of a run with these lines, in seconds, and what its bf16 twin is expected to take. */
static double bound(const char *lines, double *out_bf16)
{
    Arena          arena = {0};
    Config         config;
    HfModel       *model;
    CompileOptions options;
    Plan          *plan;
    StrBuf         run = {0};
    double         seconds;
    char           folder[] = "/tmp/test_setup_XXXXXX";
    EXPECT(mkdtemp(folder));
    const char *path = arena_printf(&arena, "%s/config.json", folder), *json = arena_printf(&arena, llama_70b, 2);
    EXPECT_OK(file_write_atomic(path, json, strlen(json)));
    strbuf_printf(&run, "model: %s\nsequence_len: 2048\n%s", folder, lines);
    EXPECT_OK(config_parse("run.yaml", run.data, run.len, NULL, 0, &config, NULL));
    EXPECT_OK(setup_model(&arena, &config, &model));
    EXPECT_OK(device_null_create("h200", &planned));
    EXPECT_OK(setup_fp8_bound(&config, model, planned, &seconds));
    config.recipe = OPT_RECIPE_BF16;
    config.matmul_dtype = OPT_UNSET;
    EXPECT_OK(setup_options(&config, model, &options));
    EXPECT_OK(setup_plan(&arena, model, &options, planned, &plan));
    *out_bf16 = setup_step_seconds(plan, config.gradient_accumulation_steps);
    planned->api->destroy(planned);
    hf_model_close(model);
    config_deinit(&config);
    strbuf_deinit(&run);
    EXPECT_OK(file_remove_tree(folder));
    arena_deinit(&arena);
    return seconds;
}

/* Products are most of such a step, and FP8 units are twice as fast. */
static void fp8_has_a_bound(void)
{
    double bf16, seconds = bound("recipe: fp8-hybrid\ngradient_accumulation_steps: 4\n", &bf16);
    EXPECT(seconds > 0.5 * bf16 && seconds < 0.85 * bf16);
    double forward = bound("matmul_dtype: e4m3\ngradient_accumulation_steps: 4\n", &bf16);
    EXPECT(forward > seconds && forward < bf16);
    EXPECT(bound("gradient_accumulation_steps: 4\n", &bf16) == 0);
    EXPECT(bound("recipe: fp8-hybrid\nskip_quant_first_layers: 2\n", &bf16) == 0);
}

/* A step of several ranks ends with a program of its own. */
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

static const char small_head[] =
    "{\"architectures\":[\"LlamaForCausalLM\"],\"vocab_size\":151936,\"hidden_size\":64,\"intermediate_size\":64,"
    "\"num_hidden_layers\":1,\"num_attention_heads\":1,\"num_key_value_heads\":1,\"rms_norm_eps\":1e-5,"
    "\"max_position_embeddings\":131072,\"tie_word_embeddings\":false}";

/* Whether the head's gradient is added up in fp32 within a micro-batch of a run with these lines, and what the head works in on an H200. */
static bool head_sums_apart(const char *lines, int64_t *out_workspace)
{
    Arena          arena = {0};
    Config         config;
    HfModel       *model;
    CompileOptions options;
    Plan          *plan;
    char           folder[] = "/tmp/test_setup_XXXXXX";
    bool           apart = false;
    EXPECT(mkdtemp(folder));
    EXPECT_OK(file_write_atomic(arena_printf(&arena, "%s/config.json", folder), small_head, strlen(small_head)));
    const char *run = arena_printf(&arena, "model: %s\n%s", folder, lines);
    EXPECT_OK(config_parse("run.yaml", run, strlen(run), NULL, 0, &config, NULL));
    EXPECT_OK(setup_model(&arena, &config, &model));
    EXPECT_OK(device_null_create("h200", &planned));
    EXPECT_OK(setup_options(&config, model, &options));
    EXPECT_OK(setup_plan(&arena, model, &options, planned, &plan));
    for (const Node *node = plan_micro(plan, 0, 2)->graph->first; node; node = node->next) {
        if (node->op->id != OP_LM_HEAD_LOSS_BWD) continue;
        apart = ((const LmHeadBwdAttrs *)node->attrs)->sum_f32;
        *out_workspace = (int64_t)node->op->gpu_workspace(node, 90);
    }
    planned->api->destroy(planned);
    hf_model_close(model);
    config_deinit(&config);
    EXPECT_OK(file_remove_tree(folder));
    arena_deinit(&arena);
    return apart;
}

/* 16 x 2,048 tokens are 10 chunks of at most 3,456 rows: 6 micro-batches make 60 sums, 7 make 70. bf16 may hold 64. */
static void chunks_of_the_head_count_among_sums(void)
{
#define SIXTEEN "sequence_len: 2048\nper_device_train_batch_size: 16\ngradient_accumulation_steps: "
    int64_t narrow, apart, unused;
    EXPECT(!head_sums_apart(SIXTEEN "6\n", &narrow));
    EXPECT(head_sums_apart(SIXTEEN "7\n", &apart));
    EXPECT_INT(apart - narrow, INT64_C(151936) * 64 * 4);
    EXPECT(head_sums_apart(SIXTEEN "64\n", &unused));
    EXPECT(head_sums_apart("head_chunks: 16\n" SIXTEEN "5\n", &unused)); /* 16 of 2,048 rows */
    EXPECT(!head_sums_apart("sequence_len: 2048\nper_device_train_batch_size: 1\ngradient_accumulation_steps: 64\n", &unused));
    EXPECT(head_sums_apart("gradient_accumulation_steps: 1\nsequence_len: 131072\nper_device_train_batch_size: 2\n", &unused));
    /* gradients in fp32 need no sum beside them */
    EXPECT(head_sums_apart("grad_accum_dtype: fp32\n" SIXTEEN "7\n", &apart));
    EXPECT_INT(apart, narrow);
}

/* What a device is told of how ranks send to one another, by these lines of a run file. */
static void expect_crossing(const char *lines, CrossBy gather, CrossBy reduce)
{
    Arena       arena = {0};
    Config      config;
    Device     *device;
    const char *text = arena_printf(&arena, "device: cpu\nthreads: 1\n%s", lines);
    EXPECT_OK(config_parse("run.yaml", text, strlen(text), NULL, 0, &config, NULL));
    for (int count = 1; count <= 2; count++) {
        EXPECT_OK(setup_rank_device(&config, 0, count, &device));
        EXPECT_INT(device->gather_by, gather);
        EXPECT_INT(device->reduce_by, reduce);
        device->api->destroy(device);
    }
    config_deinit(&config);
    arena_deinit(&arena);
}

static void keys_say_how_ranks_send(void)
{
    expect_crossing("", CROSS_AUTO, CROSS_AUTO);
    expect_crossing("memcpy_all_gather: true", CROSS_COPIES, CROSS_AUTO);
    expect_crossing("memcpy_all_gather: off", CROSS_NCCL, CROSS_AUTO);
    expect_crossing("memcpy_send_recv: false", CROSS_AUTO, CROSS_NCCL);
    expect_crossing("use_all_to_all_reduce: true", CROSS_AUTO, CROSS_COPIES);
    expect_crossing("memcpy_send_recv: true\nuse_all_to_all_reduce: true", CROSS_AUTO, CROSS_COPIES);
}

TEST_MAIN(TEST(keys_say_how_ranks_send), TEST(fp8_has_a_bound), TEST(fp8_has_a_bound_on_several_gpus),
          TEST(chunks_of_the_head_count_among_sums), TEST(a_large_model_is_answered_with_little_planning),
          TEST(what_may_wait_on_the_host_is_tried), TEST(a_large_grid_is_searched_with_little_planning),
          TEST(what_was_not_tried_is_not_named), TEST(smaller_moments_are_offered), TEST(pinned_memory_is_what_the_host_has_at_most),
          TEST(the_smallest_bound_counts))
