/* Shared by the files that build, check, print and parse graphs. */
#pragma once

#include "ir/op.h"

/* The attributes of an op at their defaults, in the arena; NULL when it has none. */
void *attrs_defaults(Arena *arena, const OpDef *op);

/* What the op says of where output `k` lives: in which input's memory, and how; STORAGE_OWN and NULL: nothing. */
Sharing node_sharing(const Node *node, int k, Value **out_storage);

/* The order of members of one value: by where they lie. */
bool member_precedes(const Value *a, const Value *b);

/* Makes output `k` of the node. */
Value *node_add_output(Graph *graph, Node *node, int k, const char *name, const TensorType *type);

/* Checks the inputs and computes every output's type, wanted or not. */
Status node_infer(const Node *node, TensorType out_types[NODE_MAX_OUT]);

/* Bytes of a name that a reader takes: a module's is shorter, as passes append to it. */
enum { MODULE_NAME_BYTES = 256, GRAPH_NAME_BYTES = 1024 };

/* Whether a name can stand in the text of a graph: 1 to max_bytes, nothing there that ends a word or starts a comment.
 */
bool name_is_plain(const char *name, size_t max_bytes);

/* graph_verify; where it fails, the node or the value from outside at which it did, so far as it is one's fault. */
Status graph_verify_at(const Graph *graph, const Node **out_node, const Value **out_value);

/* `items`, of which `count` are used: a larger copy where `*capacity` has no room for one more. */
void *array_grow(Arena *arena, void *items, int count, int *capacity, size_t size);

/* ---- the words of the text form, which is printed and parsed ---- */

enum { HF_KIND_COUNT = HF_ROWS + 1, INIT_KIND_COUNT = INIT_NORMS + 1 };
extern const char *const value_kind_names[VALUE_KIND_COUNT];
extern const char *const space_names[SPACE_COUNT];
extern const char *const stream_names[STREAM_COUNT];
extern const char *const hint_names[HINT_COUNT];
extern const char *const hf_kind_names[HF_KIND_COUNT];
extern const char *const init_kind_names[INIT_KIND_COUNT];

/* Whether a number stands behind the kind: init_std. */
static inline bool init_takes_number(InitKind init)
{
    return init == INIT_NORMAL || init == INIT_UNIFORM;
}

/* The fields of Param that are true or false, and the flags of nodes. The last row has no name. */
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
