/* surogate new: writes a preset's config.json, then generates each parameter straight into the file. */
#include "model/new.h"

#include "base/json_edit.h"
#include "base/scoped.h"
#include "files/folder.h"
#include "files/json_file.h"
#include "model/init.h"
#include "model/weights.h"
#include "text/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__asm__(".section .rodata\n.global model_presets\n.global model_presets_end\nmodel_presets:\n.incbin \"" SUROGATE_MODELS_DIR
        "/presets.json\"\nmodel_presets_end:\n.byte 0\n.previous\n");
extern const char model_presets[], model_presets_end[];

enum { CHUNK_NUMEL = 1 << 20, TASK_NUMEL = 1 << 14, MAX_NAMES = 256, NUM_TOKENIZER_KEYS = 4 };

static Status parse_presets(Arena *arena, JsonValue *out)
{
    return json_parse(arena, "the shipped presets", model_presets, (size_t)(model_presets_end - model_presets), out);
}

static size_t preset_names(const JsonValue *presets, const char **names)
{
    size_t           count = 0;
    const JsonValue *families = json_get(presets, "families");
    for (uint32_t f = 0; f < families->count; f++) {
        const JsonValue *sizes = json_get(&families->items[f], "sizes");
        for (uint32_t i = 0; i < sizes->count && count < MAX_NAMES; i++) names[count++] = sizes->members[i].key.data;
    }
    return count;
}

Status new_list(StrBuf *out)
{
    SCOPED_ARENA(arena);
    JsonValue   presets;
    const char *names[MAX_NAMES];
    TRY(parse_presets(&arena, &presets));
    for (size_t i = 0, n = preset_names(&presets, names); i < n; i++) strbuf_printf(out, "%s\n", names[i]);
    return OK;
}

static Status find_preset(Arena *arena, const JsonValue *presets, const char *arch, size_t extra, JsonValue *out)
{
    const JsonValue *families = json_get(presets, "families");
    for (uint32_t f = 0; f < families->count; f++) {
        const JsonValue *size = json_get(json_get(&families->items[f], "sizes"), arch);
        if (!size) continue;
        *out = json_copy_object(arena, json_get(&families->items[f], "config"), size->count + (uint32_t)extra);
        for (uint32_t i = 0; i < size->count; i++) json_set(out, size->members[i].key, size->members[i].value);
        return OK;
    }
    const char *names[MAX_NAMES];
    FAIL(ERR_INVALID, "--arch %s: no such model%s; `surogate new --list` names all", arch,
         did_you_mean(", ", arch, names, preset_names(presets, names)));
}

/* The IR of a preset's architecture. */
static Status find_module(Arena *arena, const JsonValue *config, IrModule **out)
{
    const JsonValue *list = json_get(config, "architectures");
    size_t           len;
    const char      *name = list->items[0].string.data, *text = ir_shipped_module(name, &len);
    CHECK(text);
    return ir_module_parse(arena, name, text, len, out);
}

/* Adds the keys of config.json that the IR lists as read or ignored. An item is a text, or an object with a "key". For `a.b` it adds `a`.
 */
static void add_keys(Arena *arena, const JsonValue *list, const char **names, size_t *count)
{
    for (uint32_t i = 0; list && list->type == JSON_ARRAY && i < list->count; i++) {
        const JsonValue *item = list->items[i].type == JSON_OBJECT ? json_get(&list->items[i], "key") : &list->items[i];
        if (!item) continue; /* a symbol that is computed from others has no key */
        if (item->type == JSON_ARRAY) add_keys(arena, item, names, count);
        if (item->type != JSON_STRING || *count == MAX_NAMES) continue;
        const char *key = item->string.data, *dot = strchr(key, '.');
        names[(*count)++] = dot ? arena_strndup(arena, key, (size_t)(dot - key)) : key;
    }
}

static Status check_key(Arena *arena, const JsonValue *config, const IrModule *module, const char *key)
{
    const char *names[MAX_NAMES];
    size_t      count = 0;
    for (uint32_t i = 0; i < config->count && count < MAX_NAMES; i++) names[count++] = config->members[i].key.data;
    add_keys(arena, json_get(&module->root, "config"), names, &count);
    add_keys(arena, json_get(&module->root, "ignored"), names, &count);
    for (size_t i = 0; i < count; i++)
        if (strcmp(names[i], key) == 0) return OK;
    FAIL(ERR_INVALID, "%s: config.json of this family has no such key%s", key, did_you_mean(", ", key, names, count));
}

