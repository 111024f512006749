/* Reads a module and evaluates its `config` section: which symbols it has, from which keys of config.json they are read, and which
 * settings the family doesn't support. An unknown key is an error or, if harmless, listed as ignored. */
#include "ir/module.h"

#include "ir/expr.h"
#include "ir/graph_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { IR_VERSION = 1, IR_MAX_SYMBOLS = 64, IR_MAX_LISTED = 1 << 16, IR_MAX_PREFIX = 64 };

static const char *const role_names[IR_ROLE_COUNT] = {"vocabulary", "positions", "tied"};

/* Checks "roles" (texts under names that have a meaning), "unread" (texts) and "prefix" (a text). */
static Status check_names(const IrModule *module)
{
    const JsonValue *roles = json_get(&module->root, "roles"), *unread = json_get(&module->root, "unread");
    FAIL_IF(roles && roles->type != JSON_OBJECT, ERR_INVALID, "%s: roles: expected an object", module->file);
    for (uint32_t i = 0; roles && i < roles->count; i++) {
        const JsonMember *role = &roles->members[i];
        int               known = 0;
        while (known < IR_ROLE_COUNT && !str_equal(role->key, role_names[known])) known++;
        FAIL_IF(known == IR_ROLE_COUNT || role->value.type != JSON_STRING, ERR_INVALID,
                "%s: roles: %.100s; expected symbols under vocabulary, positions, tied", module->file, role->key.data);
    }
    FAIL_IF(unread && unread->type != JSON_ARRAY, ERR_INVALID, "%s: unread: expected an array of ends of tensors' names", module->file);
    for (uint32_t i = 0; unread && i < unread->count; i++)
        FAIL_IF(unread->items[i].type != JSON_STRING || !unread->items[i].string.len, ERR_INVALID,
                "%s: unread: expected ends of tensors' names", module->file);
    const JsonValue *prefix = json_get(&module->root, "prefix");
    FAIL_IF(prefix && (prefix->type != JSON_STRING || !prefix->string.len || prefix->string.len > IR_MAX_PREFIX), ERR_INVALID,
            "%s: prefix: expected a text of 1 to %d bytes", module->file, IR_MAX_PREFIX);
    return OK;
}

/* Reads "inputs": [{"name": text, "dtype": "i32" or "f32", "pad": whole number, "size": whole number, "target": bool}]. */
static Status read_inputs(IrModule *module)
{
    const JsonValue *inputs = json_get(&module->root, "inputs");
    if (!inputs) return OK;
    FAIL_IF(inputs->type != JSON_ARRAY || inputs->count > IR_MOST_INPUTS, ERR_INVALID, "%s: inputs: expected an array of at most %d",
            module->file, IR_MOST_INPUTS);
    for (uint32_t i = 0; i < inputs->count; i++) {
        OwnInput   *input = &module->inputs[i];
        const char *dtype = NULL;
        int64_t     pad = 0;
        input->size = 1;
        bool is_named = json_get_str(&inputs->items[i], "name", &input->name) && name_is_plain(input->name, MODULE_NAME_BYTES);
        FAIL_IF(!is_named, ERR_INVALID, "%s: inputs: number %u has no name, or one with blanks or one of ,()[]{}=\"@:#\\", module->file,
                i + 1);
        bool is_typed = json_get_str(&inputs->items[i], "dtype", &dtype) && dtype_parse(dtype, &input->dtype) &&
                        (input->dtype == DT_I32 || input->dtype == DT_F32);
        FAIL_IF(!is_typed, ERR_INVALID, "%s: inputs: %s: expected the dtype i32 or f32", module->file, input->name);
        bool is_padded = !json_get(&inputs->items[i], "pad") || json_get_int(&inputs->items[i], "pad", &pad);
        FAIL_IF(!is_padded || pad != (int32_t)pad || (pad && input->dtype == DT_F32), ERR_INVALID,
                "%s: inputs: %s: pad: expected a whole number of 32 bits, for i32 alone", module->file, input->name);
        input->pad = (int32_t)pad;
        bool is_sized = !json_get(&inputs->items[i], "size") || json_get_int(&inputs->items[i], "size", &input->size);
        FAIL_IF(!is_sized || input->size < 1 || input->size > OWN_MOST_SIZE, ERR_INVALID,
                "%s: inputs: %s: size: expected how many numbers a token has, 1 to %d", module->file, input->name, OWN_MOST_SIZE);
        FAIL_IF(json_get(&inputs->items[i], "target") && !json_get_bool(&inputs->items[i], "target", &input->of_target), ERR_INVALID,
                "%s: inputs: %s: target: expected true or false", module->file, input->name);
    }
    module->num_inputs = (int)inputs->count;
    return OK;
}

