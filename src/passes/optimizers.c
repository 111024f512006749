#include "passes/optimizers.h"

#include "ops/attrs.h"
#include "ops/ops.h"

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

/* Which elements of the bucket are which parameter, for ops that update all of it at once. */
static Value *segments_of(const Update *u)
{
    int         index = (int)(u->bucket - u->plan->buckets);
    TensorType  type = type_make(DT_I64, 2, (int64_t)u->bucket->count, (int64_t)4);
    const char *name = index ? arena_printf(u->graph->arena, "segments.%d", index + 1) : "segments";
    Value      *table = graph_add_value(u->graph, VALUE_CONST, name, &type);
    table->const_data = u->plan->segments + u->bucket->first;
    return table;
}

/* The wider copy of the weights; NULL: they are the only one. */
static Value *copy_of(const Update *u)
{
    int last = u->bucket->num_states - 1;
    return last >= 0 && u->bucket->states[last].is_copy ? u->state[last] : NULL;
}

/* ---- adamw ---- */

static AdamwAttrs adamw_settings(const Update *u)
{
    const CompileOptions *options = u->options;
    return (AdamwAttrs){ .beta1 = options->beta1, .beta2 = options->beta2, .eps = options->adam_eps,
                         .weight_decay = options->weight_decay, .max_grad_norm = options->max_grad_norm,
                         .stochastic = u->bucket->weight == DT_BF16 && !copy_of(u) };
}

static Status adamw_emit(const Update *u)
{
    AdamwAttrs attrs = adamw_settings(u);
    Node      *node;
    Value     *in[] = { u->weights, u->grads, u->state[0], u->state[1], u->norm2, u->loss, u->hyper, u->step, segments_of(u), copy_of(u) };
    return graph_add_node(u->graph, &op_adamw, &attrs, "update", in, 10, copy_of(u) ? 0x17u : 0x7u, &node);
}

static const OptimizerRule rule_adamw = {
    .name = "adamw",
    .states = { { "m", STATE_ELEMENTS, dtype_of_moments }, { "v", STATE_ELEMENTS, dtype_of_moments } },
    .emit = adamw_emit,
};

/* ---- the choice ---- */

const OptimizerRule *optimizer_rule(const CompileOptions *options, const Value *whole)
{
    (void)options, (void)whole;
    return &rule_adamw;
}

void optimizer_states(const CompileOptions *options, Bucket *bucket)
{
    const StateRule *state = bucket->rule->states;
    for (; state->name; state++)
        bucket->states[bucket->num_states++] =
            (BucketState){ .name = state->name, .dtype = state->dtype(options), .extent = state->extent };
    if (options->master_weights && dtype_info(bucket->weight)->bits < dtype_info(options->master_dtype)->bits)
        bucket->states[bucket->num_states++] =
            (BucketState){ .name = OPTIMIZER_COPY, .dtype = options->master_dtype, .extent = STATE_ELEMENTS, .is_copy = true };
}