static Status apply_setting(Arena *arena, JsonValue *config, const IrModule *module, const char *setting)
{
    const char *equals = strchr(setting, '=');
    FAIL_IF(!equals || equals == setting, ERR_INVALID, "%s: expected key=value, a setting of config.json", setting);
    Str       key = {arena_strndup(arena, setting, (size_t)(equals - setting)), (size_t)(equals - setting)};
    JsonValue value;
    TRY(check_key(arena, config, module, key.data));
    if (json_parse(arena, "setting", equals + 1, strlen(equals + 1), &value) != OK) {
        status_clear();
        value = (JsonValue){.type = JSON_STRING, .string = str_of(arena_strdup(arena, equals + 1))};
    }
    json_set(config, key, value);
    return OK;
}

/* Sets the keys that the tokenizer decides: the size of the vocabulary, and the ids of BOS, EOS and padding. */
static Status apply_tokenizer(Arena *arena, JsonValue *config, const IrModule *module, const char *dir)
{
    Tokenizer      *tokenizer;
    IrDims          dims;
    const IrSymbol *vocabulary;
    TRY(ir_module_dims(arena, module, config, "the preset", &dims));
    TRY(ir_module_role(module, &dims, IR_ROLE_VOCABULARY, &vocabulary));
    CHECK(vocabulary);
    TRY(tokenizer_load(dir, &tokenizer));
    const struct {
        const char *key;
        int64_t     value; /* -1: none */
    } ids[] = {{vocabulary->key, tokenizer_vocab_size(tokenizer)},
               {"bos_token_id", tokenizer_bos_id(tokenizer)},
               {"eos_token_id", tokenizer_eos_id(tokenizer)},
               {"pad_token_id", tokenizer_pad_id(tokenizer)}};
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++) {
        JsonValue value = {.type = ids[i].value < 0 ? JSON_NULL : JSON_INT, .integer = ids[i].value};
        json_set(config, str_of(ids[i].key), value);
    }
    tokenizer_destroy(tokenizer);
    return OK;
}

static int compare_members(const void *a, const void *b)
{
    return strcmp(((const JsonMember *)a)->key.data, ((const JsonMember *)b)->key.data);
}

/* Writes config.json as transformers does: sorted keys, two spaces. */
static Status write_config(Arena *arena, const NewOptions *options, const char *folder)
{
    JsonValue presets, config;
    IrModule *module;
    TRY(parse_presets(arena, &presets));
    TRY(find_preset(arena, &presets, options->arch, options->num_settings + NUM_TOKENIZER_KEYS, &config));
    TRY(find_module(arena, &config, &module));
    if (options->tokenizer) TRY(apply_tokenizer(arena, &config, module, options->tokenizer));
    for (size_t i = 0; i < options->num_settings; i++) TRY(apply_setting(arena, &config, module, options->settings[i]));
    qsort(config.members, config.count, sizeof *config.members, compare_members);
    const char *path = arena_printf(arena, "%s/config.json", folder);
    SCOPED_STRBUF(generation);
    strbuf_puts(&generation, "{\n");
    static const char *const ids[] = {"bos_token_id", "eos_token_id"};
    for (int i = 0; i < 2; i++) {
        const JsonValue *id = json_get(&config, ids[i]);
        if (!id) continue;
        strbuf_printf(&generation, "%s  \"%s\": ", generation.len > 2 ? ",\n" : "", ids[i]);
        json_write(&generation, id, -1);
    }
    strbuf_puts(&generation, "\n}\n");
    TRY(file_make_dirs(folder));
    TRY(json_file_write(path, &config));
    return file_write_atomic(arena_printf(arena, "%s/generation_config.json", folder), generation.data, generation.len);
}

/* ---- weights ---- */

typedef struct Generator {
    Graph       *graph;
    uint64_t     seed;
    ThreadPool  *pool;
    float       *values;
    void        *converted;
    const Param *param; /* the parameter of the chunk being filled */
    int64_t      first, count;
} Generator;

