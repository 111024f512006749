/* Transfers between ranks, and between the memory of host and device: passes shard, offload and optimise add them. */
#pragma once

#include "ir/graph.h"

/* The flat value of this name, without producer and layer; it is added if the graph has none. */
Value *flat_value(Graph *graph, ValueKind kind, const char *name, DType dtype, int64_t numel);
/* Adds a member that begins at element `at` of a flat value. flat_part: 1-D, of `numel` elements. flat_tensor: of these dims. */
Value *flat_part(Graph *graph, Value *flat, const char *name, int64_t at, int64_t numel);
Value *flat_tensor(Graph *graph, Value *flat, const char *name, int64_t at, const TensorType *dims);

/* Adds at the cursor a node that sends x: by a collective over all ranks with RanksAttrs, or by a copy on STREAM_COPY_IN or
 * STREAM_COPY_OUT. home: the value in which the result is made; NULL: the result has memory of its own. */
NODISCARD Status add_collective(Graph *graph, const OpDef *op, int64_t ranks, const char *name, Value *x, Value *home, Node **out);
NODISCARD Status add_copy(Graph *graph, Stream stream, const char *name, Value *x, Value *home, Node **out);
/* Replaces *x by its maximum over all ranks, element by element. */
NODISCARD Status add_largest(Graph *graph, int64_t ranks, const char *name, Value **x, Node **out);

/* A gradient that is sent away once it is made: to other ranks, or to the host. */
typedef struct Leaver {
    Value      *home;         /* the lasting value in which its op would make it */
    Node       *first, *last; /* the nodes that make its first and its last version; NULL: none does */
    const void *own;          /* the pass's own data for this gradient */
} Leaver;

/* The layer whose gradients are being made, and the one before: gradients of two layers are on the device at a time. */
typedef struct LeaverLayers {
    Node *begin, *begin_before; /* the first node of this layer, and of the layer before; NULL: there is none */
    Node *sent, *sent_before;   /* the last node that sent a gradient before this layer began, and before the layer before it began */
} LeaverLayers;

typedef struct Leave {
    Leaver **of; /* by value id of a home: its gradient */
    /* Fetches the gradient that the first version is added to. NULL: the first version adds to nothing. */
    Status (*bring)(Graph *graph, const Leaver *gradient, const LeaverLayers *layers);
    /* Sends the last version, right after the node that makes it. NULL: nobody reads it. */
    Status (*send)(const void *context, const Leaver *gradient, Value *made, Node **out);
    const void *context;
} Leave;

/* Makes each version of these gradients an activation, and sends the last one. A layer's gradients wait until the gradients of the layer
 * two before it have been sent. */
NODISCARD Status gradients_leave(Graph *graph, const Leave *leave);
