/* Every optimizer on parameters of several dtypes: which rule updates which parameter, where states are stored, that an update changes all
 * states and nothing else, and that a step that isn't applied changes none. Only the optimizer's program runs, on gradients that are made
 * here. */
#include "family_config.h"

#include "base/philox.h"
#include "ops/attrs.h"
#include "passes/optimizers.h"

/* Matrices above and below the size at which 8-bit moments begin. */
static const char config_text[] =
    "{\"architectures\":[\"Qwen2ForCausalLM\"],\"vocab_size\":160,\"hidden_size\":48,\"intermediate_size\":88,\"num_hidden_layers\":2,"
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"rms_norm_eps\":1e-6,\"max_position_embeddings\":64,\"rope_theta\":10000,"
    "\"tie_word_embeddings\":true}";

typedef struct Run {
    Arena    arena;
    Device  *device;
    Plan    *plan;
    Session *session;
} Run;

/* The shipped module, with norms (all weights initialised with ones) in fp32. */
static IrModule *module_of(Arena *arena)
{
    static const char ones[] = "\"init\": \"ones\"", wide[] = ", \"dtype\": \"f32\"";
    size_t            len = 0;
    const char       *ir = ir_shipped_module("Qwen2ForCausalLM", &len), *text = arena_strndup(arena, ir, len);
    StrBuf            out = {0};
    IrModule         *module;
    for (const char *at; (at = strstr(text, ones)); text = at + strlen(ones)) {
        strbuf_append(&out, text, (size_t)(at - text) + strlen(ones));
        strbuf_puts(&out, wide);
    }
    strbuf_puts(&out, text);
    EXPECT_OK(ir_module_parse(arena, "qwen2", arena_strdup(arena, strbuf_cstr(&out)), out.len, &module));
    strbuf_deinit(&out);
    return module;
}

static void run_open_module(Run *r, const IrModule *module, const char *text, CompileOptions *options)
{
    JsonValue *config = arena_new(&r->arena, JsonValue);
    options->verify = true;
    compile_add_training(options, 1, 8);
    EXPECT_OK(device_cpu_create(2, &r->device));
    EXPECT_OK(json_parse(&r->arena, "config.json", text, strlen(text), config));
    EXPECT_OK(compile_plan(&r->arena, module, config, "config.json", options, r->device, &r->plan));
    EXPECT_OK(session_create(r->plan, r->device, &r->session));
}

static void run_open(Run *r, CompileOptions *options)
{
    *r = (Run){0};
    run_open_module(r, module_of(&r->arena), config_text, options);
}

static void run_close(Run *r)
{
    session_destroy(r->session);
    r->device->api->destroy(r->device);
    arena_deinit(&r->arena);
}

/* Fills each parameter's part of a flat value with random values that depend on the parameter's name. */
static void draw_parts(Run *r, const Bucket *bucket, const char *value, DType dtype, uint64_t key)
{
    for (int i = bucket->first; i < bucket->first + bucket->count; i++) {
        int64_t n = type_numel(&r->plan->trained_params[i]->type);
        float  *values = malloc((size_t)n * sizeof *values);
        void   *stored = malloc((size_t)dtype_bytes(dtype, n));
        for (int64_t k = 0; k < n; k++)
            values[k] =
                (float)philox4x32((uint32_t)k, (uint32_t)r->plan->segments[i][SEGMENT_KEY], 0, 0, key).v[0] / 4294967296.0f * 0.1f - 0.04f;
        dtype_convert(stored, dtype, values, DT_F32, n);
        EXPECT_OK(session_write_range(r->session, value, (size_t)dtype_bytes(dtype, r->plan->segments[i][SEGMENT_OFFSET]), stored,
                                      (size_t)dtype_bytes(dtype, n)));
        free(values);
        free(stored);
    }
}

