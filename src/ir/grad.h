/* GradBuilder: the gradients of a graph's values while backward rules are applied. The rules see the functions of op.h alone; this
 * is for the pass that applies them. */
#pragma once

#include "ir/op.h"

struct GradBuilder {
    Graph  *graph;
    int     add_op;      /* id of a + b: sums the gradients of a value that several nodes read */
    int     num_forward; /* values that existed before */
    char   *wanted;      /* by value id: leads to a trained parameter */
    Value **grads;       /* by value id: d loss / d value so far */
    Value **homes;       /* by value id of trained parameters: their gradient's lasting memory */
    bool    accumulate;
    bool    fp32_grads;
};

/* Nothing is wanted yet. accumulate: parameters' gradients are added to what their memory holds. fp32_grads: that memory is f32,
 * whatever the parameter's dtype. Its arrays live in the graph's arena. */
void grad_init(GradBuilder *grad, Graph *graph, int add_op, bool accumulate, bool fp32_grads);
