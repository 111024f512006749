/* Uses libyaml's event parser and builds the tree here: libyaml's own documents copy aliased nodes and aren't bounded. */
#include "base/yaml.h"

#include "base/array.h"
#include "base/json.h"
#include "base/str.h"

#include <string.h>
#include <yaml.h>

/* An open collection, and its children so far. */
typedef struct Frame {
    YamlNode  *node;
    YamlNode **children; /* for a mapping: keys and values alternate */
    size_t     count;
    uint32_t   capacity;
} Frame;

typedef struct Anchor {
    const char *name;
    YamlNode   *node;
} Anchor;

typedef struct Builder {
    Arena      *arena;
    const char *name;
    Frame       frames[YAML_MAX_DEPTH];
    int         depth;
    size_t      num_nodes, num_anchors;
    Anchor      anchors[YAML_MAX_ANCHORS];
    YamlNode   *root;
    int         documents;
    int         line, column; /* position of the current event */
} Builder;

#define FAIL_HERE(b, ...) \
    return status_fail(ERR_INVALID, __VA_ARGS__), status_prefix(ERR_INVALID, "%s:%d:%d", (b)->name, (b)->line, (b)->column), ERR_INVALID

static const char no_tags[] = "YAML tags (!name) aren't supported; write the plain value";

/* Decodes the UTF-8 character at p[0..len) into *code; returns its length in bytes, or 0 if it isn't valid. */
static size_t decode(const unsigned char *p, size_t len, unsigned *code)
{
    static const unsigned least[] = {0, 0, 0x80, 0x800, 0x10000}; /* least[n]: smallest code that needs n bytes */
    size_t                need = p[0] < 0x80 ? 1 : p[0] < 0xC0 ? 0 : p[0] < 0xE0 ? 2 : p[0] < 0xF0 ? 3 : p[0] < 0xF8 ? 4 : 0;
    if (need == 0 || need > len) return 0;
    *code = need == 1 ? p[0] : p[0] & (0x7Fu >> need);
    for (size_t i = 1; i < need; i++) {
        if ((p[i] & 0xC0) != 0x80) return 0;
        *code = *code << 6 | (p[i] & 0x3F);
    }
    return *code < least[need] || *code > 0x10FFFF || (*code >= 0xD800 && *code <= 0xDFFF) ? 0 : need;
}

/* Control characters, and characters that libyaml takes as line ends but YAML 1.2 doesn't. */
static bool is_forbidden(unsigned code)
{
    return (code < 0x20 && code != '\t' && code != '\n' && code != '\r') || (code >= 0x7F && code < 0xA0) || code == 0x2028 ||
           code == 0x2029 || code == 0xFFFE || code == 0xFFFF;
}

/* Rejects text that libyaml would accept, or report less clearly, or need quadratic time for. Two things need quadratic time: long runs
 * of blanks (for each word in a value libyaml clears a buffer as long as the longest run), and %TAG lines (each is compared with all
 * others). */
static Status check_text(Builder *builder, const char *text, size_t len)
{
    size_t num_blanks = 0;
    builder->line = builder->column = 1;
    for (size_t i = 0, n = 0; i < len; i += n) {
        unsigned code;
        n = decode((const unsigned char *)text + i, len - i, &code);
        if (n == 0) FAIL_HERE(builder, "the byte 0x%02x is no UTF-8 text", (unsigned char)text[i]);
        if (is_forbidden(code))
            FAIL_HERE(builder, "the character U+%04X isn't read; leave it out, or write \\u%04X in double quotes", code, code);
        bool is_end = code == '\n' || code == '\r';
        num_blanks = is_end || code == ' ' || code == '\t' ? num_blanks + 1 : 0;
        if (num_blanks > YAML_MAX_BLANKS) FAIL_HERE(builder, "more than %d blanks and line ends in a row", YAML_MAX_BLANKS);
        if (builder->column == 1 && len - i >= 4 && memcmp(text + i, "%TAG", 4) == 0) FAIL_HERE(builder, "%s", no_tags);
        builder->column++;
        if (is_end && !(code == '\r' && i + 1 < len && text[i + 1] == '\n')) {
            builder->line++;
            builder->column = 1;
        }
    }
    return OK;
}

static YamlNode *node_new(Builder *builder, YamlType type)
{
    YamlNode *node = arena_new(builder->arena, YamlNode);
    node->type = type;
    node->source = builder->name;
    node->line = builder->line;
    node->column = builder->column;
    builder->num_nodes++;
    return node;
}

