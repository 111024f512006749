/* chain: consecutive element-wise ops as one op (chain.h), so that results between them are never written to memory. Made by pass chain.
 * The reference kernel runs each op's own `tile` function, step by step. */
#include "ops/elementwise/chain.h"

#include "ops/elementwise/elementwise.h"

static const AttrDef chain_attrs[] = {ATTR_LIST(ChainAttrs, steps), {0}};

static const struct {
    OpId   op;
    int    operands;
    double flops; /* per element */
} codes[CHAIN_COUNT] = {
#define CHAIN(id, count, work) [CHAIN_##id] = {OP_##id, count, work},
#include "ops/elementwise/chain.def"
#undef CHAIN
};

int chain_code(const OpDef *op)
{
    int code = 0;
    while (code < CHAIN_COUNT && codes[code].op != (OpId)op->id) code++;
    return code < CHAIN_COUNT ? code : -1;
}

const OpDef *chain_op(int code)
{
    return op_table[codes[code].op];
}

/* ---- types ---- */

/* Checks that operand k of step i exists: an input, or an earlier step's result. */
static Status check_operand(const Node *node, int i, const ChainStep *step, int k)
{
    int  at = step->operand[k];
    bool wanted = k < codes[step->code].operands, input = at >= 0 && at < CHAIN_MAX_IN;
    if (at == CHAIN_NONE && (!wanted || (step->code == CHAIN_WHERE && k))) return OK;
    FAIL_IF(!wanted || at < 0 || at >= CHAIN_RESULT + i || (input && !node->in[at]), ERR_INVALID,
            "attribute steps: operand %d of step %d is %d, which isn't there", k, i, at);
    return OK;
}

static Status check_numbers(const Node *node, int i)
{
    const double *n = ((const ChainAttrs *)node->attrs)->steps.values + i * CHAIN_NUMBERS;
    for (int k = 0; k < CHAIN_NUMBERS; k++)
        FAIL_IF(k != 5 && !(n[k] >= -1 && n[k] <= 255 && n[k] == (double)(int)n[k]), ERR_INVALID,
                "attribute steps: number %d of step %d is %g, expected a whole one", k, i, n[k]);
    return OK;
}

static Status check_step(const Node *node, int i, int count, const ChainStep *step, int *out_seen)
{
    FAIL_IF(step->code < 0 || step->code >= CHAIN_COUNT, ERR_INVALID, "attribute steps: step %d is op %d, expected 0 to %d", i, step->code,
            CHAIN_COUNT - 1);
    FAIL_IF(step->dtype < 0 || step->dtype > 31 || !(DT_SET(step->dtype) & DT_SET_DECODE), ERR_INVALID,
            "attribute steps: step %d has dtype %d, expected that of f32, bf16 or f16", i, step->dtype);
    for (int k = 0; k < CHAIN_OPERANDS; k++) TRY(check_operand(node, i, step, k));
    FAIL_IF(step->out >= CHAIN_MAX_OUT || (step->out >= 0 && *out_seen >> step->out & 1) || (step->out == 0) != (i == count - 1),
            ERR_INVALID, "attribute steps: step %d is output %d; expected each output once, and output 0 as the last step", i, step->out);
    if (step->out >= 0) *out_seen |= 1 << step->out;
    return OK;
}

/* in0, [in1], ... -> out0, ... of the dims that the inputs broadcast to, each in the dtype of its step. */
static Status chain_infer(Node *node)
{
    static const char *const names[CHAIN_MAX_IN] = {"in0", "in1", "in2", "in3", "in4", "in5", "in6", "in7"};
    const ChainAttrs        *attrs = node->attrs;
    int                      count = chain_count(attrs), seen = 0;
    FAIL_IF(count < 1 || count > CHAIN_MAX_STEPS || attrs->steps.count % CHAIN_NUMBERS, ERR_INVALID,
            "attribute steps has %lld numbers, expected %d for each of 1 to %d steps", (long long)attrs->steps.count, CHAIN_NUMBERS,
            CHAIN_MAX_STEPS);
    TensorType y = {.dtype = DT_F32};
    TRY(infer_broadcast(node, CHAIN_MAX_IN, names, &y));
    for (int i = 0; i < count; i++) {
        TRY(check_numbers(node, i));
        ChainStep step = chain_step(attrs, i);
        TRY(check_step(node, i, count, &step, &seen));
        if (step.out >= 0) node->out[step.out]->type = type_as(&y, (DType)step.dtype);
    }
    return OK;
}

