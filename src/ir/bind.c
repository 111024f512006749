/* Instantiates a module's statements for one config: repeat is unrolled, if decided, dims and attributes evaluated, and each
 * statement becomes parameters and nodes of a Graph. Errors say file:line of the statement. */
#include "ir/expr.h"
#include "ir/graph_internal.h"
#include "ir/module.h"

#include "base/philox.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BIND_MAX_DEPTH = 16, BIND_MAX_NAMES = 64, BIND_MAX_PIECES = 4096 };

/* A name that stands for a value for a while: what a repeat carries, a let. */
typedef struct Scope {
    const char *name;
    Value      *value;
} Scope;

typedef struct Binder {
    Arena             *arena;
    const IrModule    *module;
    const IrModule    *model;       /* that namespaces are said of */
    const char        *prefix;      /* of the names of values; "": none */
    const char        *ns;          /* of parameters and outputs; NULL: the model's own */
    bool               is_fallback; /* outputs that are there stay */
    const BindOptions *options;
    Graph             *graph;
    IrDims             dims;
    const char        *index_name[BIND_MAX_DEPTH];
    double             index[BIND_MAX_DEPTH];
    int                depth;
    int64_t            num_layers; /* turns of the outermost repeats before this one */
    Scope              scope[BIND_MAX_NAMES];
    int                num_scope;
    int               *line_starts; /* byte offsets */
    int                num_lines;
    const char        *source; /* file:line of the DSL that the statement was made of; NULL: it doesn't say */
    int64_t            work;   /* left */
    struct Rows       *rows;   /* of tensors of a model folder, that parameters are */
    int                num_rows, cap_rows;
} Binder;

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

/* For messages: "model.json:12", or "model.py:7 (model.json:12)". */
static const char *place_of(const Binder *b, const JsonValue *at)
{
    int line = line_of(b, at->offset);
    return b->source ? arena_printf(b->arena, "%s (%s:%d)", b->source, b->module->file, line)
                     : arena_printf(b->arena, "%s:%d", b->module->file, line);
}

#define BIND_FAIL(b, at, ...) \
    do { \
        status_fail(ERR_INVALID, __VA_ARGS__); \
        return status_prefix(ERR_INVALID, "%s", place_of((b), (at))); \
    } while (0)

/* Statements and turns of repeats cost work, so that no module of a few lines fills the memory or runs for ever. */
static Status spend(Binder *b, const JsonValue *at, int64_t work)
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
    if (!index && strcmp(name, "bf16") == 0 && !ir_dims_get(&b->dims, name, out)) { /* modules may have a symbol of that name */
        *out = b->options->dtype == DT_BF16;
        return OK;
    }
    return ir_dims_at(&b->dims, name, index, out);
}

/* A number, a boolean, or a text that is an expression. */
static Status eval(Binder *b, const JsonValue *value, double *out)
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
    if (status != OK) return status_prefix(status, "%s", place_of(b, value));
    if (!isfinite(*out))
        BIND_FAIL(b, value, "%s is %g, expected a finite number", value->type == JSON_STRING ? value->string.data : "it", *out);
    return OK;
}

static Status eval_int(Binder *b, const JsonValue *value, int64_t *out)
{
    double number;
    TRY(eval(b, value, &number));
    if (!(number == floor(number) && fabs(number) < 9e15))
        BIND_FAIL(b, value, "%g isn't a whole number%s%s", number, value->type == JSON_STRING ? ": " : "",
                  value->type == JSON_STRING ? value->string.data : "");
    *out = (int64_t)number;
    return OK;
}

/* Replaces each {expression} by its whole value: "blocks.{i}.q". */
static Status expand(Binder *b, const JsonValue *value, const char **out)
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
            status = status_fail(ERR_INVALID, "%s: { without } in \"%s\"", place_of(b, value), value->string.data);
            break;
        }
        inner.string.len = (size_t)(close - p - 1);
        inner.string.data = arena_strndup(b->arena, p + 1, inner.string.len);
        int64_t number = 0;
        status = eval_int(b, &inner, &number);
        strbuf_printf(&text, "%lld", (long long)number);
        p = close + 1;
    }
    if (status == OK && !name_is_plain(strbuf_cstr(&text), MODULE_NAME_BYTES))
        status = status_fail(ERR_INVALID, "%s: \"%.100s\" isn't fit for a name: empty, too long, or with blanks or one of ,()[]{}=\"@:#\\",
                             place_of(b, value), strbuf_cstr(&text));
    *out = arena_strdup(b->arena, strbuf_cstr(&text));
    strbuf_deinit(&text);
    return status;
}

