/* Loads the template of a model folder; also the built-in templates. */
#include "files/file.h"
#include "base/hash.h"
#include "text/template/ast.h"

#include <string.h>

enum { MAX_CONFIG_BYTES = 256 << 20 };
#define TOOLS_NAME "tool_use"

#define TEMPLATE(id, name) \
    __asm__(".section .rodata\n.global template_" #id "\n.global template_" #id "_end\ntemplate_" #id ":\n.incbin \"" SUROGATE_TEMPLATES \
            "/" #id ".jinja\"\ntemplate_" #id "_end:\n.byte 0\n.previous\n"); \
    extern const char template_##id[], template_##id##_end[];
#define ALSO(name, id)
#include "text/template/templates.def"

typedef struct BuiltinTemplate {
    const char *name, *begin, *end;
    bool        is_other; /* an alias of another row */
} BuiltinTemplate;

static const BuiltinTemplate builtins[] = {
#define TEMPLATE(id, name) {name, template_##id, template_##id##_end, false},
#define ALSO(name, id) {name, template_##id, template_##id##_end, true},
#include "text/template/templates.def"
};
enum { NUM_BUILTINS = sizeof builtins / sizeof builtins[0] };

Str template_builtin(const char *name)
{
    for (size_t i = 0; i < NUM_BUILTINS; i++)
        if (strcmp(name, builtins[i].name) == 0) return (Str){builtins[i].begin, (size_t)(builtins[i].end - builtins[i].begin)};
    return (Str){0};
}

void template_builtin_names(StrBuf *out)
{
    for (size_t i = 0; i < NUM_BUILTINS; i++)
        if (!builtins[i].is_other) strbuf_printf(out, "%s%s", i ? ", " : "", builtins[i].name);
}

static Status load_config(Arena *arena, const char *path, JsonValue *out)
{
    Str  text;
    bool is_there;
    *out = (JsonValue){.type = JSON_OBJECT};
    TRY(file_exists(path, &is_there));
    if (!is_there) return OK;
    TRY(file_read(arena, path, MAX_CONFIG_BYTES, &text));
    return json_parse(arena, path, text.data, text.len, out);
}

/* Keeps a token of the folder as a variable; `value`: a text, or {"content": text}. */
static void keep_token(Template *tmpl, Str name, const JsonValue *value)
{
    Dict  *dict = tmpl->folder_variables;
    Arena *arena = &tmpl->arena;
    if (value->type == JSON_OBJECT) value = json_get(value, "content");
    if (!value || value->type != JSON_STRING) return;
    uint32_t at = 0;
    while (at < dict->count && !str_same(value_str(dict->entries[at].key), name)) at++;
    Str text = value->string;
    dict->entries = arena_room(arena, dict->entries, dict->count + 1, &dict->capacity, sizeof *dict->entries);
    dict->entries[at].key = value_text(arena_strndup(arena, name.data, name.len), name.len);
    dict->entries[at].value = value_text(arena_strndup(arena, text.data, text.len), text.len);
    if (at == dict->count) dict->count++;
    tmpl->hash = hash_bytes(text.data, text.len, hash_bytes(name.data, name.len, tmpl->hash));
}

/* Keeps the members named "..._token", and the members of "extra_special_tokens". */
static void keep_tokens(Template *tmpl, const JsonValue *config)
{
    const JsonValue *extra = json_get(config, "extra_special_tokens");
    for (uint32_t i = 0; config->type == JSON_OBJECT && i < config->count; i++) {
        Str  key = config->members[i].key;
        bool is_token = str_ends(key, str_of("_token"));
        if (is_token) keep_token(tmpl, key, &config->members[i].value);
    }
    for (uint32_t i = 0; extra && extra->type == JSON_OBJECT && i < extra->count; i++)
        keep_token(tmpl, extra->members[i].key, &extra->members[i].value);
}

/* Keeps the special tokens of the folder. If tokenizer_config.json has no added_tokens_decoder (as in older files), special_tokens_map.json
 * overrides it. */
static Status keep_special_tokens(Template *tmpl, Arena *arena, const char *dir, const JsonValue *config)
{
    JsonValue map = {.type = JSON_OBJECT};
    if (!json_get(config, "added_tokens_decoder")) TRY(load_config(arena, arena_printf(arena, "%s/special_tokens_map.json", dir), &map));
    tmpl->folder_variables = arena_new(&tmpl->arena, Dict);
    keep_tokens(tmpl, config);
    keep_tokens(tmpl, &map);
    template_prepare(tmpl);
    return OK;
}

static const JsonValue *named_template(const JsonValue *list, const char *which)
{
    const JsonValue *member = json_get(list, which);
    if (member && member->type == JSON_STRING) return member;
    for (uint32_t i = 0; list->type == JSON_ARRAY && i < list->count; i++) {
        const JsonValue *name = json_get(&list->items[i], "name"), *text = json_get(&list->items[i], "template");
        if (name && name->type == JSON_STRING && text && text->type == JSON_STRING && str_equal(name->string, which)) return text;
    }
    return NULL;
}

/* Chooses from chat_template of tokenizer_config.json: a text, a list of named templates, or an object of them. */
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
    FAIL_IF(entry->type != JSON_ARRAY && entry->type != JSON_OBJECT, ERR_INVALID,
            "%s: chat_template: expected a text, a list or an object, got %s", path, json_type_name(entry->type));
    if (!which && has_tools) *out = named_template(entry, TOOLS_NAME);
    if (!*out) *out = named_template(entry, which ? which : "default");
    FAIL_IF(!*out, ERR_NOT_FOUND, "%s: chat_template: no template named '%s' in the list", path, which ? which : "default");
    return OK;
}

