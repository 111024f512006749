/* Products of frozen weights that are kept in FP8 with scales of tiles (pass quantise), for devices that multiply this format:
 *
 *   y  = x w^T     x quantised by blocks of 1 x 128 of a row
 *   dx = dy w      dy quantised in the same way; codes of w^T, which are made when w is loaded
 *
 * A scale comes from the block's own elements: so nothing is measured or kept, and e4m3 suffices for gradients too. x and dy are quantised
 * once, however many products read them. Elsewhere the weight is dequantised as usual: on other devices, in skipped blocks, with dims that
 * the products don't take, and if tiles of a packed weight's members don't line up. */
#include "ops/attrs.h"
#include "ops/lowbit/fp8_tiles.h"
#include "ops/ops.h"
#include "passes/operands.h"

enum { IN_CODES, IN_SCALE, NUM_PARTS }; /* inputs of fp8_tiles_dequantise, and parts of operands */

/* Whether tiles of the members are tiles of the packed weight. */
static bool lines_up(const DequantiseAttrs *attrs)
{
    for (int m = 1; m < DEQUANTISE_MAX_MEMBERS && attrs->rows[m]; m++)
        if (attrs->rows[m - 1] % FP8_TILE) return false;
    return true;
}

/* The node that dequantises the weight of a layer's product, if the product can read the codes instead; NULL: it can't. */
static const Node *maker_of(const Precision *p, const Node *node)
{
    enum { WHOLE_WORDS = 16, WHOLE_ROWS = 4 };
    if (node->op != &op_linear && node->op != &op_linear_dx) return NULL;
    const Node *maker = node->in[1]->producer;
    if (!maker || maker->op != &op_fp8_tiles_dequantise || !layers_has_weight(&p->layers, maker->in[IN_CODES])) return NULL;
    const TensorType *w = &maker->in[IN_CODES]->type, *x = &node->in[0]->type;
    bool              fits = w->dim[0] % WHOLE_WORDS == 0 && w->dim[1] % WHOLE_WORDS == 0 && type_rows(x) % WHOLE_ROWS == 0;
    if (node->op == &op_linear_dx) fits = fits && ((const LinearAttrs *)node->attrs)->col == 0 && type_cols(x) == w->dim[0];
    return fits && lines_up(maker->attrs) ? maker : NULL;
}

/* Quantises x or dy by blocks of its rows. */
static Status quantise(const Precision *p, Value *x, const Node *reader)
{
    Operand *of = &p->of[x->id];
    Node    *node;
    if (of->along[0]) return OK;
    operands_work_at(p, x, reader);
    TRY(graph_add_node(p->graph, &op_fp8_rows_quantise, NULL, arena_printf(p->graph->arena, "%s.codes", x->name), &x, 1, ~0u, &node));
    node->flags |= reader->flags & NODE_BACKWARD;
    for (int k = 0; k < NUM_PARTS; k++) of->along[k] = node->out[k];
    return OK;
}

static CodedWeight *tell_plan(const Precision *p, const Value *codes, const Value *scale)
{
    Arena       *arena = p->plan->arena;
    bool         is_new;
    CodedWeight *row = operands_tell_plan(p, CODED_TILES, codes, &is_new);
    if (!is_new) return row;
    row->scale = arena_printf(arena, "%s", scale->name);
    row->made[MADE_TURNED] = arena_printf(arena, "%s.turned", row->name);
    row->made[MADE_TURNED_SCALE] = arena_printf(arena, "%s.turned", row->scale);
    row->made[MADE_PADDED] = arena_printf(arena, "%s.padded", row->scale);
    return row;
}

static Status rewrite(const Precision *p, const Product *product, const Node *maker)
{
    static const OperandFormat format = {&op_block_linear, NUM_PARTS, .fast = false};
    Value                     *codes = maker->in[IN_CODES], *scale = maker->in[IN_SCALE];
    const CodedWeight         *row = tell_plan(p, codes, scale);
    Operand                   *of = &p->of[product->weight->id];
    TensorType                 turned = type_make(codes->type.dtype, 2, codes->type.dim[1], codes->type.dim[0]);
    TensorType                 padded = type_make(DT_F32, 2, scale->type.dim[0], fp8_tiles_stride(scale->type.dim[1]));
    TensorType                 turned_scale = type_make(DT_F32, 2, scale->type.dim[1], fp8_tiles_stride(scale->type.dim[0]));
    TRY(quantise(p, product->node->in[0], product->node));
    if (product->kind == PRODUCT_Y) {
        of->along[IN_CODES] = codes;
        of->along[IN_SCALE] = operands_lasting(p, scale, row->made[MADE_PADDED], &padded);
    } else {
        of->turned[IN_CODES] = operands_lasting(p, codes, row->made[MADE_TURNED], &turned);
        of->turned[IN_SCALE] = operands_lasting(p, scale, row->made[MADE_TURNED_SCALE], &turned_scale);
    }
    return operands_multiply(p, product, &format, NULL);
}

Status precision_tiles(Precision *p)
{
    const PrecisionOptions *options = &p->options->precision;
    if (!p->plan->facts.fp8_blocks) return OK;
    operands_start(p);
    for (Node *node = p->graph->first, *next; node; node = next) {
        const Node *maker = maker_of(p, node);
        bool        is_y = node->op == &op_linear, wanted = is_y ? options->forward == DT_E4M3 : options->backward == DT_E5M2;
        next = node->next;
        if (maker && wanted) TRY(rewrite(p, &(Product){is_y ? PRODUCT_Y : PRODUCT_DX, node, node->in[1]}, maker));
    }
    return OK;
}
