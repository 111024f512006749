/* Opening a Hugging Face folder, and copying its files into a folder that we save. */
#include "model/hf_model.h"

#include "base/json_edit.h"
#include "base/log.h"
#include "base/scoped.h"
#include "files/hub.h"
#include "files/json_file.h"
#include "model/gguf_import.h"
#include "model/grow.h"
#include "model/peft.h"
#include "model/weights.h"
#include "ops/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CONFIG_BYTES = 16 << 20, MAX_SIDE_BYTES = 1 << 30, ANY_POSITIONS = 1 << 30 };

/* *out: the value of the symbol that has the role; *out_key: its key. If no symbol has the role: `fallback` and NULL. */
static Status read_role(const HfModel *model, IrRole role, double fallback, const char **out_key, double *out)
{
    const IrSymbol *symbol;
    TRY(ir_module_role(model->module, &model->dims, role, &symbol));
    *out_key = symbol ? symbol->key : NULL;
    *out = symbol ? symbol->value : fallback;
    return OK;
}

/* Sets model->dtype: F32 if config.json names no dtype; BF16 if it names any dtype but float32 and bfloat16. */
static Status read_dtype(HfModel *model)
{
    static const char *const known[] = {"float32", "bfloat16", "float16", "float64", "float", "half", "double", "auto"};
    static const char *const keys[] = {"dtype", "torch_dtype"};
    model->dtype = DT_F32;
    for (int k = 0; k < 2; k++) {
        const JsonValue *value = json_get(&model->config, keys[k]);
        if (!value || value->type == JSON_NULL) continue;
        FAIL_IF(value->type != JSON_STRING, ERR_INVALID, "%s: %s: expected a text, found %s", model->config_name, keys[k],
                json_type_name(value->type));
        const char *name = value->string.data;
        size_t      i = 0, count = sizeof known / sizeof *known;
        if (strncmp(name, "torch.", 6) == 0) name += 6;
        while (i < count && strcmp(name, known[i]) != 0) i++;
        bool is_ours = dtype_parse(name, &model->dtype) && DT_SET(model->dtype) & DT_SET_FLOAT;
        FAIL_IF(i == count && !is_ours && strncmp(name, "float8", 6) != 0, ERR_INVALID,
                "%s: %s: there is no dtype \"%.100s\"; expected one like float32, bfloat16 or float16", model->config_name, keys[k],
                value->string.data);
        if (!is_ours) model->dtype = strcmp(name, "float") == 0 ? DT_F32 : DT_BF16;
        model->is_half = strcmp(name, "float16") == 0 || strcmp(name, "half") == 0;
        return OK;
    }
    return OK;
}

Status hf_check_token_ids(const JsonValue *config, const char *config_name)
{
    static const char *const keys[] = {"bos_token_id", "eos_token_id", "pad_token_id"};
    for (int k = 0; k < 3; k++) {
        const JsonValue *value = json_get(config, keys[k]);
        bool             is_good = !value || value->type == JSON_NULL || value->type == JSON_INT || value->type == JSON_ARRAY;
        for (uint32_t i = 0; is_good && value && value->type == JSON_ARRAY && i < value->count; i++)
            is_good = value->items[i].type == JSON_INT;
        FAIL_IF(!is_good, ERR_INVALID, "%s: %s: expected the id of a token, or a list of ids", config_name, keys[k]);
    }
    return OK;
}

static Status read_facts(HfModel *model)
{
    double vocabulary, positions, tied;
    TRY(ir_module_dims(model->arena, model->module, &model->config, model->config_name, &model->dims));
    TRY(read_role(model, IR_ROLE_VOCABULARY, 0, &model->vocab_key, &vocabulary));
    TRY(read_role(model, IR_ROLE_POSITIONS, ANY_POSITIONS, &model->positions_key, &positions));
    TRY(read_role(model, IR_ROLE_TIED, 0, &model->tied_key, &tied));
    FAIL_IF(!(vocabulary >= 1 && vocabulary <= INT32_MAX && positions >= 1 && positions <= ANY_POSITIONS), ERR_INVALID,
            "%s: \"roles\" gives a vocabulary of %g and %g positions; expected the symbols of both, or of the vocabulary alone. Build it "
            "again with this version's surogate.dsl",
            model->module->file, vocabulary, positions);
    model->vocab_size = (int64_t)vocabulary;
    model->max_positions = (int64_t)positions;
    model->tied_head = tied != 0;
    TRY(hf_check_token_ids(&model->config, model->config_name));
    return read_dtype(model);
}

