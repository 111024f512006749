/* few_rows: decoding's products of a few rows in bf16 or fp16 get kernels of their own, on GPUs that have them (compute capability 9.0 to
 * 11; later ones have too little shared memory). SwiGLU is fused into the product of gate and up. For one row, the norm and the sum before
 * it are fused into the product that reads the norm. Each fusion saves a launch and keeps the bits. With option split_k, sums that take
 * longer than reading the weight are split in parts. The number of parts depends on k and n alone, so that a text has the same bits in any
 * batch. Prompts use whole sums. Products with one-byte codes fuse SwiGLU and norm for one row, on compute capability 9.0 only. */
#include "ops/ops.h"
#include "ops/products/coded_linear.h"
#include "ops/products/rows_linear.h"
#include "passes/pass.h"

enum { LEAST_SM = 90, BEYOND_SM = 120, CODED_SM = 90, MOST_GATED_ROWS = 32, MOST_SPLIT_COLS = 2048, LEAST_PART = 256 };

static bool is_product(const Node *node)
{
    if (node->op != &op_linear || !node->out[0]) return false;
    const TensorType *x = &node->in[0]->type, *w = &node->in[1]->type, *y = &node->out[0]->type;
    bool              half = x->dtype == DT_BF16 || x->dtype == DT_F16;
    return half && w->dtype == x->dtype && y->dtype == x->dtype && type_cols(x) % ROWS_WHOLE == 0;
}

/* Whether the node is the product of one row with a weight's codes. */
static bool is_coded_product(const Node *node)
{
    if ((node->op != &op_int8_linear && node->op != &op_fp8_tiles_linear) || !node->out[0]) return false;
    const TensorType *x = &node->in[CODED_X]->type;
    return type_rows(x) == 1 && x->dtype == DT_BF16 && node->out[0]->type.dtype == DT_BF16 &&
           !((const CodedLinearAttrs *)node->attrs)->gated && !node->in[CODED_NORM];
}

/* The number of parts in which a sum of k numbers is made. Numbers of a part are added one by one, at 1.2 ns each; the weight has 2 k n
 * bytes. */
static int64_t parts_of(const TensorType *w)
{
    int64_t n = w->dim[0], k = w->dim[1], parts = ROWS_MOST_PARTS;
    while (parts > 1 && (n > MOST_SPLIT_COLS || k < parts * LEAST_PART || !rows_parts_fit(k, parts))) parts /= 2;
    return parts;
}

/* The gate, if it makes no codes; else NULL. */
static Node *plain_gate(Node *gate)
{
    return ((const SwigluAttrs *)gate->attrs)->codes ? NULL : gate;
}

/* The swiglu that is the only reader of this product of gate and up, if it can be fused; NULL: none. */
static Node *gate_of(const Node *linear)
{
    const Value *packed = linear->out[0];
    const Use   *use = packed->first_use;
    Node        *gate = packed->num_uses == 1 && use->node && use->node->op == &op_swiglu ? use->node : NULL;
    bool         many = type_rows(&packed->type) > MOST_GATED_ROWS;
    if (!gate || gate->in[1] || many || type_cols(&packed->type) % 4) return NULL;
    if (linear->op != &op_linear) return linear->in[CODED_BIAS] || !coded_gated_fits(&linear->in[CODED_W]->type) ? NULL : plain_gate(gate);
    return linear->in[ROWS_BIAS] ? NULL : plain_gate(gate);
}

static bool is_unused(const Node *node, int first)
{
    for (int k = first; k < node->num_out; k++)
        if (node->out[k] && node->out[k]->num_uses) return false;
    return true;
}

/* The norm of one row that only this product reads, if it can be fused; NULL: none. */
static Node *norm_of(const Node *linear)
{
    Value *x = linear->in[0];
    Node  *norm = x->producer;
    bool   sums = norm && norm->op == &op_add_rms_norm;
    if (!norm || (!sums && norm->op != &op_rms_norm) || type_rows(&x->type) != 1 || x->num_uses != 1 || norm->out[sums] != x) return NULL;
    for (int i = 0; i <= 1 + sums; i++)
        if (norm->in[i]->type.dtype != x->type.dtype) return NULL;
    for (int i = 1; i < linear->num_in; i++)
        if (linear->in[i] && linear->in[i]->producer) return NULL; /* this input might be made after the norm */
    if (linear->op != &op_linear && !coded_normed_fits(&linear->in[CODED_W]->type)) return NULL;
    return ((const RmsNormAttrs *)norm->attrs)->codes || !is_unused(norm, sums + 1) ? NULL : norm;
}

