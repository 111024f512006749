/* Expands options.def, choices.def and peers.def into tables, and derives facts from single rows. */
#include "config/options.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OFFSET_run(name) offsetof(Config, name)
#define OFFSET_dataset(name) offsetof(Dataset, name)
#define ANY \
    { \
        false, false, 0, 0, NULL, false \
    }
#define PATH \
    { \
        false, false, 0, 0, NULL, true \
    }
#define RANGE(least, most) \
    { \
        true, false, (double)(least), (double)(most), NULL, false \
    }
#define ABOVE(least) \
    { \
        true, true, (double)(least), 1e300, NULL, false \
    }
#define WORDS(set) \
    { \
        false, false, 0, 0, #set, false \
    }

#define OPTION(scope, kind, name, fallback, limits, effect, help) \
    {SCOPE_##scope, KIND_##kind, #name, OFFSET_##scope(name), fallback, limits, EFFECT_##effect, help},
const OptionInfo options[CONFIG_KEY_COUNT] = {
#include "config/options.def"
};

#define ALIAS(scope, other, name) {SCOPE_##scope, other, NULL, KEY_##scope##_##name, NULL},
#define ALIAS_VALUE(scope, other, other_value, name, value) {SCOPE_##scope, other, other_value, KEY_##scope##_##name, value},
const OptionAlias option_aliases[] = {
#include "config/options.def"
};
const size_t num_option_aliases = sizeof option_aliases / sizeof *option_aliases;

#define ON "on"
#define OFF "off"
#define NEEDS(scope, name, other, values) {KEY_##scope##_##name, KEY_##scope##_##other, values, false},
#define OR_NEEDS(scope, name, other, values) {KEY_##scope##_##name, KEY_##scope##_##other, values, true},
const OptionNeed option_needs[] = {
#include "config/options.def"
};
const size_t num_option_needs = sizeof option_needs / sizeof *option_needs;

#define SECTION(title, text) {title, text, CONFIG_KEY_COUNT},
#define OPTION(scope, kind, name, fallback, limits, effect, help) {NULL, NULL, KEY_##scope##_##name},
const OptionRow option_rows[] = {
#include "config/options.def"
};
const size_t num_option_rows = sizeof option_rows / sizeof *option_rows;

#define CHOICE(set, enumerator, text) {#set, enumerator, text, false},
#define SPELLING(set, enumerator, text) {#set, enumerator, text, true},
const ChoiceInfo choices[] = {
#include "config/choices.def"
};
const size_t num_choices = sizeof choices / sizeof *choices;

#define PEER(scope, name, value, answer) {SCOPE_##scope, name, value, answer},
const PeerKey peer_keys[] = {
#include "config/peers.def"
};
#undef PEER
const size_t num_peer_keys = sizeof peer_keys / sizeof *peer_keys;

const OptionInfo *option_find(OptionScope scope, const char *name)
{
    for (int i = 0; i < CONFIG_KEY_COUNT; i++)
        if (options[i].scope == scope && strcmp(options[i].name, name) == 0) return &options[i];
    return NULL;
}

const char *option_kind_name(OptionKind kind)
{
    static const char *const names[] = {"true or false", "an integer",      "a number",           "a size like 8GB",   "a text",
                                        "a word",        "a list of texts", "a mapping of texts", "a list of datasets"};
    return names[kind];
}

const char *choice_text(Choice choice)
{
    for (size_t i = 0; i < num_choices; i++)
        if (choices[i].choice == choice) return choices[i].text;
    return "unset";
}

void option_write_number(StrBuf *out, double value)
{
    strbuf_printf(out, value > -1e15 && value < 1e15 ? "%.10g" : "%g", value);
}

void option_write_range(StrBuf *out, const OptionLimits *limits)
{
    strbuf_puts(out, limits->above_min ? "above " : limits->max >= 9e18 ? "at least " : "");
    option_write_number(out, limits->min);
    if (limits->above_min || limits->max >= 9e18) return;
    strbuf_puts(out, " to ");
    option_write_number(out, limits->max);
}

bool option_suggest(StrBuf *out, OptionScope scope, const char *name)
{
    enum { MOST_NAMES = 512 };
    const char *names[MOST_NAMES];
    size_t      count = 0;
    for (int i = 0; i < CONFIG_KEY_COUNT; i++)
        if (options[i].scope == scope) names[count++] = options[i].name;
    for (size_t i = 0; i < num_option_aliases; i++)
        if (option_aliases[i].scope == scope) names[count++] = option_aliases[i].name;
    CHECK(count <= MOST_NAMES);
    const char *near = nearest_name(name, names, count);
    if (!near) {
        strbuf_puts(out, "; `surogate help keys` lists all");
        return false;
    }
    const char *also = NULL; /* a second name at the same distance: adamw_beta is near adamw_beta1 and adamw_beta2 */
    int         distance = edit_distance(name, near);
    for (size_t i = 0; i < count && !also; i++)
        if (names[i] != near && abs((int)strlen(names[i]) - (int)strlen(name)) <= distance && edit_distance(name, names[i]) == distance)
            also = names[i];
    strbuf_printf(out, "; did you mean %s%s%s?", near, also ? " or " : "", also ? also : "");
    return true;
}

bool option_is_on(const OptionInfo *option, const void *field)
{
    switch (option->kind) {
    case KIND_BOOL:
        return *(const bool *)field;
    case KIND_INT:
    case KIND_SIZE:
        return *(const int64_t *)field > 0;
    case KIND_FLOAT:
        return *(const double *)field != 0;
    case KIND_STRING:
        return *(const char *const *)field != NULL;
    case KIND_CHOICE:
        return *(const Choice *)field != OPT_UNSET;
    case KIND_LIST:
        return ((const StrList *)field)->count > 0;
    case KIND_MAP:
        return ((const StrMap *)field)->count > 0;
    case KIND_DATASETS:
        return ((const DatasetList *)field)->count > 0;
    }
    return false;
}

/* A choice that isn't set equals none of the need's words. */
static bool need_holds(const OptionNeed *need, const void *base)
{
    const OptionInfo *other = &options[need->other];
    const void       *field = (const char *)base + other->offset;
    bool              is_on = option_is_on(other, field);
    if (strcmp(need->values, ON) == 0) return is_on;
    if (strcmp(need->values, OFF) == 0) return !is_on;
    if (!is_on) return false;
    char number[24] = "";
    if (other->kind == KIND_INT) snprintf(number, sizeof number, "%lld", (long long)*(const int64_t *)field);
    const char *word = number[0] ? number : choice_text(*(const Choice *)field), *found = strstr(need->values, word);
    for (size_t len = strlen(word); found; found = strstr(found + 1, word))
        if ((found == need->values || found[-1] == ' ') && (found[len] == ' ' || !found[len])) return true;
    return false;
}

/* The index after the last row of the need that starts at `first`. */
static size_t need_end(size_t first)
{
    size_t end = first + 1;
    while (end < num_option_needs && option_needs[end].is_alternative) end++;
    return end;
}

const OptionNeed *option_unmet(ConfigKey key, const void *base)
{
    for (size_t i = 0, end; i < num_option_needs; i = end) {
        end = need_end(i);
        if (option_needs[i].key != key) continue;
        bool holds = false;
        for (size_t k = i; k < end; k++) holds |= need_holds(&option_needs[k], base);
        if (!holds) return &option_needs[i];
    }
    return NULL;
}

void option_write_need(StrBuf *out, const OptionNeed *need, const char *quote)
{
    bool is_off = strcmp(need->values, OFF) == 0;
    strbuf_puts(out, is_off ? "when " : "without ");
    for (size_t first = (size_t)(need - option_needs), i = first; i < need_end(first); i++) {
        const OptionInfo *other = &options[option_needs[i].other];
        const char       *values = option_needs[i].values;
        if (i > first && strcmp(values, OFF) == 0) continue; /* a choice may also be unset */
        bool is_word = strcmp(values, ON) != 0 && strcmp(values, OFF) != 0;
        bool is_true = !is_off && other->kind == KIND_BOOL;
        strbuf_printf(out, "%s%s%s%s%s%s", i > first ? " or " : "", quote, other->name,
                      is_word   ? ": "
                      : is_true ? ": true"
                                : "",
                      is_word ? values : "", quote);
    }
    if (is_off) strbuf_puts(out, " is set");
}
