/* memory: auto: its choice equals brute force's, in four budgets for each of twenty runs. */
#include "memory_grid.h"

static void shallow_models(void)
{
    expect_cells(QWEN3_06B(2), "h200", NO_OFFLOAD "per_device_train_batch_size: 4\nsequence_len: 2048\n");
    expect_cells(QWEN3_06B(3), "rtx4090", NO_OFFLOAD "gradient_accumulation_steps: 6\nsequence_len: 512\nlora: true\n");
    expect_cells(QWEN3_06B(6), "rtx3090", NO_OFFLOAD "sequence_len: 4096\nmodel_dtype: fp32\n");
    expect_cells(LLAMA_8B(2), "h100", NO_OFFLOAD "sequence_len: 8192\noptimizer: adamw_8bit\nmax_grad_norm: 0\n");
    expect_cells(LLAMA_8B(7), "a100", NO_OFFLOAD "sequence_len: 1024\nlora: true\nqlora: nf4\nlora_dropout: 0.1\n");
    expect_cells(LLAMA_8B(4), "b200", NO_OFFLOAD "sequence_len: 2048\noptimizer: normuon\nmaster_dtype: fp32\n");
    expect_cells(LLAMA_70B(6), "h200", NO_OFFLOAD "sequence_len: 4096\nper_device_train_batch_size: 1\ngradient_accumulation_steps: 64\n");
}

static void what_waits_on_the_host(void)
{
    expect_cells(LLAMA_8B(2), "rtx4090", BLOCK_ALONE "sequence_len: 2048\nmaster_dtype: fp32\n");
    expect_cells(LLAMA_8B(9), "h200", BLOCK_ALONE "sequence_len: 1024\nlora: true\n");
    expect_cells(LLAMA_8B(6), "a10", BLOCK_ALONE "sequence_len: 512\nlora: true\nqlora: nf4\nper_device_train_batch_size: 1\n");
}

static void scaled_products(void)
{
    expect_cells(QWEN3_06B(7), "h200", NO_OFFLOAD "recipe: fp8-hybrid\nskip_quant_last_layers: 1\n");
    expect_cells(QWEN3_06B(8), "rtx5090", NO_OFFLOAD "recipe: nvfp4\nsequence_len: 2048\nskip_quant_first_layers: 4\n");
}

static void deep_models(void)
{
    expect_cells(QWEN3_06B(28), "rtx4080", NO_OFFLOAD "sequence_len: 2048\nvalidation_split_ratio: 0.1\ngenerate_samples: 1\n");
    expect_cells(LLAMA_8B(32), "h200", NO_OFFLOAD "sequence_len: 2048\nlora: true\nper_device_train_batch_size: 1\n");
}

#define FEW_RECOMPUTE "recompute_att: false\nrecompute_qkv: false\n"

static void what_ranks_divide(void)
{
    expect_cells(QWEN3_06B(9), "rtx4090", NO_OFFLOAD FEW_RECOMPUTE "gpus: 4\nsequence_len: 512\n");
    expect_cells(LLAMA_8B(8), "h200", BLOCK_ALONE "gpus: 4\nsequence_len: 1024\noptimizer: adamw_8bit\n");
    expect_cells(LLAMA_8B(9), "rtx4090",
                 BLOCK_ALONE "gpus: 2\nsequence_len: 512\nlora: true\nqlora: nf4\nper_device_train_batch_size: 1\n");
    expect_cells(LLAMA_8B(8), "b200", NO_OFFLOAD FEW_RECOMPUTE "gpus: 4\nsequence_len: 2048\noptimizer: normuon\nmaster_dtype: fp32\n");
    expect_cells(QWEN3_06B(7), "rtx5090", NO_OFFLOAD FEW_RECOMPUTE "gpus: 3\nrecipe: fp8-hybrid\nskip_quant_last_layers: 1\n");
    expect_cells(LLAMA_70B(12), "h200", BLOCK_ALONE "gpus: 4\nsequence_len: 2048\nper_device_train_batch_size: 1\n");
}

TEST_MAIN(TEST(shallow_models), TEST(what_waits_on_the_host), TEST(scaled_products), TEST(deep_models), TEST(what_ranks_divide))
