/* Porting: reads another tool's file into a Config by the rows of foreign.def. Absent keys get that tool's defaults. */
#include "port/port.h"

#include "files/file.h"
#include "port/port_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- reading the tree ---- */

const YamlNode *port_get(const YamlNode *map, const char *name)
{
    for (size_t i = 0; map && map->type == YAML_MAPPING && i < map->count; i++)
        if (map->keys[i]->type == YAML_SCALAR && strcmp(map->keys[i]->text.data, name) == 0)
            return yaml_is_null(map->items[i]) ? NULL : map->items[i];
    return NULL;
}

const YamlNode *port_key(const YamlNode *map, const char *name)
{
    for (size_t i = 0; map && map->type == YAML_MAPPING && i < map->count; i++)
        if (map->keys[i]->type == YAML_SCALAR && strcmp(map->keys[i]->text.data, name) == 0) return map->keys[i];
    return NULL;
}

const char *port_text(const YamlNode *map, const char *name)
{
    const YamlNode *value = port_get(map, name);
    return value && value->type == YAML_SCALAR ? value->text.data : NULL;
}

bool port_is_true(const YamlNode *map, const char *name)
{
    const char *text = port_text(map, name);
    bool        on;
    return text && bool_read(text, &on) && on;
}

bool port_is_false(const YamlNode *map, const char *name)
{
    const char *text = port_text(map, name);
    bool        on;
    return text && bool_read(text, &on) && !on;
}

bool port_number(const YamlNode *value, double *out)
{
    char *end;
    if (!value || value->type != YAML_SCALAR || !value->text.len) return false;
    *out = strtod(value->text.data, &end);
    return !*end && *out > -1e300 && *out < 1e300;
}

const char *port_origin(Port *port, const YamlNode *key, const char *prefix)
{
    return arena_printf(port->arena, "line %d: %s%s", key->line, prefix, key->text.data);
}

/* ---- what is told ---- */

void port_tell(Port *port, bool changes, const YamlNode *key, const char *prefix, const char *text)
{
    const char *line = arena_printf(port->arena, "%s: %s", port_origin(port, key, prefix), text);
    str_list_push(port->arena, changes ? &port->changes : &port->same, line);
}

void port_problem(Port *port, const YamlNode *key, const char *fmt, ...)
{
    char    text[900];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    reader_problem(&port->reader, key, "%s", text);
}

/* ---- our keys ---- */

static void *field_of(const PortTarget *target, ConfigKey key)
{
    return (char *)target->base + options[key].offset;
}

static void write_field(Port *port, const PortTarget *target, ConfigKey key, const YamlNode *value, const char *from)
{
    char label[200];
    snprintf(label, sizeof label, "%s%s", target->prefix, options[key].name);
    if (option_read(&port->reader, &options[key], label, value, field_of(target, key))) target->from[key] = from;
}

/* Removes the underscores of 500_000, which YAML 1.1 allows. */
static const YamlNode *without_underscores(Port *port, ConfigKey key, const YamlNode *value)
{
    bool is_number = options[key].kind == KIND_INT || options[key].kind == KIND_FLOAT;
    if (!is_number || value->type != YAML_SCALAR || !strchr(value->text.data, '_')) return value;
    if (value->text.len != strspn(value->text.data, "0123456789_.eE+-")) return value;
    YamlNode *node = arena_new(port->arena, YamlNode);
    char     *text = arena_strdup(port->arena, value->text.data), *out = text;
    for (const char *at = text; *at; at++)
        if (*at != '_') *out++ = *at;
    *out = 0;
    *node = *value;
    node->text = str_of(text);
    return node;
}

/* Whether the key is set already. Its first value stays; a different second value is reported. */
static bool is_taken(Port *port, const PortTarget *target, ConfigKey key, const YamlNode *value, const char *from)
{
    if (!target->from[key]) return false;
    StrBuf text = {0}, given = {0};
    config_print_value(&text, &options[key], field_of(target, key));
    if (value->type == YAML_SCALAR) strbuf_puts(&given, value->text.data);
    if (given.len && strcmp(strbuf_cstr(&text), given.data) != 0) {
        const char *line =
            arena_printf(port->arena, "%s: %s is %s already (%s)", from, options[key].name, strbuf_cstr(&text), target->from[key]);
        str_list_push(port->arena, options[key].effect == EFFECT_RESULT ? &port->changes : &port->same, line);
    }
    strbuf_deinit(&text);
    strbuf_deinit(&given);
    return true;
}

