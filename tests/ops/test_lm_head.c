/* lm_head_loss and its backward over several chunks of rows, compared with fp64; behaviour of ignored and impossible labels. */
#include "ops/loss/lm_head.h"
#include "ops/loss/lm_head_chunks.h"

#include "ops/op_case.h"

enum { ROWS = 2100, CHANNELS = 8, VOCAB = 50, CHUNK = 1024 /* rows of a chunk for a small vocabulary */ };

typedef struct Expected {
    double losses[ROWS], dx[ROWS * CHANNELS], dw[VOCAB * CHANNELS];
} Expected;

static void expect_row(Expected *e, const float *x, const float *w, int32_t label, double dloss, int64_t row)
{
    double logits[VOCAB], most = -INFINITY, total = 0;
    if (label == IGNORE_INDEX) return;
    for (int v = 0; v < VOCAB; v++) {
        logits[v] = 0;
        for (int c = 0; c < CHANNELS; c++) logits[v] += (double)x[c] * w[v * CHANNELS + c];
        most = fmax(most, logits[v]);
    }
    for (int v = 0; v < VOCAB; v++) total += exp(logits[v] - most);
    e->losses[row] = most + log(total) - logits[label];
    for (int v = 0; v < VOCAB; v++) {
        double d = dloss * (exp(logits[v] - most) / total - (v == label));
        for (int c = 0; c < CHANNELS; c++) {
            e->dx[row * CHANNELS + c] += d * w[v * CHANNELS + c];
            e->dw[v * CHANNELS + c] += d * x[c];
        }
    }
}

/* The second chunk has no trained label; in the others every fifth label is ignored. */
static void fill_labels(int32_t *labels)
{
    for (int i = 0; i < ROWS; i++) labels[i] = i / CHUNK == 1 || i % 5 == 0 ? IGNORE_INDEX : i * 7 % VOCAB;
}

static OpCase head_case(DType dw, bool accumulate)
{
    OpCase     c;
    TensorType in[NODE_MAX_IN] = {type_make(DT_F32, 1, (int64_t)ROWS), type_make(DT_F32, 2, (int64_t)ROWS, (int64_t)CHANNELS),
                                  type_make(DT_F32, 2, (int64_t)VOCAB, (int64_t)CHANNELS), type_make(DT_I32, 1, (int64_t)ROWS)};
    if (accumulate) in[4] = type_make(dw, 2, (int64_t)VOCAB, (int64_t)CHANNELS);
    EXPECT_OK(op_case_make(&c, &op_lm_head_loss_bwd, NULL, in));
    op_case_fill(&c, 5, (int[NODE_MAX_IN]){0, 0, 0, 1});
    fill_labels((int32_t *)c.in[3].data);
    return c;
}

static void expect_tensor(OpCase *c, int k, const double *expected, double tolerance)
{
    const TensorType *type = &c->all_out[k]->type;
    double            worst = 0, largest = 0;
    for (int64_t i = 0; i < type_numel(type); i++) {
        double d = fabs(tensor_element(type, c->out[k].data, i) - expected[i]);
        worst = d <= worst ? worst : isnan(d) ? INFINITY : d;
        largest = fmax(largest, fabs(expected[i]));
    }
    if (!(worst <= tolerance * largest)) test_fail(__FILE__, __LINE__, "output %d is off by %g of %g", k, worst, largest);
}

static void chunks_match_fp64(void)
{
    for (int bits = 0; bits < 4; bits++) {
        bool      accumulate = bits & 1;
        OpCase    c = head_case(bits & 2 ? DT_BF16 : DT_F32, accumulate);
        Expected *e = calloc(1, sizeof *e);
        for (int64_t row = 0; row < ROWS; row++)
            expect_row(e, (float *)c.in[1].data + row * CHANNELS, (float *)c.in[2].data, ((int32_t *)c.in[3].data)[row],
                       ((float *)c.in[0].data)[row], row);
        for (int i = 0; accumulate && i < VOCAB * CHANNELS; i++) e->dw[i] += tensor_element(&c.node->in[4]->type, c.in[4].data, i);
        EXPECT_OK(op_case_run(&c, &op_lm_head_loss_bwd.cpu[0], 1, "chunks"));
        expect_tensor(&c, 0, e->losses, 1e-5);
        expect_tensor(&c, 1, e->dx, 1e-5);
        expect_tensor(&c, 2, e->dw, bits == 3 ? 1.0 / 256 : 1e-5); /* rounded to bf16 once, whatever the number of chunks */
        free(e);
        op_case_free(&c);
    }
}

