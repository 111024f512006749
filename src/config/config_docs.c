/* Prints the table of keys for people: Markdown and help. */
#include "config/options.h"

#include <fnmatch.h>
#include <string.h>

/* Writes the further spellings of a choice, as " (also `x`, `y`)"; nothing if it has none. */
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

/* Writes the limits of a value: "1 to 65536", "`linear`, `cosine`", or "". */
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

/* Writes " No effect without `lora: true`." for each need of the key. */
static void write_needs(StrBuf *out, ConfigKey key, const char *quote)
{
    for (size_t i = 0; i < num_option_needs; i++) {
        if (option_needs[i].key != key || option_needs[i].is_alternative) continue;
        strbuf_puts(out, " No effect ");
        option_write_need(out, &option_needs[i], quote);
        strbuf_putc(out, '.');
    }
}

/* Writes the key's other names, separated by commas: "`x`, `y`". */
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
             "are errors, reported all at once.\n\n"
             "Numbers may be written as `2e-4`; integers have neither fraction nor exponent. Booleans are `true`/`false` (`yes`,\n"
             "`no`, `on`, `off` are read too). Sizes take `KB`, `MB`, `GB`, `TB` (powers of 1000) and `KiB`, `MiB`, `GiB`, `TiB`.\n"
             "A list of one needs no brackets; on the command line `key=a,b` is a list too. An empty value or `null` means the default.\n"
             "Names in the last column are other tools' names for the key: they are read, and the key's own name is printed. Other\n"
             "tools' keys that change nothing here are ignored, with a note; any other key is an error that says what to write.\n"
             "If `false` under such a name means the default, another name for the same key wins.\n\n"
             "A key without effect, because of other keys, gets a warning that says why, and the run starts: `lora_rank` without\n"
             "`lora: true`. A value that switches nothing on (`false`, `0`) gets none.\n");
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

enum { OF_KEY = 4 }; /* left margin of the text about a key */

/* Prints "BEFORE TEXT." wrapped to lines, and empties `text`. Prints nothing where the text is empty. */
static void put_wrapped(StrBuf *out, const char *before, StrBuf *text)
{
    StrBuf line = {0};
    if (text->len) {
        strbuf_printf(&line, "%s %s.", before, text->data);
        strbuf_wrapped(out, OF_KEY, line.data);
    }
    strbuf_deinit(&line);
    strbuf_deinit(text);
}

static void help_of(StrBuf *out, ConfigKey key)
{
    const OptionInfo *option = &options[key];
    StrBuf            help = {0}, values = {0}, names = {0};
    write_limits(&values, option, "");
    write_aliases(&names, key, "");
    strbuf_printf(out, "%s%s (%s", option->scope == SCOPE_dataset ? "datasets[]." : "", option->name, type_word(option->kind));
    if (option->fallback) strbuf_printf(out, ", default %s", option->fallback);
    strbuf_puts(out, ")\n");
    strbuf_puts(&help, option->help);
    write_needs(&help, key, "");
    strbuf_wrapped(out, OF_KEY, help.data);
    strbuf_deinit(&help);
    put_wrapped(out, "Values:", &values);
    put_wrapped(out, "Other names:", &names);
}

/* Writes the help of a key by our name or an alias; false: the scope has no such name. */
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

/* Writes the answer of peers.def for each value of a name. is_ours: the text follows the help of our key. */
static bool help_of_peer(StrBuf *out, OptionScope scope, const char *name, bool is_ours)
{
    bool found = false;
    for (size_t i = 0; i < num_peer_keys; i++) {
        const PeerKey *peer = &peer_keys[i];
        if (peer->scope != scope || fnmatch(peer->name, name, 0) != 0) continue;
        if (!found && !is_ours) strbuf_printf(out, "%s%s (another tool's)\n", scope == SCOPE_dataset ? "datasets[]." : "", name);
        StrBuf text = {0};
        strbuf_printf(&text, "%s%s%s%s.", is_ours ? "Another tool's " : "", peer->value ? peer->value : "", peer->value ? ": " : "",
                      peer->answer ? peer->answer : "changes nothing here, and is ignored");
        strbuf_wrapped(out, OF_KEY, text.data);
        strbuf_deinit(&text);
        found = true;
        if (!peer->value) break; /* a row for any value: rows after it are never reached */
    }
    return found;
}

/* The key of a dataset's name: "path" for "datasets.path", "validation_datasets.0.path" or "datasets[].path". NULL: the name has another
 * form. */
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
    enum { OF_HELP = 32 };
    for (size_t i = 0; i < num_option_rows; i++) {
        const OptionRow *row = &option_rows[i];
        if (row->title) {
            strbuf_printf(out, "%s%s\n", i ? "\n" : "", row->title);
            continue;
        }
        strbuf_printf(out, "  %s", options[row->key].name);
        strbuf_wrapped(out, OF_HELP, options[row->key].help);
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
