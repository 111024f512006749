/* lm_head_loss: losses of logits = x w^T against labels. Only the logits of one chunk of rows exist at a time.
 *
 * For each chunk: logits are computed by tiles; each row becomes exponentials and gives its loss, and for backward becomes dlogits, in
 * place. Then dx of the chunk's rows is computed, and the chunk's part of dw is added, in the order of chunks. Chunks without a trained
 * label cost nothing. */
#include "ops/loss/lm_head.h"
#include "ops/loss/lm_head_chunks.h"

#include <float.h>

enum {
    CHUNK_FLOATS = 1 << 25, /* floats of a chunk's logits, 128 MiB: enough rows for reading w to pay, with many workers too */
    LEAST_ROWS = 64,
    MOST_ROWS = 1024,
    ROWS_PER_TASK = 4,
    MOST_STRETCHES = 256,
};

static const AttrDef lm_head_loss_attrs[] = {ATTR_INT(LmHeadAttrs, chunks, 0),
                                             ATTR_FLOAT(LmHeadAttrs, softcap, 0),
                                             ATTR_BOOL(LmHeadAttrs, hits, false),
                                             ATTR_BOOL(LmHeadAttrs, sum_f32, false),
                                             {0}};

/* x (...,C), w (V,C), labels i32 (...) -> losses (...) f32, [hits (...) f32]. */
static Status lm_head_loss_infer(Node *node)
{
    TRY(infer_float(node, 0, "x", 2));
    const TensorType *x = &node->in[0]->type;
    TRY(infer_input(node, 1, "w", DT_SET_DECODE, DIMS(-1, type_cols(x))));
    TRY(infer_labels(node, 2, x));
    int count = ((const LmHeadAttrs *)node->attrs)->hits ? 2 : 1;
    for (int k = 0; k < count; k++) node->out[k]->type = type_without_last(x, DT_F32);
    return OK;
}

/* The backward op outputs losses and hits too; these replace forward's, so logits are computed once. */
static Status lm_head_loss_backward(GradBuilder *grad, const Node *node)
{
    Value   *x = node->in[0], *w = node->in[1], *dlosses = grad_of(grad, node->out[0]), *out[4];
    bool     want_x = grad_wanted(grad, x), want_w = grad_wanted(grad, w);
    uint32_t want = 1u | want_bit(want_x, 1) | want_bit(want_w, 2) | want_bit(node->out[1] != NULL, 3);
    if (!dlosses || (!want_x && !want_w)) return OK;
    Value         *in[] = {dlosses, x, w, node->in[2], want_w ? grad_accumulator(grad, w) : NULL};
    LmHeadBwdAttrs attrs = {.dw_dtype = want_w ? grad_dw_dtype(grad, w, x->type.dtype) : 0,
                            .chunks = ((const LmHeadAttrs *)node->attrs)->chunks,
                            .softcap = ((const LmHeadAttrs *)node->attrs)->softcap,
                            .hits = node->out[1] != NULL,
                            .sum_f32 = want_w && ((const LmHeadAttrs *)node->attrs)->sum_f32};
    TRY(grad_emit(grad, OP_LM_HEAD_LOSS_BWD, &attrs, in, 5, want, out));
    grad_replace_forward(grad, node->out[0], out[0]);
    if (node->out[1]) grad_replace_forward(grad, node->out[1], out[3]);
    if (want_w) grad_set(grad, w, out[2]);
    return want_x ? grad_add(grad, x, out[1]) : OK;
}

static OpCost lm_head_loss_cost(const Node *node)
{
    OpCost cost = cost_streaming(node, 2.0 * (double)type_numel(&node->in[0]->type) * (double)node->in[1]->type.dim[0]);
    cost.matrix_unit = true;
    return cost;
}

static int64_t rows_of_chunk(const LmHead *head)
{
    int64_t rows = CHUNK_FLOATS / head->vocab / 64 * 64;
    return min_i64(head->rows, max_i64(LEAST_ROWS, min_i64(MOST_ROWS, rows)));
}

/* A view of the chunk's logits: (rows, V) f32. */
static TensorView chunk_view(const LmHead *h, int64_t rows, float *logits)
{
    return (TensorView){logits, type_make(DT_F32, 2, rows, h->vocab)};
}

