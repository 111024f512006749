/* Reads the text form of a graph back. A hand-written scanner over one line at a time; every error says file:line:column. */
#include "ir/graph_internal.h"
#include "ir/sample.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PIECES = 4096, MAX_LAYER = 1 << 20 };

typedef struct Place {
    int line, column;
} Place;

typedef struct PendingView {
    Value      *value;
    const char *base;
    int64_t     offset;
    Place       place;
} PendingView;

/* Positions in the text, by id of the node or value. */
typedef struct Places {
    Place *items;
    int    capacity;
} Places;

typedef struct Parser {
    Arena       *arena;
    Graph       *graph;
    const char  *file;
    const char  *p, *end;
    const char  *line_start, *at; /* at: start of the last word or mark read, where errors point */
    int          line;
    PendingView *views; /* resolved at the end, as a base may be defined further down */
    int          num_views, cap_views;
    Places       nodes, values; /* positions of nodes, and of values from outside */
} Parser;

#define SYNTAX(parser, ...) return syntax_error(parser, (parser)->at, __VA_ARGS__)

static Place place_of(const Parser *parser, const char *at)
{
    return (Place){parser->line, (int)(at - parser->line_start) + 1};
}

static Status prefix_place(const Parser *parser, Place place)
{
    return status_prefix(ERR_INVALID, "%s:%d:%d", parser->file, place.line, place.column);
}

PRINTF_LIKE(3, 4) static Status syntax_error(const Parser *parser, const char *at, const char *fmt, ...)
{
    char              text[512];
    __builtin_va_list args;
    __builtin_va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    __builtin_va_end(args);
    status_fail(ERR_INVALID, "%s", text);
    return prefix_place(parser, place_of(parser, at));
}

static void places_put(Arena *arena, Places *places, int id, Place place)
{
    if (id >= places->capacity) {
        int    bigger = 2 * id + 64;
        Place *items = arena_array(arena, Place, bigger);
        if (places->capacity) memcpy(items, places->items, sizeof *items * (size_t)places->capacity);
        places->items = items;
        places->capacity = bigger;
    }
    places->items[id] = place;
}

static void skip_blanks(Parser *parser)
{
    while (parser->p < parser->end && (*parser->p == ' ' || *parser->p == ',')) parser->p++;
    parser->at = parser->p;
}

static bool at_line_end(Parser *parser)
{
    skip_blanks(parser);
    return parser->p >= parser->end || *parser->p == '\n';
}

static bool take(Parser *parser, char c)
{
    skip_blanks(parser);
    if (parser->p >= parser->end || *parser->p != c) return false;
    parser->p++;
    return true;
}

/* Reads a word or a quoted text; NULL: there is none here. */
static char *word(Parser *parser)
{
    skip_blanks(parser);
    StrBuf text = {0};
    bool   quoted = parser->p < parser->end && *parser->p == '"';
    if (quoted) {
        for (parser->p++; parser->p < parser->end && *parser->p != '"' && *parser->p != '\n'; parser->p++) {
            if (*parser->p == '\\' && parser->p + 1 < parser->end && parser->p[1] != '\n') parser->p++;
            strbuf_putc(&text, *parser->p);
        }
        if (parser->p < parser->end && *parser->p == '"') parser->p++;
    } else {
        while (parser->p < parser->end && !strchr(" ,\n()[]{}=\"@", *parser->p)) {
            if (*parser->p == ':' && parser->p + 1 < parser->end && parser->p[1] == ' ') break;
            strbuf_putc(&text, *parser->p++);
        }
    }
    char *out = text.len || quoted ? arena_strndup(parser->arena, strbuf_cstr(&text), text.len) : NULL;
    strbuf_deinit(&text);
    return out;
}

static bool take_word(Parser *parser, const char *want)
{
    const char *before = parser->p;
    const char *got = word(parser);
    if (got && strcmp(got, want) == 0) return true;
    parser->p = before;
    return false;
}

