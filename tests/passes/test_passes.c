/* The passes on the shipped families: which fusions apply, the graph's text after `bind` and as it runs (golden files; --update rewrites
 * them), print -> parse -> print, plans of generated configs, plans of large models. tests/passes/PASS tests each pass alone. */
#include "base/philox.h"
#include "family_config.h"

#include <time.h>

static bool update_golden;

/* ---- golden texts ---- */

typedef struct Golden {
    const char *family, *case_name, *program;
} Golden;

static void compare_golden(const char *path, const char *text, size_t len)
{
    Arena arena = {0};
    Str   want = {0};
    if (update_golden) EXPECT_OK(file_write_atomic(path, text, len));
    EXPECT_OK(file_read(&arena, path, 1 << 24, &want));
    size_t line = 1, at = 0;
    while (at < len && at < want.len && text[at] == want.data[at]) line += text[at++] == '\n';
    if (at != len || at != want.len) test_fail(__FILE__, __LINE__, "%s:%zu: differs (--update rewrites it)", path, line);
    arena_deinit(&arena);
}

static void check_round_trip(const Graph *graph, const char *pass)
{
    StrBuf first = {0}, second = {0};
    Arena  arena = {0};
    Graph *again;
    graph_print(graph, &first);
    Status status = graph_parse(&arena, pass, first.data, first.len, op_table, OP_COUNT, &again);
    if (status != OK) {
        test_fail(__FILE__, __LINE__, "%s: %s", pass, status_message());
    } else {
        EXPECT_OK(graph_verify(again));
        graph_print(again, &second);
        EXPECT_STR(strbuf_cstr(&second), strbuf_cstr(&first));
    }
    strbuf_deinit(&first);
    strbuf_deinit(&second);
    arena_deinit(&arena);
}

static void after_pass(void *context, const char *pass, const Graph *graph)
{
    const Golden *g = context;
    char          path[256];
    StrBuf        text = {0};
    check_round_trip(graph, pass);
    if (strcmp(graph->name, g->program) != 0 || (strcmp(pass, "bind") != 0 && strcmp(pass, "schedule") != 0)) return;
    graph_print(graph, &text);
    snprintf(path, sizeof path, "tests/passes/golden/%s.%s.%s.ir", g->family, g->case_name, pass);
    compare_golden(path, strbuf_cstr(&text), text.len);
    strbuf_deinit(&text);
}

static Plan *compile_family(Arena *arena, const char *family, CompileOptions *options, Device *device)
{
    Plan *plan = NULL;
    options->verify = true;
    EXPECT_OK(compile_fixture(arena, family, options, device, &plan));
    if (!plan) exit(1);
    return plan;
}

static void golden_case(const char *family, const char *case_name, const char *program, CompileOptions options)
{
    Golden  g = {.family = family, .case_name = case_name, .program = program};
    Arena   arena = {0};
    Device *device;
    EXPECT_OK(device_null_create("h200", &device));
    options.after_pass = after_pass;
    options.after_pass_context = &g;
    (void)compile_family(&arena, family, &options, device);
    device->api->destroy(device);
    arena_deinit(&arena);
}

static const char *all_linear[] = {"all-linear"};
static const char *some_linear[] = {"q_proj", "v_proj", "up_proj"};

static CompileOptions small_options(void)
{
    CompileOptions options = compile_defaults();
    compile_add_training(&options, 2, 8);
    return options;
}

static void texts_as_bound_and_as_run(void)
{
    CompileOptions options = small_options();
    golden_case("qwen3", "full", "micro_next", options);
    options.recompute = ~0u;
    options.lora = (LoraOptions){.enabled = true, .r = 4, .alpha = 8, .dropout = 0.1, .targets = some_linear, .num_targets = 3};
    options.train_base = false;
    golden_case("llama", "lora_recompute", "micro_first", options);
    options = compile_defaults();
    compile_add(&options, &entry_eval, 1, 128);
    compile_add(&options, &entry_prefill, 1, 64);
    compile_add(&options, &entry_decode, 1, 1);
    options.train_base = false;
    golden_case("qwen2", "prefill", "prefill", options);
}

/* ---- fusions ---- */

