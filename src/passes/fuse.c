/* fuse: rewrites of the forward graph into fewer, larger kernels. Each fusion is a row { match at an anchor node, rewrite };
 * projections are followed back through LoRA's adds, which move onto columns of the packed result. Weights that one GEMM
 * reads become views of one packed parameter and keep their names, so that adapters, decay and files stay per member. */
#include "ops/attrs.h"
#include "ops/ops.h"
#include "passes/pass.h"

#include <string.h>

static const char *const names[FUSION_COUNT] = {
#define FUSION(id, name, help) #name,
#include "passes/fusions.def"
#undef FUSION
};

const char *fusion_name(Fusion fusion)
{
    return names[fusion];
}

typedef struct Fuse {
    Graph *graph;
    int   *uses; /* by value id, of the graph before this fusion's first rewrite */
} Fuse;

static bool read_once(const Fuse *f, const Value *value)
{
    return value && f->uses[value->id] == 1;
}

static Node *producer_is(const Value *value, const OpDef *op)
{
    return value && value->producer && value->producer->op == op && value->out_index == 0 ? value->producer : NULL;
}

/* A projection x W^T (+ bias), perhaps with a LoRA add on top: `out` is the value others read. */
typedef struct Projection {
    Node  *linear, *lora;
    Value *out;
} Projection;

static bool match_projection(const Fuse *f, Value *out, Projection *p)
{
    *p = (Projection){ .out = out, .lora = producer_is(out, &op_linear_add) };
    Value *plain = p->lora ? p->lora->in[0] : out;
    p->linear = producer_is(plain, &op_linear);
    if (!p->linear || !read_once(f, out) || !read_once(f, plain)) return false;
    const Value *w = p->linear->in[1];
    return w->kind == VALUE_PARAM && w->param && !w->base && (!p->linear->in[2] || !p->linear->in[2]->base);
}

/* The same input, the same kind of weight: one GEMM can do them all. */
static bool can_pack(const Projection *p, int count)
{
    for (int i = 1; i < count; i++) {
        const Node *a = p[0].linear, *b = p[i].linear;
        if (a->in[0] != b->in[0] || a->in[1] == b->in[1] || !a->in[2] != !b->in[2]) return false;
        if (a->in[1]->type.dtype != b->in[1]->type.dtype || a->in[1]->param->trained != b->in[1]->param->trained) return false;
    }
    return true;
}

/* A new parameter without an identity of its own, of which the members are consecutive rows. */
static Value *pack_params(Graph *graph, const Projection *p, int count, int input)
{
    TensorType type = p[0].linear->in[input]->type;
    int64_t    offset = 0;
    type.dim[0] = 0;
    for (int i = 0; i < count; i++) type.dim[0] += p[i].linear->in[input]->type.dim[0];
    Value *packed = graph_add_value(graph, VALUE_PARAM, arena_printf(graph->arena, "packed.%s", p[0].linear->in[input]->name), &type);
    packed->layer = p[0].linear->layer;
    for (int i = 0; i < count; i++) {
        Value *member = p[i].linear->in[input];
        member->base = packed;
        member->base_offset = offset;
        offset += type_numel(&member->type);
    }
    return packed;
}

/* Emits at the cursor the packed GEMM and the LoRA adds onto its columns; the old nodes go once nothing reads them. */
static Status pack_projections(Graph *graph, const Projection *p, int count, Value **out)
{
    Node  *node;
    Value *bias = p[0].linear->in[2] ? pack_params(graph, p, count, 2) : NULL;
    Value *in[] = { p[0].linear->in[0], pack_params(graph, p, count, 1), bias };
    graph->layer = p[0].linear->layer;
    graph->part = p[0].linear->part;
    graph->source = p[0].linear->source;
    TRY(graph_add_node(graph, &op_linear, NULL, arena_printf(graph->arena, "%s.packed", p[0].linear->out[0]->name), in, 3, ~0u, &node));
    *out = node->out[0];
    int64_t col = 0;
    for (int i = 0; i < count; i++) {
        if (p[i].lora) {
            LinearAttrs attrs = *(const LinearAttrs *)p[i].lora->attrs;
            Value      *add_in[] = { *out, p[i].lora->in[1], p[i].lora->in[2] };
            attrs.col += col;
            TRY(graph_add_node(graph, &op_linear_add, &attrs, arena_printf(graph->arena, "%s.packed", p[i].out->name), add_in, 3, ~0u, &node));
            *out = node->out[0];
        }
        col += p[i].linear->in[1]->type.dim[0];
    }
    return OK;
}

/* ---- query, key, value ---- */

typedef struct HeadPath { /* projection -> reshape -> [rms_norm] -> [rope] */
    Projection projection;
    Node      *norm, *rope;
} HeadPath;

static bool match_heads(const Fuse *f, Value *value, bool rope, HeadPath *h)
{
    *h = (HeadPath){ 0 };
    if (rope) {
        h->rope = producer_is(value, &op_rope);
        if (!h->rope || ((const RopeAttrs *)h->rope->attrs)->inverse || !read_once(f, value)) return false;
        value = h->rope->in[0];
        h->norm = producer_is(value, &op_rms_norm);
        if (h->norm) {
            if (!read_once(f, value)) return false;
            value = h->norm->in[0];
        }
    }
    Node *reshape = producer_is(value, &op_reshape);
    return reshape && read_once(f, value) && match_projection(f, reshape->in[0], &h->projection);
}

static bool same_rope(const HeadPath *q, const HeadPath *k)
{
    if (q->rope->in[1] != k->rope->in[1] || q->rope->in[2] != k->rope->in[2] || !q->norm != !k->norm) return false;
    return !q->norm || memcmp(q->norm->attrs, k->norm->attrs, sizeof(RmsNormAttrs)) == 0;
}

