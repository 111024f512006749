/* memory: auto: the choice is brute force's, of shallow models (test_setup_memory_long has more); what the run file says of it. */
#include "memory_grid.h"

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

/* ---- what the run file says ---- */

static void what_the_run_file_sets_stays(void)
{
    Run            run;
    MemoryChoices *found;
    open_run(&run, QWEN3_06B(2), "rtx4090", "recompute_att: true\nhead_chunks: 3\nrecompute_block: false\nmemory_limit: 5GB\n");
    found = arena_new(&run.arena, MemoryChoices);
    EXPECT_OK(setup_search(&run.config, run.model, run.device, found));
    EXPECT(found->count == MEMORY_CHOICES);
    for (int i = 0; i < found->count; i++) {
        const Config *config = &found->items[i].config;
        EXPECT(config->recompute_att && !config->recompute_block && config->head_chunks == 3);
        EXPECT(config->per_device_train_batch_size * config->gradient_accumulation_steps == 8);
    }
    close_run(&run);
}

/* What takes least is named, with what else to change. */
static void what_cannot_fit_is_answered(void)
{
    Run            run;
    const Config  *settled;
    CompileOptions options;
    Plan          *plan;
    open_run(&run, LLAMA_8B(8), "rtx4090", NO_OFFLOAD "sequence_len: 4096\n");
    EXPECT_OK(setup_settle(&run.arena, &run.config, run.model, run.device, NULL, 1, &settled));
    EXPECT_OK(setup_options(settled, run.model, &options));
    EXPECT_OK(setup_plan(&run.arena, run.model, &options, run.device, &plan));
    EXPECT(settled->per_device_train_batch_size == 1 && settled->gradient_accumulation_steps == 8);
    EXPECT_FAILS(setup_check_memory(settled, run.model, run.device, plan, false), ERR_NO_FIT, "optimizer=adamw_8bit");
    close_run(&run);
}

TEST_MAIN(TEST(the_choice_is_that_of_brute_force), TEST(what_ranks_divide_is_chosen), TEST(what_the_run_file_sets_stays),
          TEST(what_cannot_fit_is_answered))