void port_take(Port *port, PortTarget *target, ConfigKey key, const YamlNode *value, const char *from)
{
    if (yaml_is_null(value) || is_taken(port, target, key, value, from)) return;
    write_field(port, target, key, without_underscores(port, key, value), from);
}

static YamlNode *as_text(Port *port, const char *text, size_t len)
{
    YamlNode *node = arena_new(port->arena, YamlNode);
    *node = (YamlNode){.type = YAML_SCALAR, .is_plain = true, .source = port->path, .text = {arena_strndup(port->arena, text, len), len}};
    return node;
}

/* Makes a value from a table's text; "[a, b]" gives a list where the key takes one. */
static const YamlNode *as_value(Port *port, ConfigKey key, const char *text)
{
    if (options[key].kind != KIND_LIST || text[0] != '[') return as_text(port, text, strlen(text));
    YamlNode *list = arena_new(port->arena, YamlNode);
    *list = (YamlNode){.type = YAML_SEQUENCE, .source = port->path, .items = arena_array(port->arena, YamlNode *, strlen(text))};
    for (const char *at = text + 1; *at && *at != ']';) {
        size_t len = strcspn(at, ",]");
        list->items[list->count++] = as_text(port, at, len);
        at += len;
        at += strspn(at, ", ");
    }
    return list;
}

void port_set(Port *port, PortTarget *target, ConfigKey key, const char *value, const char *from)
{
    port_take(port, target, key, as_value(port, key, value), from);
}

void port_set_number(Port *port, ConfigKey key, double value, const char *from)
{
    port_set(port, &port->run, key, arena_printf(port->arena, "%.10g", value), from);
}

void port_replace(Port *port, PortTarget *target, ConfigKey key, const char *value, const char *from)
{
    target->from[key] = NULL;
    port_set(port, target, key, value, from);
}

void port_unset(Port *port, PortTarget *target, ConfigKey key)
{
    target->from[key] = NULL;
    option_reset(port->arena, &options[key], field_of(target, key));
}

/* ---- rows ---- */

/* item: the list item that the row is for, if a list's items are read one by one; NULL: the row is for the whole value. */
static void apply_row(Port *port, const ForeignKey *row, const PortPair *pair, const char *item)
{
    const char *prefix = pair->target->prefix, *from = port_origin(port, pair->key, prefix), *text = row->text;
    if (item && text) text = arena_printf(port->arena, "%s: %s", item, text);
    switch (row->how) {
    case FOREIGN_TAKES:
        port_take(port, pair->target, row->key, pair->value, from);
        break;
    case FOREIGN_MEANS:
    case FOREIGN_DIFFERS:
        port_set(port, pair->target, row->key, row->ours, from);
        if (text) port_tell(port, row->how == FOREIGN_DIFFERS, pair->key, prefix, text);
        break;
    case FOREIGN_NOTHING:
    case FOREIGN_LOST:
        port_tell(port, row->how == FOREIGN_LOST, pair->key, prefix, text);
        break;
    case FOREIGN_LACKS:
        port_problem(port, pair->key, "%s%s: not supported here: %s", prefix, pair->key->text.data, row->text);
        break;
    case FOREIGN_READS:
        row->read(port, pair);
        break;
    }
}

static void unknown_key(Port *port, const PortPair *pair)
{
    const char *name = pair->key->text.data, *near = foreign_nearest(port->tool, pair->target->scope, name);
    bool        is_text = pair->value->type == YAML_SCALAR;
    if (near && strcmp(near, name) == 0)
        port_problem(port, pair->value, "%s%.100s: %s%.100s%s is no value that is known of this key", pair->target->prefix, name,
                     is_text ? "\"" : "", is_text ? pair->value->text.data : yaml_type_name(pair->value), is_text ? "\"" : "");
    else if (near)
        port_problem(port, pair->key, "%s%.100s: unknown key; did you mean %s?", pair->target->prefix, name, near);
    else
        port_tell(port, true, pair->key, pair->target->prefix, "no key that is known of this tool; it is left out");
}

