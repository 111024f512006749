/* cross_entropy: losses = log(sum(exp(logits))) - logits[label] per token, 0 where the label is IGNORE_INDEX. hits, if wanted: 1 where no
 * logit is above the label's, else 0. */
#include "ops/loss/cross_entropy.h"

Status infer_labels(const Node *node, int k, const TensorType *x)
{
    TensorType labels = type_without_last(x, DT_I32);
    return infer_like(node, k, "labels", DT_SET(DT_I32), &labels);
}

static const AttrDef cross_entropy_attrs[] = {ATTR_BOOL(CrossEntropyAttrs, hits, false), {0}};

/* logits (...,V), labels i32 (...) -> losses (...) f32, lse (...) f32, [hits (...) f32]. */
static Status cross_entropy_infer(Node *node)
{
    TRY(infer_float(node, 0, "logits", 2));
    TRY(infer_labels(node, 1, &node->in[0]->type));
    int count = ((const CrossEntropyAttrs *)node->attrs)->hits ? 3 : 2;
    for (int k = 0; k < count; k++) node->out[k]->type = type_without_last(&node->in[0]->type, DT_F32);
    return OK;
}

static Status cross_entropy_backward(GradBuilder *grad, const Node *node)
{
    Value *logits = node->in[0], *dlosses = grad_of(grad, node->out[0]), *dlse = grad_of(grad, node->out[1]), *dlogits;
    if ((!dlosses && !dlse) || !grad_wanted(grad, logits)) return OK;
    Value *in[] = {dlosses, logits, node->in[1], node->out[1], dlse};
    TRY(grad_emit(grad, OP_CROSS_ENTROPY_BWD, NULL, in, 5, ~0u, &dlogits));
    return grad_add(grad, logits, dlogits);
}

static OpCost cross_entropy_cost(const Node *node)
{
    return cost_streaming(node, 16.0 * (double)type_numel(&node->in[0]->type)); /* about 16 operations per exponential */
}

VEC_TASK(cross_entropy_task)
{
    const KernelArgs *args = context;
    const TensorView *logits = &args->in[0];
    int64_t           rows = type_rows(&logits->type), vocab = type_cols(&logits->type), step = rows_per_task(vocab);
    int64_t           end = min_i64(rows, (task + 1) * step);
    float            *losses = args->out[0].data, *lse = args->out[1].data, *hits = args->out[2].data;
    (void)worker;
    for (int64_t row = task * step; row < end; row++) {
        RowLoss result = row_loss(vec_at(logits->data, logits->type.dtype, row * vocab), logits->type.dtype, vocab,
                                  ((const int32_t *)args->in[1].data)[row]);
        if (losses) losses[row] = result.loss;
        if (lse) lse[row] = result.lse;
        if (hits) hits[row] = result.hit;
    }
}

static Status cross_entropy_rows(const KernelArgs *args)
{
    int64_t rows = type_rows(&args->in[0].type), vocab = type_cols(&args->in[0].type);
    pool_run(args->pool, div_up(rows, rows_per_task(vocab)), cross_entropy_task, (void *)args);
    return OK;
}

static Status cross_entropy_reference(const KernelArgs *args)
{
    const TensorView *logits = &args->in[0];
    int64_t           rows = type_rows(&logits->type), vocab = type_cols(&logits->type);
    const int32_t    *labels = args->in[1].data;
    for (int64_t row = 0; row < rows; row++) {
        double most = -INFINITY, sum = 0;
        for (int64_t j = 0; j < vocab; j++) most = fmax(most, vec_get(logits->data, logits->type.dtype, row * vocab + j));
        for (int64_t j = 0; j < vocab; j++) sum += exp(vec_get(logits->data, logits->type.dtype, row * vocab + j) - most);
        double  lse = most + log(sum);
        int32_t label = labels[row];
        double  target = label >= 0 && label < vocab ? vec_get(logits->data, logits->type.dtype, row * vocab + label) : NAN;
        if (args->out[0].data) ((float *)args->out[0].data)[row] = label == IGNORE_INDEX ? 0 : (float)(lse - target);
        if (args->out[1].data) ((float *)args->out[1].data)[row] = (float)lse;
        if (args->out[2].data) ((float *)args->out[2].data)[row] = target >= most;
    }
    return OK;
}

const OpDef op_cross_entropy = {
    .id = OP_CROSS_ENTROPY,
    .name = "cross_entropy",
    .synopsis = "losses = lse - logits[label], lse = log sum exp(logits); 0 where label = -100; hits = 1 where logits[label] is "
                "the largest",
    .num_in = 2,
    .num_out = 3,
    .min_in = 2,
    .attrs_size = sizeof(CrossEntropyAttrs),
    .attrs = cross_entropy_attrs,
    .by_row = 1u << 0 | 1u << 1,
    .infer = cross_entropy_infer,
    .backward = cross_entropy_backward,
    .cost = cross_entropy_cost,
    .cpu = {{DT_SET_DECODE, cross_entropy_rows, "rows"}, {DT_SET_DECODE, cross_entropy_reference, "reference"}},
    .holds = {[1] = HOLDS_LABELS},
    .grad_outputs = 1u << 1,
    .samples = "[5,7], i32[5] below=7\n"
               "[2,3,2100], i32[2,3] below=2100\n"
               "[200,3], i32[200] below=3 {hits=true}\n",
    .large = "[70,32000], i32[70] below=32000\n"
             /* samples in which all pieces of some thread are -inf: with and without 16-byte packs; one piece or several a thread */
             "[7,4096] masked=300, i32[7] below=300\n"
             "[7,1001] masked=70, i32[7] below=70\n"
             "[7,32000] masked=3, i32[7] below=3\n",
};
