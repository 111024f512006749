/* LLaMA-Factory's datasets: names that dataset_info.json describes. */
#include "base/json.h"
#include "files/file.h"
#include "port/port_internal.h"

#include <stdio.h>
#include <string.h>

#define REGISTRY "dataset_info.json"
enum { MOST_REGISTRY_BYTES = 16 << 20 };

static void set_json(Port *port, PortTarget *target, ConfigKey key, const char *text, const char *from)
{
    YamlNode *node = arena_new(port->arena, YamlNode);
    *node = (YamlNode){.type = YAML_SCALAR, .source = REGISTRY, .text = str_of(text)};
    port_take(port, target, key, node, from);
}

/* The name of a column or tag in a registry entry; NULL: the entry doesn't name it. */
static const char *named(const JsonValue *entry, const char *group, const char *name)
{
    const JsonValue *members = json_get(entry, group);
    const char      *text = NULL;
    return members && json_get_str(members, name, &text) ? text : NULL;
}

static void set_column(Port *port, PortDataset *dataset, const JsonValue *entry, const char *column, ConfigKey key, const char *from)
{
    const char *name = named(entry, "columns", column);
    if (name) set_json(port, &dataset->target, key, name, from);
}

/* Whether the entry asks for something that isn't supported; reported at the key `dataset`. */
static bool is_refused(Port *port, const PortPair *pair, const JsonValue *entry, const char *name)
{
    static const char *const media[] = {"images", "videos", "audios"}, *const prefs[] = {"chosen", "rejected", "kto_tag"};
    const char *text;
    bool        ranking = false;
    for (int i = 0; i < 3; i++) {
        if (named(entry, "columns", media[i]))
            return port_problem(port, pair->value, "dataset %.80s: not supported here: images and sound", name), true;
        if (named(entry, "columns", prefs[i]))
            return port_problem(port, pair->value, "dataset %.80s: not supported here: preferences and rewards", name), true;
    }
    if (json_get_bool(entry, "ranking", &ranking) && ranking)
        return port_problem(port, pair->value, "dataset %.80s: not supported here: preferences and rewards", name), true;
    if (json_get_str(entry, "script_url", &text) || json_get_str(entry, "cloud_file_name", &text))
        return port_problem(port, pair->value, "dataset %.80s: not supported here: a script or cloud storage; name a file", name), true;
    return false;
}

/* Reports tags whose spelling of a role we would read as another role. */
static void check_roles(Port *port, const PortPair *pair, const JsonValue *entry, const char *name)
{
    static const char *const tags[][3] = {{"user_tag", "user", "user"},
                                          {"assistant_tag", "assistant", "assistant"},
                                          {"system_tag", "system", "system"},
                                          {"function_tag", "assistant", "function_call"},
                                          {"observation_tag", "tool", "observation"}};
    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++) {
        const char *spelling = named(entry, "tags", tags[i][0]);
        if (spelling && !port_has_role(spelling, tags[i][1]))
            port_problem(port, pair->value, "dataset %.80s: %s: not supported here: %.80s as a name of a role: write %s in the rows", name,
                         tags[i][0], spelling, tags[i][2]);
    }
}

/* Sets up ShareGPT's layout with the entry's names. */
static void set_conversation(Port *port, PortDataset *dataset, const JsonValue *entry, const char *from)
{
    const char *role = named(entry, "tags", "role_tag"), *content = named(entry, "tags", "content_tag");
    const char *messages = named(entry, "columns", "messages");
    set_json(port, &dataset->target, KEY_dataset_type, "conversation", from);
    set_json(port, &dataset->target, KEY_dataset_messages_field, messages ? messages : "conversations", from);
    if (!role && !content) return;
    YamlNode   *map;
    StrBuf      text = {0};
    const char *names[] = {role ? role : "from", content ? content : "value"};
    strbuf_puts(&text, "{role: ");
    yaml_write_string(&text, names[0], strlen(names[0]));
    strbuf_puts(&text, ", content: ");
    yaml_write_string(&text, names[1], strlen(names[1]));
    strbuf_puts(&text, "}");
    if (yaml_parse(port->arena, REGISTRY, text.data, text.len, &map) == OK)
        port_take(port, &dataset->target, KEY_dataset_message_property_mappings, map, from);
    strbuf_deinit(&text);
}

