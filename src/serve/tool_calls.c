/* See tool_calls.h. The reader searches for a mark and tells the text before it. Each time text arrives it tries to read calls after that
 * mark. A try returns that it needs more text, that this is no call, or that it found calls (Reading.at is their end). */
#include "serve/tool_calls.h"

#include "base/json.h"
#include "base/str.h"

#include <stdlib.h>
#include <string.h>

const char *const tool_marks[] = {"<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>", NULL};

static const char *const begins[] = {"<tool_call>", "[TOOL_CALLS]", "<|python_tag|>"};
enum { AT_HERMES, AT_MISTRAL, AT_LLAMA, NUM_BEGINS, AT_START = NUM_BEGINS };

enum { MOST_NAME = 256 };
enum { NOWHERE = -1 }; /* ToolReader.object: no object is being walked */

typedef enum Try { NEEDS_MORE, IS_TEXT, IS_CALLS } Try;

typedef struct ToolCall {
    StrBuf name, arguments;
} ToolCall;

typedef struct ToolCalls {
    ToolCall *calls;
    size_t    count;
} ToolCalls;

/* The state of one try: `at` moves over `text`. */
typedef struct Reading {
    ToolReader *reader;
    Str         text; /* the text that the reader holds */
    size_t      at;
    bool        at_end; /* the answer has ended: no text follows */
    bool        strict; /* no mark precedes the objects: one with a key that calls don't have is text */
    ToolCalls   found;
} Reading;

/* ---- an object ---- */

static size_t skip_blanks(Str text, size_t at)
{
    while (at < text.len && byte_is_blank(text.data[at])) at++;
    return at;
}

static size_t skip_string(Str text, size_t at)
{
    for (at++; text.data[at] != '"'; at++) at += text.data[at] == '\\';
    return at + 1;
}

/* The position after the value at `at`; the text must be valid JSON. */
static size_t skip_value(Str text, size_t at)
{
    int  depth = 0;
    char first = text.data[at];
    if (first != '"' && first != '{' && first != '[') { /* a number or a word */
        while (!byte_is_blank(text.data[at]) && text.data[at] != ',' && text.data[at] != '}') at++;
        return at;
    }
    do {
        char c = text.data[at];
        depth += (c == '{' || c == '[') - (c == '}' || c == ']');
        at = c == '"' ? skip_string(text, at) : at + 1;
    } while (depth);
    return at;
}

/* The text of a member's value; data NULL: there is no such member. The object must be valid JSON. */
static Str value_text(Str object, const char *key)
{
    size_t at = skip_blanks(object, 1);
    while (object.data[at] == '"') {
        size_t behind = skip_string(object, at), value = skip_blanks(object, skip_blanks(object, behind) + 1);
        bool   is_it = str_equal((Str){object.data + at + 1, behind - at - 2}, key);
        at = skip_value(object, value);
        if (is_it) return (Str){object.data + value, at - value};
        at = skip_blanks(object, at);
        if (object.data[at] == ',') at = skip_blanks(object, at + 1);
    }
    return (Str){0};
}

static bool are_keys_known(const JsonValue *object)
{
    static const char *const known[] = {"name", "arguments", "parameters", "type", "id"};
    for (uint32_t i = 0; i < object->count; i++) {
        size_t k = 0;
        while (k < sizeof known / sizeof *known && !str_equal(object->members[i].key, known[k])) k++;
        if (k == sizeof known / sizeof *known) return false;
    }
    return true;
}

static void add_call(ToolCalls *found, Str name, Str arguments)
{
    found->calls = realloc_or_end(found->calls, (found->count + 1) * sizeof *found->calls);
    ToolCall *call = &found->calls[found->count++];
    *call = (ToolCall){0};
    strbuf_append(&call->name, name.data, name.len);
    strbuf_append(&call->arguments, arguments.data, arguments.len);
}

static void free_calls(ToolCalls *found)
{
    for (size_t i = 0; i < found->count; i++) {
        strbuf_deinit(&found->calls[i].name);
        strbuf_deinit(&found->calls[i].arguments);
    }
    free(found->calls);
}

