#include "passes/optimizers.h"

#include "base/philox.h"
#include "ops/attrs.h"
#include "ops/ops.h"
#include "passes/layout.h"

#include <string.h>

static const char *const names[OPTIMIZER_COUNT] = {
#define OPTIMIZER(id, name, help) #name,
#include "passes/optimizers.def"
#undef OPTIMIZER
};

const char *optimizer_name(OptimizerKind optimizer)
{
    return names[optimizer];
}

bool optimizer_parse(const char *name, OptimizerKind *out)
{
    for (int i = 0; i < OPTIMIZER_COUNT; i++)
        if (strcmp(names[i], name) == 0) {
            *out = (OptimizerKind)i;
            return true;
        }
    return false;
}

static DType dtype_of_moments(const CompileOptions *options)
{
    return options->moment_dtype;
}

/* The table of which elements belong to which parameter, for ops that update many parameters at once. */
static Value *segments_of(const Update *u)
{
    int         index = (int)(u->bucket - u->plan->buckets);
    TensorType  type = type_make(DT_I64, 2, (int64_t)u->num_segments, (int64_t)SEGMENT_COLUMNS);
    const char *name = index ? arena_printf(u->graph->arena, "segments.%d", index + 1) : "segments";
    Value      *table = graph_add_value(u->graph, VALUE_CONST, name, &type);
    table->const_data = u->segments;
    return table;
}

/* The master copy of the weights; NULL: there is none. */
static Value *copy_of(const Update *u)
{
    int last = u->bucket->num_states - 1;
    return last >= 0 && u->bucket->states[last].is_copy ? u->state[last] : NULL;
}

/* ---- adamw ---- */

static AdamwAttrs adamw_settings(const Update *u)
{
    const CompileOptions *options = u->options;
    return (AdamwAttrs){.beta1 = options->adamw_beta1,
                        .beta2 = options->adamw_beta2,
                        .eps = options->adamw_epsilon,
                        .weight_decay = options->weight_decay,
                        .max_grad_norm = options->max_grad_norm,
                        .stochastic = u->bucket->weight == DT_BF16 && !copy_of(u)};
}

static Status adamw_emit(const Update *u)
{
    AdamwAttrs attrs = adamw_settings(u);
    Node      *node;
    Value     *in[] = {u->weights, u->grads, u->state[0], u->state[1], u->norm2, u->loss, u->hyper, u->step, segments_of(u), copy_of(u)};
    return graph_add_node(u->graph, &op_adamw, &attrs, "update", in, 10, copy_of(u) ? 0xFu : 0x7u, &node);
}

static const OptimizerRule rule_adamw = {
    .name = "adamw",
    .states = {{.name = "m", .extent = STATE_ELEMENTS, .dtype = dtype_of_moments, .code = CODE_SIGNED},
               {.name = "v", .extent = STATE_ELEMENTS, .dtype = dtype_of_moments, .code = CODE_UNSIGNED}},
    .emit = adamw_emit,
};

/* ---- adamw_8bit ---- */

static DType fp32(const CompileOptions *options)
{
    (void)options;
    return DT_F32;
}

static DType bytes(const CompileOptions *options)
{
    (void)options;
    return DT_U8;
}

static Status adamw_8bit_emit(const Update *u)
{
    AdamwAttrs    attrs = adamw_settings(u);
    Value *const *state = u->state;
    Node         *node;
    Value        *in[] = {u->weights, u->grads, state[0], state[1], state[2],       state[3],
                          u->norm2,   u->loss,  u->hyper, u->step,  segments_of(u), copy_of(u)};
    return graph_add_node(u->graph, &op_adamw_8bit, &attrs, "update", in, 12, copy_of(u) ? 0x3Fu : 0x1Fu, &node);
}

