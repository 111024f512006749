/* Reading and writing adapter_config.json. */
#include "model/peft.h"

#include "base/log.h"
#include "base/scoped.h"
#include "files/json_file.h"
#include "model/peft_match.h"
#include "model/peft_tokens.h"
#include "passes/adapt_tokens.h"
#include "passes/adapt_whole.h"
#include "passes/peft_names.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MAX_CONFIG_BYTES = 16 << 20, MAX_RANK = 65536 };

Status peft_is_adapter_dir(const char *dir, bool *out)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/adapter_config.json", dir);
    return file_exists(path, out);
}

/* null, false, 0, "", [], {} and "none" all say: not used. */
static bool is_unused(const JsonValue *value)
{
    if (!value) return true;
    switch (value->type) {
    case JSON_NULL:
        return true;
    case JSON_BOOL:
        return !value->boolean;
    case JSON_INT:
        return value->integer == 0;
    case JSON_DOUBLE:
        return value->number == 0;
    case JSON_STRING:
        return value->string.len == 0 || str_equal(value->string, "none");
    case JSON_ARRAY:
    case JSON_OBJECT:
        return value->count == 0;
    }
    return false;
}

typedef enum KeyRule { KEY_READ, KEY_FREE, KEY_UNUSED } KeyRule;

static const struct {
    const char *name;
    KeyRule     rule;
} keys[] = {
#define PEFT_KEY(name, rule, why) {#name, KEY_##rule},
#include "model/peft_keys.def"
#undef PEFT_KEY
};

static Status check_keys(const JsonValue *config, const char *name)
{
    size_t count = sizeof keys / sizeof *keys;
    for (uint32_t i = 0; i < config->count; i++) {
        const JsonMember *member = &config->members[i];
        size_t            k = 0;
        while (k < count && !str_equal(member->key, keys[k].name)) k++;
        if (k < count && keys[k].rule != KEY_UNUSED) continue;
        FAIL_IF(!is_unused(&member->value), ERR_UNSUPPORTED, "%s: \"%.100s\" isn't supported; expected a plain LoRA adapter%s", name,
                member->key.data, k == count ? " (no version of PEFT that is known here has this key)" : "");
    }
    return OK;
}

/* Refuses initialisations that move a part of the base's weights into the adapter: the adapter would be wrong on the unchanged base. */
static Status check_init(const JsonValue *config, const char *name)
{
    static const char *const harmless[] = {"gaussian", "orthogonal", "eva", "mica"};
    const JsonValue         *init = json_get(config, "init_lora_weights");
    if (!init || init->type == JSON_NULL || init->type == JSON_BOOL) return OK;
    FAIL_IF(init->type != JSON_STRING, ERR_INVALID, "%s: init_lora_weights: expected true, false or a word, found %s", name,
            json_type_name(init->type));
    for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++)
        if (strcasecmp(init->string.data, harmless[i]) == 0) return OK;
    FAIL(ERR_UNSUPPORTED,
         "%s: init_lora_weights is \"%.100s\", which changes the base's weights; expected true, false, gaussian, orthogonal, eva or mica. "
         "Save it as plain LoRA with PEFT: save_pretrained(..., path_initial_model_for_weight_conversion=...); or merge it with PEFT "
         "(merge_and_unload) and take the merged model",
         name, init->string.data);
}

/* *out stays unchanged if the key is absent or null. */
static Status read_bool(const JsonValue *config, const char *name, const char *key, bool *out)
{
    const JsonValue *value = json_get(config, key);
    if (!value || value->type == JSON_NULL) return OK;
    FAIL_IF(value->type != JSON_BOOL, ERR_INVALID, "%s: %s: expected true or false, found %s", name, key, json_type_name(value->type));
    *out = value->boolean;
    return OK;
}

