/* Caches renderings. The shape of a conversation is encoded as a key: per message the names of its members and all values that aren't open
 * texts (open.h). For each key there is a list of traced paths. A path holds guards (the questions that were asked about open texts, with
 * their answers) and the resulting output. A template asks the same questions in the same order until an answer differs, so at most one
 * path fits. A path on which the trace had to stop is kept too: it says that template_render is needed. */
#include "text/template/memo.h"

#include "base/hash.h"
#include "text/template/open.h"

#include <stdlib.h>
#include <string.h>

enum {
    MOST_SHAPES = 1 << 12,
    MOST_PATHS = 16,       /* most paths of a shape */
    MOST_BYTES = 16 << 20, /* most memory of the whole cache */
    MOST_TRACE_STEPS = 1 << 20,
    MOST_OPEN_BYTES = 64 << 20 /* limit of (operations on open texts) * (their bytes); far below the limits of a rendering */
};

typedef struct Path Path;
struct Path {
    Path         *next;
    GuardUse     *guards;
    uint32_t      num_guards, num_parts, num_spans, num_turns;
    bool          is_stop;
    OpenPlace    *parts; /* `at`: position in the traced output; used to place spans */
    TemplateSpan *spans; /* positions in the traced output, where an open part takes one byte */
    TemplateTurn *turns; /* their spans are positions in the traced output, too */
    uint64_t      num_ops;
};

typedef struct Shape {
    uint64_t hash;
    Str      key;
    bool     prompted;
    int      num_paths;
    Path    *paths;
} Shape;

struct TemplateMemo {
    const Template *tmpl;
    int64_t         now_unix;
    Arena           arena;
    Shape          *shapes; /* (2 * MOST_SHAPES) hash table, open addressing; key.data NULL: free */
    uint32_t        num_shapes;
    /* the current conversation, set by template_memo_start; messages NULL: it can't be cached */
    const JsonValue *messages;
    StrBuf           key;
    size_t          *key_ends; /* [i]: length of the key of the first i messages */
    uint32_t         key_capacity;
    uint64_t         open_bytes;
};

TemplateMemo *template_memo_create(const Template *tmpl, int64_t now_unix)
{
    TemplateMemo *memo = calloc_or_end(1, sizeof *memo);
    memo->shapes = calloc_or_end(2 * MOST_SHAPES, sizeof *memo->shapes);
    memo->tmpl = tmpl;
    memo->now_unix = now_unix;
    return memo;
}

void template_memo_destroy(TemplateMemo *memo)
{
    if (!memo) return;
    arena_deinit(&memo->arena);
    strbuf_deinit(&memo->key);
    free(memo->shapes);
    free(memo);
}

/* Copies bytes to `at` and returns their end; the caller has made room. */
static char *put_bytes(char *at, const void *data, size_t len)
{
    if (len) memcpy(at, data, len);
    return at + len;
}

static char *put_text(char *at, Str text)
{
    uint32_t len = (uint32_t)text.len;
    return put_bytes(put_bytes(at, &len, sizeof len), text.data, text.len);
}

static bool put_member(TemplateMemo *memo, const JsonMember *member)
{
    enum { MOST_REST = 32 }; /* most bytes that a member takes besides its texts */
    const JsonValue *value = &member->value;
    bool             is_role = value->type == JSON_STRING && str_equal(member->key, "role");
    strbuf_reserve(&memo->key, member->key.len + (is_role ? value->string.len : 0) + MOST_REST);
    char *at = put_text(memo->key.data + memo->key.len, member->key);
    *at++ = (char)value->type;
    switch (value->type) {
    case JSON_NULL:
        break;
    case JSON_BOOL:
        *at++ = value->boolean;
        break;
    case JSON_INT:
        at = put_bytes(at, &value->integer, sizeof value->integer);
        break;
    case JSON_DOUBLE:
        at = put_bytes(at, &value->number, sizeof value->number);
        *at++ = (char)value->count; /* count 1: the number was written as an integer */
        break;
    case JSON_STRING:
        memo->open_bytes += value->string.len;
        if (is_role) at = put_text(at, value->string);
        break;
    case JSON_ARRAY:
    case JSON_OBJECT:
        return false;
    }
    memo->key.len = (size_t)(at - memo->key.data);
    return true;
}

