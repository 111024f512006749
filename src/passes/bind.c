/* bind: the module becomes a graph for this program's shapes, with only the outputs that the program is run for. */
#include "ops/ops.h"
#include "passes/compile.h"
#include "passes/scalars.h"

#include <string.h>

/* The longest sequence of the programs with a cache, or of the programs without one; 0: there are no such programs. */
static int64_t longest_sequence(const CompileOptions *options, bool with_cache)
{
    int64_t longest = 0;
    for (int i = 0; i < options->num_programs; i++) {
        const ProgramSpec *spec = &options->programs[i];
        int64_t            len = spec->entry->is_cached ? options->cache_len : spec->seq;
        if (spec->entry->is_cached == with_cache && len > longest) longest = len;
    }
    return longest;
}

/* A program without gradients has no dropout. */
static void remove_dropout(Graph *graph)
{
    for (Node *node = graph->first, *next; node; node = next) {
        next = node->next;
        if (node->op != &op_dropout) continue;
        graph_replace_uses(graph, node->out[0], node->in[0], NULL);
        graph_remove_node(graph, node);
    }
}

/* Rows of the table in which the op looks up an index; 0: it looks up none. */
static int64_t table_of(const Node *node)
{
    if (node->op == &op_embedding || node->op == &op_lm_head_loss) return node->in[1]->type.dim[0];
    if (node->op == &op_lm_head_loss_bwd) return node->in[2]->type.dim[0]; /* after fusing only this node may be left */
    return node->op == &op_cross_entropy || node->op == &op_pick ? type_cols(&node->in[0]->type) : 0;
}

int64_t compile_index_bound(const Plan *plan, const char *input)
{
    int64_t least = INT64_MAX;
    for (int i = 0; i < plan->num_programs; i++) {
        const Value *value = plan->programs[i].graph ? graph_find(plan->programs[i].graph, input) : NULL;
        for (const Use *use = value ? value->first_use : NULL; use; use = use->next) {
            int64_t rows = use->node ? table_of(use->node) : 0;
            if (rows && rows < least) least = rows;
        }
    }
    return least;
}

/* Checks that whole numbers are only looked up, so that the caller's values can be checked against the table's rows. */
static Status check_index(const PassContext *context, const OwnInput *own, const Node *node)
{
    int64_t     rows = node ? table_of(node) : 0;
    const char *file = ir_module_declaring(context->module, own->name)->file;
    bool        ignores = own->pad == IGNORE_INDEX && rows && node->op != &op_embedding;
    if (node && node->op == &op_label_mask) return OK; /* op label_mask takes any numbers */
    FAIL_IF(!rows, ERR_UNSUPPORTED, "%s: %s reads the input %s; whole numbers go to embedding, cross_entropy, pick and label_mask alone",
            file, node ? node->op->name : "an output", own->name);
    FAIL_IF(!ignores && (own->pad < 0 || own->pad >= rows), ERR_INVALID, "%s: inputs: %s is padded with %d; %s expects 0 to %lld%s", file,
            own->name, own->pad, node->op->name, (long long)rows - 1, node->op == &op_embedding ? "" : ", or -100");
    return OK;
}

static Status check_own_inputs(const PassContext *context, const Graph *graph)
{
    for (int i = 0; i < context->module->num_inputs; i++) {
        const OwnInput *own = &context->module->inputs[i];
        const Value    *value = graph_find(graph, own->name);
        if (!value || !value->first_use) continue;
        FAIL_IF(context->program->spec.entry->is_cached, ERR_UNSUPPORTED,
                "%s: the logits need the input %s, which nobody gives where text is generated", context->file, own->name);
        for (const Use *use = value->first_use; use && own->dtype == DT_I32; use = use->next) TRY(check_index(context, own, use->node));
    }
    return OK;
}

/* Binds the module for these shapes and the program's output. */
static Status bind_shapes(PassContext *context, int64_t batch, int64_t seq, Graph **graph)
{
    const CompileOptions *options = context->options;
    const Entry          *entry = context->program->spec.entry;
    /* max_len: one rotary table serves all programs of the session. reach: rows that are trained or evaluated decide it, even if generated
     * samples are longer: generating must not change what the run trains. */
    int64_t     rows = longest_sequence(options, false), cache = longest_sequence(options, true);
    BindOptions bind = {
        .graph_name = context->program->name,
        .batch = batch,
        .seq = seq,
        .max_len = rows > cache ? rows : cache,
        .reach = rows ? rows : cache,
        .dtype = options->model_dtype,
        .max_layers = options->max_layers,
        .ops = op_table,
        .num_ops = OP_COUNT,
    };
    TRY(ir_program_bind(context->arena, context->module, context->config, context->config_name, &bind, entry->output, graph));
    if (!entry->has_grads) remove_dropout(*graph);
    FAIL_IF(!graph_output(*graph, entry->output), ERR_INVALID, "%s: the graph has no output \"%s\", which %s needs", context->file,
            entry->output, program_spec_name(&context->program->spec));
    return OK;
}

static void keep_output(Graph *graph, const char *name)
{
    Value *value = graph_output(graph, name);
    graph_clear_outputs(graph);
    graph_add_output(graph, name, value);
}

static Status add_top(const PassContext *context, Graph *graph, Value *logits)
{
    TopkAttrs attrs = {.k = context->options->top};
    Node     *node;
    FAIL_IF(!logits, ERR_INVALID, "%s: the graph has no output \"logits\", whose likeliest tokens %s tells", context->file,
            context->program->spec.entry->name);
    TRY(graph_add_node(graph, &op_log_softmax, NULL, "top.log_p", &logits, 1, ~0u, &node));
    TRY(graph_add_node(graph, &op_topk, &attrs, "top", node->out, 1, ~0u, &node));
    graph_add_output(graph, "top_logprobs", node->out[0]);
    graph_add_output(graph, "top_ids", node->out[1]);
    return OK;
}

Status bind_probe(PassContext *context, int64_t batch, int64_t seq, Graph **out_graph)
{
    TRY(bind_shapes(context, batch, seq, out_graph));
    keep_output(*out_graph, context->program->spec.entry->output);
    remove_dead_nodes(*out_graph);
    return OK;
}

Status pass_bind(PassContext *context, Graph **graph)
{
    const CompileOptions *options = context->options;
    const ProgramSpec    *spec = &context->program->spec;
    FAIL_IF(!context->module, ERR_INVALID,
            "it makes the graph of a model, and this is a graph already; surogate ir run.yaml --after bind prints "
            "a model's");
    TRY(bind_shapes(context, spec->batch, spec->seq, graph));
    Value *scalars[MOST_SCALARS];
    bool   tells = entry_makes_steps(spec->entry);
    if (tells) TRY(scalars_make(context, *graph, scalars));
    Value *logits = graph_output(*graph, "logits");
    keep_output(*graph, spec->entry->output);
    if (spec->entry->tells_top) TRY(add_top(context, *graph, logits));
    for (int i = 0; tells && i < context->plan->num_scalars; i++) graph_add_output(*graph, context->plan->scalars[i].name, scalars[i]);
    for (Node *node = (*graph)->first; node; node = node->next)
        if (node->op->set_dense) node->op->set_dense(node, options->dense && !spec->entry->mixes_documents);
    for (int i = 0; i < (*graph)->num_params; i++) (*graph)->params[i]->trained &= options->train_base;
    remove_dead_nodes(*graph);
    return check_own_inputs(context, *graph);
}