/* The name of a value that the module makes. */
static const char *own_name(const Binder *b, const char *name)
{
    return *b->prefix ? arena_printf(b->arena, "%s%s", b->prefix, name) : name;
}

/* What the module itself named, or an input. */
static Value *find_value(const Binder *b, const char *name)
{
    for (int i = b->num_scope - 1; i >= 0; i--)
        if (strcmp(b->scope[i].name, name) == 0) return b->scope[i].value;
    Value *own = graph_find(b->graph, own_name(b, name)), *input = *b->prefix && !own ? graph_find(b->graph, name) : NULL;
    return input && input->kind == VALUE_INPUT ? input : own;
}

static Status bind_namespace(const Binder *b, const char *name);

/* What an objective reads: an output of the model or, with its name in front, of a namespace; else as any module. */
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
    return status_prefix(ERR_INVALID, "%s", place_of(b, at));
}

static Status bind_value(Binder *b, const JsonValue *name_json, Value **out)
{
    const char *name;
    TRY(expand(b, name_json, &name));
    return find_read(b, name_json, name, out);
}

static Status push_scope(Binder *b, const JsonValue *at, const char *name, Value *value)
{
    if (b->num_scope == BIND_MAX_NAMES) BIND_FAIL(b, at, "more than %d names carried", BIND_MAX_NAMES);
    b->scope[b->num_scope++] = (Scope){name, value};
    return OK;
}

/* ---- parameters ---- */

static Status bind_names(Binder *b, const JsonValue *list, HfSource *hf)
{
    bool many = list->type == JSON_ARRAY;
    if (many && list->count > BIND_MAX_PIECES)
        BIND_FAIL(b, list, "concat: %u pieces; at most %d are possible", list->count, BIND_MAX_PIECES);
    if (many) TRY(spend(b, list, list->count));
    hf->num_names = many ? (int)list->count : 1;
    hf->names = arena_array(b->arena, const char *, hf->num_names + 1);
    for (int i = 0; i < hf->num_names; i++) TRY(expand(b, many ? &list->items[i] : list, &hf->names[i]));
    return OK;
}

/* "name", {"concat": [names]}, {"transpose": name} or {"slice": name, "begin": e, "rows": e, "total": e}. */
static Status bind_hf(Binder *b, const JsonValue *json, const TensorType *type, HfSource *hf)
{
    if (json->type == JSON_STRING) return bind_names(b, json, hf);
    const JsonValue *names;
    if ((names = json_get(json, "concat")) && names->type == JSON_ARRAY && names->count) {
        hf->kind = HF_CONCAT;
        if (type->dim[0] % names->count)
            BIND_FAIL(b, json, "concat: %u pieces don't divide %lld rows", names->count, (long long)type->dim[0]);
    } else if ((names = json_get(json, "transpose"))) {
        hf->kind = HF_TRANSPOSE;
        if (type->ndim != 2) BIND_FAIL(b, json, "transpose: only for two dims");
    } else if ((names = json_get(json, "slice"))) {
        const JsonValue *begin = json_get(json, "begin"), *total = json_get(json, "total");
        if (!begin || !total) BIND_FAIL(b, json, "slice: expected begin and total");
        hf->kind = HF_SLICE;
        hf->rows = type->dim[0];
        TRY(eval_int(b, begin, &hf->begin));
        TRY(eval_int(b, total, &hf->total_rows));
        if (hf->begin < 0 || hf->rows > hf->total_rows || hf->begin > hf->total_rows - hf->rows)
            BIND_FAIL(b, json, "slice: rows %lld to %lld of %lld", (long long)hf->begin, (long long)(hf->begin + hf->rows),
                      (long long)hf->total_rows);
    } else {
        BIND_FAIL(b, json, "hf: expected a name, concat, transpose or slice");
    }
    return bind_names(b, names, hf);
}

static Status bind_init(Binder *b, const JsonValue *json, Param *param)
{
    param->init = INIT_NORMAL;
    param->init_std = 0.02f;
    if (!json) return OK;
    if (json->type == JSON_STRING && str_equal(json->string, "zeros")) {
        param->init = INIT_ZEROS;
    } else if (json->type == JSON_STRING && str_equal(json->string, "ones")) {
        param->init = INIT_ONES;
    } else {
        const JsonValue *std = json_get(json, "normal");
        double           number;
        if (!std) BIND_FAIL(b, json, "init: expected \"zeros\", \"ones\" or {\"normal\": std}");
        TRY(eval(b, std, &number));
        if (!(number >= 0 && number < 1e30)) BIND_FAIL(b, std, "init: a deviation of %g", number);
        param->init_std = (float)number;
    }
    return OK;
}

