/* An op by itself: a graph of one node, and the types that its inputs may have. For doctor and tests. */
#pragma once

#include "ir/sample.h"
#include "ops/ops.h"

/* Adds inputs of these types (ndim 0: absent), named in0, in1, ..., and the node to an empty graph. The failure is infer's. */
NODISCARD Status op_alone(Graph *graph, const OpDef *op, const void *attrs, const TensorType *in, Node **out);

/* Whether there is a tensor, of floats of 16 or 32 bits. */
bool type_is_float(const TensorType *type);
/* Whether one of the inputs has the dtype. */
bool op_has_dtype(const OpDef *op, const TensorType *in, DType dtype);
/* Whether infer takes these types. */
bool op_takes(const OpDef *op, const void *attrs, const TensorType *in);
/* Whether the CPU has a kernel for them too. */
bool op_is_served(const OpDef *op, const void *attrs, const TensorType *in);
/* Sets every step'th input of floats to the dtype, so far as infer takes it. Returns whether one is set. */
bool op_round_inputs(const OpDef *op, const void *attrs, DType dtype, int step, TensorType *in);
/* Connects the accumulate inputs that are absent: they have the output's type. Returns whether there is one. */
bool op_add_accumulators(const OpDef *op, const void *attrs, TensorType *in);
