/* GradBuilder: the gradients of a graph's values while backward rules are applied. Rules use only the functions declared in op.h; this
 * header is for the pass that applies the rules. */
#pragma once

#include "ir/op.h"

struct GradBuilder {
    Graph  *graph;
    int     add_op;      /* id of the op a + b, which sums the gradients of a value with several readers */
    int     num_forward; /* values that existed before the backward pass */
    char   *wanted;      /* by value id: it depends on a trained parameter */
    Value **grads;       /* by value id: d loss / d value so far; NULL: none */
    Value **homes;       /* by value id of trained parameters: the lasting memory of their gradient */
    bool    accumulate;
    bool    fp32_grads;
};

/* No value is wanted yet. accumulate: gradients of parameters are added to the old contents of their memory. fp32_grads: that memory is
 * f32, whatever the parameter's dtype. The arrays are allocated in the graph's arena. */
void grad_init(GradBuilder *grad, Graph *graph, int add_op, bool accumulate, bool fp32_grads);