static Status read_numbers(const JsonValue *config, const char *name, LoraOptions *lora)
{
    const char      *type = NULL;
    const JsonValue *dropout = json_get(config, "lora_dropout");
    FAIL_IF(!json_get_str(config, "peft_type", &type) || strcmp(type, "LORA") != 0, ERR_UNSUPPORTED, "%s: peft_type is %s; expected LORA",
            name, type ? type : "absent");
    FAIL_IF(!json_get_int(config, "r", &lora->r) || lora->r < 1 || lora->r > MAX_RANK, ERR_INVALID,
            "%s: expected a whole number from 1 to %d under \"r\"", name, MAX_RANK);
    FAIL_IF(!json_get_double(config, "lora_alpha", &lora->alpha), ERR_INVALID, "%s: expected a number under \"lora_alpha\"", name);
    FAIL_IF(dropout && dropout->type != JSON_NULL && !json_get_double(config, "lora_dropout", &lora->dropout), ERR_INVALID,
            "%s: lora_dropout: expected a number, found %s", name, json_type_name(dropout->type));
    FAIL_IF(!(lora->dropout >= 0 && lora->dropout < 1), ERR_INVALID, "%s: lora_dropout is %g; expected 0 <= p < 1", name, lora->dropout);
    TRY(read_bool(config, name, "use_dora", &lora->use_dora));
    return read_bool(config, name, "use_rslora", &lora->use_rslora);
}

Status peft_parse_base_format(const char *word, const WeightFormat **out)
{
    SCOPED_STRBUF(list);
    *out = weight_format_find(word);
    if (*out || strcmp(word, "none") == 0) return OK;
    for (int i = 0; weight_format_at(i); i++) strbuf_printf(&list, ", %s", weight_format_at(i)->name);
    Status status =
        status_fail(ERR_INVALID, "there is no format %.100s that weights are quantised to; expected none%s", word, strbuf_cstr(&list));
    return status;
}

#define BASE_FORMAT_FILE "base_format.json"

Status peft_read_base_format(Arena *arena, const char *dir, const WeightFormat **out)
{
    const char *name = arena_printf(arena, "%s/" BASE_FORMAT_FILE, dir), *word;
    JsonValue   value;
    *out = NULL;
    TRY(json_file_read_if_there(arena, name, MAX_CONFIG_BYTES, &value));
    if (value.type == JSON_NULL) return OK;
    FAIL_IF(!json_get_str(&value, "format", &word), ERR_INVALID, "%s: expected a word under \"format\"", name);
    Status status = peft_parse_base_format(word, out);
    return status == OK ? OK : status_prefix(status, "%s", name);
}

Status peft_write_base_format(const WeightFormat *format, const char *folder)
{
    SCOPED_ARENA(arena);
    if (format) {
        const char *text = arena_printf(&arena, "{\n  \"format\": \"%s\"\n}\n", format->name);
        TRY(file_write_atomic(arena_printf(&arena, "%s/" BASE_FORMAT_FILE, folder), text, strlen(text)));
    }
    return OK;
}

/* ---- tensors ---- */

const StTensor *peft_find(const StFile *file, const char *module, const char *end)
{
    SCOPED_STRBUF(name);
    if (!module) return NULL;
    strbuf_printf(&name, PEFT_PREFIX "%s%s", module, end);
    return st_find(file, strbuf_cstr(&name));
}

const char *peft_module_of(Arena *arena, const char *tensor, const char *end)
{
    size_t prefix = strlen(PEFT_PREFIX), len = strlen(tensor), tail = strlen(end);
    if (strncmp(tensor, PEFT_PREFIX, prefix) != 0 || len <= prefix + tail || strcmp(tensor + len - tail, end) != 0) return NULL;
    return arena_strndup(arena, tensor + prefix, len - prefix - tail);
}

/* The base's name of a tensor that PEFT copied from the base, as it does with adapted embeddings and heads. NULL: the tensor is no copy. */
static const char *name_of_copy(Arena *arena, const char *tensor)
{
    static const char *const parts[] = {"weight", "bias"};
    for (int i = 0; i < 2; i++) {
        const char *end = arena_printf(arena, ".%s", parts[i]), *inner = arena_printf(arena, ".base_layer.%s", parts[i]);
        const char *module = peft_module_of(arena, tensor, inner);
        if (!module) module = peft_module_of(arena, tensor, end);
        if (module && !strstr(module, ".lora_") && !strstr(module, ".modules_to_save")) return arena_printf(arena, "%s%s", module, end);
    }
    return NULL;
}

