/* The template of a model folder, and the built-in one. */
#include "files/file.h"
#include "text/template_ast.h"

#include <string.h>

enum { MAX_CONFIG_BYTES = 256 << 20 };

__asm__(".section .rodata\n.global template_chatml\n.global template_chatml_end\ntemplate_chatml:\n.incbin \"" SUROGATE_CHATML
        "\"\ntemplate_chatml_end:\n.byte 0\n.previous\n");
extern const char template_chatml[], template_chatml_end[];

Str template_builtin(const char *name)
{
    if (strcmp(name, "chatml") != 0) return (Str){ 0 };
    return (Str){ template_chatml, (size_t)(template_chatml_end - template_chatml) };
}

/* "..._token" entries: a text, or {"content": text}. */
static void keep_special_tokens(Template *tmpl, const JsonValue *config)
{
    Dict *dict = arena_new(&tmpl->arena, Dict);
    dict->entries = arena_array(&tmpl->arena, DictEntry, config->count);
    for (uint32_t i = 0; config->type == JSON_OBJECT && i < config->count; i++) {
        Str              key = config->members[i].key;
        const JsonValue *value = &config->members[i].value;
        if (key.len < 6 || memcmp(key.data + key.len - 6, "_token", 6) != 0) continue;
        if (value->type == JSON_OBJECT) value = json_get(value, "content");
        if (!value || value->type != JSON_STRING) continue;
        Str text = value->string;
        dict->entries[dict->count++] =
            (DictEntry){ value_text(arena_strndup(&tmpl->arena, key.data, key.len), key.len),
                         value_text(arena_strndup(&tmpl->arena, text.data, text.len), text.len) };
    }
    tmpl->folder_variables = dict;
}

static const JsonValue *named_template(const JsonValue *list, const char *which)
{
    for (uint32_t i = 0; i < list->count; i++) {
        const JsonValue *name = json_get(&list->items[i], "name"), *text = json_get(&list->items[i], "template");
        if (name && name->type == JSON_STRING && text && text->type == JSON_STRING && str_equal(name->string, which)) return text;
    }
    return NULL;
}

/* chat_template of tokenizer_config.json: a text or a list of named ones. */
static Status choose_template(const char *path, const JsonValue *config, const char *which, bool has_tools, const JsonValue **out)
{
    const JsonValue *entry = json_get(config, "chat_template");
    *out = NULL;
    if (!entry || entry->type == JSON_NULL) return OK;
    if (entry->type == JSON_STRING) {
        *out = entry;
        FAIL_IF(which && strcmp(which, "default") != 0, ERR_NOT_FOUND, "%s: there is one chat template, none named '%s'", path, which);
        return OK;
    }
    FAIL_IF(entry->type != JSON_ARRAY, ERR_INVALID, "%s: chat_template: expected a text or a list, got %s", path, json_type_name(entry->type));
    if (!which && has_tools) *out = named_template(entry, "tool_use");
    if (!*out) *out = named_template(entry, which ? which : "default");
    FAIL_IF(!*out, ERR_NOT_FOUND, "%s: chat_template: no template named '%s' in the list", path, which ? which : "default");
    return OK;
}

static Status load_config(Arena *arena, const char *path, JsonValue *out)
{
    Str text;
    *out = (JsonValue){ .type = JSON_OBJECT };
    if (!file_exists(path)) return OK;
    TRY(file_read(arena, path, MAX_CONFIG_BYTES, &text));
    return json_parse(arena, path, text.data, text.len, out);
}

static Status load(Arena *arena, const char *dir, const char *which, bool has_tools, Template **out_template)
{
    JsonValue        config;
    const JsonValue *chosen = NULL;
    Str              text;
    const char *config_path = arena_printf(arena, "%s/tokenizer_config.json", dir);
    const char *path = arena_printf(arena, "%s/chat_template.jinja", dir);
    TRY(load_config(arena, config_path, &config));
    if (which && strcmp(which, "default") != 0) {
        const char *named = arena_printf(arena, "%s/additional_chat_templates/%s.jinja", dir, which);
        if (!strchr(which, '/') && file_exists(named)) path = named;
        else if (json_get(&config, "chat_template")) path = "";
    }
    if (file_exists(path)) {
        TRY(file_read(arena, path, TEMPLATE_MAX_BYTES, &text));
    } else {
        TRY(choose_template(config_path, &config, which, has_tools, &chosen));
        if (!chosen) return OK;
        text = chosen->string;
        path = arena_printf(arena, "%s (chat_template)", config_path);
    }
    TRY(template_parse(path, text.data, text.len, out_template));
    keep_special_tokens(*out_template, &config);
    template_prepare(*out_template);
    return OK;
}

Status template_load(const char *dir, const char *which, bool has_tools, Template **out_template)
{
    Arena arena = { 0 };
    *out_template = NULL;
    Status status = load(&arena, dir, which, has_tools, out_template);
    arena_deinit(&arena);
    return status;
}

Status template_use_folder(Template *tmpl, const char *dir)
{
    Arena     arena = { 0 };
    JsonValue config;
    Status    status = load_config(&arena, arena_printf(&arena, "%s/tokenizer_config.json", dir), &config);
    if (status == OK) {
        keep_special_tokens(tmpl, &config);
        template_prepare(tmpl);
    }
    arena_deinit(&arena);
    return status;
}
