/* Reads a run file. Each key is looked up in the table, then among other tools' names; for an unknown key the nearest name is suggested. */
#include "config/config.h"

#include "config/value.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* How a key was written in the file. */
typedef struct Written {
    const char *name;
    const char *text;    /* text of the value, an alias's value translated to our key's; NULL: the value is no scalar */
    bool        is_weak; /* another tool's `false`, which means our default: a value under another name overrides it */
} Written;

/* The struct that a mapping is read into: the Config, or one Dataset. */
typedef struct Target {
    OptionScope  scope;
    void        *base;
    const char **origin;
    const char  *prefix;  /* put before keys in messages: "" or "datasets[0]." */
    Written     *written; /* by ConfigKey; NULL for overrides, which may replace values */
} Target;

static void *field_of(const Target *target, const OptionInfo *option)
{
    return (char *)target->base + option->offset;
}

static void target_reset(Arena *arena, const Target *target)
{
    for (int i = 0; i < CONFIG_KEY_COUNT; i++)
        if (options[i].scope == target->scope) option_reset(arena, &options[i], field_of(target, &options[i]));
}

static const char *origin_of(Arena *arena, const YamlNode *node)
{
    if (!node->line) return node->source;
    return arena_printf(arena, "%s:%d:%d", node->source, node->line, node->column);
}

static void unknown_key(ConfigReader *reader, const Target *target, const YamlNode *key)
{
    const char *name = key->text.data;
    bool        of_run = target->scope == SCOPE_run;
    StrBuf      near = {0};
    if (!option_find(of_run ? SCOPE_dataset : SCOPE_run, name))
        option_suggest(&near, target->scope, name);
    else if (of_run)
        strbuf_printf(&near, "; it is one of a dataset: datasets.0.%s", name);
    else
        strbuf_puts(&near, "; it is one of the whole run");
    reader_problem(reader, key, "unknown key %s%.100s%s", target->prefix, name, near.data);
    strbuf_deinit(&near);
}

/* A list with one text as its only item counts as that text. */
static const YamlNode *only_item(const YamlNode *value)
{
    return value->type == YAML_SEQUENCE && value->count == 1 && value->items[0]->type == YAML_SCALAR ? value->items[0] : value;
}

/* The next row with the name and value of `alias`; NULL: none. */
static const OptionAlias *next_meaning(const OptionAlias *alias)
{
    const OptionAlias *next = alias + 1;
    bool same = next < option_aliases + num_option_aliases && next->scope == alias->scope && strcmp(next->name, alias->name) == 0;
    return same && alias->value && next->value && strcmp(next->value, alias->value) == 0 ? next : NULL;
}

/* The alias row that accepts this value, or NULL. *out_expected lists the values that the name accepts; "" when the name is no alias. */
static const OptionAlias *find_alias(OptionScope scope, const char *name, const YamlNode *value, StrBuf *out_expected)
{
    bool given = false, wanted = false;
    value = only_item(value);
    bool is_bool = value->type == YAML_SCALAR && bool_read(value->text.data, &given);
    for (size_t i = 0; i < num_option_aliases; i++) {
        const OptionAlias *alias = &option_aliases[i];
        if (alias->scope != scope || strcmp(alias->name, name) != 0) continue;
        if (!alias->value) return alias;
        if (!next_meaning(alias)) strbuf_printf(out_expected, "%s%s", out_expected->len ? " or " : "", alias->value);
        if (value->type == YAML_SCALAR &&
            (is_bool && bool_read(alias->value, &wanted) ? given == wanted : strcmp(alias->value, value->text.data) == 0))
            return alias;
    }
    return NULL;
}

/* Whether the value switches nothing on; for other tools' keys `auto` counts as such a value. */
static bool is_inert(const YamlNode *value)
{
    return value_is_inert(value) || (value->type == YAML_SCALAR && strcasecmp(value->text.data, "auto") == 0);
}

