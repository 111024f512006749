/* bind: the module becomes a graph for this program's shapes, with only the outputs that the program is run for. */
#include "ops/ops.h"
#include "passes/pass.h"

#include <string.h>

/* The wanted output of each kind; all others go, and with them what only they need. */
static const char *const wanted[PROGRAM_KIND_COUNT] = {
    [PROGRAM_MICRO_FIRST] = "loss", [PROGRAM_MICRO_NEXT] = "loss", [PROGRAM_MICRO_ONLY] = "loss", [PROGRAM_MICRO_LAST] = "loss",
    [PROGRAM_CALIBRATE] = "loss",   [PROGRAM_EVAL] = "losses",     [PROGRAM_PREFILL] = "logits",  [PROGRAM_DECODE] = "logits",
};

/* One rotary table serves all programs of the session. */
static int64_t longest_sequence(const CompileOptions *options)
{
    int64_t longest = 1;
    for (int i = 0; i < options->num_programs; i++) {
        const ProgramSpec *spec = &options->programs[i];
        bool               cached = spec->kind == PROGRAM_PREFILL || spec->kind == PROGRAM_DECODE;
        int64_t            len = cached ? options->cache_len : spec->seq;
        if (len > longest) longest = len;
    }
    return longest;
}

/* The share of the step's trained tokens whose label was the likeliest. NULL: the model's token losses aren't of a cross_entropy. */
static Status add_accuracy(Graph *graph, Value **out)
{
    Value *losses = graph_output(graph, "losses"), *hyper = graph_find(graph, "hyper");
    Node  *loss = losses ? losses->producer : NULL, *node;
    if (!loss || loss->op != &op_cross_entropy || !hyper) return OK;
    ((CrossEntropyAttrs *)loss->attrs)->hits = true;
    TRY(node_want_output(graph, loss, 2, "hits"));
    graph->source = loss->source;
    Value *in[] = {loss->out[2], hyper};
    TRY(graph_add_node(graph, &op_loss_sum, NULL, "accuracy", in, 2, ~0u, &node));
    graph->source = NULL;
    *out = node->out[0];
    return OK;
}

Status pass_bind(PassContext *context, Graph **graph)
{
    const CompileOptions *options = context->options;
    const ProgramSpec    *spec = &context->program->spec;
    FAIL_IF(!context->module, ERR_INVALID,
            "it makes the graph of a model, and this is a graph already; surogate ir run.yaml --after bind prints "
            "a model's");
    BindOptions bind = {
        .graph_name = context->program->name,
        .batch = spec->batch,
        .seq = spec->seq,
        .max_len = longest_sequence(options),
        .dtype = options->model_dtype,
        .max_layers = options->max_layers,
        .ops = op_table,
        .num_ops = OP_COUNT,
    };
    TRY(ir_module_bind(context->arena, context->module, context->config, context->config_name, &bind, graph));
    const char *want = wanted[spec->kind];
    Value      *value = graph_output(*graph, want), *accuracy = NULL;
    FAIL_IF(!value, ERR_INVALID, "%s: the graph has no output \"%s\", which %s needs", context->file, want, program_kind_name(spec->kind));
    if (options->accuracy && program_is_micro(spec->kind)) TRY(add_accuracy(*graph, &accuracy));
    value = graph_output(*graph, want);
    graph_clear_outputs(*graph);
    graph_add_output(*graph, want, value);
    if (accuracy) graph_add_output(*graph, "accuracy", accuracy);
    for (Node *node = (*graph)->first; node; node = node->next)
        if (node->op->set_dense) node->op->set_dense(node, options->dense && spec->kind != PROGRAM_EVAL);
    for (int i = 0; i < (*graph)->num_params; i++) (*graph)->params[i]->trained &= options->train_base;
    remove_dead_nodes(*graph);
    return OK;
}
