/* few_rows: decoding's products of a few rows in bf16 or fp16, for GPUs that have kernels of their own for them (compute capability 9.0 to
 * 11; later ones have too little shared memory). SwiGLU is made where gate and up are: a launch less a layer, and the same bits. With
 * option split_k, sums that are longer than reading the weight takes are made in parts, by k and n alone, so that a text has the same bits
 * in any batch. Prompts are read by whole sums. */
#include "ops/ops.h"
#include "ops/products/rows_linear.h"
#include "passes/pass.h"

enum { LEAST_SM = 90, BEYOND_SM = 120, MOST_GATED_ROWS = 32, MOST_SPLIT_COLS = 2048, LEAST_PART = 256 };

static bool is_product(const Node *node)
{
    if (node->op != &op_linear || !node->out[0]) return false;
    const TensorType *x = &node->in[0]->type, *w = &node->in[1]->type, *y = &node->out[0]->type;
    bool              half = x->dtype == DT_BF16 || x->dtype == DT_F16;
    return half && w->dtype == x->dtype && y->dtype == x->dtype && type_cols(x) % ROWS_WHOLE == 0;
}

/* A sum of k numbers takes 1.2 ns a number, reading the weight 2 k n bytes. */
static int64_t parts_of(const TensorType *w)
{
    int64_t n = w->dim[0], k = w->dim[1], parts = ROWS_MOST_PARTS;
    while (parts > 1 && (n > MOST_SPLIT_COLS || k < parts * LEAST_PART || !rows_parts_fit(k, parts))) parts /= 2;
    return parts;
}

/* The swiglu that alone reads gate and up of this product. */
static Node *gate_of(const Node *linear)
{
    const Value *packed = linear->out[0];
    const Use   *use = packed->first_use;
    Node        *gate = packed->num_uses == 1 && use->node && use->node->op == &op_swiglu ? use->node : NULL;
    bool         many = type_rows(&packed->type) > MOST_GATED_ROWS;
    if (!gate || gate->in[1] || linear->in[2] || many || type_cols(&packed->type) % 4) return NULL;
    return ((const SwigluAttrs *)gate->attrs)->codes ? NULL : gate;
}

/* Puts rows_linear in the place of the product, and of what gates it. */
static Status replace(Graph *graph, Node *linear, Node *gate, int64_t parts)
{
    RowsLinearAttrs attrs = {.parts = parts, .gated = gate != NULL, .gelu = gate && ((const SwigluAttrs *)gate->attrs)->gelu};
    Node           *last = gate ? gate : linear, *node;
    graph->cursor = last;
    graph->layer = linear->layer;
    graph->part = last->part;
    graph->source = linear->source;
    TRY(graph_add_node(graph, &op_rows_linear, &attrs, last->out[0]->name, linear->in, linear->num_in, ~0u, &node));
    graph->cursor = NULL;
    graph_replace_uses(graph, last->out[0], node->out[0], last);
    if (gate) graph_remove_node(graph, gate);
    graph_remove_node(graph, linear);
    return OK;
}

static bool is_served(const PassContext *context)
{
    return context->plan->facts.sm >= LEAST_SM && context->plan->facts.sm < BEYOND_SM;
}

static Status check_device(const PassContext *context)
{
    FAIL_IF(!is_served(context), ERR_UNSUPPORTED,
            "split_k: sums are made in parts on GPUs of compute capability 9.0 to 11, and %s is none; leave it out",
            context->plan->facts.name);
    return OK;
}

Status pass_few_rows(PassContext *context, Graph **graph)
{
    const Entry *entry = context->program->spec.entry;
    bool         split = context->options->split_k, any = false;
    if (entry->one_token) return OK;
    if (split) TRY(check_device(context));
    if (!is_served(context)) return OK;
    for (Node *node = (*graph)->first, *next; node; node = next) {
        next = node->next;
        if (!is_product(node)) continue;
        Node   *gate = gate_of(node);
        int64_t parts = split && !gate ? parts_of(&node->in[1]->type) : 1;
        any = any || parts > 1;
        if (gate && next == gate) next = gate->next;
        if (gate || parts > 1) TRY(replace(*graph, node, gate, parts));
    }
    (*graph)->source = NULL;
    FAIL_IF(
        split && !any, ERR_UNSUPPORTED,
        "%s: split_k: no product can be split; expected weights in bf16 or fp16, not in few bits, with at most %d rows and at least %d columns: "
        "leave it out",
        context->file, MOST_SPLIT_COLS, 2 * LEAST_PART);
    return OK;
}
