/* Config: a run file and command line overrides, read, checked and typed. Its fields are the rows of options.def.
 *
 * A problem never stops reading: all of them are reported at once, each as "file:line:column: what, expected, hint".
 * Values: numbers as in YAML, and 2e-4; integers have neither fraction nor exponent; booleans are true/false, and
 * yes/no/on/off, in any case. Quotes around a number or boolean don't matter: a key has one type. Null means the default.
 * Sizes take KB MB GB TB (powers of 1000) and KiB MiB GiB TiB. A list of one may be written without brackets, and on the command
 * line a list as a,b. */
#pragma once

#include "base/arena.h"
#include "base/strbuf.h"

#include <stdint.h>

typedef enum Choice {
    OPT_UNSET,
#define CHOICE(set, enumerator, text) enumerator,
#define SPELLING(set, enumerator, text)
#include "config/choices.def"
#undef CHOICE
#undef SPELLING
} Choice;

typedef struct StrList {
    const char **items;
    size_t       count;
} StrList;

typedef struct StrMap {
    const char **keys, **values;
    size_t       count;
} StrMap;

typedef enum ConfigKey { /* KEY_run_model, ..., KEY_dataset_path, ... */
#define OPTION(scope, kind, name, fallback, limits, effect, help) KEY_##scope##_##name,
#include "config/options.def"
                         CONFIG_KEY_COUNT
} ConfigKey;

typedef struct Dataset Dataset;
typedef struct DatasetList {
    Dataset *items;
    size_t   count;
} DatasetList;

#define CONFIG_TYPE_BOOL bool
#define CONFIG_TYPE_INT int64_t
#define CONFIG_TYPE_FLOAT double
#define CONFIG_TYPE_SIZE int64_t        /* bytes */
#define CONFIG_TYPE_STRING const char * /* NULL: not set */
#define CONFIG_TYPE_CHOICE Choice       /* OPT_UNSET: not set */
#define CONFIG_TYPE_LIST StrList
#define CONFIG_TYPE_MAP StrMap
#define CONFIG_TYPE_DATASETS DatasetList
#define CONFIG_NO_FIELD(kind, name)
#define CONFIG_FIELD(kind, name) CONFIG_TYPE_##kind name;

struct Dataset {
#define OPTION(scope, kind, name, fallback, limits, effect, help) CONFIG_FIELD_##scope(kind, name)
#define CONFIG_FIELD_run CONFIG_NO_FIELD
#define CONFIG_FIELD_dataset CONFIG_FIELD
#include "config/options.def"
#undef CONFIG_FIELD_run
#undef CONFIG_FIELD_dataset
    const char *origin[CONFIG_KEY_COUNT]; /* where the value was read, as "run.yaml:3:8"; NULL: it is the default */
};

#define CONFIG_ALLOW_PYTHON "--allow-python"

typedef struct Config {
#define OPTION(scope, kind, name, fallback, limits, effect, help) CONFIG_FIELD_##scope(kind, name)
#define CONFIG_FIELD_run CONFIG_FIELD
#define CONFIG_FIELD_dataset CONFIG_NO_FIELD
#include "config/options.def"
#undef CONFIG_FIELD_run
#undef CONFIG_FIELD_dataset
    const char *origin[CONFIG_KEY_COUNT];
    const char
           *notes; /* one line for each key that was read under another tool's name, and one for all ignored keys; "" when there are none */
    bool    allow_python; /* --allow-python was among the arguments */
    int64_t begun;        /* the result of signals_begin, for the work that uses this config */
    StrList warnings;     /* one line for each set of keys that have no effect, with the reason */
    Arena   arena;        /* owns everything above */
} Config;

/* Parses the text of run file `name`; an empty text gives defaults and overrides alone. overrides: "key=value", "datasets.0.path=value"; a
 * value that starts with [ or { is read as YAML, any other literally. On ERR_INVALID, `problems` (may be NULL) gets all lines,
 * status_message() as many as fit, and *out holds nothing. Otherwise the caller calls config_deinit. */
NODISCARD Status config_parse(const char *name, const char *text, size_t len, const char *const *overrides, size_t num_overrides,
                              Config *out, StrBuf *problems);

/* As config_parse, from command line arguments: run.yaml, --config run.yaml, --config=run.yaml, key=value, --key=value, --allow-python. */
NODISCARD Status config_load_args(const char *const *args, size_t count, Config *out, StrBuf *problems);
void             config_deinit(Config *config);

/* The run file among command line arguments; NULL: none. */
const char *config_run_file(const char *const *args, size_t count);

/* ERR_INVALID unless a file or an override sets the key; the message says how to set it for `what_for`. */
NODISCARD Status config_require(const Config *config, ConfigKey key, const char *what_for);

/* Whether an origin (Config.origin) is the command line. */
bool config_is_argument(const char *origin);

/* Prefixes the message of a failed status with "run.yaml:3:8: ", the place of the key's value, if a run file gave it. origin: Config.origin
 * or Dataset.origin. Returns `status`. */
Status config_at(const char *const *origin, ConfigKey key, Status status);

/* Appends an item. For lists that stay small: it costs time in proportion to the list. */
void str_list_push(Arena *arena, StrList *list, const char *text);
bool str_list_has(const StrList *list, const char *text);

/* The choice's word, as a run file spells it. */
const char *choice_text(Choice choice);

/* Prints the resolved run file as YAML, which reads back to an equal Config. */
void config_print(const Config *config, StrBuf *out);

/* These write only the table of keys: config_markdown as docs/reference/config.md, config_schema as a JSON Schema of run files for editors,
 * config_keys as one line for every key. */
void config_markdown(StrBuf *out);
void config_schema(StrBuf *out);
void config_keys(StrBuf *out);

/* Writes help for one key of a run or a dataset (datasets.path). `key`: our name, another tool's name, or a foreign key without an
 * equivalent. ERR_INVALID suggests the nearest name. */
NODISCARD Status config_help(StrBuf *out, const char *key);
