/* Folders in and out: initialisation, weights, adapters, new models, with the fixtures of tests/oracle/make_families.py. */
#include "model/init.h"
#include "model/merge.h"
#include "model/new.h"
#include "base/hash.h"
#include "base/philox.h"
#include "model/weights.h"
#include "ops/attrs.h"
#include "ops/ops.h"

#include "test.h"

#include <unistd.h>

#define FAMILIES "tests/fixtures/families/"

static const char *const families[] = {"qwen3",  "qwen3_untied", "qwen2",      "llama",        "llama3",    "phi3",
                                       "olmo2",  "smollm3",      "gpt2",       "qwen2_window", "mistral",   "gemma2",
                                       "gemma3", "llama_linear", "qwen3_yarn", "phi3_long",    "phi3_short"};
enum { NUM_FAMILIES = sizeof families / sizeof families[0] };

/* ---- initialisation ---- */

static void init_has_the_asked_moments(void)
{
    enum { N = 200000 };
    float *values = malloc(N * sizeof *values);
    init_normal(7, "a.weight", 0, N, 0.02f, values);
    double sum = 0, squares = 0, fourth = 0;
    for (int i = 0; i < N; i++) {
        double x = values[i] / 0.02;
        sum += x;
        squares += x * x;
        fourth += x * x * x * x;
    }
    EXPECT_NEAR(sum / N, 0, 0.01);
    EXPECT_NEAR(squares / N, 1, 0.015);
    EXPECT_NEAR(fourth / N, 3, 0.1);
    init_uniform(7, "a.weight", 0, N, 0.5f, values);
    double low = 1, high = -1;
    for (int i = 0; i < N; i++) {
        low = fmin(low, values[i]);
        high = fmax(high, values[i]);
    }
    EXPECT(low >= -0.5 && low < -0.499 && high < 0.5 && high > 0.499);
    free(values);
}

static void init_depends_on_seed_name_and_element_alone(void)
{
    float whole[64], part[16], other[64];
    init_normal(7, "a.weight", 0, 64, 1, whole);
    init_normal(7, "a.weight", 20, 16, 1, part);
    EXPECT(memcmp(whole + 20, part, sizeof part) == 0);
    init_normal(8, "a.weight", 0, 64, 1, other);
    EXPECT(memcmp(whole, other, sizeof other) != 0);
    init_normal(7, "b.weight", 0, 64, 1, other);
    EXPECT(memcmp(whole, other, sizeof other) != 0);
}

/* The scheme that docs/training.md describes, computed here from Philox and Box-Muller, so that it can't change unnoticed. */
static void init_is_what_the_documents_say(void)
{
    float    values[4];
    uint64_t hash = hash_bytes("w", 1, 0);
    init_normal(42, "w", 8, 4, 2, values);
    Philox4 words = philox4x32(2, 0, (uint32_t)hash, (uint32_t)(hash >> 32), 42);
    double  radius = sqrt(-2 * log((words.v[0] + 1.0) / 4294967296.0)), angle = 2 * acos(-1) * words.v[1] / 4294967296.0;
    EXPECT_NEAR(values[0], 2 * radius * cos(angle), 1e-6);
    EXPECT_NEAR(values[1], 2 * radius * sin(angle), 1e-6);
}

/* ---- sessions over a fixture ---- */

typedef struct Loaded {
    Arena    arena;
    HfModel *model;
    Device  *device;
    Plan    *plan;
    Session *session;
} Loaded;

static Status load(Loaded *l, const char *dir, DType dtype, const PeftAdapter *adapter)
{
    CompileOptions options = compile_defaults();
    compile_add(&options, &entry_eval, 1, 8);
    options.model_dtype = options.master_dtype = dtype;
    options.train_base = false;
    if (adapter) options.lora = adapter->lora;
    *l = (Loaded){0};
    TRY(hf_model_open(&l->arena, dir, &l->model));
    TRY(hf_model_open_weights(l->model));
    TRY(device_cpu_create(1, &l->device));
    TRY(compile_plan(&l->arena, l->model->module, &l->model->config, l->model->config_name, &options, l->device, &l->plan));
    TRY(session_create(l->plan, l->device, &l->session));
    TRY(weights_load(l->session, l->model));
    return adapter ? weights_load_adapter(l->session, adapter->dir) : OK;
}