/* Reads KEY=. */
static bool take_key(Parser *parser, const char *key)
{
    return take_word(parser, key) && take(parser, '=');
}

/* Reads one of the words names[first...] as its index; words before `first` never occur in the text. */
static Status parse_choice(Parser *parser, const char *what, const char *const *names, int first, int count, const char *expected, int *out)
{
    const char *name = word(parser);
    for (*out = first; name && *out < count; ++*out)
        if (strcmp(name, names[*out]) == 0) return OK;
    SYNTAX(parser, "unknown %s %s; expected %s", what, name ? name : "", expected);
}

static Status parse_int(Parser *parser, int64_t *out)
{
    const char *text = word(parser);
    char       *end = NULL;
    errno = 0;
    if (text) *out = strtoll(text, &end, 10);
    if (!text || end == text || *end) SYNTAX(parser, "expected an integer, found %s", text ? text : "nothing");
    if (errno == ERANGE) SYNTAX(parser, "%s doesn't fit into 64 bits", text);
    return OK;
}

static Status parse_small(Parser *parser, const char *what, int most, int *out)
{
    int64_t n = 0;
    TRY(parse_int(parser, &n));
    if (n < 0 || n > most) SYNTAX(parser, "%s %lld; expected 0 to %d", what, (long long)n, most);
    *out = (int)n;
    return OK;
}

static Status parse_double(Parser *parser, const char *text, double *out)
{
    char *end = NULL;
    *out = strtod(text, &end);
    if (end == text || *end) SYNTAX(parser, "expected a number, found %s", text);
    return OK;
}

/* Checks the name of a value or an output; taken: the name exists already. */
static Status check_name(Parser *parser, const char *name, bool taken)
{
    if (!name_is_plain(name, GRAPH_NAME_BYTES)) SYNTAX(parser, "\"%.100s\" isn't fit for a name", name);
    if (taken) SYNTAX(parser, "second value named %s", name);
    return OK;
}

/* Reads dims like [2,24,96]; out->dtype is already set. */
static Status parse_dims(Parser *parser, Place place, TensorType *out)
{
    if (!take(parser, '[')) SYNTAX(parser, "expected [ after the dtype");
    while (!take(parser, ']')) {
        if (out->ndim == TENSOR_MAX_DIMS) SYNTAX(parser, "at most %d dims", TENSOR_MAX_DIMS);
        TRY(parse_int(parser, &out->dim[out->ndim++]));
    }
    if (!out->ndim) SYNTAX(parser, "a tensor has at least one dim");
    if (type_check(out) != OK) return prefix_place(parser, place);
    return OK;
}

static Status parse_type(Parser *parser, TensorType *out)
{
    *out = (TensorType){0};
    const char *name = word(parser);
    Place       place = place_of(parser, parser->at);
    if (!name || !dtype_parse(name, &out->dtype)) SYNTAX(parser, "expected a dtype, found %s", name ? name : "nothing");
    return parse_dims(parser, place, out);
}

/* Reads row numbers like ":3:5". */
static Status parse_rows(Parser *parser, const char *text, HfSource *hf)
{
    int64_t *ids = arena_array(parser->arena, int64_t, strlen(text) / 2 + 1);
    for (; *text == ':'; hf->rows++) {
        char *end;
        ids[hf->rows] = strtoll(text + 1, &end, 10);
        if (end == text + 1) SYNTAX(parser, "expected rows:number:number");
        text = end;
    }
    if (*text) SYNTAX(parser, "expected rows:number:number");
    hf->ids = ids;
    return OK;
}

