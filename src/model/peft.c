/* adapter_config.json in and out. */
#include "model/peft.h"

#include "base/log.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CONFIG_BYTES = 16 << 20 };

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

/* Settings that change what the adapter computes. fan_in_fan_out doesn't: PEFT goes by the kind of the layer. */
static Status check_settings(const JsonValue *config, const char *name)
{
    static const char *const unsupported[] = {
        "use_dora",
        "use_qalora",
        "use_bdlora",
        "bias",
        "lora_bias",
        "modules_to_save",
        "rank_pattern",
        "alpha_pattern",
        "layers_to_transform",
        "layer_replication",
        "exclude_modules",
        "target_parameters",
        "trainable_token_indices",
        "alora_invocation_tokens",
        "arrow_config",
        "monteclora_config",
        "velora_config",
    };
    for (size_t i = 0; i < sizeof unsupported / sizeof *unsupported; i++)
        FAIL_IF(!is_unused(json_get(config, unsupported[i])), ERR_UNSUPPORTED, "%s: \"%s\" isn't supported; expected a plain LoRA adapter",
                name, unsupported[i]);
    const char *type = NULL;
    FAIL_IF(!json_get_str(config, "peft_type", &type) || strcmp(type, "LORA") != 0, ERR_UNSUPPORTED, "%s: peft_type is %s; expected LORA",
            name, type ? type : "absent");
    return OK;
}

static Status read_targets(Arena *arena, const JsonValue *config, const char *name, LoraOptions *lora)
{
    const JsonValue *value = json_get(config, "target_modules");
    if (value && value->type == JSON_STRING) {
        FAIL_IF(!str_equal(value->string, "all-linear"), ERR_UNSUPPORTED,
                "%s: target_modules is a pattern; expected a list of names or \"all-linear\"", name);
        const char **targets = arena_array(arena, const char *, 1);
        targets[0] = "all-linear";
        lora->targets = targets;
        lora->num_targets = 1;
        return OK;
    }
    FAIL_IF(!value || value->type != JSON_ARRAY || value->count == 0, ERR_INVALID, "%s: expected a list of names under target_modules",
            name);
    const char **targets = arena_array(arena, const char *, value->count);
    for (uint32_t i = 0; i < value->count; i++) {
        FAIL_IF(value->items[i].type != JSON_STRING, ERR_INVALID, "%s: target_modules holds something else than names", name);
        targets[i] = value->items[i].string.data;
    }
    lora->targets = targets;
    lora->num_targets = (int)value->count;
    return OK;
}

Status peft_parse_base_format(const char *word, const WeightFormat **out)
{
    StrBuf list = {0};
    *out = weight_format_find(word);
    if (*out || strcmp(word, "none") == 0) return OK;
    for (int i = 0; weight_format_at(i); i++) strbuf_printf(&list, ", %s", weight_format_at(i)->name);
    Status status = status_fail(ERR_INVALID, "there is no format %.100s for a base; expected none%s", word, strbuf_cstr(&list));
    strbuf_deinit(&list);
    return status;
}

#define BASE_FORMAT_FILE "base_format.json"

Status peft_read_base_format(Arena *arena, const char *dir, const WeightFormat **out)
{
    const char *name = arena_printf(arena, "%s/" BASE_FORMAT_FILE, dir), *word;
    Str         text;
    JsonValue   value;
    bool        is_there;
    *out = NULL;
    TRY(file_exists(name, &is_there));
    if (!is_there) return OK;
    TRY(file_read(arena, name, MAX_CONFIG_BYTES, &text));
    TRY(json_parse(arena, name, text.data, text.len, &value));
    FAIL_IF(!json_get_str(&value, "format", &word), ERR_INVALID, "%s: expected a word under \"format\"", name);
    Status status = peft_parse_base_format(word, out);
    return status == OK ? OK : status_prefix(status, "%s", name);
}

Status peft_write_base_format(const WeightFormat *format, const char *folder)
{
    Arena  arena = {0};
    Status status = OK;
    if (format) {
        const char *text = arena_printf(&arena, "{\n  \"format\": \"%s\"\n}\n", format->name);
        status = file_write_atomic(arena_printf(&arena, "%s/" BASE_FORMAT_FILE, folder), text, strlen(text));
    }
    arena_deinit(&arena);
    return status;
}

