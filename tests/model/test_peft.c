/* Which adapters of PEFT are read, and how they are understood. tests/oracle/check_adapter_keys.py compares with PEFT itself. */
#include "model/merge.h"
#include "model/peft_match.h"
#include "passes/peft_names.h"

#include "test.h"

#include <unistd.h>

#define BASE "tests/fixtures/families/qwen3"
#define ADAPTER BASE "/adapter"
#define Q "model.layers.0.self_attn.q_proj"

static char        folder[64], other[64];
static const char *make(char path[64])
{
    strcpy(path, "/tmp/surogate_peft_XXXXXX");
    EXPECT(mkdtemp(path) != NULL);
    return path;
}

/* Writes adapter_config.json with `members` in place of the fixture's members, or in addition. */
static void write_config(const char *dir, const char *members)
{
    Arena     arena = {0};
    Str       text;
    JsonValue config, changed;
    StrBuf    out = {0};
    EXPECT_OK(file_read(&arena, ADAPTER "/adapter_config.json", 1 << 20, &text));
    EXPECT_OK(json_parse(&arena, "config", text.data, text.len, &config));
    const char *object = arena_printf(&arena, "{%s}", members);
    EXPECT_OK(json_parse(&arena, "members", object, strlen(object), &changed));
    JsonMember *all = arena_array(&arena, JsonMember, config.count + changed.count);
    uint32_t    count = 0;
    for (uint32_t i = 0; i < config.count; i++)
        if (!json_find(&changed, config.members[i].key)) all[count++] = config.members[i];
    for (uint32_t i = 0; i < changed.count; i++) all[count++] = changed.members[i];
    JsonValue whole = {.type = JSON_OBJECT, .count = count, .members = all};
    json_write(&out, &whole, 2);
    EXPECT_OK(file_write_atomic(arena_printf(&arena, "%s/adapter_config.json", dir), out.data, out.len));
    strbuf_deinit(&out);
    arena_deinit(&arena);
}

static Status open_with(const char *members)
{
    Arena       arena = {0};
    PeftAdapter adapter;
    write_config(folder, members);
    Status status = peft_open(&arena, folder, &adapter);
    arena_deinit(&arena);
    return status;
}

static void what_changes_the_result_is_refused(void)
{
    static const struct {
        const char *members;
        Status      status;
        const char *says;
    } cases[] = {
        {"\"init_lora_weights\": \"pissa\"", ERR_UNSUPPORTED, "init_lora_weights is \"pissa\""},
        {"\"init_lora_weights\": \"pissa_niter_16\"", ERR_UNSUPPORTED, "pissa_niter_16"},
        {"\"init_lora_weights\": \"olora\"", ERR_UNSUPPORTED, "path_initial_model_for_weight_conversion"},
        {"\"init_lora_weights\": \"loftq\"", ERR_UNSUPPORTED, "loftq"},
        {"\"init_lora_weights\": \"corda\"", ERR_UNSUPPORTED, "corda"},
        {"\"init_lora_weights\": \"lora_ga\"", ERR_UNSUPPORTED, "lora_ga"},
        {"\"init_lora_weights\": 3", ERR_INVALID, "init_lora_weights: expected true, false or a word"},
        {"\"kasa_config\": {\"beta\": 1e-4}", ERR_UNSUPPORTED, "\"kasa_config\" isn't supported"},
        {"\"modules_to_save\": \"lm_head\"", ERR_INVALID, "modules_to_save: expected a list of names"},
        {"\"modules_to_save\": [3]", ERR_INVALID, "modules_to_save: expected a list of names"},
        {"\"modules_to_save\": [\"lm_head\"]", ERR_INVALID, "modules_to_save: there is no tensor of lm_head"},
        {"\"use_dora\": true", ERR_INVALID, "use_dora is true, and there is no tensor " PEFT_PREFIX},
        {"\"use_qalora\": true", ERR_UNSUPPORTED, "\"use_qalora\" isn't supported"},
        {"\"use_tomorrow\": 1", ERR_UNSUPPORTED, "\"use_tomorrow\" isn't supported"},
        {"\"use_rslora\": \"true\"", ERR_INVALID, "use_rslora: expected true or false"},
        {"\"lora_dropout\": \"0.1\"", ERR_INVALID, "lora_dropout: expected a number"},
        {"\"rank_pattern\": [1]", ERR_INVALID, "rank_pattern: expected an object of numbers"},
        {"\"alpha_pattern\": {\"q_proj\": \"2\"}", ERR_INVALID, "alpha_pattern: \"q_proj\": expected a number"},
        {"\"alpha_pattern\": {\"(q\": 2}", ERR_UNSUPPORTED, "alpha_pattern: \"(q\""},
        {"\"rank_pattern\": {\"q_proj\": 2}", ERR_INVALID, "the rank of " Q " is 2"},
        {"\"target_modules\": null", ERR_INVALID, "expected names under target_modules"},
        {"\"target_modules\": [1]", ERR_INVALID, "target_modules: expected a list of names"},
        {"\"layers_to_transform\": \"1\"", ERR_INVALID, "layers_to_transform: expected a whole number"},
    };
    test_copy(ADAPTER "/adapter_model.safetensors", strcat(strcpy(other, make(folder)), "/adapter_model.safetensors"));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) EXPECT_FAILS(open_with(cases[i].members), cases[i].status, cases[i].says);
    static const char *const harmless[] = {
        "\"init_lora_weights\": false",
        "\"init_lora_weights\": \"gaussian\"",
        "\"init_lora_weights\": \"orthogonal\"",
        "\"init_lora_weights\": \"eva\", \"eva_config\": {\"rho\": 2.0}",
        "\"use_tomorrow\": false",
        "\"tomorrow_config\": null",
        "\"qalora_group_size\": 8",
        "\"runtime_config\": {\"ephemeral_gpu_offload\": true}",
        "\"use_rslora\": null",
        "\"modules_to_save\": []",
        "\"ensure_weight_tying\": true",
    };
    for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++) EXPECT_OK(open_with(harmless[i]));
    EXPECT_OK(file_remove_tree(folder));
}

