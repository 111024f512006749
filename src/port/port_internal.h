/* The state of porting one file. Private to src/port. */
#pragma once

#include "config/value.h"
#include "port/foreign.h"
#include "port/port.h"

/* A Config or a Dataset that is being filled. from: by ConfigKey, where the value comes from; NULL: not set. */
typedef struct PortTarget {
    OptionScope  scope;
    void        *base;
    const char **from;
    const char  *prefix; /* put before keys in messages: "" or "datasets[0]." */
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

/* A key of the file and its value. map: the mapping that contains them. */
struct PortPair {
    const YamlNode *key, *value, *map;
    PortTarget     *target;
    PortDataset    *dataset; /* NULL: the key is of the run */
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
    StrList         changes, same; /* dropped keys that change the result, and dropped keys that don't */
    bool            has_no_default[CONFIG_KEY_COUNT];
    bool            is_pretraining;
    StrBuf          problems;
    ConfigReader    reader;
};

/* A member of a mapping; NULL: it is absent or null. */
const YamlNode *port_get(const YamlNode *map, const char *name);
/* The key node of a member, whose value may be null; NULL: absent. */
const YamlNode *port_key(const YamlNode *map, const char *name);
/* The text of a scalar member; NULL: it is absent, null or no scalar. */
const char *port_text(const YamlNode *map, const char *name);
bool        port_is_true(const YamlNode *map, const char *name);
/* Whether the member exists and is false. */
bool port_is_false(const YamlNode *map, const char *name);
bool port_number(const YamlNode *value, double *out);

/* The place of a key, for comments and messages: "line 3: base_model". */
const char *port_origin(Port *port, const YamlNode *key, const char *prefix);

/* Set our key: port_take to a value of the file, port_set to a text of ours (a list in brackets). If the key has a value already, that
 * stays, and a different new one is reported. */
void port_take(Port *port, PortTarget *target, ConfigKey key, const YamlNode *value, const char *from);
void port_set(Port *port, PortTarget *target, ConfigKey key, const char *value, const char *from);
void port_set_number(Port *port, ConfigKey key, double value, const char *from);
/* Sets the key, replacing its value. */
void port_replace(Port *port, PortTarget *target, ConfigKey key, const char *value, const char *from);
/* Sets the key to the tool's default now, if it isn't set: for code that reads the key. */
void port_default(Port *port, ConfigKey key);
void port_unset(Port *port, PortTarget *target, ConfigKey key);

/* Reports a key that has no counterpart here, or only an inexact one. changes: the result differs. */
void port_tell(Port *port, bool changes, const YamlNode *key, const char *prefix, const char *text);
void port_problem(Port *port, const YamlNode *key, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* Applies the row that fits the value. Where rows differ by value, a list is read item by item. */
void port_value(Port *port, const PortPair *pair);
/* Reads all pairs of a mapping, by the rows of the target's scope. */
void port_mapping(Port *port, const YamlNode *map, PortTarget *target, PortDataset *dataset);

/* Whether a dataset's spelling of a role stands for the chat template's `role`. */
bool port_has_role(const char *spelling, const char *role);

/* Appends a dataset; NULL after a problem: there are too many. node: the place of that problem. */
PortDataset *port_add_dataset(Port *port, PortDatasets *list, const YamlNode *node);

/* Applies rules that need several keys, after all keys were read. */
void port_finish(Port *port);
void port_finish_datasets(Port *port);
/* Decides when the run saves and evaluates, and which model it keeps at the end. */
void port_finish_cadence(Port *port);

/* Writes the run file. */
void port_write(const Port *port, StrBuf *out);

#define READS(tools, scope, name, function) void port_read_##function(Port *port, const PortPair *pair);
#include "port/foreign.def"
