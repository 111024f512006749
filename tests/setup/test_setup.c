/* From run files to options, devices and plans; and their limits of memory and threads. */
#include "setup/setup.h"

#include "ops/ops.h"

#include "test.h"

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
    config.gpus = 4; /* four ranks share the host's memory */
    EXPECT_INT(setup_memory_limit(&config, &plan, &key), 20);
}

static const char small_head[] =
    "{\"architectures\":[\"LlamaForCausalLM\"],\"vocab_size\":151936,\"hidden_size\":64,\"intermediate_size\":64,"
    "\"num_hidden_layers\":1,\"num_attention_heads\":1,\"num_key_value_heads\":1,\"rms_norm_eps\":1e-5,"
    "\"max_position_embeddings\":131072,\"tie_word_embeddings\":false}";

/* Whether, in a run with these lines, the head's gradient is summed in fp32 within a micro-batch; *out_workspace: the head's workspace on
 * an H200. */
static bool head_sums_apart(const char *lines, int64_t *out_workspace)
{
    Arena          arena = {0};
    Config         config;
    HfModel       *model;
    CompileOptions options;
    Device        *planned;
    Plan          *plan;
    char           folder[] = "/tmp/test_setup_XXXXXX";
    bool           apart = false;
    EXPECT(mkdtemp(folder));
    EXPECT_OK(file_write_atomic(arena_printf(&arena, "%s/config.json", folder), small_head, strlen(small_head)));
    const char *run = arena_printf(&arena, "model: %s\n%s", folder, lines);
    EXPECT_OK(config_parse("run.yaml", run, strlen(run), NULL, 0, &config, NULL));
    EXPECT_OK(setup_model(&arena, &config, &model));
    EXPECT_OK(device_null_create("h200", &planned));
    EXPECT_OK(setup_options(&arena, &config, model, &options));
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

/* 16 x 2,048 tokens are 10 chunks of at most 3,456 rows: 6 micro-batches make 60 sums, 7 make 70. bf16 is allowed for up to 64 sums. */
static void chunks_of_the_head_count_among_sums(void)
{
#define SIXTEEN "sequence_len: 2048\nper_device_train_batch_size: 16\ngradient_accumulation_steps: "
    int64_t narrow, apart, unused;
    EXPECT(!head_sums_apart(SIXTEEN "6\n", &narrow));
    EXPECT(head_sums_apart(SIXTEEN "7\n", &apart));
    EXPECT_INT(apart - narrow, INT64_C(151936) * 64 * 4);
    EXPECT(head_sums_apart(SIXTEEN "64\n", &unused));
    EXPECT(head_sums_apart("head_chunks: 16\n" SIXTEEN "5\n", &unused)); /* 16 chunks of 2,048 rows */
    EXPECT(!head_sums_apart("sequence_len: 2048\nper_device_train_batch_size: 1\ngradient_accumulation_steps: 64\n", &unused));
    EXPECT(head_sums_apart("gradient_accumulation_steps: 1\nsequence_len: 131072\nper_device_train_batch_size: 2\n", &unused));
    /* fp32 gradients need no separate sum */
    EXPECT(head_sums_apart("grad_accum_dtype: fp32\n" SIXTEEN "7\n", &apart));
    EXPECT_INT(apart, narrow);
}

/* Checks how a device is told to exchange data between ranks, with these lines of a run file. */
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

TEST_MAIN(TEST(keys_say_how_ranks_send), TEST(chunks_of_the_head_count_among_sums), TEST(pinned_memory_is_what_the_host_has_at_most),
          TEST(the_smallest_bound_counts))
