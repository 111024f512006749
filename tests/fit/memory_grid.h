/* memory: auto against brute force: every combination of the grid that docs/memory.md states, each one compiled. */
#pragma once

#include "fit/fit.h"

#include "test.h"

#include <math.h>

#define SHAPE(arch, vocab, hidden, intermediate, layers, heads, kv, more) \
    "{\"architectures\":[\"" arch "\"],\"vocab_size\":" #vocab ",\"hidden_size\":" #hidden ",\"intermediate_size\":" #intermediate \
    ",\"num_hidden_layers\":" #layers ",\"num_attention_heads\":" #heads ",\"num_key_value_heads\":" #kv \
    ",\"rms_norm_eps\":1e-5,\"max_position_embeddings\":32768,\"rope_theta\":500000," more "}"
#define QWEN3_06B(layers) SHAPE("Qwen3ForCausalLM", 151936, 1024, 3072, layers, 16, 8, "\"head_dim\":128,\"tie_word_embeddings\":true")
#define LLAMA_8B(layers) SHAPE("LlamaForCausalLM", 128256, 4096, 14336, layers, 32, 8, "\"tie_word_embeddings\":false")
#define LLAMA_70B(layers) SHAPE("LlamaForCausalLM", 128256, 8192, 28672, layers, 64, 8, "\"tie_word_embeddings\":false")

/* A run of a model on a GPU. */
typedef struct Run {
    Arena    arena;
    Config   config;
    HfModel *model;
    Device  *device;
    char     folder[32];
} Run;

static void open_run(Run *run, const char *model, const char *gpu, const char *lines)
{
    StrBuf text = {0};
    *run = (Run){0};
    strcpy(run->folder, "/tmp/test_setup_XXXXXX");
    EXPECT(mkdtemp(run->folder));
    EXPECT_OK(file_write_atomic(arena_printf(&run->arena, "%s/config.json", run->folder), model, strlen(model)));
    strbuf_printf(&text, "model: %s\nmemory: auto\n%s", run->folder, lines);
    EXPECT_OK(config_parse("run.yaml", text.data, text.len, NULL, 0, &run->config, NULL));
    EXPECT_OK(setup_model(&run->arena, &run->config, &run->model));
    EXPECT_OK(device_null_create(gpu, &run->device));
    strbuf_deinit(&text);
}

static void close_run(Run *run)
{
    run->device->api->destroy(run->device);
    hf_model_close(run->model);
    config_deinit(&run->config);
    EXPECT_OK(file_remove_tree(run->folder));
    arena_deinit(&run->arena);
}

#define NO_OFFLOAD \
    "offload_residual: false\noffload_optimizer: false\noffload_master: false\noffload_weights: false\noffload_quants: false\n"
#define BLOCK_ALONE "recompute_att: false\nrecompute_ffn: false\nrecompute_qkv: false\nrecompute_swiglu: false\nrecompute_rmsnorm: false\n"

/* ---- brute force ---- */

/* A combination of all settings except head_chunks, with the plan's bytes for each number of chunks. */
enum { NUM_CHUNKS = 6, NUM_RECOMPUTE = 6, NUM_OFFLOAD = 5, MAX_GROUPS = 4096 };
static const int64_t chunk_counts[NUM_CHUNKS] = {0, 2, 4, 8, 16, 32};
typedef struct Group {
    int64_t batch;
    int     zero, recompute, offload; /* bit masks, the first key in the highest bit */
    double  seconds;
    int64_t bytes[NUM_CHUNKS];
} Group;

/* Sets a key that the run file leaves open. False: the bit is set, but the run file sets the key. */
static bool set_flag(const Config *config, ConfigKey key, bool *flag, int bits, int bit)
{
    if (!config->origin[key]) *flag = bits >> bit & 1;
    return !config->origin[key] || !(bits >> bit & 1);
}