/* Reads modules_to_save, a list of the ends of modules' paths. Absent or null: none. */
static Status read_whole(Arena *arena, const JsonValue *config, const char *name, LoraOptions *lora)
{
    const JsonValue *list = json_get(config, "modules_to_save");
    if (is_unused(list)) return OK;
    FAIL_IF(list->type != JSON_ARRAY, ERR_INVALID, "%s: modules_to_save: expected a list of names, found %s", name,
            json_type_name(list->type));
    const char **whole = arena_array(arena, const char *, list->count);
    for (uint32_t i = 0; i < list->count; i++) {
        FAIL_IF(list->items[i].type != JSON_STRING || !list->items[i].string.len, ERR_INVALID,
                "%s: modules_to_save: expected a list of names", name);
        whole[i] = list->items[i].string.data;
    }
    lora->whole = whole;
    lora->num_whole = (int)list->count;
    return read_bool(config, name, "ensure_weight_tying", &lora->tie_whole);
}

/* The module whose weight this tensor is, if the module was trained whole; else NULL. */
static const char *whole_of(Arena *arena, const LoraOptions *lora, const char *tensor)
{
    const char *name = name_of_copy(arena, tensor), *dot = name ? strrchr(name, '.') : NULL;
    const char *module = dot ? arena_strndup(arena, name, (size_t)(dot - name)) : NULL;
    return module && !strstr(tensor, ".base_layer.") && whole_has(lora, module, NULL) ? module : NULL;
}

static Status open_file(Arena *arena, const char *dir, StFile **out)
{
    const char *path = arena_printf(arena, "%s/adapter_model.safetensors", dir);
    bool        is_there;
    TRY(file_exists(path, &is_there));
    return st_open(is_there ? path : dir, out); /* not always the folder: a model's safetensors may be in it too */
}

static const char *config_path(Arena *arena, const char *dir)
{
    return arena_printf(arena, "%s/adapter_config.json", dir);
}

static Status read_config(Arena *arena, const char *dir, JsonValue *out)
{
    const char *name = config_path(arena, dir);
    TRY(json_file_read(arena, name, MAX_CONFIG_BYTES, out));
    FAIL_IF(out->type != JSON_OBJECT, ERR_INVALID, "%s: expected an object, found %s", name, json_type_name(out->type));
    return OK;
}

Status peft_open_tensors(const char *dir, StFile **out)
{
    SCOPED_ARENA(arena);
    SCOPED(st_close_at) StFile *file = NULL;
    JsonValue                   config;
    LoraOptions                 lora = {0};
    size_t                      count = 0;
    TRY(read_config(&arena, dir, &config));
    TRY(read_whole(&arena, &config, config_path(&arena, dir), &lora));
    TRY(open_file(&arena, dir, &file));
    StTensor *kept = arena_array(&arena, StTensor, st_count(file));
    for (size_t i = 0; i < st_count(file); i++)
        if (!name_of_copy(&arena, st_at(file, i)->name) || whole_of(&arena, &lora, st_at(file, i)->name)) kept[count++] = *st_at(file, i);
    if (count < st_count(file)) TRY(st_set_tensors(file, kept, count));
    *out = file;
    file = NULL;
    return OK;
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const LoraModule *)a)->path, ((const LoraModule *)b)->path);
}

/* *out: whether the tensor holds DoRA magnitudes. If so, its module must have a pair. */
static Status is_magnitude(Arena *arena, const StFile *file, const LoraOptions *lora, const StTensor *tensor, bool *out)
{
    const char *module = peft_module_of(arena, tensor->name, PEFT_END_MAGNITUDE);
    *out = module != NULL;
    if (!module) return OK;
    FAIL_IF(!lora->use_dora, ERR_INVALID, "%s: tensor %s is of DoRA, and adapter_config.json doesn't say use_dora: true", tensor->path,
            tensor->name);
    FAIL_IF(!peft_find(file, module, PEFT_END_A), ERR_INVALID, "%s: %s has no pair", tensor->path, tensor->name);
    return OK;
}

