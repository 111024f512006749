/* Products of NVFP4 operands (NVIDIA 2025, arXiv 2509.25149), emulated: what each operand's codes stand for is multiplied in the model's
 * dtype.
 *
 *   y  = x w^T     blocks of x along K; of w 16 x 16 elements, so that its transpose has the same values
 *   dx = dy w      blocks of dy along M, rounded stochastically
 *   dw = dy^T x    blocks of both along the tokens, transformed by a random Hadamard matrix that cancels in the product; dy rounded
 *                  stochastically
 *
 * The backward pass keeps the codes of x that dw reads. Those of a weight are made by a step's first program and last until its end; the
 * values that they stand for are made at use. */
#include "passes/precision.h"

#include "base/philox.h"
#include "ops/attrs.h"
#include "ops/nvfp4.h"
#include "ops/ops.h"
#include "passes/pass.h"
#include "passes/recipe_layers.h"

#include <stdio.h>

enum { NUM_PARTS = 3 }; /* codes, scales, global: outputs of nvfp4_quantise, inputs of nvfp4_dequantise */

/* What is made of a value so far; NULL: not yet. */
typedef struct Made {
    Value *along;             /* what its codes in blocks along its rows stand for */
    Value *turned[NUM_PARTS]; /* codes of its transpose */
    Value *across;            /* what these stand for */
} Made;

typedef struct Nvfp4 {
    RecipeLayers            layers;
    Graph                  *graph;
    const PrecisionOptions *options;
    Plan                   *plan;
    ProgramKind             kind;
    Made                   *made; /* by id of a value that was there before */
} Nvfp4;

/* New nodes stand before `reader`; they are dropped and made again with what makes the value. */
static void work_at(const Nvfp4 *p, const Value *value, Node *reader)
{
    p->graph->cursor = reader;
    p->graph->layer = reader->layer;
    p->graph->part = value->producer ? value->producer->part : reader->part;
    p->graph->source = reader->source;
}

static bool is_training(const Nvfp4 *p)
{
    return program_is_micro(p->kind);
}

/* Whether there are whole blocks in both directions. */
static bool is_blocked(const Value *weight)
{
    return weight->type.dim[0] % NVFP4_BLOCK == 0 && weight->type.dim[1] % NVFP4_BLOCK == 0;
}

static Status quantise(const Nvfp4 *p, Value *value, Node *reader, const Nvfp4Attrs *attrs, Value *out[NUM_PARTS])
{
    bool   random = attrs->stochastic;
    Value *in[] = {value, random ? graph_find(p->graph, "step") : NULL, random ? graph_find(p->graph, "doc_id") : NULL,
                   random ? graph_find(p->graph, "positions") : NULL};
    Node  *node;
    work_at(p, value, reader);
    TRY(graph_add_node(p->graph, &op_nvfp4_quantise, attrs, arena_printf(p->graph->arena, "%s.fp4", value->name), in, 4, ~0u, &node));
    node->flags |= reader->flags & NODE_BACKWARD;
    for (int k = 0; k < NUM_PARTS; k++) out[k] = node->out[k];
    return OK;
}