void port_value(Port *port, const PortPair *pair)
{
    const ForeignKey *row = foreign_row(port->tool, pair->target->scope, pair->key->text.data, pair->value);
    if (!row) {
        if (!value_is_inert(pair->value)) unknown_key(port, pair);
        return;
    }
    bool is_own = row->how == FOREIGN_TAKES || row->how == FOREIGN_READS;
    if (!is_own && !row->value && value_is_inert(pair->value)) return;
    if (!is_own && row->value && pair->value->type == YAML_SEQUENCE) {
        for (size_t i = 0; i < pair->value->count; i++) {
            PortPair item = *pair;
            item.value = pair->value->items[i];
            const ForeignKey *of_item = foreign_row(port->tool, pair->target->scope, pair->key->text.data, item.value);
            if (of_item && item.value->type == YAML_SCALAR) apply_row(port, of_item, &item, item.value->text.data);
        }
        return;
    }
    for (; row; row = foreign_next(row, port->tool)) apply_row(port, row, pair, NULL);
}

static bool is_same_text(const YamlNode *a, const YamlNode *b)
{
    return a->type == YAML_SCALAR && b->type == YAML_SCALAR && strcmp(a->text.data, b->text.data) == 0;
}

/* An earlier occurrence of the key with another value; NULL: none. YAML readers differ on which of the two counts. */
static const YamlNode *given_before(const YamlNode *map, size_t index)
{
    for (size_t i = 0; i < index; i++)
        if (is_same_text(map->keys[i], map->keys[index]) && !is_same_text(map->items[i], map->items[index])) return map->keys[i];
    return NULL;
}

void port_mapping(Port *port, const YamlNode *map, PortTarget *target, PortDataset *dataset)
{
    enum { MOST_KEYS = 1000 };
    if (map->count > MOST_KEYS) {
        port_problem(port, map, "%zu keys, at most %d are read", map->count, MOST_KEYS);
        return;
    }
    for (size_t i = 0; i < map->count; i++) {
        PortPair        pair = {map->keys[i], map->items[i], map, target, dataset};
        const YamlNode *before = pair.key->type == YAML_SCALAR ? given_before(map, i) : NULL;
        if (pair.key->type != YAML_SCALAR)
            port_problem(port, pair.key, "expected a key, found %s", yaml_type_name(pair.key));
        else if (before)
            port_problem(port, pair.key, "%s%s is given twice, with other values; first in line %d", target->prefix, pair.key->text.data,
                         before->line);
        else if (!yaml_is_null(pair.value))
            port_value(port, &pair);
    }
}

PortDataset *port_add_dataset(Port *port, PortDatasets *list, const YamlNode *node)
{
    if (list->count == MOST_PORT_DATASETS) {
        port_problem(port, node, "more than %d datasets", MOST_PORT_DATASETS);
        return NULL;
    }
    PortDataset *out = arena_new(port->arena, PortDataset);
    memset(out, 0, sizeof *out);
    const char *label = list == &port->datasets ? "datasets" : "validation_datasets";
    out->target = (PortTarget){SCOPE_dataset, &out->dataset, out->from, arena_printf(port->arena, "%s[%zu].", label, list->count)};
    for (int i = 0; i < CONFIG_KEY_COUNT; i++)
        if (options[i].scope == SCOPE_dataset) option_reset(port->arena, &options[i], field_of(&out->target, i));
    list->items[list->count++] = out;
    return out;
}

/* ---- the whole ---- */

static const char *default_text(Arena *arena, const ForeignDefault *row, const Config *config)
{
    if (!row->is_twice) return row->value;
    return arena_printf(arena, "%.10g", 2 * (double)*(const int64_t *)((const char *)config + options[row->twice].offset));
}

static void set_default(Port *port, const ForeignDefault *row)
{
    if (!(row->tools & port->tool) || port->from[row->key] || port->has_no_default[row->key]) return;
    if (option_unmet(row->key, &port->config)) return;
    port_set(port, &port->run, row->key, default_text(port->arena, row, &port->config),
             arena_printf(port->arena, "%s's default: %s", foreign_title(port->tool), row->where));
}

void port_default(Port *port, ConfigKey key)
{
    for (size_t i = 0; i < num_foreign_defaults; i++)
        if (foreign_defaults[i].key == key) set_default(port, &foreign_defaults[i]);
}

static void set_defaults(Port *port)
{
    for (size_t i = 0; i < num_foreign_defaults; i++) set_default(port, &foreign_defaults[i]);
}