/* Finds the modules that have tensors, sorted by path. Each must have A and B; its rank is the rank of A and B. */
static Status find_modules(Arena *arena, const StFile *file, LoraOptions *lora)
{
    LoraModule *modules = arena_array(arena, LoraModule, st_count(file));
    for (size_t i = 0; i < st_count(file); i++) {
        const StTensor *half = st_at(file, i);
        bool            is_lengths;
        if (whole_of(arena, lora, half->name) || peft_tokens_path(arena, half->name)) continue;
        TRY(is_magnitude(arena, file, lora, half, &is_lengths));
        if (is_lengths) continue;
        const char *module = peft_module_of(arena, half->name, PEFT_END_A), *of_b = NULL;
        if (!module) of_b = peft_module_of(arena, half->name, PEFT_END_B);
        FAIL_IF(!module && !of_b, ERR_UNSUPPORTED, "%s: tensor %s is none of a plain LoRA adapter of linear layers", half->path,
                half->name);
        FAIL_IF(!peft_find(file, module ? module : of_b, module ? PEFT_END_B : PEFT_END_A), ERR_INVALID, "%s: %s has no other half",
                half->path, half->name);
        if (!module) continue;
        FAIL_IF(lora->use_dora && !peft_find(file, module, PEFT_END_MAGNITUDE), ERR_INVALID,
                "%s: use_dora is true, and there is no tensor " PEFT_PREFIX PEFT_MAGNITUDE, half->path, module);
        FAIL_IF(half->ndim != 2 || half->dim[0] < 1 || half->dim[0] > MAX_RANK, ERR_INVALID,
                "%s: tensor %s: expected a matrix of 1 to %d rows", half->path, half->name, MAX_RANK);
        modules[lora->num_modules++] = (LoraModule){.path = module, .r = half->dim[0]};
    }
    FAIL_IF(!lora->num_modules, ERR_INVALID, "%s: it holds no tensors of an adapter", st_path_at(file, 0));
    qsort(modules, (size_t)lora->num_modules, sizeof *modules, by_path);
    lora->modules = modules;
    return OK;
}

/* Checks that each name of modules_to_save has a tensor. If modules are tied, only the first is checked. */
static Status check_whole(Arena *arena, const StFile *file, const char *name, const LoraOptions *lora)
{
    for (int i = 0; i < (lora->tie_whole ? lora->num_whole > 0 : lora->num_whole); i++) {
        LoraOptions one = {.num_whole = 1, .whole = &lora->whole[i]};
        size_t      k = 0;
        while (k < st_count(file) && !whole_of(arena, &one, st_at(file, k)->name)) k++;
        FAIL_IF(k == st_count(file), ERR_INVALID, "%s: modules_to_save: there is no tensor of %.200s", name, lora->whole[i]);
    }
    return OK;
}

/* Sets rank and alpha of each module as adapter_config.json says. The tensors must have that rank. */
static Status read_modules(const JsonValue *config, const char *name, LoraOptions *lora)
{
    SCOPED(peft_numbers_close_at) PeftNumbers *ranks = NULL, *alphas = NULL;
    LoraModule                                *modules = (LoraModule *)lora->modules;
    TRY(peft_numbers_open(config, name, "rank_pattern", &ranks));
    TRY(peft_numbers_open(config, name, "alpha_pattern", &alphas));
    for (int i = 0; i < lora->num_modules; i++) {
        double rank = (double)lora->r;
        modules[i].alpha = lora->alpha;
        TRY(peft_numbers_find(ranks, modules[i].path, &rank));
        TRY(peft_numbers_find(alphas, modules[i].path, &modules[i].alpha));
        FAIL_IF(rank != (double)modules[i].r, ERR_INVALID, "%s: the rank of %s is %g; its tensors in adapter_model.safetensors have %lld",
                name, modules[i].path, rank, (long long)modules[i].r);
    }
    return OK;
}

/* Sets the targets that adapter_config.json lists. For an expression, these are the modules that have tensors. */
static void take_targets(Arena *arena, const JsonValue *config, LoraOptions *lora)
{
    const JsonValue *value = json_get(config, "target_modules");
    bool             is_list = value->type == JSON_ARRAY, is_all = value->type == JSON_STRING && str_equal(value->string, "all-linear");
    int              count = is_list ? (int)value->count : is_all ? 1 : lora->num_modules;
    const char     **targets = arena_array(arena, const char *, count);
    for (int i = 0; i < count; i++) targets[i] = is_list ? value->items[i].string.data : is_all ? "all-linear" : lora->modules[i].path;
    lora->targets = targets;
    lora->num_targets = count;
}

static Status read_tensors(Arena *arena, const char *name, PeftAdapter *adapter)
{
    SCOPED(st_close_at) StFile *file = NULL;
    PeftTargets                *targets;
    TRY(peft_targets_open(&adapter->config, name, &targets));
    peft_targets_close(targets); /* only checked here; used once the model is known */
    TRY(peft_open_tensors(adapter->dir, &file));
    TRY(find_modules(arena, file, &adapter->lora));
    TRY(check_whole(arena, file, name, &adapter->lora));
    TRY(peft_find_tokens(arena, file, name, &adapter->lora));
    TRY(read_modules(&adapter->config, name, &adapter->lora));
    take_targets(arena, &adapter->config, &adapter->lora);
    return OK;
}