static Status attach(Builder *builder, YamlNode *node)
{
    if (builder->num_nodes > YAML_MAX_NODES) FAIL_HERE(builder, "more than %d values", YAML_MAX_NODES);
    if (builder->depth == 0) {
        builder->root = node;
        return OK;
    }
    Frame *frame = &builder->frames[builder->depth - 1];
    frame->children = arena_room(builder->arena, frame->children, frame->count + 1, &frame->capacity, sizeof *frame->children);
    frame->children[frame->count++] = node;
    return OK;
}

/* Registers an anchor. An alias to a collection that is still open is an error, so that a node can't contain itself (on_alias). The last of
 * several anchors with the same name counts. */
static Status remember(Builder *builder, const yaml_char_t *anchor, YamlNode *node)
{
    if (!anchor) return OK;
    if (builder->num_anchors == YAML_MAX_ANCHORS) FAIL_HERE(builder, "more than %d anchors", YAML_MAX_ANCHORS);
    builder->anchors[builder->num_anchors++] = (Anchor){arena_strdup(builder->arena, (const char *)anchor), node};
    return OK;
}

static Status on_alias(Builder *builder, const char *name)
{
    for (size_t i = builder->num_anchors; i > 0; i--) {
        const Anchor *anchor = &builder->anchors[i - 1];
        if (strcmp(anchor->name, name) != 0) continue;
        if (!anchor->node->source) FAIL_HERE(builder, "the alias *%.100s is inside of what it stands for", name);
        builder->num_nodes++;
        return attach(builder, anchor->node);
    }
    FAIL_HERE(builder, "no anchor &%.100s before this alias; quote a text that starts with *", name);
}

static Status on_scalar(Builder *builder, const yaml_event_t *event)
{
    const char *text = (const char *)event->data.scalar.value;
    size_t      len = event->data.scalar.length;
    YamlNode   *node = node_new(builder, YAML_SCALAR);
    if (memchr(text, 0, len)) FAIL_HERE(builder, "a NUL character");
    node->is_plain = event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    node->text = (Str){arena_strndup(builder->arena, text, len), len};
    TRY(remember(builder, event->data.scalar.anchor, node));
    return attach(builder, node);
}

static Status open_collection(Builder *builder, YamlType type, const yaml_char_t *anchor)
{
    YamlNode *node = node_new(builder, type);
    TRY(attach(builder, node));
    if (builder->depth == YAML_MAX_DEPTH) FAIL_HERE(builder, "nested deeper than %d levels", YAML_MAX_DEPTH);
    TRY(remember(builder, anchor, node));
    node->source = NULL; /* NULL marks the collection as open, until it is closed */
    builder->frames[builder->depth++] = (Frame){.node = node};
    return OK;
}

static bool is_merge_key(const YamlNode *key)
{
    return key->type == YAML_SCALAR && key->is_plain && strcmp(key->text.data, "<<") == 0;
}

static void add_pair(YamlNode *mapping, YamlNode *key, YamlNode *item)
{
    mapping->keys[mapping->count] = key;
    mapping->items[mapping->count++] = item;
}

static bool has_key(const YamlNode *mapping, const YamlNode *key)
{
    for (size_t i = 0; i < mapping->count && key->type == YAML_SCALAR; i++)
        if (mapping->keys[i]->type == YAML_SCALAR && str_same(mapping->keys[i]->text, key->text)) return true;
    return false;
}

/* Adds the pairs of `from` whose keys the mapping doesn't have. */
static Status merge(Builder *builder, YamlNode *mapping, const YamlNode *from)
{
    size_t room = mapping->count + from->count;
    if (from->type != YAML_MAPPING)
        FAIL_HERE(builder, "<< is %s; expected a mapping, as *name, or a list of mappings", yaml_type_name(from));
    if (room > YAML_MAX_MERGED) FAIL_HERE(builder, "<< makes a mapping of more than %d keys", YAML_MAX_MERGED);
    YamlNode **keys = arena_array(builder->arena, YamlNode *, room), **items = arena_array(builder->arena, YamlNode *, room);
    if (mapping->count) memcpy(keys, mapping->keys, mapping->count * sizeof *keys);
    if (mapping->count) memcpy(items, mapping->items, mapping->count * sizeof *items);
    mapping->keys = keys;
    mapping->items = items;
    for (size_t i = 0; i < from->count; i++)
        if (!has_key(mapping, from->keys[i])) add_pair(mapping, from->keys[i], from->items[i]);
    builder->num_nodes += room;
    if (builder->num_nodes > YAML_MAX_NODES) FAIL_HERE(builder, "more than %d values", YAML_MAX_NODES);
    return OK;
}

/* Merge keys (<<) add the keys that the mapping itself doesn't have. If several merged mappings have a key, the first of them gives its
 * value. */
