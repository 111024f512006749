/* Prints the table for editors: a JSON Schema of run files. It accepts all that the program reads, except numbers in quotes and words in
 * capitals. Other tools' names are marked as deprecated. */
#include "base/json.h"
#include "config/options.h"

#include <string.h>

static void put_text(StrBuf *out, const char *text)
{
    json_write_string(out, text, strlen(text));
}

/* Writes a value of an alias or a choice. true and 4 aren't strings in YAML: they are written with that type too. */
static void put_value(StrBuf *out, const char *text)
{
    bool is_bool = strcmp(text, "true") == 0 || strcmp(text, "false") == 0;
    if (is_bool || (*text && !text[strspn(text, "0123456789")])) strbuf_printf(out, "%s, ", text);
    put_text(out, text);
}

static void put_words(StrBuf *out, const char *set)
{
    const char *separator = "";
    strbuf_puts(out, "{\"enum\": [");
    for (size_t i = 0; i < num_choices; i++) {
        if (strcmp(choices[i].set, set) != 0) continue;
        strbuf_puts(out, separator);
        put_value(out, choices[i].text);
        separator = ", ";
    }
    strbuf_puts(out, "]}");
}

/* Writes the schema of a list. words: the set of words that items may be; NULL: items are any strings. */
static void put_list(StrBuf *out, const char *words)
{
    if (!words) {
        strbuf_puts(out, "{\"type\": [\"string\", \"array\"], \"items\": {\"type\": [\"string\", \"number\"]}}");
        return;
    }
    put_words(out, words);
    strbuf_puts(out, ", {\"type\": \"array\", \"items\": ");
    put_words(out, words);
    strbuf_putc(out, '}');
}

static void put_number(StrBuf *out, const OptionInfo *option)
{
    const OptionLimits *limits = &option->limits;
    strbuf_printf(out, "{\"type\": \"%s\"", option->kind == KIND_INT ? "integer" : "number");
    if (limits->has_limits) {
        strbuf_printf(out, ", \"%s\": ", limits->above_min ? "exclusiveMinimum" : "minimum");
        option_write_number(out, limits->min);
        if (!limits->above_min && limits->max < 9e18) {
            strbuf_puts(out, ", \"maximum\": ");
            option_write_number(out, limits->max);
        }
    }
    strbuf_putc(out, '}');
}

static void put_type(StrBuf *out, const OptionInfo *option)
{
    switch (option->kind) {
    case KIND_BOOL:
        strbuf_puts(out, "{\"type\": \"boolean\"}, {\"enum\": [\"yes\", \"no\", \"on\", \"off\"]}");
        break;
    case KIND_SIZE:
        strbuf_puts(out, "{\"type\": [\"integer\", \"string\"]}");
        break;
    case KIND_STRING:
        strbuf_puts(out, "{\"type\": [\"string\", \"boolean\", \"number\"]}");
        break;
    case KIND_CHOICE:
        put_words(out, option->limits.words);
        break;
    case KIND_LIST:
        put_list(out, option->limits.words);
        break;
    case KIND_MAP:
        strbuf_puts(out, "{\"type\": \"object\", \"additionalProperties\": {\"type\": [\"string\", \"number\"]}}");
        break;
    case KIND_DATASETS:
        strbuf_puts(out, "{\"$ref\": \"#/$defs/datasets\"}");
        break;
    case KIND_INT:
    case KIND_FLOAT:
        put_number(out, option);
        break;
    }
}

/* The schema of one key. Every key may be null. */
static void put_property(StrBuf *out, const OptionInfo *option)
{
    strbuf_printf(out, "    \"%s\": {\"description\": ", option->name);
    put_text(out, option->help);
    if (option->fallback) {
        strbuf_puts(out, ", \"default\": ");
        if (option->kind == KIND_BOOL || option->kind == KIND_INT || option->kind == KIND_FLOAT)
            strbuf_puts(out, option->fallback);
        else
            put_text(out, option->fallback);
    }
    strbuf_puts(out, ", \"anyOf\": [");
    put_type(out, option);
    strbuf_puts(out, ", {\"type\": \"null\"}]}");
}

static void put_distributed(StrBuf *out)
{
    strbuf_puts(out,
                ",\n    \"" DISTRIBUTED_NAME "\": {\"type\": [\"object\", \"null\"], \"additionalProperties\": false, \"properties\": {");
    for (int key = DISTRIBUTED_FIRST; key <= DISTRIBUTED_LAST; key++) {
        strbuf_puts(out, key > DISTRIBUTED_FIRST ? ",\n" : "\n");
        put_property(out, &options[key]);
    }
    strbuf_puts(out, "}}");
}

/* Writes the property of one alias. It allows the alias's own values. It also allows our key's values if the alias takes them, else the
 * values that switch nothing on. rows: from the alias's first row on. */
static void put_alias(StrBuf *out, const OptionAlias *rows, size_t num_rows)
{
    bool        takes_key = false;
    const char *place = rows->scope == SCOPE_run ? "#/properties" : "#/$defs/dataset/properties";
    strbuf_printf(out, ",\n    \"%s\": {\"description\": \"Another tool's name of %s.\", \"deprecated\": true, \"anyOf\": [", rows->name,
                  options[rows->key].name);
    for (size_t i = 0; i < num_rows; i++) {
        if (strcmp(rows[i].name, rows->name) != 0 || rows[i].scope != rows->scope) continue;
        takes_key |= !rows[i].value;
        if (rows[i].value) {
            strbuf_puts(out, "{\"enum\": [");
            put_value(out, rows[i].value);
            strbuf_puts(out, "]}, ");
        } else {
            strbuf_printf(out, "{\"$ref\": \"%s/%s\"}, ", place, options[rows[i].key].name);
        }
    }
    strbuf_printf(out, "%s]}", takes_key ? "{\"type\": \"null\"}" : "{\"$ref\": \"#/$defs/nothing\"}");
}