/* The row of peers.def for a name and its value; NULL: there is none. */
static const PeerKey *find_peer(OptionScope scope, const char *name, const YamlNode *value)
{
    for (size_t i = 0; i < num_peer_keys; i++) {
        const PeerKey *peer = &peer_keys[i];
        if (peer->scope != scope || fnmatch(peer->name, name, 0) != 0) continue;
        if (!peer->value || (value->type == YAML_SCALAR && fnmatch(peer->value, value->text.data, 0) == 0)) return peer;
    }
    return NULL;
}

static void note_ignored(ConfigReader *reader, const Target *target, const char *name)
{
    strbuf_printf(reader->ignored, "%s%s%s", reader->ignored->len ? ", " : "", target->prefix, name);
}

/* Whether every member of a mapping is inert, or has a row "name.member" that says that nothing needs to be done. */
static bool has_inert_members(const Target *target, const char *name, const YamlNode *value)
{
    bool inert = value->type == YAML_MAPPING;
    for (size_t i = 0; inert && i < value->count; i++) {
        char member[256];
        snprintf(member, sizeof member, "%s.%s", name, value->keys[i]->type == YAML_SCALAR ? value->keys[i]->text.data : "");
        const PeerKey *peer = find_peer(target->scope, member, value->items[i]);
        inert = (peer && !peer->answer) || is_inert(value->items[i]);
    }
    return inert;
}

/* Handles a key, or a value of it, that peers.def lists; false when it lists neither. */
static bool read_peer(ConfigReader *reader, const Target *target, const char *name, const YamlNode *key, const YamlNode *value)
{
    const PeerKey *peer = find_peer(target->scope, name, only_item(value));
    if (!peer) return false;
    if (peer->answer && !is_inert(value) && !has_inert_members(target, name, value))
        reader_problem(reader, key, "%s%s: %s", target->prefix, key->text.data, peer->answer);
    else
        note_ignored(reader, target, key->text.data);
    return true;
}

/* Handles a key that is neither ours nor an alias that accepts this value. If peers.def lists the key, its row decides; else the key is
 * unknown. */
static void read_foreign(ConfigReader *reader, const Target *target, const YamlNode *key, const YamlNode *value, const char *expected)
{
    bool is_text = value->type == YAML_SCALAR;
    if (read_peer(reader, target, key->text.data, key, value)) return;
    if (!*expected) {
        unknown_key(reader, target, key);
    } else if (is_inert(value)) {
        note_ignored(reader, target, key->text.data);
    } else {
        reader_problem(reader, value, "%s: expected %s, found %s%.100s%s", key->text.data, expected, is_text ? "\"" : "",
                       is_text ? value->text.data : yaml_type_name(value), is_text ? "\"" : "");
    }
}

/* The value of our key that the alias stands for. */
static const YamlNode *read_as(ConfigReader *reader, const Target *target, const YamlNode *key, const YamlNode *value,
                               const OptionAlias *alias)
{
    if (!yaml_is_null(value))
        strbuf_printf(reader->notes, "%s: %s%s is read as %s%s%s\n", origin_of(reader->arena, key), target->prefix, alias->name,
                      options[alias->key].name, alias->value ? ": " : "", alias->value ? alias->means : "");
    if (!alias->value) return value;
    YamlNode *meaning = arena_array(reader->arena, YamlNode, 1);
    *meaning = *only_item(value);
    meaning->text = str_of(alias->means);
    return meaning;
}

/* The option that a key and its value set, under its own name or an alias (*out_alias). *value becomes the value for our key. NULL: not an
 * option; the key was handled here. */
static const OptionInfo *resolve_key(ConfigReader *reader, const Target *target, const YamlNode *key, const YamlNode **value,
                                     const OptionAlias **out_alias)
{
    const OptionInfo  *option = option_find(target->scope, key->text.data);
    StrBuf             expected = {0};
    const OptionAlias *alias = *out_alias =
        find_alias(target->scope, key->text.data, *value, &expected); /* read_as replaces *value if the alias means another value */
    if (!alias && !option) read_foreign(reader, target, key, *value, strbuf_cstr(&expected));
    strbuf_deinit(&expected);
    if (!alias && !option) return NULL;
    if (alias) {
        option = &options[alias->key];
        *value = read_as(reader, target, key, *value, alias);
    }
    return read_peer(reader, target, option->name, key, *value) ? NULL : option;
}

