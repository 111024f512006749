/* chunk: values made from logits are computed some rows at a time, so that whole logits never exist. Nodes that work row by row are cut,
 * from the output head's product up to values with one number per row, which are joined again. Gradients follow from the rules of the ops
 * that cut and join (take_rows, put_rows); a chunk's values are computed again for its backward pass. Ops whose kernel chunks by itself
 * (lm_head_loss) aren't touched, and a graph in which something reads the logits whole stays as it is. */
#include "ops/loss/lm_head_chunks.h"
#include "ops/ops.h"
#include "passes/pass.h"

#include <string.h>

enum { IN_REGION = 1, BEHIND = 2, BEFORE = 4 }; /* marks: the node is cut; the node depends on the region; the region depends on the node */

typedef struct Chunks {
    Graph  *graph;
    int64_t rows, each;  /* tokens of the program; tokens of a chunk */
    char   *marks;       /* by node id: its marks */
    Value **part, **sum; /* by value id. part: the value's rows in this chunk; sum: a result's rows of all chunks so far */
    int     num_values;
} Chunks;

static bool is_head(const Node *node)
{
    return node->op == &op_linear && node->in[1]->param && node->in[1]->param->is_head && node->out[0]->type.ndim == 3;
}

static bool is_marked(const Chunks *c, const Node *node, int mark)
{
    return node && c->marks[node->id] & mark;
}

static bool reads_marked(const Chunks *c, const Node *node, int mark)
{
    bool any = false;
    for (int i = 0; i < node->num_in; i++) any = any || (node->in[i] && is_marked(c, node->in[i]->producer, mark));
    return any;
}

static bool is_read_by_marked(const Chunks *c, const Node *node, int mark)
{
    for (int k = 0; k < node->num_out; k++)
        for (const Use *use = node->out[k] ? node->out[k]->first_use : NULL; use; use = use->next)
            if (is_marked(c, use->node, mark)) return true;
    return false;
}

/* Whether the value has more than one number per row. */
static bool is_wide(const Chunks *c, const Value *value)
{
    return type_numel(&value->type) > c->rows;
}

static bool reads_wide(const Chunks *c, const Node *node)
{
    for (int i = 0; i < node->num_in; i++)
        if (node->in[i] && is_marked(c, node->in[i]->producer, IN_REGION) && is_wide(c, node->in[i])) return true;
    return false;
}

static bool can_cut(const Chunks *c, const Node *node)
{
    int64_t in[NODE_MAX_IN], out[NODE_MAX_OUT];
    return op_cut(node, c->rows, in, out);
}

/* Grows the region until it contains all readers of its wide values, and all nodes on a path between two of its nodes. False: some node of
 * the region can't be cut, or it makes a wide graph output. */
static bool find_region(Chunks *c)
{
    for (bool grows = true; grows;) {
        grows = false;
        for (const Node *node = c->graph->first; node; node = node->next) {
            if (reads_marked(c, node, IN_REGION | BEHIND)) c->marks[node->id] |= BEHIND;
            if (is_marked(c, node, IN_REGION) || !reads_wide(c, node)) continue;
            c->marks[node->id] |= IN_REGION;
            grows = true;
        }
        for (const Node *node = c->graph->last; node; node = node->prev) {
            if (is_read_by_marked(c, node, IN_REGION | BEFORE)) c->marks[node->id] |= BEFORE;
            if (is_marked(c, node, IN_REGION) || !is_marked(c, node, BEHIND) || !is_marked(c, node, BEFORE)) continue;
            c->marks[node->id] |= IN_REGION;
            grows = true;
        }
    }
    for (const Node *node = c->graph->first; node; node = node->next)
        if (is_marked(c, node, IN_REGION) && !can_cut(c, node)) return false;
    for (int i = 0; i < c->graph->num_outputs; i++) {
        const Value *value = c->graph->outputs[i].value;
        if (is_marked(c, value->producer, IN_REGION) && is_wide(c, value)) return false;
    }
    return true;
}

/* Whether something outside of the region reads the value. */
static bool is_result(const Chunks *c, const Value *value)
{
    for (const Use *use = value ? value->first_use : NULL; use; use = use->next)
        if (!use->node || !is_marked(c, use->node, IN_REGION)) return true;
    return false;
}

/* The node before which chunks are inserted: the first after everything that the chunks read; NULL: the end. Earlier readers of a result
 * are moved behind the chunks. */
static Node *find_place(const Chunks *c)
{
    Node *place = c->graph->first;
    for (Node *node = c->graph->first; node; node = node->next)
        if (!is_marked(c, node, IN_REGION | BEHIND) && is_read_by_marked(c, node, IN_REGION)) place = node->next;
    return place;
}

static Status cut(Chunks *c, Value *value, int64_t begin, int64_t count, Value **out)
{
    RowsAttrs attrs = {.begin = begin, .count = count};
    Value   **part = &c->part[value->id];
    if (!*part) {
        TRY(pass_add(c->graph, &op_take_rows, &attrs, arena_printf(c->graph->arena, "%s.rows", value->name), &value, 1, part));
        (*part)->hint = HINT_AGAIN;
    }
    *out = *part;
    return OK;
}