/* Runs the optimizer's program once on the current gradients; returns whether the step was applied. */
static bool update(Run *r, int64_t index, float loss)
{
    float   hyper[HYPER_COUNT] = {[HYPER_LR] = 1e-2f, [HYPER_INV_TOKENS] = 1}, applied = -1;
    int64_t now[STEP_COUNT] = {[STEP_SEED] = 7, [STEP_INDEX] = index};
    EXPECT_OK(session_write(r->session, "hyper", hyper, sizeof hyper));
    EXPECT_OK(session_write(r->session, "step", now, sizeof now));
    EXPECT_OK(session_write(r->session, "loss.sum", &loss, sizeof loss));
    EXPECT_OK(session_run(r->session, plan_program(r->plan, &entry_optimizer)));
    EXPECT_OK(session_output(r->session, plan_program(r->plan, &entry_optimizer), "applied", &applied, sizeof applied));
    return applied == 1;
}

static bool step(Run *r, int64_t index, float loss)
{
    for (int b = 0; b < r->plan->num_buckets; b++)
        draw_parts(r, &r->plan->buckets[b], r->plan->buckets[b].grads, r->plan->buckets[b].grad, 100 + (uint64_t)index);
    return update(r, index, loss);
}

static const char *rule_wanted(OptimizerKind optimizer, const Param *param)
{
    bool is_matrix = param->type.ndim == 2 && param->layer >= 0;
    if (optimizer == OPTIMIZER_ADAMW_8BIT && type_numel(&param->type) >= 4096) return "adamw_8bit";
    return optimizer == OPTIMIZER_NORMUON && is_matrix ? "normuon" : "adamw";
}

/* The bytes of a flat state. */
static unsigned char *state_bytes(Run *r, const BucketState *state, size_t *out_size)
{
    *out_size = (size_t)dtype_bytes(state->dtype, state->numel);
    unsigned char *bytes = calloc(1, *out_size);
    EXPECT_OK(session_read(r->session, state->value, bytes, *out_size));
    return bytes;
}

static bool all_zero(const unsigned char *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (bytes[i]) return false;
    return true;
}

/* Each parameter's part of a state was written, and the bytes between parts weren't. */
static void check_state(Run *r, const Bucket *bucket, const BucketState *state)
{
    size_t         size, at = 0;
    unsigned char *bytes = state_bytes(r, state, &size);
    for (int i = 0; i < bucket->count; i++) {
        const Param *param = r->plan->trained_params[bucket->first + i];
        TensorType   type = state_type(state, param);
        size_t       begin = (size_t)dtype_bytes(state->dtype, state->at[i]), n = (size_t)type_bytes(&type);
        bool         is_inside = begin >= at && begin + n <= size, is_codes = state->dtype == DT_U8;
        EXPECT(is_inside);
        if (!is_inside) break;
        if (!all_zero(bytes + at, begin - at)) test_fail(__FILE__, __LINE__, "%s: written before %s", state->value, param->name);
        if (!is_codes && all_zero(bytes + begin, n)) test_fail(__FILE__, __LINE__, "%s of %s is zero", state->value, param->name);
        at = begin + n;
    }
    if (!all_zero(bytes + at, size - at)) test_fail(__FILE__, __LINE__, "%s: written behind its parameters", state->value);
    free(bytes);
}

/* Sets the optimizer's bit in *seen if a bucket has the optimizer's own rule, not a fallback. */
static void check_buckets(Run *r, OptimizerKind optimizer, uint32_t *seen)
{
    int64_t bytes = 0;
    for (int b = 0; b < r->plan->num_buckets; b++) {
        const Bucket *bucket = &r->plan->buckets[b];
        if (strcmp(bucket->rule->name, optimizer_name(optimizer)) == 0) *seen |= 1u << optimizer;
        for (int i = 0; i < bucket->count; i++) {
            const Param *param = r->plan->trained_params[bucket->first + i];
            EXPECT_STR(bucket->rule->name, rule_wanted(optimizer, param));
            EXPECT_INT(bucket->weight, param->type.dtype);
        }
        for (int k = 0; k < bucket->num_states; k++) {
            check_state(r, bucket, &bucket->states[k]);
            bytes += plan_find(r->plan, bucket->states[k].value)->place.bytes;
        }
    }
    EXPECT(bytes > 0 && bytes <= r->plan->region_bytes[SPACE_DEVICE][REGION_OPTIMIZER]);
}

