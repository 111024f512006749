/* load: the program that runs once, as weights arrive. Each parameter arrives in pieces of whole rows, as fp32, which holds every number of
 * a file (f64 is rounded to it). A piece is a staged value. Nodes convert its rows to the parameter's dtype and, if there is a master copy,
 * from fp32 to the copy's dtype. A parameter that is kept in another format arrives whole, since its scales may depend on all of it; one
 * node makes its codes and scales.
 *
 * Nothing else runs while weights arrive, so staged values use the memory of activations. A piece is as large as the other programs'
 * activations, so that loading takes no memory of its own. If activations are tiny beside the weights, a piece is a small part of the
 * weights. */
#include "ops/attrs.h"
#include "ops/infer.h"
#include "ops/lowbit/fp8_tiles.h"
#include "ops/ops.h"
#include "passes/pass.h"

#include <string.h>

enum {
    MOST_BYTES = 64 << 20, /* most bytes of a piece */
    MOST_PIECES = 4096,    /* about how many pieces all weights make, if they are large beside the activations */
    BLOCK = 64,            /* a piece has a multiple of this many elements, except a parameter's last piece */
};

/* A weight from which something is made once all of it has arrived. Either `scaled` or `coded` is set. */
typedef struct Whole {
    const ScaledTensor *scaled; /* the weight is in FP8 */
    const CodedWeight  *coded;
    const char         *name;
    TensorType          type;        /* type of the weight as it arrives */
    bool                codes_alone; /* only codes are kept of the weight */
    bool                is_staged;   /* the weight is assembled in staged memory: no rank keeps it whole */
    int                 missing;     /* parameters that haven't arrived yet */
} Whole;

/* A parameter's place in a Whole. */
typedef struct Member {
    Whole  *whole; /* NULL: nothing more is made of the parameter */
    int64_t row;   /* rows of the weight before the parameter's first row */
} Member;

typedef struct Load {
    const CompileOptions *options;
    Plan                 *plan;
    Graph                *graph;
    const Param         **params;  /* by index of a plan entry: the parameter whose values or codes the entry holds */
    Member               *members; /* by index of a plan entry: the place in a Whole of the entry's parameter */
} Load;

/* The number of rows of a piece is a multiple of this. */
static int64_t least_rows(int64_t cols)
{
    return cols % BLOCK ? BLOCK : 1;
}

/* Rows of a piece. */
static int64_t rows_of(const Plan *plan, int64_t cols)
{
    int64_t bytes = plan->region_bytes[SPACE_DEVICE][REGION_ACTIVATIONS], part = dtype_bytes(DT_F32, plan->total_numel) / MOST_PIECES;
    int64_t few = least_rows(cols), most = min_i64(max_i64(bytes, part), MOST_BYTES);
    return max_i64(few, most / dtype_bytes(DT_F32, cols) / few * few);
}

/* Converts elements [lo, hi) of the parameter into `kept`, from its element `at` on. `staged` holds the parameter's elements from `first`
 * on. */
static Status keep_part(Graph *graph, Value *staged, int64_t first, int64_t lo, int64_t hi, Value *kept, int64_t at)
{
    CastAttrs  attrs = {.dtype = DTYPE_TO_ATTR(kept->type.dtype)};
    TensorType type = type_make(staged->type.dtype, 1, hi - lo);
    Value     *part = staged;
    Node      *node;
    if (hi - lo < type_numel(&staged->type)) {
        part = graph_add_value(graph, VALUE_STAGED, arena_printf(graph->arena, "part.%s", staged->name), &type);
        value_place_in(part, staged, lo - first);
    }
    TRY(graph_add_node(graph, &op_cast, &attrs, "kept", &part, 1, ~0u, &node));
    value_place_in(node->out[0], kept, at);
    return OK;
}

/* The value of this name in the graph; if the graph has none, the plan's value is added. */
static Value *lasting(const Load *l, const char *name)
{
    Value *value = graph_find(l->graph, name);
    if (value) return value;
    const PlanEntry *entry = plan_find(l->plan, name);
    value = graph_add_value(l->graph, entry->place.region == REGION_WEIGHTS ? VALUE_PARAM : VALUE_STATE, name, &entry->type);
    value->space = entry->place.space;
    return value;
}

static bool is_divided(const Load *l, const char *name, const TensorType *whole)
{
    return plan_held(l->plan, name).numel < type_numel(whole);
}