/* The rows of each matrix that a parameter holds. Pieces of a folder are such, unless it says otherwise. */
static Status bind_matrices(Binder *b, const JsonValue *s, Param *param)
{
    enum { NODES = 32 /* which an optimizer makes for each */ };
    const JsonValue *json = json_get(s, "matrices");
    int64_t         *rows, period;
    bool             in_pieces = !json && param->hf.kind == HF_CONCAT && param->hf.num_names > 1 && param->type.ndim == 2;
    if (json && (json->type != JSON_ARRAY || json->count < 1 || json->count > BIND_MAX_PIECES))
        BIND_FAIL(b, json, "matrices: expected an array of 1 to %d numbers of rows", BIND_MAX_PIECES);
    param->num_matrices = json ? (int)json->count : in_pieces ? param->hf.num_names : 0;
    TRY(spend(b, s, (int64_t)param->num_matrices * NODES));
    param->matrices = rows = arena_array(b->arena, int64_t, param->num_matrices + 1);
    for (int i = 0; i < param->num_matrices; i++) {
        rows[i] = param->type.dim[0] / param->num_matrices;
        if (json) TRY(eval_int(b, &json->items[i], &rows[i]));
    }
    Status status = param_period(param, &period);
    return status == OK ? OK : status_prefix(status, "%s", place_of(b, json ? json : s));
}

static Status bind_shape(Binder *b, const JsonValue *s, TensorType *type)
{
    const JsonValue *shape = json_get(s, "shape");
    if (!shape || shape->type != JSON_ARRAY || shape->count < 1 || shape->count > TENSOR_MAX_DIMS)
        BIND_FAIL(b, shape ? shape : s, "expected a shape of 1 to %d dims", TENSOR_MAX_DIMS);
    type->ndim = (uint8_t)shape->count;
    for (uint32_t i = 0; i < shape->count; i++) TRY(eval_int(b, &shape->items[i], &type->dim[i]));
    Status status = type_check(type);
    if (status != OK) return status_prefix(status, "%s", place_of(b, shape));
    return OK;
}

static Status bind_flag(Binder *b, const JsonValue *s, const char *key, bool *out)
{
    const JsonValue *value = json_get(s, key);
    if (value && !json_get_bool(s, key, out)) BIND_FAIL(b, value, "%s: expected true or false, found %s", key, json_type_name(value->type));
    return OK;
}

static Status bind_dtype(Binder *b, const JsonValue *s, const char *key, DType *out)
{
    const JsonValue *value = json_get(s, key);
    if (value->type != JSON_STRING || !dtype_parse(value->string.data, out) || !(DT_SET(*out) & DT_SET_FLOAT))
        BIND_FAIL(b, value, "%s: expected f32 or bf16", key);
    return OK;
}

/* Rows [begin, end) of a tensor of a model folder, and the statement whose parameter they are. */
typedef struct Rows {
    bool             is_saved; /* of one that is written */
    const char      *tensor;
    int64_t          begin, end, total; /* total: all of a tensor of which these are a part, else 0 */
    const Param     *param;
    const JsonValue *statement;
} Rows;

static void note_rows(Binder *b, const Param *param, const HfSource *hf, bool is_saved, const JsonValue *s)
{
    for (int i = 0; i < hf->num_names; i++) {
        if (b->num_rows == b->cap_rows) {
            Rows *more = arena_array(b->arena, Rows, b->cap_rows = b->cap_rows ? 2 * b->cap_rows : 256);
            if (b->num_rows) memcpy(more, b->rows, (size_t)b->num_rows * sizeof *more);
            b->rows = more;
        }
        bool slice = hf->kind == HF_SLICE;
        b->rows[b->num_rows++] = (Rows){.is_saved = is_saved,
                                        .tensor = hf->names[i],
                                        .begin = slice ? hf->begin : 0,
                                        .end = slice ? hf->begin + hf->rows : INT64_MAX,
                                        .total = slice ? hf->total_rows : 0,
                                        .param = param,
                                        .statement = s};
    }
}