static void count_fusions(const char *family, bool lora, int counts[FUSION_COUNT])
{
    Arena          arena = {0};
    CompileOptions options = small_options();
    Device        *device;
    options.no_fuse = (1u << FUSION_COUNT) - 1;
    if (lora) options.lora = (LoraOptions){.enabled = true, .r = 4, .alpha = 8, .targets = all_linear, .num_targets = 1};
    options.train_base = !lora;
    EXPECT_OK(device_null_create("h200", &device));
    EXPECT_OK(fixture_forward_graph(&arena, family, &options, device, counts));
    device->api->destroy(device);
    arena_deinit(&arena);
}

static void fusions_fire_in_every_family(void)
{
    static const struct {
        const char *family;
        int         layers, qkv, gate_up, residual_norm, lora; /* fusions per layer; negative: total over all layers */
    } families[] = {
        {"llama", 2, 1, 1, 2, 4},        {"llama3", 3, 1, 1, 2, 4}, {"qwen3", 2, 1, 1, 2, 4},
        {"qwen3_untied", 2, 1, 1, 2, 4}, {"qwen2", 2, 1, 1, 2, 4},  {"phi3", 2, 0, 0, 2, 4}, /* its weights are already packed */
        {"olmo2", 2, 0, 1, -1, 6}, /* q and k are normed before they are split into heads; norms come before the adds, except the last norm
                                    */
        {"smollm3", 3, 1, 1, 2, 4},      {"gpt2", 2, 0, 0, 0, 4}, /* layer norms, and no gate */
    };
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        for (int lora = 0; lora < 2; lora++) {
            int counts[FUSION_COUNT];
            int layers = families[i].layers, residual_norm = families[i].residual_norm;
            count_fusions(families[i].family, lora, counts);
            EXPECT_INT(counts[FUSE_QKV], families[i].qkv * layers);
            EXPECT_INT(counts[FUSE_GATE_UP], families[i].gate_up * layers);
            /* In Llama all norms except the first follow an add. */
            EXPECT_INT(counts[FUSE_RESIDUAL_NORM], residual_norm < 0 ? -residual_norm : residual_norm * layers);
            EXPECT_INT(counts[FUSE_LM_HEAD], 1);
            EXPECT_INT(counts[FUSE_LORA], lora ? families[i].lora * layers : 0); /* in Llama: q, k and v; o; gate and up; down */
        }
    }
}

/* ---- plans ---- */

static uint32_t draw(uint32_t index, uint32_t salt, uint32_t below)
{
    return philox4x32(index, salt, 0, 0, 7).v[0] % below;
}

/* Two activations that are alive at the same time never share a byte: lifetimes are computed again from the launches. */
static void check_no_overlap(const Program *program, const char *what)
{
    const Graph *graph = program->graph;
    int         *start = calloc((size_t)graph->num_values, sizeof(int)), *end = calloc((size_t)graph->num_values, sizeof(int));
    for (int i = 0; i < graph->num_values; i++) start[i] = -1;
    int index = 0;
    for (const Node *node = graph->first; node; node = node->next, index++) {
        for (int k = 0; k < node->num_out; k++)
            if (node->out[k]) start[node->out[k]->id] = end[node->out[k]->id] = index;
        for (int i = 0; i < node->num_in; i++)
            if (node->in[i]) end[node->in[i]->id] = index;
    }
    for (int a = 0; a < graph->num_values; a++) {
        const Placement *p = &program->placement[a];
        if (start[a] < 0 || p->region != REGION_ACTIVATIONS) continue;
        for (int b = a + 1; b < graph->num_values; b++) {
            const Placement *q = &program->placement[b];
            if (start[b] < 0 || q->region != REGION_ACTIVATIONS) continue;
            /* A launch that reads a value for the last time may write its result into that value's memory. */
            if (start[a] >= end[b] || start[b] >= end[a]) continue;
            if (p->offset >= q->offset + q->bytes || q->offset >= p->offset + p->bytes) continue;
            if (value_root(graph->values[a], NULL) == value_root(graph->values[b], NULL)) continue;
            test_fail(__FILE__, __LINE__, "%s: %s and %s share memory", what, graph->values[a]->name, graph->values[b]->name);
        }
    }
    free(start);
    free(end);
}