/* Keeps this rank's piece of a staged value under this name. */
static Status keep_share(const Load *l, Value *whole, const char *name)
{
    PlanPiece  held = plan_held(l->plan, name);
    TensorType type = type_make(whole->type.dtype, 1, held.numel);
    Node      *node;
    if (!held.numel) return OK;
    Value *piece = graph_add_value(l->graph, VALUE_STAGED, arena_printf(l->graph->arena, "made.%s.piece", name), &type);
    value_place_in(piece, whole, held.first);
    TRY(graph_add_node(l->graph, &op_copy, NULL, "kept", &piece, 1, ~0u, &node));
    value_place_in(node->out[0], lasting(l, name), 0);
    return OK;
}

/* Keeps `made` under this name. If ranks divide the value, only this rank's piece is kept; then all of `made` goes into `whole` from
 * element `at` on (NULL: into staged memory of its own). */
static Status keep_made(const Load *l, Value *made, const char *name, Value *whole, int64_t at)
{
    CHECK(plan_held(l->plan, name).value);
    if (!is_divided(l, name, &made->type)) {
        value_place_in(made, lasting(l, name), 0);
        return OK;
    }
    Value *own = graph_add_value(l->graph, VALUE_STAGED, arena_printf(l->graph->arena, "made.%s", name), &made->type);
    Value *all = graph_add_value(l->graph, VALUE_STAGED, arena_printf(l->graph->arena, "made.%s.all", name), &made->type);
    if (whole) value_place_in(own, whole, at);
    value_place_in(all, own, 0);
    value_place_in(made, all, 0);
    return keep_share(l, own, name);
}

/* Adds a node and keeps those of its outputs that some program reads, under these names; a name may be NULL. */
static Status keep_outputs(const Load *l, const OpDef *op, const void *attrs, const char *label, Value *const *in, int num_in,
                           const char *const *names, int count)
{
    uint32_t want = 0;
    Node    *node;
    for (int k = 0; k < count; k++) want |= (uint32_t)(names[k] && plan_find(l->plan, names[k])) << k;
    if (!want) return OK;
    TRY(graph_add_node(l->graph, op, attrs, label, in, num_in, want, &node));
    for (int k = 0; k < count; k++)
        if (want >> k & 1) TRY(keep_made(l, node->out[k], names[k], NULL, 0));
    return OK;
}

/* Index of the plan entry that holds the parameter, or its codes. */
static int64_t entry_of(const Load *l, const Param *param)
{
    const char *name = param->format ? weight_part_name(l->graph->arena, param->format, param->name, 0) : param->name;
    return plan_find(l->plan, name) - l->plan->entries;
}

/* Sets up the weight that consists of these parameters. */
static void add_whole(const Load *l, Whole *whole, const char *const *names, int count)
{
    int64_t rows = 0;
    for (int k = 0; k < count; k++) {
        int64_t      entry = plan_find(l->plan, names[k]) - l->plan->entries;
        const Param *param = l->params[entry];
        l->members[entry] = (Member){whole, rows};
        rows += param->type.dim[0];
        whole->type = param->type;
    }
    if (count) whole->type.dim[0] = rows;
    whole->missing = count;
    whole->is_staged = whole->codes_alone || (count && is_divided(l, whole->name, &whole->type));
}

static void find_wholes(Load *l)
{
    const Plan *plan = l->plan;
    Whole      *whole = arena_array(l->graph->arena, Whole, plan->num_scaled + plan->num_coded + 1);
    l->params = arena_array(l->graph->arena, const Param *, plan->num_entries + 1);
    l->members = arena_array(l->graph->arena, Member, plan->num_entries + 1);
    for (int i = 0; i < plan->num_params; i++) l->params[entry_of(l, plan->params[i])] = plan->params[i];
    for (int i = 0; i < plan->num_scaled; i++, whole++) {
        const ScaledTensor *scaled = &plan->scaled[i];
        bool                alone = scaled->codes && strcmp(scaled->codes, scaled->name) == 0;
        *whole = (Whole){.scaled = scaled, .name = scaled->name, .codes_alone = alone};
        add_whole(l, whole, scaled->params, scaled->num_params);
    }
    for (int i = 0; i < plan->num_coded; i++, whole++) {
        const CodedWeight *coded = &plan->coded[i];
        *whole = (Whole){.coded = coded, .name = coded->name, .codes_alone = true};
        add_whole(l, whole, coded->params, coded->num_params);
    }
}

/* The value in which a weight, or a part of one, is assembled from its parameters: its lasting value, or a staged one. */
static Value *put_together(const Load *l, const char *name, const TensorType *type, bool is_staged)
{
    if (!is_staged) return lasting(l, name);
    name = arena_printf(l->graph->arena, "whole.%s", name);
    Value *value = graph_find(l->graph, name);
    return value ? value : graph_add_value(l->graph, VALUE_STAGED, name, type);
}

static Value *whole_weight(const Load *l, const Whole *whole)
{
    return put_together(l, whole->name, &whole->type, whole->is_staged);
}