static bool put_message(TemplateMemo *memo, const JsonValue *message)
{
    if (message->type != JSON_OBJECT) return false;
    strbuf_append(&memo->key, &message->count, sizeof message->count);
    for (uint32_t k = 0; k < message->count; k++)
        if (!put_member(memo, &message->members[k])) return false;
    return true;
}

bool template_memo_start(TemplateMemo *memo, const JsonValue *messages)
{
    memo->messages = NULL;
    memo->open_bytes = 0;
    strbuf_clear(&memo->key);
    for (uint32_t i = 0;; i++) {
        memo->key_ends = arena_room(&memo->arena, memo->key_ends, i + 1, &memo->key_capacity, sizeof *memo->key_ends);
        memo->key_ends[i] = memo->key.len;
        if (i == messages->count) break;
        if (!put_message(memo, &messages->items[i])) return false;
    }
    memo->messages = messages;
    return true;
}

/* Finds the slot of a shape; key.data NULL: the shape is new. */
static Shape *find_shape(const TemplateMemo *memo, Str key, bool prompted)
{
    uint64_t hash = hash_bytes(key.data, key.len, prompted);
    for (uint64_t at = hash;; at++) {
        Shape *shape = &memo->shapes[at & (2 * MOST_SHAPES - 1)];
        if (shape->key.data && (shape->hash != hash || shape->prompted != prompted || !str_same(shape->key, key))) continue;
        shape->hash = hash;
        shape->prompted = prompted;
        return shape;
    }
}

static bool path_fits(const TemplateMemo *memo, const Path *path)
{
    for (uint32_t i = 0; i < path->num_guards; i++)
        if (guard_holds(memo->messages, &path->guards[i].guard) != path->guards[i].holds) return false;
    return true;
}

static Str keep_text(TemplateMemo *memo, Str text)
{
    return text.data ? (Str){arena_strndup(&memo->arena, text.data, text.len), text.len} : text;
}

static OpenPart keep_part(TemplateMemo *memo, OpenPart part)
{
    part.text = keep_text(memo, part.text);
    return part;
}

static void keep_output(TemplateMemo *memo, Path *path, const Render *r)
{
    const OpenTrace *trace = r->open;
    size_t           at = 0;
    path->parts = arena_array(&memo->arena, OpenPlace, (size_t)trace->num_places * 2 + 1);
    for (uint32_t i = 0; i <= trace->num_places; i++) {
        size_t end = i < trace->num_places ? trace->places[i].at : r->out.len;
        Str    text = {strbuf_cstr(&r->out) + at, end - at};
        if (end > at) path->parts[path->num_parts++] = (OpenPlace){at, {.text = keep_text(memo, text)}};
        if (i < trace->num_places) path->parts[path->num_parts++] = (OpenPlace){end, keep_part(memo, trace->places[i].part)};
        at = end + 1;
    }
    path->num_spans = r->num_spans;
    path->spans = arena_array(&memo->arena, TemplateSpan, r->num_spans);
    if (r->num_spans) memcpy(path->spans, r->spans, r->num_spans * sizeof *path->spans);
    path->num_turns = r->num_turns;
    path->turns = arena_array(&memo->arena, TemplateTurn, r->num_turns);
    if (r->num_turns) memcpy(path->turns, r->turns, r->num_turns * sizeof *path->turns);
}

static Path *trace_path(TemplateMemo *memo, uint32_t count, bool prompted)
{
    JsonValue     messages = *memo->messages;
    TemplateInput input = {.messages = &messages, .add_generation_prompt = prompted};
    OpenTrace     trace = {.messages = memo->messages};
    Render        r = {.tmpl = memo->tmpl, .line = 1, .now_unix = memo->now_unix, .max_steps = MOST_TRACE_STEPS, .open = &trace};
    messages.count = count;
    Path  *path = arena_new(&memo->arena, Path);
    Status status = template_execute(&r, &input);
    path->is_stop = status != OK;
    path->num_ops = trace.num_ops;
    path->guards = arena_array(&memo->arena, GuardUse, trace.num_guards);
    path->num_guards = trace.num_guards;
    for (uint32_t i = 0; i < trace.num_guards; i++) {
        Guard guard = trace.guards[i].guard;
        guard = (Guard){guard.kind, keep_part(memo, guard.of), keep_text(memo, guard.with)};
        path->guards[i] = (GuardUse){guard, trace.guards[i].holds};
    }
    if (status == OK) keep_output(memo, path, &r);
    status_clear();
    strbuf_deinit(&r.out);
    arena_deinit(&r.arena);
    return path;
}