static Status close_mapping(Builder *builder, YamlNode *node, YamlNode *const *children, size_t num_pairs)
{
    node->keys = arena_array(builder->arena, YamlNode *, num_pairs);
    node->items = arena_array(builder->arena, YamlNode *, num_pairs);
    for (size_t i = 0; i < num_pairs; i++)
        if (!is_merge_key(children[2 * i])) add_pair(node, children[2 * i], children[2 * i + 1]);
    for (size_t i = 0; i < num_pairs; i++) {
        YamlNode *from = children[2 * i + 1];
        if (!is_merge_key(children[2 * i])) continue;
        builder->line = children[2 * i]->line; /* the position for error messages */
        builder->column = children[2 * i]->column;
        if (from->type != YAML_SEQUENCE) TRY(merge(builder, node, from));
        for (size_t k = 0; from->type == YAML_SEQUENCE && k < from->count; k++) TRY(merge(builder, node, from->items[k]));
    }
    return OK;
}

static Status close_collection(Builder *builder)
{
    Frame    *frame = &builder->frames[--builder->depth];
    YamlNode *node = frame->node;
    if (node->type == YAML_MAPPING) TRY(close_mapping(builder, node, frame->children, frame->count / 2));
    node->source = builder->name;
    if (node->type == YAML_MAPPING) return OK;
    node->count = frame->count;
    node->items = frame->children;
    return OK;
}

static const yaml_char_t *tag_of(const yaml_event_t *event)
{
    switch (event->type) {
    case YAML_SCALAR_EVENT:
        return event->data.scalar.tag;
    case YAML_SEQUENCE_START_EVENT:
        return event->data.sequence_start.tag;
    case YAML_MAPPING_START_EVENT:
        return event->data.mapping_start.tag;
    default:
        return NULL;
    }
}

static Status on_event(Builder *builder, const yaml_event_t *event)
{
    builder->line = (int)event->start_mark.line + 1;
    builder->column = (int)event->start_mark.column + 1;
    if (tag_of(event)) FAIL_HERE(builder, "%s", no_tags);
    switch (event->type) {
    case YAML_DOCUMENT_START_EVENT:
        if (builder->documents++) FAIL_HERE(builder, "a second YAML document; a run file holds one");
        return OK;
    case YAML_SCALAR_EVENT:
        return on_scalar(builder, event);
    case YAML_ALIAS_EVENT:
        return on_alias(builder, (const char *)event->data.alias.anchor);
    case YAML_SEQUENCE_START_EVENT:
        return open_collection(builder, YAML_SEQUENCE, event->data.sequence_start.anchor);
    case YAML_MAPPING_START_EVENT:
        return open_collection(builder, YAML_MAPPING, event->data.mapping_start.anchor);
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT:
        return close_collection(builder);
    default:
        return OK;
    }
}

/* Maps libyaml's problems to messages for people who write run files. libyaml reports where the problem is, and where the construct around
 * it (the context) begins. */
typedef struct Saying {
    const char *problem;
    enum { AT_PROBLEM, AT_CONTEXT, IN_CONTEXT } where; /* IN_CONTEXT: reported at the problem; the message tells the context's position */
    const char *text;
} Saying;

static const char only_spaces[] = "a tab where only spaces may stand";
static const char unclosed[] = "this quote is never closed";

static const Saying sayings[] = {
    {"found a tab character that violates indentation", AT_PROBLEM, only_spaces},
    {"found a tab character where an indentation space is expected", AT_PROBLEM, only_spaces},
    {"mapping values are not allowed in this context", AT_PROBLEM,
     "no key can stand here; check the indentation and the line before, and quote a value with \": \" in it"},
    {"block sequence entries are not allowed in this context", AT_PROBLEM,
     "no \"- \" can stand here; a list's items have lines of their own"},
    {"could not find expected ':'", AT_CONTEXT, "no \": \" follows this key"},
    {"did not find expected key", IN_CONTEXT, "expected a key; check the indentation, and quotes and brackets before it"},
    {"did not find expected '-' indicator", IN_CONTEXT, "expected \"- \"; check the indentation"},
    {"did not find expected ',' or ']'", IN_CONTEXT, "expected , or ]"},
    {"did not find expected ',' or '}'", IN_CONTEXT, "expected , or }"},
    {"did not find expected node content", AT_PROBLEM, "expected a value"},
    {"did not find expected <document start>", AT_PROBLEM, "expected the end or ---; check the indentation"},
    {"found unexpected end of stream", AT_CONTEXT, unclosed},
    {"found unexpected document indicator", AT_CONTEXT, unclosed},
    {"found unknown escape character", AT_PROBLEM, "no such escape; write \\\\ for a backslash, or use single quotes"},
    {"did not find expected hexdecimal number", AT_PROBLEM, "expected a hexadecimal digit; write \\\\ for a backslash"},
    {"did not find expected comment or line break", AT_PROBLEM, "the text of | and > starts on the next line"},
    {"did not find expected alphabetic or numeric character", AT_CONTEXT,
     "* and & start a name of letters, digits, - and _; quote a text that starts with them"},
    {"found invalid Unicode character escape code", AT_PROBLEM, "no character has this code; write the character itself"},
    {"found undefined tag handle", AT_PROBLEM, no_tags},
};

