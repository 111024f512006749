/* libfyaml's event parser, with the tree built here: its own documents would expand and resolve more than we want. */
#include "base/yaml.h"

#include <libfyaml.h>
#include <stdlib.h>
#include <string.h>

/* One open collection; its children so far. */
typedef struct Frame {
    YamlNode  *node;
    YamlNode **children; /* of a mapping: keys and values in turn */
    size_t     count, capacity;
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
    size_t      num_nodes, num_anchors, anchor_capacity;
    Anchor     *anchors; /* in the arena */
    YamlNode   *root;
    int         documents;
    int         line, column; /* of the event */
} Builder;

#define FAIL_HERE(b, ...)                                                                                 \
    return status_fail(ERR_INVALID, __VA_ARGS__),                                                         \
           status_prefix(ERR_INVALID, "%s:%d:%d", (b)->name, (b)->line, (b)->column), ERR_INVALID

/* The longest prefix of text that is UTF-8 without control characters other than tab and line ends. */
static size_t valid_prefix(const char *text, size_t len)
{
    const unsigned char *p = (const unsigned char *)text;
    for (size_t i = 0; i < len;) {
        unsigned c = p[i];
        size_t   need = c < 0x80 ? 1 : c >= 0xC2 && c <= 0xDF ? 2 : c >= 0xE0 && c <= 0xEF ? 3 : c >= 0xF0 && c <= 0xF4 ? 4 : 0;
        if (need == 0 || need > len - i || (c < 0x20 && c != '\t' && c != '\n' && c != '\r') || c == 0x7F) return i;
        if (c == 0xE0 && p[i + 1] < 0xA0) return i;
        if (c == 0xED && p[i + 1] > 0x9F) return i;
        if (c == 0xF0 && p[i + 1] < 0x90) return i;
        if (c == 0xF4 && p[i + 1] > 0x8F) return i;
        for (size_t j = 1; j < need; j++)
            if ((p[i + j] & 0xC0) != 0x80) return i;
        i += need;
    }
    return len;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t';
}

/* Where a tab stands between a key's colon and one of - ? : | > in a text that may hold a key marked by "? ", or len. There
 * libfyaml 0.7 frees memory twice. */
static size_t tab_before_mark(const char *text, size_t len)
{
    bool has_marked_key = false;
    for (size_t i = 0; i < len && !has_marked_key; i++)
        has_marked_key = text[i] == '?' && (i == 0 || strchr(" \t\r\n[{,", text[i - 1])) &&
                         (i + 1 == len || strchr(" \t\r\n", text[i + 1]));
    for (size_t i = 0; i < len && has_marked_key; i++) {
        size_t tab = len;
        if (text[i] != ':') continue;
        for (i++; i < len && is_blank(text[i]); i++)
            if (text[i] == '\t') tab = i;
        if (tab < len && i < len && strchr("-?:|>", text[i])) return tab;
        i--;
    }
    return len;
}

static void position_of(const char *text, size_t offset, int *line, int *column)
{
    *line = *column = 1;
    for (size_t i = 0; i < offset; i++) {
        if (text[i] == '\n') {
            ++*line;
            *column = 1;
        } else if ((text[i] & 0xC0) != 0x80) {
            ++*column;
        }
    }
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
    if (frame->count == frame->capacity) {
        size_t     capacity = frame->capacity ? frame->capacity * 2 : 8;
        YamlNode **children = arena_array(builder->arena, YamlNode *, capacity);
        if (frame->count) memcpy(children, frame->children, frame->count * sizeof *children);
        frame->children = children;
        frame->capacity = capacity;
    }
    frame->children[frame->count++] = node;
    return OK;
}

static char *token_text(Builder *builder, struct fy_token *token, size_t *len)
{
    const char *text = token ? fy_token_get_text(token, len) : NULL;
    if (!text) *len = 0;
    return arena_strndup(builder->arena, text ? text : "", *len);
}

/* An anchor is known from the end of its node on, so that a node can't hold itself; of two alike the later counts. */
static void remember(Builder *builder, struct fy_token *anchor, YamlNode *node)
{
    if (!anchor) return;
    size_t len;
    if (builder->num_anchors == builder->anchor_capacity) {
        size_t  capacity = builder->anchor_capacity ? builder->anchor_capacity * 2 : 8;
        Anchor *anchors = arena_array(builder->arena, Anchor, capacity);
        if (builder->num_anchors) memcpy(anchors, builder->anchors, builder->num_anchors * sizeof *anchors);
        builder->anchors = anchors;
        builder->anchor_capacity = capacity;
    }
    builder->anchors[builder->num_anchors++] = (Anchor){ token_text(builder, anchor, &len), node };
}

static Status on_alias(Builder *builder, struct fy_token *token)
{
    size_t      len;
    const char *name = token_text(builder, token, &len);
    for (size_t i = builder->num_anchors; i > 0; i--) {
        const Anchor *anchor = &builder->anchors[i - 1];
        if (strcmp(anchor->name, name) != 0) continue;
        if (!anchor->node->source) FAIL_HERE(builder, "the alias *%.100s is inside of what it stands for", name);
        builder->num_nodes++;
        return attach(builder, anchor->node);
    }
    FAIL_HERE(builder, "no anchor &%.100s before this alias", name);
}

