/* Reads values of run files by the kind of their option. */
#include "config/value.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

void reader_problem(ConfigReader *reader, const YamlNode *node, const char *fmt, ...)
{
    char    text[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (node && node->line)
        strbuf_printf(reader->problems, "%s:%d:%d: ", node->source, node->line, node->column);
    else if (node)
        strbuf_printf(reader->problems, "%s: ", node->source);
    strbuf_puts(reader->problems, text);
    strbuf_putc(reader->problems, '\n');
    reader->num_problems++;
}

bool bool_read(const char *text, bool *out)
{
    static const char *const yes[] = {"true", "yes", "on"}, *const no[] = {"false", "no", "off"};
    for (int i = 0; i < 3; i++) {
        if (strcasecmp(text, yes[i]) != 0 && strcasecmp(text, no[i]) != 0) continue;
        *out = strcasecmp(text, yes[i]) == 0;
        return true;
    }
    return false;
}

/* Reads digits with an optional sign. False also when the number doesn't fit. */
static bool int_read(const char *text, int64_t *out)
{
    const char *digits = text + (*text == '-' || *text == '+');
    size_t      len = strspn(digits, "0123456789");
    if (len == 0 || digits[len]) return false;
    errno = 0;
    *out = strtoll(text, NULL, 10);
    return errno == 0;
}

/* Reads [sign] digits [. digits] [e [sign] digits], with digits on at least one side of the point. The number must be finite. */
static bool float_read(const char *text, double *out)
{
    const char *at = text + (*text == '-' || *text == '+');
    size_t      whole = strspn(at, "0123456789"), part = 0;
    at += whole;
    if (*at == '.') {
        part = strspn(++at, "0123456789");
        at += part;
    }
    if (whole + part == 0) return false;
    if (*at == 'e' || *at == 'E') {
        at++;
        at += *at == '-' || *at == '+';
        size_t digits = strspn(at, "0123456789");
        if (digits == 0) return false;
        at += digits;
    }
    if (*at) return false;
    *out = strtod(text, NULL);
    return isfinite(*out);
}

/* Reads a number with an optional unit. */
static bool size_read(const char *text, int64_t *out)
{
    static const struct {
        const char *unit;
        double      bytes;
    } units[] = {{"", 1},      {"B", 1},         {"KB", 1e3},         {"MB", 1e6},           {"GB", 1e9},
                 {"TB", 1e12}, {"KiB", 1024},    {"MiB", 1048576.0},  {"GiB", 1073741824.0}, {"TiB", 0x1p40},
                 {"K", 1024},  {"M", 1048576.0}, {"G", 1073741824.0}, {"T", 0x1p40}};
    char   number[64];
    size_t len = strspn(text, "0123456789.");
    double value;
    if (len == 0 || len >= sizeof number) return false;
    memcpy(number, text, len);
    number[len] = 0;
    if (!float_read(number, &value)) return false;
    text += len;
    while (*text == ' ') text++;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (strcasecmp(text, units[i].unit) != 0) continue;
        value *= units[i].bytes;
        if (value >= 0x1p62) return false;
        *out = (int64_t)value;
        return true;
    }
    return false;
}

static bool choice_read(ConfigReader *reader, const char *set, const char *label, const YamlNode *node, Choice *out)
{
    for (size_t i = 0; i < num_choices; i++) {
        if (strcmp(choices[i].set, set) != 0 || strcasecmp(choices[i].text, node->text.data) != 0) continue;
        *out = choices[i].choice;
        if (choices[i].is_spelling) {
            if (node->line) strbuf_printf(reader->notes, "%s:%d:%d: ", node->source, node->line, node->column);
            strbuf_printf(reader->notes, "%s: %s is read as %s\n", label, choices[i].text, choice_text(*out));
        }
        return true;
    }
    return false;
}