static void write_config_text(HfModel *model)
{
    SCOPED_STRBUF(text);
    json_write(&text, &model->config, 2);
    strbuf_putc(&text, '\n');
    model->config_text = (Str){arena_strndup(model->arena, text.data, text.len), text.len};
}

/* Takes quantization_config out of the config: a model made from this one, or written with its config.json, isn't quantised. */
static void take_quantization(HfModel *model)
{
    if (json_remove(&model->config, "quantization_config", &model->quantization)) write_config_text(model);
}

/* If config.json has both keys, transformers uses rope_scaling, unless it is empty or rope_parameters has a part for each kind of layer. */
static void settle_rope(HfModel *model)
{
    const JsonValue *scaling = json_get(&model->config, "rope_scaling"), *rope = json_get(&model->config, "rope_parameters");
    if (!scaling || scaling->type != JSON_OBJECT || !scaling->count || !rope || rope->type != JSON_OBJECT) return;
    for (uint32_t i = 0; i < rope->count; i++)
        if (rope->members[i].value.type == JSON_OBJECT) return;
    json_remove(&model->config, "rope_parameters", NULL);
    write_config_text(model);
}

/* Parses `config` from config_text, so that it lives as long as the model. */
static Status read_config_text(HfModel *model)
{
    TRY(json_parse(model->arena, model->config_name, model->config_text.data, model->config_text.len, &model->config));
    return read_facts(model);
}

/* If a missing folder has a name that this program gives to folders in the hub's cache, the message says how to make the folder again. */
static Status tell_made(Status status, const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    FAIL_IF(
        strncmp(name, GROWN_PREFIX, strlen(GROWN_PREFIX)) == 0, status,
        "%s. It was a copy of a model with new tokens, which a run with new_tokens or pad_vocab_multiple keeps in the hub's cache. Start "
        "that run again: it writes the copy and says where, also when the run is finished. Where the folder has another name then, "
        "give it as the model",
        status_message());
    FAIL_IF(strncmp(name, UNPACKED_PREFIX, strlen(UNPACKED_PREFIX)) == 0, status,
            "%s. It was a GGUF file, unpacked in the hub's cache: give that file as the model, which unpacks it again", status_message());
    return status;
}

Status hf_local_dir(Arena *arena, const char *path, const char **out_dir, const char **out_gguf)
{
    SCOPED_STRBUF(text);
    Status      status = hub_local_path(HUB_MODEL, path, &text);
    const char *local = arena_strdup(arena, strbuf_cstr(&text));
    *out_gguf = NULL;
    if (status != OK) return tell_made(status, path);
    status = gguf_local_dir(arena, local, out_dir);
    if (status == OK && *out_dir != local) *out_gguf = local;
    return status;
}

Status hf_model_open_as(Arena *arena, const char *dir, NamedIr ir, HfModel **out_model)
{
    HfModel *model = arena_new(arena, HfModel);
    model->arena = arena;
    TRY(hf_local_dir(arena, dir, &model->dir, &model->gguf));
    dir = model->dir;
    model->config_name = arena_printf(arena, "%s/config.json", dir);
    bool is_dir, has_config, is_adapter;
    TRY(file_is_dir(dir, &is_dir));
    FAIL_IF(!is_dir, ERR_NOT_FOUND,
            "%s is a file; model must be a folder that holds a Hugging Face model (config.json, safetensors), "
            "or ORG/NAME of one on the hub",
            dir);
    TRY(file_exists(model->config_name, &has_config));
    TRY(peft_is_adapter_dir(dir, &is_adapter));
    FAIL_IF(!has_config && is_adapter, ERR_INVALID,
            "%s is a LoRA adapter, not a model; merge it into its base first (surogate merge BASE_DIR %s OUT_DIR), or train a new one from "
            "the base",
            dir, dir);
    FAIL_IF(!has_config, ERR_NOT_FOUND, "%s: no config.json in this folder; expected a Hugging Face model", dir);
    TRY(file_read(arena, model->config_name, MAX_CONFIG_BYTES, &model->config_text));
    TRY(json_parse(arena, model->config_name, model->config_text.data, model->config_text.len, &model->config));
    if (model->config.type == JSON_OBJECT) {
        take_quantization(model);
        settle_rope(model);
    }
    TRY(model_ir_find(arena, model->dir, &model->config, model->config_name, ir, &model->module));
    TRY(read_facts(model));
    *out_model = model;
    return OK;
}