static OpCost chain_cost(const Node *node)
{
    const ChainAttrs *attrs = node->attrs;
    double            each = 0;
    for (int i = 0; i < chain_count(attrs); i++) each += codes[chain_step(attrs, i).code].flops;
    int k = 0;
    while (!node->out[k]) k++;
    return cost_streaming(node, each * (double)type_numel(&node->out[k]->type));
}

/* ---- kernel ---- */

enum { CHAIN_TILE = 256 };

typedef struct ChainJob {
    const KernelArgs *args;
    Broadcast         plan;
    int64_t           rows, cols, rows_each, pieces; /* a task is rows_each rows, or a piece of one row */
    int               count;
    ChainStep         steps[CHAIN_MAX_STEPS];
} ChainJob;

/* Rounds y to `dtype`, as storing it in a tensor would. */
static void round_tile(float *y, DType dtype, int64_t count)
{
    uint16_t narrow[CHAIN_TILE];
    if (dtype == DT_F32) return;
    vec_store_row(narrow, dtype, y, count);
    vec_copy_in(y, narrow, dtype, count);
}

/* Computes elements [at, at + n) of a row. offset: where the row begins in each input. */
static void chain_tile(const ChainJob *job, const int64_t *offset, int64_t row, int64_t at, int64_t n)
{
    static const float zeros[CHAIN_TILE];
    float              scratch[CHAIN_MAX_IN][CHAIN_TILE], results[CHAIN_MAX_STEPS][CHAIN_TILE];
    const float       *from[CHAIN_RESULT + CHAIN_MAX_STEPS];
    const KernelArgs  *args = job->args;
    for (int k = 0; k < CHAIN_MAX_IN; k++)
        from[k] = args->in[k].data ? broadcast_load(args, &job->plan, k, offset[k], at, n, scratch[k]) : zeros;
    for (int i = 0; i < job->count; i++) {
        const ChainStep *step = &job->steps[i];
        const float     *in[CHAIN_OPERANDS];
        for (int k = 0; k < CHAIN_OPERANDS; k++) in[k] = step->operand[k] < 0 ? zeros : from[step->operand[k]];
        chain_op(step->code)->tile(results[i], in, n, (double)step->number);
        round_tile(results[i], (DType)step->dtype, n);
        from[CHAIN_RESULT + i] = results[i];
    }
    for (int i = 0; i < job->count; i++) {
        const TensorView *y = job->steps[i].out < 0 ? NULL : &args->out[job->steps[i].out];
        if (y && y->data) tile_store(y, row * job->cols + at, results[i], n);
    }
}

enum { PER_TASK = 16 * TILE };

static void chain_task(void *context, int64_t task, int worker)
{
    const ChainJob *job = context;
    int64_t         first = task / job->pieces * job->rows_each, begin = task % job->pieces * PER_TASK;
    (void)worker;
    for (int64_t row = first; row < min_i64(job->rows, first + job->rows_each); row++) {
        int64_t offset[CHAIN_MAX_IN], end = min_i64(job->cols, begin + PER_TASK);
        for (int k = 0; k < CHAIN_MAX_IN; k++) offset[k] = broadcast_offset(&job->plan, k, row);
        for (int64_t at = begin; at < end; at += CHAIN_TILE) chain_tile(job, offset, row, at, min_i64(CHAIN_TILE, end - at));
    }
}

static Status chain_cpu(const KernelArgs *args)
{
    const TensorType *y = chain_result(args);
    ChainJob          job = {.args = args, .plan = broadcast_plan_of(args, y), .count = chain_count(args->attrs)};
    job.cols = job.plan.dim[job.plan.ndim - 1];
    job.rows = type_numel(y) / job.cols;
    job.pieces = div_up(job.cols, PER_TASK);
    job.rows_each = rows_per_task(job.cols);
    for (int i = 0; i < job.count; i++) job.steps[i] = chain_step(args->attrs, i);
    pool_run(args->pool, div_up(job.rows, job.rows_each) * job.pieces, chain_task, &job);
    return OK;
}

/* ---- descriptor ---- */

