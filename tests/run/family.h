/* Compiles and loads a fixture of tests/fixtures/families on the CPU, for the tests of whole programs. */
#pragma once

#include "base/log.h"
#include "files/safetensors.h"
#include "ops/attrs.h"
#include "ops/ops.h"
#include "passes/compile.h"
#include "run/session.h"
#include "test.h"

typedef struct Family {
    Arena    arena;
    char     dir[256];
    StFile  *expected, *weights, *adapter;
    Device  *device;
    Plan    *plan;
    Session *session;
} Family;

static const char *const family_names[] = {"llama",  "llama3",       "qwen3",      "qwen3_untied", "qwen2",     "phi3",
                                           "olmo2",  "smollm3",      "gpt2",       "qwen2_window", "mistral",   "gemma2",
                                           "gemma3", "llama_linear", "qwen3_yarn", "phi3_long",    "phi3_short"};
enum {
    NUM_FAMILIES = sizeof family_names / sizeof family_names[0],
    FAMILY_B = 2,
    FAMILY_T = 24,
    FAMILY_V = 61,
    FAMILY_TOKENS = FAMILY_B * FAMILY_T
};

/* max |got - want| / max |want| */
__attribute__((unused)) static double max_error(const float *got, const float *want, int64_t n)
{
    double error = 0, scale = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = fabs((double)got[i] - (double)want[i]);
        if (!(d <= error)) error = d; /* NaN is kept */
        if (fabs((double)want[i]) > scale) scale = fabs((double)want[i]);
    }
    return error / (scale > 0 ? scale : 1);
}

/* |got - want| / |want|, L2 */
__attribute__((unused)) static double l2_error(const float *got, const float *want, int64_t n)
{
    double error = 0, scale = 0;
    for (int64_t i = 0; i < n; i++) {
        error += ((double)got[i] - (double)want[i]) * ((double)got[i] - (double)want[i]);
        scale += (double)want[i] * (double)want[i];
    }
    return sqrt(error) / (scale > 0 ? sqrt(scale) : 1);
}

__attribute__((unused)) static float *fixture_floats(Family *f, const char *name, int64_t *count)
{
    const StTensor *t = st_find(f->expected, name);
    if (!t) {
        test_fail(__FILE__, __LINE__, "%s: no %s", f->dir, name);
        exit(1);
    }
    float *out = arena_array(&f->arena, float, t->numel);
    EXPECT_OK(st_to_f32(t, 0, t->numel, out));
    if (count) *count = t->numel;
    return out;
}

__attribute__((unused)) static const int32_t *fixture_ints(const Family *f, const char *name)
{
    const StTensor *t = st_find(f->expected, name);
    if (!t) test_fail(__FILE__, __LINE__, "%s: no %s", f->dir, name);
    return t ? t->data : NULL;
}

/* A copy of the text in which each `from` is replaced by `to`. */
__attribute__((unused)) static const char *replaced(Arena *arena, const char *text, const char *from, const char *to)
{
    StrBuf out = {0};
    for (const char *at; (at = strstr(text, from)); text = at + strlen(from)) {
        strbuf_append(&out, text, (size_t)(at - text));
        strbuf_puts(&out, to);
    }
    strbuf_puts(&out, text);
    const char *kept = arena_strdup(arena, strbuf_cstr(&out));
    strbuf_deinit(&out);
    return kept;
}

/* Compiles the fixture's config and module with `options` for `device`; family_close destroys the device. norm_dtype: dtype of norm
 * weights; NULL: the model's. */
__attribute__((unused)) static void family_open_on(Family *f, const char *name, const char *config_file, CompileOptions *options,
                                                   Device *device, const char *norm_dtype)
{
    char path[512];
    Str  text;
    *f = (Family){.device = device};
    snprintf(f->dir, sizeof f->dir, "tests/fixtures/families/%s", name);
    snprintf(path, sizeof path, "%s/expected.safetensors", f->dir);
    EXPECT_OK(st_open(path, &f->expected));
    snprintf(path, sizeof path, "%s/model.safetensors", f->dir);
    EXPECT_OK(st_open(path, &f->weights));
    snprintf(path, sizeof path, "%s/adapter/adapter_model.safetensors", f->dir);
    EXPECT_OK(st_open(path, &f->adapter));
    snprintf(path, sizeof path, "%s/%s", f->dir, config_file);
    EXPECT_OK(file_read(&f->arena, path, 1 << 20, &text));
    JsonValue config;
    EXPECT_OK(json_parse(&f->arena, path, text.data, text.len, &config));
    const JsonValue *architectures = json_get(&config, "architectures");
    size_t           len = 0;
    const char      *ir = ir_shipped_module(architectures->items[0].string.data, &len);
    IrModule        *module;
    if (norm_dtype) {
        ir = replaced(&f->arena, arena_printf(&f->arena, "%.*s", (int)len, ir), "\"init\": \"ones\"",
                      arena_printf(&f->arena, "\"init\": \"ones\", \"dtype\": \"%s\"", norm_dtype));
        len = strlen(ir);
    }
    EXPECT_OK(ir_module_parse(&f->arena, name, ir, len, &module));
    options->verify = true;
    Status status = compile_plan(&f->arena, module, &config, path, options, f->device, &f->plan);
    EXPECT_OK(status);
    if (status != OK) exit(1);
    EXPECT_OK(session_create(f->plan, f->device, &f->session));
}