/* Whether the parser accepts the text as an object. JsonWalk alone also accepts some other texts, such as those with a key twice. */
static bool is_object_text(Str text)
{
    Arena     arena = {0};
    JsonValue value;
    bool      is = json_parse(&arena, "arguments", text.data, text.len, &value) == OK && value.type == JSON_OBJECT;
    arena_deinit(&arena);
    return is;
}

/* Adds the call that the object stands for. Only known keys matter: they are plain ASCII, so value_text finds them unescaped. */
static bool read_call(Arena *arena, Str object, bool strict, ToolCalls *out)
{
    JsonValue value;
    if (json_parse(arena, "call", object.data, object.len, &value) != OK) return false;
    const JsonValue *name = json_get(&value, "name"), *arguments = json_get(&value, "arguments");
    const char      *key = arguments ? "arguments" : "parameters";
    if (!arguments) arguments = json_get(&value, key);
    if (!name || name->type != JSON_STRING || !name->string.len) return false;
    if (strict && (!arguments || !are_keys_known(&value))) return false;
    Str text = arguments ? value_text(object, key) : str_of("{}");
    if (arguments && arguments->type == JSON_STRING) text = arguments->string;
    if (!text.data || !is_object_text(text)) return false;
    add_call(out, name->string, text);
    return true;
}

/* Whether an object with this beginning may be a call without a mark: its first key must be a key of calls. */
static bool may_be_call(Str object)
{
    static const char *const firsts[] = {"\"name\"", "\"arguments\"", "\"parameters\"", "\"type\"", "\"id\""};
    size_t                   at = skip_blanks(object, 1), len = object.len - at;
    for (size_t i = 0; i < sizeof firsts / sizeof *firsts; i++) {
        size_t most = strlen(firsts[i]);
        if (memcmp(object.data + at, firsts[i], len < most ? len : most) == 0) return true;
    }
    return false;
}

/* Reads the object at r->at, after blanks. IS_CALLS: *out is the object, and r->at is after it. Bytes that an earlier try walked aren't
 * walked again. */
static Try find_object(Reading *r, Str *out)
{
    ToolReader *reader = r->reader;
    size_t      begin = skip_blanks(r->text, r->at);
    if (reader->object != begin) {
        reader->object = reader->walked = begin;
        reader->walk = (JsonWalk){0};
    }
    while (reader->walked < r->text.len && !json_walk_is_whole(&reader->walk))
        if (!json_walk(&reader->walk, &json_walk_free, (unsigned char)r->text.data[reader->walked++])) {
            reader->object = (size_t)NOWHERE;
            return IS_TEXT;
        }
    *out = (Str){r->text.data + begin, reader->walked - begin};
    if (r->strict && out->len && !may_be_call(*out)) return IS_TEXT;
    if (!json_walk_is_whole(&reader->walk)) return r->at_end ? IS_TEXT : NEEDS_MORE;
    r->at = reader->walked;
    return IS_CALLS;
}

/* Reads the object at r->at as a call. */
static Try read_object(Reading *r)
{
    Str   object;
    Arena arena = {0};
    Try   is = find_object(r, &object);
    if (is == IS_CALLS && !read_call(&arena, object, r->strict, &r->found)) is = IS_TEXT;
    arena_deinit(&arena);
    return is;
}

/* ---- forms ---- */

/* Reads `word` at r->at. NEEDS_MORE: the text ends within `word`. */
static Try read_word(Reading *r, const char *word)
{
    size_t len = strlen(word), there = r->text.len - r->at;
    if (memcmp(r->text.data + r->at, word, there < len ? there : len) != 0) return IS_TEXT;
    if (there < len) return r->at_end ? IS_TEXT : NEEDS_MORE;
    r->at += len;
    return IS_CALLS;
}

