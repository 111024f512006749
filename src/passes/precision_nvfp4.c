/* Products of NVFP4 operands (NVIDIA 2025, arXiv 2509.25149).
 *
 *   y  = x w^T     blocks of x along K; of w 16 x 16 elements, so that its transpose has the same values
 *   dx = dy w      blocks of dy along M, rounded stochastically
 *   dw = dy^T x    blocks of both along the tokens, transformed by a random Hadamard matrix that cancels in the product; dy rounded
 *                  stochastically
 *
 * Where the device multiplies FP4 and rows of codes are whole 16 bytes, the codes themselves are multiplied, those of w^T in dx. Elsewhere
 * products are emulated: what the codes stand for is multiplied in the model's dtype.
 *
 * The backward pass keeps the codes of x that dw reads. Those of a trained weight are made by a step's first program and last until its
 * end; those of a frozen one are made when it is loaded, and the weight itself isn't kept. The values that a weight's codes stand for are
 * made at use. */
#include "passes/precision.h"

#include "base/philox.h"
#include "ops/attrs.h"
#include "ops/infer.h"
#include "ops/lowbit/nvfp4.h"
#include "ops/ops.h"
#include "passes/pass.h"
#include "passes/recipe_layers.h"

#include <string.h>

enum { NUM_PARTS = 3 };    /* codes, scales, global: outputs of nvfp4_quantise, inputs of nvfp4_dequantise */
enum { WHOLE_WORDS = 32 }; /* codes in 16 bytes, which rows consist of that are multiplied by their codes */

/* What is made of a value so far; NULL: not yet. */
typedef struct Made {
    Value *along[NUM_PARTS];  /* codes in blocks along its rows */
    Value *turned[NUM_PARTS]; /* codes of its transpose */
    Value *rounded, *across;  /* what these stand for */
} Made;

typedef struct Nvfp4 {
    RecipeLayers            layers;
    Graph                  *graph;
    const PrecisionOptions *options;
    Plan                   *plan;
    const ProgramSpec      *spec;
    bool                    multiplies; /* the device does, operands as fp4_linear has them */
    Made                   *made;       /* by id of a value */
} Nvfp4;

/* New nodes stand before `reader`; they are dropped and made again with what makes the value. */
static void work_at(const Nvfp4 *p, const Value *value, Node *reader)
{
    pass_work_at(p->graph, reader);
    if (value->producer) p->graph->part = value->producer->part;
}

static bool is_training(const Nvfp4 *p)
{
    return entry_makes_steps(p->spec->entry);
}

/* Whether there are whole blocks in both directions. */
static bool is_blocked(const Value *weight)
{
    return weight->type.dim[0] % NVFP4_BLOCK == 0 && weight->type.dim[1] % NVFP4_BLOCK == 0;
}

/* Whether products that sum over `length` elements read codes. */
static bool by_codes(const Nvfp4 *p, int64_t length)
{
    return p->multiplies && length % WHOLE_WORDS == 0;
}

static Status quantise(const Nvfp4 *p, Value *value, Node *reader, const Nvfp4Attrs *attrs, uint32_t want, Value *out[NUM_PARTS])
{
    bool   random = attrs->stochastic;
    Value *in[] = {value, random ? graph_find(p->graph, "step") : NULL, random ? graph_find(p->graph, "doc_id") : NULL,
                   random ? graph_find(p->graph, "positions") : NULL};
    Node  *node;
    work_at(p, value, reader);
    TRY(graph_add_node(p->graph, &op_nvfp4_quantise, attrs, arena_printf(p->graph->arena, "%s.fp4", value->name), in, 4, want, &node));
    node->flags |= reader->flags & NODE_BACKWARD;
    for (int k = 0; k < NUM_PARTS; k++) out[k] = node->out[k];
    return OK;
}

/* `dtype`: of what is made. */
static Status dequantise(const Nvfp4 *p, const Value *value, Value *const *parts, Node *reader, bool transposed, DType dtype,
                         uint32_t flags, Value **out)
{
    DequantiseAttrs attrs = {.dtype = DTYPE_TO_ATTR(dtype), .transposed = transposed, .tiled = by_codes(p, type_cols(&parts[0]->type))};
    const char     *name = arena_printf(p->graph->arena, "%s.rounded", value->name);
    Node           *node;
    work_at(p, value, reader);
    TRY(graph_add_node(p->graph, &op_nvfp4_dequantise, &attrs, name, parts, NUM_PARTS, ~0u, &node));
    node->flags |= (reader->flags & NODE_BACKWARD) | flags;
    *out = node->out[0];
    return OK;
}