Status peft_open(Arena *arena, const char *dir, PeftAdapter *out)
{
    *out = (PeftAdapter){.dir = arena_strdup(arena, dir), .lora.enabled = true};
    const char *name = config_path(arena, dir);
    bool        is_there;
    TRY(file_is_dir(dir, &is_there));
    FAIL_IF(!is_there, ERR_NOT_FOUND, "%s: there is no such folder; expected an adapter's", dir);
    TRY(peft_is_adapter_dir(dir, &is_there));
    FAIL_IF(!is_there, ERR_INVALID, "%s holds no adapter (adapter_config.json, as PEFT writes it)", dir);
    TRY(read_config(arena, dir, &out->config));
    TRY(check_keys(&out->config, name));
    TRY(check_init(&out->config, name));
    TRY(read_numbers(&out->config, name, &out->lora));
    TRY(read_whole(arena, &out->config, name, &out->lora));
    TRY(peft_read_tokens(arena, &out->config, name, &out->lora));
    json_get_str(&out->config, "base_model_name_or_path", &out->base_model);
    TRY(peft_read_base_format(arena, dir, &out->base_format));
    return read_tensors(arena, name, out);
}

/* ---- the base ---- */

/* The dtype to compare in: if the narrower of the tensors is BF16 or F16, that dtype, as this tensor may be the other one rounded; else
 * F32. */
static DType narrower(const StTensor *a, const StTensor *b)
{
    StDType dtype = st_dtype_bits(a->dtype) < st_dtype_bits(b->dtype) ? a->dtype : b->dtype;
    return dtype == ST_BF16 ? DT_BF16 : dtype == ST_F16 ? DT_F16 : DT_F32;
}

/* Whether the values are equal, rounded to the narrower dtype of the two. */
static bool same_values(const StTensor *a, const StTensor *b)
{
    enum { BLOCK = 4096 };
    DType    dtype = narrower(a, b);
    float    numbers[2][BLOCK];
    uint32_t codes[2][BLOCK]; /* room for any dtype */
    if (a->ndim != b->ndim || memcmp(a->dim, b->dim, sizeof a->dim[0] * (size_t)a->ndim) != 0) return false;
    for (int64_t first = 0; first < a->numel; first += BLOCK) {
        int64_t count = a->numel - first < BLOCK ? a->numel - first : BLOCK;
        if (st_to_f32(a, first, count, numbers[0]) != OK || st_to_f32(b, first, count, numbers[1]) != OK) return false;
        for (int i = 0; i < 2; i++) dtype_encode(dtype, numbers[i], count, codes[i]);
        if (memcmp(codes[0], codes[1], (size_t)dtype_bytes(dtype, count)) != 0) return false;
    }
    return true;
}

/* The tensor that a copy named `name` must equal. A copy under a tied head's name must equal the embedding or, if the head was trained with
 * the embedding, the embedding's trained tensor. */
static const StTensor *find_original(Arena *arena, const StFile *file, const LoraOptions *lora, const HfModel *model, const char *name)
{
    const StTensor *original = st_find(model->weights, name);
    for (int i = 0; i < model->num_ties; i++) {
        if (strcmp(name, model->ties[i].untied) != 0) continue;
        const StTensor *trained = peft_find(file, model->ties[i].tensor, "");
        if (lora->tie_whole && trained && whole_of(arena, lora, trained->name)) return trained;
        if (!original) original = st_find(model->weights, model->ties[i].tensor);
    }
    return original;
}

static Status check_copies(Arena *arena, const StFile *file, const LoraOptions *lora, const HfModel *model)
{
    for (size_t i = 0; i < st_count(file); i++) {
        const StTensor *copy = st_at(file, i);
        const char     *name = name_of_copy(arena, copy->name);
        if (!name || whole_of(arena, lora, copy->name)) continue;
        const StTensor *original = find_original(arena, file, lora, model, name);
        FAIL_IF(!original, ERR_INVALID, "%s: tensor %s: the base has no %s; is this the model that was adapted?", copy->path, copy->name,
                name);
        FAIL_IF(
            !same_values(copy, original), ERR_UNSUPPORTED,
            "%s: tensor %s differs from the base's %s: it was trained or resized with the adapter, which isn't read. Merge it with PEFT "
            "(merge_and_unload) and take the merged model; or is this another base?",
            copy->path, copy->name, name);
    }
    return OK;
}

