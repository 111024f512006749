/* epilogue: a value that is quantised right after it is made is quantised by the op that makes it, so that it isn't read again. An op says
 * of which output it can make codes (OpCodes); the bits are the same. If it doesn't make codes of the transpose, they are made from its
 * codes. */
#include "ops/attrs.h"
#include "ops/lowbit/fp8.h"
#include "ops/lowbit/fp8_tiles.h"
#include "ops/ops.h"
#include "passes/pass.h"

enum { OUT_CODES, OUT_TURNED }; /* outputs of fp8_quantise */
enum { IN_AMAX = 2 };

/* Whether maker and quantise run in the same pass and stream: codes that the backward pass makes mustn't live from the forward pass on. */
static bool run_together(const Node *maker, const Node *quantise)
{
    enum { SAME = NODE_BACKWARD | NODE_ONCE | NODE_AT_USE };
    return !((maker->flags ^ quantise->flags) & SAME) && maker->stream == quantise->stream;
}

/* Whether the scale and the largest magnitude, which become the maker's inputs, are made before the maker. No other node may read the old
 * version of the largest magnitude. */
static bool reads_before(const Node *maker, const Node *quantise)
{
    for (int i = 1; i < quantise->num_in; i++) {
        const Value *in = quantise->in[i];
        if (in && ((in->producer && !node_precedes(in->producer, maker)) || (i == IN_AMAX && in->num_uses > 1))) return false;
    }
    return true;
}

static int64_t *codes_attr(const Node *maker)
{
    return (int64_t *)(void *)((char *)maker->attrs + maker->op->codes.attr);
}

/* The node that makes the input of `node`, if it can make the codes too; NULL: none. */
static Node *maker_of(const Node *node)
{
    const Value   *value = node->num_in ? node->in[0] : NULL;
    Node          *maker = value ? value->producer : NULL;
    const OpCodes *codes = maker ? &maker->op->codes : NULL;
    bool           scaled = codes && codes->scaled == node->op;
    if (!codes || !codes->op || !(scaled || codes->op == node->op) || value->out_index != codes->of) return NULL;
    if (!run_together(maker, node) || !reads_before(maker, node) || *codes_attr(maker)) return NULL;
    return codes->fits(maker, scaled ? FP8_WHOLE : FP8_TILE) ? maker : NULL;
}

/* Replaces `turned` by the transpose of the maker's codes, made by a node where `node` stands. */
static Status turn_codes(Graph *graph, const Node *maker, Node *node, Value *turned)
{
    Node *turn;
    pass_work_at(graph, node);
    TRY(graph_add_node(graph, &op_fp8_turn, NULL, turned->name, &maker->out[maker->op->codes.out], 1, ~0u, &turn));
    turn->flags |= node->flags;
    turn->stream = node->stream;
    graph_replace_uses(graph, turned, turn->out[0], NULL);
    return OK;
}

static Status merge(Graph *graph, Node *maker, Node *node)
{
    const OpCodes          *codes = &maker->op->codes;
    const Fp8QuantiseAttrs *attrs = node->op == codes->scaled ? node->attrs : NULL;
    Value                  *turned = attrs && !codes->turns ? node->out[OUT_TURNED] : NULL;
    *codes_attr(maker) = DTYPE_TO_ATTR(attrs ? fp8_dtype(attrs->dtype) : DT_E4M3);
    for (int i = 1; i < node->num_in; i++) node_set_input(maker, codes->scale + i - 1, node->in[i]);
    for (int k = 0; k < node->num_out; k++) {
        if (!node->out[k] || node->out[k] == turned) continue;
        TRY(node_want_output(graph, maker, codes->out + k, node->out[k]->name));
        graph_replace_uses(graph, node->out[k], maker->out[codes->out + k], NULL);
    }
    if (turned && !maker->out[codes->out]) TRY(node_want_output(graph, maker, codes->out + OUT_CODES, turned->name));
    if (turned) TRY(turn_codes(graph, maker, node, turned));
    graph_remove_node(graph, node);
    if (!maker->out[codes->of]->num_uses && maker->out[codes->of]->sharing == STORAGE_OWN) node_drop_output(maker, codes->of);
    return OK;
}

Status pass_epilogue(PassContext *context, Graph **graph)
{
    (void)context;
    for (Node *node = (*graph)->first, *next; node; node = next) {
        Node *maker = maker_of(node);
        next = node->next;
        if (maker) TRY(merge(*graph, maker, node));
    }
    return OK;
}