/* Finds the source of the folder's template and its path, for messages. out_text->data NULL: the folder has none. */
static Status find_source(Arena *arena, const char *dir, const JsonValue *config, const char *which, bool has_tools, const char **out_path,
                          Str *out_text)
{
    const JsonValue *chosen = NULL;
    const char      *config_path = arena_printf(arena, "%s/tokenizer_config.json", dir);
    const char      *path = arena_printf(arena, "%s/chat_template.jinja", dir);
    const char      *wanted = which ? which : has_tools ? TOOLS_NAME : "default";
    const char      *named = arena_printf(arena, "%s/additional_chat_templates/%s.jinja", dir, wanted);
    bool             has_named = strcmp(wanted, "default") != 0 && !strchr(wanted, '/'), is_there = false;
    *out_text = (Str){0};
    if (has_named) TRY(file_exists(named, &has_named));
    if (has_named)
        path = named;
    else if (which && strcmp(which, "default") != 0 && json_get(config, "chat_template"))
        path = "";
    *out_path = path;
    if (*path) TRY(file_exists(path, &is_there));
    if (is_there) return file_read(arena, path, TEMPLATE_MAX_BYTES, out_text);
    TRY(choose_template(config_path, config, which, has_tools, &chosen));
    if (chosen) *out_text = chosen->string;
    *out_path = arena_printf(arena, "%s (chat_template)", config_path);
    return OK;
}

static Status parse_source(Arena *arena, const char *dir, const JsonValue *config, const char *path, Str text, Template **out_template)
{
    TRY(template_parse(path, text.data, text.len, out_template));
    return keep_special_tokens(*out_template, arena, dir, config);
}

/* Loads the folder's template for inputs with tools. If that fails, only inputs with tools fail. */
static void bring_tools(Arena *arena, const char *dir, const JsonValue *config, Str text, Template *tmpl)
{
    const char *path;
    Str         other;
    Status      status = find_source(arena, dir, config, NULL, true, &path, &other);
    if (status == OK && other.data && !str_same(other, text)) status = parse_source(arena, dir, config, path, other, &tmpl->with_tools);
    if (status == OK) return;
    tmpl->tools_error = arena_strdup(&tmpl->arena, status_message());
    template_destroy(tmpl->with_tools);
    tmpl->with_tools = NULL;
    status_clear();
}

static Status load(Arena *arena, const char *dir, const char *which, bool has_tools, Template **out_template)
{
    JsonValue   config;
    const char *path;
    Str         text;
    TRY(load_config(arena, arena_printf(arena, "%s/tokenizer_config.json", dir), &config));
    TRY(find_source(arena, dir, &config, which, has_tools, &path, &text));
    if (!text.data) return OK;
    TRY(parse_source(arena, dir, &config, path, text, out_template));
    if (!which && !has_tools) bring_tools(arena, dir, &config, text, *out_template);
    return OK;
}

Status template_load(const char *dir, const char *which, bool has_tools, Template **out_template)
{
    Arena arena = {0};
    *out_template = NULL;
    Status status = load(&arena, dir, which, has_tools, out_template);
    if (status != OK) template_destroy(*out_template);
    if (status != OK) *out_template = NULL;
    arena_deinit(&arena);
    return status;
}

Status template_use_folder(Template *tmpl, const char *dir)
{
    Arena     arena = {0};
    JsonValue config;
    Status    status = load_config(&arena, arena_printf(&arena, "%s/tokenizer_config.json", dir), &config);
    if (status == OK) status = keep_special_tokens(tmpl, &arena, dir, &config);
    arena_deinit(&arena);
    return status;
}