static bool set_group(Config *config, int64_t rows, const Group *group, int64_t chunks)
{
    bool may = true, has_master = config->lora || config->master_dtype == OPT_FLOAT_FP32,
         has_codes = config->qlora != OPT_QLORA_NONE || config->recipe == OPT_RECIPE_FP8_HYBRID;
    config->per_device_train_batch_size = group->batch;
    config->gradient_accumulation_steps = rows / group->batch;
    config->head_chunks = chunks;
    config->zero_level = group->zero;
    may &= set_flag(config, KEY_run_recompute_block, &config->recompute_block, group->recompute, 5);
    may &= set_flag(config, KEY_run_recompute_att, &config->recompute_att, group->recompute, 4);
    may &= set_flag(config, KEY_run_recompute_ffn, &config->recompute_ffn, group->recompute, 3);
    may &= set_flag(config, KEY_run_recompute_qkv, &config->recompute_qkv, group->recompute, 2);
    may &= set_flag(config, KEY_run_recompute_swiglu, &config->recompute_swiglu, group->recompute, 1);
    may &= set_flag(config, KEY_run_recompute_rmsnorm, &config->recompute_rmsnorm, group->recompute, 0);
    may &= set_flag(config, KEY_run_offload_residual, &config->offload_residual, group->offload, 4);
    may &= set_flag(config, KEY_run_offload_optimizer, &config->offload_optimizer, group->offload, 3);
    may &= set_flag(config, KEY_run_offload_master, &config->offload_master, group->offload, 2);
    may &= set_flag(config, KEY_run_offload_weights, &config->offload_weights, group->offload, 1);
    may &= set_flag(config, KEY_run_offload_quants, &config->offload_quants, group->offload, 0);
    if (setup_world(config) > 1 && group->zero < 3 && !config->lora) may &= !config->offload_weights;
    return may && (has_master || !config->offload_master) && (has_codes || !config->offload_quants) && group->recompute <= 32;
}

static void measure(const Run *run, const Config *config, int64_t *bytes, double *seconds)
{
    Arena          arena = {0};
    CompileOptions options;
    Plan          *plan;
    EXPECT_OK(setup_options(&arena, config, run->model, &options));
    EXPECT_OK(setup_plan(&arena, run->model, &options, run->device, &plan));
    *bytes = setup_needed_bytes(plan);
    *seconds = plan_program(plan, &entry_optimizer)->simulated_seconds;
    for (int64_t i = 0; i < config->gradient_accumulation_steps; i++)
        *seconds += plan_micro(plan, i, config->gradient_accumulation_steps)->simulated_seconds;
    arena_deinit(&arena);
}

/* Measures the whole grid, in its order. Returns the number of groups. */
static int measure_grid(const Run *run, Group *groups)
{
    int64_t rows = run->config.per_device_train_batch_size * run->config.gradient_accumulation_steps;
    int     count = 0, flags = 1 << (NUM_RECOMPUTE + NUM_OFFLOAD), levels = setup_world(&run->config) > 1 ? 3 : 1;
    for (int64_t batch = rows; batch >= 1; batch--)
        for (int i = 0; i < levels * flags && rows % batch == 0; i++) {
            Group  group = {batch, 1 + i / flags, .recompute = i % flags >> NUM_OFFLOAD, .offload = i & ((1 << NUM_OFFLOAD) - 1)};
            Config config = run->config;
            if (!set_group(&config, rows, &group, 0)) continue;
            for (int k = 0; k < NUM_CHUNKS; k++) {
                double seconds;
                set_group(&config, rows, &group, chunk_counts[k]);
                measure(run, &config, &group.bytes[k], &seconds);
                EXPECT(k == 0 || seconds == group.seconds);
                group.seconds = seconds;
            }
            CHECK(count < MAX_GROUPS);
            groups[count++] = group;
        }
    return count;
}

/* Index of the first number of chunks with which the group fits; -1: none. */
static int first_fitting(const Group *group, int64_t limit)
{
    for (int k = 0; k < NUM_CHUNKS; k++)
        if (group->bytes[k] <= limit) return k;
    return -1;
}

