/* Statements that make parameters: shape, location in a model folder, initial values. Then whether all parameters of a model together
 * fill its tensors. */
#include "ir/bind_internal.h"

#include <stdlib.h>
#include <string.h>

/* {"concat": [names]}: the names once, or `per` times in a row. Names may then use the index, which counts from 0. */
static Status bind_concat(Binder *b, const JsonValue *json, const JsonValue *list, const TensorType *type, HfSource *hf)
{
    const JsonValue *per = json_get(json, "per");
    const char      *index = NULL;
    int64_t          turns = 1;
    if (per && !json_get_str(json, "index", &index)) BIND_FAIL(b, json, "concat: expected \"index\" beside \"per\"");
    if (per) TRY(bind_int(b, per, &turns));
    if (turns < 1 || turns > BIND_MAX_PIECES) BIND_FAIL(b, list, "concat: %lld times; expected 1 to %d", (long long)turns, BIND_MAX_PIECES);
    if (list->count * turns > BIND_MAX_PIECES)
        BIND_FAIL(b, list, "concat: %lld pieces; at most %d are possible", (long long)(list->count * turns), BIND_MAX_PIECES);
    hf->num_names = (int)(list->count * turns);
    if (type->dim[0] % hf->num_names)
        BIND_FAIL(b, json, "concat: %d pieces don't divide %lld rows", hf->num_names, (long long)type->dim[0]);
    if (per && b->depth == BIND_MAX_DEPTH) BIND_FAIL(b, json, "concat: repeats nested deeper than %d", BIND_MAX_DEPTH - 1);
    TRY(bind_spend(b, list, hf->num_names));
    hf->names = arena_array(b->arena, const char *, hf->num_names);
    if (per) b->index_name[b->depth++] = index;
    for (int i = 0; i < hf->num_names; i++) {
        if (per) b->index[b->depth - 1] = i / (int)list->count;
        TRY(bind_text(b, &list->items[i % (int)list->count], &hf->names[i]));
    }
    if (per) b->depth--;
    return OK;
}

/* Reads "name", {"concat": [names]}, {"transpose": name} or {"slice": name, "begin": e, "rows": e, "total": e}. */
static Status bind_hf(Binder *b, const JsonValue *json, const TensorType *type, HfSource *hf)
{
    const JsonValue *name = json;
    hf->num_names = 1;
    hf->names = arena_array(b->arena, const char *, 1);
    if (json->type == JSON_STRING) return bind_text(b, json, hf->names);
    if ((name = json_get(json, "concat")) && name->type == JSON_ARRAY && name->count) {
        hf->kind = HF_CONCAT;
        return bind_concat(b, json, name, type, hf);
    }
    if ((name = json_get(json, "transpose"))) {
        hf->kind = HF_TRANSPOSE;
        if (type->ndim != 2) BIND_FAIL(b, json, "transpose: only for two dims");
    } else if ((name = json_get(json, "slice"))) {
        const JsonValue *begin = json_get(json, "begin"), *total = json_get(json, "total");
        if (!begin || !total) BIND_FAIL(b, json, "slice: expected begin and total");
        hf->kind = HF_SLICE;
        hf->rows = type->dim[0];
        TRY(bind_as(bind_int(b, begin, &hf->begin), "begin", "", -1));
        TRY(bind_as(bind_int(b, total, &hf->total_rows), "total", "", -1));
        if (hf->begin < 0 || hf->rows > hf->total_rows || hf->begin > hf->total_rows - hf->rows)
            BIND_FAIL(b, json, "slice: rows %lld to %lld of %lld", (long long)hf->begin, (long long)(hf->begin + hf->rows),
                      (long long)hf->total_rows);
    } else {
        BIND_FAIL(b, json, "hf: expected a name, concat, transpose or slice");
    }
    return bind_text(b, name, hf->names);
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
        TRY(bind_as(bind_eval(b, std, &number), "normal", "", -1));
        if (!(number >= 0 && number < 1e30)) BIND_FAIL(b, std, "init: a deviation of %g, expected 0 or more", number);
        param->init_std = (float)number;
    }
    return OK;
}