static void unload(Loaded *l)
{
    session_destroy(l->session);
    if (l->device) l->device->api->destroy(l->device);
    hf_model_close(l->model);
    arena_deinit(&l->arena);
}

static char folder[64];

static const char *make_folder(void)
{
    strcpy(folder, "/tmp/surogate_model_XXXXXX");
    EXPECT(mkdtemp(folder) != NULL);
    return folder;
}

static void expect_equal_files(const char *a_path, const char *b_path)
{
    StFile *a = NULL, *b = NULL;
    EXPECT_OK(st_open(a_path, &a));
    EXPECT_OK(st_open(b_path, &b));
    if (a && b) {
        EXPECT_INT(st_count(a), st_count(b));
        for (size_t i = 0; i < st_count(a); i++) {
            const StTensor *x = st_at(a, i), *y = st_find(b, x->name);
            if (!y || y->bytes != x->bytes || y->dtype != x->dtype || memcmp(x->data, y->data, x->bytes) != 0)
                test_fail(__FILE__, __LINE__, "%s: tensor %s differs or is missing", b_path, x->name);
        }
    }
    st_close(a);
    st_close(b);
}

static void a_saved_model_holds_the_same_tensors(void)
{
    for (int i = 0; i < NUM_FAMILIES; i++) {
        Loaded      l;
        Arena       arena = {0};
        const char *dir = arena_printf(&arena, FAMILIES "%s", families[i]);
        EXPECT_OK(load(&l, dir, DT_F32, NULL));
        EXPECT_OK(weights_save(l.session, l.model, false, NULL, make_folder(), "model", 1 << 30, NULL));
        EXPECT_OK(hf_model_write_config(l.model, DT_F32, folder));
        expect_equal_files(dir, folder);
        uint64_t before = 0, after = 1;
        EXPECT_OK(file_hash(l.model->config_name, &before));
        EXPECT_OK(file_hash(arena_printf(&arena, "%s/config.json", folder), &after));
        EXPECT(before == after);
        unload(&l);
        EXPECT_OK(file_remove_tree(folder));
        arena_deinit(&arena);
    }
}

/* As openai-community/gpt2 names its tensors: without the prefix "transformer.", and with masks. */
static void names_without_their_prefix_are_read(void)
{
    Arena   arena = {0};
    Loaded  l;
    StFile *file;
    char    bare[64];
    EXPECT_OK(st_open(FAMILIES "gpt2", &file));
    size_t  count = st_count(file);
    StDecl *decls = arena_array(&arena, StDecl, count + 1);
    uint8_t mask[4] = {1};
    for (size_t i = 0; i < count; i++) {
        const StTensor *t = st_at(file, i);
        decls[i] = (StDecl){.name = t->name + strlen("transformer."), .dtype = t->dtype, .ndim = t->ndim, .data = t->data};
        memcpy(decls[i].dim, t->dim, sizeof t->dim);
    }
    decls[count] = (StDecl){.name = "h.0.attn.bias", .dtype = ST_U8, .ndim = 2, .dim = {2, 2}, .data = mask};
    strcpy(bare, make_folder());
    EXPECT_OK(st_write(arena_printf(&arena, "%s/model.safetensors", bare), decls, count + 1, NULL, NULL, NULL));
    test_copy(FAMILIES "gpt2/config.json", arena_printf(&arena, "%s/config.json", bare));
    EXPECT_OK(load(&l, bare, DT_F32, NULL));
    EXPECT_OK(weights_save(l.session, l.model, false, NULL, make_folder(), "model", 1 << 30, NULL));
    expect_equal_files(FAMILIES "gpt2", folder);
    unload(&l);
    st_close(file);
    EXPECT_OK(file_remove_tree(folder));
    EXPECT_OK(file_remove_tree(bare));
    arena_deinit(&arena);
}

static void shards_hold_the_same_tensors(void)
{
    Loaded l;
    EXPECT_OK(load(&l, FAMILIES "llama", DT_F32, NULL));
    EXPECT_OK(weights_save(l.session, l.model, false, NULL, make_folder(), "model", 8000, NULL));
    char index[128];
    snprintf(index, sizeof index, "%s/model.safetensors.index.json", folder);
    EXPECT(is_there(index));
    expect_equal_files(FAMILIES "llama", folder);
    unload(&l);
    EXPECT_OK(file_remove_tree(folder));
}

