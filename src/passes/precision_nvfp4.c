/* Products of NVFP4 operands (NVIDIA 2025, arXiv 2509.25149).
 *
 *   y  = x w^T     blocks of x along K; blocks of w of 16 x 16 elements, so that its transpose has the same values
 *   dx = dy w      blocks of dy along M, rounded stochastically
 *   dw = dy^T x    blocks of both along the tokens, transformed by a random Hadamard matrix that cancels in the product; dy rounded
 *                  stochastically
 *
 * Where the device multiplies FP4 and rows of codes have a multiple of 16 bytes, the codes themselves are multiplied; dx reads codes of
 * w^T. Elsewhere products are emulated: the values that the codes stand for are multiplied in the model's dtype.
 *
 * The backward pass keeps only codes of x, for dw. Codes of a trained weight are made by a step's first program and last until the step's
 * end. Codes of a frozen weight are made when it is loaded, and the weight itself isn't kept. The values that a weight's codes stand for
 * are made at use. */
#include "base/philox.h"
#include "ops/attrs.h"
#include "ops/infer.h"
#include "ops/lowbit/nvfp4.h"
#include "ops/ops.h"
#include "passes/operands.h"

enum { NUM_PARTS = 3, GLOBAL = NUM_PARTS - 1 }; /* codes, scales, global: outputs of nvfp4_quantise, inputs of nvfp4_dequantise */
enum { WHOLE_WORDS = 32 };                      /* codes in 16 bytes: a row that is multiplied as codes has a multiple of this number */

static bool is_training(const Precision *p)
{
    return entry_makes_steps(p->spec->entry);
}

/* Whether both dims consist of whole blocks. */
static bool is_blocked(const Value *weight)
{
    return weight->type.dim[0] % NVFP4_BLOCK == 0 && weight->type.dim[1] % NVFP4_BLOCK == 0;
}

/* Whether products that sum over `length` elements multiply the codes themselves, by op fp4_linear. */
static bool by_codes(const Precision *p, int64_t length)
{
    return p->plan->facts.fp4_blocks && length % WHOLE_WORDS == 0;
}

static Status quantise(const Precision *p, Value *value, const Node *reader, const Nvfp4Attrs *attrs, uint32_t want, Value *out[NUM_PARTS])
{
    Graph *graph = p->graph;
    bool   random = attrs->stochastic;
    Value *in[] = {value, random ? graph_find(graph, "step") : NULL, random ? graph_find(graph, "doc_id") : NULL,
                   random ? graph_find(graph, "positions") : NULL};
    Node  *node;
    operands_work_at(p, value, reader);
    TRY(graph_add_node(graph, &op_nvfp4_quantise, attrs, arena_printf(graph->arena, "%s.fp4", value->name), in, 4, want, &node));
    node->flags |= reader->flags & NODE_BACKWARD;
    for (int k = 0; k < NUM_PARTS; k++) out[k] = node->out[k];
    return OK;
}

/* Makes codes of x or dy in blocks along its rows or, turned, codes of its transpose. The random numbers for a gradient are seeded by the
 * weight's name and the product that reads the codes. */
static Status make_codes(const Precision *p, const Value *weight, Value *value, const Node *reader, bool is_gradient, bool turned)
{
    const PrecisionOptions *options = &p->options->precision;
    Operand                *of = &p->of[value->id];
    Value                 **parts = turned ? of->turned : of->along;
    Nvfp4Attrs              attrs = {.transposed = turned, .four_six = options->fp4_four_six};
    if (parts[0]) return OK;
    attrs.hadamard = turned && options->fp4_hadamard;
    attrs.stochastic = is_gradient && !options->fp4_nearest;
    attrs.tiled = by_codes(p, turned ? type_rows(&value->type) : type_cols(&value->type));
    if (attrs.stochastic) attrs.site = (int64_t)philox_name_key(arena_printf(p->graph->arena, "%s.%s", weight->name, turned ? "dw" : "dx"));
    return quantise(p, value, reader, &attrs, ~0u, parts);
}

/* ---- weights ---- */

static CodedWeight *tell_plan(const Precision *p, const Value *weight)
{
    static const char *const names[] = {"codes", "scale", "global", "turned", "turned_scale"};
    bool                     is_new;
    CodedWeight             *row = operands_tell_plan(p, CODED_FP4, weight, &is_new);
    for (int k = 0; is_new && k <= MADE_TURNED_SCALE; k++) row->made[k] = arena_printf(p->plan->arena, "fp4.%s.%s", names[k], row->name);
    if (row->params) row->made[MADE_CODES] = row->name;
    return row;
}

