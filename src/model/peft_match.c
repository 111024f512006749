/* Patterns over the paths of modules. An expression is compiled once and tried on every module. */
#include "model/peft_match.h"

#include "base/scoped.h"
#include "text/pretokenize_regex.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* Compiles an expression that must match from the start of a path: `before`, then the expression, then `after`. */
static Status compile(const char *before, Str expression, const char *after, const char *file, const char *key, Regex **out)
{
    SCOPED_STRBUF(text);
    strbuf_printf(&text, "\\A%s(?:", before);
    strbuf_append(&text, expression.data, expression.len);
    strbuf_printf(&text, ")%s", after);
    Status status = regex_compile(strbuf_cstr(&text), text.len, out);
    return status == OK ? OK : status_prefix(status, "%s: %s: \"%.200s\"", file, key, expression.data);
}

static Status matches(const Regex *regex, RegexScratch *scratch, const char *module, bool *out)
{
    size_t begin, end;
    return regex_find(regex, scratch, str_of(module), 0, out, &begin, &end);
}

/* ---- numbers by expression ---- */

struct PeftNumbers {
    RegexScratch *scratch;
    uint32_t      count;
    Regex       **expressions;
    double       *values;
};

static Status read_numbers(PeftNumbers *n, const JsonValue *object, const char *file, const char *key)
{
    FAIL_IF(object->type != JSON_OBJECT, ERR_INVALID, "%s: %s: expected an object of numbers, found %s", file, key,
            json_type_name(object->type));
    n->expressions = calloc_or_end(object->count, sizeof *n->expressions);
    n->values = calloc_or_end(object->count, sizeof *n->values);
    for (uint32_t i = 0; i < object->count; i++) {
        const JsonMember *member = &object->members[i];
        bool              is_number = member->value.type == JSON_INT || member->value.type == JSON_DOUBLE;
        FAIL_IF(!is_number, ERR_INVALID, "%s: %s: \"%.200s\": expected a number, found %s", file, key, member->key.data,
                json_type_name(member->value.type));
        n->values[i] = member->value.type == JSON_INT ? (double)member->value.integer : member->value.number;
        TRY(compile("(?:.*\\.)?", member->key, "\\z", file, key, &n->expressions[i]));
        n->count = i + 1;
    }
    return OK;
}

Status peft_numbers_open(const JsonValue *config, const char *file, const char *key, PeftNumbers **out)
{
    const JsonValue                           *object = json_get(config, key);
    SCOPED(peft_numbers_close_at) PeftNumbers *n = calloc_or_end(1, sizeof *n);
    *out = NULL;
    n->scratch = regex_scratch_create();
    if (object && object->type != JSON_NULL) TRY(read_numbers(n, object, file, key));
    *out = n;
    n = NULL;
    return OK;
}

Status peft_numbers_find(const PeftNumbers *n, const char *module, double *inout)
{
    for (uint32_t i = 0; i < n->count; i++) {
        bool found;
        TRY(matches(n->expressions[i], n->scratch, module, &found));
        if (!found) continue;
        *inout = n->values[i];
        return OK;
    }
    return OK;
}

void peft_numbers_close(PeftNumbers *n)
{
    if (!n) return;
    for (uint32_t i = 0; i < n->count; i++) regex_destroy(n->expressions[i]);
    regex_scratch_destroy(n->scratch);
    free(n->expressions);
    free(n->values);
    free(n);
}

/* ---- lists of names, or one expression ---- */

typedef struct Names {
    const JsonValue *list;       /* texts; NULL: no list */
    Regex           *expression; /* used instead of a list */
} Names;

struct PeftTargets {
    RegexScratch    *scratch;
    Names            wanted, excluded;
    bool             all_linear;
    const JsonValue *layers;    /* layers_to_transform: a number, or a list; NULL: all layers */
    Regex          **of_layers; /* expressions for the path up to a layer's number */
    uint32_t         num_of_layers;
};

static bool is_list_of(const JsonValue *value, JsonType type)
{
    if (value->type != JSON_ARRAY) return false;
    for (uint32_t i = 0; i < value->count; i++)
        if (value->items[i].type != type) return false;
    return true;
}

/* The value of the key; NULL: it is absent, null or empty. */
static const JsonValue *get_set(const JsonValue *config, const char *key)
{
    const JsonValue *value = json_get(config, key);
    if (!value || value->type == JSON_NULL || (value->type == JSON_ARRAY && !value->count)) return NULL;
    return value->type == JSON_STRING && !value->string.len ? NULL : value;
}

static Status read_names(const JsonValue *config, const char *file, const char *key, Names *out)
{
    const JsonValue *value = get_set(config, key);
    if (!value) return OK;
    if (value->type == JSON_STRING) return compile("", value->string, "\\z", file, key, &out->expression);
    FAIL_IF(!is_list_of(value, JSON_STRING), ERR_INVALID, "%s: %s: expected a list of names, or a regular expression", file, key);
    out->list = value;
    return OK;
}