static Status parse_hf(Parser *parser, HfSource *hf)
{
    char *kind = word(parser);
    char *colon = kind ? strchr(kind, ':') : NULL;
    if (!kind) SYNTAX(parser, "expected a kind after hf=");
    if (hf->num_names) SYNTAX(parser, "second hf= of a parameter");
    if (colon && strncmp(kind, "rows:", 5) == 0) {
        TRY(parse_rows(parser, colon, hf));
        *colon = 0;
    } else if (colon) {
        *colon = 0;
        long long a, b, c;
        if (sscanf(colon + 1, "%lld:%lld:%lld", &a, &b, &c) != 3) SYNTAX(parser, "expected slice:begin:rows:total");
        hf->begin = a;
        hf->rows = b;
        hf->total_rows = c;
    }
    int k = 0;
    while (k < HF_KIND_COUNT && strcmp(kind, hf_kind_names[k]) != 0) k++;
    if (k == HF_KIND_COUNT) SYNTAX(parser, "unknown hf kind %s", kind);
    hf->kind = (HfKind)k;
    int capacity = 0;
    for (skip_blanks(parser); parser->p < parser->end && *parser->p == '"'; skip_blanks(parser)) {
        if (hf->num_names == MAX_PIECES) SYNTAX(parser, "more than %d pieces", MAX_PIECES);
        hf->names = array_grow(parser->arena, hf->names, hf->num_names, &capacity, sizeof *hf->names);
        hf->names[hf->num_names++] = word(parser);
    }
    return OK;
}

/* Reads matrices=ROWS:ROWS:... */
static Status parse_matrices(Parser *parser, Param *param)
{
    char    *text = word(parser);
    int64_t *rows, period;
    int      count = 1;
    for (const char *p = text; p && *p; p++) count += *p == ':';
    if (!text || count > MAX_PIECES) SYNTAX(parser, "expected the rows of each of 1 to %d matrices, as 64:32:32", MAX_PIECES);
    param->matrices = rows = arena_array(parser->arena, int64_t, count);
    param->num_matrices = count;
    for (int i = 0; i < count; i++, text++) {
        rows[i] = strtoll(text, &text, 10);
        if (*text != (i + 1 < count ? ':' : 0)) SYNTAX(parser, "expected the rows of each matrix, as 64:32:32");
    }
    Status status = param_period(param, &period);
    return status == OK ? OK : prefix_place(parser, place_of(parser, parser->at));
}

static Status parse_init(Parser *parser, Param *param)
{
    char  *text = word(parser);
    char  *colon = text ? strchr(text, ':') : NULL;
    double number = 0;
    if (!text) SYNTAX(parser, "expected a kind after init=");
    if (colon) {
        *colon = 0;
        TRY(parse_double(parser, colon + 1, &number));
    }
    int k = 0;
    while (k < INIT_KIND_COUNT && strcmp(text, init_kind_names[k]) != 0) k++;
    if (k == INIT_KIND_COUNT) SYNTAX(parser, "unknown init %s", text);
    param->init = (InitKind)k;
    bool takes_number = init_takes_number(param->init);
    if (takes_number != (colon != NULL)) SYNTAX(parser, "init %s %s", text, takes_number ? "needs a number" : "takes no number");
    param->init_std = (float)number;
    return OK;
}

static Status parse_param(Parser *parser, Param *param)
{
    while (!take(parser, '}')) {
        if (at_line_end(parser)) SYNTAX(parser, "expected }");
        const ParamFlag *flag = param_flags;
        while (flag->name && !take_word(parser, flag->name)) flag++;
        if (flag->name)
            *(bool *)((char *)param + flag->offset) = true;
        else if (take_key(parser, "init"))
            TRY(parse_init(parser, param));
        else if (take_key(parser, "namespace"))
            param->ns = word(parser);
        else if (take_key(parser, "module"))
            param->module = word(parser);
        else if (take_key(parser, "matrices"))
            TRY(parse_matrices(parser, param));
        else if (take_key(parser, "hf"))
            TRY(parse_hf(parser, &param->hf));
        else
            SYNTAX(parser, "unknown property of a parameter");
    }
    return OK;
}

