/* What the table says, for people (Markdown, help) and editors (JSON Schema). */
#include "base/json.h"
#include "config/options.h"

#include <fnmatch.h>
#include <string.h>

/* " (also `x`, `y`)": the further words that mean the choice; or nothing. */
static void write_spellings(StrBuf *out, Choice choice, const char *quote)
{
    const char *separator = " (also ";
    for (size_t i = 0; i < num_choices; i++) {
        if (choices[i].choice != choice || !choices[i].is_spelling) continue;
        strbuf_printf(out, "%s%s%s%s", separator, quote, choices[i].text, quote);
        separator = ", ";
    }
    if (*separator == ',') strbuf_putc(out, ')');
}

/* "1 to 65536", "`linear`, `cosine`", or "". */
static void write_limits(StrBuf *out, const OptionInfo *option, const char *quote)
{
    const OptionLimits *limits = &option->limits;
    bool                first = true;
    for (size_t i = 0; limits->words && i < num_choices; i++) {
        if (strcmp(choices[i].set, limits->words) != 0 || choices[i].is_spelling) continue;
        strbuf_printf(out, "%s%s%s%s", first ? "" : ", ", quote, choices[i].text, quote);
        write_spellings(out, choices[i].choice, quote);
        first = false;
    }
    if (limits->has_limits) option_write_range(out, limits);
}

static const char *type_word(OptionKind kind)
{
    static const char *const words[] = {"boolean", "integer", "number", "size", "text", "word", "list", "mapping", "list of datasets"};
    return words[kind];
}

/* " No effect without `lora: true`." for each need of the key. */
static void write_needs(StrBuf *out, ConfigKey key, const char *quote)
{
    for (size_t i = 0; i < num_option_needs; i++) {
        if (option_needs[i].key != key || option_needs[i].is_alternative) continue;
        strbuf_puts(out, " No effect ");
        option_write_need(out, &option_needs[i], quote);
        strbuf_putc(out, '.');
    }
}

/* The other names of a key: ", `x`" each. */
static void write_aliases(StrBuf *out, ConfigKey key, const char *quote)
{
    const char *separator = "";
    for (size_t i = 0; i < num_option_aliases; i++) {
        const OptionAlias *alias = &option_aliases[i];
        if (alias->key != key) continue;
        strbuf_printf(out, "%s%s%s%s%s%s", separator, quote, alias->name, alias->value ? ": " : "", alias->value ? alias->value : "",
                      quote);
        separator = ", ";
    }
}

void config_markdown(StrBuf *out)
{
    strbuf_puts(
        out, "# Run file reference\n\n"
             "<!-- Written by `surogate help keys --markdown` from src/config/options.def. -->\n\n"
             "A run file is YAML: a mapping of the keys below. The same keys go on the command line as `key=value`, and inside a\n"
             "dataset as `datasets.0.path=value`; the command line wins. An unknown key, a wrong type and a value out of range\n"
             "are errors, all told at once.\n\n"
             "Numbers may be written as `2e-4`; integers have neither fraction nor exponent. Booleans are `true`/`false` (`yes`,\n"
             "`no`, `on`, `off` are read too). Sizes take `KB`, `MB`, `GB`, `TB` (powers of 1000) and `KiB`, `MiB`, `GiB`, `TiB`.\n"
             "A list of one needs no brackets; on the command line `key=a,b` is a list too. An empty value or `null` means the default.\n"
             "Names in the last column are those of other tools: they are read, and the key's own name is printed. Other keys of\n"
             "theirs are ignored, and named, where they change nothing here; else the error says what to write. `false` under\n"
             "such a name, where it means the default, gives way to another name for the same key.\n\n"
             "A key that has no effect beside the others gets a warning that says why, and the run goes on: `lora_rank` without\n"
             "`lora: true`. A value that asks for nothing (`false`, `0`) gets none.\n");
    for (size_t i = 0; i < num_option_rows; i++) {
        const OptionRow *row = &option_rows[i];
        if (row->title) {
            strbuf_printf(out, "\n## %s\n\n%s\n\n| key | type | default | values | meaning | other names |\n|---|---|---|---|---|---|\n",
                          row->title, row->text);
            continue;
        }
        const OptionInfo *option = &options[row->key];
        strbuf_printf(out, "| `%s` | %s | ", option->name, type_word(option->kind));
        if (option->fallback) strbuf_printf(out, "`%s`", option->fallback);
        strbuf_puts(out, " | ");
        write_limits(out, option, "`");
        strbuf_printf(out, " | %s", option->help);
        write_needs(out, row->key, "`");
        strbuf_puts(out, " | ");
        write_aliases(out, row->key, "`");
        strbuf_puts(out, " |\n");
    }
}

