/* Products of frozen weights that are kept in FP8 with scales of tiles (pass quantise), in that format where the device multiplies it:
 *
 *   y  = x w^T     x quantised by blocks of 1 x 128 of a row
 *   dx = dy w      dy likewise, w by its codes turned, which are made when it is loaded
 *
 * A scale comes from the block's own numbers, so that nothing is measured or kept, and e4m3 does for gradients too. x and dy are quantised
 * once, however many products read them. Elsewhere the weight is made again as ever: on other devices, in skipped blocks, where dims
 * aren't those that the products take, and where tiles of the members of a packed weight don't line up. */
#include "ops/attrs.h"
#include "ops/lowbit/fp8_tiles.h"
#include "ops/ops.h"
#include "passes/pass.h"
#include "passes/recipe_layers.h"

#include <string.h>

enum { IN_CODES, IN_SCALE }; /* of fp8_tiles_dequantise */
enum { NUM_OPERAND = 2 };    /* codes and scale */

typedef struct Tiles {
    RecipeLayers layers;
    Graph       *graph;
    Plan        *plan;
    Value *(*operand)[NUM_OPERAND]; /* by value id: its codes and their scales; NULL: not made yet */
} Tiles;

/* Tiles of the members are tiles of the whole. */
static bool lines_up(const DequantiseAttrs *attrs)
{
    for (int m = 1; m < DEQUANTISE_MAX_MEMBERS && attrs->rows[m]; m++)
        if (attrs->rows[m - 1] % FP8_TILE) return false;
    return true;
}

/* What makes the weight that a layer's product reads, if that can be multiplied by its codes; NULL: it stays. */
static const Node *maker_of(const Tiles *t, const Node *node)
{
    enum { WHOLE_WORDS = 16, WHOLE_ROWS = 4 };
    if (node->op != &op_linear && node->op != &op_linear_dx) return NULL;
    const Node *maker = node->in[1]->producer;
    if (!maker || maker->op != &op_fp8_tiles_dequantise || !layers_has_weight(&t->layers, maker->in[IN_CODES])) return NULL;
    const TensorType *w = &maker->in[IN_CODES]->type, *x = &node->in[0]->type;
    bool              fits = w->dim[0] % WHOLE_WORDS == 0 && w->dim[1] % WHOLE_WORDS == 0 && type_rows(x) % WHOLE_ROWS == 0;
    if (node->op == &op_linear_dx) fits = fits && ((const LinearAttrs *)node->attrs)->col == 0 && type_cols(x) == w->dim[0];
    return fits && lines_up(maker->attrs) ? maker : NULL;
}

/* New nodes stand before `node` and belong to what `of` does. */
static void work_at(const Tiles *t, Node *node, const Node *of)
{
    pass_work_at(t->graph, node);
    t->graph->part = of->part;
}

static Status quantise(const Tiles *t, Value *x, Node *reader)
{
    Node *node;
    if (t->operand[x->id][0]) return OK;
    work_at(t, reader, x->producer ? x->producer : reader);
    TRY(graph_add_node(t->graph, &op_fp8_rows_quantise, NULL, arena_printf(t->graph->arena, "%s.codes", x->name), &x, 1, ~0u, &node));
    node->flags |= reader->flags & NODE_BACKWARD;
    for (int k = 0; k < NUM_OPERAND; k++) t->operand[x->id][k] = node->out[k];
    return OK;
}

/* A value that is made of another one when the weight is loaded. */
static Value *lasting(const Tiles *t, const Value *of, const char *suffix, DType dtype, int64_t rows, int64_t cols)
{
    const char *name = arena_printf(t->graph->arena, "%s%s", of->name, suffix);
    TensorType  type = type_make(dtype, 2, rows, cols);
    Value      *value = graph_find(t->graph, name);
    if (value) return value;
    value = graph_add_value(t->graph, VALUE_PARAM, name, &type);
    value->layer = of->layer;
    return value;
}

static bool is_told(const Plan *plan, const Value *codes)
{
    for (int i = 0; i < plan->num_tiled; i++)
        if (strcmp(plan->tiled[i].codes, codes->name) == 0) return true;
    return false;
}

static void tell_plan(const Tiles *t, const Value *codes, const Value *scale)
{
    Plan        *plan = t->plan;
    Arena       *arena = plan->arena;
    int          count = 1;
    const char **members;
    if (is_told(plan, codes)) return;
    for (const Value *member = codes->first_member; member; member = member->next_member) count++;
    members = arena_array(arena, const char *, count);
    TiledWeight tiled = {arena_printf(arena, "%s", codes->name), arena_printf(arena, "%s", scale->name), members, 0};
    if (codes->param) members[tiled.num_members++] = tiled.codes;
    for (const Value *member = codes->param ? NULL : codes->first_member; member; member = member->next_member)
        if (member->param) members[tiled.num_members++] = arena_printf(arena, "%s", member->name);
    if (!plan->tiled) plan->tiled = arena_array(arena, TiledWeight, t->graph->num_params + 1);
    plan->tiled[plan->num_tiled++] = tiled;
}

static Status rewrite(const Tiles *t, Node *node, const Node *maker)
{
    bool              forward = node->op == &op_linear;
    Value            *x = node->in[0], *old = node->out[0], *codes = maker->in[IN_CODES], *scale = maker->in[IN_SCALE];
    int64_t           rows = codes->type.dim[0], cols = codes->type.dim[1], down = scale->type.dim[0], across = scale->type.dim[1];
    ScaledLinearAttrs attrs = {.alpha = forward ? 1 : ((const LinearAttrs *)node->attrs)->alpha, .dtype = DTYPE_TO_ATTR(old->type.dtype)};
    Node             *product;
    tell_plan(t, codes, scale);
    TRY(quantise(t, x, node));
    Value *w = forward ? codes : lasting(t, codes, TILES_TURNED, codes->type.dtype, cols, rows);
    Value *w_scale = forward ? lasting(t, scale, TILES_PADDED, DT_F32, down, fp8_tiles_stride(across))
                             : lasting(t, scale, TILES_TURNED, DT_F32, across, fp8_tiles_stride(down));
    Value *in[] = {t->operand[x->id][0], w, t->operand[x->id][1], w_scale, forward ? node->in[2] : NULL, forward ? NULL : node->in[2]};
    work_at(t, node, node);
    TRY(graph_add_node(t->graph, &op_block_linear, &attrs, old->name, in, 6, ~0u, &product));
    product->flags |= node->flags & NODE_BACKWARD;
    if (old->sharing == STORAGE_HOME) value_place_in(product->out[0], old->storage, old->offset);
    graph_replace_uses(t->graph, old, product->out[0], NULL);
    graph_remove_node(t->graph, node);
    return OK;
}

Status precision_tiles(PassContext *context, Graph *graph)
{
    enum { MOST_ADDED = 8 }; /* values for a product */
    const PrecisionOptions *options = &context->options->precision;
    Tiles                   t = {.graph = graph, .plan = context->plan};
    if (!context->plan->facts.fp8_blocks) return OK;
    layers_find(&t.layers, graph, options);
    size_t count = (size_t)graph->num_values + MOST_ADDED * (size_t)graph->num_nodes;
    t.operand = arena_alloc(graph->arena, arena_array_bytes(count, sizeof *t.operand));
    for (Node *node = graph->first, *next; node; node = next) {
        const Node *maker = maker_of(&t, node);
        bool        wanted = node->op == &op_linear ? options->forward == DT_E4M3 : options->backward == DT_E5M2;
        next = node->next;
        if (maker && wanted) TRY(rewrite(&t, node, maker));
    }
    return OK;
}