/* Splits "a,b" of the command line into a list; a text with blanks stays one item. */
static const YamlNode *split_commas(Arena *arena, const YamlNode *value)
{
    if (value->type != YAML_SCALAR || !strchr(value->text.data, ',') || strpbrk(value->text.data, " \t\n")) return value;
    YamlNode *list = arena_array(arena, YamlNode, 1), *items = arena_array(arena, YamlNode, value->text.len + 1);
    *list = (YamlNode){.type = YAML_SEQUENCE, .source = value->source};
    list->items = arena_array(arena, YamlNode *, value->text.len + 1);
    for (const char *at = value->text.data;; at++) {
        size_t    len = strcspn(at, ",");
        YamlNode *item = &items[list->count];
        *item = (YamlNode){.type = YAML_SCALAR, .source = value->source, .text = {arena_strndup(arena, at, len), len}};
        list->items[list->count++] = item;
        at += len;
        if (!*at) return list;
    }
}

static void read_datasets(ConfigReader *reader, const char *label, const YamlNode *node, DatasetList *out);

/* Whether the second value of a key that was given twice, perhaps under another name, replaces the first. Two values are a problem, unless
 * one is weak, or they are equal under different names. */
static bool takes_place(ConfigReader *reader, const Target *target, const YamlNode *key, const OptionInfo *option, const Written *second)
{
    const Written *first = &target->written[option - options];
    const char    *origin = target->origin[option - options];
    bool           is_same_name = strcmp(first->name, second->name) == 0;
    bool           is_alias = !option_find(target->scope, second->name), was_alias = !option_find(target->scope, first->name);
    if (is_alias && was_alias && (first->is_weak || second->is_weak)) return first->is_weak;
    if (!is_same_name && first->text && second->text && strcmp(first->text, second->text) == 0) return false;
    if (is_same_name)
        reader_problem(reader, key, "%s%s is given twice; first at %s", target->prefix, second->name, origin);
    else
        reader_problem(reader, key, "%s%s and %s (at %s) both set %s; keep one of them", target->prefix, second->name, first->name, origin,
                       option->name);
    return false;
}

/* Sets an option. alias: the name that it was written under, or NULL. is_off: the written value switches nothing on. */
static void read_option(ConfigReader *reader, const Target *target, const YamlNode *key, const YamlNode *value, const OptionInfo *option,
                        const OptionAlias *alias, bool is_off, bool overriding)
{
    bool is_null = yaml_is_null(value);
    is_null |= option->kind == KIND_DATASETS && value->type == YAML_SEQUENCE &&
               value->count == 0; /* an empty list of datasets: the key isn't set */
    const char **origin = &target->origin[option - options];
    if (!overriding) {
        Written written = {key->text.data, value->type == YAML_SCALAR ? value->text.data : NULL,
                           is_off && alias && alias->value && option->fallback && strcmp(alias->means, option->fallback) == 0};
        if (*origin && !takes_place(reader, target, key, option, &written)) return;
        target->written[option - options] = written;
    }
    char label[160];
    snprintf(label, sizeof label, "%s%s", target->prefix, option->name);
    if (is_null) {
        option_reset(reader->arena, option, field_of(target, option));
        *origin = NULL;
        return;
    }
    *origin = origin_of(reader->arena, value);
    if (overriding && option->kind == KIND_LIST) value = split_commas(reader->arena, value);
    if (option->kind == KIND_DATASETS)
        read_datasets(reader, label, value, field_of(target, option));
    else
        option_read(reader, option, label, value, field_of(target, option));
}

