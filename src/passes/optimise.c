/* optimise: the optimizer's program over flat buffers. One node for each bucket computes the norm of its gradients; the bucket's rule
 * updates its weights (updates.c). Clipping and the check for finite values are part of the update, which reads the norm of all gradients:
 * so a bad step changes no bucket. */
#include "ops/lowbit/fp8.h"
#include "ops/ops.h"
#include "ops/update/step_scalars.h"
#include "passes/optimizers.h"
#include "passes/pass.h"
#include "passes/travel.h"

/* *out: the squared norm of all gradients, summed over the buckets in order. */
static Status norm_of(const Plan *plan, Graph *graph, Value *const *grads, Value **out)
{
    for (int i = 0; i < plan->num_buckets; i++) {
        Value *in[] = {*out, NULL};
        TRY(pass_add(graph, &op_sum_squares, NULL, "norm2", &grads[i], 1, i ? &in[1] : out));
        if (i) TRY(pass_add(graph, &op_add, NULL, "norm2", in, 2, out));
    }
    return OK;
}

/* Replaces loss, norm and scalars by sums over all ranks: each rank adds up the values of all ranks, in the order of ranks. */
static Status add_ranks(Update *update)
{
    Graph      *graph = update->graph;
    const Plan *plan = update->plan;
    int64_t     ranks = plan->world, count = 2 + plan->num_scalars;
    const char *names[2 + MOST_SCALARS] = {"loss", "norm2"};
    Value     **own[2 + MOST_SCALARS] = {&update->loss, &update->norm2}, *mine, *sums, *to;
    TensorType  dims = type_make(DT_F32, 2, ranks, count);
    Node       *node;
    for (int i = 0; i < plan->num_scalars; i++) {
        names[2 + i] = plan->scalars[i].name;
        own[2 + i] = &update->scalars[i];
    }
    mine = flat_value(graph, VALUE_STATE, "rank.sums", DT_F32, count);
    sums = flat_value(graph, VALUE_STATE, "sums", DT_F32, count);
    to = flat_part(graph, sums, "sums.all", 0, count);
    for (int i = 0; i < count; i++) {
        const char *name = arena_printf(graph->arena, "rank.%s", names[i]);
        Value      *part = flat_part(graph, mine, name, i, 1);
        TRY(graph_add_node(graph, &op_copy, NULL, name, own[i], 1, ~0u, &node));
        value_place_in(node->out[0], part, 0);
        *own[i] = flat_part(graph, sums, arena_printf(graph->arena, "sums.%s", names[i]), i, 1);
    }
    TRY(add_collective(graph, &op_gather, ranks, "ranks", mine, NULL, &node));
    TRY(pass_reshape(graph, "ranks", node->out[0], &dims, &node));
    TRY(graph_add_node(graph, &op_col_sum, NULL, "sums", &node->out[0], 1, ~0u, &node));
    value_place_in(node->out[0], to, 0);
    return OK;
}

/* Decides whether the step counts, and makes the scalars that the updates of all buckets read. */
static Status begin_step(Update *update, Value **out_applied, Value **out_count)
{
    StepScalarsAttrs attrs = {.beta1 = update->options->adamw_beta1, .beta2 = update->options->adamw_beta2};
    Value           *in[] = {flat_value(update->graph, VALUE_INPUT, "hyper", DT_F32, HYPER_COUNT), update->norm2, update->loss,
                             flat_value(update->graph, VALUE_STATE, OPTIMIZER_APPLIED, DT_I64, 1)};
    Node            *node;
    TRY(graph_add_node(update->graph, &op_step_scalars, &attrs, "step_scalars", in, 4, ~0u, &node));
    update->hyper = node->out[STEP_OUT_HYPER];
    *out_applied = node->out[STEP_OUT_APPLIED];
    *out_count = node->out[STEP_OUT_COUNT];
    return OK;
}

