/* cache: for entries with a KV cache. Attention appends this run's keys and values to the cache and attends over all of it. An entry of one
 * token computes logits for only one token of each row (input `row`: the last true token of a chunk). Tokens are chosen from the logits in
 * sampling.c. */
#include "ops/ops.h"
#include "passes/pass.h"

static Status use_cache(Graph *graph, Node *node, const CacheShape *shape)
{
    Node *cached;
    pass_work_at(graph, node);
    graph->source = NULL;
    Status status = node->op->cached(graph, node, shape, &cached);
    if (status != OK) return node->source ? status_prefix(status, "%s", node->source) : status;
    graph->cursor = NULL;
    graph_replace_uses(graph, node->out[0], cached->out[0], node);
    graph_remove_node(graph, node);
    return OK;
}

enum { MAX_OVER = 4 };

/* Whether the value is the same for all tokens: a weight, a constant or the result of a node without inputs, with an element for each
 * column or a single one. */
static bool is_for_all(const Value *value)
{
    bool lasts = value->producer ? !value->producer->num_in : value->kind == VALUE_PARAM || value->kind == VALUE_CONST;
    return lasts && type_numel(&value->type) == type_cols(&value->type);
}

/* Whether the node may stand between the head's product and the logits: it works element by element, and its other inputs are the same for
 * all tokens. */
static bool is_over_head(const Node *node)
{
    if (!node || !node->op->by_element || !type_equal(&node->out[0]->type, &node->in[0]->type)) return false;
    for (int i = 1; i < node->num_in; i++)
        if (node->in[i] && !is_for_all(node->in[i])) return false;
    return true;
}

/* The nodes that make the logits: the head's product, and element-wise nodes over it, the last one first. */
typedef struct Head {
    Node *product, *over[MAX_OVER];
    int   num_over;
} Head;

static Status find_head(const PassContext *context, Graph *graph, Head *out)
{
    Value *logits = graph_output(graph, "logits");
    Node  *node = logits ? logits->producer : NULL;
    *out = (Head){0};
    for (; is_over_head(node) && out->num_over < MAX_OVER; node = node->in[0]->producer) out->over[out->num_over++] = node;
    FAIL_IF(
        !node || node->op != &op_linear, ERR_UNSUPPORTED,
        "%s: \"logits\" isn't a linear layer's output, perhaps behind up to %d ops that work on each logit by itself, with weights beside "
        "it; generation needs that",
        context->file, MAX_OVER);
    out->product = node;
    return OK;
}

/* Makes the logits anew. If entry->one_token is set, only one token of each row gets logits. If a token is chosen from the logits, they are
 * in fp32, in which the product sums them. */
static Status make_logits(const PassContext *context, Graph *graph, const Head *head)
{
    Value       *logits = graph_output(graph, "logits"), *x = head->product->in[0], *value;
    Node        *last = logits->producer;
    LinearAttrs  attrs = *(const LinearAttrs *)head->product->attrs;
    const Entry *entry = context->program->spec.entry;
    graph->layer = -1;
    graph->part = PART_NONE;
    graph->cursor = last;
    if (entry->one_token) {
        Value *in[] = {x, graph_add_feed(graph, FEED_ROW, context->program->spec.batch, 1)};
        TRY(pass_add(graph, &op_gather_row, NULL, "last_row", in, 2, &x));
    }
    if (entry->chooses) attrs.dtype = DTYPE_TO_ATTR(DT_F32);
    Value *head_in[] = {x, head->product->in[1], head->product->in[2]};
    TRY(pass_add(graph, &op_linear, &attrs, "last_logits", head_in, 3, &value));
    for (int i = head->num_over - 1; i >= 0; i--) {
        Node  *over = head->over[i];
        Value *in_over[NODE_MAX_IN] = {value};
        for (int k = 1; k < over->num_in; k++) in_over[k] = over->in[k];
        const char *name = arena_printf(graph->arena, "last_%s", over->out[0]->name);
        TRY(pass_add(graph, over->op, over->attrs, name, in_over, over->num_in, &value));
    }
    graph->cursor = NULL;
    graph_replace_uses(graph, logits, value, last);
    for (int i = 0; i < head->num_over; i++) graph_remove_node(graph, head->over[i]);
    graph_remove_node(graph, head->product);
    return OK;
}

static CacheShape cache_shape(const PassContext *context, Graph *graph)
{
    int64_t rows = context->program->spec.batch;
    return (CacheShape){.pages = compile_cache_pages(context->options),
                        .page_len = CACHE_PAGE_LEN,
                        .fp8 = context->options->fp8_cache,
                        .starts = graph_add_feed(graph, FEED_STARTS, rows, 1),
                        .row_pages = graph_add_feed(graph, FEED_PAGES, rows, compile_row_pages(context->options))};
}

Status pass_cache(PassContext *context, Graph **graph)
{
    const Entry *entry = context->program->spec.entry;
    TRY(check_tokens_apart(context));
    CacheShape shape = cache_shape(context, *graph);
    Head       head;
    graph_set_rows_alone(*graph);
    context->plan->latent = (PlanLatent){0}; /* each program counts anew, and finds the same layers */
    for (Node *node = (*graph)->first, *next; node; node = next) {
        next = node->next;
        bool done = false;
        if (node->op->cached) TRY(cache_latent(context, *graph, node, &shape, &done));
        if (node->op->cached && !done) TRY(use_cache(*graph, node, &shape));
    }
    if (context->plan->latent.layers) remove_dead_nodes(*graph); /* removes the nodes that made whole keys and values */
    if (entry->one_token || entry->chooses) TRY(find_head(context, *graph, &head));
    if (entry->one_token || entry->chooses) TRY(make_logits(context, *graph, &head));
    return entry->chooses ? add_sampling(context, *graph, &shape) : OK;
}