/* A loss that isn't finite changes neither weights nor states nor the count of steps. */
static void check_bad_step(Run *r)
{
    int64_t count;
    for (int b = 0; b < r->plan->num_buckets; b++) {
        const Bucket  *bucket = &r->plan->buckets[b];
        size_t         sizes[BUCKET_MAX_STATES + 1], bytes = (size_t)dtype_bytes(bucket->weight, bucket->numel);
        unsigned char *before[BUCKET_MAX_STATES], *weights = malloc(bytes), *after = malloc(bytes);
        for (int k = 0; k < bucket->num_states; k++) before[k] = state_bytes(r, &bucket->states[k], &sizes[k]);
        EXPECT_OK(session_read(r->session, bucket->weights, weights, bytes));
        EXPECT(!step(r, 3, NAN));
        EXPECT_OK(session_read(r->session, bucket->weights, after, bytes));
        EXPECT(memcmp(weights, after, bytes) == 0);
        for (int k = 0; k < bucket->num_states; k++) {
            unsigned char *state = state_bytes(r, &bucket->states[k], &sizes[k]);
            if (memcmp(before[k], state, sizes[k]) != 0)
                test_fail(__FILE__, __LINE__, "%s: touched by a bad step", bucket->states[k].value);
            free(state);
            free(before[k]);
        }
        free(weights);
        free(after);
    }
    EXPECT_OK(session_read(r->session, OPTIMIZER_APPLIED, &count, sizeof count));
    EXPECT_INT(count, 3);
}

static void states_are_where_the_plan_says(void)
{
    uint32_t seen = 0;
    for (int i = 0; i < OPTIMIZER_COUNT * 4; i++) {
        CompileOptions options = compile_defaults();
        Run            r;
        options.optimizer = (OptimizerKind)(i / 4);
        options.model_dtype = options.master_dtype = DT_BF16;
        options.weight_decay = 0.1;
        if (i % 2) options.no_fuse = (1u << FUSION_COUNT) - 1;
        if (i / 2 % 2) options.fp32_grads = options.master_weights = true, options.master_dtype = DT_F32;
        run_open(&r, &options);
        for (int b = 0; b < r.plan->num_buckets; b++)
            draw_parts(&r, &r.plan->buckets[b], r.plan->buckets[b].weights, r.plan->buckets[b].weight, 5);
        for (int index = 0; index < 3; index++) EXPECT(step(&r, index, 1));
        check_buckets(&r, options.optimizer, &seen);
        check_bad_step(&r);
        run_close(&r);
    }
    EXPECT_INT(seen, (1u << OPTIMIZER_COUNT) - 1);
}

static bool differs(Run r[2], const char *name)
{
    size_t bytes = (size_t)plan_find(r[0].plan, name)->place.bytes;
    return memcmp(session_pointer(r[0].session, name), session_pointer(r[1].session, name), bytes) != 0;
}

/* A parameter gets the same weights whether it is packed with others or not. */
static void packing_changes_no_bit(void)
{
    for (int i = 0; i < OPTIMIZER_COUNT; i++) {
        Run     r[2];
        int64_t num_differ = 0;
        for (int unfused = 0; unfused < 2; unfused++) {
            CompileOptions options = compile_defaults();
            options.optimizer = (OptimizerKind)i;
            options.model_dtype = options.master_dtype = DT_BF16;
            options.max_grad_norm = 0; /* off: packing changes the order in which the norm is summed */
            if (unfused) options.no_fuse = (1u << FUSION_COUNT) - 1;
            run_open(&r[unfused], &options);
        }
        for (int index = 0; index < 3; index++)
            for (int k = 0; k < 2; k++) EXPECT(step(&r[k], index, 1));
        for (int k = 0; k < r[0].plan->num_trained; k++) num_differ += differs(r, r[0].plan->trained_params[k]->name);
        EXPECT_INT(num_differ, 0);
        run_close(&r[0]);
        run_close(&r[1]);
    }
}

