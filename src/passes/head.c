/* head: makes the graph of entries that have only a matrix, without a model. For each row of hidden states logits are computed and an id is
 * chosen. Ids are written to a ring in host memory, which the host reads while later runs go on. Ranks divide the matrix by rows: each
 * computes its columns of the logits, and every rank chooses from all columns. */
#include "ops/ops.h"
#include "ops/products/head_rows.h"
#include "ops/sample/sample.h"
#include "passes/pass.h"

/* Rows of logits begin where they can be read 16 bytes at once. */
enum { WHOLE_COLUMNS = 8 };

/* A piece is multiplied while the one before it is gathered. Measured for a bf16 matrix of 151,936 x 8,192 and 64 rows, on two H200: two
 * pieces 489 us, three 467, four 526. */
enum { PIECES = 3 };

static Value *add_value(Graph *graph, ValueKind kind, const char *name, TensorType type)
{
    return graph_add_value(graph, kind, name, &type);
}

int head_pieces(int world)
{
    return world > 1 ? PIECES : 1;
}

int64_t head_share(int64_t vocab, int world)
{
    int64_t parts = (int64_t)world * head_pieces(world), share = (vocab + parts - 1) / parts;
    return world == 1 ? vocab : (share + WHOLE_COLUMNS - 1) / WHOLE_COLUMNS * WHOLE_COLUMNS;
}

static Value *add_part(Graph *graph, ValueKind kind, const char *name, int piece, TensorType type)
{
    return add_value(graph, kind, piece ? arena_printf(graph->arena, "%s.%d", name, piece) : name, type);
}

/* The columns of the logits that a piece of the matrix, of `share` rows, makes. */
static Status add_product(Graph *graph, const HeadOptions *head, Value *hidden, int piece, int64_t share, Value **out)
{
    Value *in[HEAD_BIAS + 1] = {hidden};
    in[HEAD_W] = add_part(graph, VALUE_PARAM, HEAD_WEIGHT, piece, type_make(head->dtype, 2, share, head->dim));
    if (head->dtype == DT_I8) in[HEAD_SCALE] = add_part(graph, VALUE_PARAM, HEAD_WEIGHT_SCALE, piece, type_make(DT_F32, 1, share));
    if (head->has_bias) in[HEAD_BIAS] = add_part(graph, VALUE_PARAM, HEAD_WEIGHT_BIAS, piece, type_make(DT_F32, 1, share));
    const HeadRowsAttrs attrs = {.round = WHOLE_COLUMNS};
    return pass_add(graph, &op_head_rows, &attrs, "logits", in, HEAD_BIAS + 1, out);
}

/* All columns of the logits. Ranks exchange the columns of one piece while the next piece is multiplied. */
static Status add_logits(Graph *graph, const HeadOptions *head, const ProgramSpec *spec, int world, Value **out)
{
    const char *name = arena_printf(graph->arena, HEAD_HIDDEN "%s", dtype_info(spec->hidden)->name);
    Value      *hidden = add_value(graph, VALUE_INPUT, name, type_make(spec->hidden, 2, spec->batch, head->dim)), *whole = NULL;
    int64_t     share = head_share(head->vocab, world);
    int         pieces = head_pieces(world);
    if (world == 1) return add_product(graph, head, hidden, 0, share, out);
    for (int p = 0; p < pieces; p++) {
        const GatherColsAttrs attrs = {.ranks = world, .cols = share * world * pieces, .first = share * world * p};
        Value                *in[] = {NULL, whole};
        Node                 *node;
        TRY(add_product(graph, head, hidden, p, share, &in[0]));
        TRY(graph_add_node(graph, &op_gather_cols, &attrs, "whole", in, 2, ~0u, &node));
        node->stream = STREAM_COMM;
        whole = node->out[0];
    }
    *out = whole;
    return OK;
}

/* Chooses an id for each row; the other outputs of op sample aren't wanted. */
static Status add_choice(Graph *graph, const HeadOptions *head, int64_t rows, Value *logits, Value **out)
{
    Value      *in[NODE_MAX_IN];
    Node       *node;
    SampleAttrs attrs = {.vocab = head->vocab};
    sampling_inputs(graph, logits, rows, head->rows, in);
    TRY(graph_add_node(graph, &op_sample, &attrs, "chosen", in, SAMPLE_NUM_IN, 1u << SAMPLE_OUT_IDS | 1u << SAMPLE_OUT_NEXT, &node));
    *out = node->out[SAMPLE_OUT_IDS];
    return OK;
}

Status pass_head(PassContext *context, Graph **graph)
{
    const HeadOptions *head = &context->options->head;
    const ProgramSpec *spec = &context->program->spec;
    Value             *logits, *ids, *told;
    int                world = context->options->world > 1 ? context->options->world : 1;
    *graph = graph_create(context->arena, context->program->name, op_table, OP_COUNT);
    graph_set_rows_alone(*graph);
    TRY(add_logits(*graph, head, spec, world, &logits));
    TRY(add_choice(*graph, head, spec->batch, logits, &ids));
    told = add_value(*graph, VALUE_STATE, HEAD_TOLD, type_make(DT_I32, 2, (int64_t)HEAD_RING, head->rows));
    told->space = SPACE_HOST;
    Value *in[] = {add_value(*graph, VALUE_STATE, HEAD_RUN, type_make(DT_I64, 1, INT64_C(1))), told, ids};
    return graph_add_node(*graph, &op_tell_ids, NULL, "told", in, 3, ~0u, NULL);
}