/* Drops keys that have no effect together with the other keys. */
static void drop_idle(Port *port, PortTarget *target)
{
    for (int i = 0; i < CONFIG_KEY_COUNT; i++) {
        if (!target->from[i] || options[i].kind == KIND_DATASETS) continue;
        if (!option_is_on(&options[i], field_of(target, i)) || !option_unmet(i, target->base)) continue;
        StrBuf text = {0};
        option_write_need(&text, option_unmet(i, target->base), "");
        str_list_push(port->arena, &port->same, arena_printf(port->arena, "%s: no effect %s", target->from[i], strbuf_cstr(&text)));
        strbuf_deinit(&text);
        target->from[i] = NULL;
    }
}

static void drop_idle_of(Port *port, PortDatasets *list)
{
    for (size_t i = 0; i < list->count; i++) drop_idle(port, &list->items[i]->target);
}

static Status find_tool(const YamlNode *root, const PortOptions *given, const char *path, unsigned *out)
{
    if (given->from) return foreign_find(given->from, out);
    *out = foreign_recognise(root, NULL);
    FAIL_IF(!*out, ERR_INVALID, "%s: its keys don't tell which tool it is for; say --from axolotl, llamafactory, llamafactory-v1 or trl",
            path);
    return OK;
}

static const char *model_key(unsigned tool)
{
    return tool == AXOLOTL ? "base_model" : tool == FACTORY_V1 ? "model" : "model_name_or_path";
}

static void read_tree(Port *port)
{
    for (int i = 0; i < CONFIG_KEY_COUNT; i++)
        if (options[i].scope == SCOPE_run) option_reset(port->arena, &options[i], field_of(&port->run, i));
    port_mapping(port, port->root, &port->run, NULL);
    port->config.datasets.count = port->datasets.count; /* readers of the config need only the count */
    port->config.validation_datasets.count = port->validation.count;
    port_finish_datasets(port);
    port_finish(port);
    set_defaults(port);
    drop_idle(port, &port->run);
    drop_idle_of(port, &port->datasets);
    drop_idle_of(port, &port->validation);
    if (!port->config.model) port_problem(port, port->root, "no model is named: %s", model_key(port->tool));
    if (!port->datasets.count && !port->reader.num_problems) port_problem(port, port->root, "no datasets are named");
}

static Status give_problems(Port *port, StrBuf *problems)
{
    if (problems) strbuf_puts(problems, port->problems.data);
    FAIL(ERR_INVALID, "%.*s", (int)port->problems.len - 1, port->problems.data);
}

/* Checks that the written run file is accepted by our parser. */
static Status check_written(const Port *port, const StrBuf *out)
{
    Config config;
    char   name[256];
    snprintf(name, sizeof name, "%.200s as ported", port->path);
    Status status = config_parse(name, strbuf_cstr(out), out->len, NULL, 0, &config, NULL);
    if (status == OK) config_deinit(&config);
    return status;
}

static Status port_tree(Port *port, StrBuf *out, StrList *out_lost, StrBuf *problems)
{
    StrBuf notes = {0}, text = {0};
    port->reader = (ConfigReader){.arena = port->arena, .problems = &port->problems, .notes = &notes};
    port->run = (PortTarget){SCOPE_run, &port->config, port->from, ""};
    read_tree(port);
    Status status = port->reader.num_problems ? give_problems(port, problems) : OK;
    if (status == OK) {
        port_write(port, &text);
        status = check_written(port, &text);
        if (status != OK && problems) strbuf_printf(problems, "%s\n", status_message());
    }
    if (status == OK) strbuf_append(out, text.data, text.len);
    *out_lost = port->changes;
    strbuf_deinit(&notes);
    strbuf_deinit(&text);
    strbuf_deinit(&port->problems);
    return status;
}

static Status parse_root(Arena *arena, const char *path, const char *text, size_t len, const YamlNode **out)
{
    YamlNode *root;
    TRY(yaml_parse(arena, path, text, len, &root));
    FAIL_IF(root->type != YAML_MAPPING, ERR_INVALID, "%s: expected lines of \"key: value\", found %s", path, yaml_type_name(root));
    *out = root;
    return OK;
}

Status port_parse(Arena *arena, const char *path, const char *text, size_t len, const PortOptions *given, StrBuf *out, StrList *out_lost,
                  StrBuf *problems)
{
    const YamlNode *root;
    unsigned        tool;
    TRY(parse_root(arena, path, text, len, &root));
    TRY(find_tool(root, given, path, &tool));
    Port *port = arena_new(arena, Port);
    *port = (Port){.arena = arena, .tool = tool, .path = path, .dataset_dir = given->dataset_dir, .root = root};
    return port_tree(port, out, out_lost, problems);
}