static Status dequantise(const Nvfp4 *p, const Value *value, Value *const *parts, Node *reader, bool transposed, uint32_t flags,
                         Value **out)
{
    DequantiseAttrs attrs = {.dtype = DTYPE_TO_ATTR(value->type.dtype), .transposed = transposed};
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

/* The reader's input is what its codes stand for, in blocks along its rows. */
static Status round_along(const Nvfp4 *p, const Value *weight, Node *reader, bool is_gradient)
{
    Value     *value = reader->in[0], *parts[NUM_PARTS];
    Made      *made = &p->made[value->id];
    Nvfp4Attrs attrs = attrs_of(p, weight, is_gradient, false);
    if (!made->along) {
        TRY(quantise(p, value, reader, &attrs, parts));
        TRY(dequantise(p, value, parts, reader, false, 0, &made->along));
    }
    node_set_input(reader, 0, made->along);
    return OK;
}

static Status turn(const Nvfp4 *p, const Value *weight, Value *value, Node *reader, bool is_gradient)
{
    Made      *made = &p->made[value->id];
    Nvfp4Attrs attrs = attrs_of(p, weight, is_gradient, true);
    return made->turned[0] ? OK : quantise(p, value, reader, &attrs, made->turned);
}

/* The same for input `index` in blocks across its rows. */
static Status round_across(const Nvfp4 *p, const Value *weight, Node *reader, int index, bool is_gradient)
{
    Value *value = reader->in[index];
    Made  *made = &p->made[value->id];
    TRY(turn(p, weight, value, reader, is_gradient));
    if (!made->across) TRY(dequantise(p, value, made->turned, reader, true, 0, &made->across));
    node_set_input(reader, index, made->across);
    return OK;
}

/* Lasting memory for part k of a weight's codes. */
static Value *lasting_part(const Nvfp4 *p, const Value *weight, int k)
{
    static const char *const names[NUM_PARTS] = {"codes", "scale", "global"};
    int64_t                  rows = weight->type.dim[0], cols = weight->type.dim[1];
    const TensorType         types[NUM_PARTS] = {type_make(DT_E2M1, 2, rows, cols), type_make(DT_E4M3, 2, rows, cols / NVFP4_BLOCK),
                                                 type_make(DT_F32, 1, INT64_C(1))};
    const char              *name = arena_printf(p->graph->arena, "fp4.%s.%s", names[k], weight->name);
    Value                   *value = graph_add_value(p->graph, VALUE_STATE, name, &types[k]);
    value->layer = weight->layer;
    return value;
}

/* The reader's weight is what its codes stand for. A later micro-step has those of the first one. */
static Status round_weight(const Nvfp4 *p, Node *reader)
{
    Value     *weight = reader->in[1], *parts[NUM_PARTS];
    Made      *made = &p->made[weight->id];
    Nvfp4Attrs attrs = {.two_d = true, .four_six = p->options->fp4_four_six};
    bool       is_made = program_accumulates(p->kind), is_new = false;
    if (!made->along) {
        if (!is_made) TRY(quantise(p, weight, reader, &attrs, parts));
        for (int k = 0; k < NUM_PARTS && is_training(p); k++) {
            Value *lasting = lasting_part(p, weight, k);
            if (is_made)
                parts[k] = lasting;
            else
                value_place_in(parts[k], lasting, 0);
            is_new = !plan_find(p->plan, lasting->name); /* else counted with an earlier program */
            if (is_new) p->plan->fp4_bytes += type_bytes(&lasting->type);
        }
        p->plan->num_fp4 += is_new;
        TRY(dequantise(p, weight, parts, reader, false, NODE_AT_USE, &made->along));
    }
    node_set_input(reader, 1, made->along);
    return OK;
}

static Status rewrite(const Nvfp4 *p, Node *node)
{
    const Value *w = layers_weight_of_dw(&p->layers, node);
    bool         is_dw = w && is_blocked(w), is_forward = layers_is_forward(&p->layers, node);
    if (is_dw) TRY(round_across(p, w, node, 0, true));
    if (is_dw) return round_across(p, w, node, 1, false);
    if ((!is_forward && !layers_is_dx(&p->layers, node)) || !is_blocked(node->in[1])) return OK;
    w = node->in[1];
    if (is_forward && is_training(p) && layers_param(w)->trained) TRY(turn(p, w, node->in[0], node, false));
    TRY(round_along(p, w, node, !is_forward));
    return round_weight(p, node);
}

Status precision_nvfp4(PassContext *context, Graph *graph)
{
    const ProgramSpec *spec = &context->program->spec;
    Nvfp4              p = {.graph = graph, .options = &context->options->precision, .plan = context->plan, .kind = spec->kind};
    FAIL_IF(is_training(&p) && spec->batch * spec->seq % NVFP4_BLOCK, ERR_UNSUPPORTED,
            "recipe nvfp4: a micro-batch has %lld tokens (sequences x sequence_len); expected a multiple of %d",
            (long long)(spec->batch * spec->seq), NVFP4_BLOCK);
    layers_find(&p.layers, graph, p.options);
    p.made = arena_array(graph->arena, Made, graph->num_values + 1);
    for (Node *node = graph->first; node; node = node->next) TRY(rewrite(&p, node));
    graph->cursor = NULL;
    graph->layer = -1;
    graph->part = PART_NONE;
    graph->source = NULL;
    return OK;
}
