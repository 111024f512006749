/* Whether tokens can be generated one at a time: only attention, which has a cache, may mix tokens, and nothing may depend on the number of
 * tokens in a run. One graph isn't enough: a size may be a number of rows or of tokens, and an attribute doesn't show that it was made from
 * T. So the module is bound for two shapes whose numbers of rows and tokens have no factor in common, and both graphs are walked side by
 * side. */
#include "ops/ops.h"
#include "passes/pass.h"

#include <string.h>

typedef struct Probe {
    Graph  *graph;
    int64_t batch, seq;
    bool   *of_tokens; /* by value id: whether the value depends on the run's tokens */
} Probe;

static Status refuse(const PassContext *context, const Node *node, const char *why)
{
    return status_fail(ERR_UNSUPPORTED, "%s: %s = %s(...) %s; nothing can be generated", node->source ? node->source : context->file,
                       node->out[0] ? node->out[0]->name : "it", node->op->name, why);
}

static Status make_probe(PassContext *context, int64_t batch, int64_t seq, Probe *out)
{
    *out = (Probe){.batch = batch, .seq = seq};
    TRY(bind_probe(context, batch, seq, &out->graph));
    out->of_tokens = arena_array(context->arena, bool, out->graph->num_values + 1);
    for (int i = 0; i < out->graph->num_values; i++) {
        const Value *value = out->graph->values[i];
        out->of_tokens[i] = value->kind == VALUE_INPUT && value->type.ndim == 2 && value->type.dim[0] == batch && value->type.dim[1] == seq;
    }
    return OK;
}

static bool is_of_tokens(const Probe *probe, const Value *value)
{
    return value && probe->of_tokens[value->id];
}

/* Whether the type's first dims, at most `most` of them, are rows and tokens. */
static bool has_tokens(const Probe *probe, const TensorType *type, int most)
{
    int64_t first = 1;
    for (int d = 0; d < type->ndim && d < most && first < probe->batch * probe->seq; d++) first *= type->dim[d];
    return first == probe->batch * probe->seq;
}

/* Whether an op without by_row keeps tokens apart: it works along the last dim, or changes dims. All dims of ids and positions are rows and
 * tokens. */
static bool keeps_tokens(const Probe *probe, const Node *node)
{
    bool fits = node->op != &op_scatter_add_rows;
    for (int i = 0; i < node->num_in && fits; i++) {
        const TensorType *in = node->in[i] ? &node->in[i]->type : NULL;
        int               most = in ? in->ndim - (in->dtype != DT_I32 && !(node->op->flags & OP_VIEW)) : 0;
        fits = !is_of_tokens(probe, node->in[i]) || has_tokens(probe, in, most);
    }
    for (int k = 0; k < node->num_out && fits; k++) fits = !node->out[k] || has_tokens(probe, &node->out[k]->type, TENSOR_MAX_DIMS);
    return fits;
}

/* Whether each token's part of the outputs depends only on that token's part of the inputs. */
static bool is_apart(const Probe *probe, const Node *node)
{
    int64_t in[NODE_MAX_IN], out[NODE_MAX_OUT];
    if (node->op->cached) return true;
    if (!node->op->by_row) return keeps_tokens(probe, node);
    bool fits = op_cut(node, probe->batch * probe->seq, in, out);
    for (int i = 0; i < node->num_in && fits; i++) fits = !is_of_tokens(probe, node->in[i]) || in[i];
    return fits;
}

static bool reads_tokens(const Probe *probe, const Node *node)
{
    for (int i = 0; i < node->num_in; i++)
        if (is_of_tokens(probe, node->in[i])) return true;
    return false;
}

/* An input that doesn't depend on tokens, but whose size depends on their number; NULL: none. */
static const Value *sized_input(const Probe *p, const Node *node, const Node *other)
{
    for (int i = 0; i < node->num_in; i++) {
        const Value *in = node->in[i];
        if (in && other->in[i] && !is_of_tokens(p, in) && !type_equal(&in->type, &other->in[i]->type) &&
            !has_tokens(p, &in->type, TENSOR_MAX_DIMS))
            return in;
    }
    return NULL;
}

static bool same_attr(const AttrDef *a, const void *x, const void *y)
{
    const char *left = (const char *)x + a->offset, *right = (const char *)y + a->offset;
    if (a->type == ATTR_TYPE_BOOL) return *(const bool *)left == *(const bool *)right;
    if (a->type != ATTR_TYPE_LIST) return memcmp(left, right, sizeof(int64_t)) == 0;
    const AttrList *list = (const void *)left, *other = (const void *)right;
    return list->count == other->count && memcmp(list->values, other->values, sizeof *list->values * (size_t)list->count) == 0;
}

/* Whether the attribute is only a size: sizes are compared where values are read. */
static bool is_size(const Node *node, const AttrDef *a)
{
    return node->op == &op_reshape || strcmp(a->name, "size") == 0;
}

static Status check_pair(const PassContext *context, const Probe *p, const Node *node, const Probe *q, const Node *other)
{
    if (node->op != other->op) return refuse(context, node, "is there or not by the number of rows or tokens");
    for (const AttrDef *a = node->op->attrs; a && a->type != ATTR_TYPE_END; a++)
        if (!is_size(node, a) && !same_attr(a, node->attrs, other->attrs))
            return refuse(context, node, arena_printf(context->arena, "has an attribute %s that follows from B or T", a->name));
    if (!reads_tokens(p, node)) return OK;
    if (!is_apart(p, node) || !is_apart(q, other))
        return refuse(context, node,
                      "mixes tokens, or counts them; only attention may, whose keys and values are kept from one token to the next");
    const Value *sized = sized_input(p, node, other);
    if (sized) return refuse(context, node, arena_printf(context->arena, "reads %s, whose size follows from B or T", sized->name));
    for (int k = 0; k < node->num_out; k++)
        if (node->out[k]) p->of_tokens[node->out[k]->id] = q->of_tokens[other->out[k]->id] = true;
    return OK;
}

Status check_tokens_apart(PassContext *context)
{
    Probe p, q;
    if (!context->module) return OK;
    TRY(make_probe(context, 3, 5, &p));
    TRY(make_probe(context, 5, 7, &q));
    const Node *node = p.graph->first, *other = q.graph->first;
    for (; node && other; node = node->next, other = other->next) TRY(check_pair(context, &p, node, &q, other));
    return node || other ? refuse(context, node ? node : other, "is there or not by the number of rows or tokens") : OK;
}
