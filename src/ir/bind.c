/* Instantiates a module's statements for one config: unrolls repeat, decides if, evaluates dims and attributes, and makes parameters and
 * nodes of a Graph from each statement. Errors say file:line of the statement. */
#include "ir/bind_internal.h"

#include "base/philox.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static Status bind_list(Binder *b, const JsonValue *list);

static int line_of(const Binder *b, size_t offset)
{
    int low = 0, high = b->num_lines;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        *((size_t)b->line_starts[middle] <= offset ? &low : &high) = middle;
    }
    return low + 1;
}

const char *bind_place(const Binder *b, const JsonValue *at)
{
    int line = line_of(b, at->offset);
    return b->source ? arena_printf(b->arena, "%s (%s:%d)", b->source, b->module->file, line)
                     : arena_printf(b->arena, "%s:%d", b->module->file, line);
}

Status bind_spend(Binder *b, const JsonValue *at, int64_t work)
{
    b->work -= work;
    int64_t most = b->options->max_work ? b->options->max_work : IR_MAX_WORK;
    if (b->work < 0) BIND_FAIL(b, at, "the module goes on without end: more than %lld JSON members worked on", (long long)most);
    return OK;
}

static Status lookup(const void *context, const char *name, const double *index, double *out)
{
    const Binder *b = context;
    for (int i = b->depth - 1; i >= 0 && !index; i--) {
        if (strcmp(b->index_name[i], name) != 0) continue;
        *out = b->index[i];
        return OK;
    }
    const struct {
        const char *name;
        int64_t     value;
    } shapes[] = {{"B", b->options->batch}, {"T", b->options->seq}, {"P", b->options->max_len}, {"reach", b->options->reach}};
    for (int i = 0; i < 4 && !index; i++) {
        if (strcmp(name, shapes[i].name) != 0) continue;
        *out = (double)shapes[i].value;
        return OK;
    }
    if (!b->module->architecture && !index && (strcmp(name, "V") == 0 || strcmp(name, "C") == 0)) {
        const Value *wide = graph_output(b->graph, *name == 'V' ? "logits" : "hidden");
        FAIL_IF(!wide, ERR_INVALID, "symbol C: the model has no output \"hidden\"");
        *out = (double)type_cols(&wide->type);
        return OK;
    }
    if (!index && strcmp(name, "bf16") == 0 && !ir_dims_get(&b->dims, name, out)) { /* a module's own symbol bf16 goes first */
        *out = b->options->dtype == DT_BF16;
        return OK;
    }
    return ir_dims_at(&b->dims, name, index, out);
}

Status bind_eval(Binder *b, const JsonValue *value, double *out)
{
    Status status = OK;
    if (value->type == JSON_INT)
        *out = (double)value->integer;
    else if (value->type == JSON_DOUBLE)
        *out = value->number;
    else if (value->type == JSON_BOOL)
        *out = value->boolean;
    else if (value->type == JSON_STRING && strlen(value->string.data) != value->string.len)
        status = status_fail(ERR_INVALID, "an expression with a NUL in it");
    else if (value->type == JSON_STRING)
        status = expr_eval(value->string.data, lookup, b, out);
    else
        status = status_fail(ERR_INVALID, "expected a number or an expression, found %s", json_type_name(value->type));
    if (status != OK) return status_prefix(status, "%s", bind_place(b, value));
    if (!isfinite(*out))
        BIND_FAIL(b, value, "%s is %g, expected a finite number", value->type == JSON_STRING ? value->string.data : "it",
                  isnan(*out) ? (double)NAN : *out); /* prints the -nan of 0 / 0 as nan */
    return OK;
}

Status bind_int(Binder *b, const JsonValue *value, int64_t *out)
{
    double number;
    TRY(bind_eval(b, value, &number));
    if (!(number == floor(number) && fabs(number) < 9e15))
        BIND_FAIL(b, value, "%g isn't a whole number%s%s", number, value->type == JSON_STRING ? ": " : "",
                  value->type == JSON_STRING ? value->string.data : "");
    *out = (int64_t)number;
    return OK;
}

