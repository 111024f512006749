/* The tree over json_reader.h's events. Open containers collect their items on one stack; closing moves them, in one
 * piece, to the arena. */
#include "base/json.h"

#include "base/json_reader.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

typedef struct Builder {
    Arena      *arena;
    JsonMember *stack; /* an array's items use only .value; `few`, then heap */
    JsonMember *few;
    size_t      count, capacity;
    size_t     *first; /* (JSON_MAX_DEPTH) by depth: where the open container's items begin */
    int         depth;
    Str         key; /* of the value to come */
    JsonValue   root;
    const char *problem; /* why the handler stopped; in the arena */
    size_t      problem_offset;
} Builder;

static void push(Builder *builder, const JsonValue *value)
{
    if (builder->depth == 0) {
        builder->root = *value;
        return;
    }
    if (builder->count == builder->capacity) {
        builder->capacity *= 2;
        JsonMember *more = realloc(builder->stack == builder->few ? NULL : builder->stack, builder->capacity * sizeof *more);
        if (!more) fatal_out_of_memory(builder->capacity * sizeof *more);
        if (builder->stack == builder->few) memcpy(more, builder->few, builder->count * sizeof *more);
        builder->stack = more;
    }
    builder->stack[builder->count++] = (JsonMember){ .key = builder->key, .value = *value };
}

static uint64_t hash_key(Str key)
{
    uint64_t hash = 0x9E3779B97F4A7C15u ^ key.len;
    for (size_t i = 0; i < key.len; i++) hash = (hash ^ (unsigned char)key.data[i]) * 0x100000001B3u;
    return hash ^ (hash >> 29);
}

static bool same_key(Str a, Str b)
{
    return a.len == b.len && memcmp(a.data, b.data, a.len) == 0;
}

/* The second of two members with one key, or NULL. Objects of many members (vocabularies) go through a hash table. */
static const JsonMember *find_duplicate(const JsonMember *members, size_t count)
{
    enum { FEW = 12 };
    if (count <= FEW) {
        for (size_t i = 1; i < count; i++)
            for (size_t j = 0; j < i; j++)
                if (same_key(members[i].key, members[j].key)) return &members[i];
        return NULL;
    }
    size_t size = 32;
    while (size < count * 2) size *= 2;
    uint32_t *table = calloc(size, sizeof *table); /* 1 + index; 0: free */
    if (!table) fatal_out_of_memory(size * sizeof *table);
    const JsonMember *found = NULL;
    for (size_t i = 0; i < count && !found; i++) {
        size_t at = hash_key(members[i].key) & (size - 1);
        while (table[at] && !same_key(members[table[at] - 1].key, members[i].key)) at = (at + 1) & (size - 1);
        if (table[at]) found = &members[i];
        table[at] = (uint32_t)i + 1;
    }
    free(table);
    return found;
}

static bool open_container(Builder *builder, JsonType type, size_t offset)
{
    if (builder->depth == JSON_MAX_DEPTH) {
        builder->problem = arena_printf(builder->arena, "nested deeper than %d levels", JSON_MAX_DEPTH);
        builder->problem_offset = offset;
        return false;
    }
    JsonValue value = { .type = type };
    push(builder, &value); /* keeps the place and the key; filled when it closes */
    builder->key = (Str){ 0 };
    builder->first[builder->depth++] = builder->count;
    return true;
}

static bool close_container(Builder *builder, size_t offset)
{
    size_t      first = builder->first[--builder->depth], count = builder->count - first;
    JsonMember *items = count ? builder->stack + first : NULL;
    JsonValue  *value = builder->depth ? &builder->stack[first - 1].value : &builder->root;
    value->count = (uint32_t)count;
    value->offset = offset;
    builder->count = first;
    if (value->type == JSON_ARRAY) {
        value->items = arena_array(builder->arena, JsonValue, count);
        for (size_t i = 0; i < count; i++) value->items[i] = items[i].value;
        return true;
    }
    const JsonMember *twice = find_duplicate(items, count);
    if (twice) {
        builder->problem = arena_printf(builder->arena, "the key \"%.200s\" occurs twice in one object", twice->key.data);
        builder->problem_offset = twice->value.offset;
        return false;
    }
    value->members = arena_array(builder->arena, JsonMember, count);
    if (count) memcpy(value->members, items, count * sizeof *items);
    return true;
}

/* An integer when written as one and fit for int64, else a double. */
static void read_number(JsonValue *value, const char *text)
{
    bool whole = !strpbrk(text, ".eE");
    errno = 0;
    long long integer = whole ? strtoll(text, NULL, 10) : 0;
    if (whole && errno == 0 && strcmp(text, "-0") != 0) {
        value->type = JSON_INT;
        value->integer = integer;
        return;
    }
    value->type = JSON_DOUBLE;
    value->count = whole;
    value->number = strtod(text, NULL);
}