static void fill_task(void *context, int64_t task, int worker)
{
    (void)worker;
    Generator *g = context;
    DType      dtype = g->param->type.dtype;
    int64_t    at = task * TASK_NUMEL, n = g->count - at < TASK_NUMEL ? g->count - at : TASK_NUMEL;
    init_values(g->seed, g->param, g->first + at, n, g->values + at);
    dtype_encode(dtype, g->values + at, n, (char *)g->converted + dtype_bytes(dtype, at));
}

/* Appends a matrix whose transpose the file stores: generates it whole, then transposes it. */
static Status append_transposed(Generator *g, int64_t numel, FileWriter *out)
{
    DType                      dtype = g->param->type.dtype;
    SCOPED(scoped_free) float *values = malloc((size_t)numel * sizeof *values);
    SCOPED(scoped_free) float *turned = malloc((size_t)numel * sizeof *turned);
    FAIL_IF(!values || !turned, ERR_NO_FIT, "no memory to transpose %s", g->param->name);
    init_values(g->seed, g->param, 0, numel, values);
    transpose_floats(values, g->param->type.dim[0], g->param->type.dim[1], turned);
    dtype_encode(dtype, turned, numel, values);
    return file_writer_append(out, values, (size_t)dtype_bytes(dtype, numel));
}

static Status append_values(void *context, size_t index, FileWriter *out)
{
    Generator *g = context;
    g->param = g->graph->params[index];
    int64_t numel = type_numel(&g->param->type);
    if (param_saved(g->param)->kind == HF_TRANSPOSE) return append_transposed(g, numel, out);
    for (g->first = 0; g->first < numel; g->first += CHUNK_NUMEL) {
        g->count = numel - g->first < CHUNK_NUMEL ? numel - g->first : CHUNK_NUMEL;
        pool_run(g->pool, (g->count + TASK_NUMEL - 1) / TASK_NUMEL, fill_task, g);
        TRY(file_writer_append(out, g->converted, (size_t)dtype_bytes(g->param->type.dtype, g->count)));
    }
    return OK;
}

static Status write_weights(Arena *arena, const NewOptions *options, const HfModel *model, const char *folder)
{
    Generator g = {.seed = options->seed, .pool = options->pool};
    TRY(hf_model_bind(arena, model, model->dtype, &g.graph));
    StDecl *decls = arena_array(arena, StDecl, g.graph->num_params);
    for (int i = 0; i < g.graph->num_params; i++) {
        const Param *param = g.graph->params[i];
        bool         turned = param_saved(param)->kind == HF_TRANSPOSE;
        FAIL_IF(param_saved(param)->kind != HF_WHOLE && !turned, ERR_UNSUPPORTED, "%s: parameter %s isn't one whole tensor of the file",
                options->arch, param->name);
        decls[i] = st_decl(param_saved(param)->names[0], st_dtype_from(param->type.dtype), param->type.ndim, param->type.dim, turned);
    }
    SCOPED_ARRAY(float, values, CHUNK_NUMEL);
    SCOPED_ARRAY(float, converted, CHUNK_NUMEL);
    g.values = values;
    g.converted = converted;
    return st_write_folder(folder, "model", decls, (size_t)g.graph->num_params, (size_t)options->max_shard_bytes, append_values, &g);
}

/* Opening the folder that was written checks the settings. */
static Status write_model(Arena *arena, const NewOptions *options, const char *folder)
{
    HfModel *model;
    TRY(write_config(arena, options, folder));
    TRY(hf_model_open(arena, folder, &model));
    if (options->weights) TRY(write_weights(arena, options, model, folder));
    return options->tokenizer ? hf_copy_side_files(options->tokenizer, folder) : OK;
}

Status new_model(const NewOptions *options, const char *folder)
{
    SCOPED_ARENA(arena);
    FolderWriter writer;
    bool         is_used;
    TRY(file_exists(arena_printf(&arena, "%s/config.json", folder), &is_used));
    FAIL_IF(is_used, ERR_INVALID, "%s already holds a config.json; name a new folder, or remove it first", folder);
    TRY(folder_begin(&arena, folder, &writer));
    Status status = write_model(&arena, options, writer.partial);
    return status == OK ? folder_finish(&writer, "config.json") : folder_abandon(&writer, status);
}