/* `kind`: the member that holds the module's name, "architecture" or "objective". */
static Status parse(Arena *arena, const char *file, const char *text, size_t len, const char *kind, IrModule **out_module)
{
    FAIL_IF(len > IR_MAX_BYTES, ERR_INVALID, "%s: a module of %zu bytes; at most %d are read", file, len, IR_MAX_BYTES);
    IrModule *module = arena_new(arena, IrModule);
    module->file = arena_strdup(arena, file);
    module->text = text;
    module->len = len;
    TRY(json_parse(arena, file, text, len, &module->root));
    int64_t     version = 0;
    const char *name;
    bool        is_objective = strcmp(kind, "objective") == 0;
    FAIL_IF(!json_get_int(&module->root, "surogate_ir", &version) || version != IR_VERSION, ERR_INVALID,
            "%s: expected \"surogate_ir\": %d, found %lld; write it again with this version's tools", file, IR_VERSION, (long long)version);
    FAIL_IF(json_get(&module->root, is_objective ? "architecture" : "objective"), ERR_INVALID, "%s is %s", file,
            is_objective ? "a model; expected an objective, which python3 -m surogate.dsl build makes of a class with @objective"
                         : "an objective; a run file names it under objective, and a model under ir");
    FAIL_IF(!json_get_str(&module->root, kind, &name), ERR_INVALID, "%s: expected a text under \"%s\"", file, kind);
    if (!is_objective) module->architecture = name;
    static const char *const sections[] = {"config", "graph"};
    for (int i = is_objective; i < 2; i++) {
        const JsonValue *section = json_get(&module->root, sections[i]);
        FAIL_IF(!section || section->type != JSON_ARRAY, ERR_INVALID, "%s: expected an array under \"%s\"", file, sections[i]);
    }
    TRY(check_names(module));
    TRY(read_inputs(module));
    *out_module = module;
    return OK;
}

Status ir_module_parse(Arena *arena, const char *file, const char *text, size_t len, IrModule **out_module)
{
    return parse(arena, file, text, len, "architecture", out_module);
}

Status ir_objective_parse(Arena *arena, const char *file, const char *text, size_t len, IrModule **out_module)
{
    return parse(arena, file, text, len, "objective", out_module);
}

static bool declares(const IrModule *module, const char *input)
{
    for (int i = 0; i < module->num_inputs; i++)
        if (strcmp(module->inputs[i].name, input) == 0) return true;
    return false;
}

const IrModule *ir_module_declaring(const IrModule *module, const char *input)
{
    if (module->objective && declares(module->objective, input)) return module->objective;
    return declares(module, input) ? module : NULL;
}

Status ir_module_link(Arena *arena, const IrModule *model, const IrModule *objective, const IrNamespace *namespaces, int num_namespaces,
                      IrModule **out_module)
{
    IrModule *linked = arena_new(arena, IrModule);
    CHECK(num_namespaces <= IR_MOST_NAMESPACES);
    *linked = *model;
    linked->objective = objective;
    for (int i = 0; objective && i < objective->num_inputs; i++) {
        FAIL_IF(linked->num_inputs == IR_MOST_INPUTS, ERR_INVALID, "%s: inputs: with those of %s more than %d", objective->file,
                model->file, IR_MOST_INPUTS);
        linked->inputs[linked->num_inputs++] = objective->inputs[i];
    }
    for (int i = 0; i < num_namespaces; i++) {
        FAIL_IF(namespaces[i].module->num_inputs, ERR_UNSUPPORTED, "%s reads the input %s of its own, which nobody gives a %s model",
                namespaces[i].module->file, namespaces[i].module->inputs[0].name, namespaces[i].name);
        linked->namespaces[linked->num_namespaces++] = namespaces[i];
    }
    *out_module = linked;
    return OK;
}