/* The option of a key inside `distributed`; NULL after a problem. */
static const OptionInfo *find_distributed(ConfigReader *reader, const YamlNode *key, const char *name)
{
    StrBuf names = {0};
    for (int i = DISTRIBUTED_FIRST; i <= DISTRIBUTED_LAST; i++) {
        if (strcmp(options[i].name, name) == 0) {
            strbuf_deinit(&names);
            return &options[i];
        }
        strbuf_printf(&names, "%s%s", names.len ? ", " : "", options[i].name);
    }
    reader_problem(reader, key, "unknown key " DISTRIBUTED_NAME ".%.100s; it takes %s", name, names.data);
    strbuf_deinit(&names);
    return NULL;
}

static void read_distributed(ConfigReader *reader, const Target *target, const YamlNode *map, bool overriding)
{
    if (yaml_is_null(map)) return;
    if (map->type != YAML_MAPPING) {
        reader_problem(reader, map, DISTRIBUTED_NAME ": expected a mapping, found %s", yaml_type_name(map));
        return;
    }
    for (size_t i = 0; i < map->count; i++) {
        const YamlNode   *key = map->keys[i];
        const char       *name = key->type == YAML_SCALAR ? key->text.data : yaml_type_name(key);
        const OptionInfo *option = find_distributed(reader, key, name);
        if (option) read_option(reader, target, key, map->items[i], option, NULL, is_inert(map->items[i]), overriding);
    }
}

/* Reads one key and its value. overriding: a second value replaces the first; otherwise it is a problem. */
static void read_pair(ConfigReader *reader, const Target *target, const YamlNode *key, const YamlNode *value, bool overriding)
{
    if (key->type != YAML_SCALAR) {
        reader_problem(reader, key, "expected a key, found %s", yaml_type_name(key));
        return;
    }
    if (target->scope == SCOPE_run && strcmp(key->text.data, DISTRIBUTED_NAME) == 0) {
        read_distributed(reader, target, value, overriding);
        return;
    }
    const OptionAlias *alias;
    bool               is_null = yaml_is_null(value), is_off = is_inert(value);
    const YamlNode    *meaning = value;
    const OptionInfo  *option = resolve_key(reader, target, key, &meaning, &alias);
    if (!option || (alias && is_null)) return;
    read_option(reader, target, key, meaning, option, alias, is_off, overriding);
    while (alias && (alias = next_meaning(alias)))
        read_option(reader, target, key, read_as(reader, target, key, value, alias), &options[alias->key], alias, is_off, overriding);
}

static void read_mapping(ConfigReader *reader, const Target *target, const YamlNode *map)
{
    for (size_t i = 0; i < map->count; i++) read_pair(reader, target, map->keys[i], map->items[i], false);
}

static Target dataset_target(Arena *arena, const char *label, Dataset *dataset, size_t index)
{
    return (Target){SCOPE_dataset, dataset, dataset->origin, arena_printf(arena, "%s[%zu].", label, index), NULL};
}

static void read_dataset(ConfigReader *reader, const char *label, const YamlNode *node, Dataset *out, size_t index)
{
    Target  target = dataset_target(reader->arena, label, out, index);
    Written written[CONFIG_KEY_COUNT] = {0};
    target.written = written;
    target_reset(reader->arena, &target);
    if (node->type == YAML_MAPPING) {
        read_mapping(reader, &target, node);
    } else if (node->type == YAML_SCALAR && !yaml_is_null(node)) {
        YamlNode key = {.type = YAML_SCALAR, .source = node->source, .text = str_of("path")};
        read_pair(reader, &target, &key, node, false);
    } else {
        reader_problem(reader, node, "%s[%zu]: expected a mapping or a path, found %s", label, index, yaml_type_name(node));
        return;
    }
    if (!out->path) reader_problem(reader, node, "%s[%zu]: the key path is missing", label, index);
}