/* Reports an error of libyaml's parser. */
static Status syntax_error(Builder *builder, const yaml_parser_t *parser)
{
    if (parser->error == YAML_MEMORY_ERROR) fatal_out_of_memory(YAML_MAX_BYTES);
    const Saying *saying = NULL;
    for (size_t i = 0; i < sizeof sayings / sizeof *sayings && !saying; i++)
        if (strcmp(sayings[i].problem, parser->problem) == 0) saying = &sayings[i];
    const yaml_mark_t *mark = saying && saying->where == AT_CONTEXT ? &parser->context_mark : &parser->problem_mark;
    builder->line = (int)mark->line + 1;
    builder->column = (int)mark->column + 1;
    if (saying && saying->where == IN_CONTEXT)
        FAIL_HERE(builder, "%s (in what starts at %d:%d)", saying->text, (int)parser->context_mark.line + 1,
                  (int)parser->context_mark.column + 1);
    if (saying) FAIL_HERE(builder, "%s", saying->text);
    if (strcmp(parser->problem, "found character that cannot start any token") != 0)
        FAIL_HERE(builder, "%s%s%s", parser->problem, parser->context ? ", " : "", parser->context ? parser->context : "");
    char first = *(const char *)parser->buffer.pointer;
    if (first == '\t') FAIL_HERE(builder, "%s", only_spaces);
    FAIL_HERE(builder, "a value can't start with %c; quote it", first);
}

static Status read_events(Builder *builder, const char *text, size_t len)
{
    yaml_parser_t parser;
    if (!yaml_parser_initialize(&parser)) fatal_out_of_memory(sizeof parser);
    yaml_parser_set_input_string(&parser, (const yaml_char_t *)text, len);
    Status status = OK;
    bool   at_end = false;
    while (status == OK && !at_end) {
        yaml_event_t event;
        if (!yaml_parser_parse(&parser, &event)) {
            status = syntax_error(builder, &parser);
            break;
        }
        at_end = event.type == YAML_STREAM_END_EVENT;
        if (!at_end) status = on_event(builder, &event);
        yaml_event_delete(&event);
    }
    yaml_parser_delete(&parser);
    return status;
}

Status yaml_parse(Arena *arena, const char *name, const char *text, size_t len, YamlNode **out)
{
    FAIL_IF(len > YAML_MAX_BYTES, ERR_INVALID, "%s: %zu bytes; run files of up to %d are read", name, len, YAML_MAX_BYTES);
    Builder builder = {.arena = arena, .name = arena_strdup(arena, name)};
    if (len >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0) text += 3, len -= 3; /* a byte order mark */
    TRY(check_text(&builder, text, len));
    TRY(read_events(&builder, text, len));
    if (!builder.root || yaml_is_null(builder.root)) builder.root = node_new(&builder, YAML_MAPPING);
    *out = builder.root;
    return OK;
}

void yaml_write_string(StrBuf *out, const char *text, size_t len)
{
    StrBuf json = {0};
    json_write_string(&json, text, len);
    for (size_t i = 0, n = 0; i < json.len; i += n) {
        unsigned code;
        n = decode((const unsigned char *)json.data + i, json.len - i, &code);
        CHECK(n);
        if (is_forbidden(code))
            strbuf_printf(out, "\\u%04x", code);
        else
            strbuf_append(out, json.data + i, n);
    }
    strbuf_deinit(&json);
}

bool yaml_is_null(const YamlNode *node)
{
    if (node->type != YAML_SCALAR || !node->is_plain) return false;
    const char *text = node->text.data;
    return !*text || strcmp(text, "~") == 0 || strcmp(text, "null") == 0 || strcmp(text, "Null") == 0 || strcmp(text, "NULL") == 0;
}

const char *yaml_type_name(const YamlNode *node)
{
    if (node->type == YAML_SEQUENCE) return "a list";
    if (node->type == YAML_MAPPING) return "a mapping";
    return yaml_is_null(node) ? "nothing" : "a value";
}
