/* fuse: rewrites the forward graph into fewer, larger kernels. Each fusion finds its pattern at an anchor node and rewrites it. Projections
 * are followed back through LoRA's adds, which move onto columns of the packed result. Weights that one GEMM reads become views of one
 * packed parameter and keep their names, so that adapters, decay and files stay per member. Matrices A, and matrices B, of adapters on one
 * input are packed in the same way. */
#include "ops/attention/attention_turned.h"
#include "ops/attrs.h"
#include "ops/loss/lm_head_chunks.h"
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

enum { MAX_PACKED = 3 }; /* query, key, value */

static bool read_once(const Value *value)
{
    return value && value->num_uses == 1;
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

/* Whether the value is a weight that isn't packed with others. */
static bool is_plain(const Value *w)
{
    return w->kind == VALUE_PARAM && w->param && !w->storage;
}

/* Whether the value is an unpacked weight with one reader: then its gradient can be a part of the packed weight's gradient. */
static bool is_plain_once(const Value *w)
{
    return is_plain(w) && read_once(w);
}

static bool match_projection(Value *out, Projection *p)
{
    *p = (Projection){.out = out, .lora = producer_is(out, &op_linear_add)};
    if (!p->lora) p->lora = producer_is(out, &op_lora_rows);
    Value *plain = p->lora ? p->lora->in[0] : out;
    p->linear = producer_is(plain, &op_linear);
    if (!p->linear || !read_once(out) || !read_once(plain)) return false;
    return p->linear->in[1]->param && (!p->linear->in[2] || p->linear->in[2]->param);
}

/* Whether a and b are weights with the same dtype, both trained or both frozen; or both are NULL. */
static bool can_join(const Value *a, const Value *b)
{
    if (!a || !b) return a == b;
    return a != b && a->type.dtype == b->type.dtype && a->param->trained == b->param->trained;
}

/* Whether one GEMM can make all projections: they have the same input and weights of one kind. */
static bool are_one_product(const Projection *p, int count)
{
    for (int i = 0; i < count; i++)
        for (int k = 0; k < i; k++) {
            const Node *a = p[k].linear, *b = p[i].linear;
            if (a->in[0] != b->in[0] || !can_join(a->in[1], b->in[1]) || !can_join(a->in[2], b->in[2])) return false;
        }
    return true;
}

/* Finds the projections that an anchor reads. Returns how many; 0: the anchor reads something else. */
typedef int (*ProjectionsFn)(const Node *anchor, Projection p[MAX_PACKED]);

/* The anchor, a node of `op`, that a linear layer leads to through values with one reader each; NULL: none. */
static const Node *anchor_behind(const Node *linear, const OpDef *op)
{
    enum { MOST_BETWEEN = 4 }; /* between a linear layer and its anchor: LoRA's add, the reshape to heads, their norm and their rotation */
    const Value *value = linear->out[0];
    for (int i = 0; i <= MOST_BETWEEN && read_once(value); i++) {
        const Node *node = value->first_use->node;
        if (!node || node->op == op) return node;
        value = node->out[0];
    }
    return NULL;
}

static bool have_same_weights(const Projection *a, const Projection *b, int count)
{
    for (int i = 0; i < count; i++)
        if (a[i].linear->in[1] != b[i].linear->in[1] || a[i].linear->in[2] != b[i].linear->in[2]) return false;
    return true;
}

/* Whether inputs `input` of the projections' GEMMs are packed together already, or all absent. */
static bool are_packed(const Projection *p, int count, int input)
{
    const Value *first = p[0].linear->in[input];
    const Value *member = first && first->storage ? first->storage->first_member : NULL;
    for (int i = 0; i < count; i++, member = member ? member->next_member : NULL)
        if (p[i].linear->in[input] != member) return false;
    return !member;
}

/* Whether input `input` of each projection is absent, or an unpacked weight that `num_uses` nodes read. */
static bool are_plain(const Projection *p, int count, int input, int num_uses)
{
    for (int i = 0; i < count; i++) {
        const Value *w = p[i].linear->in[input];
        if (w && (!is_plain(w) || w->num_uses != num_uses)) return false;
    }
    return true;
}

/* Whether all readers of the weights can be packed alike: a part of a packed weight has no gradient of its own. A block that is applied
 * several times reads the same weights each time; they are packed at its first application, for all. */
static bool can_pack(const Node *anchor, const Projection *p, int count, ProjectionsFn projections)
{
    Projection   other[MAX_PACKED];
    const Value *first = p[0].linear->in[1];
    if (!are_one_product(p, count)) return false;
    if (are_packed(p, count, 1) && are_packed(p, count, 2)) return true;
    if (!are_plain(p, count, 1, first->num_uses) || !are_plain(p, count, 2, first->num_uses)) return false;
    for (const Use *use = first->first_use; use && first->num_uses > 1; use = use->next) {
        const Node *at = use->node && use->node->op == &op_linear ? anchor_behind(use->node, anchor->op) : NULL;
        if (!at || projections(at, other) != count || other[0].linear != use->node) return false;
        if (!have_same_weights(p, other, count) || !are_one_product(other, count)) return false;
    }
    return true;
}

/* Adds a packed parameter, without a Param of its own, whose consecutive rows are the members. */
static Value *pack_params(Graph *graph, Value *const *members, int count)
{
    TensorType type = members[0]->type;
    int64_t    offset = 0;
    for (int i = 1; i < count; i++) type.dim[0] += members[i]->type.dim[0];
    Value *packed = graph_add_value(graph, VALUE_PARAM, arena_printf(graph->arena, "packed.%s", members[0]->name), &type);
    packed->layer = members[0]->layer;
    for (int i = 0; i < count; i++) {
        value_place_in(members[i], packed, offset);
        offset += type_numel(&members[i]->type);
    }
    return packed;
}

/* Packs inputs `input` of the projections' GEMMs, unless they are packed already. */
static Value *pack_inputs(Graph *graph, const Projection *p, int count, int input)
{
    Value *members[MAX_PACKED];
    if (are_packed(p, count, input)) return p[0].linear->in[input]->storage;
    for (int i = 0; i < count; i++) members[i] = p[i].linear->in[input];
    return pack_params(graph, members, count);
}

/* Emits the LoRA add again, onto y, with its columns shifted by `col`. */
static Status add_again(Graph *graph, const Node *add, int64_t col, const char *name, Value **y)
{
    LinearAttrs   attrs;
    LoraRowsAttrs rows;
    bool          is_rows = add->op == &op_lora_rows;
    Value        *in[NODE_MAX_IN];
    memcpy(is_rows ? (void *)&rows : &attrs, add->attrs, add->op->attrs_size);
    *(is_rows ? &rows.col[0] : &attrs.col) += col;
    memcpy(in, add->in, sizeof *in * (size_t)add->num_in);
    in[0] = *y;
    return pass_add(graph, add->op, is_rows ? (void *)&rows : &attrs, name, in, add->num_in, y);
}

/* Emits at the cursor the packed GEMM and the LoRA adds onto its columns. The old nodes are removed once nothing reads them. */
static Status pack_projections(Graph *graph, const Projection *p, int count, Value **out)
{
    Value *bias = p[0].linear->in[2] ? pack_inputs(graph, p, count, 2) : NULL;
    Value *in[] = {p[0].linear->in[0], pack_inputs(graph, p, count, 1), bias};
    pass_work_like(graph, p[0].linear);
    TRY(pass_add(graph, &op_linear, NULL, arena_printf(graph->arena, "%s.packed", p[0].linear->out[0]->name), in, 3, out));
    int64_t col = 0;
    for (int i = 0; i < count; i++) {
        if (p[i].lora) TRY(add_again(graph, p[i].lora, col, arena_printf(graph->arena, "%s.packed", p[i].out->name), out));
        col += p[i].linear->in[1]->type.dim[0];
    }
    for (int i = 0; i < count; i++) value_take_hint(*out, p[i].out);
    return OK;
}

/* ---- query, key, value ---- */

typedef struct HeadPath { /* projection -> reshape -> [rms_norm] -> [rope] */
    Projection projection;
    Node      *norm, *rope;
} HeadPath;

static bool match_heads(Value *value, bool rope, HeadPath *h)
{
    *h = (HeadPath){0};
    if (rope) {
        h->rope = producer_is(value, &op_rope);
        const RopeAttrs *attrs = h->rope ? h->rope->attrs : NULL;
        if (!attrs || attrs->inverse || attrs->interleaved || !read_once(value)) return false;
        value = h->rope->in[0];
        if (h->rope->in[1]->type.dim[1] != value->type.dim[3]) return false; /* only a part of each head is rotated */
        h->norm = producer_is(value, &op_rms_norm);
        if (h->norm) {
            if (!read_once(value)) return false;
            value = h->norm->in[0];
        }
    }
    Node *reshape = producer_is(value, &op_reshape);
    return reshape && read_once(value) && match_projection(reshape->in[0], &h->projection);
}

static bool same_rope(const HeadPath *q, const HeadPath *k)
{
    if (q->rope->in[1] != k->rope->in[1] || q->rope->in[2] != k->rope->in[2] || !q->norm != !k->norm) return false;
    if (!q->norm) return true;
    return q->norm->in[1] != k->norm->in[1] && memcmp(q->norm->attrs, k->norm->attrs, sizeof(RmsNormAttrs)) == 0;
}

/* Replaces *packed by a version with query and key heads normed and rotated. */
static Status turn_heads(Graph *graph, const Node *attention, const HeadPath *q, const HeadPath *k, Value **packed)
{
    const AttentionAttrs *attrs = attention->attrs;
    Node                 *node;
    QkvAttrs              qkv = {.num_heads = attrs->num_heads,
                                 .num_kv_heads = attrs->num_kv_heads,
                                 .head_dim = attrs->head_dim,
                                 .eps = q->norm ? ((const RmsNormAttrs *)q->norm->attrs)->eps : 0,
                                 .offset = q->norm ? ((const RmsNormAttrs *)q->norm->attrs)->offset : 0};
    Value *in[] = {*packed, q->norm ? q->norm->in[1] : NULL, k->norm ? k->norm->in[1] : NULL, q->rope->in[1], q->rope->in[2]};
    TRY(graph_add_node(graph, &op_qkv_norm_rope, &qkv, arena_printf(graph->arena, "%s.packed", attention->in[0]->name), in, 5,
                       q->norm ? ~0u : 1u, &node));
    *packed = node->out[0];
    return OK;
}

/* Finds the nodes that make queries (h[0]), keys (h[1]) and values (h[2]). */
static bool match_qkv(const Node *attention, HeadPath h[MAX_PACKED])
{
    if (attention->op != &op_attention && attention->op != &op_attention_cached) return false;
    Value *const *in = attention->in;
    bool          rope = producer_is(in[0], &op_rope);
    return in[1] && match_heads(in[0], rope, &h[0]) && match_heads(in[1], rope, &h[1]) && match_heads(in[2], false, &h[2]) &&
           (!rope || same_rope(&h[0], &h[1])) && in[1]->type.dim[3] == in[2]->type.dim[3];
}

static int qkv_projections(const Node *attention, Projection p[MAX_PACKED])
{
    HeadPath h[MAX_PACKED];
    if (!match_qkv(attention, h)) return 0;
    for (int i = 0; i < MAX_PACKED; i++) p[i] = h[i].projection;
    return MAX_PACKED;
}

static Status fuse_qkv(Graph *graph, Node *attention)
{
    HeadPath   h[MAX_PACKED];
    Projection p[MAX_PACKED];
    Value     *packed;
    if (!match_qkv(attention, h)) return OK;
    for (int i = 0; i < MAX_PACKED; i++) p[i] = h[i].projection;
    if (!can_pack(attention, p, MAX_PACKED, qkv_projections)) return OK;
    TRY(pack_projections(graph, p, MAX_PACKED, &packed));
    if (h[0].rope) TRY(turn_heads(graph, attention, &h[0], &h[1], &packed));
    for (int i = 0; i < MAX_PACKED; i++) value_take_hint(packed, attention->in[i]);
    node_set_input(attention, 0, packed);
    node_set_input(attention, 1, NULL);
    node_set_input(attention, 2, NULL);
    return OK;
}

/* ---- norm and rotation of heads inside attention over a cache ---- */

static Status fuse_turn(Graph *graph, Node *cached)
{
    Node *turn = cached->op == &op_attention_cached ? producer_is(cached->in[0], &op_qkv_norm_rope) : NULL, *node;
    if (!turn || !read_once(turn->out[0]) || (turn->out[1] && turn->out[1]->num_uses) || turn->out[0]->type.dim[1] != 1) return OK;
    if (cached->in[7] || cached->in[8]) return OK; /* attention_turned has neither sinks nor bias */
    const QkvAttrs *qkv = turn->attrs;
    TurnedAttrs     attrs = {*(const AttentionAttrs *)cached->attrs, qkv->eps, qkv->offset};
    Value          *in[TURNED_IN] = {turn->in[0], cached->in[3], cached->in[4], cached->in[5], cached->in[6],
                                     turn->in[1], turn->in[2],   turn->in[3],   turn->in[4]};
    TRY(graph_add_node(graph, &op_attention_turned, &attrs, cached->out[0]->name, in, TURNED_IN, ~0u, &node));
    for (int k = 0; k < cached->num_out; k++)
        if (cached->out[k]) graph_replace_uses(graph, cached->out[k], node->out[k], node);
    graph_remove_node(graph, cached);
    graph_remove_node(graph, turn);
    return OK;
}

/* ---- gate and up ---- */

static int gate_up_projections(const Node *swiglu, Projection p[MAX_PACKED])
{
    bool is_one = swiglu->op == &op_swiglu && swiglu->in[1];
    return is_one && match_projection(swiglu->in[0], &p[0]) && match_projection(swiglu->in[1], &p[1]) ? 2 : 0;
}

static Status fuse_gate_up(Graph *graph, Node *swiglu)
{
    Projection p[MAX_PACKED];
    Value     *packed;
    if (!gate_up_projections(swiglu, p) || !can_pack(swiglu, p, 2, gate_up_projections)) return OK;
    TRY(pack_projections(graph, p, 2, &packed));
    node_set_input(swiglu, 0, packed);
    node_set_input(swiglu, 1, NULL);
    return OK;
}

/* ---- adapters on one input ---- */

typedef struct Adapters { /* the adapters of one result, in the order of their adds */
    int   count;
    Node *add[LORA_MAX_MEMBERS], *down[LORA_MAX_MEMBERS]; /* y += alpha h B^T with h = x A^T */
} Adapters;

/* An add of one adapter writes `*rows` columns, beginning with column *first. */
static void add_columns(const Node *add, int64_t *first, int64_t *rows)
{
    bool is_rows = add->op == &op_lora_rows;
    *first = is_rows ? ((const LoraRowsAttrs *)add->attrs)->col[0] : ((const LinearAttrs *)add->attrs)->col;
    *rows = is_rows ? ((const LoraRowsAttrs *)add->attrs)->rows[0] : add->in[2]->type.dim[0];
}

/* Whether two adds onto one result differ only in their columns and matrices. */
static bool are_alike(const Node *a, const Node *b)
{
    if (a->op != b->op) return false;
    if (a->op == &op_linear_add) return ((const LinearAttrs *)a->attrs)->alpha == ((const LinearAttrs *)b->attrs)->alpha;
    const LoraRowsAttrs *x = a->attrs, *y = b->attrs;
    return a->in[3] == b->in[3] && x->ranks.count == y->ranks.count && !x->rows[1] && !y->rows[1];
}

/* Puts `add` first in the list, if it can be fused with the adds in the list, all of which come after it in the chain. */
static bool match_adapter(Node *add, Adapters *a)
{
    Node *down = producer_is(add->in[1], &op_linear);
    if (!down || down->in[2] || !read_once(add->in[1]) || !is_plain_once(down->in[1]) || !is_plain_once(add->in[2])) return false;
    if (a->count) {
        const Node       *last_down = a->down[0], *last = a->add[0];
        const TensorType *type = &last_down->in[1]->type, *up = &last->in[2]->type;
        int64_t           col, rows, next, next_rows;
        add_columns(add, &col, &rows);
        add_columns(last, &next, &next_rows);
        if (!read_once(add->out[0]) || down->in[0] != last_down->in[0] || !are_alike(add, last) || !type_equal(&down->in[1]->type, type) ||
            add->in[2]->type.dtype != up->dtype || col + rows > next)
            return false;
    }
    memmove(a->add + 1, a->add, sizeof *a->add * (size_t)a->count);
    memmove(a->down + 1, a->down, sizeof *a->down * (size_t)a->count);
    a->add[0] = add;
    a->down[0] = down;
    a->count++;
    return true;
}

/* Whether the only reader of `add` is another add onto the same result. */
static bool goes_on(const Node *add)
{
    if (!read_once(add->out[0])) return false;
    const Use *use = add->out[0]->first_use;
    return use->node && use->node->op == add->op && use->index == 0;
}

/* *out_h: h of all members, by one GEMM over their packed A or, for a single member, its own product. *out_b: the members' B, packed. */
static Status stack_down(Graph *graph, const Adapters *a, Value **out_h, Value **out_b)
{
    Value *down[LORA_MAX_MEMBERS], *up[LORA_MAX_MEMBERS];
    Node  *node = a->down[0];
    for (int m = 0; m < a->count; m++) {
        down[m] = a->down[m]->in[1];
        up[m] = a->add[m]->in[2];
    }
    *out_b = up[0];
    if (a->count > 1) {
        Value *in[] = {node->in[0], pack_params(graph, down, a->count)};
        *out_b = pack_params(graph, up, a->count);
        TRY(graph_add_node(graph, &op_linear, NULL, arena_printf(graph->arena, "%s.packed", node->out[0]->name), in, 2, ~0u, &node));
    }
    *out_h = node->out[0];
    return OK;
}

static LoraAttrs lora_attrs(const Adapters *a)
{
    LoraAttrs attrs = {.alpha = ((const LinearAttrs *)a->add[0]->attrs)->alpha};
    for (int m = 0; m < a->count; m++) add_columns(a->add[m], &attrs.col[m], &attrs.rows[m]);
    return attrs;
}

/* Appends one member's ranks, or scales. */
static void append_list(AttrList *list, const AttrList *more)
{
    memcpy(list->values + list->count, more->values, (size_t)more->count * sizeof *more->values);
    list->count += more->count;
}

static LoraRowsAttrs lora_rows_attrs(const Adapters *a)
{
    LoraRowsAttrs attrs = {0};
    for (int m = 0; m < a->count; m++) {
        const LoraRowsAttrs *own = a->add[m]->attrs;
        add_columns(a->add[m], &attrs.col[m], &attrs.rows[m]);
        append_list(&attrs.ranks, &own->ranks);
        append_list(&attrs.scales, &own->scales);
    }
    return attrs;
}

static Status fuse_lora(Graph *graph, Node *last)
{
    Adapters a = {0};
    bool     is_rows = last->op == &op_lora_rows;
    if ((last->op != &op_linear_add && !is_rows) || goes_on(last)) return OK;
    for (Node *add = last; add && a.count < LORA_MAX_MEMBERS; add = producer_is(add->in[0], last->op))
        if (!match_adapter(add, &a)) break;
    if (!a.count || (is_rows && a.count == 1)) return OK;
    LoraAttrs     attrs = is_rows ? (LoraAttrs){0} : lora_attrs(&a);
    LoraRowsAttrs rows = is_rows ? lora_rows_attrs(&a) : (LoraRowsAttrs){0};
    Value        *in[4] = {a.add[0]->in[0], [3] = is_rows ? last->in[3] : NULL};
    Node         *node;
    TRY(stack_down(graph, &a, &in[1], &in[2]));
    TRY(graph_add_node(graph, is_rows ? &op_lora_rows : &op_lora_add, is_rows ? (void *)&rows : &attrs,
                       arena_printf(graph->arena, "%s.adapted", in[0]->name), in, is_rows ? 4 : 3, ~0u, &node));
    graph_replace_uses(graph, last->out[0], node->out[0], last);
    graph_remove_node(graph, last);
    return OK;
}

/* ---- residual and norm ---- */

static Status fuse_residual_norm(Graph *graph, Node *norm)
{
    Node *add = norm->op == &op_rms_norm ? producer_is(norm->in[0], &op_add) : NULL;
    if (!add || norm->in[1]->type.ndim != 1 || !type_same_dims(&add->in[0]->type, &add->in[1]->type)) return OK;
    Node *weight = norm->in[1]->producer;
    if (weight && !node_precedes(weight, add)) { /* a norm without a weight reads a constant of ones, which may be made earlier */
        if (weight->num_in) return OK;
        graph_move_before(graph, weight, add);
    }
    Value *in[] = {add->in[0], add->in[1], norm->in[1]};
    Node  *node;
    /* The new node stands where the add stood, since readers of the sum may run before the norm. It keeps the add's layer: then the next
     * layer, which reads its results, counts them as inputs. */
    graph->cursor = add;
    graph->layer = add->layer;
    graph->part = PART_NORM;
    TRY(graph_add_node(graph, &op_add_rms_norm, norm->attrs, add->out[0]->name, in, 3, ~0u, &node));
    graph_replace_uses(graph, add->out[0], node->out[0], node);
    graph_replace_uses(graph, norm->out[0], node->out[1], node);
    if (norm->out[1]) graph_replace_uses(graph, norm->out[1], node->out[2], node);
    graph_remove_node(graph, add);
    graph_remove_node(graph, norm);
    return OK;
}

/* ---- head and loss ---- */

static Status fuse_lm_head(Graph *graph, Node *loss)
{
    Node *cap = loss->op == &op_cross_entropy ? producer_is(loss->in[0], &op_softcap) : NULL;
    if (cap && !read_once(cap->out[0])) return OK;
    Node *head = loss->op == &op_cross_entropy ? producer_is(cap ? cap->in[0] : loss->in[0], &op_linear) : NULL;
    if (!head || head->in[2] || !read_once(head->out[0]) || (loss->out[1] && loss->out[1]->num_uses)) return OK;
    Value      *in[] = {head->in[0], head->in[1], loss->in[1]};
    LmHeadAttrs attrs = {.softcap = cap ? ((const SoftcapAttrs *)cap->attrs)->cap : 0, .hits = loss->out[2] != NULL};
    Node       *node;
    graph->layer = -1;
    graph->part = PART_NONE;
    graph->source = head->source;
    TRY(graph_add_node(graph, &op_lm_head_loss, &attrs, loss->out[0]->name, in, 3, ~0u, &node));
    graph_replace_uses(graph, loss->out[0], node->out[0], node);
    if (loss->out[2]) graph_replace_uses(graph, loss->out[2], node->out[1], node);
    graph_remove_node(graph, loss);
    if (cap) graph_remove_node(graph, cap);
    graph_remove_node(graph, head);
    return OK;
}

/* Rewrites at an anchor. New nodes stand before the anchor and have its layer, part and source line. */
typedef Status (*FuseFn)(Graph *graph, Node *anchor);

/* FUSE_CHAIN is a pass of its own, after autodiff. */
static const FuseFn rewrites[FUSION_COUNT] = {
    [FUSE_RESIDUAL_NORM] = fuse_residual_norm,
    [FUSE_QKV] = fuse_qkv,
    [FUSE_TURN] = fuse_turn,
    [FUSE_GATE_UP] = fuse_gate_up,
    [FUSE_LORA] = fuse_lora,
    [FUSE_LM_HEAD] = fuse_lm_head,
};

Status fuse_graph(Graph *graph, uint32_t no_fuse, int counts[FUSION_COUNT])
{
    for (int k = 0; k < FUSION_COUNT; k++) {
        counts[k] = 0;
        if (no_fuse >> k & 1 || !rewrites[k]) continue;
        for (Node *node = graph->first, *next; node; node = next) {
            next = node->next; /* a rewrite removes only its anchor and nodes before it */
            int before = graph->next_node_id;
            pass_work_at(graph, node);
            TRY(rewrites[k](graph, node));
            counts[k] += graph->next_node_id != before;
        }
        pass_work_nowhere(graph);
        remove_dead_nodes(graph);
    }
    return OK;
}

/* Sets the head's chunks. A step adds to the head's gradient once per chunk of each micro-batch. If that is too often for bf16, each
 * micro-batch sums its chunks in fp32. The dtype of the sum over micro-batches depends on fp32_grads alone. */
static void cut_head(Graph *graph, const CompileOptions *options)
{
    int64_t micro_steps = options->micro_steps ? options->micro_steps : 1;
    for (Node *node = graph->last; node; node = node->prev) {
        if (node->op != &op_lm_head_loss) continue;
        LmHeadAttrs *attrs = node->attrs;
        attrs->chunks = options->head_chunks;
        attrs->sum_f32 = micro_steps * lm_head_num_sums(&node->in[0]->type, node->in[1]->type.dim[0], attrs->chunks) > MOST_NARROW_SUMS;
    }
}

Status pass_fuse(PassContext *context, Graph **graph)
{
    int      counts[FUSION_COUNT];
    uint32_t no_fuse = context->options->no_fuse;
    /* With dropout, adapters on one layer's input read different values in training programs, so they can't be packed there. Then no
     * program packs them. */
    if (context->options->lora.dropout > 0) no_fuse |= 1u << FUSE_LORA;
    TRY(fuse_graph(*graph, no_fuse, counts));
    cut_head(*graph, context->options);
    return OK;
}