static const IrSymbol *find_symbol(const IrDims *dims, const char *name)
{
    for (int i = 0; i < dims->num; i++)
        if (strcmp(dims->symbols[i].name, name) == 0) return &dims->symbols[i];
    return NULL;
}

Status ir_module_role(const IrModule *module, const IrDims *dims, IrRole role, const IrSymbol **out)
{
    const JsonValue *roles = json_get(&module->root, "roles");
    const char      *name;
    *out = NULL;
    if (!roles || !json_get_str(roles, role_names[role], &name)) return OK;
    *out = find_symbol(dims, name);
    FAIL_IF(!*out || (*out)->count, ERR_INVALID, "%s: roles: %s is %.100s, which is no symbol of one number", module->file,
            role_names[role], name);
    return OK;
}

bool ir_module_is_unread(const IrModule *module, const char *tensor)
{
    const JsonValue *unread = json_get(&module->root, "unread");
    size_t           len = strlen(tensor);
    for (uint32_t i = 0; unread && i < unread->count; i++) {
        const Str *end = &unread->items[i].string;
        if (len >= end->len && memcmp(tensor + len - end->len, end->data, end->len) == 0) return true;
    }
    return false;
}

const char *ir_module_prefix(const IrModule *module)
{
    const char *prefix = NULL;
    json_get_str(&module->root, "prefix", &prefix);
    return prefix;
}

bool ir_dims_get(const IrDims *dims, const char *name, double *out)
{
    const IrSymbol *symbol = find_symbol(dims, name);
    if (!symbol || symbol->count) return false;
    *out = symbol->value;
    return true;
}

Status ir_dims_at(const IrDims *dims, const char *name, const double *index, double *out)
{
    const IrSymbol *symbol = find_symbol(dims, name);
    FAIL_IF(!symbol, ERR_INVALID, "unknown symbol %s", name);
    FAIL_IF(index && !symbol->count, ERR_INVALID, "%s is one number; expected it without [ ]", name);
    FAIL_IF(!index && symbol->count, ERR_INVALID, "%s is a list of %lld; expected the index of one, as %s[i]", name,
            (long long)symbol->count, name);
    FAIL_IF(index && !(*index >= 0 && *index < (double)symbol->count && *index == floor(*index)), ERR_INVALID,
            "%s[%g]: expected an index from 0 to %lld", name, *index, (long long)symbol->count - 1);
    *out = index ? symbol->list[(int64_t)*index] : symbol->value;
    return OK;
}

/* Symbols, and `i`, the index of the list entry being evaluated. */
typedef struct EntryNames {
    const IrDims *dims;
    const double *entry; /* i; NULL: no list is being evaluated */
} EntryNames;

static Status lookup_names(const void *context, const char *name, const double *index, double *out)
{
    const EntryNames *names = context;
    if (!names->entry || index || strcmp(name, "i") != 0) return ir_dims_at(names->dims, name, index, out);
    *out = *names->entry;
    return OK;
}

/* "a.b" reads config["a"]["b"]. */
static const JsonValue *config_get(const JsonValue *config, const char *path)
{
    const char *dot = strchr(path, '.');
    char        head[128];
    if (!dot || (size_t)(dot - path) >= sizeof head) return json_get(config, path);
    memcpy(head, path, (size_t)(dot - path));
    head[dot - path] = 0;
    const JsonValue *inner = json_get(config, head);
    return inner ? config_get(inner, dot + 1) : NULL;
}

typedef struct Setting {
    const IrModule  *module;
    const JsonValue *entry;
    const JsonValue *config;
    const char      *config_name;
    const char      *key;     /* the spelling found in config.json, else the last one tried */
    bool             is_null; /* config.json has some of the spellings, but all with null */
} Setting;