/* A view of the chunk's dlogits, which replace the logits; each row begins where its logits began. */
static TensorView dlogits_view(const LmHead *h, int64_t rows, float *logits)
{
    return (TensorView){logits, type_make(h->narrow ? DT_BF16 : DT_F32, 2, rows, h->vocab)};
}

/* A product that reads dlogits: bf16 rows are as far apart as the f32 rows that they replaced. */
static Gemm of_dlogits(const LmHead *h, Gemm gemm)
{
    if (h->narrow) gemm.a.stride = 2 * h->vocab;
    return gemm;
}

static void *dx_row(const LmHead *h, int64_t row)
{
    return vec_at_mut(h->dx.data, h->dx.type.dtype, row * h->channels);
}

static bool sums_apart(const LmHead *h)
{
    return h->dw.data && h->dw.type.dtype != DT_F32;
}

static int64_t logits_floats(const LmHead *h)
{
    return (rows_of_chunk(h) * h->vocab + 63) & ~(int64_t)63;
}

static int64_t sum_floats(const LmHead *h)
{
    return sums_apart(h) ? (h->vocab * h->channels + 63) & ~(int64_t)63 : 0;
}

/* Parts of the workspace: logits of a chunk, then the f32 sum of a dw of another dtype, then scratch of the products. */
size_t lm_head_workspace(const LmHead *h, int num_workers)
{
    if (!h->rows) return 0;
    int64_t    rows = rows_of_chunk(h), last = h->rows % rows ? h->rows % rows : rows; /* a shorter chunk may use another grid */
    TensorView sum = {.type = type_as(&h->w.type, DT_F32)};
    Gemm       gemms[6];
    int        count = 0;
    for (int turn = 0; turn < 2; turn++) {
        int64_t    n = turn ? last : rows;
        TensorView logits = chunk_view(h, n, NULL), dlogits = dlogits_view(h, n, NULL);
        gemms[count++] = head_logits_product(&h->x, &h->w, 0, n, &logits);
        gemms[count++] = of_dlogits(h, head_dw_product(&dlogits, &h->x, 0, n, &sum, false));
        if (h->dx.data) gemms[count++] = of_dlogits(h, head_dx_product(&dlogits, &h->w, 0, n, &h->dx));
    }
    return (size_t)(logits_floats(h) + sum_floats(h)) * sizeof(float) + gemms_workspace(gemms, count, num_workers);
}

typedef struct ChunkJob {
    const LmHead *head;
    int64_t       row, rows;
    float        *logits;
} ChunkJob;

/* Capped logits become gradients of the logits before the cap. scale * e^(logit - shift), less dloss at the label, is the gradient of a
 * capped logit. */
static void cap_gradients(float *logits, float cap, float shift, float scale, int64_t vocab, int32_t label, float dloss)
{
    for (int64_t c = 0; c < vocab; c += TILE) {
        int64_t n = min_i64(TILE, vocab - c);
        float   exps[TILE], *x = logits + c;
        vec_exp_sum(exps, x, shift, n);
        for (int64_t i = 0; i < n; i++) {
            float t = x[i] / cap;
            x[i] = (scale * exps[i] - (c + i == label ? dloss : 0)) * (1.0f - t * t);
        }
    }
}

/* A row's exponentials, computed by stretches (consecutive parts of the row). A stretch's exponentials are relative to the largest logit up
 * to its end, so that logits are read once. */
typedef struct RowExps {
    int64_t stretch;
    float   shifts[MOST_STRETCHES]; /* a stretch's exponentials are e^(logits - shift) */
    float   shift, total;           /* the largest logit of the row, and the sum of exponentials relative to it */
} RowExps;

