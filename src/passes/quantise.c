/* quantise: QLoRA (Dettmers 2023). The frozen matrices of the blocks are kept as codes with scales. A node dequantises a matrix right
 * before each reader, forward and backward (NODE_AT_USE, pass recompute), so that hardly more than one exists at a time. The load program
 * makes the codes as weights arrive.
 *
 * The codes replace the weight in the parameter's own value, so the value's place in a packed weight stays as it is. One node then
 * dequantises all members of a packed weight. Each member is quantised by itself, with blocks of its own.
 *
 * If a format has a product by codes, it replaces the layers' products in programs without gradients. */
#include "passes/quantise.h"

#include "ops/attrs.h"
#include "ops/lowbit/fp8_tiles.h"
#include "ops/lowbit/nf4.h"
#include "ops/ops.h"
#include "ops/products/coded_linear.h"
#include "passes/operands.h"

#include <string.h>

static const Nf4QuantiseAttrs nf4_once = {.once = true};

/* A block's largest element may be scaled to 4 instead of 6, if that has the smaller error. */
static const Nvfp4Attrs four_over_six = {.four_six = true};

static const WeightFormat formats[] = {
    {"nf4", &op_nf4_quantise, &op_nf4_dequantise, NULL, 4, {"codes", "absmax", "nested", "offset"}, NULL},
    {"fp8", &op_fp8_tiles_quantise, &op_fp8_tiles_dequantise, NULL, 2, {"codes", "scale"}, &op_fp8_tiles_linear},
    {"nvfp4", &op_nvfp4_quantise, &op_nvfp4_dequantise, &four_over_six, 3, {"codes", "scale", "global"}, NULL},
    {"int8", &op_int8_quantise, &op_int8_dequantise, NULL, 2, {"codes", "scale"}, &op_int8_linear},
    {"nf4_once", &op_nf4_quantise, &op_nf4_dequantise, &nf4_once, 2, {"codes", "absmax"}, NULL}, /* bitsandbytes, scales not quantised */
};
enum { NUM_FORMATS = sizeof formats / sizeof *formats };

const WeightFormat *weight_format_at(int index)
{
    return index < NUM_FORMATS ? &formats[index] : NULL;
}

const WeightFormat *weight_format_find(const char *name)
{
    for (int i = 0; i < NUM_FORMATS; i++)
        if (strcmp(formats[i].name, name) == 0) return &formats[i];
    return NULL;
}

const char *weight_part_name(Arena *arena, const WeightFormat *format, const char *name, int k)
{
    return arena_printf(arena, "%s.%s", name, format->parts[k]);
}

bool weight_is_quantised(const Param *param)
{
    return param->is_linear && !param->is_head && !param->is_adapter && !param->trained && param->layer >= 0 && param->type.ndim == 2;
}

typedef struct Quantise {
    const CompileOptions *options;
    Graph                *graph, *scratch; /* scratch: only to find the types of parts */
    const WeightFormat   *format;
    bool                  has_grads;
} Quantise;

/* The parts of a weight of this type, as the format's op makes them. */
static Status types_of(const Quantise *q, const TensorType *type, TensorType *out)
{
    Value *weight = graph_add_value(q->scratch, VALUE_PARAM, "weight", type);
    Node  *node;
    TRY(graph_add_node(q->scratch, q->format->quantise, q->format->attrs, "part", &weight, 1, ~0u, &node));
    for (int k = 0; k < q->format->num_parts; k++) out[k] = node->out[k]->type;
    return OK;
}

static bool is_kept(const Quantise *q, const Param *param)
{
    const CompileOptions *options = q->options;
    return weight_is_quantised(param) && (!options->keeps_format || options->keeps_format(options->keeps_format_model, param));
}

/* The weights in the memory of `whole`: its members, or the value itself. Returns their count; 0: some of that memory can't be
 * quantised. */
static int weights_in(const Quantise *q, Value *whole, Value *out[DEQUANTISE_MAX_MEMBERS])
{
    int count = 0;
    if (whole->kind != VALUE_PARAM || whole->producer || whole->storage) return 0;
    if (whole->param) out[count++] = whole;
    for (Value *member = whole->param ? NULL : whole->first_member; member; member = member->next_member) {
        if (count == DEQUANTISE_MAX_MEMBERS || member->num_uses) return 0;
        out[count++] = member;
    }
    for (int i = 0; i < count; i++)
        if (!out[i]->param || !is_kept(q, out[i]->param)) return 0;
    return count;
}

/* Adds part k of all weights, one after the other; each member has a name of its own. */
static Value *add_part(const Quantise *q, const char *name, Value *const *weights, const TensorType (*types)[FORMAT_MAX_PARTS], int count,
                       int k)
{
    TensorType type = types[0][k];
    int64_t    offset = 0;
    for (int i = 1; i < count; i++) type.dim[0] += types[i][k].dim[0];
    Value *all = graph_add_value(q->graph, VALUE_PARAM, weight_part_name(q->graph->arena, q->format, name, k), &type);
    all->layer = weights[0]->layer;
    for (int i = 0; i < count && count > 1; i++) {
        const char *own = weight_part_name(q->graph->arena, q->format, weights[i]->param->name, k);
        Value      *member = graph_add_value(q->graph, VALUE_PARAM, own, &types[i][k]);
        member->layer = all->layer;
        value_place_in(member, all, offset);
        offset += type_numel(&types[i][k]);
    }
    return all;
}