Status hf_model_open(Arena *arena, const char *dir, HfModel **out_model)
{
    return hf_model_open_as(arena, dir, (NamedIr){0}, out_model);
}

static Status has_any(const HfModel *model, const char *const names[2], bool *out)
{
    char path[4096];
    *out = false;
    for (int i = 0; i < 2 && !*out; i++) {
        snprintf(path, sizeof path, "%s/%s", model->dir, names[i]);
        TRY(file_exists(path, out));
    }
    return OK;
}

Status hf_model_has_weights(const HfModel *model, bool *out)
{
    static const char *const names[] = {"model.safetensors", "model.safetensors.index.json"};
    return has_any(model, names, out);
}

Status hf_model_require_weights(const HfModel *model)
{
    static const char *const pickles[] = {"pytorch_model.bin", "pytorch_model.bin.index.json"}; /* weight files that we can't read */
    bool                     is_there;
    TRY(hf_model_has_weights(model, &is_there));
    if (is_there) return OK;
    TRY(has_any(model, pickles, &is_there));
    FAIL_IF(is_there, ERR_UNSUPPORTED,
            "%s has its weights as pytorch_model.bin only, a Python pickle, which isn't read. Convert it once: python -c \"from "
            "transformers import "
            "AutoModelForCausalLM as M; M.from_pretrained('%s', torch_dtype='auto').save_pretrained('%s')\"",
            model->dir, model->dir, model->dir);
    FAIL(ERR_NOT_FOUND, "%s has no weights: no model.safetensors or model.safetensors.index.json in it", model->dir);
}

static bool same_values(const StTensor *a, const StTensor *b)
{
    return !a->made && !b->made && a->dtype == b->dtype && a->ndim == b->ndim &&
           memcmp(a->dim, b->dim, sizeof a->dim[0] * (size_t)a->ndim) == 0 && memcmp(a->data, b->data, a->bytes) == 0;
}

/* Finds the tensors that are both embedding and tied head. */
static Status find_ties(HfModel *model)
{
    Graph *graph;
    SCOPED_ARENA(arena);
    TRY(hf_model_bind(&arena, model, DT_F32, &graph));
    for (int i = 0; i < graph->num_params; i++) {
        const Param *param = graph->params[i];
        if (!param->untied) continue;
        HfTie *more = arena_array(model->arena, HfTie, model->num_ties + 1);
        if (model->num_ties) memcpy(more, model->ties, (size_t)model->num_ties * sizeof *more);
        more[model->num_ties++] =
            (HfTie){arena_strdup(model->arena, weights_source(model->weights, param)->names[0]), arena_strdup(model->arena, param->untied)};
        model->ties = more;
    }
    return OK;
}

/* A head that is stored and differs from the embedding is used, whatever config.json says: transformers does the same. */
static Status settle_head(HfModel *model)
{
    if (!model->tied_head) return OK;
    TRY(find_ties(model));
    for (int i = 0; i < model->num_ties && !model->own_head; i++) {
        const StTensor *shared = st_find(model->weights, model->ties[i].tensor), *own = st_find(model->weights, model->ties[i].untied);
        if (shared && own && !same_values(shared, own)) model->own_head = own->name;
    }
    if (!model->own_head) return OK;
    model->config = json_copy_object(model->arena, &model->config, 1);
    hf_model_untie(model, &model->config);
    write_config_text(model);
    model->num_ties = 0;
    return read_facts(model);
}

