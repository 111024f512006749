/* memory: auto: its choice equals brute force's, for shallow models (test_memory_auto_long tests more), and its messages about the run
 * file. */
#include "memory_grid.h"

#define STATE_RUN "model_dtype: bf16\nmaster_dtype: fp32\nmoment_dtype: fp32\nsequence_len: 2048\nper_device_train_batch_size: 1\n"

static void the_choice_is_that_of_brute_force(void)
{
    expect_cells(QWEN3_06B(2), "h200", NO_OFFLOAD "per_device_train_batch_size: 4\nsequence_len: 2048\n");
    expect_cells(QWEN3_06B(6), "rtx3090", BLOCK_ALONE "sequence_len: 512\nmaster_dtype: fp32\nper_device_train_batch_size: 1\n");
    expect_cells(QWEN3_06B(6), "rtx4090", NO_OFFLOAD "per_device_train_batch_size: 1\nsequence_len: 512\n");
}

static void what_ranks_divide_is_chosen(void)
{
    expect_cells(QWEN3_06B(6), "rtx4090",
                 NO_OFFLOAD "recompute_att: false\nrecompute_qkv: false\ngpus: 4\nper_device_train_batch_size: 2\nsequence_len: 512\n");
    expect_cells(LLAMA_8B(7), "h200",
                 BLOCK_ALONE "gpus: 2\nper_device_train_batch_size: 1\ngradient_accumulation_steps: 4\nsequence_len: 512\n");
}

/* ---- what ranks divide ---- */

/* A plan with these lines for an H200, in the run's arena. */
static Plan *plan_of(Run *run, const char *model, const char *lines)
{
    CompileOptions options;
    Plan          *plan = NULL;
    open_run(run, model, "h200", lines);
    EXPECT_OK(setup_options(&run->arena, &run->config, run->model, &options));
    EXPECT_OK(setup_plan(&run->arena, run->model, &options, run->device, &plan));
    return plan;
}

static int64_t state_bytes(const Plan *plan)
{
    const int64_t *bytes = plan->region_bytes[SPACE_DEVICE];
    return bytes[REGION_WEIGHTS] + bytes[REGION_GRADS] + bytes[REGION_OPTIMIZER];
}

/* Each of four ranks has a quarter of weights, gradients, master copies and moments. For a while, a rank also holds the whole weights and
 * gradients of at most two layers, and of the embedding or the head. */
static void a_rank_has_its_share_of_the_state(void)
{
    static const char qwen3_8b[] =
        SHAPE("Qwen3ForCausalLM", 151936, 4096, 12288, 36, 32, 8, "\"head_dim\":128,\"tie_word_embeddings\":false");
    Run     one, four;
    int64_t layer = 0, largest = 0;
    Plan   *whole = plan_of(&one, qwen3_8b, STATE_RUN), *share = plan_of(&four, qwen3_8b, STATE_RUN "gpus: 4\nzero_level: 3\n");
    for (int i = 0; i < whole->num_params; i++) {
        const Param *param = whole->params[i];
        if (param->layer == 0) layer += type_bytes(&param->type);
        if (param->layer < 0 && type_bytes(&param->type) > largest) largest = type_bytes(&param->type);
    }
    int64_t rest = plan_total_bytes(whole) - state_bytes(whole), whole_norms = 8 << 20; /* whole_norms also covers the padding of shares */
    EXPECT(layer > 350 << 20 && largest == INT64_C(2) * 151936 * 4096);
    EXPECT(state_bytes(share) <= state_bytes(whole) / 4 + whole_norms);
    EXPECT(plan_total_bytes(share) - rest <= state_bytes(whole) / 4 + 2 * (2 * layer + largest));
    close_run(&one);
    close_run(&four);
}

/* ---- what the run file says ---- */

static void what_the_run_file_sets_stays(void)
{
    Run            run;
    MemoryChoices *found;
    open_run(&run, QWEN3_06B(2), "rtx4090", "recompute_att: true\nhead_chunks: 3\nrecompute_block: false\nmemory_limit: 5GB\n");
    found = arena_new(&run.arena, MemoryChoices);
    EXPECT_OK(fit_search(&run.config, run.model, run.device, found));
    EXPECT(found->count == MEMORY_CHOICES);
    for (int i = 0; i < found->count; i++) {
        const Config *config = &found->items[i].config;
        EXPECT(config->recompute_att && !config->recompute_block && config->head_chunks == 3);
        EXPECT(config->per_device_train_batch_size * config->gradient_accumulation_steps == 8);
    }
    close_run(&run);
}

/* The answer names the settings that take least memory, and what else to change. */
static void what_cannot_fit_is_answered(void)
{
    Run            run;
    const Config  *settled;
    CompileOptions options;
    Plan          *plan;
    open_run(&run, LLAMA_8B(8), "rtx4090", NO_OFFLOAD "sequence_len: 4096\n");
    EXPECT_OK(fit_settle(&run.arena, &run.config, run.model, run.device, NULL, 1, &settled));
    EXPECT_OK(setup_options(&run.arena, settled, run.model, &options));
    EXPECT_OK(setup_plan(&run.arena, run.model, &options, run.device, &plan));
    EXPECT(settled->per_device_train_batch_size == 1 && settled->gradient_accumulation_steps == 8);
    EXPECT_FAILS(fit_check_memory(settled, run.model, run.device, plan, false), ERR_NO_FIT, "optimizer=adamw_8bit");
    close_run(&run);
}

TEST_MAIN(TEST(the_choice_is_that_of_brute_force), TEST(what_ranks_divide_is_chosen), TEST(a_rank_has_its_share_of_the_state),
          TEST(what_the_run_file_sets_stays), TEST(what_cannot_fit_is_answered))
