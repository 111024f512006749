/* The state of porting one file. Private to src/port. */
#pragma once

#include "config/value.h"
#include "port/foreign.h"
#include "port/port.h"

/* A Config or a Dataset that is filled. from: by ConfigKey, where its value comes from; NULL: not set. */
typedef struct PortTarget {
    OptionScope  scope;
    void        *base;
    const char **from;
    const char  *prefix; /* of keys in messages: "" or "datasets[0]." */
} PortTarget;

typedef struct PortDataset {
    Dataset     dataset;
    const char *from[CONFIG_KEY_COUNT];
    PortTarget  target;
} PortDataset;

enum { MOST_PORT_DATASETS = 1000 };

typedef struct PortDatasets {
    PortDataset *items[MOST_PORT_DATASETS];
    size_t       count;
} PortDatasets;

/* A key of the file with its value, and what it belongs to. map: the mapping that holds it. */
struct PortPair {
    const YamlNode *key, *value, *map;
    PortTarget     *target;
    PortDataset    *dataset; /* NULL: of the run */
};

struct Port {
    Arena          *arena;
    unsigned        tool;
    const char     *path, *dataset_dir;
    const YamlNode *root;
    Config          config;
    const char     *from[CONFIG_KEY_COUNT];
    PortTarget      run;
    PortDatasets    datasets, validation;
    StrList         changes, same; /* what has no counterpart and changes the result, and what doesn't */
    bool            has_no_default[CONFIG_KEY_COUNT];
    bool            is_pretraining;
    StrBuf          problems;
    ConfigReader    reader;
};

/* A member of a mapping; NULL: absent or null. */
const YamlNode *port_get(const YamlNode *map, const char *name);
/* The key itself, of a value that may be null; NULL: absent. */
const YamlNode *port_key(const YamlNode *map, const char *name);
/* The text of a scalar member; NULL: absent, null or no scalar. */
const char *port_text(const YamlNode *map, const char *name);
bool        port_is_true(const YamlNode *map, const char *name);
/* Whether it is there and says false. */
bool port_is_false(const YamlNode *map, const char *name);
bool port_number(const YamlNode *value, double *out);

/* "line 3: base_model" */
const char *port_origin(Port *port, const YamlNode *key, const char *prefix);

/* Gives our key a value of the file, or a text of ours (a list in brackets). The first of two values stays; the second is told. */
void port_take(Port *port, PortTarget *target, ConfigKey key, const YamlNode *value, const char *from);
void port_set(Port *port, PortTarget *target, ConfigKey key, const char *value, const char *from);
void port_set_number(Port *port, ConfigKey key, double value, const char *from);
/* Takes the place of what was there. */
void port_replace(Port *port, PortTarget *target, ConfigKey key, const char *value, const char *from);
/* The tool's default of a key that isn't set, now: for keys that are made of it. */
void port_default(Port *port, ConfigKey key);
void port_unset(Port *port, PortTarget *target, ConfigKey key);

/* What has no counterpart, or an inexact one. */
void port_tell(Port *port, bool changes, const YamlNode *key, const char *prefix, const char *text);
void port_problem(Port *port, const YamlNode *key, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* A value by its row; a list whose rows differ by value is read item by item. */
void port_value(Port *port, const PortPair *pair);
/* Reads a mapping's pairs by the rows of its scope. */
void port_mapping(Port *port, const YamlNode *map, PortTarget *target, PortDataset *dataset);

/* Whether messages of a role that a dataset spells so are given to the chat template as `role`. */
bool port_has_role(const char *spelling, const char *role);

/* One dataset more; NULL after a problem: too many. node: for the problem. */
PortDataset *port_add_dataset(Port *port, PortDatasets *list, const YamlNode *node);

/* What keys mean together, once all are read. */
void port_finish(Port *port);
void port_finish_datasets(Port *port);
/* When the run saves and evaluates; which model it takes at the end. */
void port_finish_cadence(Port *port);

/* The run file. */
void port_write(const Port *port, StrBuf *out);

#define READS(tools, scope, name, function) void port_read_##function(Port *port, const PortPair *pair);
#include "port/foreign.def"