static void choice_problem(ConfigReader *reader, const OptionInfo *option, const char *label, const YamlNode *node)
{
    const char *names[32];
    size_t      count = 0;
    StrBuf      list = {0};
    for (size_t i = 0; i < num_choices; i++) {
        if (strcmp(choices[i].set, option->limits.words) != 0 || choices[i].is_spelling) continue;
        CHECK(count < sizeof names / sizeof *names);
        if (count) strbuf_puts(&list, ", ");
        strbuf_puts(&list, choices[i].text);
        names[count++] = choices[i].text;
    }
    reader_problem(reader, node, "%s: expected one of %s, found \"%.100s\"%s", label, strbuf_cstr(&list), node->text.data,
                   did_you_mean("; ", node->text.data, names, count));
    strbuf_deinit(&list);
}

static bool in_range(ConfigReader *reader, const OptionInfo *option, const char *label, const YamlNode *node, double value)
{
    const OptionLimits *limits = &option->limits;
    bool                low = limits->above_min ? value <= limits->min : value < limits->min;
    if (!limits->has_limits || (!low && value <= limits->max)) return true;
    StrBuf expected = {0};
    option_write_range(&expected, limits);
    reader_problem(reader, node, "%s: %.60s is out of range, expected %s", label, node->text.data, expected.data);
    strbuf_deinit(&expected);
    return false;
}

static bool number_read(ConfigReader *reader, const OptionInfo *option, const char *label, const YamlNode *node, void *out)
{
    const char *text = node->text.data;
    int64_t     integer = 0;
    double      number = 0;
    bool        ok = option->kind == KIND_INT    ? int_read(text, &integer)
                     : option->kind == KIND_SIZE ? size_read(text, &integer)
                                                 : float_read(text, &number);
    if (!ok) {
        bool whole = option->kind == KIND_INT && float_read(text, &number) && number == floor(number) && fabs(number) < 1e15;
        if (whole)
            reader_problem(reader, node, "%s: expected an integer, found %.60s; write %.0f", label, text, number);
        else
            reader_problem(reader, node, "%s: expected %s, found \"%.100s\"", label, option_kind_name(option->kind), text);
        return false;
    }
    if (option->kind == KIND_SIZE && integer > 0 && integer < 1 << 20 && isdigit((unsigned char)text[strlen(text) - 1])) {
        reader_problem(reader, node, "%s: %.60s means that many bytes; give a unit: %.60sGB or %.60sGiB", label, text, text, text);
        return false;
    }
    if (!in_range(reader, option, label, node, option->kind == KIND_FLOAT ? number : (double)integer)) return false;
    if (option->kind == KIND_FLOAT)
        *(double *)out = number;
    else
        *(int64_t *)out = integer;
    return true;
}

static bool scalar_read(ConfigReader *reader, const OptionInfo *option, const char *label, const YamlNode *node, void *out)
{
    const char *text = node->text.data;
    switch (option->kind) {
    case KIND_BOOL:
        if (bool_read(text, out)) return true;
        reader_problem(reader, node, "%s: expected true or false, found \"%.100s\"", label, text);
        return false;
    case KIND_CHOICE:
        if (choice_read(reader, option->limits.words, label, node, out)) return true;
        choice_problem(reader, option, label, node);
        return false;
    case KIND_STRING:
        *(const char **)out = arena_strndup(reader->arena, text, node->text.len);
        return true;
    default:
        return number_read(reader, option, label, node, out);
    }
}

/* Reads an item of a list; it must be one of the option's words if there are any. */
static bool item_read(ConfigReader *reader, const OptionInfo *option, const char *label, const YamlNode *node, const char **out)
{
    Choice choice;
    if (!option->limits.words) {
        *out = arena_strndup(reader->arena, node->text.data, node->text.len);
        return true;
    }
    if (!choice_read(reader, option->limits.words, label, node, &choice)) {
        choice_problem(reader, option, label, node);
        return false;
    }
    *out = choice_text(choice);
    return true;
}