static void losses_have_the_same_bits_forward_and_backward(void)
{
    OpCase     backward = head_case(DT_F32, false), forward;
    TensorType in[NODE_MAX_IN] = {backward.node->in[1]->type, backward.node->in[2]->type, backward.node->in[3]->type};
    EXPECT_OK(op_case_make(&forward, &op_lm_head_loss, NULL, in));
    for (int k = 0; k < 3; k++) memcpy(forward.in[k].data, backward.in[k + 1].data, forward.in[k].bytes);
    EXPECT_OK(op_case_run(&backward, &op_lm_head_loss_bwd.cpu[0], 1, "backward"));
    EXPECT_OK(op_case_run(&forward, &op_lm_head_loss.cpu[0], 3, "forward"));
    EXPECT(memcmp(forward.out[0].data, backward.out[0].data, forward.out[0].bytes) == 0);
    op_case_free(&forward);
    op_case_free(&backward);
}

static void nothing_trained_gives_zeros(void)
{
    OpCase c = head_case(DT_F32, false);
    for (int i = 0; i < ROWS; i++) ((int32_t *)c.in[3].data)[i] = IGNORE_INDEX;
    EXPECT_OK(op_case_run(&c, &op_lm_head_loss_bwd.cpu[0], 1, "ignored"));
    for (int k = 0; k < 3; k++)
        for (int64_t i = 0; i < type_numel(&c.all_out[k]->type); i++) EXPECT(((float *)c.out[k].data)[i] == 0);
    op_case_free(&c);
}

/* The loader lets no such label through. If one arrives, the loss isn't finite, which stops the step, and no memory outside is read. */
static void impossible_labels_give_nan(void)
{
    const int32_t bad[] = {VOCAB, -1, INT32_MAX, INT32_MIN};
    OpCase        c = head_case(DT_F32, false);
    for (int i = 0; i < 4; i++) ((int32_t *)c.in[3].data)[1 + i * 2] = bad[i];
    EXPECT_OK(op_case_run(&c, &op_lm_head_loss_bwd.cpu[0], 1, "impossible"));
    for (int i = 0; i < 4; i++) EXPECT(isnan(((float *)c.out[0].data)[1 + i * 2]));
    EXPECT(isfinite(((float *)c.out[0].data)[2]) && isnan(((float *)c.out[2].data)[0]));
    op_case_free(&c);
}

static void a_gpu_takes_as_many_chunks_as_asked_for(void)
{
    enum { ROW_BYTES = 2 * 150000 };
    EXPECT(lm_head_chunk_rows(8192, ROW_BYTES, true, 0) == 2816); /* 3 chunks of at most 1 GiB */
    EXPECT(lm_head_chunk_rows(8192, ROW_BYTES, true, 2) == 2816);
    EXPECT(lm_head_chunk_rows(8192, ROW_BYTES, true, 4) == 2048);
    EXPECT(lm_head_chunk_rows(8192, ROW_BYTES, true, 8) == 1024);
    EXPECT(lm_head_chunk_rows(8192, ROW_BYTES, true, 65536) == 1024); /* a chunk has at least 1,024 rows */
    EXPECT(lm_head_chunk_rows(1500, ROW_BYTES, true, 8) == 1500);
    EXPECT(lm_head_chunk_rows(8192, 1 << 24, true, 8) == 128); /* unless 1 GiB holds fewer rows */
    EXPECT(lm_head_chunk_rows(0, ROW_BYTES, true, 8) == 0);
}

TEST_MAIN(TEST(a_gpu_takes_as_many_chunks_as_asked_for), TEST(chunks_match_fp64), TEST(losses_have_the_same_bits_forward_and_backward),
          TEST(nothing_trained_gives_zeros), TEST(impossible_labels_give_nan))