/* ---- which modules ---- */

static bool has(const char *members, const char *module, bool is_head)
{
    Arena        arena = {0};
    JsonValue    config;
    PeftTargets *targets;
    bool         out = false;
    const char  *text = arena_printf(&arena, "{%s}", members);
    EXPECT_OK(json_parse(&arena, "config", text, strlen(text), &config));
    EXPECT_OK(peft_targets_open(&config, "config", &targets));
    EXPECT_OK(peft_targets_have(targets, module, is_head, &out));
    peft_targets_close(targets);
    arena_deinit(&arena);
    return out;
}

static void targets_are_those_of_peft(void)
{
    EXPECT(has("\"target_modules\": [\"q_proj\"]", Q, false));
    EXPECT(!has("\"target_modules\": [\"proj\"]", Q, false));
    EXPECT(has("\"target_modules\": \"all-linear\"", Q, false));
    EXPECT(!has("\"target_modules\": \"all-linear\"", "lm_head", true));
    EXPECT(has("\"target_modules\": \".*\\\\.q_proj\"", Q, false));
    EXPECT(!has("\"target_modules\": \"q_proj\"", Q, false)); /* a regular expression must match the whole path */
    EXPECT(!has("\"target_modules\": [\"q_proj\"], \"exclude_modules\": [\"self_attn.q_proj\"]", Q, false));
    EXPECT(!has("\"target_modules\": [\"q_proj\"], \"exclude_modules\": \".*layers\\\\.0.*\"", Q, false));
    EXPECT(has("\"target_modules\": [\"q_proj\"], \"layers_to_transform\": [0, 3]", Q, false));
    EXPECT(!has("\"target_modules\": [\"q_proj\"], \"layers_to_transform\": 1", Q, false));
    EXPECT(has("\"target_modules\": [\"" Q "\"], \"layers_to_transform\": 1", Q, false));
    EXPECT(has("\"target_modules\": [\"q_proj\"], \"layers_to_transform\": 0, \"layers_pattern\": [\"h\", \"layers\"]", Q, false));
    EXPECT(!has("\"target_modules\": [\"q_proj\"], \"layers_to_transform\": 0, \"layers_pattern\": \"blocks\"", Q, false));
    EXPECT(!has("\"target_modules\": [\"lm_head\"], \"layers_to_transform\": 0", "x.lm_head", true)); /* the head belongs to no layer */
}

/* ---- tensors ---- */

enum { Q_RANK = 2, MOST_TENSORS = 64 };

/* Writes the fixture's tensors and `more`. The matrices A and B of q_proj have `rank` rows, of which Q_RANK aren't 0. */
static void write_tensors(const char *dir, int rank, const StDecl *more, size_t num_more)
{
    Arena   arena = {0};
    StFile *file;
    StDecl  decls[MOST_TENSORS];
    EXPECT_OK(st_open(ADAPTER, &file));
    size_t count = st_count(file);
    for (size_t i = 0; i < count; i++) {
        const StTensor *t = st_at(file, i);
        decls[i] = (StDecl){.name = t->name, .dtype = t->dtype, .ndim = t->ndim, .data = t->data};
        memcpy(decls[i].dim, t->dim, sizeof t->dim);
        if (!strstr(t->name, "q_proj")) continue;
        bool    is_a = strstr(t->name, PEFT_A) != NULL;
        int64_t size = is_a ? t->dim[1] : t->dim[0], full = is_a ? t->dim[0] : t->dim[1];
        float  *cut = arena_array(&arena, float, size *rank);
        for (int64_t k = 0; k < Q_RANK; k++)
            for (int64_t c = 0; c < size; c++)
                cut[is_a ? k * size + c : c * rank + k] = ((const float *)t->data)[is_a ? k * size + c : c * full + k];
        decls[i].dim[is_a ? 0 : 1] = rank;
        decls[i].data = cut;
    }
    for (size_t i = 0; i < num_more; i++) decls[count++] = more[i];
    EXPECT_OK(st_write(arena_printf(&arena, "%s/adapter_model.safetensors", dir), decls, count, NULL, NULL, NULL));
    st_close(file);
    arena_deinit(&arena);
}