/* Rows of a packed weight that another model has as a weight of its own: `size` rows from `begin` on in every `period`. */
typedef struct Split {
    const char *packed, *alone;
    int64_t     begin, size, period;
} Split;

typedef struct Packed {
    const char *architecture, *config, *matrices; /* matrices: replaces ["H * D", "H * D", "H * D"]; NULL: as shipped */
    int64_t     kv_heads;
    Split       splits[6];
} Packed;

#define LLAMA_CONFIG(architecture, kv_heads) \
    "{\"architectures\":[\"" architecture "\"],\"vocab_size\":160,\"hidden_size\":48,\"intermediate_size\":88,\"num_hidden_layers\":2," \
    "\"num_attention_heads\":4,\"num_key_value_heads\":" kv_heads ",\"rms_norm_eps\":1e-6,\"max_position_embeddings\":64," \
    "\"rope_theta\":10000,\"hidden_act\":\"silu\"}"
#define GPT2_CONFIG \
    "{\"architectures\":[\"GPT2LMHeadModel\"],\"vocab_size\":160,\"n_embd\":48,\"n_layer\":2,\"n_head\":4,\"n_positions\":64}"

static const Packed packed_models[] = {
    {"Phi3ForCausalLM",
     LLAMA_CONFIG("Phi3ForCausalLM", "2"),
     NULL,
     2,
     {{"attn.qkv", "attn.q", 0, 48, 96},
      {"attn.qkv", "attn.k", 48, 24, 96},
      {"attn.qkv", "attn.v", 72, 24, 96},
      {"mlp.gate_up", "mlp.gate", 0, 88, 176},
      {"mlp.gate_up", "mlp.up", 88, 88, 176}}},
    {"GPT2LMHeadModel",
     GPT2_CONFIG,
     NULL,
     4,
     {{"attn.qkv", "attn.q", 0, 48, 144}, {"attn.qkv", "attn.k", 48, 48, 144}, {"attn.qkv", "attn.v", 96, 48, 144}}},
    {"GPT2LMHeadModel", /* each head's query, key and value rows are adjacent, as in GPT-NeoX */
     GPT2_CONFIG,
     "[\"D\", \"D\", \"D\"]",
     4,
     {{"attn.qkv", "attn.q", 0, 12, 36}, {"attn.qkv", "attn.k", 12, 12, 36}, {"attn.qkv", "attn.v", 24, 12, 36}}},
};

static IrModule *packed_module(Arena *arena, const Packed *packed)
{
    static const char shipped[] = "[\"H * D\", \"H * D\", \"H * D\"]";
    size_t            len = 0;
    const char       *ir = ir_shipped_module(packed->architecture, &len), *text = arena_strndup(arena, ir, len), *at;
    IrModule         *module;
    if (packed->matrices && (at = strstr(text, shipped)))
        text = arena_printf(arena, "%.*s%s%s", (int)(at - text), text, packed->matrices, at + strlen(shipped));
    EXPECT_OK(ir_module_parse(arena, "packed", text, strlen(text), &module));
    return module;
}

static void *layer_bytes(Run *r, const char *prefix, int layer, const char *name)
{
    return session_pointer(r->session, arena_printf(&r->arena, "%sblocks.%d.%s.weight", prefix, layer, name));
}