static int compare_rows(const void *a, const void *b)
{
    const Rows *x = a, *y = b;
    int         order = x->is_saved != y->is_saved ? x->is_saved - y->is_saved : strcmp(x->tensor, y->tensor);
    if (!order) order = (x->begin > y->begin) - (x->begin < y->begin);
    return order ? order : (x->statement->offset > y->statement->offset) - (x->statement->offset < y->statement->offset);
}

/* Where the DSL gave a line, messages have it, and no more of a file than a name. */
static Status read_source(Binder *b, const JsonValue *s)
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

static bool same_tensor(const Rows *a, const Rows *b)
{
    return a && b && a->is_saved == b->is_saved && strcmp(a->tensor, b->tensor) == 0;
}

/* Rows of one tensor are `rows` and those before and behind it, in their order; NULL: none. */
static Status check_gap(Binder *b, const Rows *before, const Rows *rows, const Rows *behind)
{
    if (!rows->is_saved || !rows->total) return OK;
    int64_t total = before ? before->total : rows->total, at = before ? before->end : 0;
    if (total && total != rows->total)
        BIND_FAIL(b, rows->statement, "tensor %s of a model folder: %s says that it has %lld rows, %s %lld", rows->tensor,
                  before->param->name, (long long)total, rows->param->name, (long long)rows->total);
    if (rows->begin == at && !behind) at = rows->end;
    if (rows->begin > at || (!behind && at < rows->total))
        BIND_FAIL(b, rows->statement,
                  "tensor %s of a model folder has %lld rows, and no parameter those from %lld on; make one for them, which may be frozen",
                  rows->tensor, (long long)rows->total, (long long)at);
    return OK;
}

/* A tensor that two parameters were saved in would hold one of them; one of which no parameter has some rows can't be saved. */
static Status check_rows(Binder *b)
{
    if (b->num_rows) qsort(b->rows, (size_t)b->num_rows, sizeof *b->rows, compare_rows);
    for (int i = 0; i < b->num_rows; i++) {
        const Rows *rows = &b->rows[i], *before = i ? rows - 1 : NULL, *behind = i + 1 < b->num_rows ? rows + 1 : NULL;
        if (!same_tensor(before, rows)) before = NULL;
        if (!same_tensor(rows, behind)) behind = NULL;
        b->source = NULL;
        TRY(read_source(b, rows->statement));
        if (before && rows->begin < before->end)
            BIND_FAIL(b, rows->statement, "parameters %s and %s are both tensor %s of a model folder; give each its own name, or tie them",
                      before->param->name, rows->param->name, rows->tensor);
        TRY(check_gap(b, before, rows, behind));
    }
    return OK;
}

static Status bind_param(Binder *b, const JsonValue *s)
{
    Param *param = arena_new(b->arena, Param);
    param->type.dtype = b->options->dtype;
    param->layer = b->graph->layer;
    bool             frozen = false;
    const JsonValue *hf = json_get(s, "hf"), *module = json_get(s, "module"), *untied = json_get(s, "untied"),
                    *saved = json_get(s, "export");
    if (!b->module->architecture) BIND_FAIL(b, s, "an objective has no weights of its own");
    TRY(expand(b, json_get(s, "param"), &param->name));
    param->name = own_name(b, param->name);
    param->ns = b->ns;
    TRY(bind_shape(b, s, &param->type));
    if (json_get(s, "dtype")) TRY(bind_dtype(b, s, "dtype", &param->type.dtype));
    if (!hf) BIND_FAIL(b, s, "parameter %s: expected \"hf\", where it is in a model folder", param->name);
    TRY(bind_hf(b, hf, &param->type, &param->hf));
    if (saved) TRY(bind_hf(b, saved, &param->type, &param->saved));
    if (module) TRY(expand(b, module, &param->module));
    if (untied) TRY(expand(b, untied, &param->untied));
    TRY(bind_init(b, json_get(s, "init"), param));
    TRY(bind_matrices(b, s, param));
    param->decay = param->type.ndim > 1;
    TRY(bind_flag(b, s, "decay", &param->decay));
    TRY(bind_flag(b, s, "linear", &param->is_linear));
    TRY(bind_flag(b, s, "head", &param->is_head));
    TRY(bind_flag(b, s, "frozen", &frozen));
    param->trained = !frozen && !b->ns;
    if (graph_find(b->graph, param->name)) BIND_FAIL(b, s, "second value named %s", param->name);
    graph_add_param(b->graph, param);
    note_rows(b, param, &param->hf, false, s);
    note_rows(b, param, param_saved(param), true, s);
    return OK;
}