Status bind_as(Status status, const char *what, const char *name, int which)
{
    if (status == OK) return OK;
    status_fail(status, "%s, as %s%s", status_message(), what, name);
    return which < 0 ? status : status_fail(status, "%s[%d]", status_message(), which);
}

Status bind_text(Binder *b, const JsonValue *value, const char **out)
{
    if (value->type != JSON_STRING) BIND_FAIL(b, value, "expected a name, found %s", json_type_name(value->type));
    if (value->string.len > MODULE_NAME_BYTES || strlen(value->string.data) != value->string.len)
        BIND_FAIL(b, value, "a name of %zu bytes; expected 1 to %d without NUL", value->string.len, MODULE_NAME_BYTES);
    StrBuf      text = {0};
    const char *p = value->string.data;
    Status      status = OK;
    while (*p && status == OK) {
        if (*p != '{') {
            strbuf_putc(&text, *p++);
            continue;
        }
        const char *close = strchr(p, '}');
        JsonValue   inner = {.type = JSON_STRING, .offset = value->offset};
        if (!close) {
            status = status_fail(ERR_INVALID, "%s: { without } in \"%s\"", bind_place(b, value), value->string.data);
            break;
        }
        inner.string.len = (size_t)(close - p - 1);
        inner.string.data = arena_strndup(b->arena, p + 1, inner.string.len);
        int64_t number = 0;
        status = bind_int(b, &inner, &number);
        strbuf_printf(&text, "%lld", (long long)number);
        p = close + 1;
    }
    if (status == OK && !name_is_plain(strbuf_cstr(&text), MODULE_NAME_BYTES))
        status = status_fail(ERR_INVALID, "%s: \"%.100s\" isn't fit for a name: empty, too long, or with blanks or one of ,()[]{}=\"@:#\\",
                             bind_place(b, value), strbuf_cstr(&text));
    *out = arena_strdup(b->arena, strbuf_cstr(&text));
    strbuf_deinit(&text);
    return status;
}

const char *bind_own_name(const Binder *b, const char *name)
{
    return *b->prefix ? arena_printf(b->arena, "%s%s", b->prefix, name) : name;
}

/* Finds a value that the module itself named, or an input; NULL: none. */
static Value *find_value(const Binder *b, const char *name)
{
    for (int i = b->num_scope - 1; i >= 0; i--)
        if (strcmp(b->scope[i].name, name) == 0) return b->scope[i].value;
    Value *own = graph_find(b->graph, bind_own_name(b, name)), *input = *b->prefix && !own ? graph_find(b->graph, name) : NULL;
    return input && input->kind == VALUE_INPUT ? input : own;
}

static Status bind_namespace(const Binder *b, const char *name);

/* Finds a value by name. An objective may also name an output of the model or, as "teacher.logits", of a namespace. */
static Status find_read(Binder *b, const JsonValue *at, const char *name, Value **out)
{
    const char *dot = strchr(name, '.');
    *out = NULL;
    if (!b->module->architecture) {
        for (int i = 0; dot && i < b->model->num_namespaces; i++) {
            const IrNamespace *named = &b->model->namespaces[i];
            bool is_named = strlen(named->name) == (size_t)(dot - name) && strncmp(named->name, name, strlen(named->name)) == 0;
            if (is_named) TRY(bind_namespace(b, named->name));
        }
        *out = graph_output(b->graph, name);
    }
    if (!*out) *out = find_value(b, name);
    if (*out) return OK;
    if (b->module->architecture) BIND_FAIL(b, at, "no value is named %s here", name);
    StrBuf known = {0};
    for (int i = 0; i < b->graph->num_outputs; i++) strbuf_printf(&known, "%s%s", i ? ", " : "", b->graph->outputs[i].name);
    status_fail(ERR_INVALID, "no value is named %s here; an objective reads inputs, what it computes, and outputs of the model: %s%s", name,
                strbuf_cstr(&known),
                b->model->num_namespaces ? "" : "; teacher_model names the model whose outputs are teacher.logits and the like");
    strbuf_deinit(&known);
    return status_prefix(ERR_INVALID, "%s", bind_place(b, at));
}

