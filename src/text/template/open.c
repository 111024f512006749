/* What a trace can do with open texts. */
#include "text/template/open.h"

#include "text/template/methods.h"
#include "text/template/text.h"

#include <string.h>

enum { MOST_PARTS = 4096, MOST_GUARDS = 4096, MOST_STRIP_CHARS = 15 };

Status open_stop(const Render *r)
{
    return render_fail(r, "the text of a message decides here");
}

/* ---- parts and guards ---- */

Str open_part_text(const JsonValue *messages, const OpenPart *part)
{
    Str text = messages->items[part->message].members[part->member].value.string;
    if (!part->left && !part->right) return text;
    return part->text.data ? text_strip_chars(text, part->text, part->left, part->right)
                           : text_strip(text, part->left, part->right);
}

bool guard_holds(const JsonValue *messages, const Guard *guard)
{
    Str text = open_part_text(messages, &guard->of), with = guard->with;
    switch (guard->kind) {
    case GUARD_EMPTY: return text.len == 0;
    case GUARD_STARTS: return text.len >= with.len && memcmp(text.data, with.data, with.len) == 0;
    case GUARD_ENDS: return text.len >= with.len && memcmp(text.data + text.len - with.len, with.data, with.len) == 0;
    case GUARD_HOLDS: return text_find(text, with, 0) != SIZE_MAX;
    case GUARD_EQUALS: return str_same(text, with);
    }
    return false;
}

/* Room for one more in an array of the arena. */
static void *grown(Arena *arena, void *data, uint32_t count, uint32_t *capacity, size_t size)
{
    if (count < *capacity) return data;
    *capacity = *capacity ? *capacity * 2 : 32;
    void *more = arena_alloc(arena, arena_array_bytes(*capacity, size));
    if (count) memcpy(more, data, count * size);
    return more;
}

/* Asks the conversation at hand and keeps the answer. */
static Status ask(Render *r, GuardKind kind, Value v, Str with, bool *out)
{
    OpenTrace *trace = r->open;
    if (v.open->count != 1 || trace->num_guards == MOST_GUARDS) return open_stop(r);
    Guard guard = { kind, v.open->parts[0], with };
    *out = guard_holds(trace->messages, &guard);
    trace->guards = grown(&r->arena, trace->guards, trace->num_guards, &trace->guard_capacity, sizeof *trace->guards);
    trace->guards[trace->num_guards++] = (GuardUse){ guard, *out };
    trace->num_ops++;
    return OK;
}

static Value open_value(OpenPart *parts, uint32_t count, Render *r)
{
    OpenText *text = arena_new(&r->arena, OpenText);
    *text = (OpenText){ parts, count };
    return (Value){ .type = V_OPEN, .open = text };
}

/* ---- the conversation ---- */

static Status open_member(Render *r, const JsonMember *member, OpenPart part, Value *out)
{
    bool is_text = member->value.type == JSON_STRING;
    if (member->value.type == JSON_ARRAY || member->value.type == JSON_OBJECT) return open_stop(r);
    if (!is_text || str_equal(member->key, "role")) return value_from_json(&r->arena, &member->value, out);
    OpenPart *kept = arena_new(&r->arena, OpenPart);
    *kept = part;
    *out = open_value(kept, 1, r);
    return OK;
}

Status open_messages(Render *r, const JsonValue *messages, uint32_t count, Value *out)
{
    Value *items = arena_array(&r->arena, Value, count);
    for (uint32_t i = 0; i < count; i++) {
        const JsonValue *message = &messages->items[i];
        if (message->type != JSON_OBJECT) return open_stop(r);
        Dict *dict = arena_new(&r->arena, Dict);
        dict->entries = arena_array(&r->arena, DictEntry, message->count);
        dict->count = dict->capacity = message->count;
        for (uint32_t k = 0; k < message->count; k++) {
            const JsonMember *member = &message->members[k];
            dict->entries[k].key = value_text(member->key.data, member->key.len);
            TRY(open_member(r, member, (OpenPart){ .is_open = true, .message = i, .member = k }, &dict->entries[k].value));
        }
        items[i] = (Value){ .type = V_DICT, .dict = dict };
    }
    *out = value_list(r, V_LIST, items, count);
    return OK;
}

/* ---- operations ---- */