/* Turns logits into exponentials in place. */
static void row_exps(RowExps *row, float *logits, int64_t vocab)
{
    row->stretch = TILE * div_up(vocab, TILE * MOST_STRETCHES);
    row->shift = -FLT_MAX; /* finite, as -inf - -inf is NaN */
    row->total = 0;
    for (int64_t c = 0; c < vocab; c += row->stretch) {
        int64_t n = min_i64(row->stretch, vocab - c);
        float   most = vec_max(logits + c, n);
        /* prefetches the next stretch while this one becomes exponentials */
        for (int64_t next = c + n; next < min_i64(vocab, c + 2 * n); next += 16) __builtin_prefetch(logits + next);
        if (most > row->shift) {
            row->total *= vec_expf(row->shift - most);
            row->shift = most;
        }
        row->total += vec_exp_sum(logits + c, logits + c, row->shift, n);
        row->shifts[c / row->stretch] = row->shift;
    }
}

/* Converts floats [at, at + count) of a row to bf16, times scale, in place; bf16 elements are packed from the row's beginning. */
static void narrow_row(float *row, int64_t at, float scale, int64_t count)
{
    uint16_t *to = (uint16_t *)row + at;
    VEC_EACH(DT_BF16, to, count, i, n, vec8_some(DT_F32, row + at, i, n) * scale);
}

/* Turns exponentials into dlogits in place. */
static void row_gradients(const LmHead *h, const RowExps *row, float *exps, int32_t label, float dloss)
{
    bool  valid = label >= 0 && label < h->vocab;
    float own = 0;
    for (int64_t c = 0; c < h->vocab; c += row->stretch) {
        int64_t n = min_i64(row->stretch, h->vocab - c);
        float   scale = dloss / row->total * vec_expf(row->shifts[c / row->stretch] - row->shift);
        if (valid && label >= c && label < c + n) own = exps[label] * scale - dloss;
        if (h->narrow)
            narrow_row(exps, c, scale, n);
        else
            vec_scale(exps + c, scale, n);
    }
    if (valid) vec_set(exps, h->narrow ? DT_BF16 : DT_F32, label, own);
}

/* Turns capped logits into dlogits in place. (Without a softcap, rows hold exponentials: row_gradients.) */
static void capped_gradients(const LmHead *h, const RowLoss *row, float *logits, int32_t label, float dloss)
{
    cap_gradients(logits, h->softcap, row->shift, dloss / row->total, h->vocab, label, dloss);
    if (h->narrow) narrow_row(logits, 0, 1, h->vocab);
}

/* The same as row_loss, except that logits become exponentials. */
static RowLoss row_loss_of_exps(RowExps *row, float *logits, int64_t vocab, int32_t label)
{
    float target = label >= 0 && label < vocab ? logits[label] : NAN;
    row_exps(row, logits, vocab);
    return row_loss_of(row->shift, row->total, target, label);
}

/* Computes losses of ROWS_PER_TASK rows; logits become dlogits if dlosses are given. */
VEC_TASK(rows_task)
{
    const ChunkJob *job = context;
    const LmHead   *h = job->head;
    int64_t         end = min_i64(job->rows, (task + 1) * ROWS_PER_TASK);
    (void)worker;
    for (int64_t i = task * ROWS_PER_TASK; i < end; i++) {
        float  *logits = job->logits + i * h->vocab;
        int32_t label = h->labels[job->row + i];
        RowExps exps = {0};
        if (h->softcap > 0) vec_softcap(logits, h->softcap, h->vocab);
        RowLoss row = h->softcap > 0 ? row_loss(logits, DT_F32, h->vocab, label) : row_loss_of_exps(&exps, logits, h->vocab, label);
        if (h->losses) h->losses[job->row + i] = row.loss;
        if (h->hits) h->hits[job->row + i] = row.hit;
        if (!h->dlosses) continue;
        if (label == IGNORE_INDEX) {
            memset(logits, 0, (size_t)h->vocab * sizeof(float)); /* all bytes 0: also zeros in bf16 */
            continue;
        }
        float dloss = label >= 0 && label < h->vocab ? h->dlosses[job->row + i] : NAN;
        if (h->softcap > 0)
            capped_gradients(h, &row, logits, label, dloss);
        else
            row_gradients(h, &exps, logits, label, dloss);
    }
}

static bool chunk_ignored(const LmHead *h, int64_t row, int64_t rows)
{
    for (int64_t i = 0; i < rows; i++)
        if (h->labels[row + i] != IGNORE_INDEX) return false;
    return true;
}

typedef struct StoreJob {
    const LmHead *head;
    const float  *sum;
} StoreJob;

