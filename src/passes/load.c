/* load: the program of what happens once to weights as they arrive. Each parameter arrives in pieces of whole rows, as fp32, which
 * holds every number of a file (f64 is rounded to it). A piece is a staged value; nodes make of it the rows that are kept: in the
 * parameter's dtype, and exactly in its master copy where there is one. A parameter that is kept in another format arrives whole, as
 * its scales may be of all of it; one node makes its codes and scales.
 *
 * Nothing else runs while weights arrive, so that staged values lie where activations do. A piece is as large as the activations of
 * the other programs, and loading takes no memory of its own; where those are tiny beside the weights it is a small part of these. */
#include "ops/attrs.h"
#include "ops/infer.h"
#include "ops/ops.h"
#include "passes/pass.h"

#include <string.h>

enum {
    MOST_BYTES = 64 << 20, /* of a piece */
    MOST_PIECES = 4096,    /* about, of all weights, if they are large beside the activations */
    BLOCK = 64,            /* a piece has a multiple of so many elements, but the last of a parameter */
};

/* Rows of which a piece has a multiple. */
static int64_t least_rows(int64_t cols)
{
    return cols % BLOCK ? BLOCK : 1;
}

/* Rows of a piece. */
static int64_t rows_of(const Plan *plan, int64_t cols)
{
    int64_t bytes = plan->region_bytes[SPACE_DEVICE][REGION_ACTIVATIONS], part = dtype_bytes(DT_F32, plan->total_numel) / MOST_PIECES;
    if (bytes < part) bytes = part;
    if (bytes > MOST_BYTES) bytes = MOST_BYTES;
    int64_t few = least_rows(cols), rows = bytes / dtype_bytes(DT_F32, cols) / few * few;
    return rows < few ? few : rows;
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

/* Makes the same of elements [lo, hi) of the parameter, of which elements from `first` on arrive. */
static Status keep_part(Graph *graph, Value *staged, int64_t first, int64_t lo, int64_t hi, Value *kept, int64_t at)
{
    TensorType type = type_make(staged->type.dtype, 1, hi - lo);
    Value     *part = staged;
    if (hi - lo < type_numel(&staged->type)) {
        part = graph_add_value(graph, VALUE_STAGED, arena_printf(graph->arena, "part.%s", staged->name), &type);
        value_place_in(part, staged, lo - first);
    }
    return keep_piece(graph, part, kept, at);
}

/* The value of the plan, once in the graph. */
static Value *lasting(Graph *graph, const PlanEntry *entry, ValueKind kind)
{
    Value *value = graph_find(graph, entry->name);
    if (value) return value;
    value = graph_add_value(graph, kind, entry->name, &entry->type);
    value->space = entry->place.space;
    return value;
}

/* A weight of which something is made once all of it is there, found by a parameter that it consists of. */
typedef struct Waiting {
    const TiledWeight *tiled;   /* NULL: none */
    int               *missing; /* parameters of the weight that aren't there yet */
} Waiting;

/* By entry of the plan: those of parameters' codes. */
static Waiting *find_tiled(Arena *arena, const Plan *plan)
{
    Waiting *waiting = arena_array(arena, Waiting, plan->num_entries + 1);
    int     *missing = arena_array(arena, int, plan->num_tiled + 1);
    for (int i = 0; i < plan->num_tiled; i++) {
        const TiledWeight *tiled = &plan->tiled[i];
        missing[i] = tiled->num_members;
        for (int k = 0; k < tiled->num_members; k++)
            waiting[plan_find(plan, tiled->members[k]) - plan->entries] = (Waiting){tiled, &missing[i]};
    }
    return waiting;
}

/* What products read of a weight beside its codes, so far as a program does. `last`: what made the codes of its last parameter. */
static Status turn_tiles(const Plan *plan, Graph *graph, const TiledWeight *tiled, const Node *last)
{
    const char *parts[] = {tiled->codes, tiled->scale};
    Value      *in[] = {last->out[0], last->out[1]};
    for (int k = 0; k < 2 && tiled->num_members > 1; k++) in[k] = lasting(graph, plan_find(plan, parts[k]), VALUE_PARAM);
    const char *names[] = {arena_printf(graph->arena, "%s" TILES_TURNED, tiled->codes),
                           arena_printf(graph->arena, "%s" TILES_TURNED, tiled->scale),
                           arena_printf(graph->arena, "%s" TILES_PADDED, tiled->scale)};
    enum { NUM_MADE = sizeof names / sizeof *names };
    uint32_t want = 0;
    Node    *node;
    for (int k = 0; k < NUM_MADE; k++) want |= (uint32_t)(plan_find(plan, names[k]) != NULL) << k;
    TRY(graph_add_node(graph, &op_fp8_tiles_turn, NULL, "turned", in, 2, want, &node));
    for (int k = 0; k < NUM_MADE; k++)
        if (node->out[k]) value_place_in(node->out[k], lasting(graph, plan_find(plan, names[k]), VALUE_PARAM), 0);
    return OK;
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

static bool is_divided(const Plan *plan, const char *name, const TensorType *whole)
{
    return plan_held(plan, name).numel < type_numel(whole);
}

/* What is made of a parameter is kept under this name; where ranks divide that, this rank's piece of it. */
static Status keep_made(const Plan *plan, Graph *graph, Value *made, const char *name)
{
    PlanPiece  held = plan_held(plan, name);
    TensorType type = type_make(made->type.dtype, 1, held.numel);
    Node      *node;
    CHECK(held.value);
    if (!is_divided(plan, name, &made->type)) {
        value_place_in(made, lasting(graph, plan_find(plan, name), VALUE_PARAM), 0);
        return OK;
    }
    Value *whole = graph_add_value(graph, VALUE_STAGED, arena_printf(graph->arena, "made.%s", name), &made->type);
    Value *all = graph_add_value(graph, VALUE_STAGED, arena_printf(graph->arena, "made.%s.all", name), &made->type);
    value_place_in(all, whole, 0);
    value_place_in(made, all, 0);
    if (!held.numel) return OK;
    Value *piece = graph_add_value(graph, VALUE_STAGED, arena_printf(graph->arena, "made.%s.piece", name), &type);
    value_place_in(piece, whole, held.first);
    TRY(graph_add_node(graph, &op_copy, NULL, "kept", &piece, 1, ~0u, &node));
    value_place_in(node->out[0], lasting(graph, plan_find(plan, name), VALUE_PARAM), 0);
    return OK;
}

static Status load_quantised(Plan *plan, Graph *graph, const Param *param, const Waiting *all)
{
    const WeightFormat *format = param->format;
    Value              *staged = add_arrival(plan, graph, param, 0, param->type.dim[0]);
    Node               *node;
    TRY(graph_add_node(graph, format->quantise, format->attrs, "kept", &staged, 1, ~0u, &node));
    for (int k = 0; k < format->num_parts; k++)
        TRY(keep_made(plan, graph, node->out[k], weight_part_name(graph->arena, format, param->name, k)));
    const Waiting *waiting = &all[plan_find(plan, weight_part_name(graph->arena, format, param->name, 0)) - plan->entries];
    return waiting->tiled && --*waiting->missing == 0 ? turn_tiles(plan, graph, waiting->tiled, node) : OK;
}

/* A parameter of which codes are made: those of the weight that it is, or is a member of. */
typedef struct Codes {
    const ScaledTensor *scaled;      /* in FP8 */
    const Fp4Weight    *fp4;         /* in FP4 */
    const char         *name;        /* the weight's; NULL: none are made */
    bool                codes_alone; /* nothing else of it is kept */
    int                *missing;     /* parameters of the weight that aren't there yet */
} Codes;

/* By entry of the plan. */
static Codes *find_codes(Arena *arena, const Plan *plan)
{
    Codes *codes = arena_array(arena, Codes, plan->num_entries + 1);
    int   *missing = arena_array(arena, int, plan->num_scaled + plan->num_fp4 + 1);
    for (int i = 0; i < plan->num_scaled; i++, missing++) {
        const ScaledTensor *scaled = &plan->scaled[i];
        bool                alone = scaled->codes && strcmp(scaled->codes, scaled->name) == 0;
        *missing = scaled->num_params;
        for (int k = 0; k < scaled->num_params; k++)
            codes[plan_find(plan, scaled->params[k]) - plan->entries] = (Codes){scaled, NULL, scaled->name, alone, missing};
    }
    for (int i = 0; i < plan->num_fp4; i++, missing++) {
        const Fp4Weight *fp4 = &plan->fp4[i];
        *missing = fp4->num_params;
        for (int k = 0; k < fp4->num_params; k++)
            codes[plan_find(plan, fp4->params[k]) - plan->entries] = (Codes){NULL, fp4, fp4->name, true, missing};
    }
    return codes;
}

/* Where a weight is put together that codes are made of: its place, or, if codes are all that is kept, memory that is staged. */
static const char *whole_name(Arena *arena, const Codes *codes)
{
    return codes->codes_alone ? arena_printf(arena, "whole.%s", codes->name) : codes->name;
}

static Value *whole_weight(const Plan *plan, Graph *graph, const Codes *codes, DType dtype)
{
    const char      *name = whole_name(graph->arena, codes);
    const PlanEntry *entry = plan_find(plan, codes->name);
    TensorType       type = entry->type;
    Value           *value = graph_find(graph, name);
    type.dtype = dtype;
    if (value) return value;
    value = graph_add_value(graph, codes->codes_alone ? VALUE_STAGED : VALUE_PARAM, name, &type);
    value->space = codes->codes_alone ? SPACE_DEVICE : entry->place.space;
    return value;
}

/* Codes of a whole weight in FP4, or of its transpose, so far as a program reads them. */
static Status make_fp4_codes(const CompileOptions *options, const Plan *plan, Graph *graph, const Codes *codes, bool transposed)
{
    enum { NUM_MADE = 3 };
    static const Fp4Part parts[2][NUM_MADE] = {{FP4_CODES, FP4_SCALE, FP4_GLOBAL}, {FP4_TURNED, FP4_TURNED_SCALE, FP4_PART_COUNT}};
    Nvfp4Attrs           attrs = {.two_d = true, .transposed = transposed, .four_six = options->precision.fp4_four_six};
    Value               *whole = graph_find(graph, whole_name(graph->arena, codes));
    const PlanEntry     *entries[NUM_MADE] = {0};
    uint32_t             want = 0;
    Node                *node;
    for (int k = 0; k < NUM_MADE; k++) {
        Fp4Part part = parts[transposed][k];
        entries[k] = part == FP4_PART_COUNT ? NULL : plan_find(plan, fp4_part_name(graph->arena, codes->fp4, part));
        want |= (uint32_t)(entries[k] != NULL) << k;
    }
    if (!want) return OK;
    TensorType type = whole->type;
    if (transposed) type = type_make(type.dtype, 2, type.dim[1], type.dim[0]);
    TensorType in_rows = nvfp4_scale_type(&type, false);
    attrs.tiled = !type_same_dims(&entries[1]->type, &in_rows);
    TRY(graph_add_node(graph, &op_nvfp4_quantise, &attrs, "fp4", &whole, 1, want, &node));
    for (int k = 0; k < NUM_MADE; k++)
        if (entries[k]) value_place_in(node->out[k], lasting(graph, entries[k], VALUE_PARAM), 0);
    return OK;
}

/* Once all of a weight is there: its codes by a scale of its own. */
static Status make_fp8_codes(const CompileOptions *options, const Plan *plan, Graph *graph, const Codes *codes)
{
    const ScaledTensor *scaled = codes->scaled;
    Fp8OwnScaleAttrs    own = {.dtype = DTYPE_TO_ATTR(scaled->dtype), .margin = options->precision.margin};
    Fp8QuantiseAttrs    quantise = {.dtype = DTYPE_TO_ATTR(scaled->dtype)};
    TensorType          one = type_make(DT_F32, 1, INT64_C(4));
    const char         *names[] = {scaled->codes, scaled->transposed};
    Value              *weight = graph_find(graph, whole_name(graph->arena, codes));
    Value              *scale = graph_add_value(graph, VALUE_STATE, arena_printf(graph->arena, "fp8.scale.%s", scaled->name), &one);
    value_place_in(scale, lasting(graph, plan_find(plan, PRECISION_SCALES), VALUE_STATE), (scaled - plan->scaled) * 4);
    Value *in[] = {weight, scale};
    Node  *node;
    TRY(graph_add_node(graph, &op_fp8_own_scale, &own, "fp8.scale", in, 2, ~0u, &node));
    in[1] = node->out[0];
    TRY(graph_add_node(graph, &op_fp8_quantise, &quantise, "fp8.codes", in, 2,
                       (uint32_t)(names[0] != NULL) | (uint32_t)(names[1] != NULL) << 1, &node));
    for (int k = 0; k < 2; k++)
        if (names[k]) value_place_in(node->out[k], lasting(graph, plan_find(plan, names[k]), VALUE_PARAM), 0);
    return OK;
}

/* The value that pieces of a parameter are kept in. Of one that gets codes it is a member of the whole weight, which is read then. */
static Value *kept_value(const Plan *plan, Graph *graph, const Param *param, const Codes *codes)
{
    const PlanEntry *part = plan_find(plan, param->name);
    if (!codes->name) return lasting(graph, part, VALUE_PARAM);
    const PlanEntry *all = plan_find(plan, codes->name);
    Value           *whole = whole_weight(plan, graph, codes, param->type.dtype);
    Value           *member = graph_add_value(graph, whole->kind, arena_printf(graph->arena, "kept.%s", param->name), &param->type);
    int64_t          bytes = part->place.offset - all->place.offset;
    value_place_in(member, whole, bytes * 8 / dtype_info(all->type.dtype)->bits);
    return member;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Of a parameter that ranks divide, the rows arrive that hold something of this rank's. */
static Status load_piece(Plan *plan, Graph *graph, const Param *param, PlanPiece own)
{
    int64_t          cols = type_numel(&param->type) / param->type.dim[0], rows = rows_of(plan, cols), at, end = own.first + own.numel;
    int64_t          row = own.first / cols / least_rows(cols) * least_rows(cols), last = own.numel ? (end + cols - 1) / cols : row;
    const PlanEntry *master = plan_master(plan, param, &at);
    Value           *share = own.numel ? lasting(graph, plan_find(plan, own.value), VALUE_PARAM) : NULL;
    for (; row < last; row += rows) {
        Value  *staged = add_arrival(plan, graph, param, row, least(rows, param->type.dim[0] - row));
        int64_t first = row * cols, lo = own.first > first ? own.first : first, hi = least(end, first + type_numel(&staged->type));
        TRY(keep_part(graph, staged, first, lo, hi, share, own.at + lo - own.first));
        if (master) TRY(keep_part(graph, staged, first, lo, hi, lasting(graph, master, VALUE_STATE), own.at + lo - own.first));
    }
    return OK;
}

static Status load_param(const CompileOptions *options, Plan *plan, Graph *graph, Param *param, const Codes *all_codes,
                         const Waiting *waiting)
{
    int           index;
    const Bucket *bucket = plan_bucket(plan, param, &index);
    if (param->format) return load_quantised(plan, graph, param, waiting);
    if (bucket && plan->world > 1) return load_piece(plan, graph, param, plan_owned(plan, bucket, index));
    if (is_divided(plan, param->name, &param->type)) return load_piece(plan, graph, param, plan_held(plan, param->name));
    const Codes     *codes = &all_codes[plan_find(plan, param->name) - plan->entries];
    int64_t          numel = type_numel(&param->type), cols = numel / param->type.dim[0], rows = rows_of(plan, cols), at = 0;
    const PlanEntry *master = plan_master(plan, param, &at);
    Value           *kept = kept_value(plan, graph, param, codes);
    for (int64_t row = 0; row < param->type.dim[0]; row += rows) {
        int64_t left = param->type.dim[0] - row;
        Value  *staged = add_arrival(plan, graph, param, row, rows < left ? rows : left);
        TRY(keep_piece(graph, staged, kept, row * cols));
        if (master) TRY(keep_piece(graph, staged, lasting(graph, master, VALUE_STATE), at + row * cols));
    }
    if (!codes->name || --*codes->missing > 0) return OK;
    if (codes->scaled) return make_fp8_codes(options, plan, graph, codes);
    TRY(make_fp4_codes(options, plan, graph, codes, false));
    return make_fp4_codes(options, plan, graph, codes, true);
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
    const Codes   *codes = find_codes(context->arena, plan);
    const Waiting *waiting = find_tiled(context->arena, plan);
    for (int i = 0; i < plan->num_params; i++) TRY(load_param(context->options, plan, graph, plan->params[i], codes, waiting));
    *out_graph = graph;
    return OK;
}