/* Finds the path for the conversation, or traces a new one. NULL: the cache is full. */
static Path *find_path(TemplateMemo *memo, uint32_t count, bool prompted)
{
    Str    key = {strbuf_cstr(&memo->key), memo->key_ends[count]};
    Shape *shape = find_shape(memo, key, prompted);
    for (Path *path = shape->paths; path; path = path->next)
        if (path_fits(memo, path)) return path;
    bool is_new = !shape->key.data;
    if (memo->arena.used_bytes > MOST_BYTES || shape->num_paths == MOST_PATHS || (is_new && memo->num_shapes == MOST_SHAPES)) return NULL;
    if (is_new) {
        shape->key = keep_text(memo, key);
        memo->num_shapes++;
    }
    Path *path = trace_path(memo, count, prompted);
    path->next = shape->paths;
    shape->paths = path;
    shape->num_paths++;
    return path;
}

/* Whether rendering with this path stays far below the limits of template_render. */
static bool can_render(const TemplateMemo *memo, const Path *path)
{
    return path && !path->is_stop && (path->num_ops + 1) * memo->open_bytes <= MOST_OPEN_BYTES;
}

static Str part_text(const TemplateMemo *memo, const OpenPart *part)
{
    return part->is_open ? open_part_text(memo->messages, part) : part->text;
}

/* Converts a position in the traced output to one in the text; begins[i] is where part i begins in the text. */
static size_t place_of(const Path *path, const size_t *begins, size_t at)
{
    uint32_t i = 0, end = path->num_parts;
    while (end > i + 1) {
        uint32_t middle = i + (end - i) / 2;
        if (path->parts[middle].at <= at)
            i = middle;
        else
            end = middle;
    }
    size_t inside = path->num_parts ? at - path->parts[i].at : 0;
    return path->parts && path->num_parts && path->parts[i].part.is_open && inside ? begins[i + 1] : begins[i] + inside;
}

static TemplateSpan place_span(const Path *path, const TemplateParts *parts, TemplateSpan span)
{
    return (TemplateSpan){place_of(path, parts->begins, span.begin), place_of(path, parts->begins, span.end)};
}

TemplateTurn *template_memo_turns(const TemplateParts *parts, Arena *arena, size_t *out_count)
{
    const Path   *path = parts->path;
    TemplateTurn *turns = arena_array(arena, TemplateTurn, path->num_turns);
    for (size_t i = 0; i < path->num_turns; i++) {
        turns[i] = path->turns[i];
        turns[i].span = place_span(path, parts, path->turns[i].span);
    }
    *out_count = path->num_turns;
    return turns;
}

static void place_spans(const Path *path, Arena *arena, TemplateParts *out)
{
    out->num_spans = path->num_spans;
    out->spans = arena_array(arena, TemplateSpan, path->num_spans);
    for (size_t i = 0; i < path->num_spans; i++) out->spans[i] = place_span(path, out, path->spans[i]);
}

bool template_memo_render(TemplateMemo *memo, uint32_t count, bool add_generation_prompt, Arena *arena, TemplateParts *out)
{
    *out = (TemplateParts){0};
    if (!memo->messages) return false;
    Path *path = find_path(memo, count, add_generation_prompt);
    if (!can_render(memo, path)) return false;
    out->path = path;
    out->num_parts = path->num_parts;
    out->parts = arena_array(arena, Str, path->num_parts);
    out->begins = arena_array(arena, size_t, path->num_parts + 1);
    for (uint32_t i = 0; i < path->num_parts; i++) {
        out->parts[i] = part_text(memo, &path->parts[i].part);
        out->begins[i + 1] = out->len += out->parts[i].len;
    }
    if (path->num_spans) place_spans(path, arena, out);
    return true;
}