VEC_TASK(store_task)
{
    const StoreJob *job = context;
    const LmHead   *h = job->head;
    const float    *sum = job->sum + task * h->channels;
    void           *row = vec_at_mut(h->dw.data, h->dw.type.dtype, task * h->channels);
    (void)worker;
    if (h->accumulate)
        vec_add_row(row, h->dw.type.dtype, sum, h->channels);
    else
        vec_store_row(row, h->dw.type.dtype, sum, h->channels);
}

void lm_head_run(const LmHead *h, ThreadPool *pool, void *workspace)
{
    int64_t    step = h->rows ? rows_of_chunk(h) : 1;
    float     *logits = workspace, *sum = sums_apart(h) ? logits + logits_floats(h) : h->dw.data;
    void      *scratch = logits + (h->rows ? logits_floats(h) + sum_floats(h) : 0);
    bool       holds = h->accumulate && !sums_apart(h); /* `sum` already holds values that chunks are added to */
    TensorView total = {sum, type_as(&h->w.type, DT_F32)};
    for (int64_t row = 0; row < h->rows; row += step) {
        ChunkJob job = {.head = h, .row = row, .rows = min_i64(step, h->rows - row), .logits = logits};
        if (chunk_ignored(h, row, job.rows)) {
            if (h->losses) memset(h->losses + row, 0, (size_t)job.rows * sizeof(float));
            if (h->hits) memset(h->hits + row, 0, (size_t)job.rows * sizeof(float));
            if (h->dx.data) memset(dx_row(h, row), 0, (size_t)(dtype_bytes(h->dx.type.dtype, job.rows * h->channels)));
            continue;
        }
        TensorView chunk = chunk_view(h, job.rows, logits), dlogits = dlogits_view(h, job.rows, logits);
        Gemm       gemm = head_logits_product(&h->x, &h->w, row, job.rows, &chunk);
        gemm_run(&gemm, pool, scratch);
        pool_run(pool, div_up(job.rows, ROWS_PER_TASK), rows_task, &job);
        if (h->dx.data) {
            gemm = of_dlogits(h, head_dx_product(&dlogits, &h->w, row, job.rows, &h->dx));
            gemm_run(&gemm, pool, scratch);
        }
        if (!h->dw.data) continue;
        gemm = of_dlogits(h, head_dw_product(&dlogits, &h->x, row, job.rows, &total, holds));
        gemm_run(&gemm, pool, scratch);
        holds = true;
    }
    if (!h->dw.data) return;
    if (!holds) memset(sum, 0, (size_t)(h->vocab * h->channels) * sizeof(float));
    StoreJob store = {h, sum};
    if (sums_apart(h)) pool_run(pool, h->vocab, store_task, &store);
}

static double reference_logit(const LmHead *h, float logit)
{
    double cap = h->softcap;
    return cap > 0 ? cap * tanh(logit / cap) : logit;
}

/* Computes losses and gradients row by row, and adds sums in the order of rows. */
void lm_head_reference(const LmHead *h, float *row_scratch)
{
    int64_t dw_numel = h->vocab * h->channels;
    for (int64_t i = 0; h->dw.data && !h->accumulate && i < dw_numel; i++) vec_set(h->dw.data, h->dw.type.dtype, i, 0);
    for (int64_t row = 0; row < h->rows; row++) {
        TensorView chunk = chunk_view(h, 1, row_scratch);
        Gemm       gemm = head_logits_product(&h->x, &h->w, row, 1, &chunk);
        int32_t    label = h->labels[row];
        double     most = -INFINITY, total = 0;
        gemm_reference(&gemm);
        for (int64_t j = 0; j < h->vocab; j++) most = fmax(most, reference_logit(h, row_scratch[j]));
        for (int64_t j = 0; j < h->vocab; j++) total += exp(reference_logit(h, row_scratch[j]) - most);
        bool   valid = label >= 0 && label < h->vocab;
        double loss = label == IGNORE_INDEX ? 0 : valid ? most + log(total) - reference_logit(h, row_scratch[label]) : NAN;
        if (h->losses) h->losses[row] = (float)loss;
        if (h->hits) h->hits[row] = valid && reference_logit(h, row_scratch[label]) >= most;
        if (!h->dlosses) continue;
        double dloss = label == IGNORE_INDEX ? 0 : valid ? h->dlosses[row] : NAN;
        for (int64_t j = 0; j < h->vocab; j++) {
            double logit = reference_logit(h, row_scratch[j]), t = h->softcap > 0 ? logit / h->softcap : 0;
            row_scratch[j] = dloss == 0 ? 0 : (float)(dloss * (exp(logit - most) / total - (j == label)) * (1 - t * t));
        }
        if (h->dx.data) {
            gemm = head_dx_product(&chunk, &h->w, row, 1, &h->dx);
            gemm_reference(&gemm);
        }
        if (!h->dw.data) continue;
        gemm = head_dw_product(&chunk, &h->x, row, 1, &h->dw, true);
        gemm_reference(&gemm);
    }
}