/* Checks the value against the entry's "type"; an entry without a type accepts any. */
static Status check_type(const Setting *s, const JsonValue *value)
{
    const char *type;
    if (!json_get_str(s->entry, "type", &type)) return OK;
    bool is_01 = value->type == JSON_INT && (value->integer == 0 || value->integer == 1);
    if (strcmp(type, "number") == 0)
        FAIL_IF(value->type != JSON_INT && value->type != JSON_DOUBLE && value->type != JSON_STRING, ERR_INVALID,
                "%s: %s: expected a number, found %s", s->config_name, s->key,
                json_type_name(value->type)); /* setting_value rejects texts, with a better message */
    else if (strcmp(type, "flag") == 0)
        FAIL_IF(value->type != JSON_BOOL && !is_01, ERR_INVALID, "%s: %s: expected true or false, found %s", s->config_name, s->key,
                json_type_name(value->type));
    else if (strcmp(type, "text") == 0)
        FAIL_IF(value->type != JSON_STRING, ERR_INVALID, "%s: %s: expected a text, found %s", s->config_name, s->key,
                json_type_name(value->type));
    else
        FAIL(ERR_INVALID, "%s: type \"%.100s\"; expected number, flag or text", s->module->file, type);
    return OK;
}

static Status setting_from_choice(const Setting *s, const JsonValue *value, double *out)
{
    const JsonValue *choices = json_get(s->entry, "choices");
    const JsonValue *choice = choices ? json_get(choices, value->string.data) : NULL;
    if (choice && choice->type == JSON_INT) {
        *out = (double)choice->integer;
        return OK;
    }
    FAIL_IF(!choices || choices->type != JSON_OBJECT, ERR_INVALID, "%s: %s: expected a number, found the text \"%.100s\"", s->config_name,
            s->key, value->string.data);
    StrBuf known = {0};
    for (uint32_t i = 0; i < choices->count; i++) strbuf_printf(&known, "%s%s", i ? ", " : "", choices->members[i].key.data);
    Status status = status_fail(ERR_UNSUPPORTED, "%s: %s: \"%.100s\" isn't supported for %s; supported: %s", s->config_name, s->key,
                                value->string.data, s->module->architecture, strbuf_cstr(&known));
    strbuf_deinit(&known);
    return status;
}

static Status setting_value(const Setting *s, const JsonValue *value, double *out)
{
    TRY(check_type(s, value));
    switch (value->type) {
    case JSON_INT:
        *out = (double)value->integer;
        return OK;
    case JSON_DOUBLE:
        *out = value->number;
        return OK;
    case JSON_BOOL:
        *out = value->boolean;
        return OK;
    case JSON_STRING:
        return setting_from_choice(s, value, out);
    case JSON_ARRAY: /* one value per layer: all must be the same */
        *out = 0;
        for (uint32_t i = 0; i < value->count; i++) {
            double one = 0;
            TRY(setting_value(s, &value->items[i], &one));
            FAIL_IF(i && one != *out, ERR_UNSUPPORTED, "%s: %s: entries differ from layer to layer; %s has one kind of layer",
                    s->config_name, s->key, s->module->architecture);
            *out = one;
        }
        return OK;
    default:
        FAIL(ERR_INVALID, "%s: %s: expected a number, found %s", s->config_name, s->key, json_type_name(value->type));
    }
}

static Status check_range(const Setting *s, double value)
{
    double least = 0, most = 0;
    FAIL_IF(!isfinite(value), ERR_INVALID, "%s: %s: %g; expected a finite number", s->config_name, s->key, value);
    FAIL_IF(json_get_double(s->entry, "min", &least) && value < least, ERR_INVALID, "%s: %s: %g; expected at least %g", s->config_name,
            s->key, value, least);
    double above = 0;
    FAIL_IF(json_get_double(s->entry, "above", &above) && value <= above, ERR_INVALID, "%s: %s: %g; expected more than %g", s->config_name,
            s->key, value, above);
    FAIL_IF(json_get_double(s->entry, "max", &most) && value > most, ERR_INVALID, "%s: %s: %g; expected at most %g", s->config_name, s->key,
            value, most);
    bool integer = false;
    FAIL_IF(json_get_bool(s->entry, "integer", &integer) && integer && value != floor(value), ERR_INVALID,
            "%s: %s: %g; expected a whole number", s->config_name, s->key, value);
    return OK;
}