static Status bind_value(Binder *b, const JsonValue *name_json, Value **out)
{
    const char *name;
    TRY(bind_text(b, name_json, &name));
    return find_read(b, name_json, name, out);
}

static Status push_scope(Binder *b, const JsonValue *at, const char *name, Value *value)
{
    if (b->num_scope == BIND_MAX_NAMES) BIND_FAIL(b, at, "more than %d names carried", BIND_MAX_NAMES);
    b->scope[b->num_scope++] = (Scope){name, value};
    return OK;
}

Status bind_flag(Binder *b, const JsonValue *s, const char *key, bool *out)
{
    const JsonValue *value = json_get(s, key);
    if (value && !json_get_bool(s, key, out)) BIND_FAIL(b, value, "%s: expected true or false, found %s", key, json_type_name(value->type));
    return OK;
}

Status bind_dtype(Binder *b, const JsonValue *s, const char *key, DTypeSet more, DType *out)
{
    const JsonValue *value = json_get(s, key);
    if (value->type != JSON_STRING || !dtype_parse(value->string.data, out) || !(DT_SET(*out) & (DT_SET_FLOAT | more)))
        BIND_FAIL(b, value, "%s: expected f32 or bf16%s", key, more ? " or i32" : "");
    return OK;
}

/* Reads a statement's "source", which messages then quote: its line of the DSL, without control characters and no longer than a name. */
Status bind_source(Binder *b, const JsonValue *s)
{
    const JsonValue *source = json_get(s, "source");
    if (!source) return OK;
    bool is_plain = source->type == JSON_STRING && source->string.len > 0 && source->string.len <= GRAPH_NAME_BYTES;
    for (size_t i = 0; is_plain && i < source->string.len; i++)
        is_plain = (unsigned char)source->string.data[i] >= ' ' && source->string.data[i] != 127;
    if (!is_plain) BIND_FAIL(b, source, "source: expected FILE:LINE, of at most %d bytes without control characters", GRAPH_NAME_BYTES);
    b->source = source->string.data;
    return OK;
}

/* ---- nodes ---- */

/* {"per": count, "value": e}: a list of `count` numbers; the expression `value` may use the index i. */
static Status bind_attr_list(Binder *b, const JsonValue *json, const char *name, AttrList *list)
{
    const JsonValue *per = json_get(json, "per"), *value = json_get(json, "value");
    if (!per || !value || json->count != 2) BIND_FAIL(b, json, "attribute %s: expected {\"per\": e, \"value\": e}", name);
    TRY(bind_as(bind_int(b, per, &list->count), "the number of those of attribute ", name, -1));
    if (list->count < 0 || list->count > ATTR_LIST_MOST)
        BIND_FAIL(b, per, "attribute %s: %lld numbers; expected 0 to %d", name, (long long)list->count, ATTR_LIST_MOST);
    if (b->depth == BIND_MAX_DEPTH) BIND_FAIL(b, json, "attribute %s: repeats nested deeper than %d", name, BIND_MAX_DEPTH - 1);
    TRY(bind_spend(b, json, list->count));
    b->index_name[b->depth++] = "i";
    for (int64_t i = 0; i < list->count; i++) {
        b->index[b->depth - 1] = (double)i;
        TRY(bind_as(bind_eval(b, value, &list->values[i]), "attribute ", name, (int)i));
    }
    b->depth--;
    return OK;
}

static Status no_attribute(Binder *b, const JsonValue *at, const OpDef *op, const char *name)
{
    StrBuf known = {0};
    for (const AttrDef *a = op->attrs; a && a->type != ATTR_TYPE_END; a++) strbuf_printf(&known, "%s%s", known.len ? ", " : "", a->name);
    status_fail(ERR_INVALID, "%s has no attribute %s; it has %s", op->name, name, known.len ? strbuf_cstr(&known) : "none");
    strbuf_deinit(&known);
    return status_prefix(ERR_INVALID, "%s", bind_place(b, at));
}

