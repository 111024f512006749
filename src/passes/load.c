/* load: the program of what happens once to weights as they arrive. Each parameter arrives in pieces of whole rows, as fp32, which
 * holds every number of a file (f64 is rounded to it). A piece is a staged value; nodes make of it the rows that are kept: in the
 * parameter's dtype, and exactly in its master copy where there is one. A parameter that is kept in another format arrives whole, as
 * its scales may be of all of it; one node makes its codes and scales.
 *
 * Nothing else runs while weights arrive, so that staged values lie where activations do. A piece is as large as the activations of
 * the other programs, and loading takes no memory of its own; where those are tiny beside the weights it is a small part of these. */
#include "ops/attrs.h"
#include "ops/infer.h"
#include "ops/lowbit/fp8_tiles.h"
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

static bool is_divided(const Plan *plan, const char *name, const TensorType *whole)
{
    return plan_held(plan, name).numel < type_numel(whole);
}

/* This rank's piece of a staged value is kept under this name. */
static Status keep_share(const Plan *plan, Graph *graph, Value *whole, const char *name)
{
    PlanPiece  held = plan_held(plan, name);
    TensorType type = type_make(whole->type.dtype, 1, held.numel);
    Node      *node;
    if (!held.numel) return OK;
    Value *piece = graph_add_value(graph, VALUE_STAGED, arena_printf(graph->arena, "made.%s.piece", name), &type);
    value_place_in(piece, whole, held.first);
    TRY(graph_add_node(graph, &op_copy, NULL, "kept", &piece, 1, ~0u, &node));
    value_place_in(node->out[0], lasting(graph, plan_find(plan, name), VALUE_PARAM), 0);
    return OK;
}

/* What is made of a parameter is kept under this name; where ranks divide that, this rank's piece of it. It is put together in `whole`
 * from element `at` on (NULL: in memory of its own). */
static Status keep_made(const Plan *plan, Graph *graph, Value *made, const char *name, Value *whole, int64_t at)
{
    CHECK(plan_held(plan, name).value);
    if (!is_divided(plan, name, &made->type)) {
        value_place_in(made, lasting(graph, plan_find(plan, name), VALUE_PARAM), 0);
        return OK;
    }
    Value *own = graph_add_value(graph, VALUE_STAGED, arena_printf(graph->arena, "made.%s", name), &made->type);
    Value *all = graph_add_value(graph, VALUE_STAGED, arena_printf(graph->arena, "made.%s.all", name), &made->type);
    if (whole) value_place_in(own, whole, at);
    value_place_in(all, own, 0);
    value_place_in(made, all, 0);
    return keep_share(plan, graph, own, name);
}

/* By entry of the plan: the parameter that it holds, or holds the codes of. */
static const Param **find_params(Arena *arena, const Plan *plan)
{
    const Param **params = arena_array(arena, const Param *, plan->num_entries + 1);
    for (int i = 0; i < plan->num_params; i++) {
        const Param *param = plan->params[i];
        const char  *name = param->format ? weight_part_name(arena, param->format, param->name, 0) : param->name;
        params[plan_find(plan, name) - plan->entries] = param;
    }
    return params;
}

/* A weight of which something is made once all of it is there, found by a parameter that it consists of. */
typedef struct Waiting {
    const TiledWeight *tiled;     /* NULL: none */
    TensorType        *codes;     /* of the weight */
    int64_t            rows_down; /* rows of it before the parameter */
    int               *missing;   /* parameters of the weight that aren't there yet */
} Waiting;

/* By entry of the plan: those of parameters' codes. */
static Waiting *find_tiled(Arena *arena, const Plan *plan, const Param *const *params)
{
    Waiting    *waiting = arena_array(arena, Waiting, plan->num_entries + 1);
    int        *missing = arena_array(arena, int, plan->num_tiled + 1);
    TensorType *types = arena_array(arena, TensorType, plan->num_tiled + 1);
    for (int i = 0; i < plan->num_tiled; i++) {
        const TiledWeight *tiled = &plan->tiled[i];
        int64_t            rows = 0;
        missing[i] = tiled->num_members;
        for (int k = 0; k < tiled->num_members; k++) {
            const PlanEntry *entry = plan_find(plan, tiled->members[k]);
            const Param     *param = params[entry - plan->entries];
            waiting[entry - plan->entries] = (Waiting){tiled, &types[i], rows, &missing[i]};
            rows += param->type.dim[0];
            types[i] = type_make(entry->type.dtype, 2, rows, param->type.dim[1]);
        }
    }
    return waiting;
}

