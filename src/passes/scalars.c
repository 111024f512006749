#include "passes/scalars.h"

#include "ops/ops.h"
#include "passes/pass.h"

#include <math.h>
#include <string.h>

/* *out: the sum of `values` over the step's trained tokens, divided by the number of these tokens. */
static Status add_mean(Graph *graph, const char *name, Value *values, Value **out)
{
    Value *in[] = {values, graph_find(graph, "hyper")};
    return pass_add(graph, &op_loss_sum, NULL, name, in, 2, out);
}

/* The share of the step's trained tokens whose label was the likeliest token; only made if token losses come from cross_entropy. */
static Status make_accuracy(Graph *graph, const char *name, Value **out)
{
    Value *losses = graph_output(graph, "losses");
    Node  *loss = losses ? losses->producer : NULL;
    if (!loss || loss->op != &op_cross_entropy || !graph_find(graph, "hyper")) return OK;
    ((CrossEntropyAttrs *)loss->attrs)->hits = true;
    if (!loss->out[2]) TRY(node_want_output(graph, loss, 2, "hits"));
    graph->source = loss->source;
    TRY(add_mean(graph, name, loss->out[2], out));
    graph->source = NULL;
    return OK;
}

/* The mean square of token losses; only made if the loss is their mean, and nothing else. */
static Status make_spread(Graph *graph, const char *name, Value **out)
{
    Value      *losses = graph_output(graph, "losses"), *loss = graph_output(graph, "loss");
    const Node *sum = loss ? loss->producer : NULL;
    Value      *square;
    if (!losses || !sum || sum->op != &op_loss_sum || sum->in[0] != losses || sum->in[2]) return OK;
    Value *in[] = {losses, losses};
    TRY(pass_add(graph, &op_mul, NULL, "losses.square", in, 2, &square));
    return add_mean(graph, name, square, out);
}

static double finish_spread(double mean_square, double loss)
{
    double variance = mean_square - loss * loss;
    return variance < 0 ? 0 : sqrt(variance);
}

/* Scalars that the engine makes itself. build leaves *out NULL if the model can't have the scalar. */
static const struct {
    const char *name;
    Status (*build)(Graph *graph, const char *name, Value **out);
    double (*finish)(double sum, double loss);
} table[] = {
    {"accuracy", make_accuracy, NULL},
    {"loss_spread", make_spread, finish_spread},
};
enum { TABLE_COUNT = sizeof table / sizeof *table };

const char *scalar_state(Arena *arena, const char *name)
{
    return arena_printf(arena, "%s.sum", name);
}

/* Whether an output of the module, other than the loss, is a single number. */
static bool is_scalar(const NamedValue *output)
{
    const Value *value = output->value;
    return strcmp(output->name, "loss") != 0 && value->producer && value->type.dtype == DT_F32 && value->type.ndim == 1 &&
           value->type.dim[0] == 1;
}

static Status unknown(const PassContext *context, const Graph *graph, const char *name)
{
    StrBuf text = {0};
    for (int i = 0; i < TABLE_COUNT; i++)
        FAIL_IF(strcmp(table[i].name, name) == 0, ERR_INVALID,
                "log_scalars: %s is told where the loss is the mean cross entropy of tokens, which it isn't here; remove it", name);
    for (int i = 0; i < graph->num_outputs; i++)
        if (is_scalar(&graph->outputs[i])) strbuf_printf(&text, ", %s", graph->outputs[i].name);
    for (int i = 0; i < TABLE_COUNT; i++) strbuf_printf(&text, ", %s", table[i].name);
    Status status =
        status_fail(ERR_INVALID, "log_scalars: %s has no number named %s; expected some of%s", context->file, name, strbuf_cstr(&text) + 1);
    strbuf_deinit(&text);
    return status;
}

/* The module's own output of that name, f32 (1). It is copied if it has other readers: micro-steps add up in the scalar's memory, while the
 * other readers need this micro-step's value. */
static Status own_output(Graph *graph, const char *name, Value **out)
{
    for (int i = 0; i < graph->num_outputs && !*out; i++)
        if (is_scalar(&graph->outputs[i]) && strcmp(graph->outputs[i].name, name) == 0) *out = graph->outputs[i].value;
    return *out && (*out)->num_uses != 1 ? pass_add(graph, &op_copy, NULL, name, out, 1, out) : OK;
}

static Status add_scalar(const PassContext *context, Graph *graph, const char *name, bool must, Value **out)
{
    Plan   *plan = context->plan;
    Scalar *scalar = &plan->scalars[plan->num_scalars];
    Value  *value = NULL;
    for (int i = 0; i < plan->num_scalars; i++)
        if (strcmp(plan->scalars[i].name, name) == 0) return OK;
    *scalar = (Scalar){.name = name, .state = scalar_state(context->arena, name)};
    TRY(own_output(graph, name, &value));
    for (int i = 0; i < TABLE_COUNT && !value; i++) {
        if (strcmp(table[i].name, name) != 0) continue;
        TRY(table[i].build(graph, name, &value));
        scalar->finish = table[i].finish;
    }
    if (!value && must) return unknown(context, graph, name);
    if (!value) return OK;
    FAIL_IF(plan->num_scalars == MOST_SCALARS, ERR_INVALID, "log_scalars: %s is one too many; expected at most %d with accuracy", name,
            MOST_SCALARS);
    out[plan->num_scalars++] = value;
    return OK;
}

Status scalars_make(const PassContext *context, Graph *graph, Value *out[MOST_SCALARS])
{
    const CompileOptions *options = context->options;
    context->plan->num_scalars = 0; /* each micro-step fills the list with the same scalars */
    for (size_t i = 0; i < options->scalars.count; i++) TRY(add_scalar(context, graph, options->scalars.items[i], true, out));
    for (int i = 0; i < graph->num_outputs && context->module->objective; i++)
        if (is_scalar(&graph->outputs[i])) TRY(add_scalar(context, graph, graph->outputs[i].name, true, out));
    return options->accuracy ? add_scalar(context, graph, "accuracy", false, out) : OK;
}