static Status bind_attrs(Binder *b, const JsonValue *json, const OpDef *op, char *attrs)
{
    if (json && json->type != JSON_OBJECT) BIND_FAIL(b, json, "attrs: expected an object, found %s", json_type_name(json->type));
    for (uint32_t i = 0; json && i < json->count; i++) {
        const AttrDef *a = op->attrs;
        const char    *name = json->members[i].key.data;
        while (a && a->type != ATTR_TYPE_END && strcmp(a->name, name) != 0) a++;
        if (!a || a->type == ATTR_TYPE_END) return no_attribute(b, &json->members[i].value, op, name);
        double  number;
        int64_t whole;
        if (a->type == ATTR_TYPE_INT) {
            TRY(bind_as(bind_int(b, &json->members[i].value, &whole), "attribute ", name, -1));
            *(int64_t *)(void *)(attrs + a->offset) = whole;
            continue;
        }
        if (a->type == ATTR_TYPE_DTYPE) {
            DType dtype;
            TRY(bind_dtype(b, json, name, op->cpu[0].dtypes & DT_SET(DT_I32), &dtype));
            *(int64_t *)(void *)(attrs + a->offset) = DTYPE_TO_ATTR(dtype);
            continue;
        }
        if (a->type == ATTR_TYPE_LIST) {
            TRY(bind_attr_list(b, &json->members[i].value, name, (AttrList *)(void *)(attrs + a->offset)));
            continue;
        }
        TRY(bind_as(bind_eval(b, &json->members[i].value, &number), "attribute ", name, -1));
        if (fabs(number) > FLT_MAX)
            BIND_FAIL(b, &json->members[i].value, "attribute %s is %g, expected a number that fp32 can hold", name, number);
        if (a->type == ATTR_TYPE_FLOAT) *(double *)(void *)(attrs + a->offset) = number;
        if (a->type == ATTR_TYPE_BOOL) *(bool *)(attrs + a->offset) = number != 0;
    }
    return OK;
}

static const OpDef *find_op(const Binder *b, const JsonValue *name)
{
    for (int i = 0; name->type == JSON_STRING && i < b->options->num_ops; i++)
        if (str_equal(name->string, b->options->ops[i]->name)) return b->options->ops[i];
    return NULL;
}

static Status unknown_op(Binder *b, const JsonValue *name)
{
    int          count = b->options->num_ops;
    const char **names = arena_array(b->arena, const char *, count + 1), *text = name->type == JSON_STRING ? name->string.data : "";
    for (int i = 0; i < count; i++) names[i] = b->options->ops[i]->name;
    const char *near = nearest_name(text, names, (size_t)count);
    BIND_FAIL(b, name, "unknown op %.100s; %s%s%s", text, near ? "did you mean " : "`surogate ops` lists them", near ? near : "",
              near ? "?" : "");
}