/* Replaces the product, its gate and its norm (both may be NULL) by a node of `op`, at the norm's place; without a norm, at the gate's;
 * without a gate too, at the product's. in: the product's inputs; the norm's weight, then the sum's other operand, go to in[at] and in[at +
 * 1]. */
static Status replace(Graph *graph, const OpDef *op, const void *attrs, Value **in, int at, Node *linear, Node *gate, Node *norm)
{
    Node *last = gate ? gate : linear, *node;
    bool  sums = norm && norm->op == &op_add_rms_norm;
    if (norm) in[0] = norm->in[0], in[at] = norm->in[1 + sums];
    if (sums) in[at + 1] = norm->in[1];
    graph->cursor = norm ? norm : last;
    graph->layer = linear->layer;
    graph->part = last->part;
    graph->source = linear->source;
    TRY(graph_add_node(graph, op, attrs, last->out[0]->name, in, at + 2, ~0u, &node));
    graph_replace_uses(graph, last->out[0], node->out[ROWS_Y], last);
    if (sums && norm->out[0]) graph_replace_uses(graph, norm->out[0], node->out[ROWS_SUM], norm);
    if (gate) graph_remove_node(graph, gate);
    graph_remove_node(graph, linear);
    if (norm) graph_remove_node(graph, norm);
    return OK;
}

static Status replace_linear(Graph *graph, Node *linear, Node *gate, Node *norm, int64_t parts)
{
    RowsLinearAttrs attrs = {.parts = parts, .eps = 1e-6, .gated = gate != NULL, .gelu = gate && ((const SwigluAttrs *)gate->attrs)->gelu};
    Value          *in[] = {linear->in[ROWS_X], linear->in[ROWS_W], linear->in[ROWS_BIAS], NULL, NULL};
    const RmsNormAttrs *of_norm = norm ? norm->attrs : NULL;
    if (of_norm) attrs.eps = of_norm->eps, attrs.offset = of_norm->offset;
    return replace(graph, &op_rows_linear, &attrs, in, ROWS_NORM, linear, gate, norm);
}

static Status replace_coded(Graph *graph, Node *product, Node *gate, Node *norm)
{
    CodedLinearAttrs    attrs = *(const CodedLinearAttrs *)product->attrs;
    Value              *in[] = {product->in[CODED_X], product->in[CODED_W], product->in[CODED_SCALE], product->in[CODED_BIAS], NULL, NULL};
    const RmsNormAttrs *of_norm = norm ? norm->attrs : NULL;
    attrs.gated = gate != NULL, attrs.gelu = gate && ((const SwigluAttrs *)gate->attrs)->gelu;
    if (of_norm) attrs.eps = of_norm->eps, attrs.offset = of_norm->offset;
    return replace(graph, product->op, &attrs, in, CODED_NORM, product, gate, norm);
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
        bool is_coded = context->plan->facts.sm == CODED_SM && is_coded_product(node);
        if (!is_coded && !is_product(node)) continue;
        Node   *gate = gate_of(node), *norm = norm_of(node);
        int64_t parts = split && !gate && !is_coded ? parts_of(&node->in[1]->type) : 1;
        any = any || parts > 1;
        if (gate && next == gate) next = gate->next;
        if (is_coded && (gate || norm)) TRY(replace_coded(*graph, node, gate, norm));
        if (!is_coded && (gate || norm || parts > 1)) TRY(replace_linear(*graph, node, gate, norm, parts));
    }
    FAIL_IF(
        split && !any, ERR_UNSUPPORTED,
        "%s: split_k: no product can be split; expected weights in bf16 or fp16, not in few bits, with at most %d rows and at least %d columns: "
        "leave it out",
        context->file, MOST_SPLIT_COLS, 2 * LEAST_PART);
    return OK;
}
