/* cross_entropy_bwd: dlogits = dloss (exp(logits - lse) - one_hot(label)) + dlse exp(logits - lse). dloss counts as 0 where the label is
 * IGNORE_INDEX. */
#include "ops/loss/cross_entropy.h"

enum { IN_DLOSSES, IN_LOGITS, IN_LABELS, IN_LSE, IN_DLSE };

/* [dlosses (...) f32], logits (...,V), labels i32 (...), lse (...) f32, [dlse (...) f32] -> dlogits of logits' type. */
static Status cross_entropy_bwd_infer(Node *node)
{
    TRY(infer_float(node, IN_LOGITS, "logits", 2));
    const TensorType *logits = &node->in[IN_LOGITS]->type;
    TensorType        rows = type_without_last(logits, DT_F32);
    FAIL_IF(!node->in[IN_DLOSSES] && !node->in[IN_DLSE], ERR_INVALID, "neither dlosses nor dlse is there, expected one or both");
    if (node->in[IN_DLOSSES]) TRY(infer_like(node, IN_DLOSSES, "dlosses", DT_SET_F32, &rows));
    TRY(infer_labels(node, IN_LABELS, logits));
    TRY(infer_like(node, IN_LSE, "lse", DT_SET_F32, &rows));
    if (node->in[IN_DLSE]) TRY(infer_like(node, IN_DLSE, "dlse", DT_SET_F32, &rows));
    node->out[0]->type = *logits;
    return OK;
}

static OpCost cross_entropy_bwd_cost(const Node *node)
{
    return cost_streaming(node, 16.0 * (double)type_numel(&node->in[IN_LOGITS]->type));
}

/* The factors `all` and `own` of a row: dlogits = all * exp(logits - lse) - own * one_hot(label). */
typedef struct RowFactors {
    float all, own;
} RowFactors;

static RowFactors row_factors(const KernelArgs *args, int64_t row)
{
    const float *dlosses = args->in[IN_DLOSSES].data, *dlse = args->in[IN_DLSE].data;
    int64_t      vocab = type_cols(&args->in[IN_LOGITS].type);
    int32_t      label = ((const int32_t *)args->in[IN_LABELS].data)[row];
    float        own = dlosses && label != IGNORE_INDEX ? dlosses[row] : 0;
    if (label != IGNORE_INDEX && (label < 0 || label >= vocab)) own = NAN;
    return (RowFactors){dlse ? own + dlse[row] : own, own};
}

static void gradient_row(const KernelArgs *args, int64_t row)
{
    const TensorView *logits = &args->in[IN_LOGITS];
    int64_t           vocab = type_cols(&logits->type);
    int32_t           label = ((const int32_t *)args->in[IN_LABELS].data)[row];
    float             lse = ((const float *)args->in[IN_LSE].data)[row];
    RowFactors        factors = row_factors(args, row);
    bool              none = label == IGNORE_INDEX && !args->in[IN_DLSE].data; /* gradient 0, whatever the logits are */
    float             in[TILE], out[TILE];
    for (int64_t c = 0; c < vocab; c += TILE) {
        int64_t n = min_i64(TILE, vocab - c);
        if (none) {
            memset(out, 0, (size_t)n * sizeof(float));
        } else {
            const float *x = tile_load(logits, row * vocab + c, n, in);
            for (int64_t i = 0; i < n; i++) out[i] = factors.all * vec_expf(x[i] - lse);
            if (label >= c && label < c + n) out[label - c] -= factors.own;
        }
        tile_store(&args->out[0], row * vocab + c, out, n);
    }
}

VEC_TASK(cross_entropy_bwd_task)
{
    const KernelArgs *args = context;
    int64_t           step = rows_per_task(type_cols(&args->in[IN_LOGITS].type)),
            end = min_i64(type_rows(&args->in[IN_LOGITS].type), (task + 1) * step);
    (void)worker;
    for (int64_t row = task * step; row < end; row++) gradient_row(args, row);
}

static Status cross_entropy_bwd_rows(const KernelArgs *args)
{
    int64_t rows = type_rows(&args->in[IN_LOGITS].type), vocab = type_cols(&args->in[IN_LOGITS].type);
    pool_run(args->pool, div_up(rows, rows_per_task(vocab)), cross_entropy_bwd_task, (void *)args);
    return OK;
}

static Status cross_entropy_bwd_reference(const KernelArgs *args)
{
    const TensorView *logits = &args->in[IN_LOGITS];
    const float      *dlosses = args->in[IN_DLOSSES].data, *lse = args->in[IN_LSE].data, *dlse = args->in[IN_DLSE].data;
    int64_t           rows = type_rows(&logits->type), vocab = type_cols(&logits->type);
    for (int64_t row = 0; row < rows; row++) {
        int32_t label = ((const int32_t *)args->in[IN_LABELS].data)[row];
        bool    ignored = label == IGNORE_INDEX, valid = label >= 0 && label < vocab;
        double  dloss = ignored ? 0 : !valid ? NAN : dlosses ? dlosses[row] : 0, all = dloss + (dlse ? dlse[row] : 0);
        for (int64_t j = 0; j < vocab; j++) {
            double p = all == 0 ? 0 : exp((double)vec_get(logits->data, logits->type.dtype, row * vocab + j) - lse[row]);
            vec_set(args->out[0].data, args->out[0].type.dtype, row * vocab + j, (float)(all * p - (j == label ? dloss : 0)));
        }
    }
    return OK;
}

const OpDef op_cross_entropy_bwd = {
    .id = OP_CROSS_ENTROPY_BWD,
    .name = "cross_entropy_bwd",
    .synopsis = "dlogits = dloss (exp(logits - lse) - one_hot(label)) + dlse exp(logits - lse)",
    .num_in = 5,
    .num_out = 1,
    .min_in = 4,
    .optional_in = 1u << IN_DLOSSES,
    .by_row = 1u << IN_DLOSSES | 1u << IN_LOGITS | 1u << IN_LABELS | 1u << IN_LSE | 1u << IN_DLSE,
    .infer = cross_entropy_bwd_infer,
    .cost = cross_entropy_bwd_cost,
    .cpu = {{DT_SET_FLOAT, cross_entropy_bwd_rows, "rows"}, {DT_SET_FLOAT, cross_entropy_bwd_reference, "reference"}},
    .holds = {[IN_LABELS] = HOLDS_LABELS},
    .samples = "[5], [5,7], i32[5] below=7, [5]\n"
               "[2,3], [2,3,2100], i32[2,3] below=2100, [2,3]\n"
               "[9], [9,24], i32[9] below=24, [9], [9]\n"
               "_, [9,13], i32[9] below=13, [9], [9]\n",
    .large = "[70], [70,32000], i32[70] below=32000, [70]\n"
             "[70], [70,32000], i32[70] below=32000, [70], [70]\n"
             "[7], [7,4096] masked=300, i32[7] below=300, [7]\n",
};