/* Reads {...}</tool_call>; the closing mark may be missing. */
static Try read_hermes(Reading *r)
{
    Try    is = read_object(r);
    size_t behind = r->at;
    if (is != IS_CALLS) return is;
    r->at = skip_blanks(r->text, r->at);
    is = read_word(r, "</tool_call>");
    if (is == IS_TEXT) r->at = behind;
    return is == NEEDS_MORE ? NEEDS_MORE : IS_CALLS;
}

/* [{...}, {...}] */
static Try read_list(Reading *r)
{
    do {
        r->at++;
        Try is = read_object(r);
        if (is != IS_CALLS) return is;
        r->at = skip_blanks(r->text, r->at);
        if (r->at == r->text.len) return r->at_end ? IS_TEXT : NEEDS_MORE;
    } while (r->text.data[r->at] == ',');
    return r->text.data[r->at++] == ']' ? IS_CALLS : IS_TEXT;
}

/* The characters of a name or an id: letters, digits, _, - and '.'. */
static Str read_name(Reading *r)
{
    size_t begin = r->at;
    for (; r->at < r->text.len; r->at++) {
        char c = r->text.data[r->at];
        bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if (!is_letter && c != '_' && c != '-' && c != '.') break;
    }
    return (Str){r->text.data + begin, r->at - begin};
}

/* Reads f[ARGS]{...} or f[CALL_ID]id[ARGS]{...}. */
static Try read_named(Reading *r)
{
    Str    name = read_name(r), object;
    size_t behind = r->at;
    if (!name.len || name.len > MOST_NAME) return IS_TEXT;
    Try is = read_word(r, "[CALL_ID]");
    if (is == NEEDS_MORE) return is;
    if (is == IS_CALLS && read_name(r).len > MOST_NAME) return IS_TEXT;
    if (is == IS_TEXT) r->at = behind;
    is = read_word(r, "[ARGS]");
    if (is == IS_CALLS) is = find_object(r, &object);
    if (is != IS_CALLS) return is;
    if (!is_object_text(object)) return IS_TEXT;
    add_call(&r->found, name, object);
    return IS_CALLS;
}

static Try read_mistral(Reading *r)
{
    r->at = skip_blanks(r->text, r->at);
    if (r->at == r->text.len) return r->at_end ? IS_TEXT : NEEDS_MORE;
    if (r->text.data[r->at] == '[') return read_list(r);
    return r->text.data[r->at] == '{' ? read_object(r) : read_named(r);
}

/* Reads {...}; {...} up to the end of the answer. */
static Try read_llama(Reading *r)
{
    do {
        Try is = read_object(r);
        if (is != IS_CALLS) return is;
        r->at = skip_blanks(r->text, r->at);
        if (r->at < r->text.len && r->text.data[r->at] == ';') r->at = skip_blanks(r->text, r->at + 1);
    } while (r->at < r->text.len);
    return r->at_end ? IS_CALLS : NEEDS_MORE;
}

/* Reads the whole answer, which has no mark, as a list or as objects. */
static Try read_plain(Reading *r)
{
    r->at = skip_blanks(r->text, r->at);
    if (r->at == r->text.len) return r->at_end ? IS_TEXT : NEEDS_MORE;
    r->strict = true;
    if (r->text.data[r->at] == '{') return read_llama(r);
    if (r->text.data[r->at] != '[') return IS_TEXT;
    Try is = read_list(r);
    if (is != IS_CALLS) return is;
    r->at = skip_blanks(r->text, r->at);
    if (r->at < r->text.len) return IS_TEXT;
    return r->at_end ? IS_CALLS : NEEDS_MORE;
}

static Try (*const forms[])(Reading *r) = {
    [AT_HERMES] = read_hermes, [AT_MISTRAL] = read_mistral, [AT_LLAMA] = read_llama, [AT_START] = read_plain};

/* ---- the reader ---- */

static void drop(ToolReader *reader, size_t len)
{
    StrBuf *held = &reader->held;
    if (len) memmove(held->data, held->data + len, held->len - len + 1);
    held->len -= len;
    reader->object = (size_t)NOWHERE;
}

