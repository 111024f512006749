/* optimise: the optimizer's program over flat buffers. One node takes the norm of all gradients, one updates all weights; a
 * table of segments says which elements are which parameter. Clipping and the finite check are inside the update, so that a
 * bad step touches nothing. */
#include "ops/attrs.h"
#include "ops/ops.h"
#include "passes/pass.h"

Status pass_optimise(PassContext *context, Graph **out_graph)
{
    const CompileOptions *options = context->options;
    Plan                 *plan = context->plan;
    Graph                *graph = graph_create(context->arena, program_kind_name(context->kind), op_table, OP_COUNT);
    FAIL_IF(!plan->num_trained, ERR_INVALID, "nothing to train: no parameter is trained");
    int64_t    numel = plan->flat_numel;
    TensorType weight = type_make(options->model_dtype, 1, numel), moment = type_make(options->moment_dtype, 1, numel);
    TensorType master = type_make(options->master_dtype, 1, numel), one = type_make(DT_F32, 1, (int64_t)1);
    TensorType step = type_make(DT_I64, 1, (int64_t)STEP_COUNT), hyper = type_make(DT_F32, 1, (int64_t)HYPER_COUNT);
    TensorType segments = type_make(DT_I64, 2, (int64_t)plan->num_trained, (int64_t)4);
    Value     *w = graph_add_value(graph, VALUE_PARAM, "weights", &weight);
    Value     *g = graph_add_value(graph, VALUE_GRAD, "grads", &weight);
    Value     *loss = graph_add_value(graph, VALUE_STATE, "loss.sum", &one);
    Value     *table = graph_add_value(graph, VALUE_CONST, "segments", &segments);
    table->const_data = plan->segments;
    Node  *norm;
    Value *norm_in[] = { g };
    TRY(graph_add_node(graph, &op_sum_squares, NULL, "norm2", norm_in, 1, ~0u, &norm));
    bool       wide = options->master_weights;
    AdamwAttrs attrs = { .beta1 = options->beta1, .beta2 = options->beta2, .eps = options->adam_eps,
                         .weight_decay = options->weight_decay, .max_grad_norm = options->max_grad_norm,
                         .stochastic = options->model_dtype == DT_BF16 && !wide };
    Value     *in[] = {
                w, g, graph_add_value(graph, VALUE_STATE, "adam.m", &moment), graph_add_value(graph, VALUE_STATE, "adam.v", &moment),
                norm->out[0], loss, graph_add_value(graph, VALUE_INPUT, "hyper", &hyper), graph_add_value(graph, VALUE_INPUT, "step", &step),
                table, wide ? graph_add_value(graph, VALUE_STATE, "master", &master) : NULL,
    };
    Node *update;
    TRY(graph_add_node(graph, &op_adamw, &attrs, "update", in, 10, wide ? ~0u : 0xFu, &update));
    graph_add_output(graph, "loss", loss);
    graph_add_output(graph, "norm2", norm->out[0]);
    graph_add_output(graph, "applied", update->out[3]);
    *out_graph = graph;
    return OK;
}