static Status parse_data(Parser *parser, Value *value)
{
    bool whole = value->type.dtype == DT_I64;
    if (value->kind != VALUE_CONST || !(whole || value->type.dtype == DT_F32) || !take(parser, '['))
        SYNTAX(parser, "expected data=[numbers] of an i64 or f32 constant");
    /* Each number takes a byte of text at least, so a short text can't make us allocate much. */
    if (type_numel(&value->type) > parser->end - parser->p) SYNTAX(parser, "expected %lld numbers", (long long)type_numel(&value->type));
    void *data = arena_alloc(parser->arena, (size_t)type_bytes(&value->type));
    for (int64_t i = 0; i < type_numel(&value->type); i++) {
        const char *text = whole ? NULL : word(parser);
        double      number = 0;
        if (whole) TRY(parse_int(parser, (int64_t *)data + i));
        if (!whole && !text) SYNTAX(parser, "expected a number, found nothing");
        if (!whole) TRY(parse_double(parser, text, &number));
        if (!whole) ((float *)data)[i] = (float)number;
    }
    if (!take(parser, ']')) SYNTAX(parser, "expected ] after %lld numbers", (long long)type_numel(&value->type));
    value->const_data = data;
    return OK;
}

static Status parse_space(Parser *parser, Space *out)
{
    int space;
    TRY(parse_choice(parser, "space", space_names, 0, SPACE_COUNT, "device or host", &space));
    *out = (Space)space;
    return OK;
}

static Status parse_stream(Parser *parser, Stream *out)
{
    int stream;
    TRY(parse_choice(parser, "stream", stream_names, 0, STREAM_COUNT, "compute, copy_in, copy_out or comm", &stream));
    *out = (Stream)stream;
    return OK;
}

static Status parse_hint(Parser *parser, Hint *out)
{
    int hint;
    TRY(parse_choice(parser, "hint", hint_names, HINT_NONE + 1, HINT_COUNT, "again or save", &hint));
    *out = (Hint)hint;
    return OK;
}

static Status parse_value_tail(Parser *parser, Value *value)
{
    while (!at_line_end(parser)) {
        if (take_key(parser, "space")) {
            TRY(parse_space(parser, &value->space));
            continue;
        }
        if (take_key(parser, "layer")) {
            TRY(parse_small(parser, "layer", MAX_LAYER, &value->layer));
            if (value->param && value->kind == VALUE_PARAM) value->param->layer = value->layer;
        } else if (take_key(parser, "base")) {
            const char *base = word(parser);
            Place       place = place_of(parser, parser->at);
            int64_t     offset = 0;
            if (!base || !take(parser, '@')) SYNTAX(parser, "expected base=NAME@offset");
            TRY(parse_int(parser, &offset));
            parser->views = array_grow(parser->arena, parser->views, parser->num_views, &parser->cap_views, sizeof *parser->views);
            parser->views[parser->num_views++] = (PendingView){value, base, offset, place};
        } else if (take_key(parser, "data")) {
            TRY(parse_data(parser, value));
        } else {
            SYNTAX(parser, "unknown property of value %s", value->name);
        }
    }
    return OK;
}

static Status parse_value(Parser *parser, ValueKind kind)
{
    const char *name = word(parser);
    Place       place = place_of(parser, parser->at);
    TensorType  type;
    if (name) TRY(check_name(parser, name, graph_find(parser->graph, name) != NULL));
    if (!name || !take(parser, ':')) SYNTAX(parser, "expected NAME: type");
    TRY(parse_type(parser, &type));
    /* A parameter has a {…} part somewhere on its line; a VALUE_PARAM without it is the packed base of others. */
    const char *eol = memchr(parser->p, '\n', (size_t)(parser->end - parser->p));
    size_t      rest = (size_t)((eol ? eol : parser->end) - parser->p);
    const char *brace = memchr(parser->p, '{', rest);
    Value      *value;
    if (kind == VALUE_PARAM && brace) {
        Param *param = arena_new(parser->arena, Param);
        param->name = name;
        param->type = type;
        param->layer = -1;
        const char *tail = parser->p;
        parser->p = brace + 1;
        TRY(parse_param(parser, param));
        if (!at_line_end(parser)) SYNTAX(parser, "unexpected text after }");
        value = graph_add_param(parser->graph, param);
        places_put(parser->arena, &parser->values, value->id, place);
        const char *end = parser->end, *after = parser->p;
        parser->p = tail;
        parser->end = brace;
        Status status = parse_value_tail(parser, value);
        parser->end = end;
        parser->p = after;
        return status;
    }
    value = graph_add_value(parser->graph, kind, name, &type);
    places_put(parser->arena, &parser->values, value->id, place);
    return parse_value_tail(parser, value);
}

