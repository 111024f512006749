/* options.def and choices.def as tables, for the parser and the printers. */
#pragma once

#include "config/config.h"

typedef enum OptionScope { SCOPE_run, SCOPE_dataset } OptionScope;

typedef enum OptionKind {
    KIND_BOOL,
    KIND_INT,
    KIND_FLOAT,
    KIND_SIZE,
    KIND_STRING,
    KIND_CHOICE,
    KIND_LIST,
    KIND_MAP,
    KIND_DATASETS
} OptionKind;

/* words: the name of the set of choices that a value must be from; NULL: any value. has_limits: min and max apply; above_min: min itself is
 * excluded. */
typedef struct OptionLimits {
    bool        has_limits, above_min;
    double      min, max;
    const char *words;
    bool        is_path;
} OptionLimits;

/* What changing a key's value affects: see options.def. */
typedef enum OptionEffect { EFFECT_RESULT, EFFECT_FREE, EFFECT_PLACE } OptionEffect;

typedef struct OptionInfo {
    OptionScope  scope;
    OptionKind   kind;
    const char  *name;
    size_t       offset;   /* offset of the key's field in Config or Dataset */
    const char  *fallback; /* the default, as text; NULL: not set */
    OptionLimits limits;
    OptionEffect effect;
    const char  *help;
} OptionInfo;

/* Another name for options[key]. If it has values of its own, its `value` stands for the key's value `means`; else `value` and `means` are
 * NULL. */
typedef struct OptionAlias {
    OptionScope scope;
    const char *name, *value;
    ConfigKey   key;
    const char *means;
} OptionAlias;

/* A key has no effect unless options[other] is on (values "on"), is off ("off"), or has one of the values ("word or word"). A row with
 * is_alternative belongs to the same need as the row before it; a need is met if one of its rows is. */
typedef struct OptionNeed {
    ConfigKey   key, other;
    const char *values;
    bool        is_alternative;
} OptionNeed;

/* A row of peers.def; name and value are fnmatch patterns. value NULL: any value; answer NULL: the key is ignored. */
typedef struct PeerKey {
    OptionScope scope;
    const char *name, *value, *answer;
} PeerKey;

/* The table in its order, for documents. A row is a section's title and text, or a key. */
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

/* The keys of a run that the mapping `distributed` may contain. */
#define DISTRIBUTED_NAME "distributed"
enum { DISTRIBUTED_FIRST = KEY_run_ray_address, DISTRIBUTED_LAST = KEY_run_max_restarts };

extern const OptionInfo  options[CONFIG_KEY_COUNT];
extern const OptionAlias option_aliases[];
extern const size_t      num_option_aliases;
extern const OptionNeed  option_needs[];
extern const size_t      num_option_needs;
extern const PeerKey     peer_keys[];
extern const size_t      num_peer_keys;
extern const OptionRow   option_rows[];
extern const size_t      num_option_rows;
extern const ChoiceInfo  choices[];
extern const size_t      num_choices;

const OptionInfo *option_find(OptionScope scope, const char *name); /* NULL: no key has this name; aliases aren't searched */
const char       *option_kind_name(OptionKind kind);                /* for messages: "an integer" */

/* option_write_number writes a limit as the table does (1e30, 16777216, 0.999999999); option_write_range writes a key's range: "0 to
 * 0.999999999", "at least 1", "above 0". */
void option_write_number(StrBuf *out, double value);
void option_write_range(StrBuf *out, const OptionLimits *limits);

/* Appends "; did you mean lora_rank?" for a name that is no key. If no name is near, it appends how to list all keys, and returns false. */
bool option_suggest(StrBuf *out, OptionScope scope, const char *name);

/* Whether the field is on: true, an integer or size above 0, a float other than 0, a text, a choice, a list with items. */
bool option_is_on(const OptionInfo *option, const void *field);

/* The first row of a need that isn't met in a Config or Dataset, so that the key has no effect; NULL: all are met. */
const OptionNeed *option_unmet(ConfigKey key, const void *base);
/* Prints a field of any kind but DATASETS, as a run file spells it. */
void config_print_value(StrBuf *out, const OptionInfo *option, const void *field);

/* Writes a need, from its first row on: "without `lora: true`", "when `max_steps` is set". */
void option_write_need(StrBuf *out, const OptionNeed *need, const char *quote);