static Status merge_of(const char *dir, char out[64])
{
    Arena       arena = {0};
    HfModel    *base;
    PeftAdapter adapter;
    EXPECT_OK(hf_model_open(&arena, BASE, &base));
    Status status = peft_open(&arena, dir, &adapter);
    if (status == OK) status = merge_adapter(base, &adapter, false, strcat(strcpy(out, dir), "/out"), 1 << 30, NULL);
    hf_model_close(base);
    arena_deinit(&arena);
    return status;
}

static uint64_t hash_of(const char *dir)
{
    uint64_t hash = 0;
    char     path[128];
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    EXPECT_OK(file_hash(path, &hash));
    return hash;
}

/* alpha / r is 2 for all modules. q_proj has two forms: padded with zeros to the other modules' rank, and with its own rank and alpha. */
static void modules_have_their_own_rank_and_alpha(void)
{
    char out[64];
    make(folder);
    write_tensors(folder, 4, NULL, 0);
    write_config(folder, "\"use_rslora\": false");
    EXPECT_OK(merge_of(folder, out));
    uint64_t want = hash_of(out);
    EXPECT_OK(file_remove_tree(folder));
    make(folder);
    write_tensors(folder, Q_RANK, NULL, 0);
    write_config(folder, "\"use_rslora\": false, \"target_modules\": \".*_proj\", "
                         "\"rank_pattern\": {\"layers\\\\.\\\\d+\\\\.self_attn\\\\.q_proj\": 2, \"q_proj\": 9}, "
                         "\"alpha_pattern\": {\"q_proj\": 4}");
    EXPECT_OK(merge_of(folder, out));
    EXPECT(hash_of(out) == want);
    write_config(folder, "\"use_rslora\": false, \"rank_pattern\": {\"q_proj\": 2}, \"target_modules\": [\"q_proj\"]");
    EXPECT_FAILS(merge_of(folder, out), ERR_INVALID, "which adapter_config.json doesn't say to be adapted");
    write_config(folder, "\"use_rslora\": false, \"rank_pattern\": {\"q_proj\": 2}, \"target_modules\": \".*(_proj|lm_head)\"");
    EXPECT_FAILS(merge_of(folder, out), ERR_INVALID, "says that lm_head is adapted, but there are no tensors for it");
    EXPECT_OK(file_remove_tree(folder));
}

/* PEFT stores the base's embedding and head beside an adapter of the head. */
static void copies_of_the_base_are_the_bases(void)
{
    Arena    arena = {0};
    HfModel *base;
    char     out[64];
    EXPECT_OK(hf_model_open(&arena, BASE, &base));
    EXPECT_OK(hf_model_open_weights(base));
    const StTensor *embed = st_find(base->weights, "model.embed_tokens.weight");
    float          *a = arena_array(&arena, float, 4 * embed->dim[1]), *b = arena_array(&arena, float, embed->dim[0] * 4);
    uint16_t       *half = arena_array(&arena, uint16_t, embed->numel);
    dtype_encode(DT_BF16, embed->data, embed->numel, half);
    StDecl more[] = {
        {PEFT_PREFIX "lm_head.lora_A.weight", ST_F32, 2, {4, embed->dim[1]}, a},
        {PEFT_PREFIX "lm_head.lora_B.weight", ST_F32, 2, {embed->dim[0], 4}, b},
        {PEFT_PREFIX "lm_head.base_layer.weight", ST_F32, 2, {embed->dim[0], embed->dim[1]}, embed->data},
        {PEFT_PREFIX "model.embed_tokens.weight", ST_BF16, 2, {embed->dim[0], embed->dim[1]}, half},
    };
    make(folder);
    write_tensors(folder, 4, more, 4);
    write_config(folder, "\"target_modules\": \".*(_proj|lm_head)\"");
    EXPECT_OK(merge_of(folder, out));
    half[3] ^= 1;
    write_tensors(folder, 4, more, 4);
    EXPECT_FAILS(merge_of(folder, out), ERR_UNSUPPORTED, "model.embed_tokens.weight differs from the base's");
    half[3] ^= 1;
    more[3].name = PEFT_PREFIX "model.another.weight";
    write_tensors(folder, 4, more, 4);
    EXPECT_FAILS(merge_of(folder, out), ERR_INVALID, "the base has no model.another.weight");
    EXPECT_OK(file_remove_tree(folder));
    hf_model_close(base);
    arena_deinit(&arena);
}

TEST_MAIN(TEST(what_changes_the_result_is_refused), TEST(targets_are_those_of_peft), TEST(modules_have_their_own_rank_and_alpha),
          TEST(copies_of_the_base_are_the_bases))
