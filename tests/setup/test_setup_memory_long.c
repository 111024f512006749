/* memory: auto: the choice is brute force's, in four budgets each for eleven runs. */
#include "memory_grid.h"

static void shallow_models(void)
{
    expect_cells(QWEN3_06B(2), "h200", "per_device_train_batch_size: 4\nsequence_len: 2048\n");
    expect_cells(QWEN3_06B(3), "rtx4090", "gradient_accumulation_steps: 6\nsequence_len: 512\nlora: true\n");
    expect_cells(QWEN3_06B(6), "rtx3090", "sequence_len: 4096\nmodel_dtype: fp32\n");
    expect_cells(LLAMA_8B(2), "h100", "sequence_len: 8192\noptimizer: adamw_8bit\nmax_grad_norm: 0\n");
    expect_cells(LLAMA_8B(7), "a100", "sequence_len: 1024\nlora: true\nqlora: nf4\nlora_dropout: 0.1\n");
    expect_cells(LLAMA_8B(4), "b200", "sequence_len: 2048\noptimizer: normuon\nmaster_dtype: fp32\n");
    expect_cells(LLAMA_70B(6), "h200", "sequence_len: 4096\nper_device_train_batch_size: 1\ngradient_accumulation_steps: 64\n");
}

static void scaled_products(void)
{
    expect_cells(QWEN3_06B(7), "h200", "recipe: fp8-hybrid\nskip_quant_last_layers: 1\n");
    expect_cells(QWEN3_06B(8), "rtx5090", "recipe: nvfp4\nsequence_len: 2048\nskip_quant_first_layers: 4\n");
}

static void deep_models(void)
{
    expect_cells(QWEN3_06B(28), "rtx4080", "sequence_len: 2048\nvalidation_split_ratio: 0.1\ngenerate_samples: 1\n");
    expect_cells(LLAMA_8B(32), "h200", "sequence_len: 2048\nlora: true\nper_device_train_batch_size: 1\n");
}

TEST_MAIN(TEST(shallow_models), TEST(scaled_products), TEST(deep_models))