/* Reads [numbers] into an attribute, replacing its old contents. */
static Status parse_list(Parser *parser, const char *name, AttrList *list)
{
    if (!take(parser, '[')) SYNTAX(parser, "attribute %s: expected [numbers]", name);
    *list = (AttrList){0};
    while (!take(parser, ']')) {
        const char *text = word(parser);
        if (!text) SYNTAX(parser, "attribute %s: expected a number", name);
        if (list->count == ATTR_LIST_MOST) SYNTAX(parser, "attribute %s: more than %d numbers", name, ATTR_LIST_MOST);
        TRY(parse_double(parser, text, &list->values[list->count++]));
    }
    return OK;
}

static Status parse_attrs(Parser *parser, const OpDef *op, char *attrs)
{
    while (!take(parser, '}')) {
        const char    *name = word(parser), *at = parser->at;
        const AttrDef *a = op->attrs;
        if (!name || !take(parser, '=')) SYNTAX(parser, "expected attribute=value");
        while (a && a->type != ATTR_TYPE_END && strcmp(a->name, name) != 0) a++;
        if (!a || a->type == ATTR_TYPE_END) return syntax_error(parser, at, "%s has no attribute %s", op->name, name);
        if (a->type == ATTR_TYPE_LIST) {
            TRY(parse_list(parser, name, (AttrList *)(void *)(attrs + a->offset)));
            continue;
        }
        const char *text = word(parser);
        if (!text) SYNTAX(parser, "attribute %s has no value", name);
        if (a->type == ATTR_TYPE_INT) {
            char *end;
            errno = 0;
            *(int64_t *)(void *)(attrs + a->offset) = strtoll(text, &end, 10);
            if (end == text || *end || errno) SYNTAX(parser, "attribute %s: expected an integer, found %s", name, text);
        }
        if (a->type == ATTR_TYPE_FLOAT) TRY(parse_double(parser, text, (double *)(void *)(attrs + a->offset)));
        if (a->type == ATTR_TYPE_BOOL) {
            bool yes = strcmp(text, "true") == 0;
            if (!yes && strcmp(text, "false") != 0) SYNTAX(parser, "attribute %s: expected true or false, found %s", name, text);
            *(bool *)(attrs + a->offset) = yes;
        }
        if (a->type == ATTR_TYPE_DTYPE) {
            DType dtype;
            if (!dtype_parse(text, &dtype)) SYNTAX(parser, "attribute %s: expected a dtype, found %s", name, text);
            *(int64_t *)(void *)(attrs + a->offset) = DTYPE_TO_ATTR(dtype);
        }
    }
    return OK;
}

static Status parse_after(Parser *parser, Node *node)
{
    const char  *name = word(parser);
    const Value *value = name ? graph_find(parser->graph, name) : NULL;
    if (!value || !value->producer || value->producer == node) SYNTAX(parser, "after=: no earlier node makes %s", name ? name : "");
    node_add_after(parser->graph, node, value->producer);
    return OK;
}