static Status check_modules(Arena *arena, const PeftAdapter *adapter, const HfModel *model, const Graph *graph, const PeftTargets *targets)
{
    bool *used = arena_array(arena, bool, adapter->lora.num_modules);
    for (int i = 0; i < graph->num_params; i++) {
        const Param *param = graph->params[i];
        bool         wanted;
        if (!param->is_linear || !param->module) continue;
        const LoraModule *module = lora_find_module(&adapter->lora, param->module);
        TRY(peft_targets_have(targets, param->module, param->is_head, &wanted));
        FAIL_IF(wanted && !module, ERR_INVALID, "%s: adapter_config.json says that %s is adapted, but there are no tensors for it",
                adapter->dir, param->module);
        FAIL_IF(module && !wanted, ERR_INVALID,
                "%s: there are tensors for %s, which adapter_config.json doesn't say to be adapted (target_modules, exclude_modules, "
                "layers_to_transform)",
                adapter->dir, param->module);
        if (module) used[module - adapter->lora.modules] = true;
    }
    for (int i = 0; i < adapter->lora.num_modules; i++)
        FAIL_IF(!used[i], ERR_INVALID, "%s: %s is no linear layer of %s; is this the model that was adapted?", adapter->dir,
                adapter->lora.modules[i].path, model->dir);
    return OK;
}

/* Checks that the tensor has `rows` elements or, if it is a matrix, `rows` rows and `cols` columns. advice: how the message ends. */
static Status check_shape(const StTensor *tensor, int ndim, int64_t rows, int64_t cols, const char *advice)
{
    const int64_t dim[] = {rows, cols};
    char          have[ST_SHAPE_BYTES], want[ST_SHAPE_BYTES];
    FAIL_IF(tensor->ndim != ndim || memcmp(tensor->dim, dim, (size_t)ndim * sizeof *dim) != 0, ERR_INVALID,
            "%s: tensor %s has shape %s, the model has %s%s", tensor->path, tensor->name, st_shape_text(tensor->dim, tensor->ndim, have),
            st_shape_text(dim, ndim, want), advice);
    return OK;
}

/* Checks the shapes of a linear layer's A and B, and of its DoRA magnitudes. */
static Status check_pair(const StFile *file, const LoraModule *module, const Param *param)
{
    static const char advice[] = "; is this the model that was adapted?";
    const StTensor   *a = peft_find(file, module->path, PEFT_END_A), *b = peft_find(file, module->path, PEFT_END_B),
                   *lengths = peft_find(file, module->path, PEFT_END_MAGNITUDE);
    int64_t rows = param->type.dim[0];
    if (a) TRY(check_shape(a, 2, module->r, type_cols(&param->type), advice));
    if (b) TRY(check_shape(b, 2, rows, module->r, advice));
    return lengths ? check_shape(lengths, 1, rows, 0, advice) : OK;
}

/* Checks the shape of a weight that was trained whole, under its own name or a tied head's. */
static Status check_trained(Arena *arena, const StFile *file, const Graph *graph, const Param *param)
{
    const HfSource *saved = param_saved(param);
    const char     *names[] = {whole_path(arena, param) && saved->kind == HF_WHOLE ? saved->names[0] : NULL, param->untied};
    for (int i = 0; i < 2; i++) {
        const StTensor *tensor = peft_find(file, names[i], "");
        if (!tensor) continue;
        bool has_more = tokens_is_vocabulary(graph, param) && tensor->ndim == 2 && tensor->dim[0] > param->type.dim[0];
        TRY(check_shape(tensor, param->type.ndim, param->type.dim[0], param->type.dim[1],
                        has_more
                            ? "; the adapter is of a model with more tokens: name them under new_tokens as the run did that trained it, "
                              "or take that run's base (base_model_name_or_path)"
                            : "; is this the model that was adapted?"));
    }
    return OK;
}