/* How x or dy is quantised. A gradient's draws are named after the weight, and by what reads them. */
static Nvfp4Attrs attrs_of(const Nvfp4 *p, const Value *weight, bool is_gradient, bool transposed)
{
    Nvfp4Attrs  attrs = {.transposed = transposed, .four_six = p->options->fp4_four_six};
    const char *site = arena_printf(p->graph->arena, "%s.%s", weight->name, transposed ? "dw" : "dx");
    attrs.hadamard = transposed && p->options->fp4_hadamard;
    attrs.stochastic = is_gradient && !p->options->fp4_nearest;
    if (attrs.stochastic) attrs.site = (int64_t)philox_name_key(site);
    return attrs;
}

/* Codes of x or dy in blocks along its rows. */
static Status make_along(const Nvfp4 *p, const Value *weight, Value *value, Node *reader, bool is_gradient)
{
    Made      *made = &p->made[value->id];
    Nvfp4Attrs attrs = attrs_of(p, weight, is_gradient, false);
    attrs.tiled = by_codes(p, type_cols(&value->type));
    return made->along[0] ? OK : quantise(p, value, reader, &attrs, ~0u, made->along);
}

/* Those of its transpose. */
static Status make_turned(const Nvfp4 *p, const Value *weight, Value *value, Node *reader, bool is_gradient)
{
    Made      *made = &p->made[value->id];
    Nvfp4Attrs attrs = attrs_of(p, weight, is_gradient, true);
    attrs.tiled = by_codes(p, type_rows(&value->type));
    return made->turned[0] ? OK : quantise(p, value, reader, &attrs, ~0u, made->turned);
}

/* ---- weights ---- */

/* A row of the plan's list, which all programs share. */
static Fp4Weight *tell_plan(const Nvfp4 *p, const Value *weight)
{
    Plan *plan = p->plan;
    for (int i = 0; i < plan->num_fp4; i++)
        if (strcmp(plan->fp4[i].name, weight->name) == 0) return &plan->fp4[i];
    if (!plan->fp4) plan->fp4 = arena_array(plan->arena, Fp4Weight, p->graph->num_params + 1);
    Fp4Weight *row = &plan->fp4[plan->num_fp4++];
    *row = (Fp4Weight){.name = arena_printf(plan->arena, "%s", weight->name)};
    if (!layers_param(weight)->trained) row->num_params = layers_list_params(plan->arena, weight, &row->params);
    return row;
}

/* A part of a weight that is there beyond the program; turned: it is of the transpose. */
static Value *lasting_part(const Nvfp4 *p, const Fp4Weight *row, Value *weight, Fp4Part part, bool turned)
{
    TensorType  codes = type_make(DT_E2M1, 2, weight->type.dim[turned], weight->type.dim[!turned]);
    const char *name = fp4_part_name(p->graph->arena, row, part);
    Value      *value = graph_find(p->graph, name);
    if (value) return value;
    if (part == FP4_SCALE || part == FP4_TURNED_SCALE) codes = nvfp4_scale_type(&codes, by_codes(p, type_cols(&codes)));
    if (part == FP4_GLOBAL) codes = type_make(DT_F32, 1, INT64_C(1));
    value = graph_add_value(p->graph, row->params ? VALUE_PARAM : VALUE_STATE, name, &codes);
    value->layer = weight->layer;
    return value;
}

/* Codes take the place of a frozen weight. */
static void become_codes(Value *weight)
{
    weight->type.dtype = DT_E2M1;
    for (Value *member = weight->first_member; member; member = member->next_member) member->type.dtype = DT_E2M1;
}

/* A weight's codes, or those of its transpose, for which the others are there: both have one number of the whole. Those of a frozen weight
 * are there when the program begins, and so are a trained one's in a later micro-step. A program that only goes forward doesn't know
 * whether a step's codes still stand for the weight: it makes its own. */
static Status make_weight(const Nvfp4 *p, Value *weight, Node *reader, bool turned)
{
    enum { GLOBAL = NUM_PARTS - 1 };
    static const Fp4Part names[2][NUM_PARTS] = {{FP4_CODES, FP4_SCALE, FP4_GLOBAL}, {FP4_TURNED, FP4_TURNED_SCALE, FP4_GLOBAL}};
    Made                *made = &p->made[weight->id];
    Value              **parts = turned ? made->turned : made->along;
    Nvfp4Attrs           attrs = {.two_d = true, .transposed = turned, .four_six = p->options->fp4_four_six};
    if (parts[0]) return OK;
    Fp4Weight *row = tell_plan(p, weight);
    bool       is_made = row->params || p->spec->adds;
    uint32_t   want = (1u << (turned ? GLOBAL : NUM_PARTS)) - 1;
    attrs.tiled = row->is_tiled[turned] = by_codes(p, weight->type.dim[!turned]);
    if (row->params) become_codes(weight);
    if (!is_made) TRY(quantise(p, weight, reader, &attrs, want, parts));
    for (int k = 0; want >> k && (is_made || is_training(p)); k++) {
        Value *lasting = lasting_part(p, row, weight, names[turned][k], turned);
        if (parts[k])
            value_place_in(parts[k], lasting, 0);
        else
            parts[k] = lasting;
    }
    if (turned) parts[GLOBAL] = made->along[GLOBAL];
    return OK;
}