static Status bind_op(Binder *b, const JsonValue *s)
{
    const JsonValue *op_name = json_get(s, "op"), *in = json_get(s, "in"), *out = json_get(s, "out");
    const OpDef     *op = find_op(b, op_name);
    if (!op) return unknown_op(b, op_name);
    if (b->ns && op->flags & OP_RANDOM)
        BIND_FAIL(b, s, "%s in the %s model, which isn't trained and draws nothing; take its IR without it", op->name, b->ns);
    if (!in || in->type != JSON_ARRAY)
        BIND_FAIL(b, s, "%s: expected \"in\" with at most %d names, found %s", op->name, op->num_in,
                  in ? json_type_name(in->type) : "none");
    if (in->count > op->num_in) BIND_FAIL(b, s, "%s: expected \"in\" with at most %d names, found %u", op->name, op->num_in, in->count);
    if (!out || out->type != JSON_STRING) BIND_FAIL(b, s, "%s: expected \"out\", a name", op->name);
    Value *values[NODE_MAX_IN] = {0};
    for (uint32_t i = 0; i < in->count; i++)
        if (in->items[i].type != JSON_NULL) TRY(bind_value(b, &in->items[i], &values[i]));
    const char *name, *part = NULL;
    TRY(bind_text(b, out, &name));
    if (find_value(b, name)) BIND_FAIL(b, out, "second value named %s", name);
    name = bind_own_name(b, name);
    TRY(bind_spend(b, s, (int64_t)op->attrs_size / 64)); /* attributes with lists are large */
    char *attrs = attrs_defaults(b->arena, op);
    for (const AttrDef *a = op->attrs; a && a->type != ATTR_TYPE_END; a++)
        if (a->of_node) *(int64_t *)(void *)(attrs + a->offset) = (int64_t)philox_name_key(name);
    TRY(bind_attrs(b, json_get(s, "attrs"), op, attrs));
    b->graph->part = b->depth ? PART_BLOCK : PART_NONE;
    if (json_get(s, "part") && (!json_get_str(s, "part", &part) || !part_parse(part, &b->graph->part)))
        BIND_FAIL(b, json_get(s, "part"), "unknown part %.100s; expected norm, qkv, att, ffn, swiglu or block", part ? part : "");
    b->graph->source = b->source ? b->source : bind_place(b, s);
    Node *node;
    bool  is_saved = false;
    TRY(bind_flag(b, s, "save", &is_saved));
    TRY(graph_add_node(b->graph, op, attrs, name, values, (int)in->count, ~0u, &node));
    for (int k = 0; k < node->num_out && json_get(s, "save"); k++)
        if (node->out[k]) node->out[k]->hint = is_saved ? HINT_SAVE : HINT_AGAIN;
    return OK;
}

/* ---- control ---- */

static Status bind_repeat(Binder *b, const JsonValue *s)
{
    const JsonValue *body = json_get(s, "body"), *carry = json_get(s, "carry"), *yield = json_get(s, "yield");
    const char      *index;
    int64_t          count;
    TRY(bind_as(bind_int(b, json_get(s, "repeat"), &count), "repeat", "", -1));
    if (!json_get_str(s, "index", &index) || !body || body->type != JSON_ARRAY) BIND_FAIL(b, s, "repeat: expected \"index\" and \"body\"");
    if (count < 0) BIND_FAIL(b, s, "repeat: %lld times, expected 0 or more", (long long)count);
    if (b->depth == BIND_MAX_DEPTH) BIND_FAIL(b, s, "repeat nested deeper than %d", BIND_MAX_DEPTH);
    if ((carry && carry->type != JSON_OBJECT) || (yield && yield->type != JSON_OBJECT))
        BIND_FAIL(b, s, "repeat: carry and yield are objects");
    int first = b->num_scope;
    for (uint32_t i = 0; carry && i < carry->count; i++) {
        Value *value;
        TRY(bind_value(b, &carry->members[i].value, &value));
        TRY(push_scope(b, s, carry->members[i].key.data, value));
    }
    if (!b->depth && !b->ns && b->options->max_layers && count > b->options->max_layers) count = b->options->max_layers;
    int outer_layer = b->graph->layer, carried = b->num_scope;
    b->index_name[b->depth++] = index;
    for (int64_t i = 0; i < count; i++) {
        TRY(bind_spend(b, s, 1 + (yield ? (int64_t)yield->count * (carried - first) : 0)));
        b->index[b->depth - 1] = (double)i;
        if (b->depth == 1) b->graph->layer = (int)(b->num_layers + i);
        TRY(bind_list(b, body));
        Value *next[BIND_MAX_NAMES];
        for (int k = first; k < carried; k++) {
            const JsonValue *name = yield ? json_get(yield, b->scope[k].name) : NULL;
            if (!name) BIND_FAIL(b, s, "repeat: \"yield\" has no %s", b->scope[k].name);
            TRY(bind_value(b, name, &next[k]));
        }
        b->num_scope = carried;
        for (int k = first; k < carried; k++) b->scope[k].value = next[k];
    }
    if (!--b->depth) b->num_layers += count;
    b->graph->layer = outer_layer;
    return OK; /* the carried names stay in scope, with their last values */
}