Status open_truth(Render *r, Value v, bool *out)
{
    for (uint32_t i = 0; i < v.open->count; i++)
        if (!v.open->parts[i].is_open) {
            *out = true; /* literal parts are never empty */
            return OK;
        }
    TRY(ask(r, GUARD_EMPTY, v, (Str){ 0 }, out));
    *out = !*out;
    return OK;
}

/* An open text equals nothing but texts. */
Status open_equal(Render *r, Value a, Value b, bool *out)
{
    Value open = a.type == V_OPEN ? a : b, other = a.type == V_OPEN ? b : a;
    *out = false;
    if (other.type == V_STRING) return ask(r, GUARD_EQUALS, open, value_str(other), out);
    return other.type == V_OPEN ? open_stop(r) : OK;
}

Status open_contains(Render *r, Value item, Value container, bool *out)
{
    return item.type == V_STRING ? ask(r, GUARD_HOLDS, container, value_str(item), out) : open_stop(r);
}

static Status add_parts(const Render *r, OpenPart *parts, uint32_t *count, const OpenPart *from, uint32_t num)
{
    if (num > MOST_PARTS - *count) return open_stop(r);
    memcpy(parts + *count, from, num * sizeof *parts);
    *count += num;
    return OK;
}

Status open_join(Render *r, const Value *items, uint32_t count, Value *out)
{
    uint32_t total = 0, most = count;
    for (uint32_t i = 0; i < count; i++) most += items[i].type == V_OPEN ? items[i].open->count : 0;
    OpenPart *parts = arena_array(&r->arena, OpenPart, most);
    for (uint32_t i = 0; i < count; i++) {
        Value v = items[i];
        if (v.type == V_OPEN) {
            TRY(add_parts(r, parts, &total, v.open->parts, v.open->count));
        } else {
            if (v.type != V_STRING || (v.flags & VALUE_MARKUP)) return open_stop(r);
            if (v.len) TRY(add_parts(r, parts, &total, &(OpenPart){ .text = value_str(v) }, 1));
        }
    }
    r->open->num_ops++;
    *out = open_value(parts, total, r);
    return OK;
}

Status open_print(Render *r, Value v)
{
    OpenTrace *trace = r->open;
    for (uint32_t i = 0; i < v.open->count; i++) {
        const OpenPart *part = &v.open->parts[i];
        if (!part->is_open) {
            strbuf_append(&r->out, part->text.data, part->text.len);
            continue;
        }
        trace->places = grown(&r->arena, trace->places, trace->num_places, &trace->place_capacity, sizeof *trace->places);
        trace->places[trace->num_places++] = (OpenPlace){ r->out.len, *part };
        strbuf_putc(&r->out, 0);
    }
    trace->num_ops++;
    return OK;
}

Status open_capture(Render *r, size_t start, Value *out)
{
    OpenTrace *trace = r->open;
    uint32_t   first = trace->num_places, count = 0;
    for (size_t i = 0; i < r->num_spans; i++) /* a generation inside: its place isn't known yet */
        if (r->spans[i].begin >= start) return open_stop(r);
    while (first > 0 && trace->places[first - 1].at >= start) first--;
    Value *items = arena_array(&r->arena, Value, 2 * (trace->num_places - first) + 1);
    size_t at = start;
    for (uint32_t i = first; i < trace->num_places; i++) {
        items[count++] = value_copy_text(r, r->out.data + at, trace->places[i].at - at);
        OpenPart *part = arena_new(&r->arena, OpenPart);
        *part = trace->places[i].part;
        items[count++] = open_value(part, 1, r);
        at = trace->places[i].at + 1;
    }
    items[count++] = value_copy_text(r, strbuf_cstr(&r->out) + at, r->out.len - at);
    r->out.len = start;
    trace->num_places = first;
    if (count > 1) return open_join(r, items, count, out);
    *out = items[0];
    return OK;
}

/* ---- filters, tests, functions, methods ---- */

static bool in_table(const Builtin *builtin, const Builtin *table, uint32_t count)
{
    return builtin >= table && builtin < table + count;
}

static bool is_one_of(const char *name, const char *const *names)
{
    for (; *names; names++)
        if (strcmp(name, *names) == 0) return true;
    return false;
}