/* Index of the fastest group that fits and isn't taken; of equally fast groups, the first; -1: none is left. */
static int fastest(const Group *groups, int count, int64_t limit, const bool *taken)
{
    int best = -1;
    for (int i = 0; i < count; i++)
        if (!taken[i] && first_fitting(&groups[i], limit) >= 0 && (best < 0 || groups[i].seconds < groups[best].seconds)) best = i;
    return best;
}

static void expect_choice(const Run *run, const MemoryChoice *choice, const Group *group, int64_t limit)
{
    Config  expected = run->config;
    int     k = first_fitting(group, limit);
    int64_t rows = run->config.per_device_train_batch_size * run->config.gradient_accumulation_steps;
    set_group(&expected, rows, group, chunk_counts[k]);
    EXPECT(choice->config.per_device_train_batch_size == expected.per_device_train_batch_size);
    EXPECT(choice->config.gradient_accumulation_steps == expected.gradient_accumulation_steps);
    EXPECT(choice->config.recompute_block == expected.recompute_block);
    EXPECT(choice->config.recompute_att == expected.recompute_att);
    EXPECT(choice->config.recompute_ffn == expected.recompute_ffn);
    EXPECT(choice->config.recompute_qkv == expected.recompute_qkv);
    EXPECT(choice->config.recompute_swiglu == expected.recompute_swiglu);
    EXPECT(choice->config.recompute_rmsnorm == expected.recompute_rmsnorm);
    EXPECT(choice->config.head_chunks == expected.head_chunks);
    EXPECT(choice->config.zero_level == expected.zero_level);
    EXPECT(choice->config.offload_residual == expected.offload_residual);
    EXPECT(choice->config.offload_optimizer == expected.offload_optimizer);
    EXPECT(choice->config.offload_master == expected.offload_master);
    EXPECT(choice->config.offload_weights == expected.offload_weights);
    EXPECT(choice->config.offload_quants == expected.offload_quants);
    EXPECT(choice->bytes == group->bytes[k]);
    EXPECT_NEAR(choice->seconds, group->seconds, 1e-12 * group->seconds);
}

static void expect_search(Run *run, const Group *groups, int count, int64_t limit)
{
    MemoryChoices *found = arena_new(&run->arena, MemoryChoices);
    bool           taken[MAX_GROUPS] = {false};
    run->config.memory_limit = limit;
    EXPECT_OK(fit_search(&run->config, run->model, run->device, found));
    for (int i = 0; i < MEMORY_CHOICES; i++) {
        int best = fastest(groups, count, limit, taken);
        EXPECT((best >= 0) == (i < found->count));
        if (best < 0 || i >= found->count) return;
        taken[best] = true;
        expect_choice(run, &found->items[i], &groups[best], limit);
    }
}

static int by_bytes(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Compares at four limits of memory: few combinations fit, one of them exactly; a quarter fit; two thirds fit; none fits. */
static void expect_cells(const char *model, const char *gpu, const char *lines)
{
    static Group   groups[MAX_GROUPS];
    static int64_t sizes[MAX_GROUPS * NUM_CHUNKS];
    Run            run;
    open_run(&run, model, gpu, lines);
    int count = measure_grid(&run, groups), num = 0;
    for (int i = 0; i < count; i++)
        for (int k = 0; k < NUM_CHUNKS; k++) sizes[num++] = groups[i].bytes[k];
    EXPECT(num >= 500);
    qsort(sizes, (size_t)num, sizeof *sizes, by_bytes);
    expect_search(&run, groups, count, sizes[8]);
    expect_search(&run, groups, count, sizes[num / 4] + 1);
    expect_search(&run, groups, count, sizes[num * 2 / 3] - 1);
    expect_search(&run, groups, count, sizes[0] - 1);
    close_run(&run);
}