const OpDef op_chain = {
    .id = OP_CHAIN,
    .name = "chain",
    .synopsis = "element-wise ops in a row, each of inputs and earlier results, rounded as alone",
    .num_in = CHAIN_MAX_IN,
    .num_out = CHAIN_MAX_OUT,
    .min_in = 1,
    .inplace = (1u << CHAIN_MAX_IN) - 1,
    .attrs_size = sizeof(ChainAttrs),
    .attrs = chain_attrs,
    .by_row = (1u << CHAIN_MAX_IN) - 1,
    .by_element = true,
    .infer = chain_infer,
    .cost = chain_cost,
    .cpu = {{DT_SET_DECODE, chain_cpu, "reference"}},
    .holds = {[2] = HOLDS_POSITIVE},
    /* Seven numbers a step, in the order of ChainStep. The first sample is one function of one input. */
    .samples = "[9] {steps=[17, 0, 0, -1, -1, 0, 0]}\n"
               /* silu(x) y + x, where silu(x) y is an output too and rounded to bf16 */
               "[3,35,333], [3,35,333] {steps=[17, 0, 0, -1, -1, 0, 2, 2, 1, 8, 1, -1, 0, 1, 0, 0, 9, 0, -1, 0, 0]}\n"
               /* rows, with one number each: where(xy, x, z - 3 sigmoid(xy)) */
               "[70,1040], [70,1], [1] {steps=[2, 0, 0, 1, -1, 0, -1, 15, 0, 8, -1, -1, 0, -1, 21, 0, 9, -1, -1, -3, -1, 0, 0, 10,"
               "  2, -1, 0, -1, 10, 0, 8, 11, -1, 0, 0]}\n"
               "[3,9,37], [3,1,37], [1,9,1] {steps=[2, 0, 0, 1, -1, 0, -1, 15, 0, 8, -1, -1, 0, -1, 21, 0, 9, -1, -1, -3, -1, 0, 0,"
               "  10, 2, -1, 0, -1, 10, 0, 8, 11, -1, 0, 0]}\n"
               /* every function of one element */
               "[5,64], [1,64] {steps=[11, 0, 0, -1, -1, 0, 3, 12, 0, 8, -1, -1, 0, -1, 13, 0, 8, -1, -1, 0, 1, 14, 0, 9, -1, -1, 0,"
               "  -1, 16, 0, 1, 11, -1, 0, -1, 18, 0, 12, 9, -1, 0, -1, 19, 0, 9, -1, -1, 0, 2, 20, 0, 13, 14, -1, 0, -1, 22, 0, 15,"
               "  -1, -1, 3, -1, 23, 0, 16, 11, -1, 2, -1, 24, 0, 17, -1, -1, 0, 4, 25, 0, 18, 0, -1, 1, -1, 26, 0, 19, -1, -1, 1,"
               "  5, 27, 0, 20, 9, -1, 0, 0]}\n"
               /* every op of two and three operands, and a cast */
               "[2,3,1,16], [2,1,4,16], [2,3,4,16], [1] {steps=[1, 0, 0, 1, -1, 0, -1, 3, 0, 8, 2, -1, 0, 1, 4, 0, 8, 3, -1, 0, -1,"
               "  5, 0, 9, 10, -1, 0, -1, 7, 0, 11, 0, -1, 0, -1, 8, 0, 11, 1, -1, 0, -1, 9, 0, 12, 13, -1, 0, -1, 6, 0, 11, 0, 1,"
               "  1, 2, 10, 0, 14, 15, 8, 0, -1, 28, 1, 16, -1, -1, 0, 0]}\n",
    /* A gated MLP; then one number for each column; then steps in bf16, with one number for each column and each row. */
    .large = "[1,300,4096], [1,300,4096] {steps=[17, 0, 0, -1, -1, 0, 2, 2, 1, 8, 1, -1, 0, 1, 0, 0, 9, 0, -1, 0, 0]}\n"
             "[600,3072], [1,3072], [600,3072] {steps=[2, 0, 0, 1, -1, 0, -1, 15, 0, 8, -1, -1, 0, -1, 21, 0, 9, -1, -1, -3, -1,"
             "  0, 0, 10, 2, -1, 0, -1, 10, 0, 8, 11, -1, 0, 0]}\n"
             "[300,4096], [300,4096], [1,4096], [300,1] {steps=[17, 1, 0, -1, -1, 0, -1, 2, 1, 8, 1, -1, 0, 1, 0, 1, 9, 2, -1, 0,"
             "  -1, 2, 1, 10, 3, -1, 0, -1, 0, 1, 11, 8, -1, 0, 0]}\n",
};