static void set_instruction(Port *port, PortDataset *dataset, const JsonValue *entry, const char *from)
{
    set_json(port, &dataset->target, KEY_dataset_type, "instruction", from);
    set_column(port, dataset, entry, "prompt", KEY_dataset_instruction_field, from);
    set_column(port, dataset, entry, "query", KEY_dataset_input_field, from);
    set_column(port, dataset, entry, "response", KEY_dataset_output_field, from);
}

/* Sets up plain text from the column "prompt", as in pre-training. */
static void set_plain(Port *port, PortDataset *dataset, const JsonValue *entry, const char *from)
{
    const char *column = named(entry, "columns", "prompt");
    set_json(port, &dataset->target, KEY_dataset_type, "text", from);
    set_json(port, &dataset->target, KEY_dataset_text_field, column ? column : "instruction", from);
}

static void set_layout(Port *port, PortDataset *dataset, const JsonValue *entry, const char *from)
{
    const char *formatting = "alpaca", *split;
    int64_t     rows;
    (void)json_get_str(entry, "formatting", &formatting);
    if (port->is_pretraining)
        set_plain(port, dataset, entry, from);
    else if (strcmp(formatting, "alpaca") == 0)
        set_instruction(port, dataset, entry, from);
    else
        set_conversation(port, dataset, entry, from);
    if (!port->is_pretraining) {
        set_column(port, dataset, entry, "system", KEY_dataset_system_prompt_field, from);
        set_column(port, dataset, entry, "tools", KEY_dataset_tools_field, from);
    }
    if (json_get_str(entry, "split", &split)) set_json(port, &dataset->target, KEY_dataset_split, split, from);
    if (json_get_int(entry, "num_samples", &rows))
        set_json(port, &dataset->target, KEY_dataset_samples, arena_printf(port->arena, "%lld", (long long)rows), from);
}

/* Where the rows of an entry are: a file beside the registry, or a repository of the hub. NULL: the entry names neither. */
static const char *place_of(Port *port, const JsonValue *entry, const char *folder)
{
    const char *text;
    if (json_get_str(entry, "hf_hub_url", &text) || json_get_str(entry, "ms_hub_url", &text)) return text;
    if (!json_get_str(entry, "file_name", &text)) return NULL;
    return text[0] == '/' ? text : arena_printf(port->arena, "%s/%s", folder, text);
}

/* Adds a dataset that no registry describes: the user must say where its rows are and how they are laid out. */
static void add_bare(Port *port, const PortPair *pair, PortDatasets *list, const char *name, const char *why)
{
    PortDataset *dataset = port_add_dataset(port, list, pair->value);
    const char  *from = arena_printf(port->arena, "line %d: %s: %s", pair->key->line, pair->key->text.data, name);
    if (!dataset) return;
    set_json(port, &dataset->target, KEY_dataset_path, name, arena_printf(port->arena, "%s; write its path", from));
    port_tell(port, true, pair->key, "",
              arena_printf(port->arena, "%s: %s; write the path of its rows here, or port with --dataset-dir DIR, the folder of " REGISTRY,
                           name, why));
}