/* The CPU with `threads` threads; or, compiled with FAMILY_CUDA, the first GPU. Without a GPU the test is skipped. */
__attribute__((unused)) static Device *family_device(int threads)
{
    Device *device = NULL;
    (void)threads;
#ifdef FAMILY_CUDA
    if (device_cuda_create(0, &device) != OK) {
        printf("%s\n0 passed, 0 failed, 1 skipped\n", status_message());
        exit(0);
    }
#else
    EXPECT_OK(device_cpu_create(threads, &device));
#endif
    return device;
}

/* As family_open_on, with family_device(threads). */
__attribute__((unused)) static void family_open_mixed(Family *f, const char *name, const char *config_file, CompileOptions *options,
                                                      int threads, const char *norm_dtype)
{
    family_open_on(f, name, config_file, options, family_device(threads), norm_dtype);
}

__attribute__((unused)) static void family_open(Family *f, const char *name, const char *config_file, CompileOptions *options, int threads)
{
    family_open_mixed(f, name, config_file, options, threads, NULL);
}

__attribute__((unused)) static void family_close(Family *f)
{
    session_destroy(f->session);
    f->device->api->destroy(f->device);
    st_close(f->expected);
    st_close(f->weights);
    st_close(f->adapter);
    arena_deinit(&f->arena);
}

/* The parameter's tensor in the fixture: by its Hugging Face name; adapters have PEFT's prefix. */
__attribute__((unused)) static const StTensor *family_tensor(const Family *f, const Param *param)
{
    char name[512];
    snprintf(name, sizeof name, "%s%s", param->is_adapter ? "base_model.model." : "", param->hf.names[0]);
    return st_find(param->is_adapter ? f->adapter : f->weights, name);
}

/* The parameter's elements in its own order; the file's tensor may have another. */
__attribute__((unused)) static float *family_values(Family *f, const Param *param, const StTensor *tensor)
{
    float *values = arena_array(&f->arena, float, tensor->numel), *turned;
    EXPECT_OK(st_to_f32(tensor, 0, tensor->numel, values));
    if (param->hf.kind != HF_TRANSPOSE) return values;
    int64_t rows = param->type.dim[0], cols = param->type.dim[1];
    turned = arena_array(&f->arena, float, tensor->numel);
    for (int64_t i = 0; i < rows * cols; i++) turned[i] = values[i % cols * rows + i / cols];
    return turned;
}

/* Writes every parameter, in its storage dtype. */
__attribute__((unused)) static void family_load(Family *f)
{
    for (int i = 0; i < f->plan->num_params; i++) {
        const Param    *param = f->plan->params[i];
        const StTensor *t = family_tensor(f, param);
        if (!t || t->numel != type_numel(&param->type)) {
            test_fail(__FILE__, __LINE__, "%s: %s isn't in the fixture", f->dir, param->hf.names[0]);
            continue;
        }
        float *values = family_values(f, param, t);
        void  *stored = arena_alloc(&f->arena, (size_t)type_bytes(&param->type));
        dtype_convert(stored, param->type.dtype, values, DT_F32, t->numel);
        EXPECT_OK(session_write(f->session, param->name, stored, (size_t)type_bytes(&param->type)));
        int64_t          at;
        const PlanEntry *master = plan_master(f->plan, param, &at);
        if (master) EXPECT_OK(session_write_range(f->session, master->name, (size_t)at * 4, values, (size_t)t->numel * 4));
    }
}

/* Writes `rows` rows, from row `first` on, of tokens, labels and so on with B x T elements. */
__attribute__((unused)) static void family_batch(Family *f, const int32_t *ids, const int32_t *labels, const int32_t *positions,
                                                 const int32_t *doc_start, int first, int rows, float inv_tokens, int64_t step)
{
    size_t skip = (size_t)first * FAMILY_T, bytes = (size_t)rows * FAMILY_T * 4;
    enum { MOST_ROWS = 8 };
    int32_t doc_id[MOST_ROWS * FAMILY_T];
    CHECK(rows <= MOST_ROWS);
    for (int i = 0; i < rows * FAMILY_T; i++) doc_id[i] = (first + i / FAMILY_T) * 1000 + doc_start[skip + (size_t)i];
    int64_t steps[STEP_COUNT] = {1234, step, 0, 0};
    float   hyper[HYPER_COUNT] = {[HYPER_INV_TOKENS] = inv_tokens};
    EXPECT_OK(session_write(f->session, "tokens", ids + skip, bytes));
    if (labels) EXPECT_OK(session_write(f->session, "labels", labels + skip, bytes));
    EXPECT_OK(session_write(f->session, "positions", positions + skip, bytes));
    if (plan_find(f->plan, "doc_start")) EXPECT_OK(session_write(f->session, "doc_start", doc_start + skip, bytes));
    if (plan_find(f->plan, "doc_id")) EXPECT_OK(session_write(f->session, "doc_id", doc_id, bytes));
    if (plan_find(f->plan, "step")) EXPECT_OK(session_write(f->session, "step", steps, sizeof steps));
    if (plan_find(f->plan, "hyper")) EXPECT_OK(session_write(f->session, "hyper", hyper, sizeof hyper));
}

