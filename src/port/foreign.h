/* Tables of other tools' run files: foreign.def expanded, and look-ups in it. */
#pragma once

#include "base/yaml.h"
#include "config/options.h"

/* Tools as bits, so that a row can apply to several. TRAINER: the tools whose keys are those of transformers' Trainer. */
enum { AXOLOTL = 1, LLAMAFACTORY = 2, TRL = 4, FACTORY_V1 = 8, TRAINER = LLAMAFACTORY | TRL, EVERY = AXOLOTL | TRAINER };

typedef struct Port     Port;
typedef struct PortPair PortPair;

typedef enum ForeignHow {
    FOREIGN_TAKES,
    FOREIGN_MEANS,
    FOREIGN_DIFFERS,
    FOREIGN_NOTHING,
    FOREIGN_LOST,
    FOREIGN_LACKS,
    FOREIGN_READS
} ForeignHow;

/* A row of foreign.def; fields that a row of its kind doesn't have are NULL or 0. */
typedef struct ForeignKey {
    unsigned    tools;
    OptionScope scope;
    const char *name, *value;
    ForeignHow  how;
    ConfigKey   key;
    const char *ours, *text;
    void (*read)(Port *port, const PortPair *pair);
} ForeignKey;

typedef struct ForeignDefault {
    unsigned    tools;
    ConfigKey   key;
    const char *value, *where;
    bool        is_twice; /* the default is twice the number of the key `twice`, and value is NULL */
    ConfigKey   twice;
} ForeignDefault;

extern const ForeignKey     foreign_keys[];
extern const size_t         num_foreign_keys;
extern const ForeignDefault foreign_defaults[];
extern const size_t         num_foreign_defaults;

/* A tool's name in messages, as "Axolotl". tool: a single bit. */
const char *foreign_title(unsigned tool);

/* *out_tool: the tool of this name, as --from takes it: axolotl, llamafactory, llamafactory-v1, trl. ERR_INVALID lists them. */
NODISCARD Status foreign_find(const char *name, unsigned *out_tool);

/* The first row for a key and its value; NULL: the tool has no such row. */
const ForeignKey *foreign_row(unsigned tool, OptionScope scope, const char *name, const YamlNode *value);

/* The next row of the tool with the name and value of `row`; NULL: none. */
const ForeignKey *foreign_next(const ForeignKey *row, unsigned tool);

/* The tool's key nearest to `name`, which is none of the tool's keys; NULL: none is near. */
const char *foreign_nearest(unsigned tool, OptionScope scope, const char *name);

/* The tool that most keys of a run file belong to. Only keys count that belong to a single tool and aren't ours. 0: no key counts, or two
 * tools have the same number of keys. out_key (may be NULL): the tool's first key in the file. */
unsigned foreign_recognise(const YamlNode *root, const char **out_key);
