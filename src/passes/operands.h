/* The products of linear layers that recipes are about, and their operands in other formats: shared by the parts of pass precision. */
#pragma once

#include "passes/pass.h"

/* The result of a linear layer's product: y = x w^T + bias, dx = dy w (+ sum), dw = dy^T x (+ sum). Its inputs stand in this order. */
typedef enum ProductKind { PRODUCT_NONE, PRODUCT_Y, PRODUCT_DX, PRODUCT_DW } ProductKind;

typedef struct Product {
    ProductKind kind;
    Node       *node;
    Value      *weight; /* w, also of dw */
} Product;

/* The layers: those of blocks that aren't skipped, but adapters. */
typedef struct RecipeLayers {
    Graph  *graph;
    int64_t first, end; /* blocks */
    int     num_values; /* of the graph as it was */
    Value **weight;     /* by id of the home of a gradient: the weight */
} RecipeLayers;

void layers_find(RecipeLayers *layers, Graph *graph, const PrecisionOptions *options);

/* The parameter that a weight is; of a packed weight, its first member's. */
const Param *layers_param(const Value *weight);

/* Whether the value is a weight of one of these layers: a parameter or a packed one. */
bool layers_has_weight(const RecipeLayers *layers, const Value *weight);

/* Which product of one of these layers the node is, and its weight; PRODUCT_NONE: it is none. */
ProductKind layers_kind(const RecipeLayers *layers, const Node *node, Value **out_weight);

/* Calls `rewrite` for all products in their order; it may replace the node. */
NODISCARD Status layers_walk(const RecipeLayers *layers, Status (*rewrite)(void *context, const Product *product), void *context);

/* Values that read `old` read `fresh` from here on, which lies where `old` did. */
void value_take_place(Graph *graph, Value *old, Value *fresh);

/* A node of `op` in the place of `old`, which makes one value. *out (NULL: not wanted): the new value. */
NODISCARD Status node_replace(Graph *graph, Node *old, const OpDef *op, const void *attrs, Value *const *in, int num_in, Value **out);

/* ---- operands ---- */

enum { OPERAND_MOST_PARTS = 3 };

/* A format in which a device multiplies: how many parts (codes, scales) an operand has. `op` takes the first part of both operands, the
 * second of both, ..., then bias and the sum that the result is added to. */
typedef struct OperandFormat {
    const OpDef *op;
    int          num_parts;
    bool         fast; /* sums of the forward pass may be kept in fewer bits than fp32 has */
} OperandFormat;

/* The values that were made of a value, once for all products that read it; NULL: not yet. */
typedef struct Operand {
    Value *along[OPERAND_MOST_PARTS];  /* codes along its rows, and their scales */
    Value *turned[OPERAND_MOST_PARTS]; /* codes and scales of its transpose */
    Value *rounded, *across;           /* floats that products read in its place; the floats that codes of the transpose stand for */
    int    number;                     /* one past its number among the scaled tensors; 0: it is none */
    int    gradient;                   /* of a weight: one past the number of its layer's output gradient, if no layer shares that */
    bool   is_measured;                /* by program calibrate */
} Operand;

typedef struct Precision {
    Graph                *graph;
    const CompileOptions *options;
    Plan                 *plan;
    const ProgramSpec    *spec;
    RecipeLayers          layers;
    Operand              *of; /* by value id */
} Precision;

/* Forgets the values that were made. A part of the pass may add 24 values for each node of the graph. */
void operands_start(Precision *p);

/* New nodes go before `reader`. They are dropped and made again with the node that makes `value`. */
void operands_work_at(const Precision *p, const Value *value, const Node *reader);

/* The product of its operands' parts in the place of the node: dw reads both turned, dx its weight. *out as in node_replace. */
NODISCARD Status operands_multiply(const Precision *p, const Product *product, const OperandFormat *format, Value **out);

/* A value that stays beyond the program, once in the graph. It is made of `of`, a weight or a part of one. */
Value *operands_lasting(const Precision *p, const Value *of, const char *name, const TensorType *type);

/* Codes take the place of a frozen weight, and of its members. */
void operands_become_codes(Value *weight, DType dtype);

/* The names of the parameters that a frozen weight consists of. Returns how many there are. */
int operands_list_params(const Precision *p, const Value *weight, const char *const **out);

/* The weight's row in the plan's list, which all programs share; *out_new: it was added. */
CodedWeight *operands_tell_plan(const Precision *p, CodedFormat format, const Value *weight, bool *out_new);

/* The parts of the pass: FP4 operands; frozen weights in FP8 with scales of tiles; floats of another width than the model's (operands,
 * gradients, kept weights). */
NODISCARD Status precision_nvfp4(Precision *p);
NODISCARD Status precision_tiles(Precision *p);
NODISCARD Status precision_floats(Precision *p);