/* Finds the first spelling in config that isn't null; "key" of the entry is a text or an array of texts. */
static const JsonValue *setting_find(Setting *s)
{
    const JsonValue *key = json_get(s->entry, "key");
    bool             is_list = key && key->type == JSON_ARRAY;
    s->key = "";
    s->is_null = false;
    if (!key) json_get_str(s->entry, "symbol", &s->key); /* no key: the symbol is computed from others */
    for (uint32_t i = 0; key && i < (is_list ? key->count : 1); i++) {
        const JsonValue *spelling = is_list ? &key->items[i] : key;
        if (spelling->type != JSON_STRING) continue;
        s->key = spelling->string.data;
        const JsonValue *found = config_get(s->config, s->key);
        if (found && found->type != JSON_NULL) return found;
        s->is_null |= found != NULL;
    }
    return NULL;
}

static Status check_symbol(const IrModule *module, const char *symbol, const IrDims *dims)
{
    static const char *const reserved[] = {"B", "T", "P", "reach"};
    for (int i = 0; i < 4; i++)
        FAIL_IF(strcmp(symbol, reserved[i]) == 0, ERR_INVALID, "%s: symbol %s has a meaning already (rows, tokens, positions, longest row)",
                module->file, symbol);
    FAIL_IF(find_symbol(dims, symbol), ERR_INVALID, "%s: second symbol %s", module->file, symbol);
    return OK;
}

/* Collects why an expression has its value, in terms a user can look up: keys of config.json with their values. */
typedef struct Reasons {
    const IrModule  *module;
    const IrDims    *dims;
    const JsonValue *config;
    StrBuf          *text;
    bool            *is_told; /* by symbol: it was told already */
} Reasons;

/* ExprLookup that also writes down each symbol's origin: its key with the value, or the symbols in its default. */
static Status lookup_reasons(const void *context, const char *name, const double *index, double *out)
{
    const Reasons  *r = context;
    const IrSymbol *symbol = find_symbol(r->dims, name);
    if (symbol && !r->is_told[symbol - r->dims->symbols]) {
        Setting          s = {.config = r->config, .entry = &json_get(&r->module->root, "config")->items[symbol - r->dims->symbols]};
        const JsonValue *value = setting_find(&s);
        const char      *fallback;
        double           unused;
        r->is_told[symbol - r->dims->symbols] = true;
        if (value) {
            strbuf_printf(r->text, "%s%s is ", r->text->len ? ", " : "", s.key);
            if (value->type == JSON_STRING)
                strbuf_printf(r->text, "\"%.100s\"", value->string.data);
            else if (value->type == JSON_ARRAY || value->type == JSON_OBJECT)
                strbuf_puts(r->text, json_type_name(value->type));
            else
                json_write(r->text, value, -1);
        } else if (!symbol->count && json_get_str(s.entry, "default", &fallback)) {
            TRY(expr_eval(fallback, lookup_reasons, r, &unused));
        }
    }
    return ir_dims_at(r->dims, name, index, out);
}

/* Writes "rope_scaling.rope_type is \"yarn\"", for the symbols used in an expression; nothing if no symbol was read from a key. */
static void write_reasons(StrBuf *out, const IrModule *module, const IrDims *dims, const JsonValue *config, const char *expr)
{
    bool    is_told[IR_MAX_SYMBOLS] = {0};
    Reasons reasons = {.module = module, .dims = dims, .config = config, .text = out, .is_told = is_told};
    double  unused;
    if (expr_eval(expr, lookup_reasons, &reasons, &unused) != OK) strbuf_clear(out);
}