/* ---- products ---- */

/* The same product by the codes of its operands. */
static Status multiply(const Nvfp4 *p, Node *node, Value *const *a, Value *const *b, Value *bias, Value *acc, double alpha)
{
    Value            *old = node->out[0], *in[] = {a[0], b[0], a[1], b[1], a[2], b[2], bias, acc};
    ScaledLinearAttrs attrs = {.alpha = alpha, .dtype = DTYPE_TO_ATTR(old->type.dtype)};
    Node             *product;
    work_at(p, old, node);
    TRY(graph_add_node(p->graph, &op_fp4_linear, &attrs, old->name, in, sizeof in / sizeof *in, ~0u, &product));
    product->flags |= node->flags & NODE_BACKWARD;
    if (old->sharing == STORAGE_HOME) value_place_in(product->out[0], old->storage, old->offset);
    graph_replace_uses(p->graph, old, product->out[0], NULL);
    graph_remove_node(p->graph, node);
    return OK;
}

/* Input `index` of the reader is what the codes of its transpose stand for. */
static Status round_across(const Nvfp4 *p, Node *reader, int index)
{
    Value *value = reader->in[index];
    Made  *made = &p->made[value->id];
    if (!made->across) TRY(dequantise(p, value, made->turned, reader, true, value->type.dtype, 0, &made->across));
    node_set_input(reader, index, made->across);
    return OK;
}

static Status rewrite_dw(const Nvfp4 *p, const Value *w, Node *node)
{
    Value *dy = node->in[0], *x = node->in[1];
    TRY(make_turned(p, w, dy, node, true));
    TRY(make_turned(p, w, x, node, false));
    if (by_codes(p, type_rows(&x->type)))
        return multiply(p, node, p->made[dy->id].turned, p->made[x->id].turned, NULL, node->in[2],
                        ((const LinearAttrs *)node->attrs)->alpha);
    TRY(round_across(p, node, 0));
    return round_across(p, node, 1);
}

/* y = x w^T, or dx = dy w. */
static Status rewrite_with_weight(const Nvfp4 *p, Node *node, bool is_forward)
{
    Value *value = node->in[0], *w = node->in[1];
    Made  *made = &p->made[value->id], *of_w = &p->made[w->id];
    bool   turned = !is_forward && by_codes(p, type_cols(&value->type));
    TRY(make_along(p, w, value, node, !is_forward));
    TRY(make_weight(p, w, node, false));
    if (turned) TRY(make_weight(p, w, node, true));
    if (is_forward && by_codes(p, type_cols(&value->type))) return multiply(p, node, made->along, of_w->along, node->in[2], NULL, 1);
    if (turned) return multiply(p, node, made->along, of_w->turned, NULL, node->in[2], ((const LinearAttrs *)node->attrs)->alpha);
    if (!made->rounded) TRY(dequantise(p, value, made->along, node, false, value->type.dtype, 0, &made->rounded));
    if (!of_w->rounded) TRY(dequantise(p, w, of_w->along, node, false, layers_param(w)->type.dtype, NODE_AT_USE, &of_w->rounded));
    node_set_input(node, 0, made->rounded);
    node_set_input(node, 1, of_w->rounded);
    return OK;
}

static Status rewrite(const Nvfp4 *p, Node *node)
{
    const Value *w = layers_weight_of_dw(&p->layers, node);
    bool         is_forward = layers_is_forward(&p->layers, node);
    if (w) return is_blocked(w) ? rewrite_dw(p, w, node) : OK;
    if ((!is_forward && !layers_is_dx(&p->layers, node)) || !is_blocked(node->in[1])) return OK;
    w = node->in[1];
    if (is_forward && is_training(p) && layers_param(w)->trained) TRY(make_turned(p, w, node->in[0], node, false));
    return rewrite_with_weight(p, node, is_forward);
}

Status precision_nvfp4(PassContext *context, Graph *graph)
{
    enum { MOST_ADDED = 24 }; /* values for a product */
    const ProgramSpec *spec = &context->program->spec;
    Nvfp4              p = {.graph = graph, .options = &context->options->precision, .plan = context->plan, .spec = spec};
    FAIL_IF(is_training(&p) && spec->batch * spec->seq % NVFP4_BLOCK, ERR_UNSUPPORTED,
            "recipe nvfp4: a micro-batch has %lld tokens (sequences x sequence_len); expected a multiple of %d",
            (long long)(spec->batch * spec->seq), NVFP4_BLOCK);
    p.multiplies = p.plan->facts.fp4_blocks;
    layers_find(&p.layers, graph, p.options);
    p.made = arena_array(graph->arena, Made, graph->num_values + MOST_ADDED * graph->num_nodes);
    for (Node *node = graph->first, *next; node; node = next) {
        next = node->next;
        TRY(rewrite(&p, node));
    }
    pass_work_nowhere(graph);
    return OK;
}