static Status fuse_qkv(Fuse *f, Node *attention, bool *fired)
{
    if (attention->op != &op_attention && attention->op != &op_attention_cached) return OK;
    const AttentionAttrs *attrs = attention->attrs;
    Graph                *graph = f->graph;
    HeadPath              q, k, v;
    if (!attention->in[1] || !match_heads(f, attention->in[0], true, &q) || !match_heads(f, attention->in[1], true, &k) ||
        !match_heads(f, attention->in[2], false, &v) || !same_rope(&q, &k))
        return OK;
    Projection p[] = { q.projection, k.projection, v.projection };
    if (!can_pack(p, 3)) return OK;
    Value *packed;
    Node  *node;
    graph->cursor = attention;
    TRY(pack_projections(graph, p, 3, &packed));
    QkvAttrs qkv = { attrs->num_heads, attrs->num_kv_heads, attrs->head_dim, q.norm ? ((const RmsNormAttrs *)q.norm->attrs)->eps : 0 };
    Value   *in[] = { packed, q.norm ? q.norm->in[1] : NULL, k.norm ? k.norm->in[1] : NULL, q.rope->in[1], q.rope->in[2] };
    TRY(graph_add_node(graph, &op_qkv_norm_rope, &qkv, arena_printf(graph->arena, "%s.packed", attention->in[0]->name), in, 5,
                       q.norm ? ~0u : 1u, &node));
    graph->cursor = NULL;
    attention->in[0] = node->out[0];
    attention->in[1] = attention->in[2] = NULL;
    *fired = true;
    return OK;
}

/* ---- gate and up ---- */

static Status fuse_gate_up(Fuse *f, Node *swiglu, bool *fired)
{
    Projection p[2];
    if (swiglu->op != &op_swiglu || !swiglu->in[1] || !match_projection(f, swiglu->in[0], &p[0]) ||
        !match_projection(f, swiglu->in[1], &p[1]) || !can_pack(p, 2))
        return OK;
    f->graph->cursor = swiglu;
    TRY(pack_projections(f->graph, p, 2, &swiglu->in[0]));
    f->graph->cursor = NULL;
    swiglu->in[1] = NULL;
    *fired = true;
    return OK;
}

/* ---- residual and norm ---- */

static Status fuse_residual_norm(Fuse *f, Node *norm, bool *fired)
{
    Node *add = norm->op == &op_rms_norm ? producer_is(norm->in[0], &op_add) : NULL;
    if (!add || norm->in[1]->type.ndim != 1) return OK;
    Graph *graph = f->graph;
    Value *in[] = { add->in[0], add->in[1], norm->in[1] };
    Node  *node;
    /* Where the add stood: its sum may be read before the norm is. The layer is the add's, so that what the next layer
     * reads counts as that layer's input. */
    graph->cursor = add;
    graph->layer = add->layer;
    graph->part = PART_NORM;
    graph->source = norm->source;
    TRY(graph_add_node(graph, &op_add_rms_norm, norm->attrs, add->out[0]->name, in, 3, ~0u, &node));
    graph->cursor = NULL;
    graph_replace_uses(graph, add->out[0], node->out[0], node);
    graph_replace_uses(graph, norm->out[0], node->out[1], node);
    if (norm->out[1]) graph_replace_uses(graph, norm->out[1], node->out[2], node);
    graph_remove_node(graph, add);
    graph_remove_node(graph, norm);
    *fired = true;
    return OK;
}

/* ---- head and loss ---- */

static Status fuse_lm_head(Fuse *f, Node *loss, bool *fired)
{
    Node *head = loss->op == &op_cross_entropy ? producer_is(loss->in[0], &op_linear) : NULL;
    if (!head || head->in[2] || !read_once(f, head->out[0]) || (loss->out[1] && f->uses[loss->out[1]->id])) return OK;
    Graph *graph = f->graph;
    Value *in[] = { head->in[0], head->in[1], loss->in[1] };
    Node  *node;
    graph->cursor = loss;
    graph->layer = -1;
    graph->part = PART_NONE;
    graph->source = head->source;
    TRY(graph_add_node(graph, &op_lm_head_loss, NULL, loss->out[0]->name, in, 3, ~0u, &node));
    graph->cursor = NULL;
    graph_replace_uses(graph, loss->out[0], node->out[0], node);
    graph_remove_node(graph, loss);
    graph_remove_node(graph, head);
    *fired = true;
    return OK;
}

typedef Status (*FuseFn)(Fuse *fuse, Node *anchor, bool *fired);

static const FuseFn rewrites[FUSION_COUNT] = {
    [FUSE_RESIDUAL_NORM] = fuse_residual_norm,
    [FUSE_QKV] = fuse_qkv,
    [FUSE_GATE_UP] = fuse_gate_up,
    [FUSE_LM_HEAD] = fuse_lm_head,
};

Status fuse_graph(Graph *graph, uint32_t no_fuse, int counts[FUSION_COUNT])
{
    for (int k = 0; k < FUSION_COUNT; k++) {
        counts[k] = 0;
        if (no_fuse >> k & 1) continue;
        Fuse f = { .graph = graph, .uses = graph_count_uses(graph) };
        for (Node *node = graph->first, *next; node; node = next) {
            next = node->next; /* a rewrite removes only its anchor and nodes before it */
            bool fired = false;
            TRY(rewrites[k](&f, node, &fired));
            counts[k] += fired;
        }
        graph->source = NULL;
        graph->part = PART_NONE;
        graph->layer = -1;
        remove_dead_nodes(graph);
    }
    return OK;
}

Status pass_fuse(PassContext *context, Graph **graph)
{
    int counts[FUSION_COUNT];
    return fuse_graph(*graph, context->options->no_fuse, counts);
}