static bool on_event(void *context, JsonEvent event, const char *text, size_t len, size_t offset)
{
    Builder  *builder = context;
    JsonValue value = { .offset = offset };
    switch (event) {
    case JSON_EVENT_KEY: builder->key = (Str){ text, len }; return true;
    case JSON_EVENT_OPEN_OBJECT: return open_container(builder, JSON_OBJECT, offset);
    case JSON_EVENT_OPEN_ARRAY: return open_container(builder, JSON_ARRAY, offset);
    case JSON_EVENT_CLOSE_OBJECT:
    case JSON_EVENT_CLOSE_ARRAY: return close_container(builder, offset);
    case JSON_EVENT_NULL: value.type = JSON_NULL; break;
    case JSON_EVENT_FALSE:
    case JSON_EVENT_TRUE:
        value.type = JSON_BOOL;
        value.boolean = event == JSON_EVENT_TRUE;
        break;
    case JSON_EVENT_NUMBER: read_number(&value, arena_strndup(builder->arena, text, len)); break;
    case JSON_EVENT_STRING:
        value.type = JSON_STRING;
        value.string = (Str){ text, len };
        break;
    }
    push(builder, &value);
    return true;
}

/* The code unit of the escape \uXXXX at text[at], or -1. */
static int escape_unit(const char *text, size_t len, size_t at)
{
    if (len - at < 6 || text[at] != '\\' || text[at + 1] != 'u') return -1;
    int unit = 0;
    for (size_t i = at + 2; i < at + 6; i++) {
        char c = text[i];
        int  digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (digit < 0) return -1;
        unit = unit * 16 + digit;
    }
    return unit;
}

/* Rewrites lone surrogate escapes, which the reader refuses, to \uFFFD: of equal length, so that positions stay true. */
static void replace_lone_surrogates(char *text, size_t len)
{
    size_t step;
    if (!str_search((Str){ text, len }, (Str){ "\\u", 2 })) return;
    for (size_t at = 0; at < len; at += step) {
        const char *slash = memchr(text + at, '\\', len - at);
        if (!slash) break;
        at = (size_t)(slash - text);
        int unit = escape_unit(text, len, at);
        step = unit < 0 ? 2 : 6;
        if (unit < 0xD800 || unit > 0xDFFF) continue;
        int next = unit <= 0xDBFF ? escape_unit(text, len, at + 6) : -1;
        if (next >= 0xDC00 && next <= 0xDFFF) {
            step = 12;
            continue;
        }
        memcpy(text + at, "\\uFFFD", 6);
    }
}

Status json_parse(Arena *arena, const char *name, const char *text, size_t len, JsonValue *out)
{
    FAIL_IF(len > UINT32_MAX, ERR_INVALID, "%s: JSON texts above 4 GiB are not read", name);
    enum { FEW = 32 };
    JsonMember few[FEW];
    size_t     first[JSON_MAX_DEPTH];
    Builder    builder = { .arena = arena, .stack = few, .few = few, .capacity = FEW, .first = first };
    char  *copy = arena_strndup(arena, text, len); /* where the strings will lie */
    size_t offset = 0;
    replace_lone_surrogates(copy, len);
    const char *problem = json_read_events(copy, len, on_event, &builder, &offset);
    if (builder.stack != few) free(builder.stack);
    if (problem) {
        int line, column;
        json_position(text, len, builder.problem ? builder.problem_offset : offset, &line, &column);
        FAIL(ERR_INVALID, "%s:%d:%d: %s", name, line, column, builder.problem ? builder.problem : problem);
    }
    *out = builder.root;
    return OK;
}

void json_position(const char *text, size_t len, size_t offset, int *line, int *column)
{
    size_t start = 0;
    *line = 1;
    if (offset > len) offset = len;
    for (size_t i = 0; i < offset; i++) {
        if (text[i] != '\n') continue;
        ++*line;
        start = i + 1;
    }
    *column = (int)(offset - start) + 1;
}

const JsonValue *json_find(const JsonValue *object, Str key)
{
    if (!object || object->type != JSON_OBJECT) return NULL;
    for (uint32_t i = 0; i < object->count; i++)
        if (same_key(object->members[i].key, key)) return &object->members[i].value;
    return NULL;
}

bool json_get_str(const JsonValue *object, const char *key, const char **out)
{
    const JsonValue *value = json_get(object, key);
    if (!value || value->type != JSON_STRING || strlen(value->string.data) != value->string.len) return false;
    *out = value->string.data;
    return true;
}

bool json_get_int(const JsonValue *object, const char *key, int64_t *out)
{
    const JsonValue *value = json_get(object, key);
    if (!value || value->type != JSON_INT) return false;
    *out = value->integer;
    return true;
}

bool json_get_double(const JsonValue *object, const char *key, double *out)
{
    const JsonValue *value = json_get(object, key);
    if (!value || (value->type != JSON_INT && value->type != JSON_DOUBLE)) return false;
    *out = value->type == JSON_INT ? (double)value->integer : value->number;
    return true;
}

bool json_get_bool(const JsonValue *object, const char *key, bool *out)
{
    const JsonValue *value = json_get(object, key);
    if (!value || value->type != JSON_BOOL) return false;
    *out = value->boolean;
    return true;
}

const char *json_type_name(JsonType type)
{
    static const char *const names[] = { "null", "boolean", "integer", "number", "string", "array", "object" };
    return names[type];
}
