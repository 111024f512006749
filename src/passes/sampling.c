/* The part of pass cache for entries that choose tokens. After the logits, the next token of each row is chosen and written to a ring in
 * host memory, which the host reads one run later; a decoding step reads that token from device memory. Each sequence has a slot, which
 * keeps the token chosen last and, if penalties are asked for, the tokens that the sequence has seen. */
#include "ops/ops.h"
#include "ops/sample/sample.h"
#include "passes/pass.h"

static Value *state_of(Graph *graph, const char *name, const TensorType *type)
{
    return graph_add_value(graph, VALUE_STATE, name, type);
}

/* Makes the embedding read tokens chosen on the device, besides those that the host gives. */
static Status read_next(Graph *graph, Value *slots, Value *next)
{
    Value *tokens = graph_find(graph, "tokens"), *in[] = {tokens, slots, next};
    Node  *node;
    if (!tokens || !tokens->first_use) return OK;
    graph->cursor = graph->first;
    TRY(graph_add_node(graph, &op_next_tokens, NULL, "next_tokens", in, 3, ~0u, &node));
    graph->cursor = NULL;
    graph_replace_uses(graph, tokens, node->out[0], node->next);
    return OK;
}

static Status mark_prompt(Graph *graph, const CacheShape *shape, int64_t rows, Value **seen)
{
    Value *slots = graph_add_feed(graph, FEED_PROMPT_SLOTS, rows, 1);
    Value *in[] = {graph_find(graph, "tokens"),
                   shape->starts,
                   graph_find(graph, "row"),
                   slots,
                   *seen,
                   graph_add_feed(graph, FEED_TEXT_STARTS, rows, 1)};
    return pass_add(graph, &op_mark_seen, NULL, "seen", in, 6, seen);
}

/* Writes the choice into a ring in host memory. */
static Status tell_host(Graph *graph, int64_t slots, const Node *chosen)
{
    TensorType ring = type_make(DT_I32, 3, (int64_t)DECODE_RING, slots, type_cols(&chosen->out[SAMPLE_OUT_BEST_IDS]->type) * 2 + 3);
    Value     *step = graph_find(graph, "step"), *told = state_of(graph, DECODE_TOLD, &ring);
    told->space = SPACE_HOST;
    Value *in[] = {step ? step : graph_add_feed(graph, FEED_STEP, 1, 1),
                   told,
                   chosen->out[SAMPLE_OUT_IDS],
                   chosen->out[SAMPLE_OUT_LOGPROBS],
                   chosen->out[SAMPLE_OUT_BEST_IDS],
                   chosen->out[SAMPLE_OUT_BEST_LOGPROBS]};
    return graph_add_node(graph, &op_tell_rows, NULL, "told", in, 6, ~0u, NULL);
}

void sampling_inputs(Graph *graph, Value *logits, int64_t rows, int64_t slots, Value *in[NODE_MAX_IN])
{
    TensorType next = type_make(DT_I32, 1, slots);
    memset(in, 0, sizeof *in * NODE_MAX_IN);
    in[SAMPLE_IN_LOGITS] = logits;
    in[SAMPLE_IN_CONTROLS] = graph_add_feed(graph, FEED_CONTROLS, rows, SAMPLE_CONTROLS);
    in[SAMPLE_IN_KEYS] = graph_add_feed(graph, FEED_KEYS, rows, SAMPLE_KEYS);
    in[SAMPLE_IN_SLOTS] = graph_add_feed(graph, FEED_SLOTS, rows, 1);
    in[SAMPLE_IN_NEXT] = state_of(graph, DECODE_NEXT, &next);
}

Status add_sampling(PassContext *context, Graph *graph, const CacheShape *shape)
{
    const SamplingOptions *options = &context->options->sampling;
    int64_t                rows = context->program->spec.batch, slots = compile_cache_rows(context->options), best = options->best;
    Value                 *logits = graph_output(graph, "logits"), *in[NODE_MAX_IN];
    TensorType             dims = type_make(DT_F32, 2, type_rows(&logits->type), type_cols(&logits->type));
    TensorType             seen = type_make(DT_I32, 2, slots, dims.dim[1]);
    Node                  *node;
    graph->layer = -1;
    graph->part = PART_NONE;
    TRY(pass_reshape(graph, "logit_rows", logits, &dims, &node)); /* logits are in fp32, as the head's product sums them */
    sampling_inputs(graph, node->out[0], rows, slots, in);
    if (options->penalties) in[SAMPLE_IN_SEEN] = state_of(graph, DECODE_SEEN, &seen);
    if (options->biases) in[SAMPLE_IN_BIAS_IDS] = graph_add_feed(graph, FEED_BIAS_IDS, rows, options->biases);
    if (options->biases) in[SAMPLE_IN_BIAS] = graph_add_feed(graph, FEED_BIASES, rows, options->biases);
    if (options->guides) in[SAMPLE_IN_GUIDES] = graph_add_feed(graph, FEED_GUIDES, rows, sample_guide_words(seen.dim[1]));
    if (!context->program->spec.entry->one_token) TRY(read_next(graph, in[SAMPLE_IN_SLOTS], in[SAMPLE_IN_NEXT]));
    if (context->program->spec.entry->one_token && options->penalties) TRY(mark_prompt(graph, shape, rows, &in[SAMPLE_IN_SEEN]));
    SampleAttrs attrs = {.vocab = options->vocab < seen.dim[1] ? options->vocab : 0, .best = best};
    TRY(graph_add_node(graph, &op_sample, &attrs, "chosen", in, SAMPLE_NUM_IN, ~0u, &node));
    return tell_host(graph, slots, node);
}
