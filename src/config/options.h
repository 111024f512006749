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

/* words: the set of choices, else NULL. has_limits: min and max count; min itself is out when above_min. */
typedef struct OptionLimits {
    bool        has_limits, above_min;
    double      min, max;
    const char *words;
    bool        is_path;
} OptionLimits;

/* What a key's value does: see options.def. */
typedef enum OptionEffect { EFFECT_RESULT, EFFECT_FREE, EFFECT_PLACE } OptionEffect;

typedef struct OptionInfo {
    OptionScope  scope;
    OptionKind   kind;
    const char  *name;
    size_t       offset;   /* of its field in Config or Dataset */
    const char  *fallback; /* default, as text; NULL: not set */
    OptionLimits limits;
    OptionEffect effect;
    const char  *help;
} OptionInfo;

/* Another name for options[key]; value and its meaning are NULL where values don't differ. */
typedef struct OptionAlias {
    OptionScope scope;
    const char *name, *value;
    ConfigKey   key;
    const char *means;
} OptionAlias;

/* A key has no effect unless options[other] is on (values "on"), off, or one of values, "word or word". An alternative is of the
 * need before it: one of them is enough. */
typedef struct OptionNeed {
    ConfigKey   key, other;
    const char *values;
    bool        is_alternative;
} OptionNeed;

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

/* The keys of a run that its mapping `distributed` may hold. */
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

const OptionInfo *option_find(OptionScope scope, const char *name); /* NULL: none of that name; aliases aside */
const char       *option_kind_name(OptionKind kind);                /* "an integer" */

/* A limit as the table writes it: 1e30, 16777216, 0.999999999. "0 to 0.999999999", "at least 1", "above 0". */
void option_write_number(StrBuf *out, double value);
void option_write_range(StrBuf *out, const OptionLimits *limits);

/* "; did you mean lora_rank?" for a name that is no key; false where none is near: then where all are listed. */
bool option_suggest(StrBuf *out, OptionScope scope, const char *name);

/* Whether a key's field says something: true, a number but 0, a text, a list with items. */
bool option_is_on(const OptionInfo *option, const void *field);

/* The first row of a need that doesn't hold in a Config or Dataset, so that the key has no effect; NULL: it has. */
const OptionNeed *option_unmet(ConfigKey key, const void *base);
/* A field of any kind but DATASETS, as a run file has it. */
void config_print_value(StrBuf *out, const OptionInfo *option, const void *field);

/* "without `lora: true`", "when `max_steps` is set": a need, from its first row on. */
void option_write_need(StrBuf *out, const OptionNeed *need, const char *quote);
