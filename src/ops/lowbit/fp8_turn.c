/* fp8_turn: codes of FP8 under one scale, transposed. An op that makes codes of its result row by row leaves the other layout to this one,
 * which moves one byte a number each way. */
#include "ops/infer.h"

/* codes (...,C) -> codes_t (C, rows of codes). */
static Status fp8_turn_infer(Node *node)
{
    const TensorType *codes = &node->in[0]->type;
    char              got[64];
    FAIL_IF(!(DT_SET(codes->dtype) & DT_SET_FP8) || codes->ndim < 2, ERR_INVALID, "codes is %s, expected e4m3 or e5m2 of at least 2 dims",
            type_text(codes, got));
    node->out[0]->type = type_make(codes->dtype, 2, type_cols(codes), type_rows(codes));
    return OK;
}

static OpCost fp8_turn_cost(const Node *node)
{
    return cost_streaming(node, 0);
}

enum { EDGE = 64 }; /* a task is EDGE rows, done EDGE columns at a time */

static void turn_task(void *context, int64_t task, int worker)
{
    const KernelArgs *args = context;
    const TensorType *type = &args->in[0].type;
    const uint8_t    *codes = args->in[0].data;
    uint8_t          *out = args->out[0].data;
    int64_t           rows = type_rows(type), cols = type_cols(type), first = task * EDGE, end = min_i64(rows, first + EDGE);
    (void)worker;
    for (int64_t col = 0; col < cols; col += EDGE)
        for (int64_t c = col; c < min_i64(cols, col + EDGE); c++)
            for (int64_t r = first; r < end; r++) out[c * rows + r] = codes[r * cols + c];
}

static Status fp8_turn_cpu(const KernelArgs *args)
{
    pool_run(args->pool, div_up(type_rows(&args->in[0].type), EDGE), turn_task, (void *)args);
    return OK;
}

const OpDef op_fp8_turn = {
    .id = OP_FP8_TURN,
    .name = "fp8_turn",
    .synopsis = "the transpose of FP8 codes under one scale",
    .num_in = 1,
    .num_out = 1,
    .min_in = 1,
    .infer = fp8_turn_infer,
    .cost = fp8_turn_cost,
    .cpu = {{DT_SET_FP8, fp8_turn_cpu, "reference"}},
    .samples = "e4m3[1,1]\n"
               "e5m2[3,50]\n"
               "e4m3[2,80,144]\n"
               "e5m2[131,328]\n",
    .large = "e4m3[2,1024,1024]\n"
             "e5m2[1000,4104]\n",
};
