/* options.def and choices.def as tables, for the parser and the printers. */
#pragma once

#include "config/config.h"

typedef enum OptionScope { SCOPE_run, SCOPE_dataset } OptionScope;

typedef enum OptionKind {
    KIND_BOOL, KIND_INT, KIND_FLOAT, KIND_SIZE, KIND_STRING, KIND_CHOICE, KIND_LIST, KIND_MAP, KIND_DATASETS
} OptionKind;

/* words: the set of choices, else NULL. has_limits: min and max count; min itself is out when above_min. */
typedef struct OptionLimits {
    bool        has_limits, above_min;
    double      min, max;
    const char *words;
} OptionLimits;

typedef struct OptionInfo {
    OptionScope  scope;
    OptionKind   kind;
    const char  *name;
    size_t       offset;   /* of its field in Config or Dataset */
    const char  *fallback; /* default, as text; NULL: not set */
    OptionLimits limits;
    const char  *help;
} OptionInfo;

/* Another name for options[key]; value and its meaning are NULL where values don't differ. */
typedef struct OptionAlias {
    OptionScope scope;
    const char *name, *value;
    ConfigKey   key;
    const char *means;
} OptionAlias;

/* A row of peers.def; names and values are patterns of fnmatch. value NULL: any; answer NULL: the key is ignored. */
typedef struct PeerKey {
    OptionScope scope;
    const char *name, *value, *answer;
} PeerKey;

/* The table in its order, for documents: a section's title and text, or a key. */
typedef struct OptionRow {
    const char *title, *text;
    ConfigKey   key;
} OptionRow;

typedef struct ChoiceInfo {
    const char *set;
    Choice      choice;
    const char *text;
    bool        is_spelling;
} ChoiceInfo;

extern const OptionInfo  options[CONFIG_KEY_COUNT];
extern const OptionAlias option_aliases[];
extern const size_t      num_option_aliases;
extern const PeerKey     peer_keys[];
extern const size_t      num_peer_keys;
extern const OptionRow   option_rows[];
extern const size_t      num_option_rows;
extern const ChoiceInfo  choices[];
extern const size_t      num_choices;

const OptionInfo *option_find(OptionScope scope, const char *name); /* NULL: none of that name; aliases aside */
const char       *option_kind_name(OptionKind kind);                /* "an integer" */