/* Compiles patterns for the path before a layer's number, as ".layers.". Without layers_pattern any name between dots matches. */
static Status read_layers(PeftTargets *t, const JsonValue *config, const char *file)
{
    const char      *key = "layers_pattern";
    const JsonValue *pattern = get_set(config, key);
    t->layers = get_set(config, "layers_to_transform");
    if (!t->layers) return OK;
    FAIL_IF(t->layers->type != JSON_INT && !is_list_of(t->layers, JSON_INT), ERR_INVALID,
            "%s: layers_to_transform: expected a whole number, or a list of them", file);
    FAIL_IF(pattern && pattern->type != JSON_STRING && !is_list_of(pattern, JSON_STRING), ERR_INVALID,
            "%s: layers_pattern: expected a text, or a list of texts", file);
    uint32_t count = pattern && pattern->type == JSON_ARRAY ? pattern->count : 1;
    t->of_layers = calloc_or_end(count, sizeof *t->of_layers);
    for (uint32_t i = 0; i < count; i++) {
        Str         text = !pattern ? str_of("[^.]*") : pattern->type == JSON_STRING ? pattern->string : pattern->items[i].string;
        const char *before = pattern ? "(?:|.*?\\.)" : ".*?\\.";
        TRY(compile(before, text, "\\.(?=\\d+\\.)", file, key, &t->of_layers[i]));
        t->num_of_layers = i + 1;
    }
    return OK;
}

Status peft_targets_open(const JsonValue *config, const char *file, PeftTargets **out)
{
    SCOPED(peft_targets_close_at) PeftTargets *t = calloc_or_end(1, sizeof *t);
    const JsonValue                           *wanted = get_set(config, "target_modules");
    *out = NULL;
    t->scratch = regex_scratch_create();
    FAIL_IF(!wanted, ERR_INVALID, "%s: expected names under target_modules", file);
    t->all_linear = wanted->type == JSON_STRING && str_equal(wanted->string, "all-linear");
    if (!t->all_linear) TRY(read_names(config, file, "target_modules", &t->wanted));
    TRY(read_names(config, file, "exclude_modules", &t->excluded));
    if (t->wanted.list || t->all_linear) TRY(read_layers(t, config, file));
    *out = t;
    t = NULL;
    return OK;
}

/* Whether `name` is the module's path, or its end after a dot. */
static bool is_end(Str name, const char *module)
{
    size_t path = strlen(module);
    if (name.len > path || memcmp(module + path - name.len, name.data, name.len) != 0) return false;
    return name.len == path || module[path - name.len - 1] == '.';
}

static Status names_have(const Names *names, RegexScratch *scratch, const char *module, bool *out)
{
    *out = false;
    if (names->expression) return matches(names->expression, scratch, module, out);
    for (uint32_t i = 0; names->list && i < names->list->count && !*out; i++) *out = is_end(names->list->items[i].string, module);
    return OK;
}

/* *out: whether the module is in one of the layers to transform. */
static Status is_in_layers(const PeftTargets *t, const char *module, bool *out)
{
    bool   found = false;
    size_t begin, end = 0;
    for (uint32_t i = 0; i < t->num_of_layers && !found; i++)
        TRY(regex_find(t->of_layers[i], t->scratch, str_of(module), 0, &found, &begin, &end));
    *out = false;
    if (!found) return OK;
    int64_t layer = strtoll(module + end, NULL, 10);
    if (t->layers->type == JSON_INT) *out = layer == t->layers->integer;
    for (uint32_t i = 0; t->layers->type == JSON_ARRAY && i < t->layers->count; i++) *out |= layer == t->layers->items[i].integer;
    return OK;
}

static bool is_whole_path(const Names *names, const char *module)
{
    for (uint32_t i = 0; names->list && i < names->list->count; i++)
        if (str_equal(names->list->items[i].string, module)) return true;
    return false;
}

Status peft_targets_have(const PeftTargets *t, const char *module, bool is_apart, bool *out)
{
    bool excluded;
    *out = false;
    TRY(names_have(&t->excluded, t->scratch, module, &excluded));
    if (excluded) return OK;
    *out = t->all_linear && !is_apart;
    if (!t->all_linear) TRY(names_have(&t->wanted, t->scratch, module, out));
    if (!*out || !t->layers || is_whole_path(&t->wanted, module)) return OK; /* PEFT doesn't check the layer of a whole path */
    return is_in_layers(t, module, out);
}

void peft_targets_close(PeftTargets *t)
{
    if (!t) return;
    regex_destroy(t->wanted.expression);
    regex_destroy(t->excluded.expression);
    for (uint32_t i = 0; i < t->num_of_layers; i++) regex_destroy(t->of_layers[i]);
    free(t->of_layers);
    regex_scratch_destroy(t->scratch);
    free(t);
}