/* May hold an open text. */
static bool is_opaque(Value v)
{
    return v.type == V_OPEN || (v.type >= V_LIST && v.type != V_RANGE && v.type != V_FUNCTION);
}

static bool are_plain(const Args *args)
{
    for (uint32_t i = 0; i < args->count; i++)
        if (is_opaque(args->items[i])) return false;
    for (uint32_t i = 0; i < args->num_keywords; i++)
        if (is_opaque(args->keywords[i].value)) return false;
    return true;
}

/* Strips an open text that is one place and not stripped yet. */
static Status strip(Render *r, Value v, const Args *args, bool left, bool right, Value *out)
{
    bool has_chars = args->count > 0 && args->items[0].type != V_NONE;
    if (v.open->count != 1 || v.open->parts[0].left || v.open->parts[0].right || args->count > 1 || args->num_keywords)
        return open_stop(r);
    if (has_chars && (args->items[0].type != V_STRING || args->items[0].len > MOST_STRIP_CHARS)) return open_stop(r);
    OpenPart *part = arena_new(&r->arena, OpenPart);
    *part = v.open->parts[0];
    part->left = left;
    part->right = right;
    if (has_chars) part->text = value_str(args->items[0]);
    r->open->num_ops++;
    *out = open_value(part, 1, r);
    return OK;
}

static Status open_method(Render *r, uint32_t id, Value self, const Args *args, Value *out)
{
    bool is_affix = id == M_startswith || id == M_endswith;
    if (id == M_strip || id == M_lstrip || id == M_rstrip) return strip(r, self, args, id != M_rstrip, id != M_lstrip, out);
    if (!is_affix || args->count != 1 || args->num_keywords || args->items[0].type != V_STRING) return open_stop(r);
    bool holds;
    TRY(ask(r, id == M_startswith ? GUARD_STARTS : GUARD_ENDS, self, value_str(args->items[0]), &holds));
    *out = value_bool(holds);
    return OK;
}

/* Of an open text. */
static Status open_self(Render *r, const Builtin *builtin, Value *self, const Args *args, Value *out, bool *out_done)
{
    static const char *const by_type[] = { "defined", "undefined", "none", "string", "mapping", "iterable", "sequence", "boolean",
                                           "true", "false", "integer", "float", "number", "callable", NULL };
    static const char *const passing[] = { "default", "d", NULL };
    if (in_table(builtin, template_tests, template_num_tests) && is_one_of(builtin->name, by_type)) {
        *self = value_text("", 0); /* any text answers */
        return OK;
    }
    bool is_filter = in_table(builtin, template_filters, template_num_filters);
    if (is_filter && is_one_of(builtin->name, passing)) return OK;
    *out_done = true;
    if (is_filter && strcmp(builtin->name, "trim") == 0) return strip(r, *self, args, true, true, out);
    if (in_table(builtin, template_text_methods.methods, METHOD_COUNT))
        return open_method(r, (uint32_t)(builtin - template_text_methods.methods), *self, args, out);
    return open_stop(r);
}

Status open_builtin(Render *r, const Builtin *builtin, Value *self, const Args *args, Value *out, bool *out_done)
{
    /* these hand values on without a look at them */
    static const char *const filters[] = { "length", "count", "first", "last", "list", "items", "default", "d", "selectattr",
                                           "rejectattr", NULL };
    static const char *const functions[] = { "namespace", "dict", NULL };
    *out_done = false;
    if (in_table(builtin, template_functions, template_num_functions)) {
        bool needs_clock = strcmp(builtin->name, "strftime_now") == 0 && !r->now_unix;
        return (are_plain(args) || is_one_of(builtin->name, functions)) && !needs_clock ? OK : open_stop(r);
    }
    if (!are_plain(args)) return open_stop(r);
    if (self->type == V_OPEN) return open_self(r, builtin, self, args, out, out_done);
    if (!is_opaque(*self) || in_table(builtin, template_dict_methods.methods, METHOD_COUNT) ||
        in_table(builtin, template_loop_methods.methods, METHOD_COUNT))
        return OK;
    if (in_table(builtin, template_filters, template_num_filters) && is_one_of(builtin->name, filters)) return OK;
    bool is_test = in_table(builtin, template_tests, template_num_tests) && args->count == 0 && args->num_keywords == 0;
    return is_test ? OK : open_stop(r);
}