/* Writes what an entry may be: "a list of 8 numbers above 0". count 0: one value, no list. */
static void write_expected(StrBuf *out, const JsonValue *entry, int64_t count)
{
    const JsonValue *choices = json_get(entry, "choices");
    double           limit;
    bool             is_whole = false;
    if (choices && choices->type == JSON_OBJECT) {
        for (uint32_t i = 0; i < choices->count; i++) strbuf_printf(out, "%s\"%s\"", i ? " or " : "", choices->members[i].key.data);
        if (count) strbuf_printf(out, ", %lld times", (long long)count);
        return;
    }
    json_get_bool(entry, "integer", &is_whole);
    if (count)
        strbuf_printf(out, "a list of %lld%s numbers", (long long)count, is_whole ? " whole" : "");
    else
        strbuf_printf(out, "a %snumber", is_whole ? "whole " : "");
    if (json_get_double(entry, "min", &limit)) strbuf_printf(out, " of at least %g", limit);
    if (json_get_double(entry, "above", &limit)) strbuf_printf(out, " above %g", limit);
}

/* The spelling to recommend for a missing key: the first whose enclosing object config.json has, else the first of all. */
static const char *spelling_to_add(const JsonValue *entry, const JsonValue *config, const char *otherwise)
{
    const JsonValue *key = json_get(entry, "key");
    if (!key || key->type != JSON_ARRAY || !key->count || key->items[0].type != JSON_STRING) return otherwise;
    for (uint32_t i = 0; i < key->count; i++) {
        const char *text = key->items[i].type == JSON_STRING ? key->items[i].string.data : "", *dot = strrchr(text, '.');
        char        object[128];
        if (!dot || (size_t)(dot - text) >= sizeof object) continue;
        memcpy(object, text, (size_t)(dot - text));
        object[dot - text] = 0;
        const JsonValue *there = config_get(config, object);
        if (there && there->type != JSON_NULL) return text;
    }
    return key->items[0].string.data;
}

static Status fail_missing(const Setting *s, const IrDims *dims, const IrSymbol *symbol, const char *needed)
{
    StrBuf why = {0}, expected = {0};
    if (needed) write_reasons(&why, s->module, dims, s->config, needed);
    write_expected(&expected, s->entry, symbol->count);
    Status status = status_fail(ERR_INVALID,
                                "%s: %s: missing; %s needs it%s%s; expected %s: copy it from the config.json that the model was "
                                "published with",
                                s->config_name, spelling_to_add(s->entry, s->config, s->key), s->module->architecture,
                                why.len ? ", as " : "", strbuf_cstr(&why), strbuf_cstr(&expected));
    strbuf_deinit(&why);
    strbuf_deinit(&expected);
    return status;
}

/* The value of a key that is missing or null: its default, unless "needed_if" holds. */
static Status setting_absent(const Setting *s, const EntryNames *names, const IrSymbol *symbol, double *out)
{
    const char *fallback, *needed;
    double      is_needed = 0;
    Status      status = OK;
    if (json_get_str(s->entry, "needed_if", &needed)) status = expr_eval(needed, lookup_names, names, &is_needed);
    if (status != OK) return status_prefix(status, "%s: needed_if of %s", s->module->file, symbol->name);
    bool has_default = (s->is_null && json_get_str(s->entry, "null", &fallback)) || json_get_str(s->entry, "default", &fallback);
    if (is_needed != 0 || !has_default) return fail_missing(s, names->dims, symbol, is_needed != 0 ? needed : NULL);
    status = expr_eval(fallback, lookup_names, names, out);
    return status == OK ? OK : status_prefix(status, "%s: default of %s", s->module->file, symbol->name);
}

/* value NULL: the key is missing. */
static Status read_number(const Setting *s, const JsonValue *value, const EntryNames *names, const IrSymbol *symbol, double *out)
{
    if (value)
        TRY(setting_value(s, value, out));
    else
        TRY(setting_absent(s, names, symbol, out));
    return check_range(s, *out);
}

