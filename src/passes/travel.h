/* What travels between ranks, and between the host's memory and the device's: passes shard, offload and optimise add it. */
#pragma once

#include "ir/graph.h"

/* The flat value of this name, from outside and of no layer; it is added if the graph has none. */
Value *flat_value(Graph *graph, ValueKind kind, const char *name, DType dtype, int64_t numel);
/* A member of a flat value, which it begins at element `at`: of so many elements; of these dims. */
Value *flat_part(Graph *graph, Value *flat, const char *name, int64_t at, int64_t numel);
Value *flat_tensor(Graph *graph, Value *flat, const char *name, int64_t at, const TensorType *dims);

/* Adds at the cursor a node that sends x: over all ranks by a collective with RanksAttrs, or by a copy on STREAM_COPY_IN or
 * STREAM_COPY_OUT. home: where the result is made; NULL: in memory of its own. */
NODISCARD Status add_collective(Graph *graph, const OpDef *op, int64_t ranks, const char *name, Value *x, Value *home, Node **out);
NODISCARD Status add_copy(Graph *graph, Stream stream, const char *name, Value *x, Value *home, Node **out);
/* *x becomes the largest of all ranks, element by element. */
NODISCARD Status add_largest(Graph *graph, int64_t ranks, const char *name, Value **x, Node **out);

/* A gradient that isn't kept where it is made. */
typedef struct Leaver {
    Value      *home;         /* from outside: where its op would make it */
    Node       *first, *last; /* the nodes that make its first and its last version; NULL: none does */
    const void *own;          /* of the pass */
} Leaver;

/* Gradients that nodes in a row begin to make are a layer's. Gradients of two layers are on the device at a time. */
typedef struct LeaverLayers {
    Node *begin, *begin_before; /* the first node of this layer, and of the one before; NULL: there is none */
    Node *sent, *sent_before;   /* the last node that sent a gradient when each of them began */
} LeaverLayers;

typedef struct Leave {
    Leaver **of; /* by value id: of each home */
    /* Brings the gradient that the first version is added to. NULL: the first version begins with nothing. */
    Status (*bring)(Graph *graph, const Leaver *gradient, const LeaverLayers *layers);
    /* Sends the last version, from right behind the node that makes it. NULL: nobody wants it. */
    Status (*send)(const void *context, const Leaver *gradient, Value *made, Node **out);
    const void *context;
} Leave;

/* Each version of these gradients becomes an activation, and the last one is sent. Those of a layer wait until those of the layer before
 * the last have left. */
NODISCARD Status gradients_leave(Graph *graph, const Leave *leave);