/* Where codes (part 0) and scales of a weight of several parameters are put together, if ranks divide what is kept; else NULL. */
static Value *whole_part(const Plan *plan, Graph *graph, const Waiting *waiting, int part, const TensorType *of)
{
    const TiledWeight *tiled = waiting->tiled;
    const char        *name = part ? tiled->scale : tiled->codes;
    TensorType         type = *of;
    type.dim[0] = part ? (waiting->codes->dim[0] + FP8_TILE - 1) / FP8_TILE : waiting->codes->dim[0];
    if (!is_divided(plan, name, &type)) return NULL;
    name = arena_printf(graph->arena, "whole.%s", name);
    Value *whole = graph_find(graph, name);
    return whole ? whole : graph_add_value(graph, VALUE_STAGED, name, &type);
}

/* What products read of a weight beside its codes, so far as a program does. `last`: what made the codes of its last parameter. */
static Status turn_tiles(const Plan *plan, Graph *graph, const Waiting *waiting, const Node *last)
{
    const TiledWeight *tiled = waiting->tiled;
    const char        *parts[] = {tiled->codes, tiled->scale};
    Value             *in[] = {last->out[0], last->out[1]};
    for (int k = 0; k < 2 && tiled->num_members > 1; k++) {
        in[k] = whole_part(plan, graph, waiting, k, &last->out[k]->type);
        if (!in[k]) in[k] = lasting(graph, plan_find(plan, parts[k]), VALUE_PARAM);
    }
    const char *names[] = {arena_printf(graph->arena, "%s" TILES_TURNED, tiled->codes),
                           arena_printf(graph->arena, "%s" TILES_TURNED, tiled->scale),
                           arena_printf(graph->arena, "%s" TILES_PADDED, tiled->scale)};
    enum { NUM_MADE = sizeof names / sizeof *names };
    uint32_t want = 0;
    Node    *node;
    for (int k = 0; k < NUM_MADE; k++) want |= (uint32_t)(plan_find(plan, names[k]) != NULL) << k;
    TRY(graph_add_node(graph, &op_fp8_tiles_turn, NULL, "turned", in, 2, want, &node));
    for (int k = 0; k < NUM_MADE; k++)
        if (node->out[k]) TRY(keep_made(plan, graph, node->out[k], names[k], NULL, 0));
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

static Status load_quantised(Plan *plan, Graph *graph, const Param *param, const Waiting *all)
{
    const WeightFormat *format = param->format;
    Value              *staged = add_arrival(plan, graph, param, 0, param->type.dim[0]);
    Node               *node;
    TRY(graph_add_node(graph, format->quantise, format->attrs, "kept", &staged, 1, ~0u, &node));
    const Waiting *waiting = &all[plan_find(plan, weight_part_name(graph->arena, format, param->name, 0)) - plan->entries];
    for (int k = 0; k < format->num_parts; k++) {
        const TensorType *type = &node->out[k]->type;
        Value            *whole = waiting->tiled && waiting->tiled->num_members > 1 ? whole_part(plan, graph, waiting, k, type) : NULL;
        int64_t           row = k ? waiting->rows_down / FP8_TILE : waiting->rows_down;
        TRY(keep_made(plan, graph, node->out[k], weight_part_name(graph->arena, format, param->name, k), whole, row * type_cols(type)));
    }
    return waiting->tiled && --*waiting->missing == 0 ? turn_tiles(plan, graph, waiting, node) : OK;
}

/* A weight of which codes are made once all of it is there, found by a parameter that it consists of. */
typedef struct Coded {
    const ScaledTensor *scaled; /* in FP8 */
    const Fp4Weight    *fp4;    /* in FP4 */
    const char         *name;
    TensorType          type;        /* as it arrives */
    bool                codes_alone; /* nothing else of it is kept */
    bool                is_staged;   /* it is put together in memory that is staged: no rank keeps it whole */
    int                 missing;     /* parameters that aren't there yet */
} Coded;

typedef struct Codes {
    Coded  *of; /* NULL: none are made */
    int64_t at; /* where the parameter begins in the weight */
} Codes;

/* The weight of these parameters. */
static void add_coded(const Plan *plan, const Param *const *params, Codes *codes, Coded *coded, const char *const *names, int count)
{
    int64_t at = 0;
    for (int k = 0; k < count; k++) {
        size_t       entry = (size_t)(plan_find(plan, names[k]) - plan->entries);
        const Param *param = params[entry];
        codes[entry] = (Codes){coded, at};
        at += type_numel(&param->type);
        coded->type = param->type;
    }
    if (count > 1) coded->type.dim[0] = at / type_cols(&coded->type);
    coded->missing = count;
    coded->is_staged = coded->codes_alone || (count && is_divided(plan, coded->name, &coded->type));
}

/* By entry of the plan. */
static Codes *find_codes(Arena *arena, const Plan *plan, const Param *const *params)
{
    Codes *codes = arena_array(arena, Codes, plan->num_entries + 1);
    Coded *coded = arena_array(arena, Coded, plan->num_scaled + plan->num_fp4 + 1);
    for (int i = 0; i < plan->num_scaled; i++, coded++) {
        const ScaledTensor *scaled = &plan->scaled[i];
        bool                alone = scaled->codes && strcmp(scaled->codes, scaled->name) == 0;
        *coded = (Coded){.scaled = scaled, .name = scaled->name, .codes_alone = alone};
        add_coded(plan, params, codes, coded, scaled->params, scaled->num_params);
    }
    for (int i = 0; i < plan->num_fp4; i++, coded++) {
        *coded = (Coded){.fp4 = &plan->fp4[i], .name = plan->fp4[i].name, .codes_alone = true};
        add_coded(plan, params, codes, coded, plan->fp4[i].params, plan->fp4[i].num_params);
    }
    return codes;
}

/* Where a weight is put together that codes are made of: its place, or memory that is staged. */
static Value *whole_weight(const Plan *plan, Graph *graph, const Coded *coded)
{
    const char *name = coded->is_staged ? arena_printf(graph->arena, "whole.%s", coded->name) : coded->name;
    Value      *value = graph_find(graph, name);
    if (value) return value;
    if (!coded->is_staged) return lasting(graph, plan_find(plan, name), VALUE_PARAM);
    return graph_add_value(graph, VALUE_STAGED, name, &coded->type);
}

/* Codes of a whole weight in FP4, or of its transpose, so far as a program reads them. */
static Status make_fp4_codes(const CompileOptions *options, const Plan *plan, Graph *graph, const Coded *coded, bool transposed)
{
    enum { NUM_MADE = 3 };
    static const Fp4Part parts[2][NUM_MADE] = {{FP4_CODES, FP4_SCALE, FP4_GLOBAL}, {FP4_TURNED, FP4_TURNED_SCALE, FP4_PART_COUNT}};
    Nvfp4Attrs           attrs = {
                  .two_d = true, .transposed = transposed, .four_six = options->precision.fp4_four_six, .tiled = coded->fp4->is_tiled[transposed]};
    Value      *whole = whole_weight(plan, graph, coded);
    const char *names[NUM_MADE] = {0};
    uint32_t    want = 0;
    Node       *node;
    for (int k = 0; k < NUM_MADE; k++) {
        Fp4Part part = parts[transposed][k];
        if (part == FP4_PART_COUNT) continue;
        names[k] = fp4_part_name(graph->arena, coded->fp4, part);
        want |= (uint32_t)(plan_find(plan, names[k]) != NULL) << k;
    }
    if (!want) return OK;
    TRY(graph_add_node(graph, &op_nvfp4_quantise, &attrs, "fp4", &whole, 1, want, &node));
    for (int k = 0; k < NUM_MADE; k++)
        if (node->out[k]) TRY(keep_made(plan, graph, node->out[k], names[k], NULL, 0));
    return OK;
}

/* Once all of a weight is there: its codes by a scale of its own. */
static Status make_fp8_codes(const CompileOptions *options, const Plan *plan, Graph *graph, const Coded *coded)
{
    const ScaledTensor *scaled = coded->scaled;
    Fp8OwnScaleAttrs    own = {.dtype = DTYPE_TO_ATTR(scaled->dtype), .margin = options->precision.margin};
    Fp8QuantiseAttrs    quantise = {.dtype = DTYPE_TO_ATTR(scaled->dtype)};
    TensorType          one = type_make(DT_F32, 1, INT64_C(4));
    const char         *names[] = {scaled->codes, scaled->transposed};
    Value              *weight = whole_weight(plan, graph, coded);
    Value              *scale = graph_add_value(graph, VALUE_STATE, arena_printf(graph->arena, "fp8.scale.%s", scaled->name), &one);
    value_place_in(scale, lasting(graph, plan_find(plan, PRECISION_SCALES), VALUE_STATE), (scaled - plan->scaled) * 4);
    Value *in[] = {weight, scale};
    Node  *node;
    TRY(graph_add_node(graph, &op_fp8_own_scale, &own, "fp8.scale", in, 2, ~0u, &node));
    in[1] = node->out[0];
    TRY(graph_add_node(graph, &op_fp8_quantise, &quantise, "fp8.codes", in, 2,
                       (uint32_t)(names[0] != NULL) | (uint32_t)(names[1] != NULL) << 1, &node));
    for (int k = 0; k < 2; k++)
        if (names[k]) TRY(keep_made(plan, graph, node->out[k], names[k], NULL, 0));
    return OK;
}

/* All of the weight is there. */
static Status end_coded(const CompileOptions *options, const Plan *plan, Graph *graph, const Coded *coded)
{
    if (coded->is_staged && !coded->codes_alone) TRY(keep_share(plan, graph, whole_weight(plan, graph, coded), coded->name));
    if (coded->scaled) return make_fp8_codes(options, plan, graph, coded);
    TRY(make_fp4_codes(options, plan, graph, coded, false));
    return make_fp4_codes(options, plan, graph, coded, true);
}

/* The value that pieces of a parameter are kept in. Of one that gets codes it is a member of the whole weight, which is read then. */
static Value *kept_value(const Plan *plan, Graph *graph, const Param *param, const Codes *codes)
{
    if (!codes->of) return lasting(graph, plan_find(plan, param->name), VALUE_PARAM);
    Value *whole = whole_weight(plan, graph, codes->of);
    Value *member = graph_add_value(graph, whole->kind, arena_printf(graph->arena, "kept.%s", param->name), &param->type);
    value_place_in(member, whole, codes->at);
    return member;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* What this rank keeps of a parameter that ranks divide: of its weight, and of the wider copy of it, if a program has that. */
static int list_kept(const Plan *plan, const Param *param, PlanPiece out[2])
{
    int           index, count = 0;
    const Bucket *bucket = plan_bucket(plan, param, &index);
    out[count] = bucket ? plan_owned(plan, bucket, index) : plan_held(plan, param->name);
    count += out[count].numel > 0;
    for (int k = 0; bucket && k < bucket->num_states; k++) {
        if (!bucket->states[k].is_copy || !plan_find(plan, bucket->states[k].value)) continue;
        out[count] = plan_owned_state(plan, bucket, index, &bucket->states[k]);
        count += out[count].numel > 0;
    }
    return count;
}

/* Of a parameter that ranks divide, the rows arrive that hold something of this rank's. */
static Status load_pieces(Plan *plan, Graph *graph, const Param *param)
{
    PlanPiece kept[2];
    int       count = list_kept(plan, param, kept);
    int64_t   cols = type_numel(&param->type) / param->type.dim[0], rows = rows_of(plan, cols), begin = type_numel(&param->type), end = 0;
    for (int k = 0; k < count; k++) {
        if (kept[k].first < begin) begin = kept[k].first;
        if (kept[k].first + kept[k].numel > end) end = kept[k].first + kept[k].numel;
    }
    for (int64_t row = begin / cols / least_rows(cols) * least_rows(cols); row * cols < end; row += rows) {
        Value  *staged = add_arrival(plan, graph, param, row, least(rows, param->type.dim[0] - row));
        int64_t first = row * cols;
        for (int k = 0; k < count; k++) {
            const PlanEntry *entry = plan_find(plan, kept[k].value);
            int64_t          lo = kept[k].first > first ? kept[k].first : first;
            int64_t          hi = least(kept[k].first + kept[k].numel, first + type_numel(&staged->type));
            Value           *home = lasting(graph, entry, entry->place.region == REGION_WEIGHTS ? VALUE_PARAM : VALUE_STATE);
            if (lo < hi) TRY(keep_part(graph, staged, first, lo, hi, home, kept[k].at + lo - kept[k].first));
        }
    }
    return OK;
}

static Status load_param(const CompileOptions *options, Plan *plan, Graph *graph, Param *param, const Codes *all_codes,
                         const Waiting *waiting)
{
    int           index;
    const Bucket *bucket = plan_bucket(plan, param, &index);
    if (param->format) return load_quantised(plan, graph, param, waiting);
    if (bucket && plan->world > 1) return load_pieces(plan, graph, param);
    const Codes *codes = &all_codes[plan_find(plan, param->name) - plan->entries];
    if (!codes->of && is_divided(plan, param->name, &param->type)) return load_pieces(plan, graph, param);
    int64_t          numel = type_numel(&param->type), cols = numel / param->type.dim[0], rows = rows_of(plan, cols), at = 0;
    const PlanEntry *master = plan_master(plan, param, &at);
    Value           *kept = kept_value(plan, graph, param, codes);
    for (int64_t row = 0; row < param->type.dim[0]; row += rows) {
        int64_t left = param->type.dim[0] - row;
        Value  *staged = add_arrival(plan, graph, param, row, rows < left ? rows : left);
        TRY(keep_piece(graph, staged, kept, row * cols));
        if (master) TRY(keep_piece(graph, staged, lasting(graph, master, VALUE_STATE), at + row * cols));
    }
    return !codes->of || --codes->of->missing > 0 ? OK : end_coded(options, plan, graph, codes->of);
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
    const Param *const *params = find_params(context->arena, plan);
    const Codes        *codes = find_codes(context->arena, plan, params);
    const Waiting      *waiting = find_tiled(context->arena, plan, params);
    for (int i = 0; i < plan->num_params; i++) TRY(load_param(context->options, plan, graph, plan->params[i], codes, waiting));
    *out_graph = graph;
    return OK;
}