/* Makes the value hold codes from here on. */
static void become_codes(const Quantise *q, Value *value, DType dtype)
{
    value->type.dtype = dtype;
    graph_rename(q->graph, value, weight_part_name(q->graph->arena, q->format, value->param ? value->param->name : value->name, 0));
}

/* Replaces a layer's product by the product with codes. */
static Status multiply_codes(const Quantise *q, Node *linear, Value *const *parts)
{
    CodedLinearAttrs attrs = {.dtype = DTYPE_TO_ATTR(linear->out[0]->type.dtype), .eps = 1e-6};
    Value           *in[FORMAT_MAX_PARTS + 2] = {linear->in[0]};
    int              count = q->format->num_parts;
    for (int k = 0; k < count; k++) in[1 + k] = parts[k];
    in[1 + count] = linear->in[2];
    return node_replace(q->graph, linear, q->format->product, &attrs, in, count + 2, NULL);
}

/* Whether op fp8_tiles_linear makes the product: its results have the same bits as with a dequantised weight. It pays off for few rows,
 * where reading the weight takes most of the time. The members' tiles must be tiles of the packed weight. FP8 recipes make their products
 * themselves. */
static bool tiles_pay(const Quantise *q, const Node *linear, Value *const *weights, int count)
{
    if (!q->graph->rows_alone || q->options->precision.forward == DT_E4M3) return false;
    for (int i = 0; i + 1 < count; i++)
        if (weights[i]->type.dim[0] % FP8_TILE) return false;
    return type_rows(&linear->in[0]->type) <= CODED_FEW_ROWS && weights[0]->type.dim[1] % CODED_WHOLE == 0;
}

/* Whether only layers' products read the weight, and all of them can read its codes instead. */
static bool is_multiplied(const Quantise *q, const Value *whole, Value *const *weights, int count)
{
    if (!q->format->product || q->has_grads) return false;
    for (const Use *use = whole->first_use; use; use = use->next) {
        if (!use->node || use->node->op != &op_linear || use->index != 1) return false;
        if (q->format->product == &op_fp8_tiles_linear && !tiles_pay(q, use->node, weights, count)) return false;
    }
    return true;
}

/* Replaces all products of the weight. The codes are in the same value, so its uses also include the new nodes: they aren't op_linear. */
static Status multiply_all(const Quantise *q, const Value *whole, Value *const *parts)
{
    for (const Use *use = whole->first_use, *next; use; use = next) {
        next = use->next;
        if (use->node->op == &op_linear) TRY(multiply_codes(q, use->node, parts));
    }
    return OK;
}

/* Makes readers of the weight read a matrix that a new node dequantises from the codes. */
static Status dequantise(const Quantise *q, Value *whole, const DequantiseAttrs *attrs, const char *name, Value *const *parts)
{
    Node *reader = value_first_reader(whole), *node;
    if (!reader) return OK;
    pass_work_nowhere(q->graph);
    q->graph->cursor = reader;
    q->graph->layer = whole->layer;
    TRY(graph_add_node(q->graph, q->format->dequantise, attrs, name, parts, q->format->num_parts, ~0u, &node));
    node->flags |= NODE_AT_USE;
    graph_replace_uses(q->graph, whole, node->out[0], reader);
    return OK;
}

static Status quantise_weights(const Quantise *q, Value *whole, Value *const *weights, int count)
{
    TensorType      types[DEQUANTISE_MAX_MEMBERS][FORMAT_MAX_PARTS];
    DequantiseAttrs attrs = {.dtype = DTYPE_TO_ATTR(whole->type.dtype)};
    Value          *in[FORMAT_MAX_PARTS] = {whole};
    const char     *name = whole->name;
    for (int i = 0; i < count; i++) {
        Status status = types_of(q, &weights[i]->type, types[i]);
        if (status != OK)
            return status_prefix(status, "%s can't be kept in %s, set qlora or --quantization to another format", weights[i]->param->name,
                                 q->format->name);
        CHECK(type_same_dims(&types[i][0], &weights[i]->type));
        if (count > 1) attrs.rows[i] = weights[i]->type.dim[0];
        weights[i]->param->format = q->format;
    }
    for (int k = 1; k < q->format->num_parts; k++) in[k] = add_part(q, name, weights, types, count, k);
    become_codes(q, whole, types[0][0].dtype);
    for (int i = 0; i < count && count > 1; i++) become_codes(q, weights[i], types[i][0].dtype);
    return is_multiplied(q, whole, weights, count) ? multiply_all(q, whole, in) : dequantise(q, whole, &attrs, name, in);
}

Status pass_quantise(PassContext *context, Graph **graph)
{
    Quantise q = {.options = context->options, .graph = *graph, .format = context->options->weight_format};
    if (!q.format) return OK;
    q.has_grads = context->program->spec.entry->has_grads;
    q.scratch = graph_create(context->arena, "parts", op_table, OP_COUNT);
    int num_values = (*graph)->num_values;
    for (int i = 0; i < num_values; i++) {
        Value *whole = (*graph)->values[i], *weights[DEQUANTISE_MAX_MEMBERS];
        int    count = weights_in(&q, whole, weights);
        if (count) TRY(quantise_weights(&q, whole, weights, count));
    }
    return OK;
}