/* The lasting value of a part of a weight; turned: of a part of its transpose. */
static Value *lasting_part(const Precision *p, const CodedWeight *row, const Value *weight, int part, bool turned)
{
    TensorType codes = type_make(DT_E2M1, 2, weight->type.dim[turned], weight->type.dim[!turned]), one = type_make(DT_F32, 1, INT64_C(1));
    TensorType scale = nvfp4_scale_type(&codes, by_codes(p, type_cols(&codes)));
    const TensorType *types[] = {&codes, &scale, &one};
    return operands_lasting(p, weight, row->made[turned ? MADE_TURNED + part : part], types[part]);
}

/* Makes a weight's codes or, after them, its transpose's codes: both share one global scale. Codes exist already if the weight is frozen,
 * or if an earlier micro-step made them. A program without a backward pass can't know whether a step's codes still stand for the weight: it
 * makes its own. */
static Status make_weight(const Precision *p, Value *weight, const Node *reader, bool turned)
{
    Operand   *of = &p->of[weight->id];
    Value    **parts = turned ? of->turned : of->along;
    Nvfp4Attrs attrs = {.two_d = true, .transposed = turned, .four_six = p->options->precision.fp4_four_six};
    if (parts[0]) return OK;
    CodedWeight *row = tell_plan(p, weight);
    bool         is_made = row->params || p->spec->adds;
    int          count = turned ? GLOBAL : NUM_PARTS;
    attrs.tiled = row->is_tiled[turned] = by_codes(p, weight->type.dim[!turned]);
    if (row->params) operands_become_codes(weight, DT_E2M1);
    if (!is_made) TRY(quantise(p, weight, reader, &attrs, (1u << count) - 1, parts));
    for (int k = 0; k < count && (is_made || is_training(p)); k++) {
        Value *lasting = lasting_part(p, row, weight, k, turned);
        if (parts[k])
            value_place_in(parts[k], lasting, 0);
        else
            parts[k] = lasting;
    }
    if (turned) parts[GLOBAL] = of->along[GLOBAL];
    return OK;
}

/* ---- products ---- */

/* Replaces input `index` of the product by the floats that its codes stand for. A weight's floats are made at use. */
static Status round_input(const Precision *p, const Product *product, int index)
{
    bool            turned = product->kind == PRODUCT_DW, is_weight = !turned && index == 1;
    Node           *reader = product->node, *node;
    Value          *value = reader->in[index];
    Operand        *of = &p->of[value->id];
    Value         **parts = turned ? of->turned : of->along, **made = turned ? &of->across : &of->rounded;
    DType           dtype = is_weight ? layers_param(value)->type.dtype : value->type.dtype;
    DequantiseAttrs attrs = {.dtype = DTYPE_TO_ATTR(dtype), .transposed = turned};
    if (!*made) {
        attrs.tiled = by_codes(p, type_cols(&parts[0]->type));
        operands_work_at(p, value, reader);
        TRY(graph_add_node(p->graph, &op_nvfp4_dequantise, &attrs, arena_printf(p->graph->arena, "%s.rounded", value->name), parts,
                           NUM_PARTS, ~0u, &node));
        node->flags |= (reader->flags & NODE_BACKWARD) | (is_weight ? NODE_AT_USE : 0);
        *made = node->out[0];
    }
    node_set_input(reader, index, *made);
    return OK;
}

static Status rewrite(void *context, const Product *product)
{
    static const OperandFormat format = {&op_fp4_linear, NUM_PARTS, .fast = false};
    const Precision           *p = context;
    Node                      *node = product->node;
    Value                     *w = product->weight, *a = node->in[0];
    bool                       is_y = product->kind == PRODUCT_Y, is_dw = product->kind == PRODUCT_DW;
    bool                       in_codes = by_codes(p, is_dw ? type_rows(&a->type) : type_cols(&a->type));
    if (!is_blocked(w)) return OK;
    if (is_y && is_training(p) && layers_param(w)->trained) TRY(make_codes(p, w, a, node, false, true));
    TRY(make_codes(p, w, a, node, !is_y, is_dw));
    if (is_dw) TRY(make_codes(p, w, node->in[1], node, false, true));
    if (!is_dw) TRY(make_weight(p, w, node, false));
    if (!is_dw && !is_y && in_codes) TRY(make_weight(p, w, node, true));
    if (in_codes) return operands_multiply(p, product, &format, NULL);
    TRY(round_input(p, product, 0));
    return round_input(p, product, 1);
}

Status precision_nvfp4(Precision *p)
{
    const ProgramSpec *spec = p->spec;
    FAIL_IF(is_training(p) && spec->batch * spec->seq % NVFP4_BLOCK, ERR_UNSUPPORTED,
            "recipe nvfp4: a micro-batch has %lld tokens (sequences x sequence_len); expected a multiple of %d",
            (long long)(spec->batch * spec->seq), NVFP4_BLOCK);
    operands_start(p);
    return layers_walk(&p->layers, rewrite, p);
}