/* Makes the scales of the next step from the largest magnitudes that this step recorded. */
static Status update_scales(const Update *update, Value *applied, Value *count)
{
    const PrecisionOptions *options = &update->options->precision;
    const Plan             *plan = update->plan;
    Graph                  *graph = update->graph;
    int64_t                 num = plan->num_scaled;
    Fp8UpdateAttrs          attrs = {.margin = options->margin, .most_recent = options->most_recent};
    TensorType              history = type_make(DT_F32, 2, options->amax_history, num), scales = type_make(DT_F32, 2, num, INT64_C(4));
    float                  *numbers = arena_array(graph->arena, float, num + 1);
    Node                   *node;
    if (!num) return OK;
    for (int i = 0; i < num; i++) numbers[i] = fp8_most(plan->scaled[i].dtype);
    Value *most = flat_value(graph, VALUE_CONST, "fp8.most", DT_F32, num);
    most->const_data = numbers;
    Value *now = flat_value(graph, VALUE_STATE, PRECISION_NOW, DT_F32, num);
    if (plan->world > 1) TRY(add_largest(graph, plan->world, "fp8.now", &now, &node));
    Value *in[] = {now,
                   graph_add_value(graph, VALUE_STATE, PRECISION_HISTORY, &history),
                   graph_add_value(graph, VALUE_STATE, PRECISION_SCALES, &scales),
                   most,
                   applied,
                   count};
    return graph_add_node(graph, &op_fp8_update, &attrs, "fp8", in, 6, ~0u, NULL);
}

/* Writes the step's results to a ring in host memory. */
static Status add_result(const Update *update, Value *applied)
{
    TensorType type = type_make(DT_F32, 2, (int64_t)RESULT_ROWS, (int64_t)RESULT_SCALARS + update->plan->num_scalars);
    Value     *ring = graph_add_value(update->graph, VALUE_STATE, "results", &type);
    ring->space = SPACE_HOST;
    Value *in[NODE_MAX_IN] = {update->loss, update->norm2, applied, update->step, ring};
    int    count = 5;
    for (int i = 0; i < update->plan->num_scalars; i++) in[count++] = update->scalars[i];
    return graph_add_node(update->graph, &op_step_result, NULL, "result", in, count, ~0u, NULL);
}

Status pass_optimise(PassContext *context, Graph **out_graph)
{
    const Plan *plan = context->plan;
    Graph      *graph = graph_create(context->arena, context->program->name, op_table, OP_COUNT);
    FAIL_IF(!plan->num_trained, ERR_INVALID, "nothing to train: no parameter is trained");
    Value **grads = arena_array(context->arena, Value *, plan->num_buckets);
    for (int i = 0; i < plan->num_buckets; i++) {
        grads[i] = flat_value(graph, VALUE_GRAD, plan->buckets[i].grad_share, plan->buckets[i].grad, plan->buckets[i].share_numel);
        grads[i]->space = plan->buckets[i].grad_space; /* the norm reads gradients where they are kept */
    }
    Update update = {.options = context->options,
                     .plan = plan,
                     .graph = graph,
                     .loss = flat_value(graph, VALUE_STATE, STATE_LOSS, DT_F32, 1),
                     .step = flat_value(graph, VALUE_INPUT, "step", DT_I64, STEP_COUNT)};
    Value *applied, *count;
    for (int i = 0; i < plan->num_scalars; i++) update.scalars[i] = flat_value(graph, VALUE_STATE, plan->scalars[i].state, DT_F32, 1);
    TRY(norm_of(plan, graph, grads, &update.norm2));
    if (plan->world > 1) TRY(add_ranks(&update));
    TRY(begin_step(&update, &applied, &count));
    TRY(update_scales(&update, applied, count));
    TRY(optimizer_updates(&update, grads));
    TRY(add_result(&update, applied));
    graph_add_output(graph, "loss", update.loss);
    graph_add_output(graph, "norm2", update.norm2);
    graph_add_output(graph, "applied", applied);
    *out_graph = graph;
    return OK;
}