static void add_entry(Port *port, const PortPair *pair, PortDatasets *list, const JsonValue *info, const char *folder, const char *name)
{
    const JsonValue *entry = json_get(info, name);
    const char      *from = arena_printf(port->arena, "line %d: %s: %s", pair->key->line, pair->key->text.data, name);
    if (!entry) {
        add_bare(port, pair, list, name, arena_printf(port->arena, "%s/" REGISTRY " has no such name", folder));
        return;
    }
    if (is_refused(port, pair, entry, name)) return;
    const char *place = place_of(port, entry, folder), *subset;
    if (!place) {
        port_problem(port, pair->value, "%s: %.100s names no file of %s/" REGISTRY, pair->key->text.data, name, folder);
        return;
    }
    PortDataset *dataset = port_add_dataset(port, list, pair->value);
    if (!dataset) return;
    set_json(port, &dataset->target, KEY_dataset_path, place, from);
    set_layout(port, dataset, entry, from);
    if (dataset->dataset.type == OPT_DATASET_CONVERSATION) check_roles(port, pair, entry, name);
    if (json_get_str(entry, "subset", &subset) || json_get_str(entry, "folder", &subset))
        port_tell(port, true, pair->key, "",
                  arena_printf(port->arena,
                               "%s: %s: all files of the repository are read; `surogate pull --dataset` with --include takes some", name,
                               subset));
}

/* Resolves a path of the file from the working folder, or from a folder above the file; NULL: it exists in none. */
static const char *find_path(Port *port, const char *path, bool is_given)
{
    bool        there = false;
    const char *found = path, *base = port->path;
    size_t      len = strlen(base);
    for (;;) {
        if (file_exists(found, &there) == OK && there) return found;
        status_clear();
        while (len > 0 && base[len - 1] != '/') len--;
        if (len == 0 || path[0] == '/' || is_given) return NULL;
        found = arena_printf(port->arena, "%.*s%s", (int)len, base, path);
        len--;
    }
}

/* Reads the registry; if there is none, *out_why says why. False after a problem: the file is broken. */
static bool open_registry(Port *port, const PortPair *pair, const char **out_folder, const char **out_why, JsonValue *out)
{
    const char *said = port_text(port->root, "dataset_dir"), *dir = port->dataset_dir ? port->dataset_dir : said ? said : "data";
    const char *path = find_path(port, arena_printf(port->arena, "%s/" REGISTRY, dir), port->dataset_dir != NULL);
    Str         text;
    if (!path) {
        *out_why = arena_printf(port->arena, "there is no %s/" REGISTRY, dir);
        return true;
    }
    *out_folder = arena_strndup(port->arena, path, strlen(path) - strlen("/" REGISTRY));
    if (file_read(port->arena, path, MOST_REGISTRY_BYTES, &text) == OK && json_parse(port->arena, path, text.data, text.len, out) == OK)
        return true;
    port_problem(port, pair->key, "%s: %s", pair->key->text.data, status_message());
    return false;
}

/* Reads dataset names separated by commas. */
static void read_item(Port *port, const PortPair *pair, PortDatasets *list, const JsonValue *info, const char *folder, const char *why,
                      const char *names)
{
    while (*names) {
        names += strspn(names, ", ");
        size_t      len = strcspn(names, ", ");
        const char *name = arena_strndup(port->arena, names, len);
        if (len && why)
            add_bare(port, pair, list, name, why);
        else if (len)
            add_entry(port, pair, list, info, folder, name);
        names += len;
    }
}

static void read_names(Port *port, const PortPair *pair, PortDatasets *list)
{
    JsonValue   info = {0};
    const char *folder = NULL, *why = NULL, *stage = port_text(port->root, "stage");
    bool        is_text = pair->value->type == YAML_SCALAR;
    port->is_pretraining = stage && strcmp(stage, "pt") == 0;
    if (!open_registry(port, pair, &folder, &why, &info)) return;
    for (size_t i = 0; i < (is_text ? 1 : pair->value->count); i++) {
        const YamlNode *item = is_text ? pair->value : pair->value->items[i];
        if (item->type == YAML_SCALAR) read_item(port, pair, list, &info, folder, why, item->text.data);
    }
}

void port_read_registry(Port *port, const PortPair *pair)
{
    read_names(port, pair, &port->datasets);
}

