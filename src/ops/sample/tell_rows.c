/* tell_rows: writes what a decoding step chose to a ring buffer in host memory, so that the host can read it while the next step runs.
 * One entry per run, with one row per sequence. */
#include "ops/infer.h"

enum { IN_STEP, IN_RING, IN_IDS, IN_LOGPROBS, IN_BEST_IDS, IN_BEST_LOGPROBS };

/* step i64 (STEP_COUNT), ring i32 (R,N,C), ids i32 (B), logprobs f32 (B,2), best_ids i32 (B,n), best_logprobs f32 (B,n) -> ring' in
 * place. Row b of entry step[STEP_RUN] mod R becomes: the id, the bits of 2 logprobs, n best ids, the bits of n best logprobs. */
static Status tell_rows_infer(Node *node)
{
    TRY(infer_input(node, IN_STEP, "step", DT_SET(DT_I64), DIMS(STEP_COUNT)));
    TRY(infer_input(node, IN_RING, "ring", DT_SET(DT_I32), DIMS(-1, -1, -1)));
    TRY(infer_input(node, IN_IDS, "ids", DT_SET(DT_I32), DIMS(-1)));
    const TensorType *ring = &node->in[IN_RING]->type;
    int64_t           rows = node->in[IN_IDS]->type.dim[0];
    TRY(infer_input(node, IN_LOGPROBS, "logprobs", DT_SET_F32, DIMS(rows, 2)));
    TRY(infer_input(node, IN_BEST_IDS, "best_ids", DT_SET(DT_I32), DIMS(rows, -1)));
    int64_t best = node->in[IN_BEST_IDS]->type.dim[1];
    TRY(infer_input(node, IN_BEST_LOGPROBS, "best_logprobs", DT_SET_F32, DIMS(rows, best)));
    FAIL_IF(ring->dim[1] < rows || ring->dim[2] != 3 + 2 * best, ERR_INVALID,
            "tell_rows: an entry of the ring is (%lld,%lld); expected at least %lld rows of %lld", (long long)ring->dim[1],
            (long long)ring->dim[2], (long long)rows, (long long)(3 + 2 * best));
    node->out[0]->type = *ring;
    return OK;
}

static OpCost tell_rows_cost(const Node *node)
{
    return (OpCost){.bytes = 8 * (double)(node->in[IN_IDS]->type.dim[0] * node->in[IN_RING]->type.dim[2])};
}

static Status tell_rows_cpu(const KernelArgs *args)
{
    const int64_t *dim = args->in[IN_RING].type.dim;
    int64_t        rows = args->in[IN_IDS].type.dim[0], best = args->in[IN_BEST_IDS].type.dim[1];
    uint64_t       entry = (uint64_t)((const int64_t *)args->in[IN_STEP].data)[STEP_RUN] % (uint64_t)dim[0];
    for (int64_t b = 0; b < rows; b++) {
        int32_t *out = (int32_t *)args->out[0].data + ((int64_t)entry * dim[1] + b) * dim[2];
        out[0] = ((const int32_t *)args->in[IN_IDS].data)[b];
        memcpy(out + 1, (const float *)args->in[IN_LOGPROBS].data + 2 * b, 2 * sizeof *out);
        memcpy(out + 3, (const int32_t *)args->in[IN_BEST_IDS].data + b * best, (size_t)best * sizeof *out);
        memcpy(out + 3 + best, (const float *)args->in[IN_BEST_LOGPROBS].data + b * best, (size_t)best * sizeof *out);
    }
    return OK;
}

const OpDef op_tell_rows = {
    .id = OP_TELL_ROWS,
    .name = "tell_rows",
    .synopsis = "ring[step mod R, b] = the id chosen for row b, its log-probabilities, and the likeliest ids with theirs",
    .num_in = 6,
    .num_out = 1,
    .min_in = 6,
    .alias = {{.out = 0, .in = IN_RING}},
    .num_alias = 1,
    .infer = tell_rows_infer,
    .cost = tell_rows_cost,
    .cpu = {{DT_SET_FLOAT, tell_rows_cpu, "reference"}},
    .samples = "i64[4] below=99, i32[4,5,9] below=1000, i32[2] below=1000, [2,2], i32[2,3] below=1000, [2,3]\n",
};