static Status parse_node_tail(Parser *parser, Node *node)
{
    while (!at_line_end(parser)) {
        const NodeFlag *flag = node_flags;
        while (flag->name && !take_word(parser, flag->name)) flag++;
        node->flags |= flag->bit;
        if (flag->name) continue;
        if (take_key(parser, "layer")) {
            TRY(parse_small(parser, "layer", MAX_LAYER, &node->layer));
        } else if (take_key(parser, "part")) {
            const char *part = word(parser);
            if (!part || !part_parse(part, &node->part)) SYNTAX(parser, "unknown part %s", part ? part : "");
        } else if (take_key(parser, "stream")) {
            TRY(parse_stream(parser, &node->stream));
        } else if (take_key(parser, "after")) {
            TRY(parse_after(parser, node));
        } else if (take_key(parser, "source")) {
            node->source = word(parser);
        } else {
            SYNTAX(parser, "unknown property of a node");
        }
    }
    for (int k = 0; k < node->num_out; k++) {
        Value *out = node->out[k];
        if (!out) continue;
        out->layer = node->layer;
        if (node->flags & NODE_ONCE && out->kind == VALUE_ACTIVATION) out->kind = VALUE_CONST;
    }
    return OK;
}

/* The outputs of a node as written on its line. */
typedef struct Outputs {
    const char *name[NODE_MAX_OUT]; /* "_": not wanted */
    TensorType  type[NODE_MAX_OUT];
    Value      *home[NODE_MAX_OUT];   /* NULL: memory of its own, or as the op says */
    int64_t     offset[NODE_MAX_OUT]; /* where the output begins in home, in elements */
    Space       space[NODE_MAX_OUT];
    Hint        hint[NODE_MAX_OUT];
    int         count;
    uint32_t    want;
} Outputs;

/* Reads "name: type" or "_". */
static Status parse_output(Parser *parser, Outputs *outputs)
{
    int         index = outputs->count;
    const char *name = word(parser);
    if (!name) SYNTAX(parser, "expected an output's name");
    outputs->name[index] = name;
    outputs->count++;
    if (strcmp(name, "_") == 0) return OK;
    bool taken = graph_find(parser->graph, name) != NULL;
    for (int k = 0; k < index; k++) taken = taken || strcmp(outputs->name[k], name) == 0;
    TRY(check_name(parser, name, taken));
    if (!take(parser, ':')) SYNTAX(parser, "expected : after %s", name);
    TRY(parse_type(parser, &outputs->type[index]));
    outputs->space[index] = SPACE_DEVICE;
    if (take_key(parser, "space")) TRY(parse_space(parser, &outputs->space[index]));
    if (take_key(parser, "hint")) TRY(parse_hint(parser, &outputs->hint[index]));
    if (take_key(parser, "home")) {
        const char *home = word(parser);
        outputs->home[index] = home ? graph_find(parser->graph, home) : NULL;
        if (!outputs->home[index]) SYNTAX(parser, "unknown home %s", home ? home : "");
        if (take(parser, '@')) TRY(parse_int(parser, &outputs->offset[index]));
    }
    outputs->want |= 1u << index;
    return OK;
}

static void add_outputs(Graph *graph, Node *node, const Outputs *outputs)
{
    for (int k = 0; k < outputs->count; k++) {
        if (!(outputs->want >> k & 1)) continue;
        Value *value = node_add_output(graph, node, k, outputs->name[k], &outputs->type[k]);
        if (!value->storage) value->space = outputs->space[k];
        value->hint = outputs->hint[k];
        if (outputs->home[k]) value_place_in(value, outputs->home[k], outputs->offset[k]);
    }
}