static void schema_words(StrBuf *out, const char *set)
{
    bool first = true;
    strbuf_puts(out, "{\"enum\": [");
    for (size_t i = 0; i < num_choices; i++) {
        if (strcmp(choices[i].set, set) != 0) continue;
        if (!first) strbuf_puts(out, ", ");
        json_write_string(out, choices[i].text, strlen(choices[i].text));
        first = false;
    }
    strbuf_puts(out, "]}");
}

/* Of texts, or of the words of a set; words NULL: any. */
static void schema_list(StrBuf *out, const char *words)
{
    if (!words) {
        strbuf_puts(out, "{\"type\": [\"string\", \"array\"], \"items\": {\"type\": [\"string\", \"number\"]}}");
        return;
    }
    strbuf_puts(out, "{\"anyOf\": [");
    schema_words(out, words);
    strbuf_puts(out, ", {\"type\": \"array\", \"items\": ");
    schema_words(out, words);
    strbuf_puts(out, "}]}");
}

static void schema_type(StrBuf *out, const OptionInfo *option)
{
    switch (option->kind) {
    case KIND_BOOL:
        strbuf_puts(out, "{\"type\": \"boolean\"}");
        break;
    case KIND_SIZE:
        strbuf_puts(out, "{\"type\": [\"integer\", \"string\"]}");
        break;
    case KIND_STRING:
        strbuf_puts(out, "{\"type\": [\"string\", \"boolean\", \"number\"]}");
        break;
    case KIND_CHOICE:
        schema_words(out, option->limits.words);
        break;
    case KIND_LIST:
        schema_list(out, option->limits.words);
        break;
    case KIND_MAP:
        strbuf_puts(out, "{\"type\": \"object\", \"additionalProperties\": {\"type\": \"string\"}}");
        break;
    case KIND_DATASETS:
        strbuf_puts(out, "{\"$ref\": \"#/$defs/datasets\"}");
        break;
    case KIND_INT:
    case KIND_FLOAT:
        strbuf_printf(out, "{\"type\": \"%s\"", option->kind == KIND_INT ? "integer" : "number");
        if (option->limits.has_limits) {
            strbuf_printf(out, ", \"%s\": ", option->limits.above_min ? "exclusiveMinimum" : "minimum");
            option_write_number(out, option->limits.min);
            if (!option->limits.above_min && option->limits.max < 9e18) {
                strbuf_puts(out, ", \"maximum\": ");
                option_write_number(out, option->limits.max);
            }
        }
        strbuf_putc(out, '}');
        break;
    }
}

/* A key may always be null. */
static void schema_property(StrBuf *out, const OptionInfo *option)
{
    strbuf_printf(out, "    \"%s\": {\"description\": ", option->name);
    json_write_string(out, option->help, strlen(option->help));
    if (option->fallback) {
        strbuf_puts(out, ", \"default\": ");
        if (option->kind == KIND_BOOL || option->kind == KIND_INT || option->kind == KIND_FLOAT)
            strbuf_puts(out, option->fallback);
        else
            json_write_string(out, option->fallback, strlen(option->fallback));
    }
    strbuf_puts(out, ", \"anyOf\": [");
    schema_type(out, option);
    strbuf_puts(out, ", {\"type\": \"null\"}]}");
}

static void schema_distributed(StrBuf *out)
{
    strbuf_puts(out,
                ",\n    \"" DISTRIBUTED_NAME "\": {\"type\": [\"object\", \"null\"], \"additionalProperties\": false, \"properties\": {");
    for (int key = DISTRIBUTED_FIRST; key <= DISTRIBUTED_LAST; key++) {
        strbuf_puts(out, key > DISTRIBUTED_FIRST ? ",\n" : "\n");
        schema_property(out, &options[key]);
    }
    strbuf_puts(out, "}}");
}

/* The properties of a scope's keys, then those of other tools' names for them. */
static void schema_properties(StrBuf *out, OptionScope scope)
{
    const char *separator = "\n";
    for (int key = 0; key < CONFIG_KEY_COUNT; key++) {
        if (options[key].scope != scope) continue;
        strbuf_puts(out, separator);
        schema_property(out, &options[key]);
        separator = ",\n";
    }
    if (scope == SCOPE_run) schema_distributed(out);
    for (size_t i = 0; i < num_option_aliases; i++) {
        const OptionAlias *alias = &option_aliases[i];
        bool               repeated = i > 0 && strcmp(option_aliases[i - 1].name, alias->name) == 0;
        if (alias->scope != scope || repeated) continue;
        strbuf_printf(out, ",\n    \"%s\": {\"description\": \"Another tool's name of %s.\", \"deprecated\": true}", alias->name,
                      options[alias->key].name);
    }
}

