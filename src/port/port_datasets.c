/* Datasets of Axolotl and TRL, whose items name a layout. */
#include "config/roles.h"
#include "files/file.h"
#include "port/port_internal.h"

#include <fnmatch.h>
#include <string.h>

typedef struct Layout {
    const char *name, *type, *messages, *instruction, *input, *output, *system, *prompt, *prompt_no_input, *text;
} Layout;

static const Layout layouts[] = {
#define LAYOUT(...) {__VA_ARGS__},
#include "port/layouts.def"
};

static void set_text(Port *port, PortTarget *target, ConfigKey key, const char *text, const char *from)
{
    YamlNode *node = arena_new(port->arena, YamlNode);
    *node = (YamlNode){.type = YAML_SCALAR, .source = port->path, .text = text ? str_of(text) : str_of("")};
    if (text) port_take(port, target, key, node, from);
}

static void apply_layout(Port *port, const PortPair *pair, const Layout *layout)
{
    const char *from = port_origin(port, pair->key, pair->target->prefix);
    PortTarget *target = pair->target;
    port_set(port, target, KEY_dataset_type, layout->type, from);
    set_text(port, target, KEY_dataset_prompt_format, layout->prompt, from);
    set_text(port, target, KEY_dataset_prompt_format_no_input, layout->prompt_no_input, from);
    set_text(port, target, KEY_dataset_messages_field, port_text(pair->map, "field_messages") ? NULL : layout->messages, from);
    set_text(port, target, KEY_dataset_instruction_field, layout->instruction, from);
    set_text(port, target, KEY_dataset_input_field, layout->input, from);
    set_text(port, target, KEY_dataset_output_field, layout->output, from);
    set_text(port, target, KEY_dataset_system_prompt_field, layout->system, from);
    if (layout->prompt) port_set(port, target, KEY_dataset_system_prompt_type, "none", from);
    if (layout->text) port_tell(port, true, pair->key, target->prefix, layout->text);
    port->is_pretraining |= strcmp(layout->type, "text") == 0;
}

/* Converts one of Axolotl's formats to ours. The system prompt, from the file or the row, goes in front. */
static const char *whole_format(Port *port, const YamlNode *type, const char *format)
{
    const char *system = port_text(type, "system_prompt"), *frame = port_text(type, "system_format");
    if (!system || !*system) return arena_printf(port->arena, "%s%s", frame ? frame : "{system}", format);
    const char *place = frame ? strstr(frame, "{system}") : NULL;
    if (!place) return arena_printf(port->arena, "%s%s", frame ? frame : system, format);
    return arena_printf(port->arena, "%.*s%s%s%s", (int)(place - frame), frame, system, place + strlen("{system}"), format);
}

/* Reads a layout that the file describes itself: type: {field_instruction: ..., format: ...}. */
static void read_own_layout(Port *port, const PortPair *pair)
{
    static const struct {
        const char *name;
        ConfigKey   key;
    } fields[] = {{"field_instruction", KEY_dataset_instruction_field},
                  {"field_input", KEY_dataset_input_field},
                  {"field_output", KEY_dataset_output_field}};
    const YamlNode *type = pair->value;
    const char     *from = port_origin(port, pair->key, pair->target->prefix);
    const char     *format = port_text(type, "format"), *alone = port_text(type, "no_input_format");
    const char     *system = port_text(type, "system_prompt"), *column = port_text(type, "field_system");
    port_set(port, pair->target, KEY_dataset_type, "instruction", from);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        set_text(port, pair->target, fields[i].key, port_text(type, fields[i].name), from);
    set_text(port, pair->target, KEY_dataset_prompt_format, whole_format(port, type, format ? format : "{instruction} {input} "), from);
    set_text(port, pair->target, KEY_dataset_prompt_format_no_input, whole_format(port, type, alone ? alone : "{instruction} "), from);
    if (system && *system)
        port_set(port, pair->target, KEY_dataset_system_prompt_type, "none", from);
    else if (column && strcmp(column, "system") != 0) /* a column named `system` is read where a row has it, without being declared */
        set_text(port, pair->target, KEY_dataset_system_prompt_field, column, from);
}

