/* load: the program of what happens once to weights as they arrive. Each parameter arrives in pieces of whole rows, as fp32, which
 * holds every number of a file (f64 is rounded to it). A piece is a staged value; nodes make of it the rows that are kept: in the
 * parameter's dtype, and exactly in its master copy where there is one. A parameter that is kept in another format arrives whole, as
 * its scales may be of all of it; one node makes its codes and scales.
 *
 * Nothing else runs while weights arrive, so that staged values lie where activations do. A piece is as large as the activations of
 * the other programs, and loading takes no memory of its own; where those are tiny beside the weights it is a small part of these. */
#include "ops/attrs.h"
#include "ops/ops.h"
#include "passes/pass.h"

enum {
    MOST_BYTES = 64 << 20, /* of a piece */
    MOST_PIECES = 4096,    /* about, of all weights, if they are large beside the activations */
    BLOCK = 64,            /* a piece has a multiple of so many elements, but the last of a parameter */
};

/* Rows of a piece. */
static int64_t rows_of(const Plan *plan, int64_t cols)
{
    int64_t bytes = plan->region_bytes[SPACE_DEVICE][REGION_ACTIVATIONS], part = dtype_bytes(DT_F32, plan->total_numel) / MOST_PIECES;
    if (bytes < part) bytes = part;
    if (bytes > MOST_BYTES) bytes = MOST_BYTES;
    int64_t least = cols % BLOCK ? BLOCK : 1, rows = bytes / dtype_bytes(DT_F32, cols) / least * least;
    return rows < least ? least : rows;
}

/* Makes the elements of `kept` from `first` on of what arrives. */
static Status keep_piece(Graph *graph, Value *staged, Value *kept, int64_t first)
{
    CastAttrs attrs = {.dtype = DTYPE_TO_ATTR(kept->type.dtype)};
    Value    *in[] = {staged};
    Node     *node;
    TRY(graph_add_node(graph, &op_cast, &attrs, "kept", in, 1, ~0u, &node));
    value_place_in(node->out[0], kept, first);
    return OK;
}

/* The value of the plan, once in the graph. */
static Value *lasting(Graph *graph, const PlanEntry *entry, ValueKind kind)
{
    Value *value = graph_find(graph, entry->name);
    return value ? value : graph_add_value(graph, kind, entry->name, &entry->type);
}

/* The value in which `rows` rows of the parameter arrive, from `row` on. */
static Value *add_arrival(Plan *plan, Graph *graph, const Param *param, int64_t row, int64_t rows)
{
    TensorType type = param->type;
    type.dtype = DT_F32;
    type.dim[0] = rows;
    Value *staged = graph_add_value(graph, VALUE_STAGED, arena_printf(graph->arena, "arriving.%s", param->name), &type);
    plan->arrivals[plan->num_arrivals++] = (Arrival){param, row * (type_numel(&type) / rows), staged};
    return staged;
}

static Status load_quantised(Plan *plan, Graph *graph, const Param *param)
{
    const WeightFormat *format = param->format;
    Value              *staged = add_arrival(plan, graph, param, 0, param->type.dim[0]);
    Node               *node;
    TRY(graph_add_node(graph, format->quantise, format->attrs, "kept", &staged, 1, ~0u, &node));
    for (int k = 0; k < format->num_parts; k++) {
        const PlanEntry *entry = plan_find(plan, weight_part_name(graph->arena, format, param->name, k));
        CHECK(entry);
        value_place_in(node->out[k], lasting(graph, entry, VALUE_PARAM), 0);
    }
    return OK;
}

static Status load_param(Plan *plan, Graph *graph, Param *param)
{
    if (param->format) return load_quantised(plan, graph, param);
    int64_t          numel = type_numel(&param->type), cols = numel / param->type.dim[0], rows = rows_of(plan, cols), at = 0;
    const PlanEntry *master = plan_master(plan, param, &at);
    Value           *kept = graph_add_value(graph, VALUE_PARAM, param->name, &param->type);
    for (int64_t row = 0; row < param->type.dim[0]; row += rows) {
        int64_t left = param->type.dim[0] - row;
        Value  *staged = add_arrival(plan, graph, param, row, rows < left ? rows : left);
        TRY(keep_piece(graph, staged, kept, row * cols));
        if (master) TRY(keep_piece(graph, staged, lasting(graph, master, VALUE_STATE), at + row * cols));
    }
    return OK;
}

Status pass_load(PassContext *context, Graph **out_graph)
{
    Plan  *plan = context->plan;
    Graph *graph = graph_create(context->arena, context->program->name, op_table, OP_COUNT);
    int    count = 0;
    for (int i = 0; i < plan->num_params; i++) {
        const TensorType *type = &plan->params[i]->type;
        int64_t           rows = rows_of(plan, type_numel(type) / type->dim[0]);
        count += (int)((type->dim[0] + rows - 1) / rows);
    }
    plan->arrivals = arena_array(plan->arena, Arrival, count + 1);
    plan->num_arrivals = 0;
    for (int i = 0; i < plan->num_params; i++) TRY(load_param(plan, graph, plan->params[i]));
    *out_graph = graph;
    return OK;
}