/* fill: draws the packed rows and copies them into the other model; otherwise compares the updated rows. Returns the largest difference. */
static float split_rows(Run r[2], const Split *split, const char *prefix, DType dtype, int layer, uint64_t key, bool fill)
{
    const char *name = arena_printf(&r->arena, "blocks.%d.%s.weight", layer, split->packed);
    TensorType  type = plan_find(r->plan, name)->type;
    char       *from = layer_bytes(&r[0], prefix, layer, split->packed), *to = layer_bytes(&r[1], prefix, layer, split->alone);
    int64_t     cols = type.dim[1], at = 0;
    size_t      bytes = (size_t)dtype_bytes(dtype, cols);
    float       numbers[2][88], error = 0;
    for (int64_t row = 0; row < type.dim[0]; row++) {
        if (row % split->period < split->begin || row % split->period >= split->begin + split->size) continue;
        char *mine = from + (size_t)row * bytes, *alone = to + (size_t)at++ * bytes;
        for (int64_t c = 0; fill && c < cols; c++)
            numbers[0][c] = philox_uniform(philox4x32((uint32_t)(row * cols + c), (uint32_t)layer, 0, 0, key).v[0]) * 0.1f - 0.04f;
        if (fill) {
            dtype_convert(mine, dtype, numbers[0], DT_F32, cols);
            memcpy(alone, mine, bytes);
            continue;
        }
        dtype_convert(numbers[0], DT_F32, mine, dtype, cols);
        dtype_convert(numbers[1], DT_F32, alone, dtype, cols);
        for (int64_t c = 0; c < cols; c++) error = fmaxf(error, fabsf(numbers[0][c] - numbers[1][c]));
    }
    return error;
}

static float all_rows(Run r[2], const Packed *packed, const char *prefix, DType dtype, uint64_t key, bool fill)
{
    float error = 0;
    for (int layer = 0; layer < 2; layer++)
        for (const Split *split = packed->splits; split->packed; split++)
            error = fmaxf(error, split_rows(r, split, prefix, dtype, layer, key, fill));
    return error;
}

/* The matrices within a packed weight are updated as in a model with a separate weight for each. If a matrix's rows aren't adjacent, sums
 * are rounded differently. */
static void matrices_of_one_weight_move_as_weights_of_their_own(void)
{
    for (size_t i = 0; i < sizeof packed_models / sizeof *packed_models * 2; i++) {
        const Packed *packed = &packed_models[i / 2];
        DType         dtype = i % 2 ? DT_BF16 : DT_F32;
        Run           r[2] = {0};
        for (int alone = 0; alone < 2; alone++) {
            const Packed   llama = {.architecture = "LlamaForCausalLM"};
            CompileOptions options = compile_defaults();
            const char    *config = packed->kv_heads == 2 ? LLAMA_CONFIG("LlamaForCausalLM", "2") : LLAMA_CONFIG("LlamaForCausalLM", "4");
            options.optimizer = OPTIMIZER_NORMUON;
            options.model_dtype = dtype;
            options.master_dtype = DT_F32;
            options.master_weights = dtype != DT_F32;
            options.weight_decay = 0.1;
            options.max_grad_norm = 0; /* off: the models have different parameters */
            run_open_module(&r[alone], packed_module(&r[alone].arena, alone ? &llama : packed), alone ? config : packed->config, &options);
        }
        all_rows(r, packed, "", dtype, 1, true);
        for (int64_t index = 0; index < 3; index++) {
            all_rows(r, packed, "grad.", dtype, 2 + (uint64_t)index, true);
            for (int k = 0; k < 2; k++) EXPECT(update(&r[k], index, 1));
        }
        float error = all_rows(r, packed, "", dtype, 0, false);
        if (!(error <= (!packed->matrices ? 0 : i % 2 ? 5e-4f : 1e-5f)))
            test_fail(__FILE__, __LINE__, "%s in %s: weights differ by %g", packed->architecture, dtype_info(dtype)->name, (double)error);
        run_close(&r[0]);
        run_close(&r[1]);
    }
}

/* Optimizers have the same names in the run file and in the table. */
static void names_are_read(void)
{
    OptimizerKind kind;
    for (int i = 0; i < OPTIMIZER_COUNT; i++) EXPECT(optimizer_parse(optimizer_name((OptimizerKind)i), &kind) && (int)kind == i);
    EXPECT(!optimizer_parse("sgd", &kind));
}

TEST_MAIN(TEST(states_are_where_the_plan_says), TEST(packing_changes_no_bit), TEST(matrices_of_one_weight_move_as_weights_of_their_own),
          TEST(names_are_read))
