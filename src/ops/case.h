/* An op by itself: a graph of one node, and the types that its inputs may have. For doctor and tests. */
#pragma once

#include "ir/sample.h"
#include "ops/ops.h"

/* Adds to an empty graph inputs of these types (ndim 0: absent), named in0, in1, ..., and the node. Fails if infer does. */
NODISCARD Status op_alone(Graph *graph, const OpDef *op, const void *attrs, const TensorType *in, Node **out);

/* Whether the tensor is present and has floats of 16 or 32 bits. */
bool type_is_float(const TensorType *type);
/* Whether one of the inputs has this dtype. */
bool op_has_dtype(const OpDef *op, const TensorType *in, DType dtype);
/* Whether infer takes these types. */
bool op_takes(const OpDef *op, const void *attrs, const TensorType *in);
/* Whether infer takes these types and the CPU has a kernel for them. */
bool op_is_served(const OpDef *op, const void *attrs, const TensorType *in);
/* Sets every step'th input, if it is a float tensor, to the dtype, if infer takes it. Returns whether any is set. */
bool op_round_inputs(const OpDef *op, const void *attrs, DType dtype, int step, TensorType *in);
/* Connects absent accumulate inputs, which have their output's type. Returns whether there is one. */
bool op_add_accumulators(const OpDef *op, const void *attrs, TensorType *in);