static Status fail_count(const Setting *s, const IrDims *dims, uint32_t found, double count, const char *per)
{
    StrBuf why = {0};
    write_reasons(&why, s->module, dims, s->config, per);
    Status status = status_fail(ERR_INVALID, "%s: %s: %u entries; expected %g%s%s", s->config_name, s->key, found, count,
                                why.len ? ", as " : "", strbuf_cstr(&why));
    strbuf_deinit(&why);
    return status;
}

/* Reads one number for each index below `per`: from an array, one value for all, or the default of each. */
static Status read_list(Arena *arena, const Setting *s, const char *per, const JsonValue *value, IrDims *dims, IrSymbol *symbol)
{
    EntryNames names = {.dims = dims};
    double     count, most = IR_MAX_LISTED - (double)dims->num_listed;
    Status     status = expr_eval(per, lookup_names, &names, &count);
    if (status != OK) return status_prefix(status, "%s: per of %s", s->module->file, symbol->name);
    FAIL_IF(!(count >= 1 && count <= most && count == floor(count)), ERR_INVALID, "%s: %s has %g values (%s); expected 1 to %g",
            s->module->file, symbol->name, count, per, most);
    bool is_array = value && value->type == JSON_ARRAY;
    if (is_array && value->count != count) return fail_count(s, dims, value->count, count, per);
    symbol->count = (int64_t)count;
    symbol->list = arena_array(arena, double, symbol->count);
    dims->num_listed += symbol->count;
    for (int64_t i = 0; i < symbol->count; i++) {
        double entry = (double)i;
        names.entry = &entry;
        TRY(read_number(s, is_array ? &value->items[i] : value, &names, symbol, &symbol->list[i]));
    }
    return OK;
}

static Status read_setting(Arena *arena, const IrModule *module, const JsonValue *entry, const JsonValue *config, const char *config_name,
                           IrDims *dims)
{
    Setting     s = {.module = module, .entry = entry, .config = config, .config_name = config_name};
    EntryNames  names = {.dims = dims};
    IrSymbol    symbol = {0};
    const char *per;
    FAIL_IF(!json_get_str(entry, "symbol", &symbol.name), ERR_INVALID, "%s: a config entry has no \"symbol\"", module->file);
    TRY(check_symbol(module, symbol.name, dims));
    FAIL_IF(dims->num == IR_MAX_SYMBOLS, ERR_INVALID, "%s: more than %d config entries", module->file, IR_MAX_SYMBOLS);
    const JsonValue *value = setting_find(&s), *keys = json_get(entry, "key");
    symbol.key = value || !keys || keys->type != JSON_ARRAY || !keys->count || keys->items[0].type != JSON_STRING
                     ? s.key
                     : keys->items[0].string.data;
    json_get_str(entry, "unused", &symbol.unused);
    if (json_get_str(entry, "per", &per))
        TRY(read_list(arena, &s, per, value, dims, &symbol));
    else
        TRY(read_number(&s, value, &names, &symbol, &symbol.value));
    dims->symbols[dims->num++] = symbol;
    return OK;
}

/* Whether `list` (texts, or objects with "key") has this key or, if is_object, a key inside it. */
static bool is_listed(const JsonValue *list, const char *key, bool is_object)
{
    size_t n = strlen(key);
    for (uint32_t i = 0; list && list->type == JSON_ARRAY && i < list->count; i++) {
        const JsonValue *item = &list->items[i];
        if (item->type == JSON_OBJECT) item = json_get(item, "key");
        if (!item) continue;
        if (item->type == JSON_ARRAY && is_listed(item, key, is_object)) return true;
        if (item->type != JSON_STRING || strncmp(item->string.data, key, n) != 0) continue;
        if (item->string.data[n] == 0 || (is_object && item->string.data[n] == '.')) return true;
    }
    return false;
}

static bool is_off(const JsonValue *value)
{
    return value->type == JSON_NULL || (value->type == JSON_BOOL && !value->boolean) || (value->type == JSON_INT && value->integer == 0) ||
           (value->type == JSON_DOUBLE && value->number == 0);
}

