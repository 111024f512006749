/* Templates: parsing, rendering, and finding the one of a model folder. */
#include "text/template.h"

#include "files/file.h"
#include "text/template_methods.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

Status template_parse(const char *name, const char *source, size_t len, Template **out_template)
{
    Template *tmpl = calloc(1, sizeof *tmpl);
    Token    *tokens;
    size_t    count;
    if (!tmpl) fatal_out_of_memory(sizeof *tmpl);
    tmpl->name = arena_strdup(&tmpl->arena, name);
    tmpl->hash = hash_bytes(source, len, 0);
    for (uint32_t i = 0; i < METHOD_COUNT; i++) template_intern(tmpl, str_of(template_method_names[i]));
    Status status = OK;
    if (len > TEMPLATE_MAX_BYTES)
        status = status_fail(ERR_INVALID, "%s:1: the template has %zu bytes, the most is %d", name, len, TEMPLATE_MAX_BYTES);
    if (status == OK) status = template_lex(tmpl, source, len, &tokens, &count);
    if (status == OK) status = template_parse_tokens(tmpl, tokens);
    if (status == OK) status = template_resolve(tmpl);
    if (status != OK) {
        template_destroy(tmpl);
        return status;
    }
    *out_template = tmpl;
    return OK;
}

void template_destroy(Template *tmpl)
{
    if (!tmpl) return;
    arena_deinit(&tmpl->arena);
    free(tmpl);
}

uint64_t template_hash(const Template *tmpl)
{
    return tmpl->hash;
}

void template_output_deinit(TemplateOutput *out)
{
    strbuf_deinit(&out->text);
    free(out->spans);
    *out = (TemplateOutput){ 0 };
}

/* ---- rendering ---- */

static uint32_t name_index(const Template *tmpl, Str name)
{
    for (uint32_t i = METHOD_COUNT; i < tmpl->names.count; i++)
        if (str_same(tmpl->names.names[i], name)) return i;
    for (uint32_t i = 0; i < METHOD_COUNT && i < tmpl->names.count; i++)
        if (str_same(tmpl->names.names[i], name)) return i;
    return UINT32_MAX;
}

static void set_variable(Render *r, Str name, Value value)
{
    uint32_t index = name_index(r->tmpl, name);
    if (index != UINT32_MAX) r->context[index] = value;
}

static Status set_json(Render *r, Str name, const JsonValue *json)
{
    uint32_t index = name_index(r->tmpl, name);
    if (index == UINT32_MAX) return OK;
    return value_from_json(&r->arena, json, &r->context[index]);
}

static Status set_context(Render *r, const TemplateInput *input)
{
    r->context = arena_array(&r->arena, Value, r->tmpl->names.count);
    for (uint32_t i = 0; i < template_num_functions; i++)
        set_variable(r, str_of(template_functions[i].name), (Value){ .type = V_FUNCTION, .len = i });
    if (r->tmpl->folder_variables)
        for (uint32_t i = 0; i < r->tmpl->folder_variables->count; i++)
            set_variable(r, value_str(r->tmpl->folder_variables->entries[i].key), r->tmpl->folder_variables->entries[i].value);
    TRY(set_json(r, str_of("messages"), input->messages));
    TRY(set_json(r, str_of("tools"), input->tools));
    TRY(set_json(r, str_of("documents"), input->documents));
    set_variable(r, str_of("add_generation_prompt"), value_bool(input->add_generation_prompt));
    for (uint32_t i = 0; input->variables && i < input->variables->count; i++)
        TRY(set_json(r, input->variables->members[i].key, &input->variables->members[i].value));
    return OK;
}

static Status render(Render *r, const TemplateInput *input)
{
    const Scope *scope = r->tmpl->root_scope;
    TRY(set_context(r, input));
    r->frame = arena_alloc(&r->arena, sizeof(Frame) + scope->num_slots * sizeof(Value));
    scope_enter(r, scope);
    return exec_nodes(r, &r->tmpl->body);
}

static void take_output(Render *r, TemplateOutput *out)
{
    *out = (TemplateOutput){ .text = r->out };
    r->out = (StrBuf){ 0 };
    if (!r->num_spans) return;
    out->spans = calloc(r->num_spans, sizeof *out->spans);
    if (!out->spans) fatal_out_of_memory(r->num_spans * sizeof *out->spans);
    for (size_t i = 0; i < r->num_spans; i++)
        if (r->spans[i].end <= out->text.len) out->spans[out->num_spans++] = r->spans[i];
}

Status template_render(const Template *tmpl, const TemplateInput *input, TemplateOutput *out)
{
    Render r = { .tmpl = tmpl, .line = 1, .now_unix = input->now_unix };
    *out = (TemplateOutput){ 0 };
    Status status = render(&r, input);
    if (status == OK) take_output(&r, out);
    strbuf_deinit(&r.out);
    arena_deinit(&r.arena);
    return status;
}

/* ---- the template of a model folder ---- */

enum { MAX_CONFIG_BYTES = 256 << 20 };

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
