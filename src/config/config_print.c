/* Prints a resolved Config as YAML that reads back to the same Config. */
#include "base/json.h"
#include "base/yaml.h"
#include "config/options.h"

#include <string.h>

/* Quotes the text unless it is plainly a word or a path. */
static void print_text(StrBuf *out, const char *text)
{
    static const char *const nulls[] = {"null", "Null", "NULL"};
    bool plain = *text && strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-") == strlen(text) &&
                 *text != '-' && strcmp(text, "...") != 0;
    for (int i = 0; i < 3; i++) plain = plain && strcmp(text, nulls[i]) != 0;
    if (plain)
        strbuf_puts(out, text);
    else
        yaml_write_string(out, text, strlen(text));
}

/* Prints bytes in the largest unit that divides them. */
static void print_size(StrBuf *out, int64_t bytes)
{
    static const struct {
        const char *unit;
        int64_t     bytes;
    } units[] = {{"TB", 1000000000000},
                 {"TiB", (int64_t)1 << 40},
                 {"GB", 1000000000},
                 {"GiB", (int64_t)1 << 30},
                 {"MB", 1000000},
                 {"MiB", (int64_t)1 << 20},
                 {"B", 1}};
    size_t i = 0;
    while (bytes % units[i].bytes) i++;
    strbuf_printf(out, "%lld%s", (long long)(bytes / units[i].bytes), bytes ? units[i].unit : "");
}

static void print_list(StrBuf *out, const StrList *list)
{
    strbuf_putc(out, '[');
    for (size_t i = 0; i < list->count; i++) {
        if (i) strbuf_puts(out, ", ");
        print_text(out, list->items[i]);
    }
    strbuf_putc(out, ']');
}

static void print_map(StrBuf *out, const StrMap *map)
{
    strbuf_putc(out, '{');
    for (size_t i = 0; i < map->count; i++) {
        if (i) strbuf_puts(out, ", ");
        if (strlen(map->keys[i]) > 100) strbuf_puts(out, "? "); /* YAML allows keys over 1,024 characters only behind "? " */
        print_text(out, map->keys[i]);
        strbuf_puts(out, ": ");
        print_text(out, map->values[i]);
    }
    strbuf_putc(out, '}');
}

/* Whether the field needs no line: reading a file without the key gives the same value. */
static bool is_unset(const OptionInfo *option, const void *field)
{
    switch (option->kind) {
    case KIND_STRING:
        return !*(const char *const *)field;
    case KIND_CHOICE:
        return *(const Choice *)field == OPT_UNSET;
    case KIND_LIST:
        return !option->fallback && ((const StrList *)field)->count == 0;
    case KIND_MAP:
        return ((const StrMap *)field)->count == 0;
    case KIND_DATASETS:
        return ((const DatasetList *)field)->count == 0;
    default:
        return false;
    }
}

void config_print_value(StrBuf *out, const OptionInfo *option, const void *field)
{
    switch (option->kind) {
    case KIND_BOOL:
        strbuf_puts(out, *(const bool *)field ? "true" : "false");
        break;
    case KIND_INT:
        strbuf_printf(out, "%lld", (long long)*(const int64_t *)field);
        break;
    case KIND_FLOAT:
        json_write_double(out, *(const double *)field);
        break;
    case KIND_SIZE:
        print_size(out, *(const int64_t *)field);
        break;
    case KIND_STRING:
        print_text(out, *(const char *const *)field);
        break;
    case KIND_CHOICE:
        strbuf_puts(out, choice_text(*(const Choice *)field));
        break;
    case KIND_LIST:
        print_list(out, field);
        break;
    case KIND_MAP:
        print_map(out, field);
        break;
    case KIND_DATASETS:
        CHECK(!"datasets are printed by print_datasets");
        break;
    }
}

static void print_datasets(StrBuf *out, const DatasetList *list)
{
    for (size_t i = 0; i < list->count; i++) {
        const char *lead = "  - ";
        for (int key = 0; key < CONFIG_KEY_COUNT; key++) {
            const OptionInfo *option = &options[key];
            const void       *field = (const char *)&list->items[i] + option->offset;
            if (option->scope != SCOPE_dataset || is_unset(option, field)) continue;
            strbuf_printf(out, "%s%s: ", lead, option->name);
            config_print_value(out, option, field);
            strbuf_putc(out, '\n');
            lead = "    ";
        }
    }
}

void config_print(const Config *config, StrBuf *out)
{
    for (int key = 0; key < CONFIG_KEY_COUNT; key++) {
        const OptionInfo *option = &options[key];
        const void       *field = (const char *)config + option->offset;
        if (option->scope != SCOPE_run || is_unset(option, field)) continue;
        strbuf_printf(out, "%s:", option->name);
        if (option->kind == KIND_DATASETS) {
            strbuf_putc(out, '\n');
            print_datasets(out, field);
            continue;
        }
        strbuf_putc(out, ' ');
        config_print_value(out, option, field);
        strbuf_putc(out, '\n');
    }
}