void config_schema(StrBuf *out)
{
    strbuf_puts(out, "{\n  \"$schema\": \"https://json-schema.org/draft/2020-12/schema\",\n  \"title\": \"Surogate run file\",\n"
                     "  \"type\": \"object\",\n  \"additionalProperties\": false,\n  \"properties\": {");
    schema_properties(out, SCOPE_run);
    strbuf_puts(out,
                "\n  },\n  \"$defs\": {\n   \"dataset\": {\"type\": \"object\", \"additionalProperties\": false, \"required\": [\"path\"], "
                "\"properties\": {");
    schema_properties(out, SCOPE_dataset);
    strbuf_puts(out,
                "\n   }},\n   \"datasets\": {\"anyOf\": [{\"type\": \"string\"}, {\"$ref\": \"#/$defs/dataset\"}, "
                "{\"type\": \"array\", \"items\": {\"anyOf\": [{\"type\": \"string\"}, {\"$ref\": \"#/$defs/dataset\"}]}}]}\n  }\n}\n");
}

static void help_of(StrBuf *out, ConfigKey key)
{
    const OptionInfo *option = &options[key];
    StrBuf            values = {0}, names = {0};
    write_limits(&values, option, "");
    write_aliases(&names, key, "");
    strbuf_printf(out, "%s%s (%s", option->scope == SCOPE_dataset ? "datasets[]." : "", option->name, type_word(option->kind));
    if (option->fallback) strbuf_printf(out, ", default %s", option->fallback);
    strbuf_printf(out, ")\n    %s", option->help);
    write_needs(out, key, "");
    strbuf_putc(out, '\n');
    if (values.len) strbuf_printf(out, "    Values: %s.\n", values.data);
    if (names.len) strbuf_printf(out, "    Other names: %s.\n", names.data);
    strbuf_deinit(&values);
    strbuf_deinit(&names);
}

/* A key of the scope by our name or another; false when unknown. */
static bool help_by_name(StrBuf *out, OptionScope scope, const char *name)
{
    bool found = false;
    for (int key = 0; key < CONFIG_KEY_COUNT; key++) {
        bool wanted = options[key].scope == scope && strcmp(options[key].name, name) == 0;
        for (size_t i = 0; i < num_option_aliases && !wanted; i++)
            wanted = (int)option_aliases[i].key == key && option_aliases[i].scope == scope && strcmp(option_aliases[i].name, name) == 0;
        if (wanted) help_of(out, (ConfigKey)key);
        found |= wanted;
    }
    return found;
}

/* What peers.def says of a name, for each value or all; is_ours: that follows help of the key. */
static bool help_of_peer(StrBuf *out, OptionScope scope, const char *name, bool is_ours)
{
    bool found = false;
    for (size_t i = 0; i < num_peer_keys; i++) {
        const PeerKey *peer = &peer_keys[i];
        if (peer->scope != scope || fnmatch(peer->name, name, 0) != 0) continue;
        if (!found && !is_ours) strbuf_printf(out, "%s%s (another tool's)\n", scope == SCOPE_dataset ? "datasets[]." : "", name);
        strbuf_printf(out, "    %s%s%s%s.\n", is_ours ? "Another tool's " : "", peer->value ? peer->value : "", peer->value ? ": " : "",
                      peer->answer ? peer->answer : "changes nothing here, and is ignored");
        found = true;
        if (!peer->value) break; /* the rows after it don't count */
    }
    return found;
}

/* "datasets.path", "validation_datasets.0.path", "datasets[].path": what follows; NULL: no key of a dataset is meant. */
static const char *dataset_key(const char *name)
{
    const char *key = strrchr(name, '.');
    for (int i = 0; key && i < CONFIG_KEY_COUNT; i++) {
        size_t len = strlen(options[i].name);
        if (options[i].kind == KIND_DATASETS && strncmp(name, options[i].name, len) == 0 && (name[len] == '.' || name[len] == '['))
            return key + 1;
    }
    return NULL;
}

void config_keys(StrBuf *out)
{
    for (size_t i = 0; i < num_option_rows; i++) {
        const OptionRow *row = &option_rows[i];
        if (row->title)
            strbuf_printf(out, "%s%s\n", i ? "\n" : "", row->title);
        else
            strbuf_printf(out, "  %-29s %s\n", options[row->key].name, options[row->key].help);
    }
}

Status config_help(StrBuf *out, const char *key)
{
    const char *name = dataset_key(key);
    bool        found = false;
    for (int scope = name ? SCOPE_dataset : SCOPE_run; scope <= SCOPE_dataset; scope++) {
        bool is_ours = help_by_name(out, (OptionScope)scope, name ? name : key);
        found |= is_ours | help_of_peer(out, (OptionScope)scope, name ? name : key, is_ours);
    }
    if (found) return OK;
    StrBuf near = {0};
    if (name || !option_suggest(&near, SCOPE_run, key)) {
        strbuf_clear(&near);
        option_suggest(&near, SCOPE_dataset, name ? name : key);
    }
    Status status = status_fail(ERR_INVALID, "there is no key %.100s%s", key, near.data);
    strbuf_deinit(&near);
    return status;
}