void port_read_dataset_type(Port *port, const PortPair *pair)
{
    if (pair->value->type == YAML_MAPPING) {
        read_own_layout(port, pair);
        return;
    }
    const Layout *layout = layouts;
    const char   *name = pair->value->type == YAML_SCALAR ? pair->value->text.data : "";
    while (fnmatch(layout->name, name, 0) != 0) layout++;
    if (*layout->type)
        apply_layout(port, pair, layout);
    else
        port_problem(port, pair->value, "%stype: not supported here: %.80s: %s", pair->target->prefix, name, layout->text);
}

/* Whether `path` is a kind of file ("json", "parquet"); data_files lists the files then. */
static bool is_builder(const char *path)
{
    return strcmp(path, "json") == 0 || strcmp(path, "csv") == 0 || strcmp(path, "parquet") == 0 || strcmp(path, "text") == 0;
}

/* The value of data_files, or its member for the split that is taken. NULL: none. */
static const YamlNode *files_of(Port *port, const YamlNode *map)
{
    const YamlNode *files = port_get(map, "data_files");
    const char     *split = port_text(map, "split");
    if (!files || files->type != YAML_MAPPING) return files;
    if (!split) split = "train";
    return port_get(files, arena_strndup(port->arena, split, strcspn(split, "[")));
}

/* The first file of data_files, and the list that contains it. */
static const YamlNode *first_file(Port *port, const YamlNode *map, const YamlNode **out_list)
{
    const YamlNode *files = files_of(port, map);
    *out_list = files && files->type == YAML_SEQUENCE ? files : NULL;
    return !files || files->type == YAML_SCALAR ? files : files->type == YAML_SEQUENCE && files->count ? files->items[0] : NULL;
}

static void tell_subset(Port *port, const PortPair *pair, const YamlNode *key_map, const char *name)
{
    for (size_t i = 0; i < key_map->count; i++)
        if (key_map->keys[i]->type == YAML_SCALAR && strcmp(key_map->keys[i]->text.data, name) == 0 && !value_is_inert(key_map->items[i]))
            port_tell(
                port, true, key_map->keys[i], pair->target->prefix,
                "all files of the repository are read; `surogate pull --dataset` with --include takes some, and path names that folder");
}

/* Reads a dataset whose path is a kind of file: its files, or the one folder that holds them all. */
static void read_builder(Port *port, const PortPair *pair, const YamlNode *file, const YamlNode *list, const char *from)
{
    const char *dir = port->tool == TRL ? port_text(pair->map, "data_dir") : NULL;
    bool        is_below = dir && file && file->type == YAML_SCALAR && file->text.data[0] != '/' && !strstr(file->text.data, "://");
    if (is_below)
        set_text(port, pair->target, KEY_dataset_path, arena_printf(port->arena, "%s/%s", dir, file->text.data), from);
    else if (file)
        port_take(port, pair->target, KEY_dataset_path, file, from);
    else if (dir && !port_get(pair->map, "data_files"))
        set_text(port, pair->target, KEY_dataset_path, dir, from);
    else
        port_take(port, pair->target, KEY_dataset_path, pair->value, from);
    if (!file && port_get(pair->map, "data_files"))
        port_problem(port, pair->value, "%spath: %s names a kind of file, and data_files none of this split", pair->target->prefix,
                     pair->value->text.data);
    if (list && list->count > 1)
        port_problem(port, list, "%sdata_files: several files; name their folder or a glob as path, or a dataset for each",
                     pair->target->prefix);
}

void port_read_dataset_path(Port *port, const PortPair *pair)
{
    const YamlNode *list, *file = first_file(port, pair->map, &list);
    const char     *from = port_origin(port, pair->key, pair->target->prefix);
    bool            is_kind = pair->value->type == YAML_SCALAR && is_builder(pair->value->text.data);
    if (is_kind) {
        read_builder(port, pair, file, list, from);
        return;
    }
    bool        is_dir = false;
    const char *folder = pair->value->type == YAML_SCALAR ? pair->value->text.data : "";
    if (file && file->type == YAML_SCALAR && !list && file_is_dir(folder, &is_dir) == OK && is_dir) {
        set_text(port, pair->target, KEY_dataset_path, arena_printf(port->arena, "%s/%s", folder, file->text.data), from);
        return;
    }
    status_clear();
    port_take(port, pair->target, KEY_dataset_path, pair->value, from);
    tell_subset(port, pair, pair->map, "data_files");
    if (port->tool == TRL) tell_subset(port, pair, pair->map, "data_dir");
    tell_subset(port, pair, pair->map, "name");
}