static Status bind_if(Binder *b, const JsonValue *s)
{
    double           holds;
    const JsonValue *then = json_get(s, "then"), *otherwise = json_get(s, "else");
    TRY(bind_eval(b, json_get(s, "if"), &holds));
    const JsonValue *chosen = holds != 0 ? then : otherwise;
    return chosen ? bind_list(b, chosen) : OK;
}

/* Reads a let or an output: a name, and the value that it "is". */
static Status bind_named(Binder *b, const JsonValue *s, const char *what, const char **out_name, Value **out_value)
{
    const JsonValue *is = json_get(s, "is");
    if (!json_get_str(s, what, out_name) || !name_is_plain(*out_name, MODULE_NAME_BYTES)) BIND_FAIL(b, s, "%s: expected a name", what);
    if (!is) BIND_FAIL(b, s, "%s: expected \"is\"", what);
    return bind_value(b, is, out_value);
}

static Status bind_let(Binder *b, const JsonValue *s)
{
    const char *name;
    Value      *value;
    TRY(bind_named(b, s, "let", &name, &value));
    return push_scope(b, s, name, value);
}

/* Checks an output's type: logits are (B,T,V), losses f32 (B,T), as sampling and evaluation expect. */
static Status check_output(Binder *b, const JsonValue *s, const char *name, const TensorType *type)
{
    const IrSymbol *vocab = NULL;
    char            text[64];
    bool            is_scalar = type->dtype == DT_F32 && type->ndim == 1 && type->dim[0] == 1;
    if (!b->module->architecture && strcmp(name, "losses") != 0 && !is_scalar)
        BIND_FAIL(b, s, "output %s is %s, expected f32[1]: an objective tells numbers, and losses of tokens", name, type_text(type, text));
    TRY(ir_module_role(b->module, &b->dims, IR_ROLE_VOCABULARY, &vocab));
    TensorType rows = type_make(DT_F32, 2, b->options->batch, b->options->seq);
    if (strcmp(name, "losses") == 0 && !type_equal(type, &rows))
        BIND_FAIL(b, s, "output losses is %s, expected f32[%lld,%lld]: the rows and their tokens", type_text(type, text),
                  (long long)rows.dim[0], (long long)rows.dim[1]);
    bool fits = type->ndim == 3 && type->dim[0] == rows.dim[0] && type->dim[1] == rows.dim[1];
    if (strcmp(name, "logits") == 0 && vocab && !(fits && (double)type->dim[2] == vocab->value))
        BIND_FAIL(b, s, "output logits is %s, expected [%lld,%lld,%lld]: the rows, their tokens and the vocabulary %s",
                  type_text(type, text), (long long)rows.dim[0], (long long)rows.dim[1], (long long)vocab->value, vocab->name);
    return OK;
}

static Status bind_output(Binder *b, const JsonValue *s)
{
    const char *name;
    Value      *value;
    TRY(bind_named(b, s, "output", &name, &value));
    TRY(check_output(b, s, name, &value->type));
    if (b->ns) name = bind_own_name(b, name);
    if (b->is_fallback && graph_output(b->graph, name)) return OK;
    if (graph_output(b->graph, name))
        BIND_FAIL(b, s, "second output named %s%s", name,
                  b->model != b->module ? ": the model's outputs count too, take another name" : "");
    graph_add_output(b->graph, name, value);
    return OK;
}

/* Kinds of statement: a statement with a member named `kind` is of that kind. `members`: its other members, with spaces around each. */
static const struct {
    const char *kind, *members;
    Status (*bind)(Binder *b, const JsonValue *s);
} statements[] = {
    {"param", " shape hf export untied init module linear matrices head decay frozen dtype source ", bind_param},
    {"op", " in out attrs part save source ", bind_op},
    {"repeat", " index carry body yield source ", bind_repeat},
    {"if", " then else source ", bind_if},
    {"let", " is source ", bind_let},
    {"output", " is source ", bind_output},
};

static bool is_listed(const char *words, const char *key)
{
    size_t len = strlen(key);
    for (const char *word = words; (word = strchr(word, ' ')) && *++word;)
        if (strncmp(word, key, len) == 0 && word[len] == ' ') return true;
    return false;
}