static Status check_unknown_key(const IrModule *module, const char *key, const JsonValue *value, const char *config_name)
{
    const JsonValue *refused = json_get(&module->root, "refused");
    if (is_off(value)) return OK;
    for (uint32_t k = 0; refused && refused->type == JSON_ARRAY && k < refused->count; k++) {
        const JsonValue *part = &refused->items[k];
        FAIL_IF(part->type == JSON_STRING && strstr(key, part->string.data), ERR_UNSUPPORTED,
                "%s: %.200s: this setting isn't supported for %s; remove it only if the model doesn't use it", config_name, key,
                module->architecture);
    }
    return OK;
}

/* Refuses a value that is no object for a key with settings inside it; a value that turns settings off (null, false, 0) passes. */
static Status check_is_object(const JsonValue *settings, const char *key, const JsonValue *value, const char *config_name)
{
    bool is_object = is_listed(settings, key, true) && !is_listed(settings, key, false);
    FAIL_IF(is_object && !is_off(value), ERR_INVALID, "%s: %.200s: expected an object, found %s", config_name, key,
            json_type_name(value->type));
    return OK;
}

/* An unknown key is an error if its name suggests that it changes the computation: ignoring it would train another model. The same holds
 * for keys inside an object that only some settings are read from (rope_scaling). */
static Status check_unknown_keys(const IrModule *module, const JsonValue *config, const char *config_name)
{
    const JsonValue *settings = json_get(&module->root, "config"), *ignored = json_get(&module->root, "ignored");
    for (uint32_t i = 0; i < config->count; i++) {
        const char      *key = config->members[i].key.data;
        const JsonValue *value = &config->members[i].value;
        char             path[256];
        bool             is_object = value->type == JSON_OBJECT, is_known = is_listed(settings, key, is_object);
        if (is_listed(ignored, key, true)) continue;
        if (!is_object) TRY(check_is_object(settings, key, value, config_name));
        if (!is_known) TRY(check_unknown_key(module, key, value, config_name));
        for (uint32_t k = 0; is_known && is_object && k < value->count; k++) {
            const JsonValue *inner = &value->members[k].value;
            snprintf(path, sizeof path, "%s.%s", key, value->members[k].key.data);
            if (!is_listed(settings, path, true)) TRY(check_unknown_key(module, path, inner, config_name));
            if (inner->type != JSON_OBJECT) TRY(check_is_object(settings, path, inner, config_name));
        }
    }
    return OK;
}

static Status fail_rule(const IrModule *module, const IrDims *dims, const JsonValue *config, const char *config_name, const char *that,
                        const char *message)
{
    StrBuf why = {0};
    write_reasons(&why, module, dims, config, that);
    Status status =
        status_fail(ERR_UNSUPPORTED, "%s: %s (%s%s%s)", config_name, message, module->architecture, why.len ? ": " : "", strbuf_cstr(&why));
    strbuf_deinit(&why);
    return status;
}

Status ir_module_dims(Arena *arena, const IrModule *module, const JsonValue *config, const char *config_name, IrDims *out)
{
    *out = (IrDims){0};
    EntryNames names = {.dims = out};
    out->symbols = arena_array(arena, IrSymbol, IR_MAX_SYMBOLS);
    FAIL_IF(config->type != JSON_OBJECT, ERR_INVALID, "%s: expected an object", config_name);
    const JsonValue *settings = json_get(&module->root, "config");
    for (uint32_t i = 0; i < settings->count; i++) TRY(read_setting(arena, module, &settings->items[i], config, config_name, out));
    const JsonValue *rules = json_get(&module->root, "require");
    for (uint32_t i = 0; rules && rules->type == JSON_ARRAY && i < rules->count; i++) {
        const char *that, *message;
        double      holds = 0;
        FAIL_IF(!json_get_str(&rules->items[i], "that", &that) || !json_get_str(&rules->items[i], "message", &message), ERR_INVALID,
                "%s: a rule needs \"that\" and \"message\"", module->file);
        Status status = expr_eval(that, lookup_names, &names, &holds);
        if (status != OK) return status_prefix(status, "%s: rule", module->file);
        if (holds == 0 || !isfinite(holds)) return fail_rule(module, out, config, config_name, that, message);
    }
    return check_unknown_keys(module, config, config_name);
}
