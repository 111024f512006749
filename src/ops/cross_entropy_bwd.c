/* cross_entropy_bwd: dlogits = dloss (exp(logits - lse) - one_hot(label)), 0 where the label is IGNORE_INDEX. */
#include "ops/cross_entropy.h"

/* dlosses (...) f32, logits (...,V), labels i32 (...), lse (...) f32 -> dlogits of logits' type. */
static Status cross_entropy_bwd_infer(Node *node)
{
    TRY(infer_float(node, 1, "logits", 2));
    const TensorType *logits = &node->in[1]->type;
    TensorType        rows = type_without_last(logits, DT_F32);
    TRY(infer_like(node, 0, "dlosses", DT_SET_F32, &rows));
    TRY(infer_labels(node, 2, logits));
    TRY(infer_like(node, 3, "lse", DT_SET_F32, &rows));
    node->out[0]->type = *logits;
    return OK;
}

static OpCost cross_entropy_bwd_cost(const Node *node)
{
    return cost_streaming(node, 16.0 * (double)type_numel(&node->in[1]->type));
}

static void gradient_row(const KernelArgs *args, int64_t row)
{
    const TensorView *logits = &args->in[1];
    int64_t           vocab = type_cols(&logits->type);
    int32_t           label = ((const int32_t *)args->in[2].data)[row];
    float             dloss = ((const float *)args->in[0].data)[row], lse = ((const float *)args->in[3].data)[row];
    float             in[TILE], out[TILE];
    if (label == IGNORE_INDEX)
        dloss = 0;
    else if (label < 0 || label >= vocab)
        dloss = NAN;
    for (int64_t c = 0; c < vocab; c += TILE) {
        int64_t n = min_i64(TILE, vocab - c);
        if (label == IGNORE_INDEX) {
            memset(out, 0, (size_t)n * sizeof(float));
        } else {
            const float *x = tile_load(logits, row * vocab + c, n, in);
            for (int64_t i = 0; i < n; i++) out[i] = dloss * vec_expf(x[i] - lse);
            if (label >= c && label < c + n) out[label - c] -= dloss;
        }
        tile_store(&args->out[0], row * vocab + c, out, n);
    }
}

VEC_TASK(cross_entropy_bwd_task)
{
    const KernelArgs *args = context;
    int64_t           step = rows_per_task(type_cols(&args->in[1].type)), end = min_i64(type_rows(&args->in[1].type), (task + 1) * step);
    (void)worker;
    for (int64_t row = task * step; row < end; row++) gradient_row(args, row);
}

static Status cross_entropy_bwd_rows(const KernelArgs *args)
{
    int64_t rows = type_rows(&args->in[1].type), vocab = type_cols(&args->in[1].type);
    pool_run(args->pool, div_up(rows, rows_per_task(vocab)), cross_entropy_bwd_task, (void *)args);
    return OK;
}

static Status cross_entropy_bwd_reference(const KernelArgs *args)
{
    const TensorView *logits = &args->in[1];
    const float      *dlosses = args->in[0].data, *lse = args->in[3].data;
    int64_t           rows = type_rows(&logits->type), vocab = type_cols(&logits->type);
    for (int64_t row = 0; row < rows; row++) {
        int32_t label = ((const int32_t *)args->in[2].data)[row];
        double  dloss = label == IGNORE_INDEX ? 0 : label >= 0 && label < vocab ? dlosses[row] : NAN;
        for (int64_t j = 0; j < vocab; j++) {
            double p = exp((double)vec_get(logits->data, logits->type.dtype, row * vocab + j) - lse[row]);
            vec_set(args->out[0].data, args->out[0].type.dtype, row * vocab + j, dloss == 0 ? 0 : (float)(dloss * (p - (j == label))));
        }
    }
    return OK;
}

static const OpSample cross_entropy_bwd_samples[] = {
    {.in = {{DT_F32, 1, {5}}, {DT_F32, 2, {5, 7}}, {DT_I32, 1, {5}}, {DT_F32, 1, {5}}}, .int_range = {0, 0, 7}},
    {.in = {{DT_F32, 2, {2, 3}}, {DT_F32, 3, {2, 3, 2100}}, {DT_I32, 2, {2, 3}}, {DT_F32, 2, {2, 3}}}, .int_range = {0, 0, 2100}},
};

/* Shapes of real models. */
static const OpSample cross_entropy_bwd_large_samples[] = {
    {.in = {{DT_F32, 1, {70}}, {DT_F32, 2, {70, 32000}}, {DT_I32, 1, {70}}, {DT_F32, 1, {70}}}, .int_range = {0, 0, 32000}},
};

const OpDef op_cross_entropy_bwd = {
    .id = OP_CROSS_ENTROPY_BWD,
    .name = "cross_entropy_bwd",
    .synopsis = "dlogits = dloss (exp(logits - lse) - one_hot(label))",
    .num_in = 4,
    .num_out = 1,
    .min_in = 4,
    .infer = cross_entropy_bwd_infer,
    .cost = cross_entropy_bwd_cost,
    .cpu = {{DT_SET_FLOAT, cross_entropy_bwd_rows, "rows"}, {DT_SET_FLOAT, cross_entropy_bwd_reference, "reference"}},
    .holds = {[2] = HOLDS_LABELS},
    .samples = cross_entropy_bwd_samples,
    .num_samples = sizeof cross_entropy_bwd_samples / sizeof cross_entropy_bwd_samples[0],
    .large = cross_entropy_bwd_large_samples,
    .num_large = sizeof cross_entropy_bwd_large_samples / sizeof cross_entropy_bwd_large_samples[0],
};