static void generated_configs_plan_what_is_allocated(void)
{
    static const char *const families[] = {"llama",  "llama3",       "qwen3",      "qwen3_untied", "qwen2",     "phi3",
                                           "olmo2",  "smollm3",      "gpt2",       "qwen2_window", "mistral",   "gemma2",
                                           "gemma3", "llama_linear", "qwen3_yarn", "phi3_long",    "phi3_short"};
    for (uint32_t i = 0; i < 200; i++) {
        Arena          arena = {0};
        CompileOptions options = compile_defaults();
        Device        *device;
        Session       *session;
        options.cache_len = 1 + draw(i, 5, 64);
        compile_add_training(&options, 1 + draw(i, 1, 4), 1 + draw(i, 2, 96));
        if (draw(i, 7, 2)) {
            compile_add(&options, &entry_eval, 1 + draw(i, 3, 3), 1 + draw(i, 4, 128));
            compile_add(&options, &entry_prefill, 1, 1 + draw(i, 6, (uint32_t)options.cache_len));
            compile_add(&options, &entry_decode, 1, 1);
        }
        options.recompute = draw(i, 8, 2) ? draw(i, 9, 1u << PART_COUNT) : 0;
        options.no_fuse = draw(i, 10, 3) ? 0 : draw(i, 11, 1u << FUSION_COUNT);
        options.model_dtype = draw(i, 12, 2) ? DT_BF16 : DT_F32;
        options.moment_dtype = draw(i, 13, 2) ? DT_BF16 : DT_F32;
        options.master_weights = draw(i, 14, 2) && options.model_dtype == DT_BF16;
        if (draw(i, 15, 2)) {
            options.lora = (LoraOptions){.enabled = true,
                                         .r = 1 + draw(i, 17, 8),
                                         .alpha = 8,
                                         .dropout = draw(i, 18, 2) ? 0.1 : 0,
                                         .targets = all_linear,
                                         .num_targets = 1};
            options.train_base = false;
        }
        EXPECT_OK(device_cpu_create(1 + (int)draw(i, 16, 3), &device));
        Plan *plan = compile_family(&arena, families[i % (sizeof families / sizeof families[0])], &options, device);
        EXPECT_OK(session_create(plan, device, &session));
        EXPECT_INT(session_allocated_bytes(session), plan_total_bytes(plan));
        int64_t most = 0, live = 0, loading = plan_program(plan, &entry_load)->activation_bytes;
        for (int k = 0; k < plan->num_programs; k++) {
            const Program *program = &plan->programs[k];
            check_no_overlap(program, families[i % (sizeof families / sizeof families[0])]);
            if (program->spec.entry == &entry_load) continue; /* uses the memory of the other programs */
            if (program->activation_bytes > most) most = program->activation_bytes;
            if (program->live_bytes > live) live = program->live_bytes;
        }
        EXPECT_INT(most, plan->region_bytes[SPACE_DEVICE][REGION_ACTIVATIONS]);
        EXPECT(loading > 0 && loading <= most);
        if ((double)most > 1.05 * (double)live)
            test_fail(__FILE__, __LINE__, "config %u: activations %lld, alive at most %lld", i, (long long)most, (long long)live);
        session_destroy(session);
        device->api->destroy(device);
        arena_deinit(&arena);
    }
}

static const char qwen3_8b[] =
    "{\"architectures\":[\"Qwen3ForCausalLM\"],\"vocab_size\":151936,\"hidden_size\":4096,\"intermediate_size\":12288,"
    "\"num_hidden_layers\":36,\"num_attention_heads\":32,\"num_key_value_heads\":8,\"head_dim\":128,\"rms_norm_eps\":1e-6,"
    "\"max_position_embeddings\":40960,\"rope_theta\":1000000,\"tie_word_embeddings\":false}";
