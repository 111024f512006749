/* mark_seen: records which tokens occur in prompts, for penalties (`sample` counts tokens of the text). A prompt may be read in several
 * runs; the first run, at position 0, clears the slot. If a sequence is read again, its text follows its prompt: tokens of the text are
 * counted, as when they were chosen. */
#include "ops/sample/mark_seen.h"

#include "ops/infer.h"

/* tokens i32 (B,T), starts i32 (B): position of a row's first token in its sequence, last i32 (B): index of a row's last token, slots
 * i32 (B), seen i32 (S,V), [text_starts i32 (B): position of a sequence's first token of text] -> seen' in place. A slot outside [0, S)
 * marks an idle row. */
static Status mark_seen_infer(Node *node)
{
    TRY(infer_input(node, MARK_SEEN_TOKENS, "tokens", DT_SET(DT_I32), DIMS(-1, -1)));
    int64_t rows = node->in[MARK_SEEN_TOKENS]->type.dim[0];
    TRY(infer_input(node, MARK_SEEN_STARTS, "starts", DT_SET(DT_I32), DIMS(rows)));
    TRY(infer_input(node, MARK_SEEN_LAST, "last", DT_SET(DT_I32), DIMS(rows)));
    TRY(infer_input(node, MARK_SEEN_SLOTS, "slots", DT_SET(DT_I32), DIMS(rows)));
    TRY(infer_input(node, MARK_SEEN_SEEN, "seen", DT_SET(DT_I32), DIMS(-1, -1)));
    if (node->in[MARK_SEEN_TEXT_STARTS]) TRY(infer_input(node, MARK_SEEN_TEXT_STARTS, "text_starts", DT_SET(DT_I32), DIMS(rows)));
    FAIL_IF(rows > UINT16_MAX, ERR_INVALID, "%lld rows, expected at most %d", (long long)rows, UINT16_MAX);
    node->out[0]->type = node->in[MARK_SEEN_SEEN]->type;
    return OK;
}

/* Assumes that all rows begin, so that their slots are cleared. */
static OpCost mark_seen_cost(const Node *node)
{
    int64_t rows = node->in[MARK_SEEN_TOKENS]->type.dim[0], cols = type_cols(&node->out[0]->type);
    return (OpCost){.bytes = (double)type_bytes(&node->in[MARK_SEEN_TOKENS]->type) + 4.0 * (double)(rows * cols)};
}

static void mark_seen_task(void *context, int64_t b, int worker)
{
    const KernelArgs *args = context;
    const TensorView *tokens = &args->in[MARK_SEEN_TOKENS], *seen = &args->out[0];
    const int32_t    *row = (const int32_t *)tokens->data + b * type_cols(&tokens->type);
    int64_t           slot = ((const int32_t *)args->in[MARK_SEEN_SLOTS].data)[b], cols = type_cols(&seen->type);
    int64_t           count = min_i64(type_cols(&tokens->type), ((const int32_t *)args->in[MARK_SEEN_LAST].data)[b] + INT64_C(1));
    const int32_t    *texts = args->in[MARK_SEEN_TEXT_STARTS].data;
    int64_t           start = ((const int32_t *)args->in[MARK_SEEN_STARTS].data)[b], prompt = texts ? texts[b] - start : count;
    (void)worker;
    if (slot < 0 || slot >= seen->type.dim[0]) return;
    uint32_t *own = (uint32_t *)seen->data + slot * cols;
    if (start == 0) memset(own, 0, (size_t)cols * sizeof *own);
    for (int64_t t = 0; t < count; t++) {
        if (row[t] < 0 || row[t] >= cols) continue;
        if (t < prompt)
            own[row[t]] |= SAMPLE_IN_PROMPT;
        else
            own[row[t]]++;
    }
}

static Status mark_seen_cpu(const KernelArgs *args)
{
    pool_run(args->pool, args->in[MARK_SEEN_TOKENS].type.dim[0], mark_seen_task, (void *)args);
    return OK;
}

const OpDef op_mark_seen = {
    .id = OP_MARK_SEEN,
    .name = "mark_seen",
    .synopsis = "seen[slots[b]] = 0 if starts[b] is 0; then for each t up to last[b], seen[slots[b], tokens[b,t]] |= 2^31, and "
                "+= 1 if starts[b] + t >= text_starts[b]",
    .num_in = 6,
    .num_out = 1,
    .min_in = 5,
    .alias = {{.out = 0, .in = MARK_SEEN_SEEN}},
    .num_alias = 1,
    .infer = mark_seen_infer,
    .cost = mark_seen_cost,
    .cpu = {{DT_SET_FLOAT, mark_seen_cpu, "reference"}},
    .holds = {[MARK_SEEN_SLOTS] = HOLDS_SLOTS, [MARK_SEEN_SEEN] = HOLDS_SEEN},
    .samples = "i32[4,7] below=45, i32[4] below=2, i32[4] below=8, i32[4] below=5, i32[5,40] below=9\n"
               "i32[3,1] below=5, i32[3] below=2, i32[3] below=1, i32[3] below=3, i32[3,5] below=9\n"
               "i32[4,9] below=7, i32[4] below=3, i32[4] below=9, i32[4] below=5, i32[5,6] below=9, i32[4] below=10\n",
    .large = "i32[8,2000] below=32001, i32[8] below=2, i32[8] below=2000, i32[8] below=9, i32[9,32001] below=9\n",
};