/* Checks the trained token rows of an embedding or head. */
static Status check_rows(Arena *arena, const StFile *file, const LoraOptions *lora, const Param *param)
{
    const char     *path = whole_path(arena, param);
    const StTensor *rows = peft_find(file, path, PEFT_END_TOKENS);
    StTensor        matrix = {.name = path, .ndim = param->type.ndim};
    memcpy(matrix.dim, param->type.dim, sizeof param->type.dim);
    return rows ? peft_check_tokens(rows, peft_tokens_of(lora, path), &matrix) : OK;
}

/* Checks that the adapter's tensors have the shapes that the model needs. */
static Status check_shapes(Arena *arena, const PeftAdapter *adapter, const StFile *file, const Graph *graph)
{
    for (int i = 0; i < graph->num_params; i++) {
        const Param      *param = graph->params[i];
        const LoraModule *module = param->is_linear && param->module ? lora_find_module(&adapter->lora, param->module) : NULL;
        if (param->ns || param->type.ndim > 2) continue;
        if (module) TRY(check_pair(file, module, param));
        if (adapter->lora.num_whole) TRY(check_trained(arena, file, graph, param));
        if (adapter->lora.num_tokens) TRY(check_rows(arena, file, &adapter->lora, param));
    }
    return OK;
}

/* Marks a tensor of the file. False: it doesn't exist, or was marked before. */
static bool mark(const StFile *file, bool *marks, const char *module, const char *end)
{
    const StTensor *tensor = peft_find(file, module, end);
    if (!tensor || marks[tensor - st_at(file, 0)]) return false;
    return marks[tensor - st_at(file, 0)] = true;
}

size_t peft_num_unread(const Plan *plan, const StFile *file)
{
    static const char *const ends[] = {PEFT_END_A, PEFT_END_B, PEFT_END_MAGNITUDE};
    SCOPED_ARENA(arena);
    size_t count = 0;
    for (int i = 0; i < plan->num_programs; i++)
        if (plan->programs[i].spec.entry->has_grads) return 0;
    bool *marks = arena_array(&arena, bool, st_count(file) + 1);
    for (int i = 0; i < plan->num_params; i++)
        if (plan->params[i]->is_adapter) (void)mark(file, marks, plan->params[i]->hf.names[0], "");
    for (int i = 0; i < plan->num_params; i++) {
        const Param *param = plan->params[i];
        if (!param->is_linear || param->is_adapter || param->ns || !param->module) continue;
        for (int k = 0; k < 3; k++) count += mark(file, marks, param->module, ends[k]);
    }
    return count;
}

void peft_check_base(const PeftAdapter *adapter, const char *model_dir)
{
    bool is_there = false, is_same = false;
    if (!adapter->base_model) return;
    if (file_is_dir(adapter->base_model, &is_there) != OK || file_is_same(adapter->base_model, model_dir, &is_same) != OK) {
        log_warn("%s was trained on %s; whether that is %s isn't known: %s", adapter->dir, adapter->base_model, model_dir,
                 status_message());
        status_clear();
    } else if (is_there && !is_same) {
        log_warn("%s was trained on %s, not on %s", adapter->dir, adapter->base_model, model_dir);
    }
}

Status peft_check_model(const PeftAdapter *adapter, const HfModel *model)
{
    SCOPED_ARENA(arena);
    SCOPED(st_close_at) StFile                *file = NULL;
    SCOPED(peft_targets_close_at) PeftTargets *targets = NULL;
    Graph                                     *graph;
    TRY(open_file(&arena, adapter->dir, &file));
    TRY(peft_targets_open(&adapter->config, config_path(&arena, adapter->dir), &targets));
    TRY(hf_model_bind(&arena, model, DT_F32, &graph));
    TRY(check_modules(&arena, adapter, model, graph, targets));
    TRY(check_shapes(&arena, adapter, file, graph));
    return check_copies(&arena, file, &adapter->lora, model);
}

const char *peft_base_name(Arena *arena, const char *model)
{
    char full[PATH_MAX];
    return realpath(model, full) ? arena_strdup(arena, full) : model; /* a model that is no folder here is a name on the hub */
}

/* Writes `key` with its value in `chosen` or, if `chosen` lacks the key, with `none`. */
static void put_chosen(StrBuf *out, const JsonValue *chosen, const char *key, const char *none)
{
    const JsonValue *value = chosen ? json_get(chosen, key) : NULL;
    strbuf_printf(out, "  \"%s\": ", key);
    if (value)
        json_write(out, value, -1);
    else
        strbuf_puts(out, none);
    strbuf_puts(out, ",\n");
}