static void config_tells_the_truth_about_the_dtype(void)
{
    Loaded l;
    StrBuf text = {0};
    EXPECT_OK(load(&l, FAMILIES "qwen3", DT_BF16, NULL));
    hf_model_config_text(&l.arena, l.model, DT_BF16, &text);
    EXPECT_CONTAINS(strbuf_cstr(&text), "\"dtype\": \"bfloat16\"");
    EXPECT_CONTAINS(strbuf_cstr(&text), "\"max_window_layers\": 28");
    strbuf_deinit(&text);
    unload(&l);
}

/* As in transformers, a rope_scaling with any content replaces rope_parameters. */
static void rope_scaling_goes_before_rope_parameters(void)
{
    static const struct {
        const char *scaling, *message;
        double      kind, theta;
    } cases[] = {
        {"{\"rope_type\": \"linear\", \"factor\": 2.0}", NULL, 2, 10000},
        {"{\"rope_type\": \"default\", \"rope_theta\": 7.0}", NULL, 0, 7},
        {"{}", NULL, 0, 77},
        {"null", NULL, 0, 77},
        {"{\"rope_type\": \"linear\"}", "rope_scaling.factor: missing", 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Arena       arena = {0};
        HfModel    *model;
        double      kind = -1, theta = -1;
        const char *text = arena_printf(&arena,
                                        "{\"architectures\": [\"LlamaForCausalLM\"], \"vocab_size\": 8, \"hidden_size\": 8, "
                                        "\"intermediate_size\": 8, \"num_hidden_layers\": 1, \"num_attention_heads\": 1, "
                                        "\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 77.0}, \"rope_scaling\": %s}",
                                        cases[i].scaling);
        EXPECT_OK(file_write_atomic(arena_printf(&arena, "%s/config.json", make_folder()), text, strlen(text)));
        Status status = hf_model_open(&arena, folder, &model);
        if (cases[i].message) {
            EXPECT_FAILS(status, ERR_INVALID, cases[i].message);
        } else {
            EXPECT_OK(status);
            EXPECT(ir_dims_get(&model->dims, "rope_kind", &kind) && ir_dims_get(&model->dims, "theta", &theta));
            EXPECT_NEAR(kind, cases[i].kind, 0);
            EXPECT_NEAR(theta, cases[i].theta, 0);
        }
        EXPECT_OK(file_remove_tree(folder));
        arena_deinit(&arena);
    }
}

/* transformers multiplies by sqrt(C) in the dtype of the weights: 33.94 is 34 in bf16. */
static void gemmas_embedding_is_scaled_in_the_weights_dtype(void)
{
    static const char *const names[] = {"Gemma2ForCausalLM", "Gemma3ForCausalLM"};
    for (int k = 0; k < 4; k++) {
        Arena       arena = {0};
        HfModel    *model;
        Graph      *graph;
        int         found = 0;
        const char *text = arena_printf(&arena,
                                        "{\"architectures\": [\"%s\"], \"vocab_size\": 8, \"hidden_size\": 1152, \"head_dim\": 8, "
                                        "\"intermediate_size\": 8, \"num_hidden_layers\": 1, \"num_attention_heads\": 4}",
                                        names[k / 2]);
        EXPECT_OK(file_write_atomic(arena_printf(&arena, "%s/config.json", make_folder()), text, strlen(text)));
        EXPECT_OK(hf_model_open(&arena, folder, &model));
        EXPECT_OK(hf_model_bind(&arena, model, k % 2 ? DT_BF16 : DT_F32, &graph));
        for (const Node *node = graph->first; node; node = node->next) {
            if (node->op != &op_scale) continue;
            EXPECT_NEAR(((const ScaleAttrs *)node->attrs)->by, k % 2 ? 34 : sqrt(1152), 1e-12);
            found++;
        }
        EXPECT_INT(found, 1);
        EXPECT_OK(file_remove_tree(folder));
        arena_deinit(&arena);
    }
}

static void ids_and_dtypes_are_checked(void)
{
    static const char *const cases[][2] = {
        {"\"eos_token_id\": \"x\"", "eos_token_id: expected the id of a token"},
        {"\"eos_token_id\": [1, \"x\"]", "eos_token_id: expected the id of a token, or a list of ids"},
        {"\"bos_token_id\": 1.5", "bos_token_id: expected the id"},
        {"\"dtype\": 16", "dtype: expected a text, found integer"},
        {"\"torch_dtype\": \"float23\"", "torch_dtype: there is no dtype \"float23\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Arena       arena = {0};
        HfModel    *model;
        const char *text = arena_printf(&arena,
                                        "{\"architectures\": [\"LlamaForCausalLM\"], \"vocab_size\": 8, \"hidden_size\": 8, "
                                        "\"intermediate_size\": 8, \"num_hidden_layers\": 1, \"num_attention_heads\": 1, %s}",
                                        cases[i][0]);
        EXPECT_OK(file_write_atomic(arena_printf(&arena, "%s/config.json", make_folder()), text, strlen(text)));
        EXPECT_FAILS(hf_model_open(&arena, folder, &model), ERR_INVALID, cases[i][1]);
        EXPECT_OK(file_remove_tree(folder));
        arena_deinit(&arena);
    }
}

static void adapters_go_in_and_out_key_for_key(void)
{
    for (int i = 0; i < NUM_FAMILIES; i++) {
        Loaded      l;
        Arena       arena = {0};
        PeftAdapter adapter, again;
        const char *dir = arena_printf(&arena, FAMILIES "%s/adapter", families[i]);
        EXPECT_OK(peft_open(&arena, dir, &adapter));
        EXPECT_OK(load(&l, arena_printf(&arena, FAMILIES "%s", families[i]), DT_F32, &adapter));
        EXPECT_OK(weights_save(l.session, l.model, true, NULL, make_folder(), "adapter_model", 1 << 30, NULL));
        EXPECT_OK(peft_write_config(&adapter.lora, "base", folder));
        expect_equal_files(dir, folder);
        EXPECT_OK(peft_open(&arena, folder, &again));
        EXPECT_INT(again.lora.r, adapter.lora.r);
        EXPECT_NEAR(again.lora.alpha, adapter.lora.alpha, 0);
        EXPECT_INT(again.lora.use_rslora, adapter.lora.use_rslora);
        EXPECT_INT(again.lora.num_targets, adapter.lora.num_targets);
        EXPECT_STR(again.base_model, "base");
        unload(&l);
        EXPECT_OK(file_remove_tree(folder));
        arena_deinit(&arena);
    }
}

static void an_adapter_setting_we_lack_is_refused(void)
{
    Arena       arena = {0};
    PeftAdapter adapter;
    Str         text;
    EXPECT_OK(file_read(&arena, FAMILIES "qwen3/adapter/adapter_config.json", 1 << 20, &text));
    char *bias = strstr((char *)text.data, "\"lora_bias\": false");
    EXPECT(bias != NULL);
    memcpy(bias, "\"lora_bias\": true ", 18);
    EXPECT_OK(file_write_atomic(arena_printf(&arena, "%s/adapter_config.json", make_folder()), text.data, text.len));
    EXPECT_FAILS(peft_open(&arena, folder, &adapter), ERR_UNSUPPORTED, "lora_bias");
    EXPECT_OK(file_remove_tree(folder));
    arena_deinit(&arena);
}

/* A copy of the folder `dir` with an lm_head.weight added. It equals the embedding, except that its last value differs by `difference`. */
static void make_headed(Arena *arena, const char *dir, float difference)
{
    StFile *file;
    char    config[128];
    EXPECT_OK(st_open(dir, &file));
    size_t  count = st_count(file);
    StDecl *decls = arena_array(arena, StDecl, count + 1);
    for (size_t i = 0; i < count; i++) {
        const StTensor *t = st_at(file, i);
        decls[i] = (StDecl){.name = t->name, .dtype = t->dtype, .ndim = t->ndim, .data = t->data};
        memcpy(decls[i].dim, t->dim, sizeof t->dim);
        if (strcmp(t->name, "model.embed_tokens.weight") == 0) decls[count] = decls[i];
    }
    float *head = arena_alloc(arena, st_decl_bytes(&decls[count]));
    memcpy(head, decls[count].data, st_decl_bytes(&decls[count]));
    head[decls[count].dim[0] * decls[count].dim[1] - 1] += difference;
    decls[count].name = "lm_head.weight";
    decls[count].data = head;
    EXPECT_OK(st_write(arena_printf(arena, "%s/model.safetensors", make_folder()), decls, count + 1, NULL, NULL, NULL));
    snprintf(config, sizeof config, "%s/config.json", folder);
    test_copy(arena_printf(arena, "%s/config.json", dir), config);
    st_close(file);
}

/* transformers uses a stored head that differs from the embedding, even if tie_word_embeddings is true. */
static void a_stored_head_wins_over_the_config(void)
{
    for (int differs = 0; differs < 2; differs++) {
        Arena    arena = {0};
        Loaded   l;
        HfModel *model;
        char     headed[sizeof folder];
        make_headed(&arena, FAMILIES "qwen3", differs ? 1.0f : 0.0f);
        strcpy(headed, folder);
        EXPECT_OK(load(&l, headed, DT_F32, NULL));
        EXPECT_INT(l.model->own_head != NULL, differs);
        EXPECT_OK(weights_save(l.session, l.model, false, NULL, make_folder(), "model", 1 << 30, NULL));
        EXPECT_OK(hf_model_write_config(l.model, DT_F32, folder));
        expect_equal_files(differs ? headed : FAMILIES "qwen3", folder);
        EXPECT_OK(hf_model_open(&arena, folder, &model));
        EXPECT_INT(model->tied_head, !differs);
        unload(&l);
        EXPECT_OK(file_remove_tree(headed));
        EXPECT_OK(file_remove_tree(folder));
        arena_deinit(&arena);
    }
}

/* A merged matrix is W + alpha/r B A (with rsLoRA alpha/sqrt(r)), computed in double; `transposed`: the matrix is stored transposed. */
static void check_merged(const char *family, const char *matrix, bool transposed)
{
    Arena       arena = {0};
    HfModel    *base;
    PeftAdapter adapter;
    StFile     *a_file, *merged;
    const char *adapter_dir = arena_printf(&arena, FAMILIES "%s/adapter", family);
    EXPECT_OK(hf_model_open(&arena, arena_printf(&arena, FAMILIES "%s", family), &base));
    EXPECT_OK(peft_open(&arena, adapter_dir, &adapter));
    EXPECT_OK(merge_adapter(base, &adapter, false, make_folder(), 1 << 30, NULL));
    EXPECT_OK(st_open(adapter_dir, &a_file));
    EXPECT_OK(st_open(folder, &merged));
    const StTensor *a = st_find(a_file, arena_printf(&arena, PEFT_PREFIX PEFT_TENSOR, matrix, PEFT_A));
    const StTensor *b = st_find(a_file, arena_printf(&arena, PEFT_PREFIX PEFT_TENSOR, matrix, PEFT_B));
    const StTensor *w = st_find(base->weights, arena_printf(&arena, "%s.weight", matrix));
    const StTensor *m = st_find(merged, arena_printf(&arena, "%s.weight", matrix));
    EXPECT(a && b && w && m);
    if (a && b && w && m) {
        double       scale = adapter.lora.alpha / (adapter.lora.use_rslora ? sqrt((double)adapter.lora.r) : (double)adapter.lora.r);
        const float *pa = a->data, *pb = b->data, *pw = w->data, *pm = m->data;
        int64_t      rows = b->dim[0], cols = a->dim[1];
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < cols; c++) {
                int64_t at = transposed ? c * rows + r : r * cols + c;
                double  want = pw[at];
                for (int64_t k = 0; k < a->dim[0]; k++) want += scale * pb[r * a->dim[0] + k] * pa[k * cols + c];
                EXPECT_NEAR(pm[at], want, 1e-5);
            }
    }
    st_close(a_file);
    st_close(merged);
    hf_model_close(base);
    EXPECT_OK(file_remove_tree(folder));
    arena_deinit(&arena);
}

static void merging_adds_the_product(void)
{
    check_merged("qwen3", "model.layers.1.self_attn.q_proj", false);
    check_merged("gpt2", "transformer.h.1.mlp.c_fc", true);
}

/* Writes the fixture's tensors in F16, with its config.json. */
static void make_half(Arena *arena, const char *dir, char out_dir[64])
{
    StFile *file;
    EXPECT_OK(st_open(dir, &file));
    size_t  count = st_count(file);
    StDecl *decls = arena_array(arena, StDecl, count);
    for (size_t i = 0; i < count; i++) {
        const StTensor *t = st_at(file, i);
        void           *half = arena_alloc(arena, t->bytes / 2);
        dtype_encode(DT_F16, t->data, t->numel, half);
        decls[i] = (StDecl){.name = t->name, .dtype = ST_F16, .ndim = t->ndim, .data = half};
        memcpy(decls[i].dim, t->dim, sizeof t->dim);
    }
    strcpy(out_dir, make_folder());
    EXPECT_OK(st_write(arena_printf(arena, "%s/model.safetensors", out_dir), decls, count, NULL, NULL, NULL));
    test_copy(arena_printf(arena, "%s/config.json", dir), arena_printf(arena, "%s/config.json", out_dir));
    st_close(file);
}

/* An F16 base stays F16 when it is merged, and values that F16 can't hold are an error. */
static void a_merged_half_is_one(void)
{
    Arena       arena = {0};
    HfModel    *base, *wide;
    PeftAdapter adapter;
    StFile     *merged, *want;
    char        half[64], single[64];
    const char *name = "model.layers.1.self_attn.q_proj.weight";
    make_half(&arena, FAMILIES "qwen3", half);
    EXPECT_OK(hf_model_open(&arena, half, &base));
    EXPECT_OK(hf_model_open(&arena, FAMILIES "qwen3", &wide));
    EXPECT_OK(peft_open(&arena, FAMILIES "qwen3/adapter", &adapter));
    EXPECT_OK(merge_adapter(wide, &adapter, false, strcpy(single, make_folder()), 1 << 30, NULL));
    EXPECT_OK(merge_adapter(base, &adapter, false, make_folder(), 1 << 30, NULL));
    EXPECT_OK(st_open(single, &want));
    EXPECT_OK(st_open(folder, &merged));
    const StTensor *a = st_find(want, name), *b = st_find(merged, name);
    EXPECT(a && b && b->dtype == ST_F16);
    for (int64_t i = 0; a && b && i < a->numel; i++) {
        float got, exact = ((const float *)a->data)[i];
        EXPECT_OK(st_to_f32(b, i, 1, &got));
        EXPECT_NEAR(got, exact, fabs(exact) / 1024 + 1e-4);
    }
    st_close(want);
    st_close(merged);
    for (int i = 0; i < adapter.lora.num_modules; i++) ((LoraModule *)adapter.lora.modules)[i].alpha = 1e9;
    EXPECT_FAILS(merge_adapter(base, &adapter, false, folder, 1 << 30, NULL), ERR_INVALID, "which is no finite number in f16");
    hf_model_close(base);
    hf_model_close(wide);
    EXPECT_OK(file_remove_tree(folder));
    EXPECT_OK(file_remove_tree(half));
    EXPECT_OK(file_remove_tree(single));
    arena_deinit(&arena);
}

static void check_new(const char *arch)
{
    NewOptions options = {.arch = arch, .weights = true, .seed = 3, .max_shard_bytes = 1 << 30};
    Loaded     l;
    char       path[128];
    snprintf(path, sizeof path, "%s/m", make_folder());
    EXPECT_OK(new_model(&options, path));
    EXPECT_OK(load(&l, path, DT_F32, NULL));
    for (int i = 0; i < l.plan->num_params; i++) {
        const Param *param = l.plan->params[i];
        int64_t      n = type_numel(&param->type);
        float       *loaded = arena_array(&l.arena, float, n), *fresh = arena_array(&l.arena, float, n);
        EXPECT_OK(session_read(l.session, param->name, loaded, (size_t)n * sizeof *loaded));
        init_values(3, param, 0, n, fresh);
        if (memcmp(loaded, fresh, (size_t)n * sizeof *fresh) != 0) test_fail(__FILE__, __LINE__, "%s: %s differs", arch, param->name);
    }
    unload(&l);
    EXPECT_OK(file_remove_tree(folder));
}

static void new_models_load_and_are_what_from_scratch_gives(void)
{
    check_new("qwen2.5-tiny");
    check_new("gpt2-tiny"); /* its matrices are stored transposed */
}

/* Billions of parameters of a preset: from the table, otherwise the number in the preset's name; 0: unknown. */
static double named_billions(const char *name)
{
    static const struct {
        const char *name;
        double      billions;
    } known[] = {{"phi-4", 14.66}, {"olmo-2-1b", 1.48}, {"gemma-2-2b", 2.61}, {"gemma-3-270m", 0.268}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcmp(name, known[i].name) == 0) return known[i].billions;
    return atof(strrchr(name, '-') + 1);
}

/* Every preset is a config that its family accepts, with about as many parameters as its name says. */
static void presets_bind(void)
{
    StrBuf names = {0};
    EXPECT_OK(new_list(&names));
    for (char *name = strtok(names.data, "\n"); name; name = strtok(NULL, "\n")) {
        NewOptions options = {.arch = name};
        Arena      arena = {0};
        HfModel   *model;
        Graph     *graph;
        char       path[128];
        snprintf(path, sizeof path, "%s/m", make_folder());
        EXPECT_OK(new_model(&options, path));
        EXPECT_OK(hf_model_open(&arena, path, &model));
        EXPECT_OK(hf_model_bind(&arena, model, DT_BF16, &graph));
        double numel = 0, billions;
        for (int i = 0; i < graph->num_params; i++) numel += (double)type_numel(&graph->params[i]->type);
        billions = named_billions(name);
        if (billions > 0 && !(fabs(numel * 1e-9 / billions - 1) < 0.26))
            test_fail(__FILE__, __LINE__, "%s has %.3f billion parameters", name, numel * 1e-9);
        arena_deinit(&arena);
        EXPECT_OK(file_remove_tree(folder));
    }
    strbuf_deinit(&names);
}

/* ---- what a device holds ---- */

static int64_t   taken;
static DeviceApi telling_api; /* a device that reports taken_bytes */

static Status tell_taken(Device *device, DeviceFacts *out)
{
    (void)device;
    *out = (DeviceFacts){.taken_bytes = taken};
    return OK;
}

static void what_others_take_is_beside_the_plan(void)
{
    Loaded           l;
    int64_t          beside = -1;
    const DeviceApi *own;
    EXPECT_OK(load(&l, FAMILIES "qwen3", DT_F32, NULL));
    EXPECT_OK(session_beside_bytes(l.session, &beside));
    EXPECT_INT(beside, 0); /* the CPU can't report taken bytes */
    own = l.device->api;
    telling_api = *own;
    telling_api.facts = tell_taken;
    l.device->api = &telling_api;
    taken = plan_total_bytes(l.plan) + 12345;
    EXPECT_OK(session_beside_bytes(l.session, &beside));
    EXPECT_INT(beside, 12345);
    taken = 1;
    EXPECT_OK(session_beside_bytes(l.session, &beside));
    EXPECT_INT(beside, 0);
    l.device->api = own;
    unload(&l);
}

TEST_MAIN(TEST(what_others_take_is_beside_the_plan), TEST(init_has_the_asked_moments), TEST(init_depends_on_seed_name_and_element_alone),
          TEST(init_is_what_the_documents_say), TEST(a_saved_model_holds_the_same_tensors), TEST(names_without_their_prefix_are_read),
          TEST(shards_hold_the_same_tensors), TEST(config_tells_the_truth_about_the_dtype), TEST(rope_scaling_goes_before_rope_parameters),
          TEST(gemmas_embedding_is_scaled_in_the_weights_dtype), TEST(ids_and_dtypes_are_checked), TEST(adapters_go_in_and_out_key_for_key),
          TEST(an_adapter_setting_we_lack_is_refused), TEST(a_stored_head_wins_over_the_config), TEST(merging_adds_the_product),
          TEST(a_merged_half_is_one), TEST(new_models_load_and_are_what_from_scratch_gives), TEST(presets_bind))
