/* json.dumps' options, and sorting, which it shares with the filters. */
#pragma once

#include "text/template/eval.h"

typedef struct JsonStyle {
    bool ascii, sort_keys, has_indent;
    Str  indent; /* of one level */
    Str  item_separator, key_separator;
} JsonStyle;

NODISCARD Status value_dump_json(Render *r, Value v, const JsonStyle *style, Value *out);

/* template_sort.c: a stable order of items by keys (parallel arrays, both permuted). */
NODISCARD Status sort_values(Render *r, Value *items, Value *keys, uint32_t count, bool reverse);
/* The entries of a dict in the order of their keys, in the arena. */
NODISCARD Status sort_entries(Render *r, const Dict *dict, DictEntry **out);