static void read_datasets(ConfigReader *reader, const char *label, const YamlNode *node, DatasetList *out)
{
    enum { MOST_DATASETS = 10000 };
    bool                   is_list = node->type == YAML_SEQUENCE;
    size_t                 count = is_list ? node->count : 1;
    const YamlNode *const *items = is_list ? (const YamlNode *const *)node->items : &node;
    if (count > MOST_DATASETS) {
        reader_problem(reader, node, "%s: %zu datasets, at most %d are read", label, count, MOST_DATASETS);
        return;
    }
    *out = (DatasetList){arena_array(reader->arena, Dataset, count), count};
    for (size_t i = 0; i < count; i++) read_dataset(reader, label, items[i], &out->items[i], i);
}

/* ---- overrides ---- */

/* Splits "datasets.2.path": returns the list's option, *index 2 and *rest "path". NULL: the name has another form. */
static const OptionInfo *split_nested(const char *name, size_t *index, const char **rest)
{
    for (int i = 0; i < CONFIG_KEY_COUNT; i++) {
        size_t len = strlen(options[i].name);
        if (options[i].kind != KIND_DATASETS || strncmp(name, options[i].name, len) != 0 || name[len] != '.') continue;
        const char *digits = name + len + 1;
        size_t      num_digits = strspn(digits, "0123456789");
        if (num_digits == 0 || num_digits > 6 || digits[num_digits] != '.') return NULL;
        *index = 0;
        for (size_t d = 0; d < num_digits; d++) *index = *index * 10 + (size_t)(digits[d] - '0');
        *rest = digits + num_digits + 1;
        return &options[i];
    }
    return NULL;
}

/* The list item to change. An index one past the last item adds an item. */
static Dataset *dataset_at(ConfigReader *reader, DatasetList *list, const YamlNode *key, const char *label, size_t index)
{
    if (index > list->count) {
        reader_problem(reader, key, "%s has %zu items; the next would be %s.%zu", label, list->count, label, list->count);
        return NULL;
    }
    if (index == list->count) {
        Dataset *items = arena_array(reader->arena, Dataset, list->count + 1);
        if (list->count) memcpy(items, list->items, list->count * sizeof *items);
        list->items = items;
        list->count++;
        Target target = dataset_target(reader->arena, label, &items[index], index);
        target_reset(reader->arena, &target);
    }
    return &list->items[index];
}

/* Whether the key takes a text. If so, its argument isn't parsed as YAML, as a name or a path may begin with a bracket. */
static bool wants_text(OptionScope scope, const char *name)
{
    const OptionInfo *option = option_find(scope, name);
    return option && option->kind == KIND_STRING;
}

/* Parses the value of an argument: a list or a map in brackets, else a text. False: a problem was reported. */
static bool read_argument(ConfigReader *reader, const char *source, const char *text, bool is_text, YamlNode **out)
{
    YamlNode *plain = arena_new(reader->arena, YamlNode);
    *plain = (YamlNode){.type = YAML_SCALAR, .is_plain = true, .source = source, .text = {arena_strdup(reader->arena, text), strlen(text)}};
    *out = plain;
    if (is_text || (text[0] != '[' && text[0] != '{') || yaml_parse(reader->arena, source, text, plain->text.len, out) == OK) return true;
    reader_problem(reader, NULL, "%s", status_message());
    return false;
}