Status peft_open(Arena *arena, const char *dir, PeftAdapter *out)
{
    *out = (PeftAdapter){.dir = arena_strdup(arena, dir)};
    const char *name = arena_printf(arena, "%s/adapter_config.json", dir);
    Str         text;
    JsonValue   config;
    bool        is_there;
    TRY(file_is_dir(dir, &is_there));
    FAIL_IF(!is_there, ERR_NOT_FOUND, "%s: there is no such folder; expected an adapter's", dir);
    TRY(peft_is_adapter_dir(dir, &is_there));
    FAIL_IF(!is_there, ERR_INVALID, "%s holds no adapter (adapter_config.json, as PEFT writes it)", dir);
    TRY(file_read(arena, name, MAX_CONFIG_BYTES, &text));
    TRY(json_parse(arena, name, text.data, text.len, &config));
    TRY(check_settings(&config, name));
    LoraOptions *lora = &out->lora;
    lora->enabled = true;
    FAIL_IF(!json_get_int(&config, "r", &lora->r) || lora->r < 1 || lora->r > 65536, ERR_INVALID,
            "%s: expected a whole number from 1 to 65536 under \"r\"", name);
    FAIL_IF(!json_get_double(&config, "lora_alpha", &lora->alpha), ERR_INVALID, "%s: expected a number under \"lora_alpha\"", name);
    json_get_double(&config, "lora_dropout", &lora->dropout);
    FAIL_IF(!(lora->dropout >= 0 && lora->dropout < 1), ERR_INVALID, "%s: lora_dropout is %g; expected 0 <= p < 1", name, lora->dropout);
    json_get_bool(&config, "use_rslora", &lora->use_rslora);
    json_get_str(&config, "base_model_name_or_path", &out->base_model);
    TRY(peft_read_base_format(arena, dir, &out->base_format));
    return read_targets(arena, &config, name, lora);
}

Status peft_scale(const LoraOptions *lora, double *out_scale)
{
    FAIL_IF(lora->r < 1, ERR_INVALID, "r is %lld; expected at least 1", (long long)lora->r);
    *out_scale = lora->alpha / (lora->use_rslora ? sqrt((double)lora->r) : (double)lora->r);
    return OK;
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

const char *peft_base_name(Arena *arena, const char *model)
{
    char full[PATH_MAX];
    return realpath(model, full) ? arena_strdup(arena, full) : model; /* else a name on the hub */
}

Status peft_write_config(const LoraOptions *lora, const char *base_model, const char *folder)
{
    StrBuf out = {0};
    strbuf_puts(&out, "{\n  \"alpha_pattern\": {},\n  \"auto_mapping\": null,\n  \"base_model_name_or_path\": ");
    if (base_model)
        json_write_string(&out, base_model, strlen(base_model));
    else
        strbuf_puts(&out, "null");
    strbuf_puts(&out, ",\n  \"bias\": \"none\",\n  \"exclude_modules\": null,\n  \"fan_in_fan_out\": false,\n  \"inference_mode\": true,\n"
                      "  \"init_lora_weights\": true,\n  \"layer_replication\": null,\n  \"layers_pattern\": null,\n"
                      "  \"layers_to_transform\": null,\n  \"loftq_config\": {},\n  \"lora_alpha\": ");
    json_write_double(&out, lora->alpha);
    strbuf_puts(&out, ",\n  \"lora_bias\": false,\n  \"lora_dropout\": ");
    json_write_double(&out, lora->dropout);
    strbuf_puts(&out, ",\n  \"megatron_config\": null,\n  \"megatron_core\": \"megatron.core\",\n  \"modules_to_save\": null,\n"
                      "  \"peft_type\": \"LORA\",\n");
    strbuf_printf(&out, "  \"r\": %lld,\n  \"rank_pattern\": {},\n  \"revision\": null,\n  \"target_modules\": ", (long long)lora->r);
    if (lora->num_targets == 1 && strcmp(lora->targets[0], "all-linear") == 0) {
        strbuf_puts(&out, "\"all-linear\"");
    } else {
        for (int i = 0; i < lora->num_targets; i++) {
            strbuf_puts(&out, i ? ",\n    " : "[\n    ");
            json_write_string(&out, lora->targets[i], strlen(lora->targets[i]));
        }
        strbuf_puts(&out, "\n  ]");
    }
    strbuf_printf(&out, ",\n  \"task_type\": \"CAUSAL_LM\",\n  \"use_dora\": false,\n  \"use_rslora\": %s\n}\n",
                  lora->use_rslora ? "true" : "false");
    char path[4096];
    snprintf(path, sizeof path, "%s/adapter_config.json", folder);
    Status status = file_write_atomic(path, out.data, out.len);
    strbuf_deinit(&out);
    return status;
}