/* The staged value in which codes (part 0) or tile scales (part 1) of several parameters are assembled; NULL: ranks don't divide the kept
 * value. */
static Value *whole_part(const Load *l, const Whole *whole, int part, const TensorType *of)
{
    const char *name = part ? whole->coded->scale : whole->coded->name;
    TensorType  type = *of;
    type.dim[0] = part ? div_up(whole->type.dim[0], FP8_TILE) : whole->type.dim[0];
    return is_divided(l, name, &type) ? put_together(l, name, &type, true) : NULL;
}

/* Makes the values that products read beside the codes of a weight in tiles: codes of the transpose, and padded scales. `last`: the node
 * that made the codes of the parameter that arrived last. */
static Status turn_tiles(const Load *l, const Whole *whole, const Node *last)
{
    const CodedWeight *coded = whole->coded;
    Value             *in[] = {last->out[0], last->out[1]};
    for (int k = 0; k < 2 && coded->num_params > 1; k++) {
        in[k] = whole_part(l, whole, k, &last->out[k]->type);
        if (!in[k]) in[k] = lasting(l, k ? coded->scale : coded->name);
    }
    return keep_outputs(l, &op_fp8_tiles_turn, NULL, "turned", in, 2, &coded->made[MADE_TURNED], MADE_COUNT - MADE_TURNED);
}

/* Adds the value in which rows [row, row + rows) of the parameter arrive. */
static Value *add_arrival(const Load *l, const Param *param, int64_t row, int64_t rows)
{
    TensorType type = param->type;
    type.dtype = DT_F32;
    type.dim[0] = rows;
    Value *staged = graph_add_value(l->graph, VALUE_STAGED, arena_printf(l->graph->arena, "arriving.%s", param->name), &type);
    l->plan->arrivals[l->plan->num_arrivals++] = (Arrival){param, row * (type_numel(&type) / rows), staged};
    return staged;
}

static Status load_quantised(const Load *l, const Param *param)
{
    const WeightFormat *format = param->format;
    const Member       *member = &l->members[entry_of(l, param)];
    Whole              *whole = member->whole;
    Value              *staged = add_arrival(l, param, 0, param->type.dim[0]);
    Node               *node;
    TRY(graph_add_node(l->graph, format->quantise, format->attrs, "kept", &staged, 1, ~0u, &node));
    for (int k = 0; k < format->num_parts; k++) {
        const TensorType *type = &node->out[k]->type;
        Value            *part = whole && whole->coded->num_params > 1 ? whole_part(l, whole, k, type) : NULL;
        int64_t           row = k ? member->row / FP8_TILE : member->row;
        const char       *name = weight_part_name(l->graph->arena, format, param->name, k);
        TRY(keep_made(l, node->out[k], name, part, row * type_cols(type)));
    }
    return whole && --whole->missing == 0 ? turn_tiles(l, whole, node) : OK;
}

/* Makes codes of a whole weight in FP4, or of its transpose. */
static Status make_fp4_codes(const Load *l, const Whole *whole, bool transposed)
{
    Value     *weight = whole_weight(l, whole);
    Nvfp4Attrs attrs = {.two_d = true,
                        .transposed = transposed,
                        .four_six = l->options->precision.fp4_four_six,
                        .tiled = whole->coded->is_tiled[transposed]};
    int        first = transposed ? MADE_TURNED : MADE_CODES, end = transposed ? MADE_PADDED : MADE_TURNED;
    return keep_outputs(l, &op_nvfp4_quantise, &attrs, "fp4", &weight, 1, &whole->coded->made[first], end - first);
}

/* Makes the weight's FP8 codes, with a scale from its own values. */
static Status make_fp8_codes(const Load *l, const Whole *whole)
{
    Graph              *graph = l->graph;
    const ScaledTensor *scaled = whole->scaled;
    Fp8OwnScaleAttrs    own = {.dtype = DTYPE_TO_ATTR(scaled->dtype), .margin = l->options->precision.margin};
    Fp8QuantiseAttrs    quantise = {.dtype = DTYPE_TO_ATTR(scaled->dtype)};
    TensorType          one = type_make(DT_F32, 1, INT64_C(4));
    const char         *names[] = {scaled->codes, scaled->transposed};
    Value              *in[] = {whole_weight(l, whole), NULL};
    Node               *node;
    in[1] = graph_add_value(graph, VALUE_STATE, arena_printf(graph->arena, "fp8.scale.%s", scaled->name), &one);
    value_place_in(in[1], lasting(l, PRECISION_SCALES), (scaled - l->plan->scaled) * 4);
    TRY(graph_add_node(graph, &op_fp8_own_scale, &own, "fp8.scale", in, 2, ~0u, &node));
    in[1] = node->out[0];
    return keep_outputs(l, &op_fp8_quantise, &quantise, "fp8.codes", in, 2, names, 2);
}

