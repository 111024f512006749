/* Operations on open texts during a trace. */
#include "text/template/open.h"

#include "text/template/text.h"

#include <string.h>

enum { MOST_PARTS = 4096, MOST_GUARDS = 4096, MOST_STRIP_CHARS = 15 };

void open_stop(Render *r)
{
    render_fail(r, "the text of a message decides here");
}

Str open_part_text(const JsonValue *messages, const OpenPart *part)
{
    return text_strip_chars(messages->items[part->message].members[part->member].value.string, part->text, part->left, part->right);
}

bool guard_holds(const JsonValue *messages, const Guard *guard)
{
    Str text = open_part_text(messages, &guard->of), with = guard->with;
    switch (guard->kind) {
    case GUARD_EMPTY:
        return text.len == 0;
    case GUARD_STARTS:
        return str_starts(text, with);
    case GUARD_ENDS:
        return str_ends(text, with);
    case GUARD_HOLDS:
        return text_find(text, with, 0) != SIZE_MAX;
    case GUARD_EQUALS:
        return str_same(text, with);
    }
    return false;
}

/* Answers a question for the traced conversation and records it as a guard. */
static bool ask(Render *r, GuardKind kind, Value v, Str with)
{
    OpenTrace *trace = r->open;
    if (v.open->count != 1 || trace->num_guards == MOST_GUARDS) open_stop(r);
    Guard guard = {kind, v.open->parts[0], with};
    render_tick(r, (int64_t)(open_part_text(trace->messages, &guard.of).len >> 10));
    bool holds = guard_holds(trace->messages, &guard);
    trace->guards = arena_room(&r->arena, trace->guards, trace->num_guards + 1, &trace->guard_capacity, sizeof *trace->guards);
    trace->guards[trace->num_guards++] = (GuardUse){guard, holds};
    trace->num_ops++;
    return holds;
}

static Value open_value(Render *r)
{
    return (Value){.type = V_OPEN, .open = arena_new(&r->arena, OpenText)};
}

static void add_part(Render *r, OpenText *text, OpenPart part)
{
    if (text->count == MOST_PARTS) open_stop(r);
    text->parts = arena_room(&r->arena, text->parts, text->count + 1, &text->capacity, sizeof part);
    text->parts[text->count++] = part;
}

static Value open_one(Render *r, OpenPart part)
{
    Value v = open_value(r);
    add_part(r, v.open, part);
    return v;
}

static Value open_member(Render *r, const JsonMember *member, OpenPart part)
{
    if (member->value.type == JSON_ARRAY || member->value.type == JSON_OBJECT) open_stop(r);
    bool is_open = member->value.type == JSON_STRING && !str_equal(member->key, "role");
    return is_open ? open_one(r, part) : value_from_json(r, &member->value);
}

Value open_messages(Render *r, const JsonValue *messages)
{
    List list = {0};
    for (uint32_t i = 0; i < messages->count; i++) {
        const JsonValue *message = &messages->items[i];
        if (message->type != JSON_OBJECT) open_stop(r);
        Dict *dict = arena_new(&r->arena, Dict);
        dict->entries = arena_array(&r->arena, DictEntry, message->count);
        dict->count = dict->capacity = message->count;
        for (uint32_t k = 0; k < message->count; k++) {
            const JsonMember *member = &message->members[k];
            OpenPart          part = {.is_open = true, .message = i, .member = k};
            dict->entries[k] = (DictEntry){value_of_str(member->key), open_member(r, member, part)};
        }
        list_add(r, &list, value_dict(dict));
    }
    return value_list(r, V_LIST, list);
}

bool open_truth(Render *r, Value v)
{
    for (uint32_t i = 0; i < v.open->count; i++)
        if (!v.open->parts[i].is_open) return true; /* literal parts are never empty */
    return !ask(r, GUARD_EMPTY, v, (Str){0});
}

/* Whether a and b are equal; at least one of them is an open text. If both are, the trace stops. Only a text can equal an open text. */
bool open_equal(Render *r, Value a, Value b)
{
    Value open = a.type == V_OPEN ? a : b, other = a.type == V_OPEN ? b : a;
    if (other.type == V_OPEN) open_stop(r);
    return other.type == V_STRING && ask(r, GUARD_EQUALS, open, value_str(other));
}

bool open_contains(Render *r, Value item, Value container)
{
    if (item.type != V_STRING) open_stop(r);
    return ask(r, GUARD_HOLDS, container, value_str(item));
}

Value open_join(Render *r, const Value *items, uint32_t count)
{
    Value joined = open_value(r);
    for (uint32_t i = 0; i < count; i++) {
        Value v = items[i];
        if (v.type != V_OPEN && (v.type != V_STRING || value_is_markup(v))) open_stop(r);
        for (uint32_t k = 0; v.type == V_OPEN && k < v.open->count; k++) add_part(r, joined.open, v.open->parts[k]);
        if (v.type == V_STRING && v.len) add_part(r, joined.open, (OpenPart){.text = value_str(v)});
    }
    render_tick(r, joined.open->count >> 4);
    r->open->num_ops++;
    return joined;
}

Value open_binary(Render *r, TokenKind op, Value a, Value b)
{
    if (op != T_ADD) open_stop(r);
    return open_join(r, (Value[]){a, b}, 2);
}