static LmHead lm_head_loss_of_types(const TensorType *x, const TensorType *w)
{
    return (LmHead){.rows = type_rows(x), .channels = type_cols(x), .vocab = w->dim[0], .x.type = *x, .w.type = *w};
}

static size_t lm_head_loss_gpu_workspace(const Node *node, int sm)
{
    (void)sm;
    return lm_head_gpu_workspace(&node->in[0]->type, node->in[1]->type.dim[0], false, ((const LmHeadAttrs *)node->attrs)->chunks);
}

static size_t lm_head_loss_workspace(const Node *node, int num_workers)
{
    LmHead head = lm_head_loss_of_types(&node->in[0]->type, &node->in[1]->type);
    return lm_head_workspace(&head, num_workers);
}

static LmHead lm_head_loss_bound(const KernelArgs *args)
{
    LmHead head = lm_head_loss_of_types(&args->in[0].type, &args->in[1].type);
    head.x = args->in[0];
    head.w = args->in[1];
    head.labels = args->in[2].data;
    head.losses = args->out[0].data;
    head.softcap = (float)((const LmHeadAttrs *)args->attrs)->softcap;
    head.hits = args->out[1].data;
    return head;
}

static Status lm_head_loss_chunks(const KernelArgs *args)
{
    LmHead head = lm_head_loss_bound(args);
    lm_head_run(&head, args->pool, args->workspace);
    return OK;
}

static Status lm_head_loss_reference(const KernelArgs *args)
{
    LmHead head = lm_head_loss_bound(args);
    lm_head_reference(&head, args->workspace);
    return OK;
}

const OpDef op_lm_head_loss = {
    .id = OP_LM_HEAD_LOSS,
    .name = "lm_head_loss",
    .synopsis = "losses = lse(l) - l[label], l = x w^T, or softcap tanh(x w^T / softcap); 0 where label = -100; hits as in "
                "cross_entropy",
    .num_in = 3,
    .num_out = 2,
    .min_in = 3,
    .attrs_size = sizeof(LmHeadAttrs),
    .attrs = lm_head_loss_attrs,
    .infer = lm_head_loss_infer,
    .backward = lm_head_loss_backward,
    .flags = OP_BY_LABEL,
    .cost = lm_head_loss_cost,
    .workspace = lm_head_loss_workspace,
    .gpu_workspace = lm_head_loss_gpu_workspace,
    .cpu = {{DT_SET_DECODE, lm_head_loss_chunks, "chunks"}, {DT_SET_DECODE, lm_head_loss_reference, "reference"}},
    .holds = {[2] = HOLDS_LABELS},
    .params = 1u << 1,
    .samples = "[2,3,5], [7,5], i32[2,3] below=7\n"
               "[2,40,12], [1100,12], i32[2,40] below=1100\n"
               "[2,3,5], [7,5], i32[2,3] below=7 {softcap=1.5}\n"
               "[2,40,12], [12,12], i32[2,40] below=12 {hits=true}\n",
    .large = /* few channels: with more, bf16 logits (about sqrt(channels) times x) would differ more from fp32 than models' logits do */
    "[2,200,32], [5003,32], i32[2,200] below=5003\n"
    "[2,200,32], [4000,32], i32[2,200] below=4000 {softcap=1.5}\n",
};