/* Makes the codes of a weight once all of it has arrived, and keeps this rank's share of the weight itself. */
static Status end_whole(const Load *l, const Whole *whole)
{
    if (whole->is_staged && !whole->codes_alone) TRY(keep_share(l, whole_weight(l, whole), whole->name));
    if (whole->scaled) return make_fp8_codes(l, whole);
    TRY(make_fp4_codes(l, whole, false));
    return make_fp4_codes(l, whole, true);
}

/* Adds the value in which a parameter is kept, as a member of its whole weight, from which codes are made later. Returns its name. */
static const char *keep_in_whole(const Load *l, const Param *param, const Member *of)
{
    const char *name = arena_printf(l->graph->arena, "kept.%s", param->name);
    Value      *whole = whole_weight(l, of->whole), *member = graph_add_value(l->graph, whole->kind, name, &param->type);
    value_place_in(member, whole, of->row * type_cols(&param->type));
    return name;
}

enum { MOST_KEPT = 2 }; /* the weight, and its master copy */

/* Lists the pieces of a divided parameter that this rank keeps: of its weight, and of its master copy if a program has one. Returns their
 * number. */
static int list_pieces(const Plan *plan, const Param *param, PlanPiece out[MOST_KEPT])
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

/* Lists the pieces of a parameter that the rank keeps whole: of its weight, and of its master copy. Returns their number. */
static int list_whole(const Load *l, const Param *param, const Member *of, PlanPiece out[MOST_KEPT])
{
    int64_t          numel = type_numel(&param->type), at = 0;
    const PlanEntry *master = plan_master(l->plan, param, &at);
    const char      *name = of->whole ? keep_in_whole(l, param, of) : lasting(l, param->name)->name;
    out[0] = (PlanPiece){name, 0, numel, 0};
    if (master) out[1] = (PlanPiece){master->name, 0, numel, at};
    return master ? 2 : 1;
}

/* Loads the rows of the parameter that contain elements of these pieces. */
static Status load_pieces(const Load *l, const Param *param, const PlanPiece *kept, int count)
{
    int64_t cols = type_numel(&param->type) / param->type.dim[0], rows = rows_of(l->plan, cols), few = least_rows(cols);
    int64_t begin = type_numel(&param->type), end = 0;
    for (int k = 0; k < count; k++) {
        begin = min_i64(begin, kept[k].first);
        end = max_i64(end, kept[k].first + kept[k].numel);
    }
    for (int64_t row = begin / cols / few * few; row * cols < end; row += rows) {
        Value  *staged = add_arrival(l, param, row, min_i64(rows, param->type.dim[0] - row));
        int64_t first = row * cols;
        for (int k = 0; k < count; k++) {
            int64_t lo = max_i64(kept[k].first, first), hi = min_i64(kept[k].first + kept[k].numel, first + type_numel(&staged->type));
            Value  *home = lasting(l, kept[k].value);
            if (lo < hi) TRY(keep_part(l->graph, staged, first, lo, hi, home, kept[k].at + lo - kept[k].first));
        }
    }
    return OK;
}

static Status load_param(const Load *l, const Param *param)
{
    PlanPiece     kept[MOST_KEPT];
    int           index;
    const Bucket *bucket = plan_bucket(l->plan, param, &index);
    if (param->format) return load_quantised(l, param);
    if (bucket && l->plan->world > 1) return load_pieces(l, param, kept, list_pieces(l->plan, param, kept));
    const Member *member = &l->members[entry_of(l, param)];
    Whole        *whole = member->whole;
    bool          divided = !whole && is_divided(l, param->name, &param->type);
    int           count = divided ? list_pieces(l->plan, param, kept) : list_whole(l, param, member, kept);
    TRY(load_pieces(l, param, kept, count));
    return whole && --whole->missing == 0 ? end_whole(l, whole) : OK;
}

Status pass_load(PassContext *context, Graph **out_graph)
{
    Plan *plan = context->plan;
    Load  l = {.options = context->options, .plan = plan};
    int   count = 0;
    l.graph = *out_graph = graph_create(context->arena, context->program->name, op_table, OP_COUNT);
    for (int i = 0; i < plan->num_params; i++) {
        const TensorType *type = &plan->params[i]->type;
        int64_t           rows = rows_of(plan, type_numel(type) / type->dim[0]);
        count += (int)div_up(type->dim[0], rows);
    }
    plan->arrivals = arena_array(plan->arena, Arrival, count + 1);
    plan->num_arrivals = 0;
    find_wholes(&l);
    for (int i = 0; i < plan->num_params; i++) TRY(load_param(&l, plan->params[i]));
    return OK;
}