void open_print(Render *r, Value v)
{
    OpenTrace *trace = r->open;
    for (uint32_t i = 0; i < v.open->count; i++) {
        const OpenPart *part = &v.open->parts[i];
        if (!part->is_open) {
            strbuf_append(&r->out, part->text.data, part->text.len);
            continue;
        }
        trace->places = arena_room(&r->arena, trace->places, trace->num_places + 1, &trace->place_capacity, sizeof *trace->places);
        trace->places[trace->num_places++] = (OpenPlace){r->out.len, *part};
        strbuf_putc(&r->out, 0);
    }
    trace->num_ops++;
}

Value open_capture(Render *r, size_t start)
{
    OpenTrace *trace = r->open;
    uint32_t   first = trace->num_places;
    List       items = {0};
    render_tick(r, r->num_spans >> 4);
    for (size_t i = 0; i < r->num_spans; i++) /* a generation inside the captured text: its final position isn't known yet */
        if (r->spans[i].begin >= start) open_stop(r);
    while (first > 0 && trace->places[first - 1].at >= start) first--;
    uint32_t end = trace->num_places;
    trace->num_places = first;
    if (first == end) return text_take(r, start);
    for (; end > first; end--) { /* backwards, because text_take cuts from the end of the output */
        list_add(r, &items, text_take(r, trace->places[end - 1].at + 1));
        r->out.len--; /* the byte that stands for the open text */
        list_add(r, &items, open_one(r, trace->places[end - 1].part));
    }
    list_add(r, &items, text_take(r, start));
    list_reverse(items);
    return open_join(r, items.items, items.count);
}

static bool is_row_of(const Builtin *builtin, const Builtin *table)
{
    while (table->name && table != builtin) table++;
    return table == builtin;
}

/* Whether the value is an open text or may contain one. */
static bool is_opaque(Value v)
{
    return v.type == V_OPEN || (v.type >= V_LIST && v.type != V_RANGE && v.type != V_FUNCTION);
}

static bool are_plain(const Args *args)
{
    for (uint32_t i = 0; i < args->count; i++)
        if (is_opaque(args->items[i])) return false;
    for (uint32_t i = 0; i < args->keywords.count; i++)
        if (is_opaque(args->keywords.entries[i].value)) return false;
    return true;
}

/* Strips an open text, which must be a single text of the conversation that wasn't stripped before. */
static Value strip(Render *r, Value v, const Args *args, uint32_t sides)
{
    bool     has_chars = args->count > 0 && args->items[0].type != V_NONE;
    OpenPart part = v.open->count == 1 ? v.open->parts[0] : (OpenPart){.left = true};
    if (part.left || part.right || args->count > 1 || args->keywords.count) open_stop(r);
    if (has_chars && (args->items[0].type != V_STRING || args->items[0].len > MOST_STRIP_CHARS)) open_stop(r);
    part.left = sides & SIDE_LEFT;
    part.right = sides & SIDE_RIGHT;
    if (has_chars) part.text = value_str(args->items[0]);
    r->open->num_ops++;
    return open_one(r, part);
}

static Value affix(Render *r, Value v, const Args *args, GuardKind kind)
{
    if (args->count != 1 || args->keywords.count || args->items[0].type != V_STRING) open_stop(r);
    return value_bool(ask(r, kind, v, value_str(args->items[0])));
}

/* open_builtin for an open text as `self`. */
static bool open_self(Render *r, const Builtin *builtin, Value *self, const Args *args, Value *out)
{
    if (builtin->call == test_type || builtin->call == test_truth) {
        *self = value_text("", 0); /* the type and truth tests give the same result for every text */
        return false;
    }
    if (builtin->call == filter_default) return false;
    if (builtin->call == text_trim)
        *out = strip(r, *self, args, builtin->mode);
    else if (builtin->call == str_affix)
        *out = affix(r, *self, args, builtin->mode == SIDE_LEFT ? GUARD_STARTS : GUARD_ENDS);
    else
        open_stop(r);
    return true;
}

/* Whether the filter passes values on without reading them. */
static bool is_blind(const Builtin *filter)
{
    return filter->call == filter_length || filter->call == filter_first || filter->call == filter_last || filter->call == filter_list ||
           filter->call == filter_items || filter->call == filter_default ||
           (filter->call == filter_select && (filter->mode & SELECT_ATTRIBUTE));
}

bool open_builtin(Render *r, const Builtin *builtin, Value *self, const Args *args, Value *out)
{
    bool is_plain = are_plain(args), has_no_args = args->count == 0 && args->keywords.count == 0, passes;
    if (is_row_of(builtin, template_functions)) {
        bool needs_clock = builtin->call == function_strftime_now && !r->now_unix;
        passes = (is_plain || builtin->call == function_dict) && !needs_clock;
    } else {
        if (is_plain && self->type == V_OPEN) return open_self(r, builtin, self, args, out);
        bool looks_not = !is_opaque(*self) || (builtin->types & (TYPE_DICT | TYPE_LOOP)) || is_blind(builtin) ||
                         (has_no_args && is_row_of(builtin, template_tests));
        passes = is_plain && looks_not;
    }
    if (!passes) open_stop(r);
    return false;
}
