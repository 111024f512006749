/* Templates: parsing and rendering. */
#include "text/template/template.h"

#include "files/file.h"
#include "text/template/methods.h"
#include "text/template/open.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

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
    template_prepare(tmpl);
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

static void set_base(Template *tmpl, Str name, Value value)
{
    uint32_t index = name_index(tmpl, name);
    if (index != UINT32_MAX) tmpl->base_context[index] = value;
}

void template_prepare(Template *tmpl)
{
    static const char *const inputs[] = { "messages", "tools", "documents", "add_generation_prompt" };
    tmpl->base_context = arena_array(&tmpl->arena, Value, tmpl->names.count);
    for (uint32_t i = 0; i < template_num_functions; i++)
        set_base(tmpl, str_of(template_functions[i].name), (Value){ .type = V_FUNCTION, .len = i });
    for (uint32_t i = 0; tmpl->folder_variables && i < tmpl->folder_variables->count; i++)
        set_base(tmpl, value_str(tmpl->folder_variables->entries[i].key), tmpl->folder_variables->entries[i].value);
    for (int i = 0; i < 4; i++) tmpl->inputs[i] = name_index(tmpl, str_of(inputs[i]));
}

static Status set_json(Render *r, uint32_t index, const JsonValue *json)
{
    if (index == UINT32_MAX) return OK;
    return value_from_json(&r->arena, json, &r->context[index]);
}

static Status set_open(Render *r, uint32_t index, const JsonValue *messages)
{
    return index == UINT32_MAX ? OK : open_messages(r, messages, messages->count, &r->context[index]);
}

static Status set_context(Render *r, const TemplateInput *input)
{
    const uint32_t *inputs = r->tmpl->inputs;
    r->context = arena_array(&r->arena, Value, r->tmpl->names.count);
    memcpy(r->context, r->tmpl->base_context, r->tmpl->names.count * sizeof *r->context);
    TRY(r->open ? set_open(r, inputs[0], input->messages) : set_json(r, inputs[0], input->messages));
    TRY(set_json(r, inputs[1], input->tools));
    TRY(set_json(r, inputs[2], input->documents));
    if (inputs[3] != UINT32_MAX) r->context[inputs[3]] = value_bool(input->add_generation_prompt);
    for (uint32_t i = 0; input->variables && i < input->variables->count; i++)
        TRY(set_json(r, name_index(r->tmpl, input->variables->members[i].key), &input->variables->members[i].value));
    return OK;
}

Status template_execute(Render *r, const TemplateInput *input)
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

void template_stop_clock(Template *tmpl, int64_t now_unix)
{
    tmpl->now_unix = now_unix;
}

int64_t template_now(const Template *tmpl)
{
    return tmpl->now_unix ? tmpl->now_unix : time(NULL);
}

Status template_render(const Template *tmpl, const TemplateInput *input, TemplateOutput *out)
{
    Render r = { .tmpl = tmpl, .line = 1, .now_unix = input->now_unix ? input->now_unix : tmpl->now_unix };
    r.max_steps = input->max_steps ? input->max_steps : RENDER_MAX_STEPS;
    *out = (TemplateOutput){ 0 };
    if (input->arena) r.arena = *input->arena;
    size_t used_before = r.arena.used_bytes;
    r.arena.used_bytes = 0; /* the limit is on this render alone */
    Status status = template_execute(&r, input);
    if (status == OK) take_output(&r, out);
    strbuf_deinit(&r.out);
    r.arena.used_bytes += used_before;
    if (input->arena) *input->arena = r.arena;
    else arena_deinit(&r.arena);
    return status;
}
