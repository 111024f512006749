/* The expansion of options.def, choices.def and peers.def. */
#include "config/options.h"

#include <stddef.h>
#include <string.h>

#define OFFSET_run(name)     offsetof(Config, name)
#define OFFSET_dataset(name) offsetof(Dataset, name)
#define ANY               { false, false, 0, 0, NULL }
#define RANGE(least, most) { true, false, (double)(least), (double)(most), NULL }
#define ABOVE(least)       { true, true, (double)(least), 1e300, NULL }
#define WORDS(set)         { false, false, 0, 0, #set }

#define SECTION(title, text)
#define ALIAS(scope, other, name)
#define ALIAS_VALUE(scope, other, other_value, name, value)
#define OPTION(scope, kind, name, fallback, limits, help) \
    { SCOPE_##scope, KIND_##kind, #name, OFFSET_##scope(name), fallback, limits, help },
const OptionInfo options[CONFIG_KEY_COUNT] = {
#include "config/options.def"
};
#undef OPTION
#undef ALIAS
#undef ALIAS_VALUE

#define OPTION(scope, kind, name, fallback, limits, help)
#define ALIAS(scope, other, name) { SCOPE_##scope, other, NULL, KEY_##scope##_##name, NULL },
#define ALIAS_VALUE(scope, other, other_value, name, value) { SCOPE_##scope, other, other_value, KEY_##scope##_##name, value },
const OptionAlias option_aliases[] = {
#include "config/options.def"
};
#undef OPTION
#undef ALIAS
#undef ALIAS_VALUE
#undef SECTION
const size_t num_option_aliases = sizeof option_aliases / sizeof *option_aliases;

#define SECTION(title, text) { title, text, CONFIG_KEY_COUNT },
#define ALIAS(scope, other, name)
#define ALIAS_VALUE(scope, other, other_value, name, value)
#define OPTION(scope, kind, name, fallback, limits, help) { NULL, NULL, KEY_##scope##_##name },
const OptionRow option_rows[] = {
#include "config/options.def"
};
const size_t num_option_rows = sizeof option_rows / sizeof *option_rows;

#define CHOICE(set, enumerator, text)   { #set, enumerator, text, false },
#define SPELLING(set, enumerator, text) { #set, enumerator, text, true },
const ChoiceInfo choices[] = {
#include "config/choices.def"
};
const size_t num_choices = sizeof choices / sizeof *choices;

#define PEER(scope, name, value, answer) { SCOPE_##scope, name, value, answer },
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
    static const char *const names[] = { "true or false", "an integer",      "a number",    "a size like 8GB", "a text",
                                         "a word",        "a list of texts", "a mapping of texts", "a list of datasets" };
    return names[kind];
}

const char *choice_text(Choice choice)
{
    for (size_t i = 0; i < num_choices; i++)
        if (choices[i].choice == choice) return choices[i].text;
    return "unset";
}