static void read_override(ConfigReader *reader, const Target *run, const char *text)
{
    const char *equals = strchr(text, '=');
    const char *source = arena_printf(reader->arena, ARGUMENT_SOURCE "%.200s", text);
    YamlNode    key = {.type = YAML_SCALAR, .is_plain = true, .source = source};
    if (!equals || equals == text) {
        reader_problem(reader, &key, "expected key=value");
        return;
    }
    key.text.len = (size_t)(equals - text);
    key.text.data = arena_strndup(reader->arena, text, key.text.len);
    size_t            index = 0;
    const char       *rest = NULL;
    const OptionInfo *list = split_nested(key.text.data, &index, &rest);
    bool              is_text = wants_text(list ? SCOPE_dataset : SCOPE_run, list ? rest : key.text.data);
    YamlNode         *value;
    if (!read_argument(reader, source, equals + 1, is_text, &value)) return;
    if (!list) {
        size_t prefix = strlen(DISTRIBUTED_NAME ".");
        bool   is_member = strncmp(key.text.data, DISTRIBUTED_NAME ".", prefix) == 0;
        if (is_member) key.text = str_of(key.text.data + prefix);
        if (!is_member || find_distributed(reader, &key, key.text.data)) read_pair(reader, run, &key, value, true);
        return;
    }
    Dataset *dataset = dataset_at(reader, field_of(run, list), &key, list->name, index);
    if (!dataset) return;
    Target target = dataset_target(reader->arena, list->name, dataset, index);
    key.text = str_of(rest);
    read_pair(reader, &target, &key, value, true);
    if (!run->origin[list - options]) run->origin[list - options] = source;
    if (!dataset->path)
        reader_problem(reader, &key, "%s[%zu]: the key path is missing; set %s.%zu.path first", list->name, index, list->name, index);
}

/* ---- keys that need one another ---- */

static void problem_at(ConfigReader *reader, const char *place, const char *name, const char *what)
{
    reader_problem(reader, &(YamlNode){.source = place}, "%s: %s", name, what);
}

/* Continuing from an adapter requires training an adapter. */
static void check_adapter(ConfigReader *reader, Config *config)
{
    if (!config->adapter) return;
    if (config->origin[KEY_run_lora] && !config->lora)
        problem_at(reader, config->origin[KEY_run_adapter], "adapter",
                   "training goes on from it, and lora: false trains all parameters; remove one of the two (surogate merge puts an adapter "
                   "into its base)");
    config->lora = true;
}

/* An adapter is useless without its base, and random base weights wouldn't be saved. */
static void check_scratch(ConfigReader *reader, const Config *config)
{
    if (config->lora && config->from_scratch)
        problem_at(
            reader, config->origin[KEY_run_from_scratch], "from_scratch",
            "an adapter is of no use without its base, and random weights aren't saved; write lora: false to train all parameters, or make "
            "the base first (surogate new --random) and name it as the model, without from_scratch");
}

/* QLoRA keeps the base in few bits and frozen: without adapters nothing would be trained. */
static void check_qlora(ConfigReader *reader, const Config *config)
{
    if (config->qlora != OPT_QLORA_NONE && !config->lora)
        problem_at(reader, config->origin[KEY_run_qlora], "qlora",
                   "it is for a frozen base under adapters; write lora: true, or leave it out");
}

/* PiSSA and OLoRA compute on the base's full-precision weights. With qlora the saved adapter would belong to another base than was
 * trained. */
static void check_lora_init(ConfigReader *reader, const Config *config)
{
    bool takes = config->lora_init == OPT_LORA_INIT_PISSA || config->lora_init == OPT_LORA_INIT_OLORA;
    if (takes && config->lora && !config->adapter && config->qlora != OPT_QLORA_NONE)
        problem_at(reader, config->origin[KEY_run_lora_init], "lora_init",
                   "with qlora the saved adapter would be of another model than the one that was trained; leave one of the two out");
}

/* A leading ~/ is the home folder. Other shell syntax (~user, $VARIABLE) is a problem. A text with { is a template, not a path. */
static void check_path(ConfigReader *reader, const char **path, const char *place, const char *name)
{
    const char *home = getenv("HOME"), *text = *path;
    if (!text || !place || strchr(text, '{')) return;
    if (text[0] == '~' && (text[1] == '/' || !text[1]) && home)
        *path = arena_printf(reader->arena, "%s%s", home, text + 1);
    else if (text[0] == '~' || text[0] == '$')
        problem_at(reader, place, name,
                   "only a leading ~/ stands for something, users and variables don't; write the path (./~ for such a name)");
}