static bool is_named(const char *message, const char *name)
{
    size_t len = strlen(name);
    for (const char *at = message; (at = strstr(at, name)); at++)
        if ((at == message || at[-1] == ' ' || at[-1] == '"') && strchr(" ,:;\"", at[len])) return true;
    return false;
}

/* A statement within repeats runs many times: the message says which time, by the name of its output or by the indexes. */
static Status say_which(Binder *b, const JsonValue *s, Status status)
{
    const char      *message = arena_strdup(b->arena, status_message()), *name;
    const JsonValue *made = json_get(s, "op") ? json_get(s, "out") : json_get(s, "param");
    if (made && bind_text(b, made, &name) == OK)
        return is_named(message, name) ? status_fail(status, "%s", message) : status_fail(status, "%s, in %s", message, name);
    status_fail(status, "%s", message);
    for (int i = 0; i < b->depth; i++)
        status_fail(status, "%s%s%s = %g", status_message(), i ? ", " : ", where ", b->index_name[i], b->index[i]);
    return status;
}

static Status bind_statement(Binder *b, const JsonValue *s)
{
    if (s->type != JSON_OBJECT) BIND_FAIL(b, s, "expected a statement, found %s", json_type_name(s->type));
    TRY(bind_spend(b, s, 1 + (int64_t)s->count));
    for (size_t i = 0; i < sizeof statements / sizeof *statements; i++) {
        if (!json_get(s, statements[i].kind)) continue;
        for (uint32_t k = 0; k < s->count; k++) {
            const char *key = s->members[k].key.data;
            if (strcmp(key, statements[i].kind) != 0 && !is_listed(statements[i].members, key))
                BIND_FAIL(b, &s->members[k].value, "%s has no \"%.100s\"; it may have%s", statements[i].kind, key, statements[i].members);
        }
        const char *outer = b->source;
        int         depth = b->depth;
        TRY(bind_source(b, s));
        Status status = statements[i].bind(b, s);
        if (status != OK && b->is_said) return status;
        if (status != OK) {
            b->is_said = true;
            b->depth = depth;
            return say_which(b, s, status);
        }
        b->source = outer;
        return OK;
    }
    BIND_FAIL(b, s, "unknown statement; expected param, op, repeat, if, let or output");
}

static Status bind_list(Binder *b, const JsonValue *list)
{
    if (list->type != JSON_ARRAY) BIND_FAIL(b, list, "expected an array of statements");
    for (uint32_t i = 0; i < list->count; i++) TRY(bind_statement(b, &list->items[i]));
    return OK;
}

static Status add_own_inputs(Binder *b)
{
    for (int i = 0; i < b->module->num_inputs; i++) {
        const OwnInput *own = &b->module->inputs[i];
        TensorType      type = type_make(own->dtype, own->size > 1 ? 3 : 2, b->options->batch, b->options->seq, own->size);
        bool            is_taken = graph_find(b->graph, own->name) != NULL;
        for (int k = 0; k < FEED_COUNT; k++) is_taken = is_taken || strcmp(own->name, feed_info((Feed)k)->name) == 0;
        FAIL_IF(is_taken, ERR_INVALID, "%s: inputs: %s is there already, or the engine's; give it another name", b->module->file,
                own->name);
        graph_add_value(b->graph, VALUE_INPUT, own->name, &type);
    }
    return OK;
}

static void find_lines(Binder *b)
{
    b->line_starts = arena_array(b->arena, int, b->module->len + 2);
    b->num_lines = 1;
    for (size_t i = 0; i < b->module->len; i++)
        if (b->module->text[i] == '\n') b->line_starts[b->num_lines++] = (int)i + 1;
}

/* Binds the statements of b->module; b->dims already holds its symbols. */
static Status bind_module(Binder *b)
{
    b->work = b->options->max_work ? b->options->max_work : IR_MAX_WORK;
    find_lines(b);
    TRY(bind_list(b, json_get(&b->module->root, "graph")));
    TRY(bind_check_rows(b));
    b->graph->part = PART_NONE;
    b->graph->source = NULL;
    b->graph->layer = -1;
    return OK;
}

