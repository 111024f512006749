/* optimise: the optimizer's program over flat buffers. One node a bucket takes the norm of its gradients, one updates its weights;
 * a table of segments says which elements are which parameter. Clipping and the finite check are inside the update, so that a
 * bad step touches nothing: every bucket sees the norm of all gradients. */
#include "ops/attrs.h"
#include "ops/ops.h"
#include "passes/pass.h"

static Value *flat_value(Graph *graph, ValueKind kind, const char *name, DType dtype, int64_t numel)
{
    TensorType type = type_make(dtype, 1, numel);
    return graph_add_value(graph, kind, name, &type);
}

/* The squared norm of all gradients: the sum of the buckets' in order. */
static Status norm_of(const Plan *plan, Graph *graph, Value *const *grads, Value **out)
{
    for (int i = 0; i < plan->num_buckets; i++) {
        Node  *node;
        Value *in[] = { grads[i] };
        TRY(graph_add_node(graph, &op_sum_squares, NULL, "norm2", in, 1, ~0u, &node));
        if (i > 0) {
            Value *sum_in[] = { *out, node->out[0] };
            TRY(graph_add_node(graph, &op_add, NULL, "norm2", sum_in, 2, ~0u, &node));
        }
        *out = node->out[0];
    }
    return OK;
}

/* What all buckets' updates read. */
typedef struct Shared {
    Value *norm2, *loss, *hyper, *step;
} Shared;

static Status update_bucket(const CompileOptions *options, const Plan *plan, Graph *graph, int index, Value *grads,
                            const Shared *shared, Node **out)
{
    const Bucket *bucket = &plan->buckets[index];
    bool          wide = bucket->master != NULL;
    AdamwAttrs    attrs = { .beta1 = options->beta1, .beta2 = options->beta2, .eps = options->adam_eps,
                            .weight_decay = options->weight_decay, .max_grad_norm = options->max_grad_norm,
                            .stochastic = bucket->weight == DT_BF16 && !wide };
    TensorType    segments = type_make(DT_I64, 2, (int64_t)bucket->count, (int64_t)4);
    Value        *table = graph_add_value(graph, VALUE_CONST, index ? arena_printf(graph->arena, "segments.%d", index + 1) : "segments",
                                          &segments);
    table->const_data = plan->segments + bucket->first;
    Value *in[] = {
        flat_value(graph, VALUE_PARAM, bucket->weights, bucket->weight, bucket->numel), grads,
        flat_value(graph, VALUE_STATE, bucket->m, options->moment_dtype, bucket->numel),
        flat_value(graph, VALUE_STATE, bucket->v, options->moment_dtype, bucket->numel),
        shared->norm2, shared->loss, shared->hyper, shared->step, table,
        wide ? flat_value(graph, VALUE_STATE, bucket->master, options->master_dtype, bucket->numel) : NULL,
    };
    return graph_add_node(graph, &op_adamw, &attrs, "update", in, 10, wide ? ~0u : 0xFu, out);
}

static Status add_result(Graph *graph, const Shared *shared, Value *applied)
{
    TensorType type = type_make(DT_F32, 2, (int64_t)RESULT_ROWS, (int64_t)RESULT_COUNT);
    Value     *ring = graph_add_value(graph, VALUE_STATE, "results", &type);
    ring->space = SPACE_HOST;
    Value *in[] = { shared->loss, shared->norm2, applied, shared->step, ring };
    return graph_add_node(graph, &op_step_result, NULL, "result", in, 5, ~0u, NULL);
}

Status pass_optimise(PassContext *context, Graph **out_graph)
{
    const Plan *plan = context->plan;
    Graph      *graph = graph_create(context->arena, program_kind_name(context->kind), op_table, OP_COUNT);
    FAIL_IF(!plan->num_trained, ERR_INVALID, "nothing to train: no parameter is trained");
    Value **grads = arena_array(context->arena, Value *, plan->num_buckets);
    for (int i = 0; i < plan->num_buckets; i++)
        grads[i] = flat_value(graph, VALUE_GRAD, plan->buckets[i].grads, plan->buckets[i].grad, plan->buckets[i].numel);
    Shared shared = { .loss = flat_value(graph, VALUE_STATE, "loss.sum", DT_F32, 1),
                      .hyper = flat_value(graph, VALUE_INPUT, "hyper", DT_F32, HYPER_COUNT),
                      .step = flat_value(graph, VALUE_INPUT, "step", DT_I64, STEP_COUNT) };
    TRY(norm_of(plan, graph, grads, &shared.norm2));
    Node *update = NULL;
    for (int i = 0; i < plan->num_buckets; i++)
        TRY(update_bucket(context->options, plan, graph, i, grads[i], &shared, &update));
    Value *applied = update->out[3]; /* the same of all */
    TRY(add_result(graph, &shared, applied));
    graph_add_output(graph, "loss", shared.loss);
    graph_add_output(graph, "norm2", shared.norm2);
    graph_add_output(graph, "applied", applied);
    *out_graph = graph;
    return OK;
}
