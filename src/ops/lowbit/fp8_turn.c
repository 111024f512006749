/* fp8_turn: transposes FP8 codes under one scale. An op that makes codes of its result row by row leaves the transposed layout to this op,
 * which moves one byte an element each way. */
#include "ops/lowbit/fp8_rows.h"

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

enum { EDGE = 64 }; /* a task transposes EDGE rows, EDGE columns at a time */

typedef struct Turn {
    const uint8_t *codes;
    int64_t        rows, cols;
    uint8_t       *out;
} Turn;

static void turn_task(void *context, int64_t task, int worker)
{
    const Turn *t = context;
    int64_t     first = task * EDGE, end = min_i64(t->rows, first + EDGE);
    (void)worker;
    for (int64_t col = 0; col < t->cols; col += EDGE)
        for (int64_t c = col; c < min_i64(t->cols, col + EDGE); c++)
            for (int64_t r = first; r < end; r++) t->out[c * t->rows + r] = t->codes[r * t->cols + c];
}

void codes_turn(ThreadPool *pool, const uint8_t *codes, int64_t rows, int64_t cols, uint8_t *out)
{
    Turn turn = {codes, rows, cols, out};
    pool_run(pool, div_up(rows, EDGE), turn_task, &turn);
}

static Status fp8_turn_cpu(const KernelArgs *args)
{
    const TensorType *type = &args->in[0].type;
    codes_turn(args->pool, args->in[0].data, type_rows(type), type_cols(type), args->out[0].data);
    return OK;
}

const OpDef op_fp8_turn = {
    .id = OP_FP8_TURN,
    .name = "fp8_turn",
    .synopsis = "codes_t = the transpose of FP8 codes",
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