/* Reads the format from config.json or, if that doesn't name one, from the file that ModelOpt writes beside it. */
static Status find_format(HfModel *model)
{
    const char *path = arena_printf(model->arena, "%s/hf_quant_config.json", model->dir);
    if (model->quantization.type != JSON_NULL) return quantised_parse(&model->quantization, model->config_name, &model->format);
    JsonValue config;
    TRY(json_file_read_if_there(model->arena, path, MAX_CONFIG_BYTES, &config));
    if (config.type == JSON_NULL) return OK;
    return quantised_parse(&config, path, &model->format);
}

/* The dtype in which dequantised values are written: config.json's. */
static StDType dtype_of_codes(const HfModel *model)
{
    return model->is_half ? ST_F16 : st_dtype_from(model->dtype);
}

/* Adds the module's prefix to the names, if all lack it. */
static Status add_prefix(HfModel *model)
{
    const char *prefix = ir_module_prefix(model->module);
    size_t      count = st_count(model->weights);
    StTensor   *tensors = arena_array(model->arena, StTensor, count + 1);
    for (size_t i = 0; prefix && i < count; i++) {
        tensors[i] = *st_at(model->weights, i);
        if (strncmp(tensors[i].name, prefix, strlen(prefix)) == 0) return OK;
        tensors[i].name = arena_printf(model->arena, "%s%s", prefix, tensors[i].name);
    }
    return prefix ? st_set_tensors(model->weights, tensors, count) : OK;
}

Status hf_model_open_weights(HfModel *model)
{
    if (model->weights) return OK;
    TRY(hf_model_require_weights(model));
    TRY(find_format(model));
    TRY(st_open(model->dir, &model->weights));
    Status status = add_prefix(model);
    if (status == OK) status = quantised_open(model->arena, model->weights, model->format, dtype_of_codes(model));
    for (size_t i = 0; status == OK && i < st_count(model->weights) && !model->weight_format; i++) {
        const QuantisedTensor *codes = quantised_of(st_at(model->weights, i));
        if (codes) model->weight_format = quantised_weight_format(codes);
    }
    if (status == OK) status = settle_head(model);
    if (status != OK) hf_model_close(model);
    return status;
}

bool hf_model_has_format(const HfModel *model, const WeightFormat *format)
{
    return format && model->weight_format && format->dequantise == model->weight_format->dequantise;
}

static const char *dtype_word(DType dtype)
{
    return dtype == DT_BF16 ? "bf16" : dtype == DT_F16 ? "fp16" : "fp32";
}

/* Notes weights that are wider than bf16 and aren't kept in their own dtype. */
static void tell_conversion(const HfModel *model, DType dtype, const char *key, StrBuf *notes)
{
    static const struct {
        StDType     dtype;
        const char *name;
    } wide[] = {{ST_F16, "fp16"}, {ST_F32, "fp32"}, {ST_F64, "fp64"}};
    for (size_t k = 0; k < sizeof wide / sizeof *wide; k++) {
        size_t count = 0, all = st_count(model->weights);
        if (wide[k].dtype == st_dtype_from(dtype)) continue;
        for (size_t i = 0; i < all; i++) count += st_at(model->weights, i)->dtype == wide[k].dtype && !st_at(model->weights, i)->made;
        if (!count) continue;
        bool exact = wide[k].dtype == ST_F16 && dtype == DT_F32;
        bool hint = !exact && key && dtype == DT_BF16;
        log_note(notes, false, "%s: %zu of %zu tensors are %s; they are %s %s%s%s%s%s", model->dir, count, all, wide[k].name,
                 exact ? "stored as" : "rounded to", dtype_word(dtype), exact ? ", which keeps every value" : "", hint ? " (" : "",
                 hint ? key : "", hint ? ": fp32 keeps more)" : "");
    }
}