static void tell_text(ToolReader *reader, size_t len)
{
    if (len) {
        reader->sink.text(reader->sink.context, (Str){reader->held.data, len});
        reader->has_called = false;
    }
    drop(reader, len);
}

static void tell_calls(ToolReader *reader, const ToolCalls *found, size_t len)
{
    for (size_t i = 0; i < found->count; i++) {
        const StrBuf *name = &found->calls[i].name, *arguments = &found->calls[i].arguments;
        reader->sink.call(reader->sink.context, strbuf_str(name), strbuf_str(arguments));
    }
    reader->has_begun = reader->has_called = true;
    drop(reader, len);
}

/* Finds the first mark in `held`; returns its index in `begins`, or NUM_BEGINS if there is none. */
static int find_mark(Str held, size_t *out_at)
{
    int found = NUM_BEGINS;
    *out_at = held.len;
    for (int i = 0; i < NUM_BEGINS; i++) {
        const char *at = str_search(held, str_of(begins[i]));
        if (!at || (size_t)(at - held.data) >= *out_at) continue;
        *out_at = (size_t)(at - held.data);
        found = i;
    }
    return found;
}

/* The length of held[0..end) without the blanks at its end. */
static size_t before_blanks(Str held, size_t end)
{
    while (end > 0 && byte_is_blank(held.data[end - 1])) end--;
    return end;
}

/* Length of the text that can be told now: it excludes a possible beginning of a mark at the end, and blanks before that. */
static size_t settled_bytes(Str held)
{
    size_t end = held.len;
    for (int i = 0; i < NUM_BEGINS; i++)
        for (size_t len = strlen(begins[i]) - 1; len > 0; len--)
            if (len <= held.len && held.len - len < end && memcmp(held.data + held.len - len, begins[i], len) == 0) end = held.len - len;
    return before_blanks(held, end);
}

/* Tries to read calls from `behind` on: after a mark, or the whole answer. False: more text is needed. */
static bool try_calls(ToolReader *reader, int form, size_t behind, bool at_end)
{
    Reading r = {.reader = reader, .text = {strbuf_cstr(&reader->held), reader->held.len}, .at = behind, .at_end = at_end};
    Try     is = forms[form](&r);
    reader->has_begun |= is == IS_TEXT;
    if (is == IS_TEXT) tell_text(reader, behind);
    if (is == IS_CALLS) tell_calls(reader, &r.found, r.at);
    free_calls(&r.found);
    return is != NEEDS_MORE;
}

/* One step; false: more text is needed. */
static bool advance(ToolReader *reader, bool at_end)
{
    if (reader->has_called) drop(reader, skip_blanks(strbuf_str(&reader->held), 0));
    Str    held = {strbuf_cstr(&reader->held), reader->held.len};
    size_t at;
    int    form = find_mark(held, &at);
    if (!reader->has_begun && skip_blanks(held, 0) < at) return try_calls(reader, AT_START, 0, at_end);
    if (form == NUM_BEGINS) {
        tell_text(reader, at_end ? held.len : settled_bytes(held));
        return false;
    }
    size_t begin = before_blanks(held, at);
    if (!begin) return try_calls(reader, form, at + strlen(begins[form]), at_end);
    tell_text(reader, begin);
    return true;
}

void tool_reader_init(ToolReader *reader, ToolSink sink)
{
    *reader = (ToolReader){.sink = sink, .object = (size_t)NOWHERE};
}

void tool_reader_deinit(ToolReader *reader)
{
    strbuf_deinit(&reader->held);
}

/* A long call isn't tried again at each token, but each time that the held text has grown by 1/PART. */
void tool_reader_push(ToolReader *reader, Str text)
{
    enum { OFTEN = 4096, PART = 16 };
    strbuf_append(&reader->held, text.data, text.len);
    if (reader->held.len < reader->next_try) return;
    while (advance(reader, false)) continue;
    reader->next_try = reader->held.len < OFTEN ? 0 : reader->held.len + reader->held.len / PART;
}

void tool_reader_end(ToolReader *reader)
{
    while (advance(reader, true)) continue;
}