void port_read_eval_registry(Port *port, const PortPair *pair)
{
    read_names(port, pair, &port->validation);
}

/* ---- version 1: a YAML file of datasets, or one dataset ---- */

static void set_v1_layout(Port *port, const PortPair *pair, PortDataset *dataset, const char *converter, const char *from)
{
    if (strcmp(converter, "sharegpt") == 0) {
        set_json(port, &dataset->target, KEY_dataset_type, "conversation", from);
        set_json(port, &dataset->target, KEY_dataset_messages_field, "conversations", from);
    } else if (strcmp(converter, "alpaca") == 0) {
        set_json(port, &dataset->target, KEY_dataset_type, "instruction", from);
    } else if (strcmp(converter, "pair") == 0) {
        port_problem(port, pair->value, "%s: not supported here: preferences and rewards", pair->key->text.data);
    } else if (*converter) {
        port_problem(port, pair->value, "%s: not supported here: %.80s: a layout that isn't read here", pair->key->text.data, converter);
    }
}

static void add_v1_entry(Port *port, const PortPair *pair, PortDatasets *list, const char *name, const YamlNode *entry)
{
    static const struct {
        const char *name;
        ConfigKey   key;
    } keys[] = {{"split", KEY_dataset_split}, {"size", KEY_dataset_samples}, {"weight", KEY_dataset_weight}};
    const char  *from = arena_printf(port->arena, "line %d: %s: %s", pair->key->line, pair->key->text.data, name);
    const char  *path = port_text(entry, "path"), *source = port_text(entry, "source"), *converter = port_text(entry, "converter");
    PortDataset *dataset = path ? port_add_dataset(port, list, pair->value) : NULL;
    const char  *found = path && source && strcmp(source, "local") == 0 ? find_path(port, path, false) : NULL;
    if (!path) port_problem(port, pair->value, "%s: %.80s has no path", pair->key->text.data, name);
    if (!dataset) return;
    set_json(port, &dataset->target, KEY_dataset_path, found ? found : path, from);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (port_get(entry, keys[i].name)) port_take(port, &dataset->target, keys[i].key, port_get(entry, keys[i].name), from);
    set_v1_layout(port, pair, dataset, converter ? converter : "", from);
}

static void read_v1_list(Port *port, const PortPair *pair, PortDatasets *list, const char *path)
{
    Str       text;
    YamlNode *root;
    if (file_read(port->arena, path, YAML_MAX_BYTES, &text) != OK || yaml_parse(port->arena, path, text.data, text.len, &root) != OK) {
        port_problem(port, pair->value, "%s: %s", pair->key->text.data, status_message());
        return;
    }
    for (size_t i = 0; root->type == YAML_MAPPING && i < root->count; i++)
        if (root->keys[i]->type == YAML_SCALAR) add_v1_entry(port, pair, list, root->keys[i]->text.data, root->items[i]);
}

static void read_v1(Port *port, const PortPair *pair, PortDatasets *list)
{
    const char *name = pair->value->type == YAML_SCALAR ? pair->value->text.data : "", *end = strrchr(name, '.');
    if (!end || strcmp(end, ".yaml") != 0) {
        PortDataset *dataset = port_add_dataset(port, list, pair->value);
        if (dataset) port_take(port, &dataset->target, KEY_dataset_path, pair->value, port_origin(port, pair->key, ""));
        return;
    }
    const char *path = find_path(port, name, false);
    if (path)
        read_v1_list(port, pair, list, path);
    else
        port_problem(port, pair->value, "%s: %.200s: no such file here or in a folder above the run file", pair->key->text.data, name);
}

void port_read_v1_dataset(Port *port, const PortPair *pair)
{
    read_v1(port, pair, &port->datasets);
}

void port_read_v1_eval_dataset(Port *port, const PortPair *pair)
{
    read_v1(port, pair, &port->validation);
}