static void check_paths(ConfigReader *reader, const Target *target)
{
    for (int i = 0; i < CONFIG_KEY_COUNT; i++)
        if (options[i].scope == target->scope && options[i].limits.is_path)
            check_path(reader, field_of(target, &options[i]), target->origin[i],
                       arena_printf(reader->arena, "%s%s", target->prefix, options[i].name));
}

/* Whether the option's value asks for an effect: it is on, or the key is on by default, so that even "off" asks for one. */
static bool asks(const Target *target, const OptionInfo *option)
{
    return option_is_on(option, field_of(target, option)) || (option->fallback && strcmp(option->fallback, "true") == 0);
}

/* One warning for all keys that have no effect for the same reason. Keys whose values ask for no effect aren't mentioned. */
static void warn_idle(ConfigReader *reader, const Target *target)
{
    const OptionNeed *unmet[CONFIG_KEY_COUNT] = {0};
    for (int i = 0; i < CONFIG_KEY_COUNT; i++)
        if (target->origin[i] && asks(target, &options[i])) unmet[i] = option_unmet((ConfigKey)i, target->base);
    for (int i = 0; i < CONFIG_KEY_COUNT; i++) {
        StrBuf line = {0}, reason = {0}, other = {0};
        if (!unmet[i]) continue;
        option_write_need(&reason, unmet[i], "");
        strbuf_printf(&line, "%s: %s%s", target->origin[i], target->prefix, options[i].name);
        for (int k = i + 1; k < CONFIG_KEY_COUNT; k++) {
            if (!unmet[k]) continue;
            strbuf_clear(&other);
            option_write_need(&other, unmet[k], "");
            if (strcmp(other.data, reason.data) != 0) continue;
            strbuf_printf(&line, ", %s", options[k].name);
            unmet[k] = NULL;
        }
        strbuf_printf(&line, ": no effect %s", reason.data);
        str_list_push(reader->arena, reader->warnings, arena_strdup(reader->arena, line.data));
        strbuf_deinit(&line);
        strbuf_deinit(&reason);
        strbuf_deinit(&other);
    }
}

static void check_datasets(ConfigReader *reader, const char *label, const DatasetList *list)
{
    for (size_t i = 0; i < list->count; i++) {
        Target target = dataset_target(reader->arena, label, &list->items[i], i);
        check_paths(reader, &target);
        warn_idle(reader, &target);
    }
}

/* Another tool's strategy key, whose values are steps, epoch and no. Our keys for the number of steps and the times per epoch. */
typedef struct Strategy {
    const char *name;
    ConfigKey   steps, per_epoch;
} Strategy;

static void warn_strategy(ConfigReader *reader, const Strategy *strategy, const YamlNode *value, const Config *config)
{
    const char *what = NULL, *origin = origin_of(reader->arena, value), *text = value->text.data;
    ConfigKey   keys[] = {strategy->steps, strategy->per_epoch};
    bool        given = false, on = true;
    for (int i = 0; i < 2; i++) {
        if (!config->origin[keys[i]]) continue;
        given = true;
        if (!what && option_is_on(&options[keys[i]], (const char *)config + options[keys[i]].offset)) what = options[keys[i]].name;
    }
    bool        is_no = bool_read(text, &on) && !on;
    const char *line =
        strcmp(text, "steps") == 0 && !given
            ? arena_printf(reader->arena, "%s: %s: steps: no effect without %s", origin, strategy->name, options[strategy->steps].name)
        : is_no && what
            ? arena_printf(reader->arena, "%s: %s: %s: no effect when %s is set: remove one of the two", origin, strategy->name, text, what)
            : NULL;
    if (line) str_list_push(reader->arena, reader->warnings, line);
}

static void warn_strategy_named(ConfigReader *reader, const char *name, const YamlNode *value, const Config *config)
{
    static const Strategy strategies[] = {{"eval_strategy", KEY_run_eval_steps, KEY_run_evals_per_epoch},
                                          {"evaluation_strategy", KEY_run_eval_steps, KEY_run_evals_per_epoch},
                                          {"save_strategy", KEY_run_save_steps, KEY_run_saves_per_epoch}};
    for (int k = 0; k < 3 && value->type == YAML_SCALAR; k++)
        if (strcmp(name, strategies[k].name) == 0) warn_strategy(reader, &strategies[k], value, config);
}