static const char llama_70b[] =
    "{\"architectures\":[\"LlamaForCausalLM\"],\"vocab_size\":128256,\"hidden_size\":8192,\"intermediate_size\":28672,"
    "\"num_hidden_layers\":80,\"num_attention_heads\":64,\"num_key_value_heads\":8,\"rms_norm_eps\":1e-5,"
    "\"max_position_embeddings\":131072,\"rope_theta\":500000,\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,"
    "\"low_freq_factor\":1,\"high_freq_factor\":4,\"original_max_position_embeddings\":8192},\"tie_word_embeddings\":false}";

/* A large workspace shares no byte with values that are alive while its launch runs. Returns the number of large workspaces. */
static int check_workspaces(const Program *program)
{
    const Graph *graph = program->graph;
    int          count = 0;
    for (int n = 0; n < program->num_launches; n++) {
        const Launch *launch = &program->launches[n];
        int64_t       begin = program->scratch[launch->node->id], end = begin + (int64_t)launch->kernel.workspace_bytes;
        if (begin < 0) continue;
        count++;
        for (int i = 0; i < graph->num_values; i++) {
            Value           *value = graph->values[i], *root = value_root(value, NULL);
            const Placement *place = &program->placement[i];
            bool             read_later = false;
            if (place->region != REGION_ACTIVATIONS || !root->producer || place->offset >= end || place->offset + place->bytes <= begin)
                continue;
            for (const Use *use = value->first_use; use; use = use->next)
                read_later = read_later || !use->node || use->node == launch->node || node_precedes(launch->node, use->node);
            if (value->producer == launch->node || (read_later && node_precedes(value->producer, launch->node)))
                test_fail(__FILE__, __LINE__, "%s lies in the workspace of %s", value->name, launch->node->op->name);
        }
    }
    return count;
}

static void plan_large(const char *name, const char *architecture, const char *config, int64_t parameters, uint32_t recompute)
{
    Arena           arena = {0};
    Device         *device;
    Plan           *plan = NULL;
    CompileOptions  options = compile_defaults();
    struct timespec before, after;
    add_all_programs(&options, 1, 8192, 64);
    options.model_dtype = DT_BF16;
    options.recompute = recompute;
    EXPECT_OK(device_null_create("h200", &device));
    clock_gettime(CLOCK_MONOTONIC, &before);
    EXPECT_OK(compile_config(&arena, name, architecture, config, strlen(config), &options, device, &plan));
    clock_gettime(CLOCK_MONOTONIC, &after);
    const Program *program = plan_micro(plan, 1, 3);
    double         seconds = (double)(after.tv_sec - before.tv_sec) + 1e-9 * (double)(after.tv_nsec - before.tv_nsec);
    fprintf(stderr, "plan of %s at T=8192, recompute %x: %.3f s, %.1f GiB, activations %.2f of %.2f GiB alive, %d launches\n", name,
            recompute, seconds, (double)plan_total_bytes(plan) / (1 << 30), (double)program->activation_bytes / (1 << 30),
            (double)program->live_bytes / (1 << 30), program->num_launches);
    EXPECT_INT(plan->total_numel, parameters);
    EXPECT((double)program->activation_bytes <= 1.05 * (double)program->live_bytes);
    EXPECT(check_workspaces(program) > 0);
    device->api->destroy(device);
    arena_deinit(&arena);
}

static void large_models_plan_without_a_machine(void)
{
    plan_large("Qwen3-8B", "Qwen3ForCausalLM", qwen3_8b, 8190735360, 0);
    plan_large("Qwen3-8B", "Qwen3ForCausalLM", qwen3_8b, 8190735360, 1u << PART_BLOCK);
    plan_large("Llama-3.1-70B", "LlamaForCausalLM", llama_70b, 70553706496, 0);
    plan_large("Llama-3.1-70B", "LlamaForCausalLM", llama_70b, 70553706496, 1u << PART_BLOCK);
}

int main(int argc, char **argv)
{
    static const TestCase cases[] = {TEST(texts_as_bound_and_as_run), TEST(fusions_fire_in_every_family),
                                     TEST(generated_configs_plan_what_is_allocated), TEST(large_models_plan_without_a_machine)};
    if (argc > 1 && strcmp(argv[1], "--update") == 0) {
        update_golden = true;
        argc = 1;
    }
    return test_run(cases, (int)(sizeof cases / sizeof cases[0]), argc, argv);
}