Status port_file(Arena *arena, const char *path, const PortOptions *given, StrBuf *out, StrList *out_lost, StrBuf *problems)
{
    Str text;
    TRY(file_read_stream(arena, path, YAML_MAX_BYTES, &text));
    return port_parse(arena, path, text.data, text.len, given, out, out_lost, problems);
}

/* ---- run files that aren't ported ---- */

/* The tool that a run file belongs to; 0: unknown, or the file can't be read. */
static unsigned tool_of(Arena *arena, const char *path, const YamlNode **out_root, const char **out_key)
{
    Str text;
    if (!path || file_read_stream(arena, path, YAML_MAX_BYTES, &text) != OK) return 0;
    if (parse_root(arena, path, text.data, text.len, out_root) != OK) return 0;
    return foreign_recognise(*out_root, out_key);
}

void port_hint(const char *path, StrBuf *out)
{
    Arena           arena = {0};
    const YamlNode *root;
    const char     *key = NULL;
    unsigned        tool = tool_of(&arena, path, &root, &key);
    if (tool)
        strbuf_printf(out, "%s looks like a run file of %s (%s). `surogate port %s --out run.yaml` writes it as one of ours", path,
                      foreign_title(tool), key, path);
    arena_deinit(&arena);
}

/* ours: receives our default of an absent key. out: receives the tool's default, as a value of our key; empty if it equals ours. */
static void write_other(Arena *arena, const ForeignDefault *row, const Config *config, StrBuf *ours, StrBuf *out)
{
    const OptionInfo *option = &options[row->key];
    Config            other = *config;
    StrBuf            notes = {0};
    ConfigReader      reader = {.arena = arena, .problems = &notes, .notes = &notes};
    void             *field = (char *)&other + option->offset;
    Port              port = {.arena = arena, .path = ""};
    strbuf_clear(ours);
    strbuf_clear(out);
    config_print_value(ours, option, field);
    CHECK(option_read(&reader, option, option->name, as_value(&port, row->key, default_text(arena, row, &other)), field));
    config_print_value(out, option, field);
    if (strcmp(strbuf_cstr(ours), strbuf_cstr(out)) == 0) strbuf_clear(out);
    strbuf_deinit(&notes);
}

/* Whether the row belongs to the tool, and its key is absent from the run file but affects the result of this run. */
static bool counts(const ForeignDefault *row, unsigned tool, const Config *config)
{
    return (row->tools & tool) && options[row->key].effect == EFFECT_RESULT && !config->origin[row->key] && !option_unmet(row->key, config);
}

/* Whether a dataset has instructions without a prompt_format. Axolotl's `type: alpaca` then has a prompt text of its own, whatever the chat
 * template is. */
static bool has_bare_instructions(const DatasetList *list)
{
    bool found = false;
    for (size_t i = 0; i < list->count; i++) found |= list->items[i].type == OPT_DATASET_INSTRUCTION && !list->items[i].prompt_format;
    return found;
}

void port_differences(const char *path, const Config *config, StrBuf *out)
{
    Arena           arena = {0};
    const YamlNode *root;
    const char     *key = NULL;
    unsigned        tool = tool_of(&arena, path, &root, &key);
    StrBuf          list = {0}, ours = {0}, theirs = {0};
    for (size_t i = 0; tool && i < num_foreign_defaults; i++) {
        const ForeignDefault *row = &foreign_defaults[i];
        if (!counts(row, tool, config)) continue;
        write_other(&arena, row, config, &ours, &theirs);
        if (theirs.len) strbuf_printf(&list, "%s%s %s (there %s)", list.len ? ", " : "", options[row->key].name, ours.data, theirs.data);
    }
    if (tool == AXOLOTL && has_bare_instructions(&config->datasets))
        strbuf_printf(&list, "%sprompt_format, of instructions, is the chat template's (there that of type)", list.len ? ", " : "");
    if (list.len)
        strbuf_printf(out,
                      "%s has keys of %s (%s); what it leaves out has the defaults of this program: %s. `surogate port %s` writes %s's",
                      path, foreign_title(tool), key, list.data, path, foreign_title(tool));
    strbuf_deinit(&list);
    strbuf_deinit(&ours);
    strbuf_deinit(&theirs);
    arena_deinit(&arena);
}
