/* Shared by the files that build, check, print and parse graphs. */
#pragma once

#include "ir/op.h"

/* The op's attributes at their defaults, allocated in the arena; NULL: the op has none. */
void *attrs_defaults(Arena *arena, const OpDef *op);

/* How output `k` shares memory according to its op, and *out_storage, the input it shares. STORAGE_OWN and NULL: it shares none. */
Sharing node_sharing(const Node *node, int k, Value **out_storage);

/* Order of the members of one value: by offset. */
bool member_precedes(const Value *a, const Value *b);

/* Makes output `k` of the node. */
Value *node_add_output(Graph *graph, Node *node, int k, const char *name, const TensorType *type);

/* Checks the inputs and computes every output's type, wanted or not. */
Status node_infer(const Node *node, TensorType out_types[NODE_MAX_OUT]);

/* Longest names that readers accept, in bytes. Names of a module are shorter, as passes append to them. */
enum { MODULE_NAME_BYTES = 256, GRAPH_NAME_BYTES = 1024 };

/* Whether a name can be written in the text of a graph: 1 to max_bytes, without characters that end a word or start a comment. */
bool name_is_plain(const char *name, size_t max_bytes);

/* graph_verify, which also tells the node, or the value from outside, that it failed at; both NULL: no single one is at fault. */
Status graph_verify_at(const Graph *graph, const Node **out_node, const Value **out_value);

/* Returns `items`, of which `count` are used, or a larger copy if `*capacity` has no room for one more. */
void *array_grow(Arena *arena, void *items, int count, int *capacity, size_t size);

/* ---- the words of the text form, which is printed and parsed ---- */

enum { HF_KIND_COUNT = HF_ROWS + 1, INIT_KIND_COUNT = INIT_NORMS + 1 };
extern const char *const value_kind_names[VALUE_KIND_COUNT];
extern const char *const space_names[SPACE_COUNT];
extern const char *const stream_names[STREAM_COUNT];
extern const char *const hint_names[HINT_COUNT];
extern const char *const hf_kind_names[HF_KIND_COUNT];
extern const char *const init_kind_names[INIT_KIND_COUNT];

/* Whether a number (init_std) follows the kind in the text. */
static inline bool init_takes_number(InitKind init)
{
    return init == INIT_NORMAL || init == INIT_UNIFORM;
}

/* Boolean fields of Param, and below flags of nodes, with their words. The last row of each table has no name. */
typedef struct ParamFlag {
    const char *name;
    size_t      offset;
} ParamFlag;
extern const ParamFlag param_flags[];

typedef struct NodeFlag {
    const char *name;
    uint32_t    bit;
} NodeFlag;
extern const NodeFlag node_flags[];
