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
