/* Settings that fit where a plan doesn't. They must be found with few plans, because planning a large model takes time. */
#include "fit/fit.h"

#include "test.h"

static Device   *planned; /* the device that the counting device wraps */
static DeviceApi counting_api;
static int       num_launches; /* launches planned so far */

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

/* Plans Llama-3.1-70B, cut to num_layers layers, with these lines of a run file. With `text`, the plan must not fit, and the answer must
 * contain `text`; with NULL, settings that fit must be found. Either may bind at most most_plans times the launches of that plan. */
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
    EXPECT_OK(setup_options(&arena, &config, model, &options));
    EXPECT_OK(device_null_create("h200", &planned));
    counting_api = *planned->api;
    counting_api.facts = facts;
    counting_api.bind = count_bind;
    Device counting = {.api = &counting_api};
    num_launches = 0;
    EXPECT_OK(setup_plan(&arena, model, &options, &counting, &plan));
    int first = num_launches;
    if (text) {
        EXPECT_FAILS(fit_check_memory(&config, model, &counting, plan, false), ERR_NO_FIT, text);
    } else {
        MemoryChoices *found = arena_new(&arena, MemoryChoices);
        EXPECT_OK(fit_search(&config, model, &counting, found));
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

/* Weights, gradients and moments alone are too large: settings that keep all three aren't planned. */
static void a_large_model_is_answered_with_little_planning(void)
{
    expect_answer(80, "", "recompute_block=true lora=true qlora=nf4", 10);
    expect_answer(80, ON_DEVICE "memory_limit: 20GiB\n", "recompute_block=true lora=true qlora=nf4 head_chunks=32 sequence_len=256;", 7);
    expect_answer(80, ON_DEVICE "qlora: none\n", "recompute_block=true lora=true head_chunks=", 10);
    expect_answer(80, ON_DEVICE "qlora: none\nmemory_limit: 20GiB\n", "it takes about 1", 4);
    expect_answer(80, ON_DEVICE "head_chunks: 0\nqlora: none\nmemory_limit: 132GiB\n",
                  "with per_device_train_batch_size=1 gradient_accumulation_steps=8 recompute_block=true lora=true sequence_len=256;", 7);
}

/* The answer also finds what memory: auto would do: tensors that may wait on the host leave the GPU, but no more of them than necessary. */
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

/* The grids have 792, 792, 12,672, 12,672 and 384 combinations. */
static void a_large_grid_is_searched_with_little_planning(void)
{
    expect_answer(80, ON_DEVICE "lora: true\nqlora: nf4\n", NULL, 25);
    expect_answer(80, ON_DEVICE "lora: true\nqlora: nf4\nmemory_limit: 60GB\n", NULL, 25);
    expect_answer(80, "lora: true\n", NULL, 42);
    expect_answer(80, "gpus: 4\noptimizer: adamw_8bit\n", NULL, 45);
    expect_answer(80, "gpus: 4\nlora: true\nzero_level: 3\nrecompute_block: true\n", NULL, 17);
}

/* A run from random weights has no base for adapters. */
static void what_was_not_tried_is_not_named(void)
{
    expect_answer(80, ON_DEVICE "head_chunks: 0\nmemory_limit: 20GiB\nfrom_scratch: true\n",
                  "recompute_block=true optimizer=adamw_8bit sequence_len=256;", 3);
}

/* 8-bit moments take least memory, and are offered first. Only AdamW has them; with adapters, moments hardly matter. */
static void smaller_moments_are_offered(void)
{
    expect_answer(10, "memory_limit: 130GiB\n", ": optimizer=adamw_8bit\n", 6);
    EXPECT_CONTAINS(strstr(status_message(), "adamw_8bit"), ": moment_dtype=bf16\n");
    expect_answer(10, "memory_limit: 115GiB\noptimizer: normuon\n", ": moment_dtype=bf16", 6);
    EXPECT(!strstr(status_message(), "adamw_8bit"));
    expect_answer(10, "memory_limit: 60GiB\nlora: true\n", ": recompute_block=true", 6);
    EXPECT(!strstr(status_message(), "adamw_8bit") && !strstr(status_message(), "moment_dtype"));
}

TEST_MAIN(TEST(a_large_model_is_answered_with_little_planning), TEST(what_may_wait_on_the_host_is_tried),
          TEST(a_large_grid_is_searched_with_little_planning), TEST(what_was_not_tried_is_not_named), TEST(smaller_moments_are_offered))