/* Reads a node: "name: type, _, name: type = op(a, _, b) {attr=value} layer=0 ...". */
static Status parse_node(Parser *parser)
{
    Graph  *graph = parser->graph;
    Outputs outputs = {0};
    int     num_in = 0;
    while (!take(parser, '=')) {
        if (outputs.count == NODE_MAX_OUT || at_line_end(parser)) SYNTAX(parser, "expected NAME: type, ... = op(...)");
        TRY(parse_output(parser, &outputs));
    }
    const char  *op_name = word(parser), *op_at = parser->at;
    const OpDef *op = NULL;
    for (int i = 0; op_name && i < graph->num_ops; i++)
        if (strcmp(graph->ops[i]->name, op_name) == 0) op = graph->ops[i];
    if (!op) SYNTAX(parser, "unknown op %s", op_name ? op_name : "");
    if (outputs.count > op->num_out) SYNTAX(parser, "%s has %d outputs", op->name, op->num_out);
    if (!take(parser, '(')) SYNTAX(parser, "expected ( after %s", op->name);
    Value *in[NODE_MAX_IN] = {0};
    while (!take(parser, ')')) {
        const char *name = word(parser);
        if (!name || num_in == op->num_in) SYNTAX(parser, "%s takes at most %d inputs", op->name, op->num_in);
        in[num_in++] = strcmp(name, "_") == 0 ? NULL : graph_find(graph, name);
        if (!in[num_in - 1] && strcmp(name, "_") != 0) SYNTAX(parser, "unknown value %s", name);
    }
    char *attrs = attrs_defaults(parser->arena, op);
    if (take(parser, '{')) TRY(parse_attrs(parser, op, attrs));
    Node *node;
    if (graph_add_node(graph, op, attrs, outputs.count ? outputs.name[0] : "_", in, num_in, 0, &node) != OK)
        return prefix_place(parser, place_of(parser, op_at));
    places_put(parser->arena, &parser->nodes, node->id, place_of(parser, op_at));
    add_outputs(graph, node, &outputs);
    return parse_node_tail(parser, node);
}

static Status parse_line(Parser *parser)
{
    const char *start = parser->p;
    if (take_word(parser, "output") && parser->p < parser->end && *parser->p == ' ') {
        const char *name = word(parser);
        const char *value = name && take(parser, '=') ? word(parser) : NULL;
        if (!value) SYNTAX(parser, "expected output NAME = VALUE");
        if (!graph_find(parser->graph, value)) SYNTAX(parser, "output %s: unknown value %s", name, value);
        TRY(check_name(parser, name, graph_output(parser->graph, name) != NULL));
        graph_add_output(parser->graph, name, graph_find(parser->graph, value));
        return OK;
    }
    parser->p = start;
    for (int k = 0; k < VALUE_KIND_COUNT; k++) {
        const char *before = parser->p;
        /* "input: f32[1] = op()" is a node whose output is named like a kind of value. */
        if (k != VALUE_ACTIVATION && take_word(parser, value_kind_names[k]) && parser->p < parser->end && *parser->p == ' ')
            return parse_value(parser, (ValueKind)k);
        parser->p = before;
    }
    return parse_node(parser);
}

static Status connect_views(Parser *parser)
{
    for (int i = 0; i < parser->num_views; i++) {
        PendingView *view = &parser->views[i];
        Value       *base = graph_find(parser->graph, view->base);
        if (!base) status_fail(ERR_INVALID, "view %s of unknown %s", view->value->name, view->base);
        if (!base) return prefix_place(parser, view->place);
        value_place_in(view->value, base, view->offset);
    }
    for (int i = 0; i < parser->num_views; i++) {
        const Value *value = parser->views[i].value;
        if (!value->storage->storage && !value->storage->producer) continue;
        status_fail(ERR_INVALID, "view %s: its base %s must be from outside and no view", value->name, value->storage->name);
        return prefix_place(parser, parser->views[i].place);
    }
    return OK;
}

/* The graph must pass graph_verify; the error points at the node or value at fault. */
static Status check_graph(const Parser *parser)
{
    const Node  *node = NULL;
    const Value *value = NULL;
    if (graph_verify_at(parser->graph, &node, &value) == OK) return OK;
    if (node) return prefix_place(parser, parser->nodes.items[node->id]);
    if (value) return prefix_place(parser, parser->values.items[value->id]);
    return status_prefix(ERR_INVALID, "%s", parser->file);
}