static const OptimizerRule rule_adamw_8bit = {
    .name = "adamw_8bit",
    .states = {{.name = "m", .extent = STATE_ELEMENTS, .dtype = bytes, .code = CODE_SIGNED, .scale = 2},
               {.name = "v", .extent = STATE_ELEMENTS, .dtype = bytes, .code = CODE_UNSIGNED, .scale = 3},
               {.name = "m" OPTIMIZER_SCALE, .extent = STATE_BLOCKS, .dtype = fp32},
               {.name = "v" OPTIMIZER_SCALE, .extent = STATE_BLOCKS, .dtype = fp32}},
    .emit = adamw_8bit_emit,
};

/* ---- normuon ---- */

/* Updates each matrix of the parameter. */
static Status normuon_emit_one(const Update *u)
{
    NormuonOptions      options = u->options->normuon;
    const NormuonShared shared = {u->norm2, u->loss, u->hyper, u->step};
    const Param        *param = u->params[0];
    const int64_t      *segment = u->segments[0];
    NormuonMatrix       matrix = {.w = u->weights,
                                  .g = u->grads,
                                  .m = u->state[0],
                                  .v = u->state[1],
                                  .master = copy_of(u),
                                  .weight_decay = segment[SEGMENT_DECAY] ? u->options->weight_decay : 0,
                                  .key = segment[SEGMENT_KEY]};
    options.compute_dtype = u->bucket->weight;
    options.max_grad_norm = u->options->max_grad_norm;
    if (!param->num_matrices) return normuon_emit(u->graph, &options, &shared, &matrix);
    TRY(param_period(param, &matrix.rows.period));
    for (int i = 0; i < param->num_matrices; i++) {
        matrix.rows.size = param->matrices[i];
        matrix.key = (int64_t)philox_name_key(arena_printf(u->graph->arena, "%s.%d", param->name, i));
        TRY(normuon_emit(u->graph, &options, &shared, &matrix));
        matrix.rows.begin += matrix.rows.size;
    }
    return OK;
}

static const OptimizerRule rule_normuon = {
    .name = "normuon",
    .states = {{.name = "momentum", .extent = STATE_ELEMENTS, .dtype = dtype_of_moments},
               {.name = "row_v", .extent = STATE_ROWS, .dtype = fp32}},
    .whole = true,
    .emit = normuon_emit_one,
};

/* ---- the choice ---- */

static const OptimizerRule *choose_adamw(const Param *param)
{
    (void)param;
    return &rule_adamw;
}

static const OptimizerRule *choose_adamw_8bit(const Param *param)
{
    enum { LEAST_NUMEL = 4096 };
    return type_numel(&param->type) >= LEAST_NUMEL ? &rule_adamw_8bit : &rule_adamw;
}

static const OptimizerRule *choose_normuon(const Param *param)
{
    bool is_matrix = param->layer >= 0 && param->is_linear && param->type.ndim == 2 && !param->is_adapter;
    return is_matrix ? &rule_normuon : &rule_adamw;
}

static const OptimizerRule *(*const choices[OPTIMIZER_COUNT])(const Param *) = {
#define OPTIMIZER(id, name, help) choose_##name,
#include "passes/optimizers.def"
#undef OPTIMIZER
};

/* The rule of a value. Packed parameters have one rule: if their own rules differ, adamw, which suits all. */
const OptimizerRule *optimizer_rule(const CompileOptions *options, const Value *whole)
{
    const OptimizerRule *rule = NULL;
    for (const Value *part = NULL; (part = layout_next_param(whole, part));) {
        const OptimizerRule *its = choices[options->optimizer](part->param);
        rule = rule && its != rule ? &rule_adamw : its;
    }
    return rule;
}

void optimizer_states(const CompileOptions *options, Bucket *bucket)
{
    const StateRule *state = bucket->rule->states;
    for (; state->name; state++)
        bucket->states[bucket->num_states++] = (BucketState){
            .name = state->name, .dtype = state->dtype(options), .extent = state->extent, .code = state->code, .scale = state->scale};
    if (options->master_weights && dtype_info(bucket->weight)->bits < dtype_info(options->master_dtype)->bits)
        bucket->states[bucket->num_states++] =
            (BucketState){.name = OPTIMIZER_COPY, .dtype = options->master_dtype, .extent = STATE_ELEMENTS, .is_copy = true};
}
