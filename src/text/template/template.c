/* Templates: parsing and rendering. */
#include "text/template/template.h"

#include "base/hash.h"
#include "text/template/open.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static Status parse(Parser *p)
{
    if (setjmp(p->failed)) return p->status;
    template_lex(p);
    template_parse_tokens(p);
    return OK;
}

Status template_parse(const char *name, const char *source, size_t len, Template **out_template)
{
    FAIL_IF(len > TEMPLATE_MAX_BYTES, ERR_INVALID, "%s:1: the template has %zu bytes, the most is %d", name, len, TEMPLATE_MAX_BYTES);
    Template *tmpl = calloc_or_end(1, sizeof *tmpl);
    tmpl->name = arena_strdup(&tmpl->arena, name);
    tmpl->hash = hash_bytes(source, len, 0);
    Parser p = {.tmpl = tmpl, .text = source, .len = len};
    Status status = parse(&p);
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
    template_destroy(tmpl->with_tools);
    arena_deinit(&tmpl->arena);
    free(tmpl);
}

const Template *template_with_tools(const Template *tmpl)
{
    return tmpl->with_tools;
}

uint64_t template_hash(const Template *tmpl)
{
    uint64_t inner = tmpl->with_tools ? tmpl->with_tools->hash : 0;
    return tmpl->with_tools ? hash_bytes(&inner, sizeof inner, tmpl->hash) : tmpl->hash;
}

void template_output_deinit(TemplateOutput *out)
{
    strbuf_deinit(&out->text);
    free(out->spans);
    free(out->turns);
    *out = (TemplateOutput){0};
}

static void set_base(Template *tmpl, Str name, Value value)
{
    uint32_t index = template_find_name(tmpl, name);
    if (index != UINT32_MAX) tmpl->base_context[index] = value;
}

void template_prepare(Template *tmpl)
{
    static const char *const inputs[] = {"messages", "tools", "documents", "add_generation_prompt"};
    const Dict              *folder = tmpl->folder_variables;
    tmpl->base_context = arena_array(&tmpl->arena, Value, tmpl->names.count);
    for (const Builtin *row = template_functions; row->name; row++)
        set_base(tmpl, str_of(row->name), (Value){.type = V_FUNCTION, .function = row});
    for (uint32_t i = 0; folder && i < folder->count; i++) set_base(tmpl, value_str(folder->entries[i].key), folder->entries[i].value);
    for (int i = 0; i < 4; i++) tmpl->inputs[i] = template_find_name(tmpl, str_of(inputs[i]));
}

static void set_json(Render *r, uint32_t name, const JsonValue *json)
{
    if (name != UINT32_MAX) r->context[name] = value_from_json(r, json);
}

static void number_messages(Value messages)
{
    for (uint32_t i = 0; messages.type == V_LIST && i < messages.list->count; i++)
        if (messages.list->items[i].type == V_DICT) messages.list->items[i].dict->message = i + 1;
}

static void set_context(Render *r, const TemplateInput *input)
{
    const uint32_t *inputs = r->tmpl->inputs;
    r->context = arena_array(&r->arena, Value, r->tmpl->names.count);
    memcpy(r->context, r->tmpl->base_context, r->tmpl->names.count * sizeof *r->context);
    if (!r->open)
        set_json(r, inputs[0], input->messages);
    else if (inputs[0] != UINT32_MAX)
        r->context[inputs[0]] = open_messages(r, input->messages);
    if (inputs[0] != UINT32_MAX) number_messages(r->context[inputs[0]]);
    set_json(r, inputs[1], input->tools);
    set_json(r, inputs[2], input->documents);
    if (inputs[3] != UINT32_MAX) r->context[inputs[3]] = value_bool(input->add_generation_prompt);
    for (uint32_t i = 0; input->variables && i < input->variables->count; i++) {
        const JsonMember *member = &input->variables->members[i];
        set_json(r, template_find_name(r->tmpl, member->key), &member->value);
    }
}

Status template_execute(Render *r, const TemplateInput *input)
{
    if (setjmp(r->failed)) return ERR_INVALID;
    set_context(r, input);
    frame_enter(r, NULL, &r->tmpl->scope);
    exec_nodes(r, &r->tmpl->body);
    return OK;
}

static void take_output(Render *r, bool has_turns, TemplateOutput *out)
{
    *out = (TemplateOutput){.text = r->out};
    r->out = (StrBuf){0};
    if (has_turns && r->num_turns) {
        out->turns = malloc_or_end(r->num_turns * sizeof *out->turns);
        memcpy(out->turns, r->turns, r->num_turns * sizeof *out->turns);
        out->num_turns = r->num_turns;
    }
    if (!r->num_spans) return;
    out->spans = calloc_or_end(r->num_spans, sizeof *out->spans);
    for (size_t i = 0; i < r->num_spans; i++)
        if (r->spans[i].end <= out->text.len) out->spans[out->num_spans++] = r->spans[i];
}

void template_stop_clock(Template *tmpl, int64_t now_unix)
{
    tmpl->now_unix = now_unix;
    if (tmpl->with_tools) tmpl->with_tools->now_unix = now_unix;
}

int64_t template_now(const Template *tmpl)
{
    return tmpl->now_unix ? tmpl->now_unix : time(NULL);
}

bool template_asks_time(const Template *tmpl)
{
    if (tmpl->with_tools && template_asks_time(tmpl->with_tools)) return true;
    return template_find_name(tmpl, str_of("strftime_now")) != UINT32_MAX;
}

Status template_render(const Template *tmpl, const TemplateInput *input, TemplateOutput *out)
{
    *out = (TemplateOutput){0};
    FAIL_IF(input->tools && tmpl->tools_error, ERR_INVALID, "%s", tmpl->tools_error);
    if (input->tools && tmpl->with_tools) tmpl = tmpl->with_tools;
    Render r = {.tmpl = tmpl, .line = 1, .now_unix = input->now_unix ? input->now_unix : tmpl->now_unix};
    r.max_steps = input->max_steps ? input->max_steps : RENDER_MAX_STEPS;
    if (input->arena) r.arena = *input->arena;
    size_t used_before = r.arena.used_bytes;
    r.arena.used_bytes = 0; /* so that the limit applies to this render alone */
    Status status = template_execute(&r, input);
    if (status == OK) take_output(&r, input->marks_turns, out);
    strbuf_deinit(&r.out);
    r.arena.used_bytes += used_before;
    if (input->arena)
        *input->arena = r.arena;
    else
        arena_deinit(&r.arena);
    return status;
}