static void tell_format(const HfModel *model, DType dtype, const WeightFormat *format, StrBuf *notes)
{
    size_t count = 0, all = st_count(model->weights);
    for (size_t i = 0; i < all; i++) count += st_at(model->weights, i)->made != NULL;
    if (!count) return;
    const char *to = format ? format->name : dtype_word(dtype);
    bool        stay = format && format == model->weight_format;
    log_note(notes, false, "%s: %zu of %zu tensors are %s; they %s%s", model->dir, count, all, quantised_name(model->format),
             stay     ? "stay as they are"
             : format ? "are quantised again to "
                      : "are dequantised to ",
             stay ? "" : to);
}

void hf_model_tell(const HfModel *model, DType dtype, const WeightFormat *format, const char *key, StrBuf *notes)
{
    model_ir_tell(model->module, notes);
    if (model->module->objective) model_ir_tell_objective(model->module->objective, notes);
    if (model->own_head)
        log_note(notes, true,
                 "%s: config.json says %s: true, but %s is stored and differs from the embedding. The stored one is used, as transformers "
                 "does",
                 model->dir, model->tied_key, model->own_head);
    for (int i = 0; i < model->dims.num && key; i++) {
        const IrSymbol *symbol = &model->dims.symbols[i];
        if (symbol->unused && symbol->value != 0)
            log_note(notes, true, "%s: %s %g of config.json is ignored: %s", model->config_name, symbol->key, symbol->value,
                     symbol->unused);
    }
    if (!model->weights) return;
    tell_format(model, dtype, format, notes);
    tell_conversion(model, dtype, key, notes);
}

Status hf_model_link(HfModel *model, const IrModule *objective, HfModel *const *namespaces, int num_namespaces)
{
    IrNamespace linked[IR_MOST_NAMESPACES];
    IrModule   *module;
    for (int i = 0; i < num_namespaces; i++) {
        linked[i] = (IrNamespace){namespaces[i]->ns, namespaces[i]->module, &namespaces[i]->config, namespaces[i]->config_name};
        model->namespaces[i] = namespaces[i];
    }
    model->num_namespaces = num_namespaces;
    TRY(ir_module_link(model->arena, model->module, objective, linked, num_namespaces, &module));
    model->module = module;
    return OK;
}

const HfModel *hf_model_of(const HfModel *model, const Param *param)
{
    for (int i = 0; i < model->num_namespaces; i++)
        if (param_is_of(param, model->namespaces[i]->ns)) return model->namespaces[i];
    return model;
}

void hf_model_close(HfModel *model)
{
    if (!model) return;
    for (int i = 0; i < model->num_namespaces; i++) hf_model_close(model->namespaces[i]);
    st_close(model->weights);
    model->weights = NULL;
}

Status hf_model_set_config(HfModel *model, const JsonValue *config)
{
    model->config = *config;
    write_config_text(model);
    return read_config_text(model);
}

void hf_model_untie(const HfModel *model, JsonValue *config)
{
    json_set(config, str_of(model->tied_key), (JsonValue){.type = JSON_BOOL});
}

Status hf_model_bind(Arena *arena, const HfModel *model, DType dtype, Graph **out_graph)
{
    BindOptions options = {
        .graph_name = "params", .batch = 1, .seq = 1, .max_len = 1, .dtype = dtype, .ops = op_table, .num_ops = OP_COUNT};
    return ir_module_bind(arena, model->module, &model->config, model->config_name, &options, out_graph);
}

void hf_model_config_text(Arena *arena, const HfModel *model, DType dtype, StrBuf *out)
{
    static const char *const keys[] = {"dtype", "torch_dtype"};
    JsonValue copy = json_copy_object(arena, &model->config, 1), want = {.type = JSON_STRING, .string = str_of(dtype_info(dtype)->hf_name)};
    bool      found = false, changed = false;
    for (int k = 0; k < 2; k++) {
        const JsonValue *said = json_get(&copy, keys[k]);
        if (!said) continue;
        found = true;
        changed |= said->type != JSON_STRING || !str_equal(said->string, want.string.data);
        json_set(&copy, str_of(keys[k]), want);
    }
    if (found && !changed) {
        strbuf_append(out, model->config_text.data, model->config_text.len);
        return;
    }
    if (!found) json_set(&copy, str_of("torch_dtype"), want);
    json_write(out, &copy, 2);
    strbuf_putc(out, '\n');
}

