/* YAML for run files: reads one document into a tree with positions. All that costs time or memory is bounded. An alias is a second pointer
 * to the anchored node, never a copy, so that nested aliases can't grow. Merge keys (<<) are applied. Tags are errors. Scalars keep their
 * text: the code that reads a key decides what "2e-4" or "yes" means. */
#pragma once

#include "base/arena.h"
#include "base/strbuf.h"

enum {
    YAML_MAX_BYTES = 1 << 20,
    YAML_MAX_DEPTH = 32,
    YAML_MAX_NODES = 100000,
    YAML_MAX_ANCHORS = 256,
    YAML_MAX_MERGED = 1000,  /* keys of a mapping with a merge key */
    YAML_MAX_BLANKS = 10000, /* consecutive blanks and newlines */
};

typedef enum YamlType { YAML_SCALAR, YAML_SEQUENCE, YAML_MAPPING } YamlType;

typedef struct YamlNode YamlNode;

struct YamlNode {
    YamlType    type;
    bool        is_plain;     /* scalar: written without quotes */
    int         line, column; /* from 1, column in characters; line 0: not from a file */
    const char *source;       /* name of the file or argument */
    Str         text;         /* scalar: its text; a NUL follows */
    size_t      count;        /* number of items, or of key-value pairs */
    YamlNode  **keys;         /* mapping: its keys; any node may be a key */
    YamlNode  **items;        /* sequence: its items; mapping: its values */
};

/* Parses a document; an empty document gives an empty mapping. `name` is copied; error messages begin with it: "name:line:column: what". */
NODISCARD Status yaml_parse(Arena *arena, const char *name, const char *text, size_t len, YamlNode **out);

/* Writes `text` in quotes, so that yaml_parse reads it back; bytes that aren't UTF-8 become U+FFFD. */
void yaml_write_string(StrBuf *out, const char *text, size_t len);

/* Whether the node is an unquoted ~, null, or empty. */
bool yaml_is_null(const YamlNode *node);

const char *yaml_type_name(const YamlNode *node); /* returns "a list", "a mapping", "nothing" or "a value" */
