/* head: for entries without a model: a bare matrix. Rows of hidden states come in, of each its logits are made and an id is chosen, and the
 * ids are told to the host in a ring that it reads while later runs go on. */
#include "ops/ops.h"
#include "ops/products/head_rows.h"
#include "ops/sample/sample.h"
#include "passes/pass.h"

/* Rows of logits begin where they can be read 16 bytes at once. */
enum { WHOLE_COLUMNS = 8 };

static Value *add_value(Graph *graph, ValueKind kind, const char *name, TensorType type)
{
    return graph_add_value(graph, kind, name, &type);
}

/* The logits of each row. */
static Status add_product(Graph *graph, const HeadOptions *head, const ProgramSpec *spec, Value **out)
{
    const char *hidden = arena_printf(graph->arena, HEAD_HIDDEN "%s", dtype_info(spec->hidden)->name);
    Value      *in[HEAD_BIAS + 1] = {0};
    Node       *node;
    in[HEAD_X] = add_value(graph, VALUE_INPUT, hidden, type_make(spec->hidden, 2, spec->batch, head->dim));
    in[HEAD_W] = add_value(graph, VALUE_PARAM, HEAD_WEIGHT, type_make(head->dtype, 2, head->vocab, head->dim));
    if (head->dtype == DT_I8) in[HEAD_SCALE] = add_value(graph, VALUE_PARAM, HEAD_WEIGHT_SCALE, type_make(DT_F32, 1, head->vocab));
    if (head->has_bias) in[HEAD_BIAS] = add_value(graph, VALUE_PARAM, HEAD_WEIGHT_BIAS, type_make(DT_F32, 1, head->vocab));
    const HeadRowsAttrs attrs = {.round = WHOLE_COLUMNS};
    TRY(graph_add_node(graph, &op_head_rows, &attrs, "logits", in, HEAD_BIAS + 1, ~0u, &node));
    *out = node->out[0];
    return OK;
}

/* An id of each row; nothing else of the choice is wanted. */
static Status add_choice(Graph *graph, const HeadOptions *head, int64_t rows, Value *logits, Value **out)
{
    Value      *in[SAMPLE_IN_BIAS + 1] = {0};
    Node       *node;
    SampleAttrs attrs = {.vocab = head->vocab};
    in[SAMPLE_IN_LOGITS] = logits;
    in[SAMPLE_IN_CONTROLS] = graph_add_feed(graph, FEED_CONTROLS, rows, SAMPLE_CONTROLS);
    in[SAMPLE_IN_KEYS] = graph_add_feed(graph, FEED_KEYS, rows, SAMPLE_KEYS);
    in[SAMPLE_IN_SLOTS] = graph_add_feed(graph, FEED_SLOTS, rows, 1);
    in[SAMPLE_IN_NEXT] = add_value(graph, VALUE_STATE, DECODE_NEXT, type_make(DT_I32, 1, head->rows));
    TRY(graph_add_node(graph, &op_sample, &attrs, "chosen", in, SAMPLE_IN_BIAS + 1, 1u << SAMPLE_OUT_IDS | 1u << SAMPLE_OUT_NEXT, &node));
    *out = node->out[SAMPLE_OUT_IDS];
    return OK;
}

Status pass_head(PassContext *context, Graph **graph)
{
    const HeadOptions *head = &context->options->head;
    const ProgramSpec *spec = &context->program->spec;
    Value             *logits, *ids, *told;
    *graph = graph_create(context->arena, context->program->name, op_table, OP_COUNT);
    graph_set_rows_alone(*graph);
    TRY(add_product(*graph, head, spec, &logits));
    TRY(add_choice(*graph, head, spec->batch, logits, &ids));
    told = add_value(*graph, VALUE_STATE, HEAD_TOLD, type_make(DT_I32, 2, (int64_t)HEAD_RING, head->rows));
    told->space = SPACE_HOST;
    Value *in[] = {add_value(*graph, VALUE_STATE, HEAD_RUN, type_make(DT_I64, 1, INT64_C(1))), told, ids};
    return graph_add_node(*graph, &op_tell_ids, NULL, "told", in, 3, ~0u, NULL);
}