/* Warns of strategies that have no effect. root: the mapping of the whole run file. */
static void warn_strategies(ConfigReader *reader, const YamlNode *root, const char *const *overrides, size_t num_overrides,
                            const Config *config)
{
    for (size_t i = 0; root && root->type == YAML_MAPPING && i < root->count; i++)
        if (root->keys[i]->type == YAML_SCALAR) warn_strategy_named(reader, root->keys[i]->text.data, root->items[i], config);
    for (size_t i = 0; i < num_overrides; i++) {
        const char *equals = strchr(overrides[i], '=');
        if (!equals) continue;
        YamlNode value = {.type = YAML_SCALAR, .text = {arena_strdup(reader->arena, equals + 1), strlen(equals + 1)}};
        value.source = arena_printf(reader->arena, ARGUMENT_SOURCE "%.200s", overrides[i]);
        warn_strategy_named(reader, arena_strndup(reader->arena, overrides[i], (size_t)(equals - overrides[i])), &value, config);
    }
}

static void check_together(ConfigReader *reader, const Target *run, Config *config)
{
    check_adapter(reader, config);
    check_scratch(reader, config);
    check_qlora(reader, config);
    check_lora_init(reader, config);
    check_paths(reader, run);
    warn_idle(reader, run);
    check_datasets(reader, "datasets", &config->datasets);
    check_datasets(reader, "validation_datasets", &config->validation_datasets);
}

/* ---- the whole ---- */

static Status give_problems(const ConfigReader *reader, StrBuf *problems)
{
    const char *text = strbuf_cstr(reader->problems);
    if (problems) strbuf_puts(problems, text);
    size_t len = reader->problems->len; /* without the last newline */
    FAIL_IF(reader->num_problems == 1, ERR_INVALID, "%.*s", (int)len - 1, text);
    FAIL(ERR_INVALID, "%zu problems:\n%.*s", reader->num_problems, (int)len - 1, text);
}

Status config_parse(const char *name, const char *text, size_t len, const char *const *overrides, size_t num_overrides, Config *out,
                    StrBuf *problems)
{
    memset(out, 0, sizeof *out);
    StrBuf       lines = {0}, notes = {0}, ignored = {0};
    ConfigReader reader = {.arena = &out->arena, .problems = &lines, .notes = &notes, .ignored = &ignored, .warnings = &out->warnings};
    Written      written[CONFIG_KEY_COUNT] = {0};
    Target       run = {SCOPE_run, out, out->origin, "", written};
    YamlNode    *root = NULL;
    target_reset(&out->arena, &run);
    if (yaml_parse(&out->arena, name, text, len, &root) != OK)
        reader_problem(&reader, NULL, "%s", status_message());
    else if (root->type != YAML_MAPPING)
        reader_problem(&reader, root, "expected lines of \"key: value\", found %s", yaml_type_name(root));
    else
        read_mapping(&reader, &run, root);
    for (size_t i = 0; i < num_overrides; i++) read_override(&reader, &run, overrides[i]);
    check_together(&reader, &run, out);
    warn_strategies(&reader, root, overrides, num_overrides, out);
    Status status = reader.num_problems ? give_problems(&reader, problems) : OK;
    if (ignored.len) strbuf_printf(&notes, "ignored, as they change nothing here: %s\n", ignored.data);
    out->notes = arena_strdup(&out->arena, strbuf_cstr(&notes));
    if (status != OK) config_deinit(out);
    strbuf_deinit(&lines);
    strbuf_deinit(&notes);
    strbuf_deinit(&ignored);
    return status;
}

void config_deinit(Config *config)
{
    Arena arena = config->arena;
    memset(config, 0, sizeof *config);
    arena_deinit(&arena);
}