static bool list_read(ConfigReader *reader, const OptionInfo *option, const char *label, const YamlNode *node, StrList *out)
{
    const YamlNode *const *items = node->type == YAML_SCALAR ? &node : (const YamlNode *const *)node->items;
    size_t                 count = node->type == YAML_SCALAR ? 1 : node->count;
    if (node->type == YAML_SCALAR && option->limits.words && node->text.len == 0) count = 0; /* the empty text is an empty list of words */
    StrList list = {arena_array(reader->arena, const char *, count), count};
    for (size_t i = 0; i < count; i++) {
        if (items[i]->type != YAML_SCALAR || yaml_is_null(items[i])) {
            reader_problem(reader, items[i], "%s: expected a text as item %zu, found %s", label, i + 1, yaml_type_name(items[i]));
            return false;
        }
        if (!item_read(reader, option, label, items[i], &list.items[i])) return false;
    }
    *out = list;
    return true;
}

static bool map_read(ConfigReader *reader, const char *label, const YamlNode *node, StrMap *out)
{
    StrMap map = {arena_array(reader->arena, const char *, node->count), arena_array(reader->arena, const char *, node->count),
                  node->count};
    for (size_t i = 0; i < node->count; i++) {
        const YamlNode *key = node->keys[i], *value = node->items[i];
        if (key->type != YAML_SCALAR || value->type != YAML_SCALAR || yaml_is_null(value)) {
            reader_problem(reader, key, "%s: expected texts as keys and values", label);
            return false;
        }
        map.keys[i] = arena_strndup(reader->arena, key->text.data, key->text.len);
        for (size_t k = 0; k < i; k++) {
            if (strcmp(map.keys[k], map.keys[i]) != 0) continue;
            reader_problem(reader, key, "%s: %s is given twice", label, map.keys[i]);
            return false;
        }
        map.values[i] = arena_strndup(reader->arena, value->text.data, value->text.len);
    }
    *out = map;
    return true;
}

bool option_read(ConfigReader *reader, const OptionInfo *option, const char *label, const YamlNode *node, void *out)
{
    bool is_list = option->kind == KIND_LIST, is_map = option->kind == KIND_MAP;
    bool fits = node->type == YAML_SCALAR ? !is_map : node->type == YAML_SEQUENCE ? is_list : is_map;
    if (!fits) {
        reader_problem(reader, node, "%s: expected %s, found %s", label, option_kind_name(option->kind), yaml_type_name(node));
        return false;
    }
    if (is_list) return list_read(reader, option, label, node, out);
    return is_map ? map_read(reader, label, node, out) : scalar_read(reader, option, label, node, out);
}

void option_reset(Arena *arena, const OptionInfo *option, void *out)
{
    static const size_t bytes[] = {sizeof(bool),   sizeof(int64_t), sizeof(double), sizeof(int64_t),    sizeof(char *),
                                   sizeof(Choice), sizeof(StrList), sizeof(StrMap), sizeof(DatasetList)};
    memset(out, 0, bytes[option->kind]);
    if (!option->fallback) return;
    StrBuf       problems = {0};
    ConfigReader reader = {.arena = arena, .problems = &problems};
    YamlNode     node = {.type = YAML_SCALAR, .is_plain = true, .source = "options.def", .text = str_of(option->fallback)};
    CHECK(option_read(&reader, option, option->name, &node, out));
}

void str_list_push(Arena *arena, StrList *list, const char *text)
{
    const char **items = arena_array(arena, const char *, list->count + 1);
    if (list->count) memcpy(items, list->items, list->count * sizeof *items);
    items[list->count] = text;
    *list = (StrList){items, list->count + 1};
}

bool str_list_has(const StrList *list, const char *text)
{
    for (size_t i = 0; i < list->count; i++)
        if (strcmp(list->items[i], text) == 0) return true;
    return false;
}

bool value_is_inert(const YamlNode *value)
{
    static const char *const words[] = {"", "none", "0", "0.0"};
    bool                     on;
    if (value->type != YAML_SCALAR) return value->count == 0;
    if (yaml_is_null(value) || (bool_read(value->text.data, &on) && !on)) return true;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcasecmp(value->text.data, words[i]) == 0) return true;
    return false;
}