__attribute__((unused)) static int count_labels(const int32_t *labels, int n)
{
    int count = 0;
    for (int i = 0; i < n; i++) count += labels[i] != IGNORE_INDEX;
    return count;
}

/* The adapter folder's settings, from its adapter_config.json. */
__attribute__((unused)) static void use_adapter(const char *family, CompileOptions *options, Arena *arena)
{
    static const char *const lora_all[] = {"all-linear"};
    char                     path[512];
    Str                      text;
    JsonValue                config;
    snprintf(path, sizeof path, "tests/fixtures/families/%s/adapter/adapter_config.json", family);
    EXPECT_OK(file_read(arena, path, 1 << 20, &text));
    EXPECT_OK(json_parse(arena, path, text.data, text.len, &config));
    const JsonValue *targets = json_get(&config, "target_modules");
    options->lora.enabled = true;
    options->train_base = false;
    json_get_int(&config, "r", &options->lora.r);
    json_get_double(&config, "lora_alpha", &options->lora.alpha);
    json_get_bool(&config, "use_rslora", &options->lora.use_rslora);
    if (targets->type == JSON_STRING) {
        options->lora.targets = lora_all;
        options->lora.num_targets = 1;
        return;
    }
    const char **names = arena_array(arena, const char *, targets->count);
    for (uint32_t i = 0; i < targets->count; i++) names[i] = targets->items[i].string.data;
    options->lora.targets = names;
    options->lora.num_targets = (int)targets->count;
}

/* A train step on the fixture's rows of that step; returns the loss, and the gradient norm in *norm. */
__attribute__((unused)) static double step_once(Family *f, int step, double *norm)
{
    static const char *const what[] = {"steps.ids", "steps.labels", "steps.position_ids", "steps.doc_start"};
    const int32_t           *data[4];
    for (int i = 0; i < 4; i++) data[i] = fixture_ints(f, what[i]) + (size_t)step * FAMILY_TOKENS;
    float inv = 1.0f / (float)count_labels(data[1], FAMILY_TOKENS), loss, norm2, applied;
    /* If the plan's batch is one row, two micro-steps of one row each. */
    int rows = (int)plan_micro(f->plan, 0, 2)->spec.batch;
    for (int first = 0; first < FAMILY_B; first += rows) {
        family_batch(f, data[0], data[1], data[2], data[3], first, rows, inv, step);
        EXPECT_OK(session_run(f->session, plan_micro(f->plan, first > 0, 3)));
    }
    const Program *optimizer = plan_program(f->plan, &entry_optimizer);
    float          hyper[HYPER_COUNT] = {[HYPER_LR] = 1e-3f, [HYPER_INV_TOKENS] = inv};
    EXPECT_OK(session_write(f->session, "hyper", hyper, sizeof hyper));
    EXPECT_OK(session_run(f->session, optimizer));
    EXPECT_OK(session_output(f->session, optimizer, "loss", &loss, sizeof loss));
    EXPECT_OK(session_output(f->session, optimizer, "norm2", &norm2, sizeof norm2));
    EXPECT_OK(session_output(f->session, optimizer, "applied", &applied, sizeof applied));
    EXPECT(applied == 1.0f);
    *norm = sqrt((double)norm2);
    return (double)loss;
}

/* Rows of a program with a cache continue at `position`, each in its own pages; no token is chosen. */
static __attribute__((unused)) void family_place(Family *f, const Program *program, int64_t position)
{
    int64_t rows = program->spec.batch, cols = graph_find(program->graph, "pages")->type.dim[1];
    int64_t own = (f->plan->cache_len + CACHE_PAGE_LEN - 1) / CACHE_PAGE_LEN, run[STEP_COUNT] = {0};
    int32_t starts[FAMILY_TOKENS], slots[FAMILY_TOKENS], pages[FAMILY_TOKENS] = {0};
    for (int64_t b = 0; b < rows; b++) {
        starts[b] = (int32_t)position;
        slots[b] = -1;
        for (int64_t i = 0; i < own; i++) pages[b * cols + i] = (int32_t)(1 + b * own + i);
    }
    EXPECT_OK(session_write(f->session, "starts", starts, (size_t)rows * 4));
    EXPECT_OK(session_write(f->session, "slots", slots, (size_t)rows * 4));
    EXPECT_OK(session_write(f->session, "pages", pages, (size_t)(rows * cols) * 4));
    EXPECT_OK(session_write(f->session, "step", run, sizeof run));
}