/* ---- nodes ---- */

/* {"per": e, "value": e}: that many numbers; `value` may name the index i. */
static Status bind_attr_list(Binder *b, const JsonValue *json, const char *name, AttrList *list)
{
    const JsonValue *per = json_get(json, "per"), *value = json_get(json, "value");
    if (!per || !value || json->count != 2) BIND_FAIL(b, json, "attribute %s: expected {\"per\": e, \"value\": e}", name);
    TRY(eval_int(b, per, &list->count));
    if (list->count < 0 || list->count > ATTR_LIST_MOST)
        BIND_FAIL(b, per, "attribute %s: %lld numbers; expected 0 to %d", name, (long long)list->count, ATTR_LIST_MOST);
    if (b->depth == BIND_MAX_DEPTH) BIND_FAIL(b, json, "attribute %s: repeats nested deeper than %d", name, BIND_MAX_DEPTH - 1);
    TRY(spend(b, json, list->count));
    b->index_name[b->depth++] = "i";
    for (int64_t i = 0; i < list->count; i++) {
        b->index[b->depth - 1] = (double)i;
        TRY(eval(b, value, &list->values[i]));
    }
    b->depth--;
    return OK;
}

static Status bind_attrs(Binder *b, const JsonValue *json, const OpDef *op, char *attrs)
{
    if (json && json->type != JSON_OBJECT) BIND_FAIL(b, json, "attrs: expected an object, found %s", json_type_name(json->type));
    for (uint32_t i = 0; json && i < json->count; i++) {
        const AttrDef *a = op->attrs;
        const char    *name = json->members[i].key.data;
        while (a && a->type != ATTR_TYPE_END && strcmp(a->name, name) != 0) a++;
        if (!a || a->type == ATTR_TYPE_END) BIND_FAIL(b, &json->members[i].value, "%s has no attribute %s", op->name, name);
        double  number;
        int64_t whole;
        if (a->type == ATTR_TYPE_INT) {
            TRY(eval_int(b, &json->members[i].value, &whole));
            *(int64_t *)(void *)(attrs + a->offset) = whole;
            continue;
        }
        if (a->type == ATTR_TYPE_DTYPE) {
            DType dtype;
            TRY(bind_dtype(b, json, name, &dtype));
            *(int64_t *)(void *)(attrs + a->offset) = DTYPE_TO_ATTR(dtype);
            continue;
        }
        if (a->type == ATTR_TYPE_LIST) {
            TRY(bind_attr_list(b, &json->members[i].value, name, (AttrList *)(void *)(attrs + a->offset)));
            continue;
        }
        TRY(eval(b, &json->members[i].value, &number));
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

static Status bind_op(Binder *b, const JsonValue *s)
{
    const JsonValue *op_name = json_get(s, "op"), *in = json_get(s, "in"), *out = json_get(s, "out");
    const OpDef     *op = find_op(b, op_name);
    if (!op) BIND_FAIL(b, op_name, "unknown op %s", op_name->type == JSON_STRING ? op_name->string.data : "");
    if (b->ns && op->flags & OP_RANDOM)
        BIND_FAIL(b, s, "%s in the %s model, which isn't trained and draws nothing; take its IR without it", op->name, b->ns);
    if (!in || in->type != JSON_ARRAY || in->count > op->num_in)
        BIND_FAIL(b, s, "%s: expected \"in\" with at most %d names", op->name, op->num_in);
    if (!out || out->type != JSON_STRING) BIND_FAIL(b, s, "%s: expected \"out\", a name", op->name);
    Value *values[NODE_MAX_IN] = {0};
    for (uint32_t i = 0; i < in->count; i++)
        if (in->items[i].type != JSON_NULL) TRY(bind_value(b, &in->items[i], &values[i]));
    const char *name, *part = NULL;
    TRY(expand(b, out, &name));
    if (find_value(b, name)) BIND_FAIL(b, out, "second value named %s", name);
    name = own_name(b, name);
    TRY(spend(b, s, (int64_t)op->attrs_size / 64)); /* lists make some large */
    char *attrs = attrs_defaults(b->arena, op);
    for (const AttrDef *a = op->attrs; a && a->type != ATTR_TYPE_END; a++)
        if (a->of_node) *(int64_t *)(void *)(attrs + a->offset) = (int64_t)philox_name_key(name);
    TRY(bind_attrs(b, json_get(s, "attrs"), op, attrs));
    b->graph->part = b->depth ? PART_BLOCK : PART_NONE;
    if (json_get(s, "part") && (!json_get_str(s, "part", &part) || !part_parse(part, &b->graph->part)))
        BIND_FAIL(b, json_get(s, "part"), "unknown part %s", part ? part : "");
    b->graph->source = b->source ? b->source : place_of(b, s);
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
    TRY(eval_int(b, json_get(s, "repeat"), &count));
    if (!json_get_str(s, "index", &index) || !body || body->type != JSON_ARRAY) BIND_FAIL(b, s, "repeat: expected \"index\" and \"body\"");
    if (count < 0) BIND_FAIL(b, s, "repeat: %lld times", (long long)count);
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
        TRY(spend(b, s, 1 + (yield ? (int64_t)yield->count * (carried - first) : 0)));
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
    return OK; /* the carried names stay, with their last values */
}

static Status bind_if(Binder *b, const JsonValue *s)
{
    double           holds;
    const JsonValue *then = json_get(s, "then"), *otherwise = json_get(s, "else");
    TRY(eval(b, json_get(s, "if"), &holds));
    const JsonValue *chosen = holds != 0 ? then : otherwise;
    return chosen ? bind_list(b, chosen) : OK;
}

/* let and output: a name, and the value it "is". */
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

/* logits (B,T,V) and losses f32 (B,T): what is sampled and evaluated counts on it. */
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
    if (b->ns) name = own_name(b, name);
    if (b->is_fallback && graph_output(b->graph, name)) return OK;
    if (graph_output(b->graph, name)) BIND_FAIL(b, s, "second output named %s", name);
    graph_add_output(b->graph, name, value);
    return OK;
}

/* By the member that says what it is; the others it may have, with a blank around each. */
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

static Status bind_statement(Binder *b, const JsonValue *s)
{
    if (s->type != JSON_OBJECT) BIND_FAIL(b, s, "expected a statement, found %s", json_type_name(s->type));
    TRY(spend(b, s, 1 + (int64_t)s->count));
    for (size_t i = 0; i < sizeof statements / sizeof *statements; i++) {
        if (!json_get(s, statements[i].kind)) continue;
        for (uint32_t k = 0; k < s->count; k++) {
            const char *key = s->members[k].key.data;
            if (strcmp(key, statements[i].kind) != 0 && !is_listed(statements[i].members, key))
                BIND_FAIL(b, &s->members[k].value, "%s has no \"%.100s\"; it may have%s", statements[i].kind, key, statements[i].members);
        }
        const char *outer = b->source;
        TRY(read_source(b, s));
        TRY(statements[i].bind(b, s));
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
        const IrInput *own = &b->module->inputs[i];
        TensorType     type = type_make(own->dtype, 2, b->options->batch, b->options->seq);
        bool           is_taken = graph_find(b->graph, own->name) != NULL;
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

/* The statements of b->module, whose symbols are there. */
static Status bind_module(Binder *b)
{
    b->work = b->options->max_work ? b->options->max_work : IR_MAX_WORK;
    find_lines(b);
    TRY(bind_list(b, json_get(&b->module->root, "graph")));
    TRY(check_rows(b));
    b->graph->part = PART_NONE;
    b->graph->source = NULL;
    b->graph->layer = -1;
    return OK;
}

/* The model itself, in a graph of its own. */
static Status bind_model(Binder *b, Arena *arena, const IrModule *model, const JsonValue *config, const char *config_name,
                         const BindOptions *options)
{
    *b = (Binder){.arena = arena, .module = model, .model = model, .prefix = "", .options = options};
    TRY(ir_module_dims(arena, model, config, config_name, &b->dims));
    b->graph = graph_create(arena, options->graph_name, options->ops, options->num_ops);
    for (int i = 0; i < FEED_COUNT; i++)
        if (feed_info((Feed)i)->shape == FEED_CELLS || feed_info((Feed)i)->shape == FEED_NUMBERS)
            graph_add_feed(b->graph, (Feed)i, options->batch, options->seq); /* the others are of single passes */
    TRY(add_own_inputs(b));
    return bind_module(b);
}

/* The model of that name, before all else: what it gives is there when the model's own activations begin to pile up. Its layers are
 * numbered on behind those that are there. */
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

/* What is computed of the outputs of b's model. Symbols are the model's. */
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