Status hf_model_write_config(const HfModel *model, DType dtype, const char *folder)
{
    SCOPED_ARENA(arena);
    SCOPED_STRBUF(text);
    hf_model_config_text(&arena, model, dtype, &text);
    TRY(file_write_atomic(arena_printf(&arena, "%s/config.json", folder), text.data, text.len));
    return model_ir_write(model->module, folder);
}

static const char *const side_names[HF_NUM_SIDE_FILES] = {
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "vocab.txt",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
};

bool hf_is_side_file(const char *name)
{
    if (strcmp(name, HF_TEMPLATE_FOLDER) == 0) return true;
    for (int i = 0; i < HF_NUM_SIDE_FILES; i++)
        if (strcmp(side_names[i], name) == 0) return true;
    return false;
}

static bool is_template(const char *name)
{
    static const char end[] = ".jinja";
    size_t            len = strlen(name), tail = strlen(end);
    return name[0] != '.' && len > tail && strcmp(name + len - tail, end) == 0;
}

static Status read_templates(Arena *arena, const char *dir, HfSideFiles *out)
{
    const char *folder = arena_printf(arena, "%s/" HF_TEMPLATE_FOLDER, dir), **names;
    size_t      count;
    TRY(file_list_if_there(arena, folder, &names, &count));
    for (size_t i = 0; i < count; i++)
        if (is_template(names[i])) names[out->num_templates++] = names[i];
    out->template_names = names;
    out->templates = arena_array(arena, Str, out->num_templates);
    for (size_t i = 0; i < out->num_templates; i++) {
        const char *path = arena_printf(arena, "%s/%s", folder, out->template_names[i]);
        TRY(file_read_as_is(arena, path, MAX_SIDE_BYTES, &out->templates[i]));
        out->bytes += (int64_t)out->templates[i].len;
    }
    return OK;
}

Status hf_read_side_files(Arena *arena, const char *dir, HfSideFiles *out)
{
    *out = (HfSideFiles){0};
    for (int i = 0; i < HF_NUM_SIDE_FILES; i++) {
        Status status = file_read_as_is(arena, arena_printf(arena, "%s/%s", dir, side_names[i]), MAX_SIDE_BYTES, &out->texts[i]);
        if (status == ERR_NOT_FOUND)
            status_clear();
        else
            TRY(status);
        out->bytes += (int64_t)out->texts[i].len;
    }
    return read_templates(arena, dir, out);
}

static Status write_templates(Arena *arena, const HfSideFiles *files, const char *folder)
{
    const char *inner = arena_printf(arena, "%s/" HF_TEMPLATE_FOLDER, folder);
    if (files->num_templates > 0) TRY(file_make_dirs(inner));
    for (size_t i = 0; i < files->num_templates; i++) {
        const char *path = arena_printf(arena, "%s/%s", inner, files->template_names[i]);
        TRY(file_write_atomic(path, files->templates[i].data, files->templates[i].len));
    }
    return OK;
}

Status hf_write_side_files(const HfSideFiles *files, const char *folder)
{
    SCOPED_ARENA(arena);
    for (int i = 0; i < HF_NUM_SIDE_FILES; i++) {
        if (!files->texts[i].data) continue;
        TRY(file_write_atomic(arena_printf(&arena, "%s/%s", folder, side_names[i]), files->texts[i].data, files->texts[i].len));
    }
    return write_templates(&arena, files, folder);
}

Status hf_copy_side_files(const char *from, const char *folder)
{
    SCOPED_ARENA(arena);
    HfSideFiles files;
    bool        is_same;
    TRY(file_is_same(from, folder, &is_same));
    if (is_same) return OK;
    TRY(hf_read_side_files(&arena, from, &files));
    return hf_write_side_files(&files, folder);
}
