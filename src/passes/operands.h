/* The products of linear layers that recipes apply to, and their operands in other formats: shared by the parts of pass precision. */
#pragma once

#include "passes/pass.h"

/* The result of a linear layer's product: y = x w^T + bias, dx = dy w (+ sum), dw = dy^T x (+ sum). The node's inputs have the order of the
 * formula. */
typedef enum ProductKind { PRODUCT_NONE, PRODUCT_Y, PRODUCT_DX, PRODUCT_DW } ProductKind;

typedef struct Product {
    ProductKind kind;
    Node       *node;
    Value      *weight; /* w; for product dw: the weight whose gradient is made */
} Product;

/* The layers that a recipe applies to: linear layers of the blocks that aren't skipped, except adapters. */
typedef struct RecipeLayers {
    Graph  *graph;
    int64_t first, end; /* blocks first to end - 1 */
    int     num_values; /* number of values in the graph before the pass */
    Value **weight;     /* by id of a gradient's lasting value: its weight */
} RecipeLayers;

void layers_find(RecipeLayers *layers, Graph *graph, const PrecisionOptions *options);

/* The parameter of a weight; of a packed weight, the first member's parameter. */
const Param *layers_param(const Value *weight);

/* Whether the value is a weight of one of these layers: a parameter or a packed one. */
bool layers_has_weight(const RecipeLayers *layers, const Value *weight);

/* Which product of these layers the node is, and the layer's weight; PRODUCT_NONE: none. */
ProductKind layers_kind(const RecipeLayers *layers, const Node *node, Value **out_weight);

/* Calls `rewrite` for all products in order; `rewrite` may replace the product's node. */
NODISCARD Status layers_walk(const RecipeLayers *layers, Status (*rewrite)(void *context, const Product *product), void *context);

/* Makes readers of `old` read `fresh`, which takes over the home of `old`. */
void value_take_place(Graph *graph, Value *old, Value *fresh);

/* Puts a node of `op` in the place of `old`, which has one output. *out (NULL: not wanted): the new output. */
NODISCARD Status node_replace(Graph *graph, Node *old, const OpDef *op, const void *attrs, Value *const *in, int num_in, Value **out);

/* ---- operands ---- */

enum { OPERAND_MOST_PARTS = 3 };

/* A number format in which a device multiplies. An operand has num_parts parts (codes, scales). Inputs of `op`: the first part of both
 * operands, the second part of both, ..., then bias, then the sum that the result is added to. */
typedef struct OperandFormat {
    const OpDef *op;
    int          num_parts;
    bool         fast; /* sums of the forward pass may have fewer bits than fp32 */
} OperandFormat;

/* Values made from one value, once for all products that read it; NULL: not yet made. */
typedef struct Operand {
    Value *along[OPERAND_MOST_PARTS];  /* codes along the value's rows, and their scales */
    Value *turned[OPERAND_MOST_PARTS]; /* codes and scales of the value's transpose */
    Value *rounded, *across;           /* rounded: floats that products read in place of the value; across: floats that the codes of its
                                          transpose stand for */
    int number;                        /* 1 + index of the value among the scaled tensors; 0: the value isn't scaled */
    int gradient; /* of a weight: 1 + index of its layer's output gradient among the scaled tensors; unused if an earlier layer shares that
                     gradient */
    bool is_measured; /* program calibrate measures the value */
} Operand;

typedef struct Precision {
    Graph                *graph;
    const CompileOptions *options;
    Plan                 *plan;
    const ProgramSpec    *spec;
    RecipeLayers          layers;
    Operand              *of; /* by value id: what is made from the value */
} Precision;

/* Forgets all values in p->of. Until the next call, at most 24 values may be added for each node of the graph. */
void operands_start(Precision *p);

/* New nodes go before `reader`. They belong to the Part of the node that makes `value`: both are dropped and recomputed together. */
void operands_work_at(const Precision *p, const Value *value, const Node *reader);

/* Replaces the product by a product of its operands' parts. The product reads transposes (Operand.turned) of both operands for dw, and of
 * the weight for dx. *out as in node_replace. */
NODISCARD Status operands_multiply(const Precision *p, const Product *product, const OperandFormat *format, Value **out);

/* Finds or adds the value `name`, which lasts beyond the program. of: the weight, or the part of a weight, from which it is made. */
Value *operands_lasting(const Precision *p, const Value *of, const char *name, const TensorType *type);

/* Makes a frozen weight, and its members, hold codes of this dtype. */
void operands_become_codes(Value *weight, DType dtype);

/* Lists the names of the parameters in a frozen weight. Returns how many there are. */
int operands_list_params(const Precision *p, const Value *weight, const char *const **out);

/* The weight's row in plan->coded, which all programs share. *out_new: this call added the row. */
CodedWeight *operands_tell_plan(const Precision *p, CodedFormat format, const Value *weight, bool *out_new);

/* The parts of pass precision: FP4 operands; frozen weights in FP8 with tile scales; floats of another width than the model's (operands,
 * gradients, stored weights). */
NODISCARD Status precision_nvfp4(Precision *p);
NODISCARD Status precision_tiles(Precision *p);
NODISCARD Status precision_floats(Precision *p);