Status graph_parse(Arena *arena, const char *file, const char *text, size_t len, const OpDef *const *ops, int num_ops, Graph **out_graph)
{
    Parser parser = {.arena = arena, .file = file, .p = text, .end = text + len, .line = 1};
    while (parser.p < parser.end) {
        parser.line_start = parser.p;
        if (!at_line_end(&parser) && *parser.p != '#') {
            if (!parser.graph) {
                const char *name = take_word(&parser, "graph") ? word(&parser) : NULL;
                if (!name) SYNTAX(&parser, "expected graph \"NAME\" first");
                parser.graph = graph_create(arena, name, ops, num_ops);
                parser.graph->rows_alone = take_word(&parser, "rows_alone");
            } else {
                TRY(parse_line(&parser));
            }
            if (!at_line_end(&parser)) SYNTAX(&parser, "unexpected text at the end of the line");
        }
        while (parser.p < parser.end && *parser.p != '\n') parser.p++;
        parser.p++;
        parser.line++;
    }
    if (!parser.graph) FAIL(ERR_INVALID, "%s: no graph in it", file);
    TRY(connect_views(&parser));
    TRY(check_graph(&parser));
    *out_graph = parser.graph;
    return OK;
}

/* ---- samples of ops ---- */

/* Reads the type of a sample's input: [2,24,96], i32[2,24] below=7, f32[3,50] masked=40. */
static Status parse_sample_input(Parser *parser, int k, OpSample *out)
{
    skip_blanks(parser);
    out->in[k] = (TensorType){.dtype = DT_F32};
    TRY(*parser->p == '[' ? parse_dims(parser, place_of(parser, parser->p), &out->in[k]) : parse_type(parser, &out->in[k]));
    if (take_word(parser, "below")) {
        if (!take(parser, '=')) SYNTAX(parser, "expected below=NUMBER");
        TRY(parse_small(parser, "below", INT_MAX, &out->int_range[k]));
    }
    if (take_word(parser, "masked")) {
        if (!take(parser, '=')) SYNTAX(parser, "expected masked=COLUMN");
        TRY(parse_small(parser, "masked", INT_MAX, &out->masked[k]));
    }
    return OK;
}

static Status parse_sample(Parser *parser, const OpDef *op, OpSample *out)
{
    int   num_in = 0;
    char *attrs = attrs_defaults(parser->arena, op);
    *out = (OpSample){.attrs = attrs};
    while (!at_line_end(parser)) {
        if (take(parser, '{')) {
            TRY(parse_attrs(parser, op, attrs));
        } else if (take_word(parser, "rows_alone")) {
            out->rows_alone = true;
        } else if (take_word(parser, "tolerance")) {
            const char *text = take(parser, '=') ? word(parser) : NULL;
            if (!text) SYNTAX(parser, "expected tolerance=NUMBER");
            TRY(parse_double(parser, text, &out->tolerance));
        } else if (num_in == op->num_in) {
            SYNTAX(parser, "%s takes at most %d inputs", op->name, op->num_in);
        } else if (take_word(parser, "_")) {
            num_in++;
        } else {
            TRY(parse_sample_input(parser, num_in++, out));
        }
    }
    return OK;
}

Status op_samples_parse(Arena *arena, const OpDef *op, const char *text, OpSamples *out)
{
    *out = (OpSamples){0};
    if (!text) return OK;
    Parser parser = {
        .arena = arena, .file = arena_printf(arena, "%s's samples", op->name), .p = text, .end = text + strlen(text), .line = 1};
    int lines = 1;
    for (const char *p = text; *p; p++) lines += *p == '\n';
    out->items = arena_array(arena, OpSample, lines);
    for (; parser.p < parser.end; parser.p++, parser.line++) {
        parser.line_start = parser.p;
        TRY(parse_sample(&parser, op, &out->items[out->count]));
        out->count++;
    }
    return OK;
}
