/* tell_ids: writes the ids that a run chose to a ring buffer in host memory, with one entry per run, so that the host can read them
 * while later runs go on. The device counts the runs. */
#include "ops/infer.h"

enum { IN_RUN, IN_RING, IN_IDS };

/* run i64 (1), ring i32 (R,N), ids i32 (B) -> ring', run' in place: entry run mod R of the ring starts with the ids; run' = run + 1. */
static Status tell_ids_infer(Node *node)
{
    TRY(infer_input(node, IN_RUN, "run", DT_SET(DT_I64), DIMS(1)));
    TRY(infer_input(node, IN_RING, "ring", DT_SET(DT_I32), DIMS(-1, -1)));
    TRY(infer_input(node, IN_IDS, "ids", DT_SET(DT_I32), DIMS(-1)));
    const TensorType *ring = &node->in[IN_RING]->type;
    FAIL_IF(ring->dim[1] < node->in[IN_IDS]->type.dim[0], ERR_INVALID, "an entry of the ring has %lld ids; expected at least %lld",
            (long long)ring->dim[1], (long long)node->in[IN_IDS]->type.dim[0]);
    node->out[0]->type = *ring;
    node->out[1]->type = node->in[IN_RUN]->type;
    return OK;
}

static OpCost tell_ids_cost(const Node *node)
{
    return (OpCost){.bytes = 16 + 8 * (double)node->in[IN_IDS]->type.dim[0]};
}

static Status tell_ids_cpu(const KernelArgs *args)
{
    const int64_t *ring = args->in[IN_RING].type.dim;
    uint64_t       run = (uint64_t)((const int64_t *)args->in[IN_RUN].data)[0];
    int64_t        entry = (int64_t)(run % (uint64_t)ring[0]);
    if (args->out[0].data)
        memcpy((int32_t *)args->out[0].data + entry * ring[1], args->in[IN_IDS].data, (size_t)type_bytes(&args->in[IN_IDS].type));
    if (args->out[1].data) ((int64_t *)args->out[1].data)[0] = (int64_t)(run + 1);
    return OK;
}

const OpDef op_tell_ids = {
    .id = OP_TELL_IDS,
    .name = "tell_ids",
    .synopsis = "ring[run mod R] begins with the ids; run' = run + 1",
    .num_in = 3,
    .num_out = 2,
    .min_in = 3,
    .alias = {{.out = 0, .in = IN_RING}, {.out = 1, .in = IN_RUN}},
    .num_alias = 2,
    .infer = tell_ids_infer,
    .cost = tell_ids_cost,
    .cpu = {{DT_SET_FLOAT, tell_ids_cpu, "reference"}},
    .samples = "i64[1] below=99, i32[4,5] below=1000, i32[3] below=1000\n"
               "i64[1] below=99, i32[2,300] below=1000, i32[300] below=1000\n",
};