static Status on_scalar(Builder *builder, const struct fy_event *event)
{
    YamlNode *node = node_new(builder, YAML_SCALAR);
    node->is_plain = !event->scalar.value || fy_token_scalar_style(event->scalar.value) == FYSS_PLAIN;
    node->text.data = token_text(builder, event->scalar.value, &node->text.len);
    if (memchr(node->text.data, 0, node->text.len)) FAIL_HERE(builder, "a NUL character");
    remember(builder, event->scalar.anchor, node);
    return attach(builder, node);
}

static Status open_collection(Builder *builder, YamlType type, struct fy_token *anchor)
{
    YamlNode *node = node_new(builder, type);
    TRY(attach(builder, node));
    if (builder->depth == YAML_MAX_DEPTH) FAIL_HERE(builder, "nested deeper than %d levels", YAML_MAX_DEPTH);
    remember(builder, anchor, node);
    node->source = NULL; /* marks it open, until it ends */
    builder->frames[builder->depth++] = (Frame){ .node = node };
    return OK;
}

static void close_collection(Builder *builder)
{
    Frame    *frame = &builder->frames[--builder->depth];
    YamlNode *node = frame->node;
    node->source = builder->name;
    if (node->type == YAML_SEQUENCE) {
        node->count = frame->count;
        node->items = frame->children;
        return;
    }
    node->count = frame->count / 2;
    node->keys = arena_array(builder->arena, YamlNode *, node->count);
    node->items = arena_array(builder->arena, YamlNode *, node->count);
    for (size_t i = 0; i < node->count; i++) {
        node->keys[i] = frame->children[2 * i];
        node->items[i] = frame->children[2 * i + 1];
    }
}

static Status on_event(Builder *builder, struct fy_event *event)
{
    const struct fy_mark *mark = fy_event_start_mark(event);
    if (mark) {
        builder->line = mark->line + 1;
        builder->column = mark->column + (event->type != FYET_ALIAS); /* an alias' mark is after its '*' */
    }
    if (fy_event_get_tag_token(event)) FAIL_HERE(builder, "YAML tags (!name) aren't supported; write the plain value");
    switch (event->type) {
    case FYET_DOCUMENT_START:
        if (builder->documents++) FAIL_HERE(builder, "a second YAML document; a run file holds one");
        return OK;
    case FYET_SCALAR: return on_scalar(builder, event);
    case FYET_ALIAS: return on_alias(builder, event->alias.anchor);
    case FYET_SEQUENCE_START: return open_collection(builder, YAML_SEQUENCE, event->sequence_start.anchor);
    case FYET_MAPPING_START: return open_collection(builder, YAML_MAPPING, event->mapping_start.anchor);
    case FYET_SEQUENCE_END:
    case FYET_MAPPING_END: close_collection(builder); return OK;
    default: return OK;
    }
}

/* What the library has to say of a text it can't parse. */
static Status syntax_error(Builder *builder, struct fy_diag *diag)
{
    void                 *state = NULL;
    struct fy_diag_error *error = fy_diag_errors_iterate(diag, &state);
    if (error && error->line > 0) {
        builder->line = error->line;
        builder->column = error->column > 0 ? error->column : 1;
    }
    if (builder->line == 0) builder->line = builder->column = 1;
    FAIL_HERE(builder, "%s", error ? error->msg : "not valid YAML");
}

static Status read_events(Builder *builder, const char *text, size_t len, struct fy_diag *diag)
{
    struct fy_parse_cfg cfg = { .flags = FYPCF_QUIET | FYPCF_DEFAULT_VERSION_1_2 | FYPCF_JSON_NONE, .diag = diag };
    struct fy_parser   *parser = fy_parser_create(&cfg);
    if (!parser || fy_parser_set_string(parser, text, len) != 0) fatal_out_of_memory(len);
    Status           status = OK;
    struct fy_event *event;
    while (status == OK && (event = fy_parser_parse(parser))) {
        status = on_event(builder, event);
        fy_parser_event_free(parser, event);
    }
    if (status == OK && fy_parser_get_stream_error(parser)) status = syntax_error(builder, diag);
    fy_parser_destroy(parser);
    return status;
}

Status yaml_parse(Arena *arena, const char *name, const char *text, size_t len, YamlNode **out)
{
    FAIL_IF(len > YAML_MAX_BYTES, ERR_INVALID, "%s: %zu bytes; run files of up to %d are read", name, len, YAML_MAX_BYTES);
    Builder builder = { .arena = arena, .name = arena_strdup(arena, name) };
    size_t  valid = valid_prefix(text, len);
    if (valid < len) {
        position_of(text, valid, &builder.line, &builder.column);
        FAIL_HERE(&builder, "the byte 0x%02x is no UTF-8 text", (unsigned char)text[valid]);
    }
    size_t tab = tab_before_mark(text, len);
    if (tab < len) {
        position_of(text, tab, &builder.line, &builder.column);
        FAIL_HERE(&builder, "a tab between a key and what follows; write a space");
    }
    struct fy_diag_cfg diag_cfg;
    fy_diag_cfg_default(&diag_cfg);
    diag_cfg.level = FYET_ERROR;
    diag_cfg.fp = NULL;
    struct fy_diag *diag = fy_diag_create(&diag_cfg);
    if (!diag) fatal_out_of_memory(sizeof diag_cfg);
    fy_diag_set_collect_errors(diag, true);
    Status status = read_events(&builder, text, len, diag);
    fy_diag_destroy(diag);
    TRY(status);
    if (!builder.root || yaml_is_null(builder.root)) builder.root = node_new(&builder, YAML_MAPPING);
    *out = builder.root;
    return OK;
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