/* Reads how many rows each matrix of a parameter has. Default: each piece of a concat is a matrix. */
static Status bind_matrices(Binder *b, const JsonValue *s, Param *param)
{
    enum { NODES = 32 /* nodes that an optimizer makes for each matrix */ };
    const JsonValue *json = json_get(s, "matrices");
    int64_t         *rows, period;
    bool             in_pieces = !json && param->hf.kind == HF_CONCAT && param->hf.num_names > 1 && param->type.ndim == 2;
    if (json && (json->type != JSON_ARRAY || json->count < 1 || json->count > BIND_MAX_PIECES))
        BIND_FAIL(b, json, "matrices: expected an array of 1 to %d numbers of rows", BIND_MAX_PIECES);
    param->num_matrices = json ? (int)json->count : in_pieces ? param->hf.num_names : 0;
    TRY(bind_spend(b, s, (int64_t)param->num_matrices * NODES));
    param->matrices = rows = arena_array(b->arena, int64_t, param->num_matrices + 1);
    for (int i = 0; i < param->num_matrices; i++) {
        rows[i] = param->type.dim[0] / param->num_matrices;
        if (json) TRY(bind_as(bind_int(b, &json->items[i], &rows[i]), "matrices", "", i));
    }
    Status status = param_period(param, &period);
    return status == OK ? OK : status_prefix(status, "%s", bind_place(b, json ? json : s));
}

static Status bind_shape(Binder *b, const JsonValue *s, TensorType *type)
{
    const JsonValue *shape = json_get(s, "shape");
    if (!shape || shape->type != JSON_ARRAY || shape->count < 1 || shape->count > TENSOR_MAX_DIMS)
        BIND_FAIL(b, shape ? shape : s, "expected a shape of 1 to %d dims", TENSOR_MAX_DIMS);
    type->ndim = (uint8_t)shape->count;
    for (uint32_t i = 0; i < shape->count; i++) TRY(bind_as(bind_int(b, &shape->items[i], &type->dim[i]), "shape", "", (int)i));
    Status status = type_check(type);
    if (status != OK) return status_prefix(status, "%s", bind_place(b, shape));
    return OK;
}

/* Rows [begin, end) of a tensor of a model folder, and the statement whose parameter they are. */
typedef struct Rows {
    bool             is_saved; /* true: the parameter is saved to these rows; false: loaded from them */
    const char      *tensor;
    int64_t          begin, end, total; /* total: rows of the whole tensor if this is a slice, else 0 */
    const Param     *param;
    const JsonValue *statement;
} Rows;

static void note_rows(Binder *b, const Param *param, const HfSource *hf, bool is_saved, const JsonValue *s)
{
    for (int i = 0; i < hf->num_names; i++) {
        b->rows = array_grow(b->arena, b->rows, b->num_rows, &b->cap_rows, sizeof *b->rows);
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

static bool same_tensor(const Rows *a, const Rows *b)
{
    return a && b && a->is_saved == b->is_saved && strcmp(a->tensor, b->tensor) == 0;
}

/* Checks that no saved rows are missing around `rows`. before, behind: the neighbours in the same tensor; NULL: none. */
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

Status bind_check_rows(Binder *b)
{
    if (b->num_rows) qsort(b->rows, (size_t)b->num_rows, sizeof *b->rows, compare_rows);
    for (int i = 0; i < b->num_rows; i++) {
        const Rows *rows = &b->rows[i], *before = i ? rows - 1 : NULL, *behind = i + 1 < b->num_rows ? rows + 1 : NULL;
        if (!same_tensor(before, rows)) before = NULL;
        if (!same_tensor(rows, behind)) behind = NULL;
        b->source = NULL;
        TRY(bind_source(b, rows->statement));
        if (before && rows->begin < before->end)
            BIND_FAIL(b, rows->statement, "parameters %s and %s are both tensor %s of a model folder; give each its own name, or tie them",
                      before->param->name, rows->param->name, rows->tensor);
        TRY(check_gap(b, before, rows, behind));
    }
    return OK;
}

Status bind_param(Binder *b, const JsonValue *s)
{
    Param *param = arena_new(b->arena, Param);
    param->type.dtype = b->options->dtype;
    param->layer = b->graph->layer;
    bool             frozen = false;
    const JsonValue *hf = json_get(s, "hf"), *module = json_get(s, "module"), *untied = json_get(s, "untied"),
                    *saved = json_get(s, "export");
    if (!b->module->architecture) BIND_FAIL(b, s, "an objective has no weights of its own");
    TRY(bind_text(b, json_get(s, "param"), &param->name));
    param->name = bind_own_name(b, param->name);
    param->ns = b->ns;
    TRY(bind_shape(b, s, &param->type));
    if (json_get(s, "dtype")) TRY(bind_dtype(b, s, "dtype", 0, &param->type.dtype));
    if (!hf) BIND_FAIL(b, s, "parameter %s: expected \"hf\", where it is in a model folder", param->name);
    TRY(bind_hf(b, hf, &param->type, &param->hf));
    if (saved) TRY(bind_hf(b, saved, &param->type, &param->saved));
    if (module) TRY(bind_text(b, module, &param->module));
    if (untied) TRY(bind_text(b, untied, &param->untied));
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
