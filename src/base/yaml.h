/* YAML for run files: one document, read whole into a tree with positions. Bounded in all that costs time or memory. An alias is a
 * second pointer to the anchored node, never a copy, so that nested aliases can't grow. Tags are errors. Values keep
 * their text: what "2e-4" or "yes" means is for the reader of a key to say. */
#pragma once

#include "base/arena.h"
#include "base/strbuf.h"

enum {
    YAML_MAX_BYTES = 1 << 20,
    YAML_MAX_DEPTH = 32,
    YAML_MAX_NODES = 100000,
    YAML_MAX_ANCHORS = 256,
    YAML_MAX_BLANKS = 10000, /* blanks and line ends in a row */
};

typedef enum YamlType { YAML_SCALAR, YAML_SEQUENCE, YAML_MAPPING } YamlType;

typedef struct YamlNode YamlNode;

struct YamlNode {
    YamlType    type;
    bool        is_plain;     /* scalar: unquoted */
    int         line, column; /* 1-based, column in characters; line 0: not from a file */
    const char *source;       /* name of the file or argument */
    Str         text;         /* scalar; NUL follows */
    size_t      count;        /* items, or key-value pairs */
    YamlNode  **keys;         /* mapping; any node may be a key */
    YamlNode  **items;        /* sequence, or the mapping's values */
};

/* An empty document gives an empty mapping. `name` is copied; it starts the error: "name:line:column: what". */
NODISCARD Status yaml_parse(Arena *arena, const char *name, const char *text, size_t len, YamlNode **out);

/* Quoted, as yaml_parse reads it back; bytes that aren't UTF-8 become U+FFFD. */
void yaml_write_string(StrBuf *out, const char *text, size_t len);

/* An unquoted ~, null or nothing. */
bool yaml_is_null(const YamlNode *node);

const char *yaml_type_name(const YamlNode *node); /* "a list", "a mapping", "nothing", "a value" */
