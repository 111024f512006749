/* bind: the module becomes a graph for this program's shapes, with only the outputs that the program is run for. */
#include "ops/ops.h"
#include "passes/pass.h"

#include <string.h>

/* The wanted output of each kind; all others go, and with them what only they need. */
static const char *const wanted[PROGRAM_KIND_COUNT] = {
    [PROGRAM_MICRO_FIRST] = "loss", [PROGRAM_MICRO_NEXT] = "loss", [PROGRAM_EVAL] = "losses",
    [PROGRAM_PREFILL] = "logits",   [PROGRAM_DECODE] = "logits",
};

Status pass_bind(PassContext *context, Graph **graph)
{
    const CompileOptions *options = context->options;
    FAIL_IF(!context->module, ERR_INVALID,
            "it makes the graph of a model, and this is a graph already; surogate ir run.yaml --after bind prints "
            "a model's");
    BindOptions bind = {
        .graph_name = program_kind_name(context->kind),
        .batch = options->batch,
        .seq = options->seq,
        .dtype = options->model_dtype,
        .max_layers = options->max_layers,
        .ops = op_table,
        .num_ops = OP_COUNT,
    };
    if (context->kind == PROGRAM_EVAL) {
        bind.batch = options->eval_batch;
        bind.seq = options->eval_seq;
    } else if (context->kind == PROGRAM_PREFILL || context->kind == PROGRAM_DECODE) {
        bind.batch = options->cache_batch;
        bind.seq = context->kind == PROGRAM_DECODE ? 1 : options->prefill_chunk;
    }
    /* One rotary table serves all programs of the session. */
    bind.max_len = options->seq;
    if (options->programs & (1u << PROGRAM_EVAL) && options->eval_seq > bind.max_len) bind.max_len = options->eval_seq;
    if (options->programs & (1u << PROGRAM_PREFILL | 1u << PROGRAM_DECODE) && options->cache_len > bind.max_len)
        bind.max_len = options->cache_len;
    TRY(ir_module_bind(context->arena, context->module, context->config, context->config_name, &bind, graph));
    const char *want = wanted[context->kind];
    Value      *value = graph_output(*graph, want);
    FAIL_IF(!value, ERR_INVALID, "%s: the graph has no output \"%s\", which %s needs", context->file, want,
            program_kind_name(context->kind));
    graph_clear_outputs(*graph);
    graph_add_output(*graph, want, value);
    for (Node *node = (*graph)->first; node; node = node->next)
        if (node->op->set_dense) node->op->set_dense(node, options->dense && context->kind != PROGRAM_EVAL);
    for (int i = 0; i < (*graph)->num_params; i++) (*graph)->params[i]->trained = options->train_base;
    remove_dead_nodes(*graph);
    return OK;
}