/* Merges message_field_role and message_field_content into one mapping. */
void port_read_message_field(Port *port, const PortPair *pair)
{
    const char *role = port_text(pair->map, "message_field_role"), *content = port_text(pair->map, "message_field_content");
    if (pair->target->from[KEY_dataset_message_property_mappings]) return;
    const char *text = arena_printf(port->arena, "{role: \"%s\", content: \"%s\"}", role ? role : "role", content ? content : "content");
    YamlNode   *map;
    if (yaml_parse(port->arena, port->path, text, strlen(text), &map) != OK)
        port_problem(port, pair->key, "%s%s: expected the name of a field", pair->target->prefix, pair->key->text.data);
    else
        port_take(port, pair->target, KEY_dataset_message_property_mappings, map, port_origin(port, pair->key, pair->target->prefix));
}

bool port_has_role(const char *spelling, const char *role)
{
    const char *known = role_known(spelling);
    return strcmp(known ? known : spelling, role) == 0;
}

/* Whether the spelling names a side of ShareGPT. These names decide who is trained, not how a role is called. */
static bool is_side(const char *spelling, const char *side)
{
    bool answers = port_has_role(spelling, "assistant");
    return role_known(spelling) && ((!answers && strcmp(side, "input") == 0) || (answers && strcmp(side, "output") == 0));
}

/* Reads {role: [spellings]}. */
void port_read_roles(Port *port, const PortPair *pair)
{
    const YamlNode *map = pair->value;
    bool            fits = map->type == YAML_MAPPING;
    if (value_is_inert(map)) return;
    for (size_t i = 0; i < map->count && map->type == YAML_MAPPING; i++) {
        const YamlNode *names = map->items[i];
        const char     *role = map->keys[i]->type == YAML_SCALAR ? map->keys[i]->text.data : "";
        if (yaml_is_null(names)) continue;
        for (size_t k = 0; k < (names->type == YAML_SCALAR ? 1 : names->count); k++) {
            const YamlNode *name = names->type == YAML_SCALAR ? names : names->items[k];
            const char     *text = name->type == YAML_SCALAR ? name->text.data : "";
            fits = fits && (port_has_role(text, role) || is_side(text, role));
        }
    }
    if (fits)
        port_tell(port, false, pair->key, pair->target->prefix, "user, human, assistant, gpt, system and the like are known");
    else
        port_problem(port, pair->key,
                     "%sroles: not supported here: other names of roles: write user, assistant, system or tool in the rows, or names that "
                     "are known, as human and gpt",
                     pair->target->prefix);
}

void port_read_roles_to_train(Port *port, const PortPair *pair)
{
    bool answers = false, others = false;
    for (size_t i = 0; i < pair->value->count || (pair->value->type == YAML_SCALAR && i == 0); i++) {
        const YamlNode *role = pair->value->type == YAML_SCALAR ? pair->value : pair->value->items[i];
        bool            is_answer = role->type == YAML_SCALAR && (!strcmp(role->text.data, "assistant") || !strcmp(role->text.data, "gpt"));
        answers |= is_answer;
        others |= !is_answer;
    }
    const char *from = port_origin(port, pair->key, pair->target->prefix);
    port_set(port, pair->target, KEY_dataset_train_on, others ? "all" : "assistant", from);
    if (others || !answers) port_tell(port, true, pair->key, pair->target->prefix, "train_on knows answers, the last turn, or all tokens");
}

static void read_list(Port *port, const PortPair *pair, PortDatasets *list)
{
    const YamlNode *value = pair->value;
    bool            is_list = value->type == YAML_SEQUENCE;
    for (size_t i = 0; i < (is_list ? value->count : 1); i++) {
        const YamlNode *item = is_list ? value->items[i] : value;
        PortDataset    *dataset = port_add_dataset(port, list, item);
        if (!dataset) return;
        if (item->type == YAML_MAPPING)
            port_mapping(port, item, &dataset->target, dataset);
        else
            port_take(port, &dataset->target, KEY_dataset_path, item, port_origin(port, pair->key, ""));
        if (!dataset->dataset.path) port_problem(port, item, "%s: a dataset without path", pair->key->text.data);
    }
}

void port_read_datasets(Port *port, const PortPair *pair)
{
    read_list(port, pair, &port->datasets);
}

void port_read_test_datasets(Port *port, const PortPair *pair)
{
    read_list(port, pair, &port->validation);
}