static bool is_pattern(const char *name)
{
    return strpbrk(name, "*?[") != NULL;
}

static bool is_alias(OptionScope scope, const char *name)
{
    for (size_t i = 0; i < num_option_aliases; i++)
        if (option_aliases[i].scope == scope && strcmp(option_aliases[i].name, name) == 0) return true;
    return false;
}

/* Whether the row is the first of its name, and the name is neither a key, an alias nor a member ("name.member"). */
static bool is_first_peer(const PeerKey *peer)
{
    if (strchr(peer->name, '.') || option_find(peer->scope, peer->name) || is_alias(peer->scope, peer->name)) return false;
    for (const PeerKey *at = peer_keys; at < peer; at++)
        if (at->scope == peer->scope && strcmp(at->name, peer->name) == 0) return false;
    return true;
}

/* Whether the program ignores some values of the name, besides values that switch nothing on. Rows of its members count too. */
static bool is_ignored(const PeerKey *peer)
{
    size_t len = strlen(peer->name);
    for (size_t i = 0; i < num_peer_keys; i++) {
        const PeerKey *at = &peer_keys[i];
        if (at->scope == peer->scope && !at->answer && strncmp(at->name, peer->name, len) == 0 && (!at->name[len] || at->name[len] == '.'))
            return true;
    }
    return false;
}

/* Writes other tools' keys that have no equivalent here, with the answer of peers.def. */
static void put_peers(StrBuf *out, OptionScope scope)
{
    for (const PeerKey *peer = peer_keys; peer < peer_keys + num_peer_keys; peer++) {
        if (peer->scope != scope || is_pattern(peer->name) || !is_first_peer(peer)) continue;
        strbuf_printf(out, ",\n    \"%s\": {\"description\": ", peer->name);
        StrBuf text = {0};
        strbuf_printf(&text, "Another tool's key: %s.", peer->answer ? peer->answer : "it changes nothing here");
        put_text(out, text.data);
        strbuf_deinit(&text);
        strbuf_printf(out, ", \"deprecated\": true%s}", is_ignored(peer) ? "" : ", \"$ref\": \"#/$defs/nothing\"");
    }
}

/* Writes an fnmatch pattern as a regular expression. */
static void put_regex(StrBuf *out, const char *pattern)
{
    strbuf_putc(out, '^');
    for (const char *at = pattern; *at; at++) {
        if (*at == '*' || *at == '?')
            strbuf_puts(out, *at == '*' ? ".*" : ".");
        else if (*at == '!')
            strbuf_putc(out, '^');
        else
            strbuf_putc(out, *at);
    }
    strbuf_putc(out, '$');
}

/* Writes patterns of keys that are ignored. They match our keys too, and so must allow any value. */
static void put_peer_patterns(StrBuf *out, OptionScope scope)
{
    const char *separator = "\n";
    strbuf_puts(out, "\"patternProperties\": {");
    for (const PeerKey *peer = peer_keys; peer < peer_keys + num_peer_keys; peer++) {
        if (peer->scope != scope || !is_pattern(peer->name) || !is_first_peer(peer) || !is_ignored(peer)) continue;
        strbuf_printf(out, "%s    \"", separator);
        put_regex(out, peer->name);
        strbuf_puts(out, "\": true");
        separator = ",\n";
    }
    strbuf_puts(out, "}");
}

/* The properties of a scope: our keys, then other tools' names for our keys, then other tools' keys. */
static void put_properties(StrBuf *out, OptionScope scope)
{
    const char *separator = "\n";
    strbuf_puts(out, "\"type\": \"object\", \"additionalProperties\": false, \"properties\": {");
    for (int key = 0; key < CONFIG_KEY_COUNT; key++) {
        if (options[key].scope != scope) continue;
        strbuf_puts(out, separator);
        put_property(out, &options[key]);
        separator = ",\n";
    }
    if (scope == SCOPE_run) put_distributed(out);
    for (size_t i = 0; i < num_option_aliases; i++) {
        const OptionAlias *alias = &option_aliases[i];
        bool               is_first = true;
        for (size_t k = 0; k < i; k++)
            is_first &= option_aliases[k].scope != alias->scope || strcmp(option_aliases[k].name, alias->name) != 0;
        if (alias->scope == scope && is_first && !option_find(scope, alias->name)) put_alias(out, alias, num_option_aliases - i);
    }
    put_peers(out, scope);
    strbuf_puts(out, "\n  }, ");
    put_peer_patterns(out, scope);
}

void config_schema(StrBuf *out)
{
    strbuf_puts(out, "{\n  \"$schema\": \"https://json-schema.org/draft/2020-12/schema\",\n  \"title\": \"Surogate run file\",\n  ");
    put_properties(out, SCOPE_run);
    strbuf_puts(
        out,
        ",\n  \"$defs\": {\n   \"nothing\": {\"enum\": [null, false, \"false\", \"no\", \"off\", \"\", \"none\", \"auto\", 0, [], {}]},\n"
        "   \"dataset\": {\"required\": [\"path\"], ");
    put_properties(out, SCOPE_dataset);
    strbuf_puts(out,
                "},\n   \"datasets\": {\"anyOf\": [{\"type\": \"string\"}, {\"$ref\": \"#/$defs/dataset\"}, "
                "{\"type\": \"array\", \"items\": {\"anyOf\": [{\"type\": \"string\"}, {\"$ref\": \"#/$defs/dataset\"}]}}]}\n  }\n}\n");
}