/* Adds a copy of the node for rows [begin, begin + count). */
static Status add_part(Chunks *c, const Node *whole, int64_t begin, int64_t count)
{
    int64_t in_numel[NODE_MAX_IN] = {0}, out_numel[NODE_MAX_OUT];
    Value  *in[NODE_MAX_IN];
    Node   *node;
    op_cut(whole, c->rows, in_numel, out_numel);
    pass_work_like(c->graph, whole);
    for (int i = 0; i < whole->num_in; i++) {
        in[i] = whole->in[i];
        if (in[i] && in_numel[i]) TRY(cut(c, whole->in[i], begin, count, &in[i]));
    }
    TRY(graph_add_node(c->graph, whole->op, whole->attrs, arena_printf(c->graph->arena, "%s.rows", node_first_out(whole)->name), in,
                       whole->num_in, node_wanted(whole), &node));
    for (int k = 0; k < whole->num_out; k++) {
        Value *value = whole->out[k];
        if (!value) continue;
        c->part[value->id] = node->out[k];
        if (out_numel[k] > 1) node->out[k]->hint = HINT_AGAIN;
    }
    return OK;
}

/* Puts a chunk's rows of a node's results after the rows of earlier chunks. */
static Status put_results(Chunks *c, const Node *whole, int64_t begin)
{
    for (int k = 0; k < whole->num_out; k++) {
        const Value *value = whole->out[k];
        if (!is_result(c, value)) continue;
        RowsAttrs attrs = {.begin = begin, .batch = value->type.dim[0], .seq = value->type.dim[1]};
        Value    *in[] = {c->part[value->id], c->sum[value->id]};
        c->graph->source = whole->source;
        TRY(pass_add(c->graph, &op_put_rows, &attrs, value->name, in, 2, &c->sum[value->id]));
    }
    return OK;
}

static Status add_chunks(Chunks *c, Node *const *region, int count)
{
    for (int64_t begin = 0; begin < c->rows; begin += c->each) {
        int64_t rows = c->rows - begin < c->each ? c->rows - begin : c->each;
        memset(c->part, 0, sizeof *c->part * (size_t)c->num_values);
        for (int i = 0; i < count; i++) TRY(add_part(c, region[i], begin, rows));
        for (int i = 0; i < count; i++) TRY(put_results(c, region[i], begin));
    }
    return OK;
}

/* Replaces the region's nodes by chunks. */
static Status rewrite(Chunks *c)
{
    Graph *graph = c->graph;
    Node **region = arena_array(graph->arena, Node *, graph->num_nodes), **behind = arena_array(graph->arena, Node *, graph->num_nodes);
    int    count = 0, moved = 0;
    Node  *place = find_place(c);
    for (Node *node = graph->first; node; node = node->next)
        if (is_marked(c, node, IN_REGION)) region[count++] = node;
    for (Node *node = graph->first; node != place; node = node->next)
        if (is_marked(c, node, BEHIND) && !is_marked(c, node, IN_REGION)) behind[moved++] = node;
    graph->cursor = place;
    TRY(add_chunks(c, region, count));
    for (int i = 0; i < moved; i++) graph_move_before(graph, behind[i], place);
    for (int i = count - 1; i >= 0; i--) {
        for (int k = 0; k < region[i]->num_out; k++)
            if (is_result(c, region[i]->out[k])) graph_replace_uses(graph, region[i]->out[k], c->sum[region[i]->out[k]->id], NULL);
        graph_remove_node(graph, region[i]);
    }
    return OK;
}

/* Rows of a chunk: the number that the head's own kernel would choose if a row of its logits took as many bytes as a row of the widest
 * value in the region. */
static int64_t rows_of_chunk(const Chunks *c, const CompileOptions *options, bool has_grads)
{
    int64_t most = 0;
    bool    has_dw = false;
    for (const Node *node = c->graph->first; node; node = node->next) {
        if (!is_marked(c, node, IN_REGION)) continue;
        if (is_head(node)) has_dw = has_dw || (has_grads && node->in[1]->param->trained);
        for (int k = 0; k < node->num_out; k++)
            if (node->out[k] && type_bytes(&node->out[k]->type) / c->rows > most) most = type_bytes(&node->out[k]->type) / c->rows;
    }
    return lm_head_chunk_rows(c->rows, most, has_dw, options->head_chunks);
}

Status pass_chunk(PassContext *context, Graph **graph_ref)
{
    Graph *graph = *graph_ref;
    Chunks c = {.graph = graph, .num_values = graph->num_values};
    if (context->program->spec.entry->is_cached) return OK;
    c.marks = arena_array(graph->arena, char, graph->next_node_id);
    for (const Node *node = graph->first; node; node = node->next) {
        if (!is_head(node)) continue;
        c.rows = type_rows(&node->out[0]->type);
        c.marks[node->id] = IN_REGION;
    }
    if (!c.rows || !find_region(&c)) return OK;
    c.each = rows_of_chunk(&c, context->options, context->program->spec.entry->has_grads);
    if (c.each >= c.rows) return OK;
    c.part = arena_array(graph->arena, Value *, graph->num_values);
    c.sum = arena_array(graph->arena, Value *, graph->num_values);
    return rewrite(&c);
}