void port_read_trl_datasets(Port *port, const PortPair *pair)
{
    read_list(port, pair, &port->datasets);
}

/* Reads datasets whose items are text, whatever type they name. */
void port_read_pretraining(Port *port, const PortPair *pair)
{
    size_t first = port->datasets.count;
    read_list(port, pair, &port->datasets);
    for (size_t i = first; i < port->datasets.count; i++)
        port_replace(port, &port->datasets.items[i]->target, KEY_dataset_type, "text", port_origin(port, pair->key, ""));
    port->is_pretraining = true;
}

static void add_trl_dataset(Port *port, const PortPair *pair, PortDatasets *list, const char *split_key, const char *fallback)
{
    PortDataset *dataset = port_add_dataset(port, list, pair->value);
    const char  *split = port_text(port->root, split_key), *from = port_origin(port, pair->key, "");
    port_take(port, &dataset->target, KEY_dataset_path, pair->value, from);
    port_set(port, &dataset->target, KEY_dataset_split, split ? split : fallback, split ? split_key : "TRL's default");
}

void port_read_trl_dataset(Port *port, const PortPair *pair)
{
    if (port_get(port->root, "datasets")) {
        port_tell(port, false, pair->key, "", "datasets takes its place there too");
        return;
    }
    const char *when = port_text(port->root, "eval_strategy");
    add_trl_dataset(port, pair, &port->datasets, "dataset_train_split", "train");
    if (when && strcmp(when, "no") != 0) add_trl_dataset(port, pair, &port->validation, "dataset_test_split", "test");
    tell_subset(port, pair, port->root, "dataset_config");
}

/* Reads the Alignment Handbook's dataset_mixer: repository -> share of its rows. */
void port_read_mixer(Port *port, const PortPair *pair)
{
    for (size_t i = 0; pair->value->type == YAML_MAPPING && i < pair->value->count; i++) {
        PortDataset *dataset = port_add_dataset(port, &port->datasets, pair->value);
        const char  *from = port_origin(port, pair->key, "");
        if (!dataset) return;
        port_take(port, &dataset->target, KEY_dataset_path, pair->value->keys[i], from);
        port_take(port, &dataset->target, KEY_dataset_weight, pair->value->items[i], from);
        const YamlNode *splits = port_get(port->root, "dataset_splits");
        if (splits && splits->type == YAML_SEQUENCE && splits->count)
            port_take(port, &dataset->target, KEY_dataset_split, splits->items[0], "dataset_splits");
    }
    if (!port->datasets.count) port_problem(port, pair->value, "%s: expected a mapping of datasets", pair->key->text.data);
}

/* Reads dataset_mixture, which replaced dataset_mixer: a list of datasets, and a share of rows to hold out. */
void port_read_mixture(Port *port, const PortPair *pair)
{
    const YamlNode *list = port_get(pair->value, "datasets"), *part = port_get(pair->value, "test_split_size");
    PortPair        inner = *pair;
    inner.value = list;
    if (list)
        read_list(port, &inner, &port->datasets);
    else
        port_problem(port, pair->value, "%s: expected a mapping with a list, datasets", pair->key->text.data);
    inner.value = part;
    if (part) port_read_held_out(port, &inner);
}

/* Copies a system prompt and a number of rows to all datasets. */
static void share(Port *port, PortDatasets *list)
{
    const char     *system_key = port->tool == AXOLOTL ? "default_system_message" : port->tool == TRL ? "system_prompt" : "default_system";
    const char     *system = port_text(port->root, system_key);
    const YamlNode *most = port->tool == LLAMAFACTORY ? port_get(port->root, "max_samples") : NULL;
    for (size_t i = 0; i < list->count; i++) {
        PortTarget *target = &list->items[i]->target;
        if (system && list->items[i]->dataset.type != OPT_DATASET_TEXT && !target->from[KEY_dataset_system_prompt_field])
            set_text(port, target, KEY_dataset_system_prompt, system, system_key);
        if (port->tool == TRL)
            set_text(port, target, KEY_dataset_text_field, port_text(port->root, "dataset_text_field"), "dataset_text_field");
        if (most) port_take(port, target, KEY_dataset_samples, most, "max_samples");
    }
}

void port_finish_datasets(Port *port)
{
    share(port, &port->datasets);
    share(port, &port->validation);
}