/* Binds the model itself, into a new graph. */
static Status bind_model(Binder *b, Arena *arena, const IrModule *model, const JsonValue *config, const char *config_name,
                         const BindOptions *options)
{
    *b = (Binder){.arena = arena, .module = model, .model = model, .prefix = "", .options = options};
    TRY(ir_module_dims(arena, model, config, config_name, &b->dims));
    b->graph = graph_create(arena, options->graph_name, options->ops, options->num_ops);
    for (int i = 0; i < FEED_COUNT; i++)
        if (feed_info((Feed)i)->shape == FEED_CELLS || feed_info((Feed)i)->shape == FEED_NUMBERS)
            graph_add_feed(b->graph, (Feed)i, options->batch,
                           options->seq); /* feeds of other shapes are added by the passes that use them */
    TRY(add_own_inputs(b));
    return bind_module(b);
}

/* Binds the model of that name in front of all other nodes, so that its outputs are ready before the model's own activations pile up.
 * Its layers are numbered after the layers already in the graph. */
static Status bind_namespace(const Binder *b, const char *name)
{
    const IrNamespace *second = b->model->namespaces;
    while (strcmp(second->name, name) != 0) second++;
    Binder s = {.arena = b->arena,
                .module = second->module,
                .model = second->module,
                .prefix = arena_printf(b->arena, "%s.", name),
                .ns = name,
                .options = b->options,
                .graph = b->graph};
    if (graph_output(b->graph, arena_printf(b->arena, "%slogits", s.prefix))) return OK;
    for (int i = 0; i < b->graph->num_values; i++)
        if (b->graph->values[i]->layer >= s.num_layers) s.num_layers = b->graph->values[i]->layer + 1;
    TRY(ir_module_dims(b->arena, second->module, second->config, second->config_name, &s.dims));
    Node *cursor = b->graph->cursor;
    b->graph->cursor = b->graph->first;
    TRY(bind_module(&s));
    b->graph->cursor = cursor;
    return OK;
}

/* Binds an objective to the outputs of b's model, with that model's symbols. */
static Status bind_objective(const Binder *b, const IrModule *objective, bool is_fallback)
{
    bool   is_named = graph_find(b->graph, "loss") || graph_find(b->graph, "losses");
    Binder o = {.arena = b->arena,
                .module = objective,
                .model = b->module,
                .prefix = !is_named     ? ""
                          : is_fallback ? "sft."
                                        : "objective.",
                .is_fallback = is_fallback,
                .options = b->options,
                .graph = b->graph,
                .dims = b->dims};
    TRY(bind_module(&o));
    for (int i = 0; i < b->module->num_namespaces && !is_fallback; i++) {
        const char *name = b->module->namespaces[i].name;
        FAIL_IF(!graph_output(b->graph, arena_printf(b->arena, "%s.logits", name)), ERR_INVALID,
                "%s reads nothing of the %s model; take another objective, or remove %s_model", objective->file, name, name);
    }
    return OK;
}

Status ir_module_bind(Arena *arena, const IrModule *module, const JsonValue *config, const char *config_name, const BindOptions *options,
                      Graph **out_graph)
{
    Binder b;
    TRY(bind_model(&b, arena, module, config, config_name, options));
    *out_graph = b.graph;
    return OK;
}

Status ir_program_bind(Arena *arena, const IrModule *module, const JsonValue *config, const char *config_name, const BindOptions *options,
                       const char *want, Graph **out_graph)
{
    Binder b;
    TRY(bind_model(&b, arena, module, config, config_name, options));
    *out_graph = b.graph;
    if (module->objective) {
        graph_drop_output(b.graph, "loss");
        graph_drop_output(b.graph, "losses");
    }
    if (graph_output(b.graph, want)) return OK;
    if (module->objective) TRY(bind_objective(&b, module->objective, false));
    if (graph_output(b.graph, want) || !graph_output(b.graph, "logits")) return OK;
    IrModule *sft;
    TRY(ir_shipped_objective(arena, &sft));
    return bind_objective(&b, sft, true);
}