static void write_names(StrBuf *out, const char *const *names, int count)
{
    if (!count) strbuf_puts(out, "null");
    for (int i = 0; i < count; i++) {
        strbuf_puts(out, i ? ",\n    " : "[\n    ");
        json_write_string(out, names[i], strlen(names[i]));
    }
    if (count) strbuf_puts(out, "\n  ]");
}

/* Writes target_modules: names; or, if an expression chose the layers, their paths. With the expression PEFT might find modules that aren't
 * linear layers, and refuse them. */
static void put_targets(StrBuf *out, const LoraOptions *lora, bool by_path)
{
    if (by_path) {
        for (int i = 0; i < lora->num_modules; i++) {
            strbuf_puts(out, i ? ",\n    " : "[\n    ");
            json_write_string(out, lora->modules[i].path, strlen(lora->modules[i].path));
        }
        strbuf_puts(out, "\n  ]");
    } else if (lora->num_targets == 1 && strcmp(lora->targets[0], "all-linear") == 0) {
        strbuf_puts(out, "\"all-linear\"");
    } else {
        write_names(out, lora->targets, lora->num_targets);
    }
}

Status peft_write_config(const LoraOptions *lora, const char *base_model, const char *folder)
{
    SCOPED_STRBUF(out);
    const JsonValue *chosen = lora->selection, *targets = chosen ? json_get(chosen, "target_modules") : NULL;
    bool             by_path = targets && targets->type == JSON_STRING;
    const JsonValue *named = by_path ? NULL : chosen; /* paths need no other keys */
    strbuf_puts(&out, "{\n");
    put_chosen(&out, chosen, "alpha_pattern", "{}");
    strbuf_puts(&out, "  \"auto_mapping\": null,\n  \"base_model_name_or_path\": ");
    if (base_model)
        json_write_string(&out, base_model, strlen(base_model));
    else
        strbuf_puts(&out, "null");
    strbuf_puts(&out, ",\n  \"bias\": \"none\",\n");
    if (lora->num_whole && lora->tie_whole)
        strbuf_puts(&out, "  \"ensure_weight_tying\": true,\n"); /* older versions of PEFT don't know this key */
    put_chosen(&out, named, "exclude_modules", "null");
    strbuf_puts(&out, "  \"fan_in_fan_out\": false,\n  \"inference_mode\": true,\n"
                      "  \"init_lora_weights\": true,\n  \"layer_replication\": null,\n");
    put_chosen(&out, named, "layers_pattern", "null");
    put_chosen(&out, named, "layers_to_transform", "null");
    strbuf_puts(&out, "  \"loftq_config\": {},\n  \"lora_alpha\": ");
    json_write_double(&out, lora->alpha);
    strbuf_puts(&out, ",\n  \"lora_bias\": false,\n  \"lora_dropout\": ");
    json_write_double(&out, lora->dropout);
    strbuf_puts(&out, ",\n  \"megatron_config\": null,\n  \"megatron_core\": \"megatron.core\",\n  \"modules_to_save\": ");
    write_names(&out, lora->whole, lora->num_whole);
    strbuf_puts(&out, ",\n  \"peft_type\": \"LORA\",\n");
    strbuf_printf(&out, "  \"r\": %lld,\n", (long long)lora->r);
    put_chosen(&out, chosen, "rank_pattern", "{}");
    strbuf_puts(&out, "  \"revision\": null,\n  \"target_modules\": ");
    put_targets(&out, lora, by_path);
    strbuf_puts(&out, ",\n  \"task_type\": \"CAUSAL_LM\"");
    if (lora->num_tokens) strbuf_puts(&out, ",\n  \"trainable_token_indices\": "); /* older versions don't know this key either */
    if (lora->num_tokens) peft_write_tokens(lora, &out);
    strbuf_printf(&out, ",\n  \"use_dora\": %s,\n  \"use_rslora\": %s\n}\n", lora->use_dora ? "true" : "false",
                  lora->use_rslora ? "true" : "false");
    char path[4096];
    snprintf(path, sizeof path, "%s/adapter_config.json", folder);
    return file_write_atomic(path, out.data, out.len);
}
