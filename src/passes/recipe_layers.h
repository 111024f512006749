/* The linear layers that a recipe is about: those of blocks that aren't skipped, but adapters. */
#pragma once

#include "passes/compile.h"

typedef struct RecipeLayers {
    Graph  *graph;
    int64_t first, end; /* blocks */
    int     num_values; /* of the graph as it was */
    Value **weight;     /* by id of the home of a gradient: the weight */
} RecipeLayers;

void layers_find(RecipeLayers *layers, Graph *graph, const PrecisionOptions *options);

/* What a weight is: of a packed one, its first member's parameter. */
const Param *layers_param(const Value *weight);

/* The names of the parameters that a weight consists of. Returns how many there are. */
int layers_list_params(Arena *arena, const Value *weight, const char *const **out);

/* Whether it is a parameter, or a packed one, of such a layer. */
bool layers_has_weight(const RecipeLayers *layers, const Value *weight);

/* y = x w^T + bias of such a layer, and dx = dy w. Weight and dx are read in place `in[1]`. */
bool layers_is_forward(const RecipeLayers *layers, const Node *node);
bool layers_is_dx(const RecipeLayers *layers, const Node *node);
/* The weight of such a layer whose gradient dw = dy^T x the node makes; NULL: it makes none. */
Value *layers_weight_of_dw(const RecipeLayers *layers, const Node *node);
